"""Wrapped calls under load: many threads, recording switched on and off meanwhile, and no allocation of ours once everything is known.

Invariant: counts, never times; what runs beside each other is asserted to have run.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_probe import _core
from sglang_probe._record.ring import Ring

ELSEWHERE = Path(_core.__file__).parents[1]
TENSOR = np.ones((3, 8), np.float32)


class Group:
    def __init__(self, name: str) -> None:
        self.unique_name = name

    def outer(self, tensor: Any, depth: int) -> int:
        return self.inner(tensor, depth)

    def inner(self, tensor: Any, depth: int) -> int:
        if depth == 2:
            raise ValueError("the original's own")
        return depth


def test_threads_that_call_while_others_start_and_stop_get_what_the_original_gives(tmp_path: Path) -> None:
    recorder = _core.Recorder(tmp_path / "a.ring", slots=256, graphs=1, kinds=256)

    class Hooked(Group):
        outer = _core.Wrapper(Group.outer, recorder, "outer", op="in_place")
        inner = _core.Wrapper(Group.inner, recorder, "inner", 1)

    calls, switches, each = 16, 2, 3000
    wrong: list[object] = []
    made, switched = [0] * calls, [0] * switches
    done = threading.Event()
    begin = threading.Barrier(calls + switches + 2)

    def call(number: int) -> None:
        group = Hooked(f"group {number % 4}")
        begin.wait()
        n = 0
        while n < each or min(switched) < 10:  # however late the others get to run
            n += 1
            made[number] = n
            try:
                if group.outer(TENSOR, n % 3) != n % 3:
                    wrong.append(n)
            except ValueError:
                if n % 3 != 2:
                    wrong.append(n)

    def switch(number: int) -> None:
        begin.wait()
        n = 0
        while not done.is_set():
            before = sum(made)
            while sum(made) < before + 40 and not done.wait(0.0001):
                pass  # calls of both kinds come between two switches
            n += 1
            (recorder.start, recorder.stop)[n % 2]()
            switched[number] = n
            if n % 50 == 0:
                recorder.set_expect((lambda *key: 1) if n % 100 else None)
                recorder.set_sources(((4, {"on": n % 3 == 0}, "on", 0),) if n % 100 else ())
                recorder.site_every, recorder.host_time = n % 3, bool(n % 2)
                recorder.forget()

    def read() -> None:
        begin.wait()
        since = 0
        with Ring.open(recorder.path) as ring:
            while not done.is_set():
                got = ring.records(since)
                since = got.next
                if not np.all((got.records["entry"] == 1) & (got.records["path"] != 255) & (got.records["nbytes"] == 96)):
                    wrong.append(got.records)
                ring.tables()

    threads = [threading.Thread(target=call, args=(n,)) for n in range(calls)]
    others = [threading.Thread(target=switch, args=(n,)) for n in range(switches)] + [threading.Thread(target=read)]
    for thread in [*threads, *others]:
        thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        begin.wait()
        for thread in threads:
            thread.join()
    finally:
        done.set()
        sys.setswitchinterval(interval)
    for thread in others:
        thread.join()
    counts = recorder.counts()
    with Ring.open(recorder.path) as ring:
        kinds, torn = ring.tables().kinds, ring.records(0).torn  # while they write, a slot with its writer inside counts as torn
    assert not wrong
    assert 0 < counts["head"] < sum(made) and counts["failures"] == counts["passed"] == counts["kinds_lost"] == 0
    assert int(kinds["calls"].sum()) == counts["head"] and not torn
    assert int(kinds["calls"][kinds["path"] == 10].sum()) > 0  # some of those that raise were recorded
    recorder.close(remove=True)


_STEADY = """
import operator, sys, tempfile, _testcapi
sys.path.insert(0, sys.argv[1])
from hook_calls_counted import Group, Tensor, exchange_table
from sglang_probe import _core
Tensor.__dlpack_c_exchange_api__ = exchange_table(sys.argv[2])
group, tensor, flags = Group(), Tensor(), {"_in": True}
group.off = False
with tempfile.TemporaryDirectory() as folder:
    r = _core.Recorder(folder + "/a.ring", slots=64, graphs=4, kinds=64)
    inner = _core.Wrapper(operator.is_, r, path=1, kernels=((False, "one_shot"),))
    plain = _core.Wrapper(operator.is_, r, "all_reduce", 8, "in_place")
    nested = _core.Wrapper(inner, r, "all_reduce", 8, "in_place", unless="off", keyword="tensor")
    begin, end, replay = (_core.GraphWrapper(operator.truth, r, event) for event in ("begin", "end", "replay"))
    r.start()
    r.host_time = True
    r.set_sources(((4, flags, "_in", 0), (1 << 16, None, "off", 0), (2, operator.not_, "", 1 << 20)))
    r.set_expect(lambda *key: 8)
    begin(group)
    end(group)
    def calls(times):
        for _ in times:
            plain(group, tensor)
            nested(group, tensor)
            replay(group)
    calls([None] * 500)
    r.alarms()
    before, times = r.counts(), iter([None] * 500)
    _testcapi.set_nomemory(0, 0)
    try:
        calls(times)
    finally:
        _testcapi.remove_mem_hooks()
    after = r.counts()
    print(after["head"] - before["head"], after["failures"], after["asked"] - before["asked"], after["replays_lost"])
"""


def test_a_recorded_call_allocates_nothing_once_everything_is_known(tmp_path: Path, root: Path) -> None:
    """Every allocation of Python's fails, and all is recorded all the same."""
    pytest.importorskip("_testcapi", reason="this Python comes without _testcapi, which fails allocations")
    if not (root / "tests/c/exchange_table.c").exists():
        pytest.skip("not a checkout")
    library = tmp_path / "table.so"
    command = [
        "cc",
        "-std=c11",
        "-shared",
        "-fPIC",
        f"-I{root / 'csrc'}",
        str(root / "tests/c/exchange_table.c"),
        "-o",
        str(library),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    done = subprocess.run(
        [sys.executable, "-c", _STEADY, str(root / "tests/c"), str(library)],
        capture_output=True,
        text=True,
        cwd=ELSEWHERE,
        timeout=60,
    )
    assert done.stdout.split() == ["1000", "0", "0", "0"], done.stdout + done.stderr
