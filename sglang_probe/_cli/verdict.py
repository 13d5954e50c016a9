"""`sglang-probe verdict A B`: is B faster than A? FASTER, SLOWER, SAME or UNDECIDED. Called by cli.py.

Exit status 0 whatever the word is: UNDECIDED is an answer; 2 where the figures cannot be compared.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._verdict.verdict import Verdict

_EPILOG = """A and B are each: figures with commas between, one of each fresh process (89.2,94.1 or 19.1ms,19.4ms), a CSV file, a
Measurement file. Or one CSV file with a column that tells the arms apart: runs.csv --arm-column version

examples:
  sglang-probe verdict 89 82 --unit tok/s
  sglang-probe verdict 4023,4019,3380,4002,4090 4384,4466,4471 --unit tok/s --why
  sglang-probe verdict before.csv after.csv --unit ms --margin 1%
  sglang-probe verdict before.jsonl after.jsonl --cell "custom captured 16KiB"
  sglang-probe verdict bench.jsonl bench.jsonl --cell "custom captured 16KiB" --cell "pynccl_in_place captured 16KiB" """


def add_parsers(commands: Any) -> None:
    text = "is one faster than the other? FASTER, SLOWER, SAME or UNDECIDED, and how many runs would settle it"
    parser = commands.add_parser("verdict", help=text, description=text, epilog=_EPILOG)
    parser.verbose_text = "all figures of both arms, and how many runs show how much"
    parser.add_argument("a", metavar="A", help="what it is compared with")
    parser.add_argument("b", metavar="B", nargs="*", help="what is judged; not with --arm-column")
    parser.add_argument("--better", choices=("higher", "lower"), help="which figures are better; most units tell")
    parser.add_argument("--unit", metavar="UNIT", help="of figures that bring none: tok/s, us, ms, s, ...")
    parser.add_argument("--margin", type=fraction, default=0.02, metavar="M", help="what counts as the same (2%%)")
    parser.add_argument("--confidence", type=fraction, default=0.95, metavar="C", help="of word and interval (95%%)")
    cell = "of a Measurement, words that only one of its cells has; twice: A's and B's"
    parser.add_argument("--cell", action="append", default=[], metavar="WORDS", help=cell)
    column = "of a Measurement its times (device_us, elapsed_us, host_us, wait_us, transfer_us), of a CSV file the figures"
    parser.add_argument("--column", metavar="NAME", help=column)
    parser.add_argument("--arm-column", metavar="NAME", help="the column of one CSV file that tells its arms apart")
    parser.add_argument("--arms", metavar="A,B", help="with --arm-column: which two, the one that is compared with first")
    parser.add_argument("--markdown", action="store_true", help="print Markdown for a bug report")
    parser.set_defaults(run=run_verdict)


def fraction(text: str) -> float:
    """``2%`` or ``0.02``, as an option."""
    bare = text.strip()
    try:
        value = float(bare[:-1]) / 100 if bare.endswith("%") else float(bare)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give a fraction: 2% or 0.02") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a fraction above 0 and below 1: 2% or 0.02")
    return value


def run_verdict(args: argparse.Namespace) -> int:
    found = _verdict(args)
    show_result(args, found)
    return 0


def show_result(args: argparse.Namespace, result: Any) -> None:
    """To stdout as it was asked for, and into the report."""
    from .. import _report
    from ..cli import command_line, print_answer

    command = command_line(args)
    if args.report is not None:
        _report.write(result, args.report, command=command)
    if args.markdown and not args.json:
        sys.stdout.write(_report.markdown(result, command=command).rstrip("\n") + "\n")
        return
    print_answer(args, result.to_dict() if args.json else None, result.page(args.verbose))


def _verdict(args: argparse.Namespace) -> Verdict:
    from .._types import InputError
    from .._verdict.reading import arms
    from .._verdict.verdict import verdict

    if len(args.b) > 1:
        raise InputError(
            "b", " ".join(args.b), "it is one: figures of an arm have commas between and no blanks, as 82,83 or '82, 83'"
        )
    b = args.b[0] if args.b else None
    if len(args.cell) > 2:
        raise InputError("cell", args.cell[2], "give it once for both arms, or twice")
    keywords = {name: getattr(args, name) for name in ("better", "margin", "confidence", "unit")}
    if args.arm_column is not None:
        for name in ("b", "cell"):
            if getattr(args, name):
                raise InputError(name, getattr(args, name), "with --arm-column both arms are in one CSV file")
        wanted = None if args.arms is None else [one.strip() for one in args.arms.split(",")]
        one, other = arms(args.a, arm_column=args.arm_column, arms=wanted, column=args.column)
        return verdict(one, other, **keywords)
    if b is None or args.arms is not None:
        field = "b" if b is None else "arms"
        raise InputError(
            field,
            b if field == "b" else args.arms,
            "give both arms, or one CSV file and the column that tells them apart: --arm-column NAME",
        )
    cell = None if not args.cell else tuple(args.cell) if len(args.cell) == 2 else args.cell[0]
    return verdict(args.a, b, cell=cell, column=args.column, **keywords)
