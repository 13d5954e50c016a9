"""Writing measurement files: what was appended survives kill -9, a full disk, a closed descriptor and a second writer; and is continued.

Invariant: children run the package's own writer; what they wrote is compared with cells made here.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import measured
import pytest

from sglang_probe import InputError
from sglang_probe._measure import writer as writing
from sglang_probe._measure.format import MeasurementError
from sglang_probe._measure.measurement import Measurement
from sglang_probe._measure.writer import Writer

NAME = "m.jsonl"
SAMPLES = 3000
"""So many that a line takes several pages: a reader can meet half of one."""


def _open(path: Path, **changes: Any) -> Writer:
    return Writer(path, **({"plan": measured.PLAN, "provenance": measured.PROVENANCE} | changes))


def _child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process with the tests' modules on its path."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def _dicts(found: Measurement) -> list[dict[str, Any]]:
    return [cell.to_dict() for cell in found.cells]


# ------------------------------------------------------------------------------------------------------------------ one file, one name


def test_a_file_gets_its_name_only_when_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with _open(path) as writer:
        writer.append(measured.cell(0))
        assert not path.exists()
        assert _dicts(Measurement.read(writer.partial_path)) == measured.truth(1)
        assert writer.finish() == str(path)
    assert os.listdir(tmp_path) == [NAME]
    assert not Measurement.read(path).partial


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"years of work")
    with pytest.raises(InputError, match="exists already"):
        _open(path)
    assert os.listdir(tmp_path) == [NAME]
    assert path.read_bytes() == b"years of work"


def test_a_file_that_appears_while_one_is_written_is_not_overwritten_either(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with _open(path) as writer:
        writer.append(measured.cell(0))
        path.write_bytes(b"another's")
        with pytest.raises(InputError, match="appeared meanwhile"):
            writer.finish()
        assert path.read_bytes() == b"another's"
        assert _dicts(Measurement.read(writer.partial_path)) == measured.truth(1)
        path.unlink()
        writer.finish()
    assert _dicts(Measurement.read(path)) == measured.truth(1)


def test_without_hard_links_a_file_is_renamed_and_nothing_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links on this file system")

    monkeypatch.setattr(writing.os, "link", refuse)
    path = tmp_path / NAME
    with _open(path) as writer:
        path.write_bytes(b"another's")
        with pytest.raises(InputError, match="appeared meanwhile"):
            writer.finish()
        assert path.read_bytes() == b"another's"
        path.unlink()
        writer.finish()
    assert os.listdir(tmp_path) == [NAME]
    assert not Measurement.read(path).partial


def test_names_that_cannot_be_written_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without .partial"):
        _open(tmp_path / "m.jsonl.partial")
    with pytest.raises(MeasurementError, match="cannot be opened for writing: No such file"):
        _open(tmp_path / "nowhere" / NAME)
    assert os.listdir(tmp_path) == []


def test_the_same_thing_is_not_measured_twice_into_one_file(tmp_path: Path) -> None:
    with _open(tmp_path / NAME) as writer:
        writer.append(measured.cell(0))
        with pytest.raises(InputError, match="measured already"):
            writer.append(measured.cell(0, checked=9))
        writer.append(measured.cell(0, process=1))
        writer.finish()
    assert [cell.process for cell in Measurement.read(tmp_path / NAME).cells] == [0, 1]


# ------------------------------------------------------------------------------------------------------------------------ two writers


def test_two_writers_on_one_file_are_refused_in_one_process_and_in_two(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with _open(path) as writer:
        writer.append(measured.cell(0))
        with pytest.raises(MeasurementError, match="another writer has it open"):
            _open(path)
        code = """
import sys, measured
from sglang_probe._measure.writer import Writer
try:
    Writer(sys.argv[1], plan=measured.PLAN, provenance=measured.PROVENANCE)
except Exception as error:
    print(type(error).__name__, error)
"""
        assert "MeasurementError" in _child(code, path).communicate(timeout=60)[0]
        writer.append(measured.cell(1))
        writer.finish()
    assert _dicts(Measurement.read(path)) == measured.truth(2)


def test_a_writer_that_waited_for_another_does_not_take_its_finished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    first = _open(path)
    real = writing.fcntl.flock

    def finish_first(fd: int, how: int) -> None:
        first.finish()
        real(fd, how)

    monkeypatch.setattr(writing.fcntl, "flock", finish_first)
    with pytest.raises(MeasurementError, match="just finished"):
        _open(path)
    assert not Measurement.read(path).partial


# --------------------------------------------------------------------------------------------------------------------------- resuming


def test_a_file_cut_anywhere_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    whole = measured.write(tmp_path / "truth", cells=3).read_bytes()
    line_ends = [i for i, byte in enumerate(whole) if byte == 10]
    cuts = {*range(0, len(whole), 61), *line_ends, *(end + 1 for end in line_ends), len(whole) - 1}
    for cut in sorted(cuts):
        path = tmp_path / f"cut{cut}"
        Path(f"{path}.partial").write_bytes(whole[:cut])
        with _open(path) as writer:
            have = len(writer.done)
            assert have == min(max(whole[:cut].count(b"\n") - 1, 0), 3), cut
            dropped = b"\n" in whole[:cut] and not whole[:cut].endswith(b"\n")
            assert any("was dropped" in note for note in writer.notes) == dropped, cut
            for i in range(have, 3):
                writer.append(measured.cell(i))
            writer.finish()
        assert path.read_bytes() == whole, cut


def test_a_file_of_another_plan_or_machine_is_not_continued_and_it_is_said_what_differs(tmp_path: Path) -> None:
    path = tmp_path / NAME
    before = measured.write(path, finish=False).read_bytes()
    other = replace(measured.PROVENANCE, driver="580.1", env={"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"})
    with pytest.raises(InputError) as error:
        _open(path, provenance=other, plan=measured.PLAN | {"processes": 5})
    for text in (
        "plan.processes: 5 here, 1 in the file",
        "driver: '580.1' here, '' in the file",
        "env.NCCL_ALGO: 'Tree' here, 'Ring' in the file",
        "env.NCCL_DEBUG: 'INFO' here, nothing in the file",
    ):
        assert text in str(error.value)
    assert Path(f"{path}.partial").read_bytes() == before


def test_another_moment_on_the_same_machine_is_continued(tmp_path: Path) -> None:
    measured.write(tmp_path / NAME, finish=False)
    later = replace(measured.PROVENANCE, started="2030-01-01", state={"load": [9.0]})
    with _open(tmp_path / NAME, provenance=later) as writer:
        assert [cell.to_dict() for cell in writer.done] == measured.truth(2)
        with pytest.raises(InputError, match="measured already"):
            writer.append(measured.cell(1))


def test_what_is_damaged_or_not_ours_is_not_continued_and_not_touched(tmp_path: Path) -> None:
    partial = measured.write(tmp_path / NAME, finish=False)
    for content in (partial.read_bytes().replace(b"one_shot", b"two_shot", 1), b"a download of somebody", b"{}\n"):
        partial.write_bytes(content)
        with pytest.raises(MeasurementError, match="damaged|not a measurement file"):
            _open(tmp_path / NAME)
        assert partial.read_bytes() == content


def test_a_file_that_only_lacks_its_renaming_is_finished(tmp_path: Path) -> None:
    whole = measured.write(tmp_path / NAME)
    whole.rename(f"{whole}.partial")
    found = Measurement.read(f"{whole}.partial")
    assert not found.partial and "only its renaming" in found.notes[0]
    with _open(whole) as writer:
        with pytest.raises(MeasurementError, match="nothing can follow"):
            writer.append(measured.cell(5))
        writer.finish()
    assert _dicts(Measurement.read(whole)) == measured.truth(2)


# --------------------------------------------------------------------------------------------------------------------- what goes wrong

FULL = """
import resource, sys, measured
from sglang_probe._measure.writer import Writer
path, room = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
with Writer(path, plan=measured.PLAN, provenance=measured.PROVENANCE) as writer:
    for i in range(9):
        try:
            writer.append(measured.cell(i))
        except Exception as error:
            print(type(error).__name__, error)
            break
    try:
        writer.append(measured.cell(99))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_full_disk_names_the_file_and_the_bytes_and_loses_no_cell(tmp_path: Path) -> None:
    whole = measured.write(tmp_path / "size", cells=3).read_bytes()
    header, *cells = (len(line) + 1 for line in whole.split(b"\n")[:4])
    room = header + cells[0] + cells[1] + cells[2] // 2
    path = tmp_path / NAME
    first, second = _child(FULL, path, room).communicate(timeout=60)[0].splitlines()
    kept = room - cells[2] // 2
    assert first.startswith(
        f"MeasurementError {path}.partial, line 4: writing to it failed after {kept:,} bytes (File too large: free"
    )
    assert "2 cells before it are safe" in first
    assert second.startswith("MeasurementError") and "is refused" in second
    partial = Path(f"{path}.partial")
    assert partial.stat().st_size == kept
    assert _dicts(Measurement.read(partial)) == measured.truth(2)
    with _open(path) as writer:  # there is room again
        writer.append(measured.cell(2))
        writer.finish()
    assert path.read_bytes() == whole


def test_no_room_for_a_header_leaves_no_file_that_could_be_taken_for_one(tmp_path: Path) -> None:
    told = _child(FULL, tmp_path / NAME, 10).communicate(timeout=60)[0]
    assert told == ""  # the constructor's own error ends the child
    with pytest.raises(MeasurementError, match="empty"):
        Measurement.read(tmp_path / f"{NAME}.partial")
    measured.write(tmp_path / NAME)


def test_an_fsync_that_fails_is_an_error_and_the_line_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = _open(tmp_path / NAME)
    writer.append(measured.cell(0))
    monkeypatch.setattr(writing.os, "fsync", fail)
    with pytest.raises(MeasurementError, match="Input/output error.*1 cell before it is safe"):
        writer.append(measured.cell(1))
    assert _dicts(Measurement.read(writer.partial_path)) == measured.truth(1)


def test_ctrl_c_in_the_middle_of_a_line_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    writer = _open(tmp_path / NAME)
    writer.append(measured.cell(0))

    def half(fd: int, data: bytes) -> int:
        real(fd, data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(writing.os, "write", half)
    with pytest.raises(KeyboardInterrupt):
        writer.append(measured.cell(1))
    monkeypatch.undo()
    assert _dicts(Measurement.read(writer.partial_path)) == measured.truth(1)
    with _open(tmp_path / NAME) as again:
        again.append(measured.cell(1))
        again.finish()
    assert _dicts(Measurement.read(tmp_path / NAME)) == measured.truth(2)


def test_a_closed_descriptor_is_an_error_that_names_file_and_bytes(tmp_path: Path) -> None:
    writer = _open(tmp_path / NAME)
    writer.append(measured.cell(0))
    os.close(writer._fd)
    with pytest.raises(
        MeasurementError, match=r"m\.jsonl\.partial: writing [\d,]+ bytes after [\d,]+ is refused: .*closed by others"
    ):
        writer.append(measured.cell(1))
    writer.close()
    assert _dicts(Measurement.read(writer.partial_path)) == measured.truth(1)


@pytest.mark.parametrize("append", [True, False])
def test_a_descriptor_that_is_another_file_by_now_is_neither_written_nor_closed(tmp_path: Path, append: bool) -> None:
    writer = _open(tmp_path / NAME)
    number = writer._fd
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, number)
    try:
        if append:
            with pytest.raises(MeasurementError, match="refused: .*closed by others"):
                writer.append(measured.cell(0))
        writer.close()
        assert os.path.samestat(os.fstat(number), os.fstat(other))
        assert os.fstat(other).st_size == 0
    finally:
        os.close(number)
        os.close(other)


@pytest.mark.parametrize("what", ["removed", "moved", "longer"])
def test_a_file_that_others_touch_meanwhile_is_an_error(tmp_path: Path, what: str) -> None:
    writer = _open(tmp_path / NAME)
    writer.append(measured.cell(0))
    partial = Path(writer.partial_path)
    if what == "removed":
        partial.unlink()
    elif what == "moved":
        partial.rename(tmp_path / "elsewhere")
    else:
        partial.write_bytes(partial.read_bytes() + b"x")
    with pytest.raises(MeasurementError, match="moved or removed" if what != "longer" else "something else changed it"):
        writer.append(measured.cell(1))
    with pytest.raises(MeasurementError, match="refused"):
        writer.append(measured.cell(1))
    assert writer._fd == -1


def test_a_closed_writer_says_that_it_is(tmp_path: Path) -> None:
    with _open(tmp_path / NAME) as writer:
        writer.close()
        with pytest.raises(MeasurementError, match="it was closed"):
            writer.append(measured.cell(0))
        with pytest.raises(MeasurementError, match="it was closed"):
            writer.finish()


WRITES = """
import sys, measured
from sglang_probe._measure.writer import Writer
with Writer(sys.argv[1], plan=measured.PLAN, provenance=measured.PROVENANCE) as writer:
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(int(sys.argv[2])):
        writer.append(measured.cell(i, samples=int(sys.argv[3])))
        print(i, flush=True)
    writer.finish()
"""


def test_kill_minus_9_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    child = _child(WRITES, tmp_path / NAME, 1_000_000, SAMPLES)
    assert child.stdin and child.stdout
    child.stdin.write("\n")
    child.stdin.flush()
    told = [child.stdout.readline() for _ in range(12)]
    child.kill()
    told += child.stdout.readlines()
    assert child.wait(timeout=60) == -9
    appended = sum(line.strip().isdigit() for line in told)
    assert appended >= 11
    found = Measurement.read(tmp_path / f"{NAME}.partial")
    assert len(found.cells) in (appended, appended + 1)  # killed behind the append, before it said so
    assert _dicts(found) == measured.truth(len(found.cells), samples=SAMPLES)
    assert found.partial and found.provenance == measured.PROVENANCE
    with _open(tmp_path / NAME) as writer:
        assert len(writer.done) == len(found.cells)
        writer.finish()
    assert len(Measurement.read(tmp_path / NAME).cells) == len(found.cells)


def test_a_reader_at_any_moment_sees_a_beginning_of_what_is_written(tmp_path: Path) -> None:
    count, partial = 60, tmp_path / f"{NAME}.partial"
    truth = measured.truth(count, samples=SAMPLES)
    child = _child(WRITES, tmp_path / NAME, count, SAMPLES)
    assert child.stdin and child.stdout
    assert child.stdout.readline() == "ready\n"
    assert Measurement.read(partial).cells == ()
    child.stdin.write("\n")
    child.stdin.flush()
    seen = [0]
    while True:
        try:
            found = Measurement.read(partial)
        except InputError:  # renamed
            break
        assert _dicts(found) == truth[: len(found.cells)]
        seen.append(len(found.cells))
    child.communicate(timeout=60)
    assert child.returncode == 0
    assert seen == sorted(seen)
    assert _dicts(Measurement.read(tmp_path / NAME)) == truth
