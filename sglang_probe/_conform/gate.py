"""One gate of ours beside SGLang's communicator, case by case. Called by others.py and the comparisons beside it.

Invariant: a case names only the facts that differ from the defaults of `_core`; SGLang's stand-ins are set from the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import _core
from .._source.lift import LiftError
from .types import Grouping, Result

COMMUNICATORS = "srt/distributed/device_communicators/"
DTYPES = tuple(name for name, _ in _core.DTYPES)
BYTES = dict(_core.DTYPES)
FACTS = {name: default for name, default, _ in _core.FACTS}
CALL_FACTS = {name: default for name, default, _ in _core.CALL_FACTS}
DEVICES = {"cuda": 0, "hip": 1, "musa": 2, "cpu": 3}
_STATES = _core.STATES
_KERNELS = tuple(row[0] for row in _core.KERNELS)
_EXCEPTIONS = tuple(row[0] for row in _core.EXCEPTIONS)
_STOPS = tuple(row[0] for row in _core.STOPS)
_CONTEXTS = tuple(row[0] for row in _core.CONTEXTS)
_GATES = _core.GATES
MIB = 1 << 20


class Answer(NamedTuple):
    """A gate's answer, in names."""

    state: str
    kernel: str
    exception: str
    stops: tuple[str, ...]
    limit: int
    returns_new: bool
    assumed: bool


@dataclass(frozen=True)
class Case:
    """One tensor in one group: facts and call facts that differ from the defaults, and the contexts that hold."""

    nbytes: int
    dtype: str = "bf16"
    facts: Mapping[str, int] = field(default_factory=dict)
    call: Mapping[str, int] = field(default_factory=dict)
    context: tuple[str, ...] = ()

    def fact(self, name: str) -> int:
        return self.facts.get(name, FACTS[name])

    def asked(self, name: str) -> int:
        return self.call.get(name, CALL_FACTS[name])

    def __str__(self) -> str:
        words = [f"{self.nbytes} B {self.dtype}", *(f"{k}={v}" for k, v in {**self.facts, **self.call}.items()), *self.context]
        return " ".join(words)


class Theirs(NamedTuple):
    """What SGLang's code did. `run` is the exception of running it, "" where it runs, None where that was not tried."""

    state: str
    exception: str = ""
    kernel: str | None = None
    run: str | None = None
    returns_new: bool | None = None


class Gate:
    """One gate in one release."""

    def __init__(self, release: str, gate: str) -> None:
        rows = {row[0]: i for i, row in enumerate(_core.releases())}
        if release not in rows:
            raise LiftError(f"release {release!r} is not in the core's list")
        self._release, self._gate = rows[release], _GATES.index(gate)

    def ask(self, case: Case) -> Answer:
        facts = tuple({**FACTS, **case.facts}[name] for name in FACTS)
        call_facts = {**CALL_FACTS, **case.call, "dtype": DTYPES.index(case.dtype)}
        call = (case.nbytes, *(call_facts[name] for name in CALL_FACTS))
        context = sum(1 << _CONTEXTS.index(name) for name in case.context)
        state, kernel, _, exception, stops, limit, new, _, assumed = _core.gate(self._release, self._gate, facts, call, context)
        names = tuple(name for i, name in enumerate(_STOPS) if stops >> i & 1)
        return Answer(_STATES[state], _KERNELS[kernel], _EXCEPTIONS[exception], names, limit, bool(new), bool(assumed))


def observe(ask: Callable[[], Theirs]) -> Theirs:
    """What asking ended in; an exception of SGLang's is an answer, a gap of the stand-ins is not."""
    try:
        return ask()
    except LiftError:
        raise
    except Exception as error:
        return Theirs("raises", type(error).__name__)


def attempt(run: Callable[[], object]) -> str:
    """The exception that running ends in, or ""."""
    try:
        run()
    except LiftError:
        raise
    except Exception as error:
        return type(error).__name__
    return ""


def predicate_state(disabled: bool, ask: Callable[[], Any]) -> str:
    """The state of a communicator whose predicate is asked only where it is not disabled, as the dispatch does."""
    if disabled:
        return "disabled"
    return "accepts" if ask() else "declines"


def compare(result: Result, gate: Gate, cases: Iterable[Case], theirs: Callable[[Case], Theirs]) -> None:
    """Every case against SGLang's code: state, exception, kernel, whether running raises, whether the result is new."""
    group = Grouping(result, FACTS)
    for case in cases:
        seen = observe(lambda case=case: theirs(case))  # type: ignore[misc] # the default binds the loop's case
        ours = gate.ask(case)
        point = {"nbytes": case.nbytes, "dtype": case.dtype, "context": "+".join(case.context) or "eager", **case.call}
        group.check(
            "state",
            case.facts,
            point,
            (seen.state, seen.exception if seen.state == "raises" else ""),
            (ours.state, ours.exception if ours.state == "raises" else ""),
        )
        if seen.kernel is not None and seen.state == "accepts":
            group.check("kernel", case.facts, point, seen.kernel, ours.kernel)
        if seen.run is not None:
            group.check("running", case.facts, point, seen.run, ours.exception)
        if seen.returns_new is not None:
            group.check("returns a new tensor", case.facts, point, seen.returns_new, ours.returns_new)
    group.close()


def around(*sizes: int, step: int = 16) -> list[int]:
    """Each size, and one step to either side; no size below 1."""
    found = {size + delta for size in sizes for delta in (-step, 0, step)}
    return sorted(size for size in found if size > 0)
