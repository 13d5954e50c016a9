"""`sglang-probe top` as it runs: a screen that is drawn again, plain lines where nobody sees a screen. Called by the command.

Invariant: a look that takes long delays the next one and never piles up; Ctrl-C ends it and leaves the terminal as it was.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from .._show.page import printable, to_text
from .top import Top, Watch


def run(watch: Watch, every_s: float, verbose: bool, stream: TextIO | None = None) -> None:
    """Until Ctrl-C. On a terminal the whole screen; elsewhere a block of lines each time."""
    out = sys.stdout if stream is None else stream
    if out.isatty():
        _screen(watch, every_s, verbose, out)
    else:
        _lines(watch, every_s, verbose, out)


def _lines(watch: Watch, every_s: float, verbose: bool, out: TextIO) -> None:
    def show(found: Top) -> None:
        out.write(f"{time.strftime('%H:%M:%S')}  {to_text(found.page(verbose))}\n\n")
        out.flush()

    _again(watch, every_s, show)


def _screen(watch: Watch, every_s: float, verbose: bool, out: TextIO) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from .._report.console import Printed

    console = Console(file=out, highlight=False)
    hint = Text(f"every {every_s:g} s; Ctrl-C ends it", style="dim")
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

        def show(found: Top) -> None:
            live.update(Group(Printed(tuple(found.page(verbose))), Text(""), hint), refresh=True)

        _again(watch, every_s, show)


def _again(watch: Watch, every_s: float, show: Callable[[Top], None]) -> None:
    pause = threading.Event()
    while True:
        began = time.monotonic()
        show(watch.look())
        pause.wait(max(every_s - (time.monotonic() - began), every_s / 10))


def serve(watch: Watch, port: int, address: str, say: TextIO) -> None:
    """Answers Prometheus until Ctrl-C."""
    from .prometheus import serve as answer

    lock = threading.Lock()

    def look() -> Top:
        with lock:  # two scrapes at once share one Watch
            return watch.look()

    end = answer(look, port, address)
    say.write(printable(f"http://{address}:{port}/metrics: a look at every scrape; Ctrl-C ends it") + "\n")
    say.flush()
    try:
        threading.Event().wait()
    finally:
        end()
