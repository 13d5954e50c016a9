"""One good call and one bad call of every public function of `_core`, for the tests of its memory: failed allocations and leaks.

Called by test_binary.py and isolated/test_leaks.py. Invariant: `test_every_public_function_is_in_the_table` fails when the module
has a name that is missing here.
"""

from __future__ import annotations

from collections.abc import Callable

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
