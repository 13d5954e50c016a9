"""What people see while a bench runs: a bar with the time left on a terminal or in a notebook, else lines: what is to come, each
process set, and every half minute of one.

Called by runner.py. Invariant: rich is imported only where a bar is shown; nothing goes to stdout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .._show.page import printable
from .._show.where import is_watched

_SILENT_S = 30.0
"""Without a bar: for so long nothing is said."""


class Progress:
    """``with Progress(cells, there, show, say) as progress``: so many cells, of which that many are there.

    ``say`` gets lines where no bar is shown, and what `tell` is told.
    """

    def __init__(self, cells: int, there: int, show: bool | None = None, say: Callable[[str], None] | None = None) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._cells, self._there, self._show, self._say = cells, there, is_watched() if show is None else show, say
        self._set, self._since, self._first = "", time.monotonic(), there
        self._told = self._since

    def __enter__(self) -> Progress:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left:"),
            )
            self._bar = Bar(
                *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, speed_estimate_period=120
            )
            self._task = self._bar.add_task("starting", total=self._cells, completed=self._there)
            self._bar.start()
        elif self._say is not None:
            self._say(f"{self._cells - self._there:,} cells to measure")
        return self

    def begin(self, process: int, of: int) -> None:
        """A process set is being started."""
        self._line()
        self._set, self._since, self._first = f"process set {process + 1} of {of}", time.monotonic(), self._there
        self._told = self._since
        if self._bar is not None:
            self._bar.update(self._task, description=self._set)

    def advance(self, cells: int, fewer: int = 0) -> None:
        """So many more are there, and so many fewer will ever be."""
        self._there += cells
        self._cells -= fewer
        if self._bar is not None:
            self._bar.update(self._task, advance=cells, total=self._cells)
        elif time.monotonic() - self._told > _SILENT_S:
            self._tell_set()

    def tell(self, text: str) -> None:
        """Something that a reader should know at once."""
        if self._say is not None:
            self._say(text)
        elif self._bar is not None:
            self._bar.console.print(f"sglang-probe: {printable(text)}", markup=False, highlight=False)

    def _line(self) -> None:
        self._tell_set()
        self._set = ""

    def _tell_set(self) -> None:
        if self._bar is None and self._say is not None and self._set:
            self._told = time.monotonic()
            cells, seconds = self._there - self._first, self._told - self._since
            self._say(f"{self._set}: {cells} cells in {seconds:.1f} s, {self._there} of {self._cells} are there")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):  # a terminal that was closed: what ended the bench shall not be lost for it
                self._bar.stop()
        self._line()
