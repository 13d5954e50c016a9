"""check on SQLite exports of Nsight Systems: two versions of their schema, graphs recorded whole, ranges, damage, other programs' files."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from check_cases import DEEPSEEK, FUSED, H200, LLAMA, recorded, run
from trace_files import Recording, write_nsys

from sglang_probe._trace.check import check
from sglang_probe._trace.files import read_trace
from sglang_probe._trace.types import Seen
from sglang_probe._types import InputError

SCHEMAS = ("2023", "2025")


def change(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        check(path)
    assert caught.value.field == "trace"
    return caught.value.remedy


@pytest.mark.parametrize("schema", SCHEMAS)
def test_both_versions_hold_the_same_calls_as_the_profilers_trace(tmp_path: Path, schema: str) -> None:
    recording = Recording()
    for _ in range(3):
        recording.forward(FUSED, graph=True).forward(["nccl"] * 7, graph=False)
    exported = read_trace(write_nsys(tmp_path / "a.sqlite", [recording], schema)).tracks[0]
    profiled = read_trace(recording.chrome(tmp_path / "a.json")).tracks[0]
    for column in ("start", "dur", "correlation", "launch", "flags"):
        assert (exported.kernels[column] == profiled.kernels[column]).all(), column
    texts = [[track.names[n].text for track in [one] for n in one.kernels["name"].tolist()] for one in (exported, profiled)]
    assert texts[0] == texts[1]
    assert exported.all_kernels == profiled.all_kernels


def test_the_version_of_the_schema_is_told(tmp_path: Path) -> None:
    recording = recorded(["v1"] * 3)
    assert read_trace(write_nsys(tmp_path / "a.sqlite", [recording], "2025")).written_by == "Nsight Systems (schema 3.20.3)"
    assert read_trace(write_nsys(tmp_path / "b.sqlite", [recording], "2023")).written_by == "Nsight Systems"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_graphs_that_were_recorded_whole_cannot_tell_and_the_remedy_is_named(tmp_path: Path, schema: str) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(FUSED)], schema, whole_graphs=True)
    found = run(path, launch=DEEPSEEK, **H200)
    assert found.word is Seen.CANNOT_TELL
    assert "4 graphs were recorded whole" in found.sentence and "--cuda-graph-trace=node" in found.sentence
    # Eager kernels beside them do not make an answer about what is replayed.
    recording = recorded(FUSED).forward(["nccl"] * 123, graph=False)
    found = run(write_nsys(tmp_path / "b.sqlite", [recording], schema, whole_graphs=True), launch=DEEPSEEK, **H200)
    assert found.word is Seen.CANNOT_TELL
    alone = run(tmp_path / "b.sqlite")
    assert alone.word is Seen.SEEN and any("--cuda-graph-trace=node" in text for text in alone.warnings)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_ranges_are_read_by_text_and_by_number(tmp_path: Path, schema: str) -> None:
    recording = Recording()
    for number in range(4):
        recording.forward(["v2"] * 65, graph=True, mark=f"step[DECODE bs={number // 2 + 1}]")
    path = write_nsys(tmp_path / "a.sqlite", [recording], schema)
    assert [mark.name for mark in read_trace(path).tracks[0].marks] == [f"step[DECODE bs={n // 2 + 1}]" for n in range(4)]
    found = run(path, launch=LLAMA, gpu="h200", sglang="0.5.16", batch=2)
    assert found.agrees and found.ranks[0].steps == 2


def test_sglangs_process_names_say_the_rank(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["v1"] * 3, rank=rank) for rank in range(2)])
    pids = [(1 << 56) | (5000 + rank) << 24 for rank in range(2)]
    change(
        path,
        "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        f"INSERT INTO PROCESSES VALUES ({pids[0]}, 5000, 'sglang::scheduler_TP1'), ({pids[1]}, 5001, 'sglang::scheduler_TP0')",
    )
    assert [(rank.label, rank.told_by) for rank in run(path).ranks] == [
        ("rank 1", "the name of its process"),
        ("rank 0", "the name of its process"),
    ]


def test_without_ranges_and_calls_kernels_alone_are_read(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["v1"] * 65)])
    change(path, "DROP TABLE NVTX_EVENTS", "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    assert run(path, launch=LLAMA, **H200).agrees


def test_a_mangled_name_serves_where_the_other_says_nothing(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["norm"] * 4, 1, gather=False)])
    mangled = "_ZN6sglang26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvPNS_8RankDataENS_11RankSignalsE"
    change(path, f"INSERT INTO StringIds VALUES (900, '{mangled}')", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET mangledName = 900")
    assert run(path).ranks[0].calls == 8


# ------------------------------------------------------------------------------------------------------------------------------ damage


def test_an_export_cut_off_is_refused_with_how_much_is_there(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(FUSED)])
    data = path.read_bytes()
    for length in (50, 100, 4096, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        assert "cut off" in refused(path), length


def test_damaged_pages_are_refused_or_read_never_more(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["v1"] * 9, 2)])
    data = path.read_bytes()
    chance = random.Random(3)
    refusals = 0
    for _ in range(60):
        spoilt = bytearray(data)
        for _ in range(8):
            spoilt[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(spoilt)
        try:
            check(path)
        except InputError as error:
            assert error.field == "trace"
            refusals += 1
    assert refusals


def test_values_of_another_type_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["v1"] * 9, 2)])
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 2", "UPDATE NVTX_EVENTS SET start = 'x'")
    found = run(path)
    assert found.ranks[0].calls == 17 and "1 rows are not as nsys writes them, and were left out" in found.notes


def test_files_of_other_programs_are_refused_by_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    change(path, "CREATE TABLE bookmarks (id INTEGER)")
    assert "no export of Nsight Systems" in refused(path)
    write_nsys(path, [recorded(["v1"] * 3)])
    change(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begin")
    assert "this version of nsys is not known" in refused(path)


def test_a_view_is_not_taken_for_a_table(tmp_path: Path) -> None:
    """A file that somebody sends may hold anything: only its tables are asked."""
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["v1"] * 3)])
    change(
        path,
        "DROP TABLE NVTX_EVENTS",
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS start, x AS \"end\", 'step[DECODE bs=1]' AS text, NULL AS textId, 0 AS globalTid FROM n",
    )
    assert run(path).ranks[0].calls == 12


def test_an_export_is_never_changed(tmp_path: Path) -> None:
    path = write_nsys(tmp_path / "a.sqlite", [recorded(["v1"] * 3)])
    data = path.read_bytes()
    path.chmod(0o444)
    run(path)
    assert path.read_bytes() == data and [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]
