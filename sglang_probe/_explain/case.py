"""Case: one question, from what was seen and the launch to its Explanation. Called by explain.py.

    figures -> verdicts, milliseconds     launch -> steps on both releases -> pairs of calls -> proof, bounds
                                     answer.py: the first word that holds

Invariant: nothing is decided here that its parts did not prove or measure; a figure of another machine is never in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._costs.costs import NOT_MEASURED
from .._costs.machine import target_of
from .._proof.space import conjunction_text
from .._server.command import UNKNOWN
from .._verdict.runs import runs_for
from .answer import Question, decide
from .bounds import FUSED, Pricer
from .experiment import experiments_of
from .given import Given, Kind, middle_of
from .proof import blind_spots, never_sets, prove
from .seen import CALL, DECODE, ORDER, PLAIN, SPECULATIVE, VERIFY, seen_of, waits_of_costs
from .sides import Asked, Pair, Reader, Sides, Way
from .stream import Stream, check_stream, read_accepted
from .types import Bound, Explanation, Number, Proof, Range, RouteChange, Seen, Waiting
from .types import Kind as BoundKind

Figures = Mapping[Kind, tuple[Given, Given]]
_OTHERS = ("piecewise_replay", "piecewise_capture", "eager", "capture", "compile", "compiled_capture")
"""Contexts that run at each step: what a change would do there, where this step does not run, is told beside it."""
ALL = "all all-reduces of the step"


class Case:
    """One question, with what was read for it."""

    def __init__(self, asked: Asked, figures: Figures, plain: Figures, pricer: Pricer, report: Callable[[str], None]) -> None:
        self.figures, self.plain, self.pricer = figures, plain, pricer
        self.reader = Reader(asked, report)
        report("routing its calls")
        self.alone = not figures
        """Only plain decoding was seen: its step is the step."""
        width = 1 if self.alone else None
        self.main = self.reader.sides(width=width)
        self.beside = self.reader.sides(width=1, own=True) if plain and not self.alone else None
        self.width = self.main.after.draft_tokens
        report("walking every state")
        self.proof = prove(self.reader, self.main)
        self.blind = blind_spots(self.reader, self.main)
        self.stream = Stream()
        self.graph: tuple[Pair, ...] = ()
        """This step captured, and eager, after."""
        self.numbers: list[Number] = []

    # ------------------------------------------------------------------------------------------------------------------------ seen

    @property
    def most(self) -> int:
        """Tokens that a step can give a request: a chain of drafts and the bonus token, however wide the tree."""
        steps = self.reader.servers[1].speculative_steps
        return min(self.width, steps + 1) if steps and self.width > 1 else self.width

    def seen(self, accepted: Any, margin: float, confidence: float) -> tuple[Seen, ...]:
        """Each difference with its verdict; and whether all of it can be of one stream."""
        lengths = read_accepted(accepted, self.most)
        batch, speculates = self.reader.asked.batch, self.width > 1
        tokens: tuple[float | None, float | None] = lengths if speculates else (1.0, 1.0)
        calls = sum(item.call.count for item in self.main.after.calls)
        names: Mapping[Kind, str] = {
            "step": VERIFY if speculates else DECODE, "call": CALL, "rate": SPECULATIVE if speculates else PLAIN,
        }  # fmt: skip
        settings: dict[str, Any] = {"batch": batch, "margin": margin, "confidence": confidence}
        found = [seen_of(names[kind], *pair, tokens=tokens, calls=calls, **settings) for kind, pair in self.figures.items()]
        found += [seen_of(PLAIN if kind == "rate" else DECODE, *pair, **settings) for kind, pair in self.plain.items()]
        for figures, most, given in ((self.figures, self.most, lengths), (self.plain, 1, (None, None))):
            if "rate" in figures and "step" in figures and not self.stream.problem:
                one = check_stream(figures["rate"], figures["step"], most, batch, given)
                self.stream = one if one.problem or not self.stream.least else self.stream
        for side, length in zip(("before", "after"), lengths, strict=True):
            self.numbers += (
                [] if length is None else [Number(f"accepted length, {side}", Range(length), "tokens a step", "given")]
            )
        for side, length in zip(("before", "after"), self.stream.least, strict=False):
            self.numbers.append(
                Number(f"accepted at least, {side}", Range(length), "tokens a step", "derived", "tok/s x the step's time")
            )
        return tuple(sorted(found, key=lambda one: ORDER.index(one.what)))

    def waits(self, costs: Any) -> tuple[Waiting, ...]:
        ways = {(str(item.decision.path), phase) for item in self.main.after.calls for phase in ("eager", "captured")}
        sizes = {item.call.nbytes for item in self.main.after.calls}
        group = self.reader.servers[1].groups["tp"]
        return tuple(waits_of_costs(costs, target_of(group), ways, sizes))

    # ---------------------------------------------------------------------------------------------------------------------- bounds

    def bounds(self) -> tuple[Bound, ...]:
        """The answer's own first, illustrations last."""
        own: list[tuple[Bound, tuple[Pair, ...]]] = []

        def add(kind: BoundKind, what: str, pairs: tuple[Pair, ...]) -> None:
            own.append((self.pricer.difference(kind, what, pairs), pairs))

        add("routes", "the change of routes", self.main.pairs)
        if self.beside is not None:
            add("routes", f"the change of routes, in {PLAIN}", self.beside.pairs)
        for what, sides in () if self.main.changed else self._elsewhere():
            add("not_taken", what, sides.pairs)
        ceilings = [self.pricer.ceiling(*one) for one in self._ceilings()]
        if _contexts(self.main) <= {"eager", "capture"}:
            self.graph = self.reader.contexts(width=1 if self.alone else None).pairs
            add("eager", "eager instead of captured (all-reduces alone)", self.graph)
            if "eager" in _contexts(self.main):
                captured = [(pair.count, pair.before) for pair in self.graph if pair.before is not None]
                ceilings.append(self.pricer.ceiling(f"{ALL}, were it captured", captured, "captured"))
        shown = [more for bound, pairs in own if bound.ms is None for more in self.pricer.illustrations(bound, pairs)]
        return (*(bound for bound, _ in own), *ceilings, *shown)

    def _elsewhere(self) -> list[tuple[str, Sides]]:
        """What changes in contexts that this step does not run in; each change once."""
        never = never_sets(self.reader)
        found: dict[tuple[str, str], tuple[str, Sides]] = {}
        mine = {(str(pair.before), str(pair.after)) for pair in self.main.changed}
        for context in _OTHERS:
            if context in _contexts(self.main):
                continue
            sides = self.reader.sides(width=1 if self.alone else None, context=context)
            for pair in sides.changed[:1]:
                key = str(pair.before), str(pair.after)
                fired = "had it been so" if pair.after is None else f"had {pair.after.decision.rule} fired"
                why = "this server never sets it" if context in never else "this step does not run in it"
                if key not in mine:
                    found.setdefault(key, (f"{fired} in {context} ({why})", sides))
        return list(found.values())

    def _ceilings(self) -> list[tuple[str, list[tuple[int, Any]]]]:
        before = [(pair.count, pair.before) for pair in self.main.pairs if pair.before is not None]
        after = [(pair.count, pair.after) for pair in self.main.pairs if pair.after is not None]
        whole = ALL if not any(step.fused for step in self.main.steps) else f"{ALL} that are not fused"
        if not self.main.changed:
            return [(whole, after)]
        return [(f"{whole}, before", before), (f"{whole}, after", after)]

    def _planned(self, seen: Iterable[Seen]) -> list[str]:
        """Of single runs: how many would tell, were processes to differ as calls of this step have."""
        told = []
        for one in seen:
            sides = self.beside if one.what == PLAIN and self.beside is not None else self.main
            if len(one.before) > 1 or len(one.after) > 1 or not one.verdict.effect:
                continue
            for way in [pair.after for pair in sides.pairs if pair.after is not None][:1]:
                if found := self.pricer.spread(way):
                    spread, whose = found
                    runs = runs_for(one.verdict.effect, spread, confidence=one.verdict.confidence)
                    whose_spread = f"fresh processes of {whose}"
                    self.numbers.append(
                        Number(f"{one.what}: runs an arm that would tell", Range(float(runs)), "", "derived", whose_spread)
                    )
                    was, now = (middle_of(arm.processes[0]) for arm in (one.before, one.after))
                    told.append(
                        f"{one.what}: about {runs} runs an arm would tell {was:.4g} from {now:.4g} {one.after.unit}, were runs to differ "
                        f"by {100 * spread:.2g} % as {whose_spread} do; `sglang-probe noise` says by how much yours do"
                    )
        return told

    # ------------------------------------------------------------------------------------------------------------------ explanation

    def explanation(self, seen: tuple[Seen, ...], waiting: tuple[Waiting, ...]) -> Explanation:
        bounds = self.bounds()
        drafts = self.main.drafts if any(one.what == SPECULATIVE for one in seen) else ()
        question = Question(seen, self.stream, self.main, self.beside, self.proof, self.blind, drafts, bounds)
        answer = decide(question)
        planned = self._planned(seen)
        experiments = experiments_of(answer.word, question, self.reader, self.graph)
        steps = self.main.steps
        server = self.reader.servers[1]
        return Explanation(
            word=answer.word,
            sentence=answer.sentence,
            reason=answer.reason,
            sglang_before=steps[0].sglang,
            sglang_after=steps[1].sglang,
            launch=_launch_text(self.main, self.width),
            calls=sum(item.call.count for item in steps[1].calls),
            seen=seen,
            routes=tuple(_route_change(pair) for pair in self.main.pairs),
            proof=self.proof,
            bounds=bounds,
            waiting=waiting,
            experiments=experiments,
            numbers=(*_numbers(seen, self.proof, bounds), *self.numbers, *self.pricer.numbers()),
            findings=_unique(self.stream.findings, answer.findings, planned, _waited(waiting), _told(seen)),
            missing=(*answer.missing, *self.pricer.missing),
            sources=tuple(dict.fromkeys(f"{n.origin}: {n.source}" for n in self.pricer.numbers())),
            notes=_unique(self.reader.notes, _sided(*(step.notes for step in self.reader.first)), self.pricer.notes()),
            assumed=_unique(_sided(*(step.assumed for step in self.reader.first)), self.proof.diff.assumed),
            warnings=_unique(_warnings(self.main, server.contradictions, self.blind), self.pricer.warnings(server.env)),
        )


# ------------------------------------------------------------------------------------------------------------------------------ parts


def _contexts(sides: Sides) -> set[str]:
    return {step.context for step in sides.steps}


def _launch_text(sides: Sides, width: int) -> str:
    """``Kimi-K2.5 on 8 ranks (8x rtx-pro-6000 over PCIe), verify step of 3 draft tokens, batch 1, eager``."""
    step = sides.after
    kind = f"verify step of {width} draft tokens" if width > 1 else "decode step"
    context = " -> ".join(dict.fromkeys(one.context for one in sides.steps))
    ranks = f"{step.world_size} rank{'s' * (step.world_size != 1)}"
    machine = "" if step.server is None else f" ({target_of(step.server.groups['tp'])})"
    return f"{step.model} on {ranks}{machine}, {kind}, batch {step.batch}, {context}"


def _route_change(pair: Pair) -> RouteChange:
    def of(way: Way | None) -> tuple[str, int]:
        return (FUSED, 0) if way is None else (str(way), way.item.call.nbytes)

    (was, was_bytes), (now, now_bytes) = of(pair.before), of(pair.after)
    return RouteChange(pair.site, pair.group, pair.count, was, now, was_bytes, now_bytes, pair.changes)


def _numbers(seen: Iterable[Seen], proof: Proof, bounds: Iterable[Bound]) -> list[Number]:
    """What was given, counted and derived."""
    found = []
    for one in seen:
        for arm in (one.before, one.after):
            middles = [middle_of(process) for process in arm.processes]
            several = len(arm) > 1
            note = f"median of {len(arm)} runs, least to most" if several else "1 run"
            ends = Range(middle_of(middles), *((min(middles), max(middles)) if several else (None, None)))
            source = "" if arm.origin == "given" else arm.origin
            found.append(Number(f"{one.what}, {arm.label}", ends, arm.unit, "given", source, note))
        unit = "ms a token" if one.per_token else "ms a step"
        found.append(Number(f"{one.what}: after less before", one.change_ms, unit, "derived", note=one.verdict.method))
    fixed = f"states with {conjunction_text({name: (value,) for name, value in proof.fixed.items()})}"
    counts = [("states of the rules", proof.states), ("states of the rules that change", proof.changed)]
    counts += [(fixed, proof.states_fixed), (f"{fixed} that change", proof.changed_fixed)] if proof.fixed else []
    counts += [("size classes of this server", proof.classes), ("size classes of this server that change", proof.diff.changed)]
    found += [Number(what, Range(float(count)), "", "counted") for what, count in counts]
    for bound in bounds:
        whose = " (illustration)" if bound.illustration else ""
        origin = NOT_MEASURED if bound.ms is None else "derived" if bound.calls else "counted"
        note = bound.why or ", ".join(filter(None, [bound.quantity, bound.assumed]))
        found.append(Number(f"{bound.what}{whose}: {bound.calls} calls", bound.ms, "ms a step", origin, bound.machine, note))
    return found


def _waited(waiting: Iterable[Waiting]) -> list[str]:
    """Of two Measurements that were split: what of the difference is waiting."""
    sides = [one for one in waiting if one.where.endswith("the change")]
    if len(sides) != 2:
        return []
    more = sides[1].wait_us.value - sides[0].wait_us.value
    return [f"of one call, waiting for the last rank changed by {more:+.3g} us, which no change of path causes"]


def _told(seen: Iterable[Seen]) -> list[str]:
    """What must be known with the verdicts; that one run is one run stands beside them already."""
    return [f"{one.what}: {f.text}" for one in seen for f in one.verdict.findings if f.kind != "few_runs"]


def _warnings(sides: Sides, contradictions: Iterable[str], blind: Iterable[str]) -> list[str]:
    told = [f"the log says otherwise: {text}" for text in contradictions]
    told += [f"another machine may have another answer: {text}" for text in sides.after.assumed if text.startswith("GPU: ")]
    told += [
        note
        for step in sides.steps
        for note in step.notes
        if note.startswith(("not modelled", "unknown architecture")) or UNKNOWN in note
    ]
    return told + [f"nobody knows the code of {name}: what is told of it is the nearest release's" for name in blind]


def _sided(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """What both steps say once; what one says with its side."""
    was, now = tuple(before), tuple(after)
    return [text if text in now else f"before: {text}" for text in was] + [f"after: {text}" for text in now if text not in was]


def _unique(*groups: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))
