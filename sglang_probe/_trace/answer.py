"""The answer: what was seen of each rank, whether it is as expected, and the sentence that says so. Called by check.py.

    CANNOT_TELL  nothing in the trace could be held against anything: why
    DIFFERS      a call goes another way, a step runs in another phase, or a rank goes another way than the others
    AGREES       every step in question, of every rank
    SEEN         nothing was expected

Invariant: the first word that holds is the answer; the sentence says what was expected, what was seen, and where they part first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .._types import FrozenMap
from .calls import Calls
from .case import Case, findings_of, notes_of, warnings_of, whole_graphs
from .compare import Compared, compare_steps
from .events import joined
from .expected import Expected
from .kernels import Kind
from .ranks import RankDifference, compare_ranks
from .steps import SeenStep, find_steps
from .target import Target, choose
from .times import times_of
from .types import Checked, RankSeen, Seen


def answer_of(case: Case) -> Checked:
    """The answer."""
    expected = case.expected
    count = len(expected) if expected is not None and expected.exact and len(expected) else None
    seen: list[tuple[RankSeen, Target]] = []
    for calls in case.calls:
        found = find_steps(calls, mark=case.mark, count=count, gathers=expected.gathers if expected is not None else 0)
        target = choose(found, case.asked, calls.track.stage)
        seen.append((_rank_seen(calls, target, found.found_by, found.outside, expected), target))
    ranks = tuple(rank for rank, _ in seen)
    apart = _apart([(calls, target) for calls, (_, target) in zip(case.calls, seen, strict=True)], expected)
    word, sentence = _word(case, ranks, apart)
    step = case.step
    return Checked(
        word, sentence,
        files=tuple(trace.path for trace in case.traces),
        written_by=tuple(dict.fromkeys(trace.written_by for trace in case.traces)),
        ranks=ranks, expected=expected, step=step, apart=apart,
        times=times_of(case.calls),
        findings=tuple(findings_of(case, ranks, [step for _, target in seen for step in target.steps])),
        notes=(*case.notes, *notes_of(case), *(step.notes if step else ())),
        assumed=step.assumed if step else (),
        warnings=tuple(warnings_of(case)),
    )  # fmt: skip


def _rank_seen(calls: Calls, target: Target, found_by: str, outside: int, expected: Expected | None) -> RankSeen:
    kinds: Counter[Kind] = Counter()
    for number, count in Counter(calls.way.tolist()).items():
        kinds[calls.ways[number].kind] += count
    called = calls.called
    return RankSeen(
        label=calls.track.label,
        told_by=calls.track.told_by,
        file=calls.track.file,
        found_by=found_by,
        steps=len(target.steps),
        kinds=compare_steps(target.steps, expected),
        others=FrozenMap(dict(target.others)),
        calls=int(called.sum()),
        replayed=int((called & calls.replayed).sum()),
        graph_launches=calls.track.graph_launches,
        gathers=kinds[Kind.ALL_GATHER],
        reduce_scatters=kinds[Kind.REDUCE_SCATTER],
        other_collectives=kinds[Kind.OTHER],
        kernels=calls.track.all_kernels,
        outside=outside,
        wrong_phase=target.wrong_phase,
        notes=target.notes,
    )


def _apart(found: Sequence[tuple[Calls, Target]], expected: Expected | None) -> tuple[RankDifference, ...]:
    """Ranks against one another; stages of a pipeline, and files of prefill and of decode, each among themselves."""
    groups: dict[tuple[str, str], list[tuple[str, Sequence[SeenStep]]]] = {}
    for calls, target in found:
        stage = re.search(r"PP\d+", calls.track.label)
        groups.setdefault((stage[0] if stage else "", calls.track.stage), []).append((calls.track.label, target.steps))
    exact = expected if expected is not None and expected.exact else None
    return tuple(one for group in groups.values() for one in compare_ranks(group, exact))


# --------------------------------------------------------------------------------------------------------------------------- the word


def _word(case: Case, ranks: tuple[RankSeen, ...], apart: tuple[RankDifference, ...]) -> tuple[Seen, str]:
    expected = case.expected
    cannot = _cannot_tell(case, ranks)
    if cannot:
        return Seen.CANNOT_TELL, f"CANNOT TELL: {cannot}"
    if expected is None:
        return (Seen.DIFFERS, f"DIFFERS: {apart[0]}") if apart else (Seen.SEEN, f"SEEN: {_seen(ranks)}")
    differing = [rank for rank in ranks if rank.differs]
    if differing:
        return Seen.DIFFERS, f"DIFFERS: {_differs(expected, differing, ranks)}"
    if apart:
        return Seen.DIFFERS, f"DIFFERS: {apart[0]}"
    if not len(expected):
        return Seen.AGREES, "AGREES: no all-reduce is expected, and none is in the trace"
    held = [rank for rank in ranks if rank.steps]
    what = f"{expected} a step" if expected.exact else f"only {' and '.join(expected.counts)} (counts were not held against it)"
    return Seen.AGREES, f"AGREES: {what}, as expected, in {_steps(sum(rank.steps for rank in held), len(held))}"


def _cannot_tell(case: Case, ranks: tuple[RankSeen, ...]) -> str:
    whole = sum(trace.whole_graphs for trace in case.traces)
    if not sum(trace.all_kernels for trace in case.traces):
        if whole:
            return f"{whole_graphs(whole)}, and no other kernel is in it"
        return "no GPU kernel is in the trace: it is of the CPU alone; record it with the GPU's activities"
    expected = case.expected
    if expected is not None and not len(expected):
        if expected.why_not:
            return f"nothing is expected of this server's steps: {expected.why_not}"
        return ""  # one rank: that nothing is there is the answer
    if not any(rank.calls for rank in ranks):
        if whole:
            return f"{whole_graphs(whole)}, and none of its other kernels is an all-reduce"
        kernels = sum(rank.kernels for rank in ranks)
        return f"none of its {kernels:,} GPU kernels is an all-reduce that is known here"
    if not any(rank.steps for rank in ranks):
        others = Counter[str]()
        for rank in ranks:
            others.update(rank.others)
        return f"none of its steps is the one that was asked about: {joined(f'{n} {name}' for name, n in others.items())}"
    if whole and expected is not None and expected.captured and not any(rank.replayed for rank in ranks):
        return f"{whole_graphs(whole)}; what the step in question replays is in none of the kernels that were"
    return ""


def _seen(ranks: Sequence[RankSeen]) -> str:
    held = [rank for rank in ranks if rank.kinds]
    kinds: Counter[tuple[str, str]] = Counter()
    for rank in held:
        for kind in rank.kinds:
            kinds[_counted(kind.counts), kind.phase] += kind.count
    told = [f"{text} a step ({phase}, {count} times)" for (text, phase), count in kinds.most_common(3)]
    more = len(kinds) - len(told)
    return "; ".join(told) + (f"; {more} more kinds of step" if more > 0 else "") + f" [{len(held)} rank{'s' * (len(held) != 1)}]"


def _counted(counts: dict[str, int], absent: Sequence[str] = ()) -> str:
    """``0 fused, 123 ncclDevKernel_AllReduce``."""
    whole = {**dict.fromkeys(absent, 0), **counts}
    ordered = sorted(whole.items(), key=lambda item: item[0] != "fused")
    return ", ".join(f"{count} {name}" for name, count in ordered) or "no all-reduce"


def _differs(expected: Expected, differing: Sequence[RankSeen], ranks: Sequence[RankSeen]) -> str:
    rank = differing[0]
    kind = rank.worst
    assert kind is not None  # a rank that differs has steps
    parts = [_expected_and_seen(expected, kind, rank)]
    if kind.first is not None:
        parts.append(f"first difference: {kind.first.where}")
    if rank.differing and rank.differing < rank.steps:
        parts.append(f"in {rank.differing} of {rank.steps} steps")
    if len(ranks) > 1:
        parts.append(
            f"on {joined(one.label for one in differing)}" if len(differing) < len(ranks) else f"on all {len(ranks)} ranks"
        )
    return "; ".join(parts)


def _expected_and_seen(expected: Expected, kind: Compared, rank: RankSeen) -> str:
    how = {"replayed": "replayed from a graph", "eager": "eager", "mixed": "partly from graphs"}
    wanted, got = str(expected), _counted(kind.counts, ["fused"] if expected.fused else [])
    if expected.counts == kind.counts and kind.differing:  # the same paths by other kernels, or in another order
        wanted = " + ".join(f"{count} {name}" for name, count in expected.full_counts.items())
        got = _counted(kind.full_counts)
    if rank.wrong_phase:
        right = "replayed" if expected.captured else "eager"
        return f"expected {wanted} a step, {how[right]}; saw {got}, {how[kind.phase]}"
    return f"expected {wanted} a step; saw {got}"


def _steps(steps: int, ranks: int) -> str:
    return f"{steps} step{'s' * (steps != 1)} of {ranks} rank{'s' * (ranks != 1)}"
