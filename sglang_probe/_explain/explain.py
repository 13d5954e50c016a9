"""explain: can this change of SGLang explain that difference? Called by people and by the command of this name.

Invariant: arguments are checked here, by name, before anything is read or walked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .._costs.costs import CostFiles, load_costs
from .._measure.cell import Pattern
from .._releases import Release
from .._types import FrozenMap, InputError, Model
from .bounds import Pricer
from .case import Case, Figures
from .given import Kind, Source, opened, read_given
from .seen import waiting_of
from .sides import EXAMPLE, Asked
from .types import Explanation, Waiting

__all__ = ["explain"]

Progress = Callable[[str], None]
_PATTERNS = ("interleaved", "back_to_back")
_KINDS: Mapping[Kind, str] = FrozenMap({"step": "the time of a step", "rate": "tok/s", "call": "the time of a call"})


def explain(
    before: Source = None,
    after: Source = None,
    *,
    sglang_before: str | Release | None = None,
    sglang_after: str | Release | None = None,
    launch: str | None = None,
    log: str | os.PathLike[str] | None = None,
    url: str | None = None,
    model: str | os.PathLike[str] | Model | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    batch: int = 1,
    draft_tokens: int | None = None,
    accepted: float | tuple[float, float] | None = None,
    context: str | None = None,
    plain_before: Source = None,
    plain_after: Source = None,
    unit: str | None = None,
    cell: Any = None,
    column: str | None = None,
    costs: CostFiles = None,
    pattern: Pattern | None = None,
    margin: float = 0.02,
    confidence: float = 0.95,
    example: bool = False,
    progress: Progress | None = None,
) -> Explanation:
    """Can the change from one SGLang to another explain a difference that was seen?

    Parameters
    ----------
    before, after
        The time of a verify step (``"19ms"``), tok/s of the stream (``"89tok/s"``), several of them (runs), both kinds in a list, numbers
        with ``unit``, a CSV, or a Measurement with ``cell`` and ``column`` (the time of one call). tok/s are those of all requests of the
        batch together.
    sglang_before, sglang_after
        Releases, commits that are known, or checkouts.
    launch, log, url, model, gpu, link, nodes, gpus, env
        The server and its machine, as `step` takes them. A log's or URL's settings are taken for both releases.
    batch, draft_tokens, context
        Of the step that was timed, as `step` takes them.
    accepted
        The mean accepted length of a verify step, the bonus token with it; two numbers: before and after.
    plain_before, plain_after
        What was seen of decoding without speculation.
    costs, pattern
        What calls cost, as `step` has it; ``"interleaved"`` or ``"back_to_back"``: only figures taken so.
    margin, confidence
        Of the verdicts, as `verdict` has them.
    example
        The motivating case.

    Raises InputError that names the argument, its value and the remedy; MeasurementError for a file that cannot be used.
    """
    report = progress or (lambda _text: None)
    server: dict[str, Any] = {"launch": launch, "log": log, "url": url, "model": model}
    machine: dict[str, Any] = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env}
    change: dict[str, Any] = {"sglang_before": sglang_before, "sglang_after": sglang_after, "context": context}
    figures: dict[str, Any] = {"before": before, "after": after, "plain_before": plain_before, "plain_after": plain_after}
    if example:
        _fill_example(server, machine, change, figures)
    _check(change, pattern)
    how = {"unit": unit, "cell": cell, "column": column}
    figures = {name: opened(source) for name, source in figures.items()}
    found = _both_sides(figures["before"], figures["after"], "", how)
    plain = _both_sides(figures["plain_before"], figures["plain_after"], "plain_", how)
    if not found and not plain:
        raise InputError("before", None, "give what was seen: before='19ms', after='29ms', or tok/s, numbers or files of both")
    pricer = Pricer(load_costs(costs), pattern)
    asked = Asked(**change, **server, machine=FrozenMap(machine), batch=batch, draft_tokens=draft_tokens)
    case = Case(asked, found, plain, pricer, report)
    seen = case.seen(accepted, margin, confidence)
    report("pricing what changes")
    return case.explanation(seen, (*_waiting(figures["before"], figures["after"], cell, found), *case.waits(costs)))


def _fill_example(server: dict[str, Any], machine: dict[str, Any], change: dict[str, Any], figures: dict[str, Any]) -> None:
    """The motivating case, where nothing else is given. Raises InputError for a server or machine beside it."""
    for name, value in {**server, **machine}.items():
        if value is not None:
            raise InputError(name, value, "the example has its own server and machine: leave it out, or leave example out")
    for mine in (server, machine):
        mine.update({name: EXAMPLE[name] for name in mine if name in EXAMPLE})
    change.update({name: value if value is not None else EXAMPLE[name] for name, value in change.items()})
    if all(value is None for value in figures.values()):
        figures.update({name: EXAMPLE[name] for name in figures})


def _check(change: Mapping[str, Any], pattern: str | None) -> None:
    for name in ("sglang_before", "sglang_after"):
        if change[name] is None:
            raise InputError(
                name, None, "give both releases, for example sglang_before='0.5.8', sglang_after='0.5.9'; or ask for the example"
            )
    if pattern not in (None, *_PATTERNS):
        raise InputError("pattern", pattern, f"give one of {', '.join(_PATTERNS)}")


def _both_sides(before: Source, after: Source, prefix: str, how: Mapping[str, Any]) -> Figures:
    """By kind: both sides. Raises InputError where one side lacks what the other has."""
    cells = how["cell"] if isinstance(how["cell"], tuple | list) and len(how["cell"]) == 2 else (how["cell"],) * 2
    sides = ((before, "before", cells[0]), (after, "after", cells[1]))
    was, now = (
        read_given(source, f"{prefix}{name}", unit=how["unit"], cell=cell, column=how["column"]) for source, name, cell in sides
    )
    for kind, text in _KINDS.items():
        for has, lacks, name, source in ((was, now, "after", after), (now, was, "before", before)):
            if kind in has and kind not in lacks:
                raise InputError(f"{prefix}{name}", source, f"the other side has {text}: give the same kind of figure for both")
    if "call" in was and len(was) > 1:
        raise InputError(f"{prefix}before", before, "the time of a call stands by itself: ask about the step in another question")
    return FrozenMap({kind: (was[kind], now[kind]) for kind in was})


def _waiting(before: Source, after: Source, cell: Any, figures: Figures) -> tuple[Waiting, ...]:
    if "call" not in figures:
        return ()
    cells = cell if isinstance(cell, tuple | list) and len(cell) == 2 else (cell, cell)
    sides = zip((before, after), ("before", "after"), cells, strict=True)
    return tuple(one for one in (waiting_of(*side) for side in sides) if one is not None)
