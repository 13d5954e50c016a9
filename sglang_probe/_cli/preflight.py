"""`sglang-probe preflight`: does this machine reduce rightly, and what is it? Called by cli.py.

Invariant: exit status 0 means that nothing is wrong, 1 that something is; each phase's line is printed when it is known, and what was known
is printed too where Ctrl-C ends it (130).
"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parsers(commands: Any) -> None:
    from .._preflight.phases import PHASES

    width = max(len(phase.name) for phase in PHASES)
    listed = "\n".join(f"  {phase.name:<{width}}  at most {phase.limit_s:>2g} s  {phase.what}" for phase in PHASES)
    parser = commands.add_parser(
        "preflight", help="one checked all-reduce by each path, then GPUs, links, NCCL, limits", epilog=f"phases:\n{listed}"
    )
    parser.add_argument("--only", action="append", metavar="PHASE", help="this phase alone; repeat it for more, or use commas")
    parser.set_defaults(run=run_preflight)


def run_preflight(args: argparse.Namespace) -> int:
    from .._preflight.live import watch
    from .._preflight.phases import PHASES, chosen
    from .._preflight.runner import run
    from ..cli import show

    phases = chosen(PHASES, args.only)
    with watch(None if args.json else True, sys.stderr if args.json else sys.stdout) as look:
        found = run(phases, look)
    if not args.json:
        sys.stdout.write("\n")
    answer, *details = found.page(args.verbose, phases=False)
    # the phases' lines stand above: the answer comes last, where the eye is
    show(args, found.to_dict() if args.json else None, [*details, answer])
    return 130 if found.interrupted else 0 if found.healthy else 1
