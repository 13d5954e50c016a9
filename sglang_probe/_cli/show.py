"""`sglang-probe show FILE`: what a Measurement file holds, as the bench that wrote it told it. Called by cli.py."""

from __future__ import annotations

import argparse
from typing import Any


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser(
        "show", help="a Measurement file again: its table, on what it was measured, what is wrong with it"
    )
    parser.add_argument("file", metavar="FILE", help="what bench wrote; a .partial one at any moment")
    parser.add_argument("--rescue", action="store_true", help="skip damaged lines, and say which")
    parser.set_defaults(run=run_show)


def run_show(args: argparse.Namespace) -> int:
    from .._measure.measurement import Measurement
    from ..cli import show

    found = Measurement.read(args.file, rescue=args.rescue)
    show(args, found.to_dict() if args.json else None, found.page(args.verbose))
    return 1 if any(cell.wrong for cell in found.cells) else 0
