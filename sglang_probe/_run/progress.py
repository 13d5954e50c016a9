"""What people see while a group starts, where that takes over a second: one line on a terminal or in a notebook, gone when it is done.

Called by LocalGroup. Invariant: nothing is shown, and rich is not imported, where nobody looks on or the start is quick.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from .._show.where import is_watched

_QUICK_S = 1.0


class Starting:
    """``with Starting(what) as progress: ... progress(ranks that have joined)``"""

    def __init__(self, what: str) -> None:
        self._what, self._since = what, time.monotonic()
        self._status: Any = None
        self._seen = is_watched()

    def __call__(self, joined: int) -> None:
        if not self._seen or time.monotonic() - self._since < _QUICK_S:
            return
        text = f"starting {self._what}: {joined} joined"
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
