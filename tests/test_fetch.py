"""Fetching: a release's sources come from the index once, whole, and every way in which that fails says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree
from sglang_probe._types import InputError, ProbeUnavailable

SMALL = "0.4.1.post7"
NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_wheel(path: Path, version: str = "1.2.3") -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("sglang/srt/server_args.py", "class ServerArgs: ...\n")
        wheel.writestr("sglang/srt/kernel.so", b"\0" * 1000)
        wheel.writestr("sglang/_version.py", f"__version__ = '{version}'\n")
        wheel.writestr("sglang/test/test_it.py", "")
        wheel.writestr(f"sglang-{version}.dist-info/METADATA", f"Version: {version}\n")


class FakePip:
    """Answers for pip: for which target Python there is a wheel, and what is said otherwise."""

    def __init__(self, target: str = "3.11", said: str = "") -> None:
        self.target, self.said, self.asked = target, said, list[str]()

    def __call__(self, version: str, target: str, scratch: str) -> tuple[bool, str]:
        self.asked.append(target)
        if target != self.target:
            return False, self.said
        make_wheel(Path(scratch) / f"sglang-{version}-cp3-none-any.whl", version)
        return True, ""


@pytest.mark.network
def test_a_release_is_fetched_once_and_only_its_sources_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    path = _fetch.fetch(f"v{SMALL}", told.append)
    assert told == [f"fetching sglang {SMALL}"]
    assert path.parent == cache and Tree(path).version == SMALL
    assert Tree(path).has("srt/distributed/parallel_state.py", "GroupCoordinator.all_reduce")
    assert {Path(n).suffix for n in zipfile.ZipFile(path).namelist()} <= {".py", ""}
    monkeypatch.setattr(_fetch, "_pip", lambda *_: pytest.fail("fetched twice"))
    assert _fetch.fetch(SMALL) == path
    assert [p.name for p in cache.iterdir() if p.name.startswith(".")] == []


@pytest.mark.network
def test_an_unknown_version_names_the_nearest(cache: Path) -> None:
    with pytest.raises(InputError, match=r"sglang='0\.5\.999'.*nearest is 0\.5\.2\d"):
        _fetch.fetch("0.5.999")


@pytest.mark.parametrize(
    ("version", "near"),
    [("9.9.9", "0.5.23"), ("0.5.999", "0.5.23"), ("0.5.9.post3", "0.5.9"), ("0.5.10", "0.5.9"), ("0.0.1", "0.4.1.post7")],
)
def test_the_nearest_version_is_the_last_older_one_and_not_the_one_of_similar_letters(
    cache: Path, monkeypatch: pytest.MonkeyPatch, version: str, near: str
) -> None:
    said = {"3.11": "0.4.1.post7, 0.5.9, 0.5.19", "3.10": "0.4.1.post7, 0.5.9, 0.5.19, 0.5.23"}
    monkeypatch.setattr(
        _fetch, "_pip", lambda _version, target, _scratch: (False, f"ERROR: none (from versions: {said.get(target, 'none')})")
    )
    with pytest.raises(InputError, match=rf"nearest is {near.replace('.', '[.]')}$"):
        _fetch.fetch(version)


def test_an_index_that_does_not_answer_is_an_error_with_a_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_INDEX.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProbeUnavailable, match=r"did not answer.*check the network.*checkout instead"):
        _fetch.fetch(SMALL)
    assert not list(cache.glob("*.zip"))


@pytest.mark.parametrize("version", ["", "abc", "0.5.9; os_name", "--help", "../0.5.9", "0.5.9 --index-url=x"])
def test_what_is_no_version_never_reaches_pip(cache: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(_fetch, "_pip", lambda *_: pytest.fail("pip was called"))
    with pytest.raises(InputError, match="not a released version"):
        _fetch.fetch(version)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no zip"])
def test_a_damaged_file_in_the_cache_is_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    cache.mkdir()
    path = _fetch.cached("1.2.3")
    make_wheel(path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"class ServerArgs")] ^= 1
    path.write_bytes({"cut": path.read_bytes()[:-30], "flipped": bytes(raw), "empty": b"", "no zip": b"<html>"}[damage])
    pip = FakePip()
    monkeypatch.setattr(_fetch, "_pip", pip)
    assert Tree(_fetch.fetch("1.2.3")).version == "1.2.3"
    assert pip.asked == ["3.11"]


def test_a_wheel_for_another_python_is_found_since_it_is_only_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip("3.13", "ERROR: Could not find a version (from versions: 0.5.9)")
    monkeypatch.setattr(_fetch, "_pip", pip)
    assert Tree(_fetch.fetch("1.2.3")).version == "1.2.3"
    assert pip.asked == ["3.11", "3.12", "3.13"]


def test_the_command_names_a_target_so_that_any_machine_can_read_any_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    _fetch._pip("0.5.23", "3.11", str(tmp_path))
    assert asked[0][:6] == [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    assert {"--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_34_x86_64"} <= set(asked[0])
    assert asked[0][-1] == "sglang==0.5.23"


def test_a_missing_pip_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fetch, "_pip", FakePip("never", f"{sys.executable}: No module named pip"))
    with pytest.raises(ProbeUnavailable, match="ensurepip"):
        _fetch.fetch("1.2.3")


def test_a_damaged_download_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(_version: str, _target: str, scratch: str) -> tuple[bool, str]:
        (Path(scratch) / "sglang-1.2.3-py3-none-any.whl").write_bytes(b"PK\x03\x04 and no more")
        return True, ""

    monkeypatch.setattr(_fetch, "_pip", pip)
    with pytest.raises(ProbeUnavailable, match="damaged"):
        _fetch.fetch("1.2.3")
    assert not list(cache.glob("*.zip"))


def test_two_processes_that_fetch_at_once_download_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_fetch import make_wheel
        from sglang_probe._source import fetch as _fetch

        def pip(version, target, scratch):
            with open({str(log)!r}, "a") as file:
                file.write("fetched\\n")
            make_wheel(Path(scratch) / f"sglang-{{version}}-py3-none-any.whl", version)
            return True, ""

        _fetch._pip = pip
        print(_fetch.fetch("1.2.3"))
    """)
    home = str(Path(_fetch.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    answers = {process.communicate(timeout=60)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert answers == {str(_fetch.cached("1.2.3"))}
    assert log.read_text() == "fetched\n"


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ProbeUnavailable, match="SGLANG_PROBE_CACHE"):
        _fetch.fetch("1.2.3")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SGLANG_PROBE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _fetch.cache_dir() == tmp_path / "sglang_probe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _fetch.cache_dir() == Path.home() / ".cache" / "sglang_probe"


def test_the_installed_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    assert _fetch.installed() == package
    assert "sglang" not in sys.modules


def test_without_an_installed_package_the_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InputError, match="no sglang is installed for"):
        _fetch.installed()
