"""Experiments that would tell, as command lines of `sglang-probe ab`. Called by case.py.

    is there a difference at all?      the whole server on both releases, interleaved: BEFORE and AFTER stand for two environments
    are these routes the cause?        one call by both ways, on the machine of the server
    was the graph the cause?           the same call eager and captured

Invariant: a line can be run as it stands, but for BEFORE and AFTER, and one after the other in one folder; `ab` takes every option in it.
"""

from __future__ import annotations

import shlex

from .._bench.targets import TARGETS
from .._report.text import names_secret
from .._server.command import split_command
from .answer import Question
from .seen import CALL, PLAIN
from .sides import Pair, Reader, Way
from .types import Experiment, Seen, Word

_PROGRAM = "sglang-probe ab"
_LOAD = "--dataset-name random --random-input-len 64 --random-output-len 512 --num-prompts"
_FIGURE = r"Output token throughput \(tok/s\): +([0-9.]+)"
_SPECULATIVE = "--speculative-"
_AGAIN, _ROUTES, _GRAPH = (f"--out explain_{name}.jsonl" for name in ("again", "routes", "graph"))
"""A file each: `ab` overwrites none, and goes on where the same line was stopped."""


def experiments_of(word: Word, question: Question, reader: Reader, eager: tuple[Pair, ...]) -> tuple[Experiment, ...]:
    """The one that would show most first. ``eager``: this step captured, and eager."""
    if word is Word.INCONSISTENT:
        return ()
    first = question.first
    again = None if first.what == CALL else _again(first, reader)
    routes = _calls(question.changed, _ROUTES, "whether these routes differ on this machine, and by how much a call")
    graph = _calls(eager, _GRAPH, "how much a call that is not captured costs here") if not question.changed else None
    again = None if first.settled and routes is not None else again
    order = (
        (graph, again)
        if word is Word.CANNOT_UNREACHABLE
        else (again, routes)
        if word is Word.NOTHING_TO_EXPLAIN
        else (routes, again)
    )
    return tuple(one for one in order if one is not None)


def _again(seen: Seen, reader: Reader) -> Experiment | None:
    """The whole server on both releases."""
    before, after = (release.name for release in reader.releases)
    asks = "whether it is there again, interleaved on one machine" if seen.settled else "whether there is a difference at all"
    why = f"{asks} ({seen.what}): BEFORE and AFTER are virtual environments with {before} and {after}"
    if reader.asked.launch is None:
        arms = '-a "BEFORE/bin/python YOUR_BENCHMARK" -b "AFTER/bin/python YOUR_BENCHMARK"'
        return Experiment(f"{_PROGRAM} {arms} --figure last --unit {seen.before.unit} {_AGAIN}", why)
    command = split_command(reader.asked.launch)
    flags = _without_secrets(_without_speculation(command.argv) if seen.what == PLAIN else list(command.argv))
    model = ["--model-path", command.model] if command.model else []
    env = [f"{name}={value}" for name, value in command.env.items() if not names_secret(name)]

    def of(side: str) -> str:
        words = [*env, f"{side}/bin/python", "-m", "sglang.bench_offline_throughput", *model, *flags]
        return shlex.quote(f"{shlex.join(words)} {_LOAD} {reader.asked.batch}")

    needed = seen.verdict.runs_needed
    runs = f" --runs {needed}" if needed else ""
    line = f"{_PROGRAM} -a {of('BEFORE')} -b {of('AFTER')} --figure {shlex.quote(_FIGURE)} --unit tok/s{runs} {_AGAIN}"
    return Experiment(line, why)


def _without_speculation(argv: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    drops = False
    for word in argv:
        if word.startswith("--"):
            drops = word.startswith(_SPECULATIVE)
        if not drops:
            kept.append(word)
    return kept


def _without_secrets(argv: list[str]) -> list[str]:
    """Nothing that is measured needs a key, and lines like these are shown to others."""
    kept: list[str] = []
    drops = False
    for word in argv:
        if word.startswith("--"):
            drops = names_secret(word.partition("=")[0])
        if not drops:
            kept.append(word)
    return kept


def _calls(pairs: tuple[Pair, ...], out: str, why: str) -> Experiment | None:
    """The call that changes most often, by both ways."""
    both = [(pair.count, pair.before, pair.after) for pair in pairs if pair.changes and pair.before and pair.after]
    named = [(count, was, now) for count, was, now in both if _name(was) and _name(now)]
    if not named:
        return None
    _, was, now = max(named, key=lambda one: one[0])
    arms = f"--a-target {_name(was)} --b-target {_name(now)}"
    if was.phase == now.phase:
        arms += f" --phase {was.phase}"
    else:
        arms += f" --a-phase {was.phase} --b-phase {now.phase}"
        if _name(was) == _name(now):
            arms += f" --a-label {was.phase} --b-label {now.phase}"
    call = now.item.call
    size = f"--tokens {call.tokens} --hidden {call.hidden}" if call.tokens and call.hidden else f"--size {call.nbytes}"
    dtype = "" if call.dtype == "bf16" else f" --dtype {call.dtype}"
    line = f"{_PROGRAM} {arms} {size}{dtype} --pattern interleaved --world-size {now.group.world_size} {out}"
    return Experiment(line, why)


def _name(way: Way) -> str:
    """As `bench` calls it; "" where it has no such target."""
    d = way.decision
    kernel = d.kernel if d.path == "custom" else ""
    return next((t.name for t in TARGETS.values() if t.path == d.path and (t.kernel == kernel or d.path != "custom")), "")
