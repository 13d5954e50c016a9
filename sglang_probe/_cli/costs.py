"""The option --costs of the commands that cost something. Called by step and bands."""

from __future__ import annotations

import argparse


def add_costs_option(parser: argparse.ArgumentParser) -> None:
    """``args.costs`` is what ``load_costs`` takes."""
    text = (
        "what calls cost: a file that bench wrote, the output of nccl-tests' all_reduce_perf, or published figures; repeat it, the "
        "first that fits a call wins. shipped: the tables of this package (the default); none: no costs"
    )
    parser.add_argument("--costs", action="append", metavar="FILE", help=text)
