"""What the hook has to say: each thing once in the worker's log, and kept for whoever asks. Called by the session and its parts.

Invariant: a finding is logged once a kind and never raised; saying it cannot fail a worker.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from .forking import Lock

LOGGER = "sglang_probe"
NOTE_BYTES = 480
"""Longest note of a ring file."""
_KEPT = 1000
_NOTED = ("promise", "target", "aside")
"""What no reader finds out from the ring's numbers: it stands there as a note."""


def cut(text: str) -> str:
    """As much of it as a note holds."""
    return text.encode()[:NOTE_BYTES].decode(errors="ignore")


@dataclass(frozen=True)
class Finding:
    """One thing that was noticed."""

    kind: str
    """``difference``, ``promise``, ``fused``, ``graph``, ``target`` or ``aside``."""
    about: str
    """What it is about; with ``kind`` it is told once."""
    text: str


class Findings:
    """Those of one process, in order."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told: dict[tuple[str, str], Finding] = {}
        self.note: Callable[[str], object] | None = None
        """Puts a text into the ring."""

    def tell(self, kind: str, about: str, text: str, level: int = logging.WARNING) -> bool:
        """False: it was told before."""
        with self._lock:
            if (kind, about) in self._told or len(self._told) >= _KEPT:
                return False
            self._told[kind, about] = Finding(kind, about, text)
        if self.note is not None and kind in _NOTED:
            with contextlib.suppress(Exception):
                self.note(cut(text))
        with contextlib.suppress(Exception):  # a log that cannot be written to is no reason to fail
            logging.getLogger(LOGGER).log(level, "%s", text)
        return True

    def all(self) -> tuple[Finding, ...]:
        with self._lock:
            return tuple(self._told.values())
