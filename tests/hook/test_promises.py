"""What is told of counts: promises without a call, fused operators that reduced nothing, graphs. Over ring files that hold just that.

Invariant: each finding has its counterpart beside it, counts that are nearly the same and of which nothing is to be said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_probe import _core
from sglang_probe._record.ring import Ring, Tables
from sglang_probe.hook import promises
from sglang_probe.hook.telling import NOTE_BYTES, Findings, cut

PATH = {name: i for i, (name, _) in enumerate(_core.PATHS)}
FLAG = {name: 1 << i for i, (name, _) in enumerate(_core.RING_FLAGS)}
CAPTURED = 3  # inside of graph_capture(), and the stream captures


class Made:
    """A ring and what was put into it."""

    def __init__(self, folder: Path) -> None:
        self.recorder = _core.Recorder(str(folder / "1.1.ring"), slots=8192, graphs=64, kinds=256)

    def put(self, times: int = 1, entry: str = "in_place", path: str = "torch_distributed", **more: Any) -> None:
        for _ in range(times):
            self.recorder.put("tp:0", entry, PATH.get(path, 255), 512, 0, 1, **more)

    def graph(self, calls: int, registered: int | None = None, replays: int = 0, **more: Any) -> int:
        number = self.recorder.graph_begin("")
        self.put(calls, "out_place", "custom", context=CAPTURED, graph=number, **more)
        self.recorder.graph_end(number)
        if registered is not None:
            self.recorder.registered(registered)
        if replays:
            self.recorder.graph_replayed(number, replays)
        return number

    @property
    def tables(self) -> Tables:
        with Ring(self.recorder.path) as ring:
            return ring.tables()

    @property
    def records(self) -> Any:
        with Ring(self.recorder.path) as ring:
            return ring.records().records


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    ring = Made(tmp_path)
    yield ring
    ring.recorder.close(True)


def group(**more: Any) -> Any:
    return SimpleNamespace(**{"unique_name": "tp:0", "world_size": 8, "use_custom_allreduce": True, "ca_comm": None, **more})


def broken(made: Made, of: Any, warnings: Any = (), stopped: Any = lambda _: "") -> list[str]:
    return [finding.text for finding in promises.broken_promises(made.tables, of, warnings, stopped)]


def test_a_flag_that_no_call_kept_is_told_after_enough_of_them(made: Made) -> None:
    made.put(999)
    assert broken(made, group()) == []
    made.put(231)
    (text,) = broken(made, group(), ["Setup Custom allreduce failed with x", "of something else"])
    assert text == (
        "tp:0: custom all-reduce is on by flag; 0 of 1,230 calls took it: there is no such communicator; "
        "its constructor warned: Setup Custom allreduce failed with x"
    )


def test_one_call_keeps_it_and_what_was_not_promised_is_not_missed(made: Made) -> None:
    made.put(1500)
    assert broken(made, group(use_custom_allreduce=False)) == []
    assert broken(made, group(world_size=1)) == []
    assert broken(made, group(unique_name="tp:1")) == []
    assert len(broken(made, group())) == 1
    made.put(1, "out_place", "custom")
    assert broken(made, group()) == []


@pytest.mark.parametrize(
    ("comm", "said"),
    [
        (SimpleNamespace(disabled=True), "the communicator is disabled, and SGLang's log does not say why"),
        (SimpleNamespace(disabled=False), "the communicator is enabled, and no call was for it"),
    ],
)
def test_why_is_what_became_of_the_communicator(made: Made, comm: Any, said: str) -> None:
    made.put(1000)
    (text,) = broken(made, group(ca_comm=comm))
    assert text.endswith(said)


def test_of_an_enabled_one_the_model_says_what_it_held_against_a_call(made: Made) -> None:
    made.put(1000)
    asked: list[str] = []
    (text,) = broken(
        made,
        group(ca_comm=SimpleNamespace(disabled=False)),
        stopped=lambda path: asked.append(path) or "of it it says: too large",
    )
    assert asked == ["custom"] and text.endswith("of it it says: too large")


def test_other_promises_have_their_names_in_every_release(made: Made) -> None:
    made.put(1000)
    for flag, words in (("use_pymscclpp", "MSCCL++"), ("use_mscclpp", "MSCCL++"), ("use_symm_mem", "torch symmetric memory")):
        (text,) = broken(made, group(use_custom_allreduce=False, **{flag: True}))
        assert words in text


def test_the_fused_operator_is_missed_only_where_it_was_asked_for(made: Made) -> None:
    made.put(1000)
    assert list(promises.unfused(made.tables, False)) == []
    (finding,) = promises.unfused(made.tables, True)
    assert "0 of 1,000 calls were fused" in finding.text
    made.put(1, "fused", "flashinfer")
    assert list(promises.unfused(made.tables, True)) == []


def test_a_fused_call_that_reduced_nothing_is_told_and_one_that_did_is_not(made: Made) -> None:
    made.put(3, "fused", "flashinfer")
    assert list(promises.reduced_nothing(made.tables)) == []
    made.put(2, "fused", "", flags=FLAG["nothing"])
    (finding,) = promises.reduced_nothing(made.tables)
    assert "reduced nothing in 2 of 5 calls" in finding.text


def test_a_capture_without_addresses_is_told_and_one_with_them_is_not(made: Made) -> None:
    made.graph(4, registered=4)
    made.graph(4)
    assert list(promises.unregistered(made.tables)) == []
    made.recorder.registered(0)
    (finding,) = promises.unregistered(made.tables)
    assert "captured in 4 calls of 1 graphs, and 0 addresses" in finding.text


@pytest.mark.parametrize(
    ("kernel", "piecewise", "saver", "calls"),
    [("", False, False, 4), ("", True, False, 4), ("one_shot_pull", False, False, 4), ("one_shot_pull", True, False, 0)]
    + [("one_shot_push", False, False, 0), ("two_shot_pull", False, True, 0), ("", False, True, 0)],
)
def test_only_calls_that_read_registered_inputs_need_addresses(
    made: Made, kernel: str, piecewise: bool, saver: bool, calls: int
) -> None:
    made.graph(9)
    number = made.graph(4, kernel=kernel)
    made.put(2, "out_place", "custom", context=CAPTURED, graph=number, flags=FLAG["dry"])
    assert promises.registering(made.tables, number, piecewise, saver) == calls


def test_graphs_that_never_run_are_told_while_calls_go_on_without_them(made: Made) -> None:
    made.put(1200)
    made.graph(61)
    assert list(promises.never_replayed(made.tables, lambda: made.records)) == []  # nothing came after it
    made.put(1000)
    (finding,) = promises.never_replayed(made.tables, lambda: made.records)
    assert finding.text == "1 graphs with 61 calls were captured and never replayed; 1,000 calls ran eagerly since"
    made.recorder.graph_replayed(1)
    assert list(promises.never_replayed(made.tables, lambda: made.records)) == []


def test_a_finding_is_told_once_and_noted_where_no_reader_finds_it_out(caplog: pytest.LogCaptureFixture) -> None:
    findings, notes = Findings(), []
    findings.note = notes.append
    with caplog.at_level(logging.WARNING, "sglang_probe"):
        assert findings.tell("promise", "a", "first") and not findings.tell("promise", "a", "again")
        assert findings.tell("difference", "a", "second")
    assert [finding.text for finding in findings.all()] == ["first", "second"] and notes == ["first"]
    assert [record.getMessage() for record in caplog.records] == ["first", "second"]


def test_telling_never_raises_and_does_not_grow_without_end() -> None:
    findings = Findings()

    def broken_note(_: str) -> None:
        raise OSError

    findings.note = broken_note
    told = sum(findings.tell("target", str(i), "x", logging.DEBUG) for i in range(1200))
    assert told == len(findings.all()) == 1000
    assert len(cut("\u20ac" * 400).encode()) <= NOTE_BYTES and cut("short") == "short"


def test_ring_times_are_those_that_records_are_compared_by(made: Made) -> None:
    before = time.monotonic_ns()
    made.put()
    assert before <= int(made.records[-1]["time_ns"]) <= time.monotonic_ns()
