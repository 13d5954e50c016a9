"""From the runs of a file to an AbResult: the verdict, and what forbids one. Called by ab.py and noise.py.

Invariant: the same file gives the same answer, whoever reads it and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._measure.format import PARTIAL
from .._types import FrozenMap
from .._verdict.arm import Arm
from .._verdict.verdict import Finding, Verdict, Word
from .compare import FIXED, KINDS, differences, texts
from .experiment import FINAL, StoppedBy
from .journal import Found
from .result import AbResult
from .rule import Rule
from .runs import arm_of, judged
from .sides import Declared
from .table import state_rows


@dataclass(frozen=True)
class Judged:
    """By what a file's runs are judged."""

    rule: Rule
    unit: str
    allow: Sequence[str]
    declared: Declared


def result_of(found: Found, by: Judged, stopped_by: StoppedBy, stopped: str, path: str, took: float) -> AbResult:
    """The answer that these runs give."""
    runs = judged(found.runs)
    a, b = found.plan["a"], found.plan["b"]
    labels = str(a["label"]), str(b["label"])
    gave = [run for run in found.runs if run.figures]
    unfit = differences(gave, by.declared, by.allow, FIXED, labels)
    unfit += differences(runs, by.declared, by.allow, set(KINDS) - set(FIXED), labels)
    verdict = None
    if runs:
        origin = path.removesuffix(PARTIAL)
        one, other = arm_of(runs, "a", labels[0], by.unit, origin), arm_of(runs, "b", labels[1], by.unit, origin)
        verdict = _verdict(by.rule, found, len(runs) // 2, stopped_by, one, other)
    result = AbResult(
        verdict=verdict,
        sentence="" if verdict is None else verdict.sentence,
        reason="" if verdict is None else verdict.reason,
        stopped_by=stopped_by,
        stopped=stopped or _stopped(stopped_by, len(runs) // 2),
        labels=labels,
        texts=(str(a["text"]), str(b["text"])),
        runs=tuple(found.runs),
        blocks=len(runs) // 2,
        differences=unfit,
        states=state_rows(runs),
        looks=tuple(FrozenMap(look) for look in found.looks),
        measured=_measured(found),
        unit=by.unit,
        seed=int(found.plan["seed"]),
        seconds=took,
        notes=(*found.notes, *_same(found)),
        plan=found.plan,
        provenance=found.provenance,
        path=path,
    )
    return _answered(result)


def _verdict(rule: Rule, found: Found, blocks: int, stopped_by: StoppedBy, a: Arm, b: Arm) -> Verdict:
    """That of the last look, where these are its runs; else how it stands."""
    look = found.looks[-1] if found.looks else None
    if look is not None and look["blocks"] == blocks:
        return rule.last(a, b) if look["last"] else rule.look(a, b)
    return rule.look(a, b) if stopped_by in FINAL else rule.now(a, b)


def _same(found: Found) -> list[str]:
    a, b = ({**found.plan[arm], "label": ""} for arm in ("a", "b"))
    if a != b or found.plan["ab"] == "noise":
        return []
    return ["a and b are the same: what differs is noise, and `noise` says how much that is"]


def _measured(found: Found) -> str:
    from .figure import Figure

    a = found.plan["a"]
    if a["kind"] == "target":
        return str(a["column"])
    told = a["figure"]
    return str(Figure(told["kind"], told["text"], told["every"]))


def _stopped(stopped_by: StoppedBy, blocks: int) -> str:
    return {
        "decided": f"it was decided after {blocks} runs of each arm",
        "runs": f"all {blocks} runs of each arm are done",
        "time": f"its time was over after {blocks} runs of each arm",
        "": "it is unfinished",
    }.get(stopped_by, "")


_AGAIN = "the same command goes on from there"


def _answered(result: AbResult) -> AbResult:
    """The sentence: of what forbids an answer first."""
    refused = result.refused
    if refused:
        a, b = result.labels
        sentence = f"UNDECIDED: {a} and {b} did not run under the same conditions: {refused[0].text}"
        sentence += f"; and {len(refused) - 1} more such difference{'s' * (len(refused) > 2)}" if len(refused) > 1 else ""
        told = tuple(Finding("states", "", text) for text in texts(refused))
        return _without(result, sentence, refused[0].remedy, told)
    if result.stopped_by == "failures":
        return _without(result, f"UNDECIDED: {result.stopped}", f"mend what makes it fail; {_AGAIN}", ())
    if result.verdict is None:
        sentence = f"UNDECIDED: no run of both arms is there{f': {result.stopped}' if result.stopped else ''}"
        return _without(result, sentence, _AGAIN, ())
    if not result.whole and result.verdict.word is not Word.UNDECIDED:
        so_far = _so_far(result.verdict)
        sentence = f"UNDECIDED: {result.stopped}, before its rule had decided; so far {so_far}"
        reason = f"whoever ends an experiment when its interval looks right is wrong more often than it says; {_AGAIN}"
        return _without(result, sentence, reason, ())
    return result


def _so_far(verdict: Verdict) -> str:
    from .progress import interval_text

    return interval_text(verdict).removesuffix(" so far")


def _without(result: AbResult, sentence: str, reason: str, told: tuple[Finding, ...]) -> AbResult:
    verdict = result.verdict
    if verdict is not None:
        findings = (*told, *verdict.findings)
        verdict = replace(verdict, word=Word.UNDECIDED, sentence=sentence, reason=reason, findings=findings, runs_needed=None)
    return replace(result, verdict=verdict, sentence=sentence, reason=reason)
