"""The answer in one word: the first that holds. Called by case.py.

    INCONSISTENT        the figures cannot all be of one stream
    CANNOT_UNREACHABLE  no call takes another route: proved, whatever was seen
    NOTHING_TO_EXPLAIN  the difference is not established
    CANNOT_TOO_SMALL    calls x difference, at its far end, is less than the near end of what was seen
    COULD               all else, also where nothing is measured

Invariant: CANNOT is a proof or an interval; what is unknown never excludes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._types import Path
from .proof import reasons_of
from .seen import PLAIN
from .sides import Pair, Sides
from .stream import Stream
from .types import Bound, Proof, Range, Seen, Word


@dataclass(frozen=True)
class Question:
    """All that an answer is made of."""

    seen: tuple[Seen, ...]
    stream: Stream
    main: Sides
    beside: Sides | None
    """The step of plain decoding, where the main one speculates and both were seen."""
    proof: Proof
    blind: tuple[str, ...]
    """What the walk cannot see."""
    drafts: tuple[str, ...]
    """The draft's own calls that change, where a whole cycle was seen."""
    bounds: tuple[Bound, ...]

    @property
    def first(self) -> Seen:
        """What the answer is about: the first difference that is established, else the first."""
        return next((one for one in self.seen if one.settled), self.seen[0])

    @property
    def step(self) -> Sides:
        """The step that the answer is about."""
        return self.beside if self.beside is not None and self.first.what == PLAIN else self.main

    @property
    def changed(self) -> tuple[Pair, ...]:
        return self.step.changed

    @property
    def also(self) -> tuple[str, ...]:
        """What else of the question changes."""
        other = self.main if self.step is self.beside else self.beside
        if other is None or not other.changed:
            return ()
        return (f"routes of the other step that was seen do change: {_calls(other.changed)}",)

    @property
    def unknown(self) -> str:
        """Why "no call changes" would not be a proof; "" where it is one."""
        if self.blind:
            return f"nobody knows the code of {', '.join(self.blind)}"
        if self.step.unmodelled and self.proof.diff:
            return f"about {self.step.unmodelled} calls of this step are not modelled, and routes of this server do change"
        if self.drafts:
            return f"the draft's own all-reduces change ({', '.join(self.drafts)}), and are not costed"
        return ""

    def routes(self, seen: Seen) -> Bound:
        """What these routes cost in the step of that difference."""
        found = [bound for bound in self.bounds if bound.kind == "routes" and not bound.illustration]
        return found[-1] if seen.what == PLAIN else found[0]

    def ceiling_holds(self, longer: bool) -> bool:
        """Whether no call that changes is fused on either side (such a kernel takes the norm with it), raises, or is not modelled."""
        if self.step is not self.main:
            return False  # what is summed is the main step
        whole = all(pair.before is not None and pair.after is not None for pair in self.step.changed)
        ways = [pair.after if longer else pair.before for pair in self.step.changed]
        return whole and not self.step.unmodelled and all(way is None or way.decision.path is not Path.RAISES for way in ways)

    def ceiling(self, longer: bool) -> Bound:
        """All all-reduces: of the step after, where it became longer; of the one before, where shorter."""
        found = [bound for bound in self.bounds if bound.kind == "ceiling" and not bound.illustration]
        return found[-1] if longer else found[0]


@dataclass(frozen=True)
class Answer:
    word: Word
    sentence: str
    reason: str
    findings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def decide(q: Question) -> Answer:
    """The first word that holds."""
    found = _inconsistent(q) or _unreachable(q) or _nothing(q) or _bounded(q)
    more = (*_raising(q), *_fused(q.step), *q.also)
    return Answer(found.word, found.sentence, found.reason, (*more, *found.findings), found.missing)


def _raising(q: Question) -> tuple[str, ...]:
    """Such a server makes no step that anybody could have timed."""
    told = []
    for step, side in zip(q.step.steps, ("before", "after"), strict=True):
        ways = [(pair.count, getattr(pair, side)) for pair in q.changed]
        count = sum(n for n, way in ways if way is not None and way.decision.path is Path.RAISES)
        why = "a server fails there, it is not slower" if side == "after" else "what was seen there was of another server"
        told += [f"{count} calls raise an exception in {step.sglang}: {why}"] if count else []
    return tuple(told)


def _fused(sides: Sides) -> tuple[str, ...]:
    """Calls that a fused kernel takes: they have no route, and what they take is measured by nothing here."""
    before, after = (step.fused for step in sides.steps)
    if not before and not after:
        return ()
    counts = f"{after}" if before == after else f"{before} before and {after} after"
    whole = {step.all_reduces for step in sides.steps}
    of = f" of {next(iter(whole))}" if len(whole) == 1 else ""
    return (
        f"a fused kernel takes {counts}{of} all-reduces of a step, with the norm behind them: they have no route, and are in no sum",
    )


def _inconsistent(q: Question) -> Answer | None:
    if not q.stream.problem:
        return None
    told = f"{q.stream.reason}; {q.stream.remedy}"
    return Answer(Word.INCONSISTENT, f"INCONSISTENT: {q.stream.problem}", told, missing=(q.stream.remedy,))


def _unreachable(q: Question) -> Answer | None:
    if q.changed or q.unknown:
        return None
    a, b = q.proof.diff.a, q.proof.diff.b
    whose = "step" if q.proof.diff else "server"
    text = f"CANNOT (unreachable): no all-reduce of this {whose} changes its route from {a} to {b}"
    reasons = reasons_of(q.proof, q.step.after)
    return Answer(Word.CANNOT_UNREACHABLE, text, "; ".join(reasons[:2]), (*reasons[2:], *_settled(q)))


def _settled(q: Question) -> tuple[str, ...]:
    return tuple(f"{one.what}: the difference is there all the same, so something else made it" for one in q.seen if one.settled)


def _nothing(q: Question) -> Answer | None:
    seen = q.first
    if seen.settled:
        return None
    bound = q.routes(seen)
    told = f"NOTHING TO EXPLAIN{_yet(seen)}: {not_told_apart(seen)}"
    same = str(seen.verdict.word) == "SAME"
    reason = seen.verdict.reason + ("" if same else f"; were it real, these routes would explain {_at_most(bound, seen)}")
    return Answer(Word.NOTHING_TO_EXPLAIN, told, reason)


def _yet(seen: Seen) -> str:
    return "" if str(seen.verdict.word) == "SAME" else " yet"


def not_told_apart(seen: Seen) -> str:
    """``verify step: one run an arm cannot tell 29 from 19 ms``."""
    if len(seen.before) == len(seen.after) == 1 and str(seen.verdict.word) == "UNDECIDED":
        was, now = (
            f"{one.processes[0][0]:.4g}" if len(one.processes[0]) == 1 else "the other" for one in (seen.before, seen.after)
        )
        return f"one run an arm cannot tell {was} from {now} {seen.before.unit} ({seen.what})"
    head, colon, rest = seen.verdict.sentence.partition(": ")  # its word is told by ours
    return f"{seen.what}: {rest if colon and head == str(seen.verdict.word) else seen.verdict.sentence}"


def _bounded(q: Question) -> Answer:
    seen = q.first
    longer = seen.change_ms.value > 0
    bound, ceiling = q.routes(seen), q.ceiling(longer)
    least = _near(seen.change_ms, longer)
    if bound.ms is not None and not q.unknown and _far(bound.ms, longer) < least:
        return _too_small(q, seen, bound, longer)
    if ceiling.ms is not None and not q.unknown and q.ceiling_holds(longer) and (ceiling.ms.high or ceiling.ms.value) < least:
        which = "all routed all-reduces" if _fused(q.step) else "all all-reduces"
        told = (
            f"{which} of the step together take {_ms(ceiling.ms.high or ceiling.ms.value)} ms at most, less than {_amount(seen)}"
        )
        return Answer(Word.CANNOT_TOO_SMALL, f"CANNOT (too small): {told}", f"{_calls(q.changed)}; {_basis(ceiling)}")
    if bound.ms is None or q.unknown:
        why = q.unknown or f"what that costs is {bound.why.partition(': ')[0]}"
        told = f"{_calls(q.changed)}, and {why}" if q.changed else why
        reason = f"nothing that is measured excludes that as the cause of {_amount(seen)}: {_ceiling_text(q, longer)}"
        return Answer(Word.COULD, f"COULD: {told}", reason, missing=_accepted(seen))
    text = f"COULD: {_share(bound.ms, seen, longer)}"
    return Answer(Word.COULD, text, f"{_calls(q.changed)}; {_basis(bound)}", missing=_accepted(seen))


def _share(ms: Range, seen: Seen, longer: bool) -> str:
    """What routes explain, counted in the direction that was seen."""
    sign = 1 if longer else -1
    value, least, most = (
        sign * end for end in (ms.value, *((ms.low, ms.high) if longer else (ms.high, ms.low))) if end is not None
    )
    if value > 0:
        return f"these routes explain {_ms(value)} ms ({_ms(least)} to {_ms(most)}) of {_amount(seen)}"
    way, other = ("longer", "shorter") if longer else ("shorter", "longer")
    figures = f"make a step {_ms(-value)} ms {other}" if value else "change nothing"
    return f"these routes {figures}, but by the end of their interval {_ms(most)} ms {way}: not excluded for {_amount(seen)}"


def _too_small(q: Question, seen: Seen, bound: Bound, longer: bool) -> Answer:
    assert bound.ms is not None
    far = _far(bound.ms, longer)
    if far <= 0:
        way = "shorter" if longer else "longer"
        text = f"CANNOT (the other way): these routes make a step {_ms(abs(bound.ms.value))} ms {way}: not {_amount(seen)}"
    else:
        text = f"CANNOT (too small): these routes explain at most {_ms(far)} ms of {_amount(seen)}"
    return Answer(Word.CANNOT_TOO_SMALL, text, f"{_calls(q.changed)}; {_basis(bound)}", missing=_accepted(seen))


# ------------------------------------------------------------------------------------------------------------------------------ words


def _near(change: Range, longer: bool) -> float:
    """The end of what was seen that is nearest to nothing."""
    end = change.low if longer else change.high
    return max(0.0, 0.0 if end is None else end if longer else -end)


def _far(ms: Range, longer: bool) -> float:
    """The most that a bound explains in the direction that was seen."""
    end = ms.high if longer else ms.low
    value = ms.value if end is None else end
    return value if longer else -value


def _at_most(bound: Bound, seen: Seen) -> str:
    longer = seen.change_ms.value >= 0
    if bound.ms is None:
        return f"an amount that is {bound.why}"
    far = _far(bound.ms, longer)
    return f"at most {_ms(far)} ms of it" if far > 0 else "nothing of it"


def _amount(seen: Seen) -> str:
    c, what = seen.change_ms, "a token" if seen.per_token else "a step"
    ends = sorted(abs(end) for end in (c.low, c.high) if end is not None)
    told = f" ({_ms(ends[0])} to {_ms(ends[1])})" if len(ends) == 2 and seen.settled else ""
    return f"the {_ms(abs(c.value))} ms{told} by which {what} became {'longer' if c.value > 0 else 'shorter'}"


def _accepted(seen: Seen) -> tuple[str, ...]:
    return ("--accepted, the mean accepted length: it makes tok/s the time of a step",) if seen.per_token else ()


def _calls(pairs: Sequence[Pair]) -> str:
    """``123 calls go from torch_distributed, eager to pynccl_out_of_place, eager``."""
    counts: dict[tuple[str, str], int] = {}
    for pair in pairs:
        key = (str(pair.before or ""), str(pair.after or ""))
        counts[key] = counts.get(key, 0) + pair.count
    return "; ".join(_change(count, *ways) for ways, count in counts.items())


_RAISES = "raises "


def _change(count: int, was: str, now: str) -> str:
    """ "" stands for a call that is not made, or that a fused kernel takes."""
    calls, go, are = ("1 call", "goes", "is") if count == 1 else (f"{count} calls", "go", "are")
    if not now:
        return f"{calls} that went by {was} {are} fused or not made after the change"
    if not was:
        return f"{calls} that {'was' if count == 1 else 'were'} fused or not made before the change {go} by {now}"
    if was.startswith(_RAISES) or now.startswith(_RAISES):
        verb = "raises" if count == 1 else "raise"
        first = f"raised {was.removeprefix(_RAISES)}" if was.startswith(_RAISES) else f"went by {was}"
        then = f"{verb} {now.removeprefix(_RAISES)}" if now.startswith(_RAISES) else f"{go} by {now}"
        return f"{calls} that {first} before the change {then} after it"
    return f"{calls} {go} from {was} to {now}"


def _basis(bound: Bound) -> str:
    return ", ".join(filter(None, [f"{' and '.join(bound.origins)} on {bound.machine}" if bound.machine else "", bound.assumed]))


def _ceiling_text(q: Question, longer: bool) -> str:
    """What is known of the whole, or why no whole is known."""
    ceiling, when = q.ceiling(longer), "after" if longer else "before"
    if q.step is not q.main:
        return f"of {PLAIN} the whole is not summed"
    if not q.ceiling_holds(longer):
        if not longer and ceiling.ms is not None and all(pair.before is not None for pair in q.changed):
            took = f"{_ms(ceiling.ms.value)} ms before the change ({', '.join(ceiling.origins)})"
            return (
                f"all its all-reduces together took {took}, and what a fused kernel saves beside them is measured by nothing here"
            )
        return "what fused calls take, or others that are not modelled, is measured by nothing here"
    if ceiling.ms is None:
        return f"what all its all-reduces took together {when} the change is {ceiling.why.partition(': ')[0]}"
    return f"all its all-reduces together took {_ms(ceiling.ms.value)} ms {when} the change ({', '.join(ceiling.origins)})"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
