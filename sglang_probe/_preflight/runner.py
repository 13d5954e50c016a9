"""preflight: runs the phases of the table, one after the other, each in its own process. Public as ``sglang_probe.preflight``.

Invariant: the whole ends within the sum of the limits: each phase's process is killed early enough to be gone by its limit, and what is
not gone then is left behind. What a phase told before it hung, died or was interrupted is kept.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .._measure.format import thaw
from .._types import InputError
from .child import Child, Heard
from .phases import PHASES, Phase, chosen
from .result import PhaseResult, Preflight, State

_REAP_S, _REAP_PART = 0.2, 0.2
"""Of a limit, what is kept for the end of a process that is killed: so many seconds, at most this part of it."""


class Watch(Protocol):
    """Who looks on."""

    def started(self, phase: Phase) -> None: ...
    def doing(self, phase: Phase, text: str, seconds: float) -> None: ...
    def ended(self, result: PhaseResult) -> None: ...


class Nobody:
    """Looks on where nobody does."""

    def started(self, phase: Phase) -> None: ...
    def doing(self, phase: Phase, text: str, seconds: float) -> None: ...
    def ended(self, result: PhaseResult) -> None: ...


def preflight(*, only: str | Iterable[str] | None = None, show: bool | None = None) -> Preflight:
    """Does this machine reduce rightly, and what is it? One checked all-reduce by each path, then its devices, links and libraries.

    Every phase runs in a process of its own that is killed at its limit; a driver that is stuck is named, and what was known is kept.
    ``only``: names of phases, a list or with commas. ``show``: each answer as it is known; by default on a terminal (stderr) and in a
    notebook. A healthy machine takes under 30 s, a sick one at most the sum of the limits (``.limit_s``). Ctrl-C ends it early:
    ``.interrupted`` says so, ``.healthy`` is None unless something was wrong already, and what was known by then is there. Raises
    InputError for a name that is no phase.
    """
    phases = chosen(PHASES, only)
    if show is not None and not isinstance(show, bool):
        raise InputError("show", show, "give True, False or None")
    from .live import watch

    with watch(show) as look:
        return run(phases, look)


def run(phases: Sequence[Phase], watch: Watch) -> Preflight:
    """All of these phases, in this order."""
    results: list[PhaseResult] = []
    known: dict[str, Any] = {"caller": _caller()}
    interrupted = False
    for phase in phases:
        if interrupted:
            results.append(_skipped(phase, "not asked: interrupted before"))
            continue
        running = _Running(phase)
        try:
            running.run(known, results, watch)
        except KeyboardInterrupt:
            interrupted = True
        result = running.result(interrupted)
        known[phase.name] = thaw(result.facts)
        results.append(result)
        if not interrupted:
            watch.ended(result)
    return Preflight(tuple(results), interrupted)


def _skipped(phase: Phase, why: str) -> PhaseResult:
    return PhaseResult(phase.name, "skipped", 0.0, phase.limit_s, text=why)


class _Running:
    """One phase: its process, and what became of it."""

    def __init__(self, phase: Phase) -> None:
        self._phase, self._since = phase, time.monotonic()
        self._heard = Heard()
        self._how, self._left, self._lacks = "", "", ""
        self._seconds = 0.0

    def run(self, known: dict[str, Any], before: Sequence[PhaseResult], watch: Watch) -> None:
        """Starts it, listens, ends it; KeyboardInterrupt comes through, after its process was ended."""
        phase = self._phase
        self._lacks = _lacks(phase, before)
        if self._lacks:
            return
        watch.started(phase)
        deadline = self._since + phase.limit_s
        kill = deadline - min(_REAP_S, phase.limit_s * _REAP_PART)
        try:
            child = Child(phase.function, known, os.environ)
        except OSError as error:
            self._heard.broken = self._how = f"no process could be started: {error}"
            return
        self._heard = child.heard
        try:
            self._how = child.listen(kill, lambda: watch.doing(phase, self._heard.doing, time.monotonic() - self._since))
        finally:
            self._seconds = time.monotonic() - self._since
            try:
                self._left = child.end(deadline)
            except KeyboardInterrupt:
                self._left = child.end(deadline)
                raise

    def result(self, interrupted: bool) -> PhaseResult:
        """What it found, with what is to be said where it gave no answer."""
        if self._lacks:
            return _skipped(self._phase, self._lacks)
        name, limit, heard = self._phase.name, self._phase.limit_s, self._heard
        while_ = f", while {heard.doing}" if heard.doing else ""
        state: State
        if interrupted and not heard.end:
            state, text = "skipped", f"interrupted after {self._seconds:.1f} s{while_}"
        elif self._how == "hung":
            kept = "; what was learned before is kept" if heard.facts else ""
            state, text = "hung", f"phase '{name}' did not answer in {limit:g} s{while_}: {self._phase.hangs}{kept}"
        elif heard.broken:
            state, text = "failed", f"phase '{name}': {heard.broken}{while_}"
        elif heard.end is None:
            state, text = "died", f"phase '{name}': its process {self._how}{while_}"
        elif heard.end[0] == "ok":
            state, text = "finding" if heard.findings else "ok", heard.end[1]
        elif heard.end[0] == "skipped":
            state, text = "skipped", heard.end[1]
        else:
            state, text = "failed", f"phase '{name}' failed{while_}: {heard.end[1]}"
        no_answer = state in ("hung", "died", "failed")
        if self._left and no_answer:
            text += f"; {self._left}"
        notes = (*heard.notes, *((f"phase '{name}': {self._left}",) if self._left and not no_answer else ()))
        output = heard.output if no_answer else ""
        return PhaseResult(name, state, self._seconds, limit, heard.facts, tuple(heard.findings), text, notes, output)


def _lacks(phase: Phase, before: Sequence[PhaseResult]) -> str:
    """Why it is not started: GPUs that it needs and that are not there, or were not counted."""
    devices = next((result for result in before if result.name == "devices"), None)
    if not phase.needs_gpus or devices is None:
        return ""
    if devices.state in ("hung", "died", "failed"):
        return f"it asks the same driver as phase 'devices', which {devices.state}"
    count = devices.facts.get("count", 0)
    return (
        ""
        if count >= phase.needs_gpus
        else f"it needs {phase.needs_gpus} GPUs, and there {'is 1' if count == 1 else f'are {count}'}"
    )


def _caller() -> dict[str, Any]:
    """What only the calling process can tell: the libnccl that it has loaded."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            found = re.findall(r"\s(/\S.*/libnccl\.so[^\n/]*)$", maps.read(), re.M)
    except OSError:
        found = []
    return {"pid": os.getpid(), "libraries": list(dict.fromkeys(found))}
