"""`sglang-probe route` and `sglang-probe bands`: one tensor, and all sizes, of one group. Called by cli.py.

Invariant: the answer is what ``route`` and ``bands`` of the Python API give for the group that is printed with it.
"""

from __future__ import annotations

import argparse
from typing import Any

from .._types import Call, InputError
from .costs import add_costs_option
from .options import Asked, add_group_options, count, read_group


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("route", help="where one tensor goes in one group, and why")
    parser.add_argument("--bytes", metavar="SIZE", help="43008, 42KiB, 8MiB-16")
    parser.add_argument("--tokens", type=count, metavar="N", help="with --hidden, in the place of --bytes")
    parser.add_argument("--hidden", type=count, metavar="N", help="elements of the last dimension")
    parser.add_argument(
        "--lift",
        action="append",
        default=[],
        metavar="REASON",
        help="what if this reason of a gate were gone? (its name in --json)",
    )
    add_group_options(parser)
    parser.set_defaults(run=run_route)
    parser = commands.add_parser("bands", help="the path per byte range, every boundary exact")
    parser.add_argument(
        "--hidden", type=count, default=0, metavar="N", help="elements of the last dimension, where a workspace asks"
    )
    add_group_options(parser)
    add_costs_option(parser)
    parser.set_defaults(run=run_bands)


def run_route(args: argparse.Namespace) -> int:
    from .._route import route
    from .._show.page import items
    from .._show.render import decision_page
    from ..cli import show

    call = _call(args)
    asked = read_group(args)
    decision = route(call, asked.group, context=args.context, sglang=asked.sglang, lift=args.lift)
    page = [*decision_page(decision, call, asked.group, args.context, args.verbose), *items("Assumed", asked.assumed, "dim")]
    show(args, lambda: {**_case(args, asked, call), **decision.to_dict()}, page)
    return 0


def run_bands(args: argparse.Namespace) -> int:
    from .._bands import bands
    from .._show.bands import bands_page
    from .._show.page import items
    from ..cli import show

    asked = read_group(args)
    chosen = {"context": args.context, "dtype": args.dtype, "hidden": args.hidden}
    found = bands(asked.group, **chosen, sglang=asked.sglang, costs=args.costs)
    page = [*bands_page(found, args.verbose), *items("Assumed", asked.assumed, "dim")]
    show(args, {**found.to_dict(), "assumed": list(asked.assumed)}, page, found)
    return 0


def _call(args: argparse.Namespace) -> Call:
    from .._facts import DTYPE_BYTES, check_dtype
    from .._show.sizes import parse_bytes

    dtype = check_dtype(args.dtype)
    if args.bytes is not None:
        if args.tokens is not None:
            raise InputError("bytes", args.bytes, "give either --bytes, or --tokens and --hidden")
        return Call(parse_bytes(args.bytes), dtype, hidden=args.hidden or 0)
    if args.tokens is None or args.hidden is None:
        raise InputError("bytes", None, "give --bytes, or --tokens and --hidden")
    nbytes = parse_bytes(str(args.tokens * args.hidden * DTYPE_BYTES[dtype]), "tokens")
    return Call(nbytes, dtype, tokens=args.tokens, hidden=args.hidden)


def _case(args: argparse.Namespace, asked: Asked, call: Call) -> dict[str, Any]:
    return {
        "bytes": call.nbytes,
        "dtype": call.dtype,
        "context": args.context,
        "group": asked.group.name,
        "world_size": asked.group.world_size,
        "assumed": list(asked.assumed),
    }
