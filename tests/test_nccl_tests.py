"""The output of nccl-tests' all_reduce_perf, read as a table: each value in its column, or refused with its line.

Invariant: the samples were written by hand in the layout that nccl-tests prints; their times are invented, and add up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe import InputError
from sglang_probe._measure.format import MeasurementError
from sglang_probe._measure.nccl_tests import parse_nccl_tests, read_nccl_tests

HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 16777216 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on   some-host device  0 [0000:19:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4242 on   some-host device  1 [0000:3b:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROWS = """\
        1024           512  bfloat16     sum      -1    19.64    0.05    0.05       0    19.42    0.05    0.05       0
       65536         32768  bfloat16     sum      -1    20.10    3.26    3.26       0    20.70    3.17    3.17       0
     1048576        524288  bfloat16     sum      -1    21.44   48.91   48.91       0    15.30   68.53   68.53       0
    16777216       8388608  bfloat16     sum      -1    77.71  215.89  215.89       0    75.52  222.16  222.16       0
"""
FOOT = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 70.2475
#
# Collective test concluded: all_reduce_perf
#

"""
TEXT = HEAD + ROWS + FOOT
FIRST_ROW = HEAD.count("\n") + 1


def test_a_run_is_a_table_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(TEXT)
    table = read_nccl_tests(tmp_path / "out.txt")
    assert table.origin == "nccl-tests"
    assert table.nbytes.tolist() == [1024, 65536, 1048576, 16777216]
    assert table.out_of_place_us.tolist() == [19.64, 20.10, 21.44, 77.71]
    assert table.in_place_us.tolist() == [19.42, 20.70, 15.30, 75.52]
    assert (table.dtype, table.ranks, table.gpus) == ("bf16", 2, ("NVIDIA H200", "NVIDIA H200"))
    assert (table.captured, table.cpu_time, table.wrong) == (False, False, 0)
    assert (table.nccl, table.tests) == ("2.28.9", "2.17.6")
    assert table.options["iters"] == 20
    assert table.notes == ()
    assert json.loads(json.dumps(table.to_dict()))["rows"][0]["in_place_us"] == 19.42
    for text in (str(table), repr(table), table._repr_html_()):
        assert "nccl-tests" in text and "NVIDIA H200" in text
    assert "\n" not in repr(table)


def test_a_captured_run_is_told_apart() -> None:
    table = parse_nccl_tests(TEXT.replace("graph: 0", "graph: 20"))
    assert table.captured
    assert "captured" in repr(table)


def test_launch_time_of_the_host_is_labelled_as_such() -> None:
    text = TEXT.replace("    time ", " cputime ").replace("    19.64 ", "     4.10 ")
    table = parse_nccl_tests(text)
    assert table.cpu_time and table.out_of_place_us[0] == 4.1
    assert "launch time on the host" in repr(table)


def test_rows_that_were_not_checked_say_so() -> None:
    table = parse_nccl_tests(TEXT.replace("       0    ", "     N/A    ").replace("       0\n", "     N/A\n"))
    assert table.wrong is None and "not checked" in repr(table)


def test_wrong_results_are_loud() -> None:
    text = TEXT.replace("21.44   48.91   48.91       0", "21.44   48.91   48.91   1e+06").replace(": 0 OK", ": 3 FAILED")
    table = parse_nccl_tests(text)
    assert table.wrong == 1_000_000
    assert "1000000 WRONG" in repr(table)
    assert "3 out of bounds" in table.notes[0]


def test_nccls_log_between_the_lines_is_skipped_and_told() -> None:
    log = "some-host:4242:4250 [0] NCCL INFO Channel 00 : 0 1\n"
    warning = "some-host:4242:4250 [1] misc/shmutils.cc:80 NCCL WARN shm is small\n"
    table = parse_nccl_tests(log + HEAD + log + ROWS + warning + FOOT)
    assert len(table.rows) == 4
    assert table.notes[0] == "3 lines of NCCL's log were skipped"
    assert "shm is small" in table.notes[1]
    assert parse_nccl_tests("NCCL version 2.27.3+cuda12.9\n" + TEXT).nccl == "2.27.3+cuda12.9"


def test_columns_that_newer_versions_add_are_read_past() -> None:
    per_iteration = "     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
    head = HEAD.replace("     time   algbw   busbw  #wrong", per_iteration)
    rows = ROWS.replace("       0    ", "       0    18.10    22.10    22.00     3.20    ").replace(
        "       0\n", "       0    18.20    22.20    22.10     3.30\n"
    )
    table = parse_nccl_tests(head + rows + FOOT)
    assert table.in_place_us.tolist() == [19.42, 20.70, 15.30, 75.52]
    stamped = TEXT.replace("busbw  #wrong\n", "busbw  #wrong           timestamp\n").replace(
        "       0\n", "       0  2026-01-01 10:00:00\n"
    )
    assert parse_nccl_tests(stamped).in_place_us.tolist() == [19.42, 20.70, 15.30, 75.52]


def test_an_interrupted_run_gives_its_sizes_and_says_that_some_may_be_missing() -> None:
    table = parse_nccl_tests(HEAD + "".join(ROWS.splitlines(keepends=True)[:2]))
    assert len(table.rows) == 2
    assert "interrupted" in table.notes[0]


@pytest.mark.parametrize("end", ["\r\n", "   \n"])
def test_line_ends_of_another_system_and_blanks_before_them_are_read(end: str) -> None:
    assert len(parse_nccl_tests(TEXT.replace("\n", end)).rows) == 4


# What is replaced, by what, the line that the refusal names, and words of its reason.
BROKEN = [
    ("all_reduce_perf\n# nThread", "all_gather_perf\n# nThread", 2, "another test"),
    ("# nThread 1", "# nThread one", 3, "not options"),
    ("Rank  1", "Rank  7", 7, "rank 1 should stand here"),
    ("   redop    root", "    root", FIRST_ROW - 2, "columns of another test"),
    ("busbw  #wrong", "busbw   error", FIRST_ROW - 2, "columns of another test"),
    ("    19.64 ", "    1x.64 ", FIRST_ROW, "'1x.64' is not a number"),
    ("    19.64 ", "      nan ", FIRST_ROW, "not a number that can be measured"),
    ("    19.64 ", "     0.00 ", FIRST_ROW, "a time of 0.00"),
    ("    19.64 ", "   -19.64 ", FIRST_ROW, "not a number that can be measured"),
    ("    19.64 ", "", FIRST_ROW, "13 columns, and 12 values"),
    ("   65536         32768", "   65536         32767", FIRST_ROW + 1, "are not 65536 bytes"),
    ("32768  bfloat16", "32768  float128", FIRST_ROW + 1, "type is not known"),
    ("32768  bfloat16", "32768      half", FIRST_ROW + 1, "one type a file"),
    ("32768  bfloat16     sum", "32768  bfloat16     max", FIRST_ROW + 1, "a sum"),
    ("20.10    3.26", "2.010    3.26", FIRST_ROW + 1, "another's column"),
    ("20.70    3.17", "20.70    3.27", FIRST_ROW + 1, "another's column"),
    ("3.17       0", "3.17     0.5", FIRST_ROW + 1, "not a whole number"),
    (ROWS.splitlines()[1], ROWS.splitlines()[0], FIRST_ROW + 1, "do not grow"),
    ("# Out of", "Test NCCL failure common.cu:1005 'unhandled cuda error'\n# Out of", FIRST_ROW + 4, "13 columns, and 7 values"),
    ("# Out of", "# error: something\n# Out of", FIRST_ROW + 4, "ended in an error"),
    ("# Out of", HEAD.replace("busbw  #wrong\n", "busbw  #wrong  timestamp\n") + "# Out of", FIRST_ROW + 9, "rank 2 should"),
]


@pytest.mark.parametrize(("old", "new", "line", "reason"), BROKEN, ids=[f"{reason}-{i}" for i, (*_, reason) in enumerate(BROKEN)])
def test_what_does_not_parse_or_add_up_is_refused_with_its_line(old: str, new: str, line: int, reason: str) -> None:
    assert old in TEXT
    with pytest.raises(MeasurementError, match=reason) as error:
        parse_nccl_tests(TEXT.replace(old, new, 1), "out.txt")
    assert error.value.line == line
    assert str(error.value).startswith(f"out.txt, line {line}: ")


@pytest.mark.parametrize(
    ("text", "reason"), [("", "ended before"), (HEAD, "ended before"), (ROWS, "line of columns"), ("hello\n", "line of columns")]
)
def test_what_is_no_table_is_refused(text: str, reason: str) -> None:
    with pytest.raises(MeasurementError, match=reason):
        parse_nccl_tests(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_nccl_tests(tmp_path / "none")
    with pytest.raises(MeasurementError, match="cannot be read"):
        read_nccl_tests(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00" * 9)
    with pytest.raises(MeasurementError, match="line 1"):
        read_nccl_tests(tmp_path / "bytes")


@given(st.integers(0, len(ROWS) - 1), st.sampled_from("0123456789. -"))
def test_one_changed_character_of_a_row_never_moves_a_time_by_more_than_its_bandwidth_allows(place: int, character: str) -> None:
    changed = ROWS[:place] + character + ROWS[place + 1 :]
    try:
        table = parse_nccl_tests(HEAD + changed + FOOT)
    except MeasurementError as error:
        assert error.line is None or FIRST_ROW <= error.line <= FIRST_ROW + 4
        return
    good = parse_nccl_tests(TEXT)
    assert table.nbytes.tolist() == good.nbytes.tolist()
    for here, there in zip((*table.out_of_place_us, *table.in_place_us), (*good.out_of_place_us, *good.in_place_us), strict=True):
        # at 1 KiB the bandwidth is printed with one digit that counts: 0.05 is 0.045 to 0.055
        assert abs(here - there) <= 0.15 * there
