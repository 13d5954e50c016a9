"""check: a profiler trace against what a launch line or log should do. Called by people and by `sglang-probe check`.

    files -> traces -> tracks -> calls -> steps -> the steps in question -> compared with the slots of a Step, and ranks with one another

Invariant: without a server only what was seen is told; a trace that cannot answer ends in CANNOT_TELL, never in AGREES.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._types import Group, InputError, Model
from .answer import answer_of
from .calls import calls_of
from .case import Case
from .events import Track
from .expected import expected_of
from .files import TraceFiles, find_files, name_apart, read_trace
from .marks import DECODES, stage_of
from .types import Checked

if TYPE_CHECKING:
    from .._releases import Release
    from .._step.types import Step

Progress = Callable[[str], None]
_SERVER = ("launch", "log", "url", "model", "group")
_PHASES = ("", "replayed", "eager")


def check(
    trace: TraceFiles,
    *,
    launch: str | None = None,
    log: str | os.PathLike[str] | None = None,
    url: str | None = None,
    model: str | os.PathLike[str] | Model | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    batch: int | None = None,
    draft_tokens: int | None = None,
    context: str | None = None,
    sglang: str | Release | None = None,
    group: Group | None = None,
    rank: int | None = None,
    phase: str | None = None,
    steps: tuple[int, int] | None = None,
    mark: str | None = None,
    partial: bool = False,
    progress: Progress | None = None,
) -> Checked:
    """What a profiler trace shows of a server's all-reduces, held against what they should be.

    ``trace``: a file of PyTorch's profiler (Chrome JSON, plain or gzip), an SQLite export of Nsight Systems, several of them (one a
    rank), or a folder. ``launch``, ``log``, ``url`` or ``model`` and all up to ``group`` are those of ``step``, whose calls are
    expected of each step of the trace; without any of them only what was seen is told. ``batch`` is by default what SGLang's own
    ranges in the trace say, else 1. ``rank`` takes one rank alone, ``phase`` ("replayed", "eager") and ``steps`` (first, behind the
    last) some of its steps, ``mark`` (a regular expression) tells by which ranges of the trace its steps are found. ``partial`` uses
    a damaged file as far as it is whole.

    Raises InputError that names the argument, its value and the remedy.
    """
    report = progress or (lambda _text: None)
    _check_arguments(rank, phase, steps)
    pattern = _pattern(mark)
    server = {"launch": launch, "log": log, "url": url, "model": model, "group": group}
    machine = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env, "sglang": sglang, "context": context}
    told = any(value is not None for value in server.values())
    if not told:
        _refuse_alone({**machine, "batch": batch, "draft_tokens": draft_tokens})
    if told and all(server[name] is None for name in ("launch", "log", "url", "model")):
        raise InputError("group", group, "goes with launch, log, url or model")
    files = find_files(trace)
    keywords: dict[str, Any] = {**server, **machine, "draft_tokens": draft_tokens, "costs": "none", "progress": progress}
    # First, so that a mistake in it does not wait for a long file.
    found = _step(batch or 1, **keywords) if told else None
    traces = [read_trace(path, mark=pattern, partial=partial, tell=report) for path in files]
    tracks = _of_rank(name_apart(track for one in traces for track in one.tracks), rank)
    size, notes = _batch(tracks, batch) if told else (None, ())
    if found is not None and size not in (None, found.batch):
        found = _step(size, **keywords)
    expected = None if found is None else expected_of(found)
    report("looking at its calls")
    calls = tuple(calls_of(track) for track in tracks)
    return answer_of(Case(tuple(traces), calls, expected, found, pattern, phase or "", steps, rank, notes, size is not None))


def _step(batch: int, *, launch: str | None, **keywords: Any) -> Step:
    from .._step.step import step

    return step(launch, batch=batch, **keywords)


def _check_arguments(rank: int | None, phase: str | None, steps: object) -> None:
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
        raise InputError("rank", rank, "give a whole number, 0 or more")
    if (phase or "") not in _PHASES:
        raise InputError("phase", phase, "give replayed or eager")
    if steps is None:
        return
    right = isinstance(steps, Sequence) and not isinstance(steps, str) and len(steps) == 2
    if not right or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in steps) or steps[0] >= steps[1]:  # type: ignore[index, attr-defined] # looked at in the line before
        raise InputError("steps", steps, "give two numbers: the first step, and the one behind the last, as 5:20")


def _pattern(mark: str | None) -> re.Pattern[str] | None:
    if mark is None:
        return None
    try:
        return re.compile(mark)
    except (re.error, TypeError) as error:
        raise InputError("mark", mark, f"is no regular expression ({error})") from None


def _refuse_alone(given: Mapping[str, object]) -> None:
    """What describes a server says nothing without one."""
    for name, value in given.items():
        if value is not None:
            raise InputError(name, value, f"goes with one of {', '.join(_SERVER[:4])}: without them nothing is expected")


def _of_rank(tracks: list[Track], rank: int | None) -> list[Track]:
    if rank is None:
        return tracks
    chosen = [track for track in tracks if track.rank == rank]
    if not chosen and tracks:
        there = ", ".join(sorted({track.label for track in tracks}))
        raise InputError("rank", rank, f"no such rank is in the trace: {there}")
    return chosen


def _batch(tracks: Sequence[Track], given: int | None) -> tuple[int | None, tuple[str, ...]]:
    """The batch that was asked for; else the one that SGLang's ranges name most often; None where nothing says it."""
    if given is not None:
        return given, ()
    told = Counter(
        size for track in tracks for mark in track.marks for word, size in [stage_of(mark.name)] if word in DECODES and size
    )
    if not told:
        return None, ("batch 1: neither --batch nor a range of the trace says another",)
    size, times = told.most_common(1)[0]
    return size, (f"batch {size}: {times} of {sum(told.values())} decode and verify ranges of the trace say so",)
