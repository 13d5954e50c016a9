"""`sglang-probe noise`: the smallest effect that this machine can resolve, found with two equal arms. Called by cli.py.

Exit status: as that of ab.py. Invariant: every option is one of `ab`, and means the same.
"""

from __future__ import annotations

import argparse
from typing import Any

_ABOUT = """How large must a difference be to be seen here? The same thing is run in two equal arms, each run in fresh processes,
interleaved as `ab` would. Their spread says which effect so many runs can resolve, and how many runs 1, 2, 5 and 10 % take; equal arms
that are relabelled at random say how often they would be told apart by chance."""
_EXAMPLES = """examples:
  sglang-probe noise --figure "throughput: ([0-9.]+)" --unit tok/s -- python bench.py
  sglang-probe noise --target one_shot --size 42KiB --runs 20
interrupted, or over --time? The same command goes on."""


def add_parsers(commands: Any) -> None:
    from .ab import add_common

    parser = commands.add_parser(
        "noise", help="the smallest effect that this machine can resolve", description=_ABOUT, epilog=_EXAMPLES
    )
    parser.add_argument("line", nargs="*", metavar="-- COMMAND", help="what is run")
    add_common(parser, "noise.jsonl", "10: of each of the two equal arms")
    parser.verbose_text = "the machine's state of both arms, each run"
    parser.set_defaults(run=run_noise)


def run_noise(args: argparse.Namespace) -> int:
    from .._ab.noise import RUNS
    from .._ab.noise import run_noise as run
    from .ab import arm_of, ended, rule_of

    what = arm_of(args, "")
    return ended(args, lambda say: run(what, say=say, **rule_of(args, RUNS)), lambda result: result.experiment)
