"""Each phase's line as soon as it is known: on a terminal with what is being done, in a notebook or a pipe as plain lines.

Called by runner.py and by the command. Invariant: a line is printed once, whole, and what it says stands in the result too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from .._show.page import printable
from .._show.where import in_notebook
from .runner import Nobody, Watch

if TYPE_CHECKING:
    from .phases import Phase
    from .result import PhaseResult

_STYLES = {
    "ok": "green",
    "skipped": "dim",
    "finding": "bold yellow",
    "hung": "bold red",
    "died": "bold red",
    "failed": "bold red",
}


class Lines:
    """Plain lines, for a pipe or a file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def started(self, phase: Phase) -> None: ...
    def doing(self, phase: Phase, text: str, seconds: float) -> None: ...

    def ended(self, result: PhaseResult) -> None:
        self._stream.write(printable(str(result)) + "\n")
        self._stream.flush()


class Rich:
    """Lines in colour, and below them what is being done, with the time that it has taken."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False)
        self._status = self._console.status("")

    def started(self, phase: Phase) -> None:
        self._status.update(f"{phase.name}: {phase.what}")
        self._status.start()

    def doing(self, phase: Phase, text: str, seconds: float) -> None:
        from rich.text import Text

        self._status.update(Text(f"{phase.name}: {printable(text or phase.what)} ({seconds:.0f} of at most {phase.limit_s:g} s)"))

    def ended(self, result: PhaseResult) -> None:
        from rich.text import Text

        self._status.stop()
        state, name, time, text = result.row
        rest = f"  {name:<11}  {time:>6}  {printable(text)}"
        self._console.print(Text.assemble((f"{state:<7}", _STYLES[result.state]), rest), soft_wrap=True)

    def close(self) -> None:
        self._status.stop()


@contextlib.contextmanager
def watch(show: bool | None, stream: TextIO | None = None) -> Iterator[Watch]:
    """Who looks on: nobody, or lines on `stream` (stderr). None: where a person sees them."""
    out = sys.stderr if stream is None else stream
    notebook = stream is None and in_notebook()
    terminal = out is not None and out.isatty()
    if show is False or out is None or (show is None and not (terminal or notebook)):
        yield Nobody()
    elif not terminal:
        yield Lines(sys.stdout if notebook else out)
    else:
        seen = Rich(out)
        try:
            yield seen
        finally:
            seen.close()
