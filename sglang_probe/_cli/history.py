"""`sglang-probe history` and `bisect`: since when does a launch route so, and which change did it. Called by cli.py.

Invariant: exit status 0 means that every release or commit of the range was asked; -v shows also those that change nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from .._types import Group, InputError

_HISTORY = """examples:
  sglang-probe history --launch "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8" --gpu h200
  sglang-probe history --launch "..." --gpu h200 --sglang 0.5.9..0.5.23 --batch 32
  sglang-probe history --gpu h200 --world-size 8"""
_BISECT = """examples:
  sglang-probe bisect path/to/sglang v0.5.8..v0.5.9 --launch "python -m sglang.launch_server ..." --gpu h200"""


def add_parsers(commands: Any) -> None:
    from .conditions import add_machine_options
    from .options import count

    parser = commands.add_parser("history", help="one launch over all releases: what changed when, and why", epilog=_HISTORY)
    parser.add_argument("--sglang", metavar="A..B", help="a range of releases; by default all")
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="requests in the batch of a verify step (1)")
    parser.add_argument("--prefill-tokens", type=count, metavar="N", help="tokens of a prefill chunk; by default the server's")
    parser.add_argument("--world-size", type=count, metavar="N", help="ranks, where a group is asked and no server (8)")
    add_machine_options(parser, ("launch",), revision=False)
    parser.set_defaults(run=run_history)

    parser = commands.add_parser("bisect", help="the commits of a checkout that change a launch's routes", epilog=_BISECT)
    parser.add_argument("checkout", metavar="CHECKOUT", help="a folder with SGLang's git repository")
    parser.add_argument("range", metavar="GOOD..BAD", help="two revisions of it")
    parser.add_argument("--world-size", type=count, metavar="N", help="ranks, where a group is asked and no server (8)")
    add_machine_options(parser, ("launch",), revision=False)
    parser.set_defaults(run=run_bisect)


def run_history(args: argparse.Namespace) -> int:
    from .._proof.history import history
    from .._show.history import history_page
    from ..cli import show
    from .conditions import all_assumed, has_server, server_keywords
    from .options import progress

    common = {"releases": args.sglang, "batch": args.batch, "prefill_tokens": args.prefill_tokens}
    with progress("reading"):
        if has_server(args):
            _check_launch(args)
            found = history(**server_keywords(args), **common)
        else:
            group, assumed = _asked(args)
            found = history(group=group, **common)
            found = replace(found, assumed=all_assumed(assumed, found.assumed))
    show(args, lambda: found.to_dict(args.verbose), history_page(found, args.verbose), found)
    return 0


def _check_launch(args: argparse.Namespace) -> None:
    """What belongs to a group by itself does not go with a launch line."""
    if args.fact:
        raise InputError(
            "fact", args.fact[0], "each release has facts of its own: leave it out, or describe a group by --gpu and --fact"
        )
    if getattr(args, "world_size", None):
        raise InputError("world_size", args.world_size, "the launch line says it: --tp")


def run_bisect(args: argparse.Namespace) -> int:
    from .._proof.bisect import bisect
    from .._show.history import bisect_page
    from .._show.page import items
    from ..cli import show
    from .conditions import has_server, server_keywords
    from .options import progress

    asked: dict[str, Any] = {}
    assumed: tuple[str, ...] = ()
    if has_server(args):
        _check_launch(args)
        asked = server_keywords(args)
    else:
        asked["group"], assumed = _asked(args)
    with progress("reading commits") as tell:
        found = bisect(args.checkout, args.range, progress=tell, **asked)
    show(args, found.to_dict, [*bisect_page(found, args.verbose), *items("Assumed", assumed, "dim")])
    return 0


def _asked(args: argparse.Namespace) -> tuple[Group, tuple[str, ...]]:
    """A group that the options describe; none is taken for granted."""
    from .conditions import asked_group, has_group

    if not has_group(args):
        raise InputError("launch", None, "give --launch, or describe a group: --gpu h200 --world-size 8")
    return asked_group(args, "")
