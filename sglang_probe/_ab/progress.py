"""What people see while an experiment runs: a bar with the current interval and the time left, else a line a block.

Called by experiment.py. Invariant: rich is imported only where a bar is shown; nothing goes to stdout. The interval is for the eye: the
rule alone ends anything.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .._show.page import printable
from .._show.where import is_watched
from .._verdict.verdict import Verdict

_SAY_S = 10.0
"""Between two lines where no bar is shown."""


class Progress:
    """``with Progress(runs, there, deadline, show, say) as progress``: at most so many runs, of which that many are there.

    ``say`` gets lines where no bar is shown, and what `tell` is told.
    """

    def __init__(
        self,
        runs: int,
        there: int,
        deadline: float = math.inf,
        show: bool | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._runs, self._there, self._deadline, self._say = runs, there, deadline, say
        self._show = is_watched() if show is None else show
        self._bar: Any = None
        self._task: Any = None
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
            console = Console(stderr=True)
            self._bar = Bar(*columns, _left(self._deadline), TextColumn("{task.fields[so_far]}"), console=console, transient=True)
            self._task = self._bar.add_task("starting", total=self._runs, completed=self._there, so_far="")
            self._bar.start()
        return self

    def begin(self, text: str, runs: int) -> None:
        """A run begins; so many are done."""
        if self._bar is not None:
            self._bar.update(self._task, description=printable(text), completed=runs, total=max(self._runs, runs))

    def so_far(self, verdict: Callable[[], Verdict], runs: int) -> None:
        """A block is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=runs, total=max(self._runs, runs), so_far=printable(interval_text(verdict())))
        elif self._say is not None and time.monotonic() - self._said >= _SAY_S:
            self._said = time.monotonic()
            self._say(f"{runs} runs: {interval_text(verdict())}")

    def tell(self, text: str) -> None:
        """Something that a reader should know at once."""
        if self._say is not None:
            self._say(text)
        elif self._bar is not None:
            self._bar.console.print(f"sglang-probe: {printable(text)}", markup=False, highlight=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):  # a terminal that was closed: what ended the experiment shall not be lost for it
                self._bar.stop()


def interval_text(verdict: Verdict) -> str:
    """``b -3.1 % [-7.9, +1.9] so far``"""

    def percent(value: float) -> str:
        return f"{100 * value:+.1f}" if math.isfinite(value) and value > -1 else "-"

    return f"{verdict.b.label} {percent(verdict.effect)} % [{percent(verdict.low)}, {percent(verdict.high)}] so far"


def _left(deadline: float) -> Any:
    """Time left at most: until the last run that is planned, at the pace so far, or until the budget's end."""
    from rich.progress import Task, TimeRemainingColumn
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            budget = max(0.0, deadline - time.monotonic())
            pace = math.inf if task.time_remaining is None else task.time_remaining
            seconds = min(budget, pace)
            if not math.isfinite(seconds):
                return Text("left: -", style="progress.remaining")
            minutes, rest = divmod(int(seconds), 60)
            hours, minutes = divmod(minutes, 60)
            return Text(f"left: at most {hours:d}:{minutes:02d}:{rest:02d}", style="progress.remaining")

    return Left()
