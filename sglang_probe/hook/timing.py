"""Device time of every n-th eager call, by pairs of CUDA events on the call's own stream. Called by the Recorder, never inside a capture.

A pair is read when a later call is timed: nobody waits for it, and no other thread asks CUDA anything while a stream captures.
Invariant: events are used again, but for those of a call that raised; a stream that captures gets none.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .. import _core

PAIRS = 64
"""Timed calls that are on their way at most; more are not timed."""


class Timer:
    """``timer(None)`` before a call gives a token or None; ``timer(token, seq)`` after it."""

    def __init__(self, recorder: _core.Recorder, cuda: Any) -> None:
        self._recorder, self._cuda = recorder, cuda
        self._free: list[tuple[Any, Any]] = []
        self._running: deque[tuple[int, tuple[Any, Any]]] = deque()

    def __call__(self, token: tuple[Any, Any] | None, seq: int = 0) -> tuple[Any, Any] | None:
        if token is not None:
            token[1].record()
            self._running.append((seq, token))
            return None
        if self._cuda.is_current_stream_capturing():
            return None
        self._read()
        pair = self._pair()
        if pair is not None:
            pair[0].record()
        return pair

    def _pair(self) -> tuple[Any, Any] | None:
        if self._free:
            return self._free.pop()
        if len(self._running) >= PAIRS:  # one whose call raised is not among them: it never comes back
            return None
        return self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)

    def _read(self) -> None:
        while self._running and self._running[0][1][1].query():
            seq, pair = self._running.popleft()
            self._recorder.timed(seq, min(int(pair[0].elapsed_time(pair[1]) * 1e6), 2**32 - 1))
            self._free.append(pair)


def use_timer(recorder: _core.Recorder) -> None:
    """Where there is a GPU. Nothing is timed before ``timer_every`` says so."""
    import torch

    if torch.cuda.is_available():
        recorder.timer = Timer(recorder, torch.cuda)
