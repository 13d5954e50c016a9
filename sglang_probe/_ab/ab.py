"""ab: the experiment that decides which of two is faster. Public; the command of the same name calls it.

It checks the arms, opens the file, lets experiment.py run them, and makes of what is there an AbResult. Invariant: the same arguments go on
with an unfinished file; what is given back is made of the file's runs alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._bench import options
from .._measure.format import PARTIAL
from .._measure.provenance import stamp
from .._run.toggles import seconds
from .._types import InputError
from .._verdict.units import better_of, known
from .commands import Command, CommandSide
from .compare import KINDS
from .experiment import FINAL, Budget, Experiment, StoppedBy
from .figure import figure_of
from .journal import Found, Journal
from .judged import Judged, result_of
from .order import Arm as Name
from .progress import Progress
from .result import AbResult
from .rule import rule_of
from .sides import Declared, Side
from .states import Machine
from .targets import Target, TargetSide

OUT = "ab.jsonl"
RUNS = 30
LIMIT_S = 600.0
VERSION = 1
_RUNS_MAX = 100_000

ArmLike = Command | Target | str | Sequence[str]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of an experiment; the text says what is kept and how to go on."""

    def __init__(self, text: str, result: AbResult | None = None) -> None:
        super().__init__(text)
        self.result = result
        """What was measured before it; None where nothing was begun."""


def ab(
    a: ArmLike,
    b: ArmLike,
    *,
    out: str | os.PathLike[str] = OUT,
    runs: int = RUNS,
    time_s: float | None = None,
    limit_s: float = LIMIT_S,
    unit: str | None = None,
    better: str | None = None,
    margin: float = 0.02,
    confidence: float = 0.95,
    seed: int = 0,
    warm_up: int = 1,
    failures: int = 3,
    allow: Iterable[str] = (),
    progress: bool | None = None,
) -> AbResult:
    """Runs a and b in fresh processes, interleaved in a balanced random order, until the interval decides or the budget ends.

    ``a``, ``b``: a `Command` (a text or a list is one, timed by the wall clock), or a `Target` of our own bench; both of one kind.
    ``out``: the file; runs go to ``out`` + ``.partial`` one by one, and it gets its name when nothing is left to do. Its format, line by
    line, is in ``sglang_probe/_ab/journal.py``; ``AbResult.read(out)`` reads it.

    The budget: ``runs`` of each arm at most (30), ``time_s`` seconds for this call (a run that has begun is let end), ``limit_s`` seconds
    for one run. ``warm_up``: runs of each arm that are made first and not judged (1). ``failures``: an arm's, after which it ends (3).
    The rule: ``confidence`` that FASTER, SLOWER or SAME is not wrong, all looks together; ``margin``: SAME is within it. ``unit`` of the
    figures, and whether ``higher`` or ``lower`` is ``better``; by default what the unit says. ``seed``: of the order.
    ``allow``: differences that are meant: names of variables and libraries (``"libnccl"``), or ``variables``, ``libraries``, ``cores``,
    ``governor``, ``throttle``, ``clocks``. Any other that is found and not declared by an arm makes the word UNDECIDED.
    ``progress``: a bar on stderr with the current interval; None: where a terminal or a notebook shows it.

    Returns an AbResult. Where neither its rule nor its budget ended it (failures, arms that did not run alike), the same call goes on from
    there. An interrupt raises KeyboardInterrupt with what is kept (``.result``), and the same call goes on, too.

    Raises InputError for bad values, where ``out`` exists, or where the unfinished file is of another experiment or machine;
    ProbeUnavailable where an arm cannot run here; MeasurementError where the file cannot be written, is damaged, or is being written.
    """
    asked = {name: value for name, value in locals().items() if name not in ("a", "b", "progress")}
    return run_ab(a, b, progress=progress, **asked)


def run_ab(
    a: ArmLike,
    b: ArmLike,
    *,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
    kind: str = "ab",
    **asked: Any,
) -> AbResult:
    """What ab does, with all that the command line shows. ``kind``: "noise" has another rule."""
    start = time.monotonic()
    name = options.file_name(asked.pop("out"), PARTIAL)
    if progress is not None and not isinstance(progress, bool):
        raise InputError("progress", progress, "give True, False or None")
    allow = _allowed(asked.pop("allow"))
    budget = _budget(asked)
    deadline = math.inf if asked["time_s"] is None else start + seconds("time_s", asked["time_s"])
    sides = sides_of(a, b)
    clean = _checked(asked, sides)
    plan = _plan(kind, clean, budget, sides)
    decide = rule_of(plan)
    options.check_free(name, PARTIAL)
    judged = Judged(decide, clean.unit, allow, sides["a"].declared | sides["b"].declared)
    with Machine() as machine, _journal(name, plan) as journal:
        total = 2 * (budget.blocks + budget.warm_up)
        try:
            with Progress(total, len(journal.runs), deadline, show=progress, say=say) as shown:
                experiment = Experiment(
                    sides,
                    decide,
                    journal,
                    machine,
                    shown,
                    seed=clean.seed,
                    budget=budget,
                    origin=name,
                    unit=clean.unit,
                    allow=allow,
                    deadline=deadline,
                )
                stopped_by = experiment.run()
            took = time.monotonic() - start
            result = result_of(journal.found, judged, stopped_by, experiment.stopped, journal.partial_path, took)
            if (
                result.whole and not result.refused
            ):  # what is refused may be allowed by the next call, which then needs no more runs
                result = replace(result, path=journal.end(stopped_by))
        except KeyboardInterrupt:
            raise _interrupted(journal, judged, time.monotonic() - start) from None
    return result


def read_result(path: str | os.PathLike[str], allow: Iterable[str] = ()) -> AbResult:
    """See AbResult.read."""
    from .journal import read

    found = read(path)
    return result_of(found, judged_of_plan(found, _allowed(allow)), _stopped_by(found), "", os.fspath(path), 0.0)


def _stopped_by(found: Found) -> StoppedBy:
    """Of a file that has no end, nobody knows."""
    return next((one for one in FINAL if one == found.stopped_by), "")


def judged_of_plan(found: Found, allow: tuple[str, ...]) -> Judged:
    """By what a file says of its own rule."""
    return Judged(rule_of(found.plan), str(found.plan["unit"]), allow, Declared.from_dict(found.plan["declared"]))


def _interrupted(journal: Journal, judged: Judged, took: float) -> Interrupted:
    found = journal.found
    whole = not os.path.lexists(journal.partial_path)  # it was renamed a moment ago
    path = journal.path if whole else journal.partial_path
    stopped_by: StoppedBy = _stopped_by(found) if whole else "interrupted"
    result = result_of(found, judged, stopped_by, "it was interrupted", path, took)
    kept = f"{len(found.runs)} run{'s' * (len(found.runs) != 1)} {'are' if len(found.runs) != 1 else 'is'} in {path}"
    return Interrupted(f"interrupted: {kept}{'' if whole else '; the same command goes on from there'}", result)


# -------------------------------------------------------------------------------------------------------------------------- arms


def sides_of(a: ArmLike, b: ArmLike) -> Mapping[Name, Side]:
    """Both arms, ready to run. Raises InputError where they cannot be compared."""
    one, other = _arm(a, "a"), _arm(b, "b")
    if isinstance(one, Command) and isinstance(other, Command):
        if figure_of(one.figure, one.every) != figure_of(other.figure, other.every):
            remedy = f"a is judged by {one.figure}: two figures are not compared; give both arms the same"
            raise InputError("b.figure", str(other.figure), remedy)
        return _apart({"a": CommandSide(one, "a"), "b": CommandSide(other, "b")})
    if isinstance(one, Target) and isinstance(other, Target):
        if one.column and other.column and one.column != other.column:
            raise InputError("b.column", other.column, f"a is judged by {one.column}: give both arms the same")
        both_captured = one.phase == other.phase == "captured"
        column = one.column or other.column or ("device_us" if both_captured else "elapsed_us")
        labels = _labels(one, other)
        return _apart({"a": TargetSide(one, labels[0], column), "b": TargetSide(other, labels[1], column)})
    raise InputError("b", type(other).__name__, f"a is a {type(one).__name__}: give two commands or two targets")


def _arm(given: ArmLike, name: str) -> Command | Target:
    if isinstance(given, Command | Target):
        return given
    if isinstance(given, str | list | tuple):
        return Command(given)
    raise InputError(name, given, "give a Command, a Target, or a command line")


def _apart(sides: Mapping[Name, Side]) -> Mapping[Name, Side]:
    """No answer can be read where both are called the same."""
    if sides["a"].label == sides["b"].label:
        raise InputError("label", sides["a"].label, "both arms are called so: give another label")
    return sides


def _labels(one: Target, other: Target) -> tuple[str, str]:
    """Names that tell them apart; else a and b."""
    names = [target.name or f"SGLang {target.sglang}" for target in (one, other)]
    return (names[0], names[1]) if names[0] != names[1] else ("a", "b")


# ------------------------------------------------------------------------------------------------------------------------ checks


@dataclass(frozen=True)
class Asked:
    """What was asked, checked."""

    unit: str
    better: str
    margin: float
    confidence: float
    seed: int
    blocks: int


def _checked(asked: Mapping[str, Any], sides: Mapping[Name, Side]) -> Asked:
    unit = asked["unit"]
    if unit is not None and (not isinstance(unit, str) or not unit.strip()):
        raise InputError("unit", unit, "give a unit, as tok/s, ms or us")
    own = sides["a"].unit
    if unit is not None and own and known(unit) != own:
        raise InputError("unit", unit, f"these figures are in {own}: leave it out")
    unit = own or ("" if unit is None else known(unit))
    better = asked["better"]
    if better not in (None, "higher", "lower"):
        raise InputError("better", better, "give higher or lower")
    better = better or better_of(unit)
    if not better:
        remedy = "no unit says which figures are better: give unit='tok/s' or the like, or better='higher' or better='lower'"
        raise InputError("better", None, remedy)
    for name, most in (("margin", 1.0), ("confidence", 1.0)):
        value = asked[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
            raise InputError(name, value, "give a share between 0 and 1, as 0.02 or 0.95")
    seed = asked["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError("seed", seed, "give a whole number")
    return Asked(unit, better, float(asked["margin"]), float(asked["confidence"]), seed, asked["runs"])


def _budget(asked: Mapping[str, Any]) -> Budget:
    return Budget(
        options.whole("runs", asked["runs"], least=2, most=_RUNS_MAX),
        seconds("limit_s", asked["limit_s"]),
        options.whole("failures", asked["failures"]),
        options.whole("warm_up", asked["warm_up"], least=0, most=1000),
    )


def _allowed(given: Iterable[str]) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given)
    for one in found:
        if not isinstance(one, str) or not one:
            raise InputError("allow", one, f"give names of variables or libraries, as libnccl, or some of {', '.join(KINDS)}")
    return found


def _plan(kind: str, clean: Asked, budget: Budget, sides: Mapping[Name, Side]) -> dict[str, Any]:
    """What tells one experiment from another: all that its answer depends on."""
    return {
        "ab": kind,
        "version": VERSION,
        "a": {**sides["a"].to_dict(), "text": sides["a"].text},
        "b": {**sides["b"].to_dict(), "text": sides["b"].text},
        "declared": (sides["a"].declared | sides["b"].declared).to_dict(),
        "unit": clean.unit,
        "better": clean.better,
        "margin": clean.margin,
        "confidence": clean.confidence,
        "seed": clean.seed,
        "runs": budget.blocks,
        "warm_up": budget.warm_up,
        "order": "blocks of one run an arm; of every four, two begin with a",
    }


# -------------------------------------------------------------------------------------------------------------------------- file


def _journal(name: str, plan: Mapping[str, Any]) -> Journal:
    try:
        return Journal(name, plan=plan, provenance=replace(stamp(), torch=""))
    except InputError as error:
        if error.field not in ("path", "out"):
            raise
        free = options.free_name(name, PARTIAL)
        raise InputError("out", name, f"{error.remedy} ({free} is free)") from None
