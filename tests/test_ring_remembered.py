"""What a Recorder remembers from call to call is what it would read: flags by their dict's version, groups by their objects, rows of kinds.

Invariant: each thing is changed in every way that Python code has for it, after it was remembered.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sglang_probe import _core
from sglang_probe._live.counts import kinds_of
from sglang_probe._record.ring import Ring

TENSOR = np.ones((3, 8), np.float32)
SETTERS = """
flag = False
def by_global(value):
    global flag
    flag = value
def by_deleting(value):
    global flag
    if value:
        flag = value
    elif "flag" in globals():
        del flag
"""


class Group:
    def __init__(self, name: str = "tp:0") -> None:
        self.unique_name, self.disabled = name, False

    def reduce(self, tensor: Any) -> Any:
        return tensor


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[_core.Recorder]:
    made = _core.Recorder(tmp_path / "a.ring", slots=4096, graphs=1, kinds=64)
    made.start()
    yield made
    assert made.counts()["failures"] == 0
    made.close()


def records(recorder: _core.Recorder) -> Any:
    with Ring.open(recorder.path) as ring:
        return ring.records().records


def by_attribute(module: Any, value: object) -> None:
    module.flag = value


def by_removing(module: Any, value: object) -> None:
    vars(module).pop("flag", None)
    if value:
        vars(module).setdefault("flag", value)


def by_clearing(module: Any, value: object) -> None:
    space = vars(module)
    kept = {**space, "flag": value}
    space.clear()
    space |= kept


WAYS: dict[str, Callable[[Any, object], None]] = {
    "global": lambda module, value: module.by_global(value),
    "del": lambda module, value: module.by_deleting(value),
    "attribute": by_attribute,
    "item": lambda module, value: vars(module).__setitem__("flag", value),
    "update": lambda module, value: vars(module).update(flag=value),
    "pop, setdefault": by_removing,
    "clear": by_clearing,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on", [True, 1, [0]], ids=["bool", "int", "list"])
def test_a_flag_that_is_switched_is_seen_by_the_next_call_however_it_was_switched(
    recorder: _core.Recorder, way: str, on: object
) -> None:
    module = ModuleType("flags")
    exec(SETTERS, vars(module))  # noqa: S102 # functions whose globals are the module's, as SGLang's are
    call, group = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), Group()
    recorder.set_sources(((4, vars(module), "flag", 0),))
    wanted = []
    for value in [False, on, False, False, on, on] * 40:  # often enough for the interpreter to specialise the store
        WAYS[way](module, value)
        for _ in range(2):
            call(group, TENSOR)
            wanted.append(4 if value else 0)
    assert records(recorder)["context"].tolist() == wanted


def test_a_list_that_becomes_empty_is_no_longer_true(recorder: _core.Recorder) -> None:
    flags = {"streams": [1]}
    call, group = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), Group()
    recorder.set_sources(((4, flags, "streams", 0),))
    for _ in range(2):
        call(group, TENSOR)
    flags["streams"].clear()  # the dict has not changed
    call(group, TENSOR)
    assert records(recorder)["context"].tolist() == [4, 4, 0]


def test_a_flag_among_an_objects_attributes_is_seen_by_the_next_call(recorder: _core.Recorder) -> None:
    """In some Pythons, such a dict is a view of values that lie in the object."""
    flags = Group()
    call, group = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), Group()
    recorder.set_sources(((4, vars(flags), "disabled", 0),))
    wanted = []
    for i in range(80):
        flags.disabled = bool(i % 3)
        for _ in range(2):
            call(group, TENSOR)
            wanted.append(4 if flags.disabled else 0)
    assert records(recorder)["context"].tolist() == wanted


def test_groups_that_come_and_go_at_one_address_keep_their_own_names(recorder: _core.Recorder) -> None:
    call, wanted = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), []
    for i in range(200):
        group = Group(f"tp:{i % 7}")
        for _ in range(2):
            call(group, TENSOR)
            wanted.append(group.unique_name)
        del group
        gc.collect(0)
    with Ring.open(recorder.path) as ring:
        names = ring.tables().names["group"]
    assert [names[number] for number in records(recorder)["group"].tolist()] == wanted


def test_none_in_place_of_a_group_that_is_gone_has_not_its_name(tmp_path: Path) -> None:
    recorder = _core.Recorder(tmp_path / "a.ring", slots=4096, graphs=1, kinds=64)
    recorder.start()
    call, wanted, kept = _core.Wrapper(lambda self, tensor: tensor, recorder, "all_reduce", 8, "in_place"), [], Switched().comm
    recorder.set_sources(((4, None, "comm.disabled", 0),))
    for _ in range(50):  # at whatever address: one of them shares None's row
        group = Switched()
        group.comm = kept
        call(group, TENSOR)
        del group
        call(None, TENSOR)
        wanted += [(1, 4), (0, 0)]
    found = records(recorder)
    assert list(zip(found["group"].tolist(), found["context"].tolist(), strict=True)) == wanted
    assert recorder.counts()["failures"] == 50  # None has no name
    recorder.close()


def test_many_groups_in_turn_keep_their_own_names(recorder: _core.Recorder) -> None:
    call, groups = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), [Group(f"tp:{i}") for i in range(9)]
    for group in groups * 20:
        call(group, TENSOR)
    with Ring.open(recorder.path) as ring:
        names = ring.tables().names["group"]
    assert [names[number] for number in records(recorder)["group"].tolist()] == [group.unique_name for group in groups] * 20


def test_a_group_that_takes_no_weak_reference_is_read_each_time(recorder: _core.Recorder) -> None:
    class Slotted:
        __slots__ = ("__dict__",)  # and no place for weak references
        unique_name: str

    group = Slotted()
    call = _core.Wrapper(lambda self, tensor: tensor, recorder, "all_reduce", 8, "in_place")
    for name in ("tp:0", "tp:0", "tp:1"):
        group.unique_name = name
        call(group, TENSOR)
    assert records(recorder)["group"].tolist() == [1, 1, 2]


def test_another_name_is_read_once_the_recorder_forgets(recorder: _core.Recorder) -> None:
    call, group = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), Group()
    call(group, TENSOR)
    group.unique_name = "tp:1"
    recorder.forget()
    call(group, TENSOR)
    assert records(recorder)["group"].tolist() == [1, 2]


def test_a_communicator_without_a_group_is_seen_once_it_has_one_and_is_on(recorder: _core.Recorder) -> None:
    """pynccl's constructor makes an all-reduce, and one that is switched off does nothing."""
    call = _core.Wrapper(Group.reduce, recorder, "bypass", 8, "in_place", unless="disabled")
    comm = Group("")
    call(comm, TENSOR)
    comm.unique_name = "tp:0"
    call(comm, TENSOR)
    comm.disabled = True
    call(comm, TENSOR)
    comm.disabled = False
    call(comm, TENSOR)
    assert records(recorder)["group"].tolist() == [1, 1]


def test_a_call_of_no_group_that_can_be_switched_off_is_recorded(recorder: _core.Recorder) -> None:
    call, group = _core.Wrapper(Group.reduce, recorder, "bypass", 8, "in_place", group="", unless="disabled"), Group()
    for group.disabled in (False, True, False):
        call(group, TENSOR)
    assert records(recorder)["group"].tolist() == [0, 0]


class Switched(Group):
    def __init__(self) -> None:
        super().__init__()
        self.comm: Any = Group()
        self.comm.disabled = True


def test_a_communicator_that_is_switched_is_seen_by_the_next_call_whoever_owns_it(recorder: _core.Recorder) -> None:
    call, groups = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), [Switched() for _ in range(5)]
    recorder.set_sources(((4, None, "comm.disabled", 0),))
    wanted = []
    for i, group in enumerate(groups * 20):
        if i % 3 == 0:
            group.comm.disabled = not group.comm.disabled
        if i % 7 == 0:
            group.comm = Group()  # the one before is gone
        for _ in range(2):
            call(group, TENSOR)
            wanted.append(4 if group.comm.disabled else 0)
    assert records(recorder)["context"].tolist() == wanted


class Last:
    """Calls as it goes. Without attributes: however deep it lies in what goes with it, it goes at once."""

    __slots__ = ()
    call: Callable[[], object]

    def __del__(self) -> None:
        Last.call()


def test_a_call_while_a_communicator_is_on_its_way_out_does_not_bring_it_back(recorder: _core.Recorder) -> None:
    """At some depths, the interpreter puts off objects that nobody holds any more: their weak references still lead to them."""
    call, group = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), Switched()
    recorder.set_sources(((4, None, "comm.disabled", 0),))
    Last.call = lambda: call(group, TENSOR)
    depths = 110
    for depth in range(depths):
        group.comm = Switched().comm
        recorder.forget()
        call(group, TENSOR)
        chain: list[Any] = [Last(), group.comm]  # a list's last goes first
        group.comm = None
        for _ in range(depth):
            chain = [chain]
        del chain
    assert records(recorder)["context"].tolist() == [4, 0] * depths


def test_another_communicator_beside_the_old_one_is_found_once_the_recorder_forgets(recorder: _core.Recorder) -> None:
    call, group = _core.Wrapper(Group.reduce, recorder, "all_reduce", 8, "in_place"), Switched()
    recorder.set_sources(((4, None, "comm.disabled", 0),))
    call(group, TENSOR)
    kept, group.comm = group.comm, Group()
    recorder.forget()
    call(group, TENSOR)
    group.comm = None
    del kept
    recorder.forget()
    call(group, TENSOR)
    assert records(recorder)["context"].tolist() == [4, 0, 0]


def test_calls_are_counted_by_the_kind_that_they_were_whatever_came_before(recorder: _core.Recorder) -> None:
    """What is expected stays the same, and what runs does not."""
    inner = _core.Wrapper(Group.reduce, recorder, path=1, unless="disabled")
    call = _core.Wrapper(lambda self, tensor: inner(self, tensor), recorder, "all_reduce", 8, "out_of_place")
    recorder.set_expect(lambda *key: 8)
    group = Group()
    for i in range(60):
        group.disabled = bool(i % 3)
        call(group, TENSOR)
    with Ring.open(recorder.path) as ring:
        kinds = kinds_of(ring.tables())
    assert sorted((kind.calls, kind.is_alarm) for kind in kinds) == [(20, True), (40, False)]
    assert recorder.counts()["alarms"] == 20 and recorder.counts()["asked"] == 1
    assert [alarm[4] for alarm in recorder.alarms()] == [20]
