"""Whether the arms ran under the same conditions: variables, libraries, cores, governors, throttling, clocks. Called by experiment.py.

Chance differs from run to run; what counts is what differs between the arms and not within them. Invariant: a difference that was declared
is no finding; one that was not refuses a verdict, and says how to remove or to declare it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from .runs import Run
from .seen import stem
from .sides import Declared

KINDS = ("variables", "libraries", "cores", "governor", "throttle", "clocks")
"""Words that `allow` takes besides names of variables and libraries."""
FIXED = KINDS[:3]
"""Differences that no further run can undo."""
Labels = tuple[str, str]
"""What a and b are called."""
_CALM = frozenset({"idle", "applications_clocks", "sync_boost", "display_clocks"})
"""Reasons of the driver that are no throttling: nothing to do, or clocks that somebody set."""
_CLOCKS_RUNS, _CLOCKS_RATIO, _P = 4, 0.01, 0.01
_SHOWN = 6


@dataclass(frozen=True)
class Difference:
    """Something that differs between the arms."""

    kind: str
    name: str
    text: str
    remedy: str = ""
    refuses: bool = True
    """Whether no verdict can be given beside it; else it is only told."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def differences(
    runs: Sequence[Run],
    declared: Declared,
    allow: Iterable[str] = (),
    kinds: Iterable[str] = KINDS,
    labels: Labels = ("a", "b"),
) -> tuple[Difference, ...]:
    """Of these runs, which both arms have; those that are declared or allowed left out, and those of other ``kinds``."""
    allowed, wanted = frozenset(allow), frozenset(kinds) - frozenset(allow)
    find: Mapping[str, Callable[[], list[Difference]]] = {
        "variables": lambda: _variables(runs, declared, labels),
        "libraries": lambda: [*_nccl(runs, declared, labels), *_libraries(runs, declared, labels)],
        "cores": lambda: _cores(runs, labels),
        "governor": lambda: _governors(runs, labels),
        "throttle": lambda: [*_throttled(runs, labels), *_cpu_held(runs, labels)],
        "clocks": lambda: _clocks(runs, labels),
    }
    return tuple(one for kind in KINDS if kind in wanted for one in find[kind]() if one.name not in allowed)


def _of(runs: Iterable[Run], arm: str) -> list[Run]:
    return [run for run in runs if run.arm == arm]


def _apart(runs: Sequence[Run], values: Callable[[Run], frozenset[str]]) -> tuple[frozenset[str], frozenset[str]] | None:
    """What either arm had, where no value is of both and it is not chance: who has none must lack it while the other mostly has it."""
    mine = {arm: [values(run) for run in _of(runs, arm)] for arm in ("a", "b")}
    a, b = (frozenset[str]().union(*mine[arm]) for arm in ("a", "b"))
    if not mine["a"] or not mine["b"] or a == b or a & b:
        return None
    for own, found in ((a, mine["a"]), (b, mine["b"])):
        if own and 2 * sum(map(bool, found)) < len(found):
            return None
    return a, b


# ----------------------------------------------------------------------------------------------------------- variables and libraries


def _set_in(name: str, run: Run) -> frozenset[str]:
    return frozenset(run.seen.env.get(name, ()))


def _loaded_in(by_run: Mapping[int, Mapping[str, Iterable[str]]], name: str, run: Run) -> frozenset[str]:
    return frozenset(by_run[run.number].get(name, ()))


def _variables(runs: Sequence[Run], declared: Declared, labels: Labels) -> list[Difference]:
    looked = [run for run in runs if run.seen.looks]
    found = []
    for name in sorted({name for run in looked for name in run.seen.env} - declared.env):
        apart = _apart(looked, partial(_set_in, name))
        if apart is not None:
            a, b = (", ".join(sorted(values)) if values else "not set" for values in apart)
            value = next(iter(apart[1] or apart[0]))
            remedy = f"set it alike in both, or declare it: --{'b' if apart[1] else 'a'}-env {name}={value}"
            found.append(
                Difference(
                    "variables", name, f"{name} is {a} in {labels[0]}, and {b} in {labels[1]}, and was not declared", remedy
                )
            )
    return found


def _libraries(runs: Sequence[Run], declared: Declared, labels: Labels) -> list[Difference]:
    looked = [(run, run.seen.by_stem()) for run in runs if run.seen.looks]
    by_run = {run.number: stems for run, stems in looked}
    found = []
    for name in sorted({name for _, stems in looked for name in stems} - declared.libraries):
        apart = _apart([run for run, _ in looked], partial(_loaded_in, by_run, name))
        if apart is None or not all(apart):  # what one arm alone loads is what it does, and no other version of anything
            continue
        paths = [
            next(
                stems[name][digest] for run, stems in looked if run.arm == arm for digest in stems.get(name, ()) if digest in own
            )
            for arm, own in zip("ab", apart, strict=True)
        ]
        if any(path.startswith(folder) for path in paths for folder in declared.folders):
            continue
        text = f"{name} is {paths[0]} in {labels[0]}, and another one in {labels[1]}, {paths[1]}, and was not declared"
        found.append(Difference("libraries", name, text, f"let both load the same, or say that it is meant: --allow {name}"))
    return found


def _nccl(runs: Sequence[Run], declared: Declared, labels: Labels) -> list[Difference]:
    """Arms that were to load a libnccl, and did not, or another one besides: then nobody knows whose figure it is."""
    found = []
    for label, path, told in declared.nccl:
        looked = [run.seen for run in runs if labels["ab".index(run.arm)] == label and run.seen.looks]
        loaded = {
            digest: one for seen in looked for one, digest in seen.libraries.items() if digest == told or stem(one) == "libnccl"
        }
        if not looked or set(loaded) == {told}:
            continue
        others = ", ".join(sorted(one for digest, one in loaded.items() if digest != told))
        did = f"loaded {others}{' besides' if told in loaded else ''}" if others else "was never seen to load it"
        remedy = "let the program load libnccl.so.2 by its name alone, or let it run longer: what it has loaded is looked at now and then"
        found.append(Difference("libraries", "libnccl", f"{label} was to load {path}, and {did}", remedy))
    return found


# ------------------------------------------------------------------------------------------------------------------------------ CPU


def _cores(runs: Sequence[Run], labels: Labels) -> list[Difference]:
    looked = [run for run in runs if run.seen.looks]
    apart = _apart(looked, lambda run: frozenset(run.seen.cores))
    if apart is None or not all(apart):
        return []
    a, b = (" and ".join(sorted(values)) for values in apart)
    remedy = "let both run on the same (taskset, cpusets), or say that it is meant: --allow cores"
    return [Difference("cores", "cores", f"{labels[0]} may run on cores {a}, {labels[1]} on {b}", remedy)]


def _governors(runs: Sequence[Run], labels: Labels) -> list[Difference]:
    def governors(run: Run) -> frozenset[str]:
        return frozenset(str(word) for state in (run.before, run.after) for word in _cpu(state, "governors") or ())

    apart = _apart(runs, governors)
    if apart is None or not all(apart):
        return []
    a, b = (" and ".join(sorted(values)) for values in apart)
    remedy = "set one for the whole experiment (cpupower frequency-set -g performance)"
    return [Difference("governor", "governor", f"cores were governed by {a} in {labels[0]}, by {b} in {labels[1]}", remedy)]


def _cpu_held(runs: Sequence[Run], labels: Labels) -> list[Difference]:
    """CPUs that were held down by heat, or processes by their container's share."""
    found = []
    for name, text, remedy in (
        ("throttled", "CPU cores were throttled by heat", "let it cool, or clock it lower"),
        ("quota_throttled_us", "processes were held because the container's share of the CPU was used up", "give it more"),
    ):
        held = {arm: [_grew(run, name) for run in _of(runs, arm)] for arm in ("a", "b")}
        found += _one_sided("throttle", name, text, {arm: [bool(one) for one in held[arm]] for arm in held}, remedy, labels)
    return found


def _cpu(state: Mapping[str, Any], name: str) -> Any:
    cpu = state.get("cpu")
    return cpu.get(name) if isinstance(cpu, Mapping) else None


def _grew(run: Run, name: str) -> bool:
    before, after = _cpu(run.before, name), _cpu(run.after, name)
    return before is not None and after is not None and after > before


# ----------------------------------------------------------------------------------------------------------------------------- GPUs


def _reasons(run: Run) -> frozenset[str]:
    return (
        frozenset(str(reason) for state in run.states for gpu in state.get("gpus", ()) for reason in gpu.get("throttle") or ())
        - _CALM
    )


def _throttled(runs: Sequence[Run], labels: Labels) -> list[Difference]:
    found = []
    for reason in sorted({reason for run in runs for reason in _reasons(run)}):
        by_arm = {arm: [reason in _reasons(run) for run in _of(runs, arm)] for arm in ("a", "b")}
        remedy = "let it cool, give it power, or lock clocks that it can hold (nvidia-smi -lgc)"
        found += _one_sided("throttle", reason, f"GPUs were held down by {reason}", by_arm, remedy, labels)
    return found


def _one_sided(
    kind: str, name: str, text: str, by_arm: Mapping[str, Sequence[bool]], remedy: str, labels: Labels
) -> list[Difference]:
    """Where it came over one arm and not over the other; told only, where it came over both."""
    (a, of_a), (b, of_b) = ((sum(by_arm[arm]), len(by_arm[arm])) for arm in ("a", "b"))
    if not a and not b:
        return []
    told = f"{text} in {a} of {of_a} runs of {labels[0]}, and in {b} of {of_b} of {labels[1]}"
    if min(of_a, of_b) >= 3 and (_fisher(a, of_a, b, of_b) < _P or {a / of_a, b / of_b} == {0.0, 1.0}):
        return [Difference(kind, name, told, f"{remedy}; or say that it is meant: --allow {kind}")]
    return [Difference(kind, name, told, remedy, refuses=False)]


def _fisher(a: int, of_a: int, b: int, of_b: int) -> float:
    from scipy.stats import fisher_exact  # type: ignore[import-untyped, unused-ignore] # it ships no types

    return float(fisher_exact([[a, of_a - a], [b, of_b - b]])[1])


def _clocks(runs: Sequence[Run], labels: Labels) -> list[Difference]:
    """Of GPUs that work: the slowest of them, the middle of a run's states."""
    found = []
    for name, text in (("sm_mhz", "SM clock"), ("memory_mhz", "memory clock")):
        by_arm = {arm: [clock for run in _of(runs, arm) if (clock := _clock(run, name)) is not None] for arm in ("a", "b")}
        if min(len(clocks) for clocks in by_arm.values()) < _CLOCKS_RUNS:
            continue
        middle = {arm: sorted(clocks)[len(clocks) // 2] for arm, clocks in by_arm.items()}
        if abs(middle["b"] / middle["a"] - 1) <= _CLOCKS_RATIO or _rank_test(by_arm["a"], by_arm["b"]) >= _P:
            continue
        told = f"the {text} of busy GPUs was {middle['a']:,.0f} MHz in {labels[0]}, and {middle['b']:,.0f} MHz in {labels[1]}"
        remedy = "lock the clocks (nvidia-smi -lgc), or say that it is meant: --allow clocks"
        found.append(Difference("clocks", name, told, remedy))
    return found


def _clock(run: Run, name: str) -> float | None:
    clocks = []
    for state in run.states:
        busy = [gpu[name] for gpu in state.get("gpus", ()) if gpu.get(name) and "idle" not in (gpu.get("throttle") or ())]
        clocks += [min(busy)] if busy else []
    return float(sorted(clocks)[len(clocks) // 2]) if clocks else None


def _rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu  # type: ignore[import-untyped, unused-ignore] # it ships no types

    return float(mannwhitneyu(a, b).pvalue)


def texts(found: Iterable[Difference]) -> list[str]:
    """Each with its remedy; of many, the first ones."""
    told = [f"{one.text}{f': {one.remedy}' if one.remedy else ''}" for one in found]
    return told if len(told) <= _SHOWN else [*told[:_SHOWN], f"and {len(told) - _SHOWN} more"]
