"""Parts of the hook by themselves: what is not wrapped, captures of torch's graphs, forks, and what is told of an alarm.

Invariant: no SGLang and no torch; what they would bring is made here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sglang_probe import _core
from sglang_probe._record.ring import Ring
from sglang_probe.hook import session
from sglang_probe.hook.expected import Expected
from sglang_probe.hook.graphs import Captures
from sglang_probe.hook.groups import Groups
from sglang_probe.hook.patches import Patches
from sglang_probe.hook.targets import Target
from sglang_probe.hook.telling import Findings
from sglang_probe.hook.watching import Watch
from sglang_probe.hook.wrapping import Wrapping

PATH = {name: i for i, (name, _) in enumerate(_core.PATHS)}


class Parts:
    def __init__(self, folder: Path) -> None:
        self.recorder = _core.Recorder(str(folder / "1.1.ring"), slots=64, graphs=8, kinds=64)
        self.patches, self.findings, self.expected = Patches(), Findings(), Expected(None)
        self.wrapping = Wrapping(self.recorder, None, self.patches, self.findings)
        self.captures = Captures(self.recorder, self.expected, self.patches, self.findings)
        self.watch = Watch(self.recorder, self.expected, Groups(self.recorder, self.expected, self.patches), self.findings)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.patches.undo()
    made.recorder.close()


# ---- what is not wrapped ----


class Kind:
    @staticmethod
    def still(tensor: Any) -> Any:
        return tensor

    @classmethod
    def of_class(cls, tensor: Any) -> Any:
        return cls, tensor

    @property
    def made(self) -> int:
        return 1

    def plain(self, tensor: Any) -> Any:
        return tensor


def test_what_is_no_plain_method_is_left_as_it_is_and_told(parts: Parts) -> None:
    module = ModuleType("sglang.srt.made")
    module.Kind = Kind  # type: ignore[attr-defined] # a module of SGLang's
    before = dict(vars(Kind))
    names = ("still", "of_class", "made", "plain")
    parts.wrapping._module([Target(f"made:Kind.{name}", entry="in_place") for name in names], module)
    assert {name: vars(Kind)[name] is before[name] for name in names} == {
        "still": True,
        "of_class": True,
        "made": True,
        "plain": False,
    }
    assert (Kind().still(5), Kind().of_class(5), Kind().made, Kind().plain(5)) == (5, (Kind, 5), 1, 5)
    told = [finding.text for finding in parts.findings.all()]
    assert len(told) == 3
    assert [word for word in ("staticmethod", "classmethod", "property") if any(word in text for text in told)] == [
        "staticmethod",
        "classmethod",
        "property",
    ]


# ---- captures ----


class Graph:
    def capture_begin(self, pool: Any = None) -> str:
        return "begun"

    def capture_end(self) -> str:
        return "ended"

    def replay(self) -> None: ...


@pytest.fixture
def torch_graph(monkeypatch: pytest.MonkeyPatch) -> type:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=Graph)))
    return Graph


def test_a_capture_is_its_own_threads_alone(parts: Parts, torch_graph: type) -> None:
    parts.captures._methods()
    call = _core.Wrapper(id, parts.recorder, "in_place", argument=0, group="tp:0")
    parts.recorder.start()
    graph = torch_graph()
    assert graph.capture_begin(pool=None) == "begun"
    call([1])
    other = threading.Thread(target=call, args=([1],))
    other.start()
    other.join()
    assert parts.recorder.context == 0
    assert graph.capture_end() == "ended"
    call([1])
    with Ring(parts.recorder.path) as ring:
        phases = [_core.PHASES[one["phase"]][0] for one in ring.records().records]
    assert phases == ["captured", "eager", "eager"]


def test_a_flag_of_sglangs_that_fails_ends_no_capture(parts: Parts, torch_graph: type, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> bool:
        raise RuntimeError("a module that is half imported")

    monkeypatch.setattr("sglang_probe.hook.graphs.is_piecewise", fails)
    parts.captures._methods()
    graph = torch_graph()
    graph.capture_begin()
    assert graph.capture_end() == "ended"


# ---- forks ----


class Live(SimpleNamespace):
    """A group; it can be held weakly."""


def exit_of(work: Callable[[], object]) -> int:
    """Of a child of a fork that does this; a signal ends it where it waits for ever."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_waits_for_no_lock_that_was_held_when_it_was_forked(parts: Parts) -> None:
    locks = (parts.expected._lock, parts.captures._lock, parts.findings._lock, parts.watch._lock, session._LOCK)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.__enter__()
        held.set()
        done.wait()
        for lock in locks:
            lock.__exit__(None, None, None)

    def works() -> None:
        parts.expected.add(Live(unique_name="tp:0"))
        parts.captures.left(Live(unique_name="tp:0"))
        assert parts.findings.tell("aside", "fork", "told")
        parts.watch.look(last=True)
        assert session.path() == ""
        with session._LOCK, session._LOCK:
            pass

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        assert exit_of(works) == 0
    finally:
        done.set()
        holder.join()


def test_a_child_tells_nothing_of_its_parents_ring(parts: Parts) -> None:
    parts.recorder.put("tp:0", "in_place", PATH["custom"], 512, 0, expected=PATH["pynccl_in_place"])

    def looks() -> None:
        parts.watch.look(last=True)
        assert parts.findings.all() == ()

    assert exit_of(looks) == 0
    parts.watch.look(last=True)
    assert len(parts.findings.all()) == 1


# ---- what is told of an alarm ----


def test_an_alarms_example_is_the_last_call_of_its_own_kind(parts: Parts) -> None:
    def put(group: str, entry: str, nbytes: int, path: str = "custom", expected: str = "pynccl_in_place") -> None:
        parts.recorder.put(group, entry, PATH[path], nbytes, 0, expected=PATH[expected])

    put("tp:0", "in_place", 512)
    put("tp:0", "in_place", 1024)
    put("pp:0", "in_place", 2048)
    put("tp:0", "out_place", 4096)
    put("tp:0", "in_place", 8192, "quick")
    put("tp:0", "in_place", 16384, "custom", "quick")
    put("tp:0", "in_place", 32768, "custom", "custom")
    parts.watch.look()
    texts = {finding.about: finding.text for finding in parts.findings.all()}
    assert len(texts) == 5
    (text,) = (text for about, text in texts.items() if about == "tp:0 in_place custom pynccl_in_place")
    assert "2 calls so far, for instance 1,024 bytes bf16" in text


# ---- what earlier processes left ----


def test_beginning_sweeps_what_ended_processes_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("SGLANG_PROBE_DIR", str(tmp_path))
    for n in range(1, 71):
        (tmp_path / f"{os.getpid()}.{n}.ring").touch()
        os.utime(tmp_path / f"{os.getpid()}.{n}.ring", ns=(n, n))
    kind = type("GroupCoordinator", (), {name: (lambda self: None) for name in ("all_reduce", "graph_capture")})

    def stops(self: Any, *_: object) -> None:
        raise RuntimeError("no further")

    monkeypatch.setattr(session, "_coordinator", lambda *_: kind)
    monkeypatch.setattr(session.Session, "_wrap", stops)
    with pytest.raises(RuntimeError, match="no further"):
        session.Session(ModuleType("state"))
    assert sorted(int(path.name.split(".")[1]) for path in tmp_path.iterdir()) == list(range(7, 71))
