"""`sglang-probe top`: all workers of this machine, like a process viewer. Called by cli.py.

Exit status 0, also where Ctrl-C ends it; 1 where there is no worker. Invariant: it only reads.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

_ABOUT = """Paths, sizes, rates, phases, alarms, replays and call sites of every rank, expected against observed, and whether all ranks
make the same calls. "executed" is what ran: eager calls once, captured ones as often as their graph was replayed. Ranks are read from
outside: it works while they hang."""
_EPILOG = """examples:
  sglang-probe top
  sglang-probe top --once --json
  sglang-probe top --pid 4242 --why
  sglang-probe top --serve 9108         # Prometheus, at http://127.0.0.1:9108/metrics"""


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser(
        "top", help="what running workers do: all ranks of this machine, live", description=_ABOUT, epilog=_EPILOG
    )
    add_sources(parser)
    parser.add_argument("--once", action="store_true", help="two looks, one answer, and end; --json: the same")
    parser.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="seconds between looks (1); with --once 0: one look, no rates"
    )
    parser.add_argument("--serve", type=_port, metavar="PORT", help="instead: answer Prometheus on this port")
    parser.add_argument("--address", default="127.0.0.1", metavar="ADDRESS", help="with --serve: of this address (127.0.0.1)")
    parser.verbose_text = "every call site and size, and every graph"
    parser.set_defaults(run=run_top)


def add_sources(parser: Any) -> None:
    """Which workers: shared by top, dump and record."""
    parser.add_argument("--pid", type=int, action="append", default=[], metavar="PID", help="this worker alone; repeat it")
    parser.add_argument(
        "--all", dest="dead", action="store_true", help="processes that have ended too, not only with those that live"
    )


def sources_of(args: argparse.Namespace) -> list[Any] | None:
    """What was named; None: all."""
    named = [*args.pid, *getattr(args, "file", ())]
    return named or None


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds, 0 to 3600")
    return value


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r}: give a port, 1 to 65535")
    return int(text)


def run_top(args: argparse.Namespace) -> int:
    from .._live.screen import run, serve
    from .._live.top import Watch, top
    from .._types import InputError, ProbeError
    from ..cli import show

    sources = sources_of(args)
    if args.serve is None and (args.once or args.json):
        found = top(sources, seconds=args.interval, dead=args.dead)
        show(args, found.to_dict() if args.json else None, found.page(args.verbose))
        return 0 if found.workers else 1
    if not args.interval:
        raise InputError("interval", 0, "0 goes with --once: give seconds between looks")
    with Watch(sources, dead=args.dead) as watch, contextlib.suppress(KeyboardInterrupt):
        if args.serve is None:
            run(watch, args.interval, args.verbose)
        else:
            try:
                serve(watch, args.serve, args.address, sys.stderr)
            except OSError as error:
                raise ProbeError(f"{args.address}:{args.serve} cannot be listened on: {error.strerror}") from None
    return 0
