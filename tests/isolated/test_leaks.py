"""Leaks: every public function of `_core`, called and failed many times, leaves no block and no reference behind.

Counted in a process of its own: nothing else may run beside it. Invariant: counts, not times or resident
sizes, so a busy machine cannot fail it; a function that is missing from the table fails it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from core_calls import BAD, CALL, FACTS, GOOD, MEMBERS, ROUTER, SIZES, TABLE, public_functions

TIMES = 400
TRIES = 30  # the first quiet one ends them: caches settle, a leak never does
TRACED = 40  # tracing every allocation is slow
SLACK = 8  # bytes a call while tracing: what the interpreter itself keeps between two counts
LEAK = TIMES // 10  # blocks: one that stays in every tenth call is a leak, a few in hundreds are the interpreter's caches


def _grows(thunk: Callable[[], object], times: int) -> tuple[int, int]:
    """Blocks of the small allocator, and bytes of everything Python allocates, that stay after calling it `times` times."""
    gc.collect()
    blocks, nbytes = sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0]
    for _ in range(times):
        with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
            thunk()
    gc.collect()
    return sys.getallocatedblocks() - blocks, tracemalloc.get_traced_memory()[0] - nbytes


def _leaks(thunk: Callable[[], object]) -> bool:
    """A real leak grows with every try; noise does not. Large objects (a Router) are no blocks, so their bytes are traced too."""
    _grows(thunk, 20)
    if all(_grows(thunk, TIMES)[0] > LEAK for _ in range(TRIES)):
        return True
    tracemalloc.start()
    try:
        _grows(thunk, 10)
        return all(_grows(thunk, TRACED)[1] > SLACK * TRACED for _ in range(TRIES))
    finally:
        tracemalloc.stop()


def test_every_public_function_is_tested_for_leaks() -> None:
    assert public_functions() == set(GOOD) == set(BAD)


def _call(times: int) -> None:
    for thunk in [*GOOD.values(), *BAD.values()]:
        for _ in range(times):
            with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
                thunk()
    gc.collect()


def _kept() -> list[str]:
    """Shared objects whose reference count is another one after every function was called and failed again and again."""
    shared: list[object] = [FACTS, CALL, TABLE, SIZES, ROUTER, type(ROUTER), MEMBERS, MEMBERS[1], MEMBERS[8]]
    _call(1)  # what is registered once is held once
    before = [sys.getrefcount(item) for item in shared]
    _call(50)
    after = [sys.getrefcount(item) for item in shared]  # counted as before, by a loop of the same form
    return [f"{repr(item)[:60]}: {a} to {b}" for item, a, b in zip(shared, before, after, strict=True) if a != b]


def report() -> dict[str, list[str]]:
    """What leaks: run in a process of its own, where nothing else keeps anything, and a collection has little to look at."""
    tables = {"GOOD": GOOD, "BAD": BAD}
    found = {kind: [name for name, thunk in table.items() if _leaks(thunk)] for kind, table in tables.items()}
    return {**found, "KEPT": _kept(), "SEEN": [name for name, thunk in _planted().items() if _leaks(thunk)]}


def _planted() -> dict[str, Callable[[], object]]:
    kept: list[object] = []
    return {"one block a call": lambda: kept.append(object()), "one large object a call": lambda: kept.append(bytearray(4096))}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    here = Path(__file__).resolve()
    paths = os.pathsep.join([str(here.parent), str(here.parents[1]), *filter(None, sys.path)])
    code = "import json, test_leaks; print(json.dumps(test_leaks.report()))"
    done = subprocess.run(  # from this folder: where the tests run from may hold sources that were never built
        [sys.executable, "-c", code],
        cwd=here.parent,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_long_running_worker_does_not_grow(name: str, found: dict[str, list[str]]) -> None:
    assert name not in found["GOOD"]


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_worker_that_is_asked_nonsense_does_not_grow(name: str, found: dict[str, list[str]]) -> None:
    assert name not in found["BAD"]


def test_shared_objects_keep_their_reference_count(found: dict[str, list[str]]) -> None:
    assert not found["KEPT"]


def test_this_test_sees_leaks_of_one_block_and_of_one_large_object_a_call(found: dict[str, list[str]]) -> None:
    assert found["SEEN"] == list(_planted())
