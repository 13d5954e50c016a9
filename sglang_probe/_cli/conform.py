"""`sglang-probe conform`: our tables against SGLang's own code. Called by cli.py.

Invariant: exit status 0 means that something was compared and nothing differed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("conform", help="our tables against SGLang's own code, state by state")
    text = "a release (fetched once), installed, path/to/checkout@revision, an era, or all"
    parser.add_argument("sglang", metavar="RELEASE|PATH@REVISION|installed|all", help=text)
    parser.set_defaults(run=run_conform)


def run_conform(args: argparse.Namespace) -> int:
    from .._conform.conform import conform
    from .._show.render import conform_page
    from ..cli import show

    with _progress(args.sglang) as tell:
        report = conform(args.sglang, progress=tell)
    show(args, report.to_dict, conform_page(report, args.verbose))
    return 0 if report.ok else 1


@contextlib.contextmanager
def _progress(sglang: str) -> Iterator[Callable[[str], None] | None]:
    """A bar on stderr where that is a terminal: releases done for ``all``, else what is being compared."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from .._releases import COMMITS, RELEASES

    every = sglang.strip() == "all"
    columns = [SpinnerColumn(), TextColumn("{task.description}"), *([BarColumn(), MofNCompleteColumn()] if every else [])]
    seen: set[str] = set()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(sglang, total=len(RELEASES) - len(COMMITS) if every else None)

        def tell(text: str) -> None:
            name = text.partition(":")[0]
            seen.add(name if name in RELEASES else "")
            bar.update(task, description=text, completed=max(0, len(seen - {""}) - 1))

        yield tell
