"""Wrapped calls: what the caller sees (nothing but the original), and what the record says of each.

Invariant: the dispatch that is wrapped is built as SGLang's is, a coordinator that holds communicators; tensors are NumPy's, torch's are in
test_ring_torch.py.
"""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_probe import _core
from sglang_probe._record.ring import Ring

PATH = {name: i for i, (name, _) in enumerate(_core.PATHS)}
CONTEXT = {name: 1 << i for i, (name, _) in enumerate(_core.CONTEXTS)}
FLAGS = {name: 1 << i for i, (name, _) in enumerate(_core.RING_FLAGS)}
TENSOR = np.ones((3, 8), np.float32)


class PyNccl:
    def __init__(self) -> None:
        self.disabled = False

    def all_reduce(self, tensor: Any) -> None:
        if not self.disabled:
            tensor *= 1

    def outplace_all_reduce(self, tensor: Any) -> Any:
        return None if self.disabled else tensor.copy()


class Custom:
    def __init__(self) -> None:
        self.capturing = False

    def pick(self, nbytes: int) -> tuple[str, bool]:
        return ("ONE" if nbytes < 1000 else "TWO"), False

    def launch(self, tensor: Any) -> Any:
        return tensor.copy()

    def custom_all_reduce(self, tensor: Any) -> Any:
        self.pick(tensor.nbytes)
        return np.zeros_like(tensor) if self.capturing else self.launch(tensor)


def make_kinds() -> tuple[type, type, type]:
    """New classes each time: they are patched."""

    class Nccl(PyNccl):
        all_reduce = PyNccl.all_reduce
        outplace_all_reduce = PyNccl.outplace_all_reduce

    class Ca(Custom):
        pick, launch, custom_all_reduce = Custom.pick, Custom.launch, Custom.custom_all_reduce

    class Coordinator:
        def __init__(self, name: str) -> None:
            self.unique_name = name
            self.pynccl, self.custom = Nccl(), Ca()

        def out_place(self, tensor: Any, method: str) -> Any:
            """The out-of-place op's body."""
            if method == "raise":
                raise KeyError("the original's own")
            if method == "auto":
                clone = tensor.copy()
                self.in_place(clone)
                return clone
            if method == "both":
                self.custom.custom_all_reduce(tensor)
            if method in ("pynccl", "both"):
                return self.pynccl.outplace_all_reduce(tensor)
            return self.custom.custom_all_reduce(tensor) if method == "ca" else None

        def in_place(self, tensor: Any) -> None:
            if not self.pynccl.disabled:
                self.pynccl.all_reduce(tensor)

        def fused(self, tensor: Any, other: Any) -> tuple[Any, Any]:
            if other is not None:
                other.in_place(tensor)
            return (None, None) if other is None else (tensor, tensor)

        def all_reduce(self, tensor: Any, method: str | None = None) -> Any:
            if method is not None:
                return self.out_place(tensor, method)
            self.in_place(tensor)
            return tensor

    return Coordinator, Nccl, Ca


class Hooked:
    """Coordinators of a process that is hooked, and its ring."""

    def __init__(self, path: Path) -> None:
        self.recorder = r = _core.Recorder(path, slots=1024, graphs=8, kinds=256)
        self.kind, nccl, ca = make_kinds()
        wrap = _core.Wrapper
        through = (self.kind.all_reduce.__code__,)
        self.kind.out_place = wrap(self.kind.out_place, r, "out_place", op="out_of_place", keyword="tensor", through=through)
        self.kind.in_place = wrap(
            self.kind.in_place, r, "in_place", PATH["torch_distributed"], "in_place", 1, "tensor", through=through
        )
        self.kind.fused = wrap(self.kind.fused, r, "fused", PATH["flashinfer"], "fused")
        nccl.all_reduce = wrap(
            nccl.all_reduce, r, "symm_mem_bypass", PATH["pynccl_in_place"], group=".group_name", unless="disabled"
        )
        nccl.outplace_all_reduce = wrap(nccl.outplace_all_reduce, r, path=PATH["pynccl_out_of_place"])
        ca.custom_all_reduce = wrap(ca.custom_all_reduce, r, path=PATH["custom"], dry=1)
        ca.launch = wrap(ca.launch, r, dry=0)
        ca.pick = wrap(ca.pick, r, kernels=((("ONE", ...), "one_shot"), (("TWO", False), "two_shot")))
        self.group = self.kind("tp:0")
        self.group.pynccl.group_name = "tp:0"
        r.start()

    def seen(self) -> list[dict[str, Any]]:
        """Records as words."""
        with Ring.open(self.recorder.path) as ring:
            got, names = ring.records().records, ring.tables().names
        rows = []
        for record in got:
            row = {name: int(record[name]) for name in record.dtype.names}
            row.update({kind: names[kind][row[kind]] for kind in ("group", "entry", "kernel", "site")})
            row["path"] = "" if row["path"] == 255 else _core.PATHS[row["path"]][0]
            row["expected"] = "" if row["expected"] == 255 else _core.PATHS[row["expected"]][0]
            row["flags"] = {name for name, bit in FLAGS.items() if row["flags"] & bit}
            row["phase"], row["op"] = _core.PHASES[row["phase"]][0], _core.RING_OPS[row["op"]][0]
            rows.append(row)
        return rows

    def last(self) -> dict[str, Any]:
        return self.seen()[-1]


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[Hooked]:
    made = Hooked(tmp_path / "a.ring")
    yield made
    assert made.recorder.counts()["failures"] == 0
    made.recorder.close()


# ---- what the record says ----


def test_the_innermost_call_says_which_path_ran(hooked: Hooked) -> None:
    g = hooked.group
    g.all_reduce(TENSOR, "ca")
    g.all_reduce(TENSOR, "pynccl")
    g.all_reduce(TENSOR)
    g.out_place(tensor=TENSOR, method="auto")
    g.pynccl.all_reduce(TENSOR)
    g.pynccl.disabled = True
    g.in_place(TENSOR)
    g.pynccl.all_reduce(TENSOR)  # it does nothing
    told = [(row["entry"], row["path"], row["op"], row["group"], row["nbytes"], row["rows"]) for row in hooked.seen()]
    assert told == [
        ("out_place", "custom", "out_of_place", "tp:0", 96, 3),
        ("out_place", "pynccl_out_of_place", "out_of_place", "tp:0", 96, 3),
        ("in_place", "pynccl_in_place", "in_place", "tp:0", 96, 3),
        ("out_place", "pynccl_in_place", "out_of_place", "tp:0", 96, 3),
        ("symm_mem_bypass", "pynccl_in_place", "", "tp:0", 96, 3),
        ("in_place", "torch_distributed", "in_place", "tp:0", 96, 3),
    ]
    assert [row["call"] for row in hooked.seen()] == [1, 2, 3, 4, 5, 6]
    assert [_core.DTYPES[row["dtype"]][0] for row in hooked.seen()] == ["fp32"] * 6


def test_the_kernel_is_what_the_picker_gave_back(hooked: Hooked) -> None:
    hooked.group.all_reduce(TENSOR, "ca")
    hooked.group.all_reduce(np.ones(1000), "ca")
    hooked.group.custom.pick(8)  # nobody's call
    assert [row["kernel"] for row in hooked.seen()] == ["one_shot", "two_shot"]


def test_a_kernel_that_nobody_saw_is_the_expected_one_where_the_expected_path_ran(hooked: Hooked) -> None:
    g, answer = hooked.group, {"path": "pynccl_out_of_place", "kernel": "by_rule"}
    hooked.recorder.set_expect(lambda *key: (PATH[answer["path"]], answer["kernel"]))
    g.all_reduce(TENSOR, "pynccl")
    g.all_reduce(TENSOR, "pynccl")  # remembered
    g.all_reduce(TENSOR, "ca")  # another path, whose kernel was seen
    g.in_place(TENSOR)  # another path
    g.all_reduce(TENSOR, "both")  # which of the two?
    g.all_reduce(TENSOR, "nobody")
    answer |= {"path": "custom"}
    hooked.recorder.forget()
    g.all_reduce(TENSOR, "ca")  # seen
    g.custom.pick = lambda _: None
    g.all_reduce(TENSOR, "ca")  # not seen
    g.custom.capturing = True
    g.all_reduce(TENSOR, "ca")  # dry
    answer |= {"kernel": ""}
    hooked.recorder.forget()
    g.custom.capturing = False
    g.all_reduce(TENSOR, "ca")
    told = [(row["path"], row["kernel"], "derived" in row["flags"]) for row in hooked.seen()]
    assert told == [
        ("pynccl_out_of_place", "by_rule", True),
        ("pynccl_out_of_place", "by_rule", True),
        ("custom", "one_shot", False),
        ("pynccl_in_place", "", False),
        ("pynccl_out_of_place", "one_shot", False),
        ("", "", False),
        ("custom", "one_shot", False),
        ("custom", "by_rule", True),
        ("custom", "", False),
        ("custom", "", False),
    ]


def test_the_group_of_a_function_is_asked_once_for_each_answer_of_its_argument(hooked: Hooked) -> None:
    asked: list[bool] = []
    names = {True: "attention", False: "experts"}

    def group(which: bool) -> str:
        asked.append(which)
        return names[which]

    def reduce(tensor: Any, eps: float = 0.0, attention: bool = True) -> Any:
        return tensor

    call = _core.Wrapper(reduce, hooked.recorder, "fused", argument=0, group=group, which=2, which_keyword="attention")
    for _ in range(2):
        call(TENSOR)
        call(TENSOR, 0.0, False)
        call(TENSOR, attention=False)
        call(TENSOR, eps=1.0)
        call(TENSOR, 0.0, [0])  # true
    told = [row["group"] for row in hooked.seen()]
    assert told == ["attention", "experts", "experts", "attention", "attention"] * 2
    assert asked == [True, False] and inspect.signature(call) == inspect.signature(reduce)
    names[True] = "another"
    hooked.recorder.forget()
    call(TENSOR)
    call(TENSOR)
    assert [row["group"] for row in hooked.seen()[-2:]] == ["another"] * 2 and asked == [True, False, True]


def test_a_group_that_cannot_be_told_is_none_and_the_call_runs(tmp_path: Path) -> None:
    recorder = _core.Recorder(tmp_path / "a.ring", slots=64, graphs=1, kinds=64)

    class Odd:
        def __bool__(self) -> bool:
            raise ValueError("neither")

    def fails(which: bool) -> str:
        raise RuntimeError("ours")

    def forgets(which: bool) -> str:
        recorder.forget()
        return "tp:0"

    recorder.start()
    for group, which in ((fails, True), (lambda which: 1, True), (lambda which: "tp:0", Odd()), (forgets, False)):
        call = _core.Wrapper(lambda tensor, which: tensor, recorder, "fused", argument=0, group=group, which=1)
        assert call(TENSOR, which) is TENSOR
    with Ring.open(recorder.path) as ring:
        names = ring.tables().names["group"]
        assert [names[int(one["group"])] for one in ring.records().records] == ["", "", "", "tp:0"]
    assert recorder.counts()["failures"] == 3
    recorder.close()


def test_a_dry_run_is_told_from_one_that_launched(hooked: Hooked) -> None:
    hooked.group.custom.capturing = True
    hooked.group.all_reduce(TENSOR, "ca")
    hooked.group.custom.capturing = False
    hooked.group.all_reduce(TENSOR, "ca")
    assert [row["flags"] for row in hooked.seen()] == [{"dry"}, set()]


def test_two_paths_in_one_call_are_flagged(hooked: Hooked) -> None:
    hooked.group.all_reduce(TENSOR, "both")
    assert hooked.last()["flags"] == {"many"} and hooked.last()["path"] == "pynccl_out_of_place"


def test_a_call_that_reduced_nothing_is_flagged(hooked: Hooked) -> None:
    hooked.group.all_reduce(TENSOR, "nobody")
    hooked.group.fused(TENSOR, None)
    hooked.group.fused(TENSOR, hooked.group)
    assert [(row["entry"], row["path"], row["flags"]) for row in hooked.seen()] == [
        ("out_place", "", {"nothing"}),
        ("fused", "", {"nothing"}),
        ("fused", "pynccl_in_place", set()),
    ]


def test_another_groups_call_inside_of_one_is_a_record_of_its_own(hooked: Hooked) -> None:
    other = hooked.kind("pp:0")
    other.pynccl.group_name = "pp:0"
    hooked.group.fused(TENSOR, other)
    assert [(row["group"], row["entry"], row["path"]) for row in hooked.seen()] == [
        ("pp:0", "in_place", "pynccl_in_place"),
        ("tp:0", "fused", "flashinfer"),
    ]
    assert [row["call"] for row in hooked.seen()] == [1, 1]


def test_calls_inside_of_too_many_others_are_passed_on_and_counted(hooked: Hooked) -> None:
    groups = [hooked.kind(f"g{i}") for i in range(12)]

    class Next:
        def __init__(self, rest: list[Any]) -> None:
            self.rest = rest

        def in_place(self, tensor: Any) -> None:
            if self.rest:
                self.rest[0].fused(tensor, Next(self.rest[1:]))

    Next(groups).in_place(TENSOR)
    assert len(hooked.seen()) == 8 and hooked.recorder.counts()["deep"] == 4


def test_an_exception_passes_through_untouched_and_is_recorded(hooked: Hooked) -> None:
    with pytest.raises(KeyError, match="the original's own") as caught:
        hooked.group.all_reduce(TENSOR, "raise")
    assert [entry.name for entry in caught.traceback][-2:] == ["all_reduce", "out_place"]
    assert hooked.last()["path"] == "raises" and hooked.last()["flags"] == {"raised"}
    hooked.group.all_reduce(TENSOR)  # no call was left open
    assert hooked.last()["path"] == "pynccl_in_place"


def test_what_is_no_tensor_is_recorded_as_such(hooked: Hooked) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        hooked.group.in_place()
    assert hooked.last()["flags"] == {"raised", "no_tensor"} and hooked.last()["dtype"] == 255


# ---- context, expected, graphs ----


def test_context_comes_from_dicts_attributes_calls_and_what_is_set(hooked: Hooked) -> None:
    module, state, asked = {"flag": False}, types.SimpleNamespace(on=[]), []

    def capturing() -> bool:
        asked.append(1)
        return True

    hooked.recorder.set_sources(
        (
            (CONTEXT["piecewise"], module, "flag", 0),
            (1 << 16, state, "on", 0),
            (1 << 17, None, "custom.capturing", 0),
            (CONTEXT["stream_capturing"], capturing, "", CONTEXT["in_graph_capture"]),
            (1 << 18, {}, "missing", 0),
        )
    )
    g = hooked.group
    g.all_reduce(TENSOR)
    module["flag"], state.on, g.custom.capturing = True, [0], True
    g.all_reduce(TENSOR)
    assert not asked  # not inside graph_capture()
    module["flag"] = False
    hooked.recorder.context = CONTEXT["in_graph_capture"]
    g.all_reduce(TENSOR)
    told = [(row["context"], row["phase"]) for row in hooked.seen()]
    assert told == [(0, "eager"), (4 | 3 << 16, "piecewise"), (3 | 3 << 16, "captured")] and len(asked) == 1


def test_what_the_first_argument_does_not_have_is_not_true_and_no_failure(hooked: Hooked) -> None:
    names = ("pynccl.disabled", "missing.disabled", "unique_name.missing", "nothing.disabled")
    hooked.recorder.set_sources(tuple((1 << (16 + i), None, name, 0) for i, name in enumerate(names)))
    g = hooked.group
    g.nothing = None
    g.all_reduce(TENSOR, "ca")
    g.pynccl.disabled = True
    g.all_reduce(TENSOR, "ca")
    g.nothing = g.pynccl
    g.all_reduce(TENSOR, "ca")
    assert [row["context"] >> 16 for row in hooked.seen()] == [0, 1, 9]


def test_an_expected_path_is_that_of_what_the_sources_say_now(hooked: Hooked) -> None:
    asked: list[int] = []

    def expect(*key: Any) -> int:
        asked.append(key[7])
        return PATH["torch_distributed" if key[7] >> 16 & 1 else "pynccl_in_place"]

    hooked.recorder.set_sources(((1 << 16, None, "pynccl.disabled", 0),))
    hooked.recorder.set_expect(expect)
    for disabled in (False, True, False, True, True):
        hooked.group.pynccl.disabled = disabled
        hooked.group.all_reduce(TENSOR)
    assert asked == [0, 1 << 16] and not hooked.recorder.pending
    assert {(row["path"], row["expected"]) for row in hooked.seen()} == {
        (one, one) for one in ("torch_distributed", "pynccl_in_place")
    }


def test_the_expected_path_is_asked_once_for_everything_that_decides_it(hooked: Hooked) -> None:
    asked: list[tuple[Any, ...]] = []

    def expect(*key: Any) -> int:
        asked.append(key)
        return PATH["custom"]

    hooked.recorder.set_expect(expect)
    g = hooked.group
    for _ in range(5):
        g.all_reduce(TENSOR, "ca")
    contiguous = 0b1011 | 2 << 5 if TENSOR.ctypes.data % 16 == 0 else 0
    assert asked == [("tp:0", "out_place", 2, 96, 3, 8, asked[0][6], 0, False, g)] and contiguous in (0, asked[0][6] | 0b1011)
    g.all_reduce(TENSOR.astype(np.float64), "ca")
    g.all_reduce(TENSOR.reshape(24), "ca")
    hooked.recorder.context = 1
    g.all_reduce(TENSOR, "ca")
    assert len(asked) == 4 == hooked.recorder.counts()["asked"]
    hooked.recorder.forget()
    g.all_reduce(TENSOR, "ca")
    assert len(asked) == 5 and not hooked.recorder.pending
    assert {row["expected"] for row in hooked.seen()} == {"custom"}


def test_another_path_than_the_expected_one_is_an_alarm_and_direct_calls_have_their_own(hooked: Hooked) -> None:
    asked: list[bool] = []

    def expect(
        group: str, entry: str, dtype: int, nbytes: int, rows: int, columns: int, layout: int, context: int, direct: bool, of: Any
    ) -> int:
        asked.append(direct)
        return PATH["pynccl_in_place"] if direct else PATH["custom"]

    hooked.recorder.set_expect(expect)
    hooked.group.all_reduce(TENSOR)
    hooked.group.in_place(TENSOR)
    hooked.group.in_place(TENSOR)
    first, second, third = hooked.seen()
    assert first["flags"] == {"alarm", "through"} and first["expected"] == "custom"
    assert second["flags"] == third["flags"] == {"direct"} and second["expected"] == "pynccl_in_place"
    assert asked == [False, True]
    assert [alarm[:5] for alarm in hooked.recorder.alarms()] == [("tp:0", "in_place", PATH["pynccl_in_place"], PATH["custom"], 1)]


def test_a_fused_call_that_reduced_nothing_is_an_alarm_where_a_path_was_expected(hooked: Hooked) -> None:
    hooked.recorder.set_expect(lambda *key: PATH["flashinfer"])
    hooked.group.fused(TENSOR, None)
    assert hooked.last()["flags"] == {"alarm", "nothing"}
    assert [alarm[:4] for alarm in hooked.recorder.alarms()] == [("tp:0", "fused", 255, PATH["flashinfer"])]


def test_captured_calls_belong_to_the_graph_whose_capture_began(hooked: Hooked) -> None:
    class Graph:
        def capture_begin(self, pool: Any = None) -> None:
            if pool == "bad":
                raise RuntimeError("pool")

        def capture_end(self) -> None: ...
        def replay(self) -> None: ...

    for event, name in (("begin", "capture_begin"), ("end", "capture_end"), ("replay", "replay")):
        setattr(Graph, name, _core.GraphWrapper(getattr(Graph, name), hooked.recorder, event))
    with pytest.raises(RuntimeError, match="pool"):
        Graph().capture_begin(pool="bad")
    graphs = [Graph(), Graph()]
    for n, graph in enumerate(graphs, 1):
        hooked.recorder.label = f"decode {n}"
        graph.capture_begin(pool=None)
        for _ in range(n):
            hooked.group.all_reduce(TENSOR, "ca")
        graph.capture_end()
        hooked.group.all_reduce(TENSOR, "ca")
    hooked.recorder.stop()
    for _ in range(7):
        graphs[1].replay()
    Graph().replay()  # nobody saw it begin
    assert [(row["graph"], row["phase"]) for row in hooked.seen()] == [
        (1, "captured"),
        (0, "eager"),
        (2, "captured"),
        (2, "captured"),
        (0, "eager"),
    ]
    with Ring.open(hooked.recorder.path) as ring:
        tables = ring.tables()
        assert [int(n) for n in tables.graphs["captured"]] == [1, 2] and [int(n) for n in tables.graphs["replays"]] == [0, 7]
        assert [tables.names["graph"][int(n)] for n in tables.graphs["label"]] == ["decode 1", "decode 2"]
        executed = sum(
            int(kind["calls"]) * (int(tables.graphs["replays"][kind["graph"] - 1]) if kind["graph"] else 1)
            for kind in tables.kinds
        )
    assert executed == 2 + 0 + 2 * 7 and hooked.recorder.counts()["replays_lost"] == 1


# ---- times and sites ----


def test_host_time_and_the_timer_are_taken_when_asked_for(hooked: Hooked) -> None:
    told: list[tuple[Any, ...]] = []

    def timer(*of: Any) -> Any:
        told.append(of)
        return f"token {len(told)}"

    hooked.recorder.timer, hooked.recorder.timer_every, hooked.recorder.host_time = timer, 2, True
    for _ in range(4):
        hooked.group.all_reduce(TENSOR, "ca")
    hooked.recorder.graph_begin()
    for _ in range(4):
        hooked.group.all_reduce(TENSOR, "ca")  # never in a capture
    hooked.recorder.graph_end()
    hooked.recorder.timer = lambda token: None  # not this one
    hooked.group.all_reduce(TENSOR, "ca")
    hooked.group.all_reduce(TENSOR, "ca")
    assert told == [(None,), ("token 1", 2), (None,), ("token 3", 4)]
    assert all(row["host_ns"] > 0 for row in hooked.seen())


def test_while_one_thread_captures_no_other_asks_for_a_time_and_its_calls_are_its_own(hooked: Hooked) -> None:
    told: list[Any] = []
    hooked.recorder.timer, hooked.recorder.timer_every = told.append, 1
    hooked.recorder.graph_begin()
    other = threading.Thread(target=hooked.group.all_reduce, args=(TENSOR, "ca"))
    other.start()
    other.join()
    hooked.recorder.graph_end()
    hooked.group.all_reduce(TENSOR, "ca")
    assert [(row["phase"], row["graph"]) for row in hooked.seen()] == [("eager", 0)] * 2
    assert told == [None]


def test_without_room_for_its_name_a_call_has_no_site_and_not_another_ones(hooked: Hooked) -> None:
    scope: dict[str, Any] = {}
    exec(compile("def outer(call):\n    call()\n", "/models/outer.py", "exec"), scope)
    exec(compile("def inner(g, x):\n    g.all_reduce(x, 'ca')\n", "/models/inner.py", "exec"), scope)
    hooked.recorder.set_skipped(("test_ring_calls.py",))
    hooked.recorder.site_every = 1
    scope["outer"](lambda: hooked.group.all_reduce(TENSOR, "ca"))  # the outer one's name is known
    for n in range(10_000):
        if not hooked.recorder.intern("note", f"{n} " + "x" * 400):
            break
    while hooked.recorder.intern("note", f"{n}"):
        n += 1
    for _ in range(2):
        scope["outer"](lambda: scope["inner"](hooked.group, TENSOR))
    assert [row["site"] for row in hooked.seen()] == ["/models/outer.py:2 outer", "", ""]
    assert hooked.recorder.counts()["names_lost"] == 3  # the site's once: it is not asked for again


def test_the_call_site_is_the_first_frame_that_is_not_the_dispatchs_own(hooked: Hooked) -> None:
    hooked.recorder.set_skipped(("/dispatch.py",))
    scope: dict[str, Any] = {}
    exec(compile("def all_reduce(g, x):\n    return g.all_reduce(x, 'ca')\n", "/somewhere/dispatch.py", "exec"), scope)
    code = "def forward(all_reduce, g, x):\n    all_reduce(g, x)\n    all_reduce(g, x)\n"
    exec(compile(code, "/opt/lib/site-packages/sglang/srt/models/deepseek_v2.py", "exec"), scope)
    exec(compile(code, "/home/" + "long/" * 200 + "été.py", "exec"), outer := {})
    hooked.recorder.site_every = 1
    hooked.recorder.set_skipped(("/dispatch.py", "test_ring_calls.py"))
    for _ in range(3):
        scope["forward"](scope["all_reduce"], hooked.group, TENSOR)
    outer["forward"](scope["all_reduce"], hooked.group, TENSOR)
    sites = [row["site"] for row in hooked.seen()]
    assert sites[:6] == [f"sglang/srt/models/deepseek_v2.py:{line} forward" for line in (2, 3)] * 3
    assert sites[6].endswith("long/été.py:2 forward") and len(sites[6].encode()) <= 480
    hooked.recorder.site_every = 3
    for _ in range(6):
        hooked.group.all_reduce(TENSOR, "ca")
    assert sum(bool(row["site"]) for row in hooked.seen()[-6:]) == 2


# ---- what the caller sees ----


def test_a_wrapped_method_looks_like_the_original(hooked: Hooked) -> None:
    kind = hooked.kind
    original = kind.out_place.__wrapped__
    assert isinstance(original, types.FunctionType)
    assert (kind.out_place.__name__, kind.out_place.__doc__) == ("out_place", "The out-of-place op's body.")
    assert (kind.out_place.__qualname__, kind.out_place.__module__) == (original.__qualname__, __name__)
    assert inspect.signature(kind.out_place) == inspect.signature(original)
    assert inspect.signature(hooked.group.out_place).parameters.keys() == {"tensor", "method"}
    assert kind.out_place.__code__ is original.__code__ and inspect.unwrap(kind.out_place) is original
    assert hooked.group.out_place.__self__ is hooked.group and "out_place" in repr(kind.out_place)
    assert callable(kind.out_place) and kind.out_place == kind.out_place and weakref.ref(kind.out_place)() is kind.out_place
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kind.out_place.nonsense


def module_level(tensor: Any) -> Any:
    return tensor


def test_it_is_pickled_and_copied_as_a_function_is(hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = _core.Wrapper(module_level, hooked.recorder, "module_level", argument=0, group="tp:0")
    monkeypatch.setattr(sys.modules[__name__], "module_level", wrapper)
    assert pickle.loads(pickle.dumps(wrapper)) is wrapper
    assert copy.deepcopy(wrapper) is wrapper and copy.copy(wrapper) is wrapper
    assert module_level(TENSOR) is TENSOR and hooked.last()["entry"] == "module_level"


def test_nothing_of_ours_is_raised_whatever_fails(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path / "a.ring")
    g, r = hooked.group, hooked.recorder

    def failing(*of: Any) -> Any:
        raise RuntimeError("ours")

    class Odd:
        @property
        def nbytes(self) -> int:
            raise RuntimeError("ours")

        def copy(self) -> Odd:
            return self

    r.set_sources(((1 << 16, failing, "", 0), (1 << 17, len, "no.such.thing", 0), (4, {"on": True}, "on", 0)))
    r.set_expect(failing)
    r.timer, r.timer_every, r.site_every = failing, 1, 1
    assert g.all_reduce(TENSOR, "ca") is not None
    assert isinstance(g.out_place(Odd(), "pynccl"), Odd)
    g.unique_name = None
    r.forget()  # what a group is called is asked for once
    g.all_reduce(TENSOR, "ca")
    for answer in (99, (99, "one_shot"), (8, 8), (8,), "custom"):
        r.set_expect(lambda *key, said=answer: said)
        g.all_reduce(TENSOR, "ca")
    rows = hooked.seen()
    assert [(row["context"], row["expected"], row["group"]) for row in rows] == [(4, "", "tp:0")] * 2 + [(4, "", "")] * 6
    assert rows[1]["flags"] == {"no_tensor"}
    assert r.counts()["failures"] > 10
    r.close()


def test_an_interrupt_that_comes_while_ours_runs_is_the_callers(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path / "a.ring")

    def interrupted(*key: Any) -> int:
        raise KeyboardInterrupt

    hooked.recorder.set_expect(interrupted)
    with pytest.raises(KeyboardInterrupt):
        hooked.group.all_reduce(TENSOR, "ca")
        for _ in range(1000):
            pass
    hooked.recorder.close()


class Metaclass(type):
    @property
    def __dlpack_c_exchange_api__(cls) -> Any:
        raise KeyboardInterrupt


class Interrupts(metaclass=Metaclass):
    """Whoever looks at it is interrupted at once."""


class InterruptsLater:
    nbytes, dtype, shape = 96, TENSOR.dtype, (3, 8)

    def is_contiguous(self) -> bool:
        raise KeyboardInterrupt


class InterruptsLast(InterruptsLater):
    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Interrupts, InterruptsLater, InterruptsLast])
def test_an_interrupt_that_comes_while_a_tensor_is_looked_at_is_the_callers(tmp_path: Path, kind: type) -> None:
    recorder = _core.Recorder(tmp_path / "a.ring", slots=64, graphs=1, kinds=64)
    call = _core.Wrapper(id, recorder, "id", argument=0, group="tp:0")
    recorder.start()
    tensor = kind()
    with pytest.raises(KeyboardInterrupt):
        call(tensor)
        for _ in range(1000):
            pass
    recorder.close()


def test_what_our_own_callbacks_call_is_not_recorded(hooked: Hooked) -> None:
    def expect(*key: Any) -> int:
        hooked.group.all_reduce(TENSOR, "ca")
        return PATH["custom"]

    hooked.recorder.set_expect(expect)
    hooked.group.all_reduce(TENSOR, "ca")
    assert len(hooked.seen()) == 1


def test_a_callback_may_change_or_close_everything_that_called_it(tmp_path: Path) -> None:
    for turn in range(5):
        hooked = Hooked(tmp_path / f"{turn}.ring")
        r = hooked.recorder

        def change(*of: Any, r: _core.Recorder = r, turn: int = turn) -> Any:
            r.set_sources(())
            r.set_expect(None)
            r.timer = None
            r.set_skipped(("x",))
            if turn > 2:
                r.close(remove=True)
            return 1

        r.set_sources(((1 << 16, change if turn in (0, 3) else bool, "", 0), (1 << 17, bool, "", 0)))
        r.set_expect(change if turn in (1, 4) else None)
        r.timer, r.timer_every = change if turn == 2 else None, 1
        assert hooked.group.all_reduce(TENSOR, "ca") is not None
        assert hooked.group.all_reduce(TENSOR, "ca") is not None
        r.close()


def test_after_stop_and_close_calls_go_on_and_nothing_is_written(hooked: Hooked) -> None:
    hooked.group.all_reduce(TENSOR, "ca")
    hooked.recorder.stop()
    hooked.group.all_reduce(TENSOR, "ca")
    assert len(hooked.seen()) == 1
    hooked.recorder.start()
    hooked.group.all_reduce(TENSOR, "ca")
    assert [row["call"] for row in hooked.seen()] == [1, 1]  # numbered anew
    path = hooked.recorder.path
    hooked.recorder.close(remove=True)
    assert not Path(path).exists() and hooked.group.all_reduce(TENSOR, "ca") is not None
    with pytest.raises(_core.ProbeError, match="closed"):
        hooked.recorder.start()
    hooked.recorder = _core.Recorder(path)


def test_a_recording_that_begins_inside_of_a_call_does_not_take_its_parts_for_calls(hooked: Hooked) -> None:
    """in_place is running when recording starts: the communicator that it then calls is no caller's bypass."""
    hooked.recorder.stop()

    class Starts(type(hooked.group.pynccl)):  # type: ignore[misc] # made at run time
        @property
        def disabled(self) -> bool:
            hooked.recorder.start()
            return False

        @disabled.setter
        def disabled(self, value: bool) -> None: ...

    hooked.group.pynccl = Starts()
    hooked.group.pynccl.group_name = "tp:0"
    hooked.group.all_reduce(TENSOR)
    assert hooked.seen() == []
    hooked.group.all_reduce(TENSOR)
    assert [row["entry"] for row in hooked.seen()] == ["in_place"]


def test_wrappers_and_recorders_that_hold_one_another_are_collected(tmp_path: Path) -> None:
    def make() -> weakref.ref[Any]:
        recorder = _core.Recorder(tmp_path / "a.ring", slots=64, graphs=1, kinds=1)
        holder: dict[str, Any] = {}

        def original(self: Any) -> Any:
            return holder

        holder["wrapper"] = _core.Wrapper(original, recorder, "x")
        recorder.set_expect(holder["wrapper"])
        recorder.set_sources(((1, holder["wrapper"], "", 0),))
        holder["chosen"] = _core.Wrapper(original, recorder, "y", group=lambda _: holder["wrapper"])
        recorder.timer = holder["wrapper"]
        return weakref.ref(holder["wrapper"])

    reference = make()
    gc.collect()
    assert reference() is None


BAD: list[tuple[Callable[[_core.Recorder], Any], str]] = [
    (lambda r: _core.Wrapper(1, r), "callable"),
    (lambda r: _core.Wrapper(len, 1), "recorder"),  # type: ignore[arg-type] # bad on purpose
    (lambda r: _core.Wrapper(len, r, path=99), "path=99"),
    (lambda r: _core.Wrapper(len, r, op="sideways"), "op='sideways'"),
    (lambda r: _core.Wrapper(len, r, group=".a.b.c.d.e"), "at most 4"),
    (lambda r: _core.Wrapper(len, r, group=1), "group=1"),
    (lambda r: _core.Wrapper(len, r, which=-2), "which=-2"),
    (lambda r: _core.Wrapper(len, r, through=(len,)), "no code object"),
    (lambda r: _core.Wrapper(len, r, entry="x" * 500), "480"),
    (lambda r: r.set_sources(((1, None, "", 0),)), "callable"),
    (lambda r: r.set_sources(((1 << 32, {}, "x", 0),)), "32 bits"),
    (lambda r: r.set_sources([]), "tuple"),  # type: ignore[arg-type] # bad on purpose
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_setting_is_refused_where_it_is_made(tmp_path: Path, call: Callable[[_core.Recorder], Any], words: str) -> None:
    recorder = _core.Recorder(tmp_path / "a.ring")
    with pytest.raises((ValueError, TypeError), match=words):
        call(recorder)
    recorder.close()
