"""Measurement files: what was measured comes back exactly, or with a reason why it does not; damage is never read as data.

Invariant: the truth that a damaged file is compared with is made apart from the file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import re
import zlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import measured
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sglang_probe
from sglang_probe import InputError, ProbeError
from sglang_probe._measure import format as lines
from sglang_probe._measure.cell import SAMPLES, Cell
from sglang_probe._measure.format import MeasurementError, decode, encode
from sglang_probe._measure.measurement import Measurement, Provenance
from sglang_probe._measure.reader import Contents, parse
from sglang_probe._measure.summary import Summary
from sglang_probe._measure.writer import Writer

NAME = "m.jsonl"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small finished file of two cells."""
    return measured.write(tmp_path_factory.mktemp("whole") / NAME).read_bytes()


def _dicts(found: Contents | Measurement) -> list[dict[str, Any]]:
    return [cell.to_dict() for cell in found.cells]


# ----------------------------------------------------------------------------------------------------------------------- round trip


def test_every_field_of_a_cell_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {"at": "2026-01-01T00:00:00+00:00", "load": [0.1, None], "gpus": [{"sm_mhz": 1980, "throttle": [], "ecc": True}]}
    cell = Cell(
        path="pynccl_in_place",
        kernel="µ-kernel\n\u2028",
        backend="nccl",
        release="0.5.11",
        phase="eager",
        pattern="interleaved",
        compute_us=12.5,
        driver="engine",
        device="gpu",
        dtype="fp16",
        nbytes=(1 << 63) - 1,
        world_size=3,
        device_us=([1.0, float("inf"), float("-inf")], np.array([0.1, 1e-300], np.float64), []),  # type: ignore[arg-type]
        host_us=([], np.arange(3), [-0.0]),  # type: ignore[arg-type]
        elapsed_us=([2.0], [], [3.5]),  # type: ignore[arg-type]
        split_error_us=0.25,
        checked=7,
        wrong=2,
        process=4,
        before=state,
        after={"at": None},
        note="rank 2 timed out",
    )
    with Writer(tmp_path / NAME, plan={"a": [1, {"b": None}]}, provenance=measured.PROVENANCE) as writer:
        writer.append(cell)
        writer.finish()
    back = Measurement.read(tmp_path / NAME)
    (found,) = back.cells
    for one in fields(Cell):
        if one.name not in SAMPLES:
            assert getattr(found, one.name) == getattr(cell, one.name), one.name
            assert type(getattr(found, one.name)) is type(getattr(cell, one.name)), one.name
    for name in SAMPLES:
        for here, there in zip(getattr(found, name), getattr(cell, name), strict=True):
            assert here.dtype == np.float64
            assert here.tobytes() == there.tobytes(), name  # bits: the sign of a zero too
    assert found.key == cell.key
    assert back.provenance == measured.PROVENANCE
    assert back.plan == {"a": (1, {"b": None})}
    assert (back.partial, back.notes) == (False, ())
    assert json.loads(json.dumps(back.to_dict(), allow_nan=False))["cells"] == [cell.to_dict()]


def test_thousands_of_samples_come_back_bit_for_bit(tmp_path: Path) -> None:
    samples = np.random.default_rng(5).lognormal(2, 1, (2, 20_000))
    cell = measured.cell(host_us=samples, device_us=samples.astype(np.float32))
    with Writer(tmp_path / NAME, plan={}, provenance=measured.PROVENANCE) as writer:
        writer.append(cell)
        writer.finish()
    (found,) = Measurement.read(tmp_path / NAME).cells
    assert np.array_equal(np.stack(found.host_us), samples)
    assert np.array_equal(np.stack(found.device_us), samples.astype(np.float32))


def test_samples_cannot_be_changed_through_anyones_array() -> None:
    given_array = np.array([[1.0], [2.0]])
    cell = measured.cell(host_us=given_array)
    given_array[0, 0] = 9
    assert cell.host_us[0][0] == 1
    with pytest.raises(ValueError, match="read-only"):
        cell.host_us[0][0] = 9


DRAWN = st.lists(st.floats(allow_nan=False), max_size=4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(DRAWN, DRAWN, TEXT, st.dictionaries(TEXT, PLAIN, max_size=3))
def test_any_samples_text_and_state_survive_a_line(
    device: list[float], host: list[float], text: str, state: dict[str, Any]
) -> None:
    cell = measured.cell(device_us=[device, []], host_us=[[], host], note=text, before=state)
    line = encode({"version": 1, "cell": cell.to_dict()})
    assert line.count(b"\n") == 1
    back = Cell.from_dict(decode(line[:-1])["cell"])
    assert back.to_dict() == cell.to_dict()
    assert back.device_us[0].tolist() == device
    assert back.host_us[1].tolist() == host


# A cell that is refused: the change, and the field that the error names.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"host_us": [[1.0, float("nan")], []]}, "host_us[0][1]"),
    ({"device_us": [[1.0]]}, "device_us"),
    ({"device_us": None}, "device_us"),
    ({"device_us": ["ab", []]}, "device_us[0]"),
    ({"device_us": [[True], []]}, "device_us[0]"),
    ({"device_us": [[1j], []]}, "device_us[0]"),
    ({"device_us": [[[1.0]], []]}, "device_us[0]"),
    ({"device_us": [[[1.0], [1.0, 2.0]], []]}, "device_us[0]"),
    ({"path": ""}, "path"),
    ({"path": None}, "path"),
    ({"kernel": "\ud800"}, "kernel"),
    ({"phase": "warm"}, "phase"),
    ({"pattern": "alternating"}, "pattern"),
    ({"driver": "python"}, "driver"),
    ({"device": "tpu"}, "device"),
    ({"nbytes": 0}, "nbytes"),
    ({"nbytes": True}, "nbytes"),
    ({"nbytes": 1 << 63}, "nbytes"),
    ({"nbytes": 10**5000}, "nbytes"),
    ({"after": {"x": 10**5000}}, "after.x"),
    ({"nbytes": 1.0}, "nbytes"),
    ({"world_size": 0}, "world_size"),
    ({"checked": -1}, "checked"),
    ({"wrong": 5}, "wrong"),
    ({"compute_us": 3}, "compute_us"),
    ({"compute_us": "0"}, "compute_us"),
    ({"pattern": "interleaved"}, "compute_us"),
    ({"pattern": "interleaved", "compute_us": 10**5000}, "compute_us"),
    ({"pattern": "interleaved", "compute_us": float("nan")}, "compute_us"),
    ({"pattern": "interleaved", "compute_us": float("inf")}, "compute_us"),
    ({"before": {"power_w": float("nan")}}, "before.power_w"),
    ({"after": {"power_w": [float("inf")]}}, "after.power_w[0]"),
    ({"after": {1: 2}}, "a key of after"),
    ({"after": {"x": object()}}, "after.x"),
    ({"after": []}, "after"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED, ids=[f"{field}-{i}" for i, (_, field) in enumerate(REFUSED)])
def test_a_cell_that_says_nothing_true_cannot_be_made(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        measured.cell(**change)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"env": []}, "env"),
        ({"env": {"A": 1}}, "env.A"),
        ({"gpus": {}}, "gpus"),
        ({"gpus": ["H200"]}, "gpus[0]"),
        ({"links": [["self", 1]]}, "links[0][1]"),
        ({"links": ["self"]}, "links[0]"),
        ({"host": None}, "host"),
    ],
)
def test_a_provenance_of_wrong_kinds_cannot_be_made(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        Provenance(**({"version": "1"} | change))
    assert error.value.field == field


def test_a_median_needs_no_finite_samples_and_an_untimed_rank_has_none() -> None:
    inf = float("inf")
    cell = measured.cell(world_size=4, device_us=[[1, 2, 9], [1, 4], [inf, inf], []], host_us=[[]] * 4)
    assert cell.device_median_us.tolist()[:3] == [2, 2.5, inf]
    assert np.isnan(cell.device_median_us[3])
    assert np.isnan(cell.host_median_us).all()


# ----------------------------------------------------------------------------------------------------------------------------- damage


def test_a_finished_file_cut_anywhere_is_refused_and_rescued_without_a_wrong_cell(whole: bytes) -> None:
    truth = measured.truth(2)
    for size in range(len(whole)):
        with pytest.raises(MeasurementError) as refused:
            parse(whole[:size], NAME)
        assert refused.value.reason
        ends = whole[:size].count(b"\n")
        if ends == 0:
            with pytest.raises(MeasurementError):
                parse(whole[:size], NAME, rescue=True)
            continue
        found = parse(whole[:size], NAME, rescue=True)
        assert _dicts(found) == truth[: ends - 1], size
        assert found.notes, size
        assert not found.ended, size
        assert found.provenance == measured.PROVENANCE


def test_a_file_that_gzip_packed_is_read_and_refused_where_it_is_damaged(whole: bytes, tmp_path: Path) -> None:
    packed, path = gzip.compress(whole, mtime=0), tmp_path / "packed.jsonl.gz"
    path.write_bytes(packed)
    assert _dicts(Measurement.read(path)) == measured.truth(2)
    for size in (2, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:size])
        with pytest.raises(MeasurementError, match="damaged: it begins as gzip"):
            Measurement.read(path)
    path.write_bytes(packed[:-8] + bytes(8))  # its checksum
    with pytest.raises(MeasurementError, match="damaged: it begins as gzip"):
        Measurement.read(path)


def test_an_unfinished_file_cut_anywhere_gives_exactly_the_whole_cells(whole: bytes) -> None:
    truth = measured.truth(2)
    for size in range(len(whole)):
        data = whole[:size]
        if b"\n" not in data:
            with pytest.raises(MeasurementError, match="nothing"):
                parse(data, NAME, unfinished=True)
            continue
        found = parse(data, NAME, unfinished=True)
        assert _dicts(found) == truth[: data.count(b"\n") - 1], size
        assert any("is cut after" in note for note in found.notes) == (not data.endswith(b"\n")), size
        assert found.whole_bytes == data.rindex(b"\n") + 1
        assert not found.ended


def _flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    changed = bytearray(data)
    for bit in range(8 * len(data)):
        changed[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(changed)
        changed[bit // 8] ^= 1 << bit % 8


def _in_order(found: list[dict[str, Any]], truth: list[dict[str, Any]]) -> bool:
    rest = iter(truth)
    return all(any(cell == one for one in rest) for cell in found)


def _check_rescue(data: bytes, truth: list[dict[str, Any]], unfinished: bool) -> Contents | None:
    """A rescue tells what is missing, and what it gives was written."""
    try:
        found = parse(data, NAME, rescue=True, unfinished=unfinished)
    except MeasurementError as error:
        assert error.reason
        return None
    assert _in_order(_dicts(found), truth)
    assert found.provenance in (measured.PROVENANCE, None)
    assert found.notes
    assert found.skipped or not found.ended
    return found


@pytest.mark.parametrize("unfinished", [False, True], ids=["finished", "partial"])
def test_each_flipped_bit_is_refused_and_rescued_without_a_wrong_cell(whole: bytes, unfinished: bool) -> None:
    truth, rescued = measured.truth(2), 0
    for place, data in _flips(whole):
        try:
            found = parse(data, NAME, unfinished=unfinished)
        except MeasurementError as error:
            assert error.reason
        else:
            # The one flip that no reader can tell from an interrupted writer: the last line feed is none any more.
            assert unfinished and place == len(whole) - 1
            assert _dicts(found) == truth and found.notes and not found.ended
        rescue = _check_rescue(data, truth, unfinished)
        rescued += rescue is not None and len(rescue.cells) > 0
    assert rescued > 0.9 * 8 * len(whole), "a rescue that gives nothing back is none"


@given(st.data())
def test_lines_and_bytes_that_are_lost_repeated_or_moved_are_never_read_as_data(data: st.DataObject) -> None:
    whole, truth = _three(), measured.truth(3)
    size = len(whole)
    kind = data.draw(st.sampled_from(["drop", "repeat", "move", "noise", "line"]))
    if kind == "line":
        parts = whole.splitlines(keepends=True)
        order = data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=6))
        changed = b"".join(parts[i] for i in order)
    else:
        first = data.draw(st.integers(0, size - 1))
        last = data.draw(st.integers(first + 1, size))
        piece = whole[first:last]
        other = data.draw(st.integers(0, size))
        changed = {
            "drop": whole[:first] + whole[last:],
            "repeat": whole[:other] + piece + whole[other:],
            "move": (whole[:first] + whole[last:])[:other] + piece + (whole[:first] + whole[last:])[other:],
            "noise": whole[:first] + data.draw(st.binary(max_size=40)) + whole[last:],
        }[kind]
    if changed == whole:
        return
    with pytest.raises(MeasurementError):
        parse(changed, NAME)
    try:
        found = parse(changed, NAME, unfinished=True)
    except MeasurementError:
        pass
    else:
        assert _dicts(found) == truth[: len(found.cells)]
        assert found.notes
    _check_rescue(changed, truth, unfinished=False)


def _three() -> bytes:
    """A finished file of three cells, made of its lines."""
    header = {"version": 1, "kind": "header", "line": 1, "plan": measured.PLAN, "provenance": measured.PROVENANCE.to_dict()}
    data = encode({"format": lines.FORMAT, **header})
    for i in range(3):
        data += encode({"version": 1, "kind": "cell", "line": i + 2, "cell": measured.cell(i).to_dict()})
    return data + encode({"version": 1, "kind": "end", "line": 5, "cells": 3, "sha256": hashlib.sha256(data).hexdigest()})


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_no_bytes_whatever_make_the_reader_fail_in_another_way(data: bytes, unfinished: bool, rescue: bool) -> None:
    for content in (data, lines.MAGIC + data, data + b"\n", _three()[:-3] + data):
        try:
            found = parse(content, NAME, unfinished=unfinished, rescue=rescue)
        except MeasurementError:
            continue
        assert _in_order(_dicts(found), measured.truth(3))


def test_a_rescue_goes_on_behind_a_damaged_line_and_names_it(whole: bytes, tmp_path: Path) -> None:
    raw = whole.splitlines(keepends=True)
    raw[1] = raw[1].replace(b"one_shot", b"two_shot")
    (tmp_path / NAME).write_bytes(b"".join(raw))
    with pytest.raises(MeasurementError, match=r"m\.jsonl, line 2: damaged: its checksum is [0-9a-f]{8}, and it says") as error:
        Measurement.read(tmp_path / NAME)
    assert (error.value.line, Path(error.value.path).name) == (2, NAME)
    found = Measurement.read(tmp_path / NAME, rescue=True)
    assert [cell.to_dict() for cell in found.cells] == measured.truth(2)[1:]
    assert found.partial
    assert "line 2 is damaged" in found.notes[0]


def test_cells_outlive_a_damaged_header_and_it_is_said_that_their_machine_is_not_known(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(whole.replace(b'"abc"', b'"abd"'))
    with pytest.raises(MeasurementError, match="line 1: damaged"):
        Measurement.read(tmp_path / NAME)
    found = Measurement.read(tmp_path / NAME, rescue=True)
    assert [cell.to_dict() for cell in found.cells] == measured.truth(2)
    assert found.provenance is None and found.partial
    assert any("not known" in note for note in found.notes)
    assert "on what is not known" in repr(found)


def _again(raw: bytes, /, **changes: Any) -> bytes:
    """A line with other members and a checksum that holds: what a program wrote that is not ours."""
    members = json.loads(raw)
    del members["crc32"]
    return encode(members | changes)


@pytest.mark.parametrize("rescue", [False, True])
def test_a_newer_version_is_refused_and_both_versions_are_named(whole: bytes, rescue: bool) -> None:
    first, *rest = whole.splitlines(keepends=True)
    newer = _again(first, version=7, more="what we cannot know")
    for data in (
        newer,
        newer + b"".join(rest),
        newer + b"something else\n",
        first + _again(rest[0], version=7) + b"".join(rest[1:]),
    ):
        with pytest.raises(MeasurementError, match=r"version 7 .* reads version 1: install a newer") as error:
            parse(data, NAME, rescue=rescue)
        assert error.value.line in (1, 2)


# A line of ours with a checksum that holds and content that cannot be: number of the line, changes, words of the reason.
FORGED: list[tuple[int, dict[str, Any], str]] = [
    (1, {"version": "1"}, "version is '1'"),
    (1, {"version": 0}, "version is 0"),
    (1, {"version": True}, "version is True"),
    (1, {"plan": []}, "no header"),
    (1, {"provenance": {}}, "provenance.version"),
    (1, {"kind": "cell"}, "no line of version 1"),
    (2, {"kind": "remark"}, "no line of version 1"),
    (2, {"more": 1}, "no line of version 1"),
    (2, {"line": 3}, "lost, repeated or out of order"),
    (2, {"line": "2"}, "number is '2'"),
    (2, {"cell": []}, "cell="),
    (2, {"cell": {"path": "custom"}}, "field is missing"),
    (4, {"cells": 3}, "3 cells, and here are 2"),
    (4, {"sha256": "0" * 64}, "SHA-256"),
]


@pytest.mark.parametrize(
    ("number", "changes", "reason"), FORGED, ids=[f"{n}-{','.join(c)}-{i}" for i, (n, c, _) in enumerate(FORGED)]
)
def test_a_line_whose_checksum_holds_is_still_checked(whole: bytes, number: int, changes: dict[str, Any], reason: str) -> None:
    raw = whole.splitlines(keepends=True)
    raw[number - 1] = _again(raw[number - 1], **changes)
    with pytest.raises(MeasurementError, match=re.escape(reason)) as error:
        parse(b"".join(raw), NAME)
    assert error.value.line == number


@pytest.mark.parametrize(
    ("sample", "reason"),
    [("NaN", "NaN is not a number"), ("1e999", "host_us"), ('"nan"', "host_us"), ("true", "host_us"), ("null", "host_us")],
)
def test_no_spelling_of_a_sample_that_is_none_is_read(whole: bytes, sample: str, reason: str) -> None:
    raw = whole.splitlines(keepends=True)
    body = raw[1][:-21].replace(b'"host_us":[[0.1', b'"host_us":[[' + sample.encode()) + b"}"
    raw[1] = body[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(body)
    assert raw[1] != whole.splitlines(keepends=True)[1]
    with pytest.raises(MeasurementError, match=reason) as error:
        parse(b"".join(raw), NAME)
    assert error.value.line == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"{}\n", "not a measurement file"),
        (b'{"format":"sglang_prob\n', "not a measurement file"),
        (b"\x89PNG\r\n\x1a\n", "not a measurement file"),
        (gzip.compress(b"text", mtime=0), "not a measurement file"),
        (b"# size count type redop root time algbw busbw #wrong\n", "nccl-tests, which `step --costs FILE` reads"),
        (b"# What busbw is\n\n  path  busbw GB/s\n", r"'sglang_probe measurement'\)$"),
    ],
)
def test_another_file_is_told_from_a_damaged_one(data: bytes, reason: str, tmp_path: Path) -> None:
    for rescue in (False, True):
        (tmp_path / NAME).write_bytes(data)
        with pytest.raises(MeasurementError, match=reason):
            Measurement.read(tmp_path / NAME, rescue=rescue)


def test_converted_line_ends_are_named_as_what_they_are(whole: bytes) -> None:
    with pytest.raises(MeasurementError, match="line 1.*CR LF"):
        parse(whole.replace(b"\n", b"\r\n"), NAME)


def test_what_stands_behind_the_end_is_refused(whole: bytes) -> None:
    raw = whole.splitlines(keepends=True)
    for more in (raw[1], _again(raw[1], line=5), b"\n", b"x"):
        with pytest.raises(MeasurementError, match="line 5"):
            parse(whole + more, NAME, unfinished=True)
        found = parse(whole + more, NAME, rescue=True)
        assert _dicts(found) == measured.truth(2)
        assert found.skipped


def test_a_file_that_is_not_there_leads_to_the_unfinished_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Measurement.read(tmp_path / NAME)
    measured.write(tmp_path / NAME, finish=False)
    with pytest.raises(InputError, match=r"m\.jsonl\.partial, which is unfinished"):
        Measurement.read(tmp_path / NAME)
    with pytest.raises(MeasurementError, match="cannot be read"):
        Measurement.read(tmp_path)


# ----------------------------------------------------------------------------------------------------------------------------- shown


def test_what_people_see_says_what_is_wrong_and_what_is_missing(tmp_path: Path) -> None:
    with Writer(tmp_path / NAME, plan={}, provenance=measured.PROVENANCE) as writer:
        writer.append(measured.cell(0, wrong=1))
        for i in range(1, 70):
            writer.append(measured.cell(i))
    found = Measurement.read(tmp_path / (NAME + ".partial"))
    assert repr(found).startswith("<Measurement: 70 cells, 1 process set, PARTIAL, 1 with WRONG results; ") and "\n" not in repr(
        found
    )
    assert "\n" not in repr(found.cells[0]) and "WRONG: 1 of 4" in repr(found.cells[0])
    for text in (str(found), found._repr_html_()):
        assert "unfinished: no end line yet" in text
        assert "WRONG: 1 of 4" in text
        assert "69 KiB" in text and "70 KiB" in text  # every row, as a bench shows them
        assert "gpus: none" in text
    assert (found.cells[0].correct, found.cells[1].correct, measured.cell(checked=0).correct) == (False, True, None)


# --------------------------------------------------------------------------------------------------------------------------- written


def test_a_rescued_file_is_written_whole_and_stays_marked_for_ever(whole: bytes, tmp_path: Path) -> None:
    raw = whole.splitlines(keepends=True)
    raw[1] = raw[1].replace(b"one_shot", b"two_shot")
    (tmp_path / NAME).write_bytes(b"".join(raw))
    rescued = Measurement.read(tmp_path / NAME, rescue=True)
    assert rescued.write(tmp_path / "saved.jsonl") == str(tmp_path / "saved.jsonl")
    saved = Measurement.read(tmp_path / "saved.jsonl")  # no rescue is needed
    assert [cell.to_dict() for cell in saved.cells] == measured.truth(2)[1:]
    assert saved.provenance == measured.PROVENANCE and saved.plan["sizes"] == (1024, 4096)
    assert saved.partial and saved.notes == tuple(f"rescued from {NAME}: {note}" for note in rescued.notes)
    assert "line 2 is damaged and was skipped" in saved.notes[0] and "PARTIAL" in repr(saved)
    saved.write(tmp_path / "again.jsonl")
    again = Measurement.read(tmp_path / "again.jsonl")
    assert again.partial and again.notes == saved.notes  # told once
    damaged = (tmp_path / "again.jsonl").read_bytes()[:-9]
    (tmp_path / "cut.jsonl").write_bytes(damaged)
    Measurement.read(tmp_path / "cut.jsonl", rescue=True).write(tmp_path / "third.jsonl")
    third = Measurement.read(tmp_path / "third.jsonl")
    assert third.notes[: len(saved.notes)] == saved.notes and third.notes[-1].startswith("rescued from cut.jsonl: ")


def test_an_unfinished_file_is_written_with_its_mark_and_a_whole_one_is_the_same_again(tmp_path: Path) -> None:
    Measurement.read(measured.write(tmp_path / NAME, finish=False)).write(tmp_path / "b.jsonl")
    assert Measurement.read(tmp_path / "b.jsonl").partial
    first = measured.write(tmp_path / "c.jsonl")
    Measurement.read(first).write(tmp_path / "d.jsonl")
    assert first.read_bytes() == (tmp_path / "d.jsonl").read_bytes()
    assert not Measurement.read(tmp_path / "d.jsonl").partial


def test_nothing_is_written_over_a_file_or_into_a_bench_that_may_go_on(tmp_path: Path) -> None:
    found = Measurement.read(measured.write(tmp_path / NAME))
    with pytest.raises(InputError, match="never overwritten"):
        found.write(tmp_path / NAME)
    other = measured.write(tmp_path / "b.jsonl", cells=1, finish=False)
    before = other.read_bytes()
    with pytest.raises(InputError, match=r"b\.jsonl\.partial, which is unfinished"):
        found.write(tmp_path / "b.jsonl")
    assert other.read_bytes() == before and not (tmp_path / "b.jsonl").exists()


def test_what_cannot_be_a_file_is_refused_before_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as unknown:
        Measurement((measured.cell(),), None).write(tmp_path / NAME)
    assert unknown.value.field == "provenance"
    with pytest.raises(InputError, match="same call and process set"):
        Measurement((measured.cell(), measured.cell()), measured.PROVENANCE).write(tmp_path / NAME)
    assert not list(tmp_path.iterdir())


class _Counting(bytes):
    """Bytes that know how many of them were copied by slices."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        _Counting.copied += len(found) if isinstance(found, bytes) else 1
        return found


def test_a_long_file_is_not_copied_once_for_each_of_its_lines() -> None:
    _Counting.copied = 0
    assert len(parse(_Counting(_three()), NAME).cells) == 3
    assert _Counting.copied <= len(_three())


def test_nouns_of_a_file_are_public_and_say_shapes_and_units() -> None:
    for kind in (Cell, Measurement, MeasurementError, Provenance, Summary):
        assert getattr(sglang_probe, kind.__name__) is kind and kind.__name__ in sglang_probe.__all__
    for kind in (Cell, Measurement, Summary):
        assert kind.__doc__ and "microseconds a call" in kind.__doc__ and "float64" in kind.__doc__


def test_a_refusal_is_an_error_of_the_package_and_survives_pickling() -> None:
    error = MeasurementError("f", 3, "damaged")
    assert isinstance(error, ProbeError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path, again.line, again.reason) == ("f, line 3: damaged", "f", 3, "damaged")


def test_the_recipe_in_the_formats_documentation_reads_a_file(whole: bytes, tmp_path: Path) -> None:
    assert lines.__doc__
    recipe = lines.__doc__.split("::\n")[-1]
    code = "\n".join(line[4:] for line in recipe.splitlines()).replace('"FILE"', repr(str(tmp_path / NAME)))
    (tmp_path / NAME).write_bytes(whole)
    told: list[dict[str, Any]] = []
    exec(code, {"print": told.append})
    assert [line["kind"] for line in told] == ["header", "cell", "cell", "end"]
    assert [line["cell"] for line in told[1:3]] == measured.truth(2)
    (tmp_path / NAME).write_bytes(whole.replace(b"one_shot", b"two_shot", 1))
    with pytest.raises(AssertionError, match="damaged"):
        exec(code, {"print": told.append})
