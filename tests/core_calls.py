"""One good call and one bad call of every public function of `_core`, for the tests of its memory: failed allocations and leaks.

Called by test_binary.py and isolated/test_leaks.py. Invariant: `test_every_public_function_is_in_the_table` fails when the module
has a name that is missing here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hook_calls
import numpy as np

from sglang_probe import _core, _types

FACTS = tuple(default for _, default, _ in _core.FACTS)
CALL = (43008, *(default for _, default, _ in _core.CALL_FACTS))
CASE = (len(_core.releases()) - 1, FACTS, CALL, 3)
TABLE = _core.walk(0).tobytes()
SIZES = np.arange(1, 5000, dtype=np.int64)
ROUTER = _core.Router(*CASE)
MEMBERS = tuple(_types.Path(name) for name, _ in _core.PATHS)
WORD = _core.state_word(7777)
REGION = bytes([*([1] * 8), 15, 1, 1, 15, 7, 3, 3, 1, 3, 1, 1])  # 385 states: values of each axis, world size 1, above 1
LAST = len(_core.rulesets()) - 1

Thunk = Callable[[], object]

# A group of one rank in this process. The facts that it is given say 8 ranks, so that a route is found and a path runs.
_ARENA = 4 << 20
_BUILT = (FACTS, len(_core.releases()) - 1, FACTS, 0, 0, 0, 0, None)
_IN_PLACE = (*_BUILT[:4], 1, 0, 0, None)  # custom is switched off: torch_distributed


class Alone(_core.Coordinator):
    """A Coordinator whose decisions are made by nobody: what calls back is all that is wanted."""

    def _decide(self, settings: object, key: object) -> object:
        return settings, key


class Bare:
    """A tensor by the slow way."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        return TENSOR.__dlpack__(**kwargs)


class InPython:
    """A path that stands in Python."""

    def supports(self, nbytes: int, dtype: str) -> str:
        return ""

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        pass


def new_alone() -> Alone:
    board = _core.board_create(1, _ARENA)
    try:
        c = Alone(None, board, 0, 0, 5.0, 1 << 16)
    finally:
        os.close(board)
    try:
        c.configure(*_BUILT)
    except BaseException:
        c.close()
        raise
    return c


def _closed() -> None:
    new_alone().close()


def _reduce() -> None:
    """A new tensor, in place, the slow way, a dry run, a clone, an exception, a path in Python; and what each result tells."""
    for settings, tensor in ((_BUILT, TENSOR), (_IN_PLACE, TENSOR), (_IN_PLACE, BARE)):
        COORDINATOR.configure(*settings)
        repr(COORDINATOR.all_reduce(tensor))
    try:
        COORDINATOR.timing = True
        COORDINATOR.all_reduce(TENSOR)
        COORDINATOR.timing = False
        COORDINATOR.register_path(8, PYTHON)
        COORDINATOR.all_reduce(TENSOR)
    finally:
        COORDINATOR.timing = False
        COORDINATOR.register_path(8, None)
        COORDINATOR.configure(*_BUILT)


def _capture() -> None:
    COORDINATOR.enter_capture()
    try:
        COORDINATOR.begin_graph()
        try:
            COORDINATOR.all_reduce(TENSOR)
        finally:
            _end().replay()
    finally:
        COORDINATOR.exit_capture()


def _end() -> _core.Graph:
    try:
        return COORDINATOR.end_graph()
    except MemoryError:  # no room for the Graph: the capture is open until there is
        COORDINATOR.end_graph()
        raise


TENSOR = np.ones(1024, np.float32)
READ_ONLY = np.ones(4, np.float32)
READ_ONLY.flags.writeable = False
BARE, PYTHON = Bare(), InPython()
COORDINATOR = new_alone()
REDUCED = COORDINATOR.all_reduce(TENSOR)
COORDINATOR.begin_graph()
GRAPH = COORDINATOR.end_graph()
BUFFER = COORDINATOR.buffer(64)
BOARD_FD = _core.board_create(1, _ARENA)
GONE = _core.Board(_core.board_create(1, _ARENA))  # nobody else's: its rank has failed from the first call on
BOARD = _core.Board(BOARD_FD)
_OF_REDUCED = ("tensor", "path", "rule", "kernel", "reduces", "returns_new", "host_us", "device_us", "seq", "decision")


def _attributes(owner: str, of: object, names: tuple[str, ...]) -> dict[str, Thunk]:
    return {f"{owner}.{name}": lambda name=name: getattr(of, name) for name in names}  # type: ignore[misc] # bound early


def _read_only(owner: str, of: object, names: tuple[str, ...]) -> dict[str, Thunk]:
    return {f"{owner}.{name}": lambda name=name: setattr(of, name, 1) for name in names}  # type: ignore[misc] # bound early


def _enqueue() -> None:
    """A new tensor, in place, a path in Python; stamped; captured."""
    for settings, tensor in ((_BUILT, TENSOR), (_IN_PLACE, TENSOR), (_IN_PLACE, BARE)):
        COORDINATOR.configure(*settings)
        COORDINATOR.enqueue(tensor, calls=2, compute_us=0.5, stamp=1)
    try:
        COORDINATOR.register_path(8, PYTHON)
        COORDINATOR.enqueue(TENSOR, stamp=1)
    finally:
        COORDINATOR.register_path(8, None)
        COORDINATOR.configure(*_BUILT)
    COORDINATOR.begin_graph()
    try:
        COORDINATOR.enqueue(TENSOR, 2, 0.5, 1)
    finally:
        _end().replay()


def _marked() -> float:
    COORDINATOR.mark(0)
    COORDINATOR.mark(1, stream=0)
    return COORDINATOR.elapsed()


def _held() -> None:
    try:
        COORDINATOR.hold()
    finally:
        COORDINATOR.release()


GOOD: dict[str, Thunk] = {
    "register_paths": lambda: _core.register_paths(MEMBERS),
    "path": lambda: _core.path(0, WORD),
    "decide": lambda: _core.decide(0, WORD),
    "decide_derived": lambda: _core.decide_derived(TABLE, WORD),
    "explain": lambda: _core.explain(len(_core.rulesets()) - 1, WORD, 1 << 9),
    "walk": lambda: _core.walk(0),
    "state_count": lambda: _core.state_count(0),
    "state_word": lambda: _core.state_word(12288),
    "state_of": lambda: _core.state_of(WORD),
    "rulesets": lambda: _core.rulesets(),
    "releases": lambda: _core.releases(),
    "gate": lambda: _core.gate(CASE[0], 0, FACTS, CALL, 3),
    "route": lambda: (_core.route(*CASE), _core.route(*CASE, TABLE)),
    "bands": lambda: _core.bands(*CASE),
    "Router": lambda: (_core.Router(*CASE), _core.Router(*CASE, TABLE)),
    "Router.__call__": lambda: (ROUTER(43008), ROUTER(SIZES)),
    "Router.edges": lambda: ROUTER.edges,
    "tally": lambda: (_core.tally(LAST, REGION), _core.tally(0, REGION, TABLE)),
    "reaches": lambda: (_core.reaches(LAST, REGION, 1, 0), _core.reaches(0, REGION, 0, 1, TABLE)),
    "region_count": lambda: _core.region_count(REGION),
    "changes": lambda: (_core.changes(0, LAST, REGION), _core.changes(0, LAST, REGION, TABLE, None)),
    "classes": lambda: (_core.classes(*CASE[:3], (0, 3), 3, 1), _core.classes(*CASE[:3], (0,), 1, 1, TABLE)),
    "ProbeError": lambda: str(_core.ProbeError("text")),
    "ProbeUnavailable": lambda: str(_core.ProbeUnavailable("text")),
    "board_create": lambda: os.close(_core.board_create(2, _ARENA)),
    "Board": lambda: _core.Board(BOARD_FD),
    "Board.fail": lambda: GONE.fail(0, "gone"),
    "Board.check": lambda: BOARD.check(),
    "Board.describe": lambda: BOARD.describe(),
    **_attributes("Board", BOARD, ("size",)),
    "Buffer": lambda: (memoryview(BUFFER), BUFFER.__dlpack__(), np.from_dlpack(BUFFER), BUFFER.__dlpack_device__(), len(BUFFER)),
    **_attributes("Buffer", BUFFER, ("address",)),
    "Graph": _capture,
    "Graph.replay": lambda: (GRAPH.replay(), GRAPH.replay(3, True)),
    "Reduced": _reduce,
    **_attributes("Reduced", REDUCED, _OF_REDUCED),
    "Coordinator": _closed,
    "Coordinator.all_reduce": lambda: COORDINATOR.all_reduce(TENSOR),
    "Coordinator.plan": lambda: (COORDINATOR.plan(TENSOR), COORDINATOR.plan(BARE)),
    "Coordinator.configure": lambda: COORDINATOR.configure(*_BUILT),
    "Coordinator.register_path": lambda: (COORDINATOR.register_path(3, PYTHON), COORDINATOR.register_path(3, None)),
    "Coordinator.enter_capture": lambda: (COORDINATOR.enter_capture(), COORDINATOR.exit_capture()),
    "Coordinator.exit_capture": lambda: COORDINATOR.exit_capture(),
    "Coordinator.begin_graph": lambda: (COORDINATOR.begin_graph(), _end()),
    "Coordinator.end_graph": lambda: (COORDINATOR.begin_graph(), _end()),
    "Coordinator.buffer": lambda: COORDINATOR.buffer(4096),
    "Coordinator.wait": lambda: COORDINATOR.wait(),
    "Coordinator.barrier": lambda: COORDINATOR.barrier(),
    "Coordinator.runs": lambda: COORDINATOR.runs(),
    "Coordinator.supports": lambda: (COORDINATOR.supports(1, 1, 0, 4096), COORDINATOR.supports(10, 0, 0, 4096)),
    "Coordinator.ran": lambda: COORDINATOR.ran(1),
    "Coordinator.cost": lambda: COORDINATOR.cost(TENSOR, 2),
    "Coordinator.enqueue": _enqueue,
    "Coordinator.spin": lambda: COORDINATOR.spin(0.5),
    "Coordinator.hold": _held,
    "Coordinator.release": lambda: COORDINATOR.release(),
    "Coordinator.mark": _marked,
    "Coordinator.elapsed": _marked,
    "Coordinator.stamp": lambda: COORDINATOR.stamp(16384, stream=0),
    "Coordinator.stamps": lambda: COORDINATOR.stamps(1, 16384),
    "Coordinator.clear_stamps": lambda: COORDINATOR.clear_stamps(first=16384, count=1),
    "Coordinator.clock": lambda: COORDINATOR.clock(),
    "Coordinator.comm": lambda: COORDINATOR.comm(),
    "Coordinator.describe": lambda: COORDINATOR.describe(),
    "Coordinator.close": _closed,
    **_attributes("Coordinator", COORDINATOR, ("rank", "world_size", "device", "timing", "timeout_s", "seq")),
    **hook_calls.GOOD,
}

# Each must raise: the way out of an error is where references are forgotten.
_SHORT = TABLE[:-1]
BAD: dict[str, Thunk] = {
    "register_paths": lambda: _core.register_paths(MEMBERS[:-1]),
    "path": lambda: _core.path(10**6, WORD),
    "decide": lambda: _core.decide(0, -1),
    "decide_derived": lambda: _core.decide_derived(_SHORT, WORD),
    "explain": lambda: _core.explain(0, WORD, -1),
    "walk": lambda: _core.walk(-1),
    "state_count": lambda: _core.state_count(10**6),
    "state_word": lambda: _core.state_word(10**6),
    "state_of": lambda: _core.state_of(1 << 64),
    "rulesets": lambda: _core.rulesets(1),  # type: ignore[call-arg] # bad on purpose
    "releases": lambda: _core.releases(1),  # type: ignore[call-arg] # bad on purpose
    "gate": lambda: _core.gate(CASE[0], 10**6, FACTS, CALL, 3),
    "route": lambda: _core.route(*CASE, _SHORT),
    "bands": lambda: _core.bands(CASE[0], FACTS, CALL, 1 << 20),
    "Router": lambda: _core.Router(CASE[0], FACTS[:-1], CALL, 3),
    "Router.__call__": lambda: ROUTER(np.array([16, -16])),
    "Router.edges": lambda: setattr(ROUTER, "edges", ()),
    "tally": lambda: _core.tally(LAST, REGION, _SHORT),
    "reaches": lambda: _core.reaches(0, REGION, 10**6, 0),
    "region_count": lambda: _core.region_count(REGION[:-1]),
    "changes": lambda: _core.changes(0, LAST, REGION, TABLE, _SHORT),
    "classes": lambda: _core.classes(*CASE[:3], (0, 1 << 40), 1, 1),
    "ProbeError": lambda: _core.ProbeError(text=1),  # type: ignore[call-arg] # bad on purpose
    "ProbeUnavailable": lambda: _core.ProbeUnavailable(text=1),  # type: ignore[call-arg] # bad on purpose
    "board_create": lambda: _core.board_create(0, _ARENA),
    "Board": lambda: _core.Board(BOARD_FD, 7),
    "Board.fail": lambda: BOARD.fail(3, "no such rank"),
    "Board.check": lambda: BOARD.check(1),  # type: ignore[call-arg] # bad on purpose
    "Board.describe": lambda: BOARD.describe(1),  # type: ignore[call-arg] # bad on purpose
    **_read_only("Board", BOARD, ("size",)),
    "Buffer": lambda: _core.Buffer(),
    **_read_only("Buffer", BUFFER, ("address",)),
    "Graph": lambda: _core.Graph(),
    "Graph.replay": lambda: GRAPH.replay("often"),  # type: ignore[arg-type] # bad on purpose
    "Reduced": lambda: _core.Reduced(),
    **_read_only("Reduced", REDUCED, _OF_REDUCED),
    "Coordinator": lambda: Alone(None, BOARD_FD, 7),
    "Coordinator.all_reduce": lambda: COORDINATOR.all_reduce(READ_ONLY),
    "Coordinator.plan": lambda: COORDINATOR.plan("no tensor"),
    "Coordinator.configure": lambda: COORDINATOR.configure(*_BUILT[:-1], _SHORT),
    "Coordinator.register_path": lambda: COORDINATOR.register_path(99, PYTHON),
    "Coordinator.enter_capture": lambda: COORDINATOR.enter_capture(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.exit_capture": lambda: COORDINATOR.exit_capture(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.begin_graph": lambda: COORDINATOR.begin_graph("x"),  # type: ignore[arg-type] # bad on purpose
    "Coordinator.end_graph": lambda: COORDINATOR.end_graph("x"),  # type: ignore[arg-type] # bad on purpose
    "Coordinator.buffer": lambda: COORDINATOR.buffer(0),
    "Coordinator.wait": lambda: COORDINATOR.wait("x"),  # type: ignore[arg-type] # bad on purpose
    "Coordinator.barrier": lambda: COORDINATOR.barrier(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.runs": lambda: COORDINATOR.runs(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.supports": lambda: COORDINATOR.supports(1, 1, 0, "x"),  # type: ignore[arg-type] # bad on purpose
    "Coordinator.ran": lambda: COORDINATOR.ran(99),
    "Coordinator.cost": lambda: COORDINATOR.cost(TENSOR, 0),
    "Coordinator.enqueue": lambda: COORDINATOR.enqueue(READ_ONLY, 2, 0.5, 1),
    "Coordinator.spin": lambda: COORDINATOR.spin(-1.0),
    "Coordinator.hold": lambda: COORDINATOR.hold("x"),  # type: ignore[arg-type] # bad on purpose
    "Coordinator.release": lambda: COORDINATOR.release(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.mark": lambda: COORDINATOR.mark(2),
    "Coordinator.elapsed": lambda: COORDINATOR.elapsed(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.stamp": lambda: COORDINATOR.stamp(0),
    "Coordinator.stamps": lambda: COORDINATOR.stamps(16384, 2),
    "Coordinator.clear_stamps": lambda: COORDINATOR.clear_stamps(1, 0),
    "Coordinator.clock": lambda: COORDINATOR.clock(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.comm": lambda: COORDINATOR.comm(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.describe": lambda: COORDINATOR.describe(1),  # type: ignore[call-arg] # bad on purpose
    "Coordinator.close": lambda: COORDINATOR.close(1),  # type: ignore[call-arg] # bad on purpose
    **_read_only("Coordinator", COORDINATOR, ("rank", "world_size", "device", "timing", "seq")),
    "Coordinator.timeout_s": lambda: setattr(COORDINATOR, "timeout_s", "soon"),
    **hook_calls.BAD,
}


def public_functions() -> set[str]:
    """Names that Python code can call: functions of the module, its types, and the types' members."""
    names = set()
    for name, value in vars(_core).items():
        if name.startswith("_") or isinstance(value, tuple):
            continue
        names.add(name)
        if isinstance(value, type):
            names |= {f"{name}.{member}" for member in vars(value) if not member.startswith("_") or member == "__call__"}
    return names
