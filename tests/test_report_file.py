"""The file of a report: whole or not at all, read back as it was, and refused with the reason where it was cut or changed anywhere.

Invariant: damage is done to bytes that the library wrote itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_probe import InputError, _report
from sglang_probe._report import file, text
from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.verdict import Verdict, verdict


def numbers(label: str = "a") -> Verdict:
    return verdict(Arm(label, ((1.0,), (2.0,), (3.0,)), "ms"), Arm("b", ((4.0,), (5.0,), (6.0,)), "ms"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("report") / "x.html"
    _report.write(numbers("<a>"), path)
    return path.read_bytes()


def test_a_file_that_was_cut_anywhere_is_refused_with_the_reason(whole: bytes) -> None:
    assert file.parse(whole, "x")["result"]["a"]["label"] == "<a>"
    for size in {*range(60), *range(60, len(whole) - 400, 61), *range(len(whole) - 400, len(whole))}:
        with pytest.raises(file.ReportError, match="empty|cut, or an editor"):
            file.parse(whole[:size], "x")


def test_a_file_that_was_changed_anywhere_is_refused_with_the_reason(whole: bytes) -> None:
    for place in {*range(0, len(whole) - 200, 97), *range(len(whole) - 200, len(whole))}:
        changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises(file.ReportError):
            file.parse(changed, "x")
    for changed in (whole[:500] + whole[501:], whole[:500] + b" " + whole[500:], whole.replace(b"\n", b"\r\n"), whole + b"\n"):
        with pytest.raises(file.ReportError, match="lost or added|cut, or an editor|no report"):
            file.parse(changed, "x")


def test_other_files_are_refused_by_what_they_are(tmp_path: Path, whole: bytes) -> None:
    other = tmp_path / "other.html"
    other.write_bytes(b"<html>mine</html>")
    with pytest.raises(file.ReportError, match="no report"):
        _report.read(other)
    with pytest.raises(InputError, match="no such file"):
        _report.read(tmp_path / "none.html")
    with pytest.raises(InputError, match="no report: it is not overwritten"):
        _report.write(numbers(), other)
    assert other.read_bytes() == b"<html>mine</html>"
    newer = re.sub(rb"<!-- sglang_probe report 1:", b"<!-- sglang_probe report 2:", whole)
    with pytest.raises(file.ReportError, match="version 2"):
        file.parse(newer, "x")


@pytest.mark.parametrize("name", ["x.md", "x", "no/such/x.html"])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.html|no folder"):
        _report.write(numbers(), tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_a_report_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.html"
    _report.write(numbers("old"), path)
    path.chmod(0o600)
    before = path.read_bytes()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(file.ReportError, match="No space left on device; nothing was left behind"):
            _report.write(numbers("new"), path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    _report.write(numbers("new"), path)
    assert _report.read(path)["result"]["a"]["label"] == "new" and path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=20)
@given(st.text(max_size=30))
def test_any_label_reads_back(label: str) -> None:
    sheet = _report.document(numbers(label))
    whole = file.sealed(f'<!DOCTYPE html>\n<html lang="en">{_data_of(sheet)}</html>\n')
    assert file.parse(whole, "x") == sheet


def _data_of(data: Any) -> str:
    from sglang_probe._report.elements import data_block, markup

    return markup(data_block("sglang-probe-data", data))


def test_secrets_in_words_of_a_command_and_in_variables_are_withheld() -> None:
    given = {"argv": ["run", "--api-key", "hush", "--tp", "8"], "env": {"HF_TOKEN": "hush", "NCCL_DEBUG": "INFO"}, "tokens": 3}
    kept = {"argv": ["run", "--api-key", "(withheld)", "--tp", "8"], "env": {"HF_TOKEN": "(withheld)", "NCCL_DEBUG": "INFO"}}
    assert text.plain(given) == kept | {"tokens": 3}
