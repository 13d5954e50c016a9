"""Leaks: every public function of `_core`, called and failed many times, leaves no block and no reference behind.

Alone in its folder because it counts the whole process: nothing else may run beside it. Invariant: counts, not times or resident
sizes, so a busy machine cannot fail it; a function that is missing from the table fails it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from core_calls import BAD, CALL, FACTS, GOOD, MEMBERS, ROUTER, SIZES, TABLE, public_functions

TIMES = 400
TRIES = 5
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


def _leaks_alone(table: str, name: str) -> bool:
    """The same in a process of its own: what hundreds of tests before this one left behind (caches, other threads) does not count there."""
    here = Path(__file__).resolve()
    code = f"import test_leaks as t; raise SystemExit(t._leaks(t.{table}[{name!r}]))"
    paths = os.pathsep.join([str(here.parent), str(here.parents[1]), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, timeout=300)
    assert done.returncode in (0, 1), f"the check of {name} ended with status {done.returncode}"
    return done.returncode == 1


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_long_running_worker_does_not_grow(name: str) -> None:
    assert not (_leaks(GOOD[name]) and _leaks_alone("GOOD", name))


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_worker_that_is_asked_nonsense_does_not_grow(name: str) -> None:
    assert not (_leaks(BAD[name]) and _leaks_alone("BAD", name))


def test_shared_objects_keep_their_reference_count() -> None:
    shared: list[object] = [FACTS, CALL, TABLE, SIZES, ROUTER, type(ROUTER), MEMBERS, MEMBERS[1], MEMBERS[8]]
    before = [sys.getrefcount(item) for item in shared]
    for thunk in [*GOOD.values(), *BAD.values()]:
        _grows(thunk, 50)
    assert [sys.getrefcount(item) for item in shared] == before


def test_this_test_sees_a_leak_of_one_block_a_call() -> None:
    kept: list[object] = []
    assert _leaks(lambda: kept.append(object()))


def test_this_test_sees_a_leak_in_a_process_of_its_own_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins\nkept = []\nbuiltins.leak_of_a_test = lambda: kept.append(object())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _leaks_alone("__builtins__", "leak_of_a_test")
    assert not _leaks_alone("GOOD", "Reduced")


def test_this_test_sees_a_leak_of_one_large_object_a_call() -> None:
    kept: list[object] = []
    assert _leaks(lambda: kept.append(bytearray(4096)))
