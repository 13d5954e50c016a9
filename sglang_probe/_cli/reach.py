"""`sglang-probe reach`: can this rule fire, can this path be taken? A proof that it cannot, or a witness. Called by cli.py.

Invariant: exit status 0 means answered, whatever the answer; only ``--assert-unreachable`` makes a witness a failure (1).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from .._types import InputError

_EXAMPLES = """examples:
  sglang-probe reach piecewise_pynccl --sglang 0.5.9 --no-piecewise
  sglang-probe reach pynccl_out_of_place --sglang 0.5.9..0.5.23 --no-piecewise
  sglang-probe reach quick --sglang 0.5.9 --custom absent --custom disabled
  sglang-probe reach piecewise_pynccl --sglang 0.5.16 --launch "python -m sglang.launch_server ..." --gpu h200"""


def add_parsers(commands: Any) -> None:
    from .conditions import add_condition_options, add_machine_options
    from .options import count

    parser = commands.add_parser(
        "reach", help="can a rule fire, a path be taken? A proof that it cannot, or a witness", epilog=_EXAMPLES
    )
    parser.add_argument("target", metavar="RULE|PATH", help="a name of either; one that is both means the rule, or see --kind")
    parser.add_argument(
        "--sglang", required=True, metavar="REVISION|A..B", help="0.5.9, E10, path/to/checkout@revision, or a range of releases"
    )
    parser.add_argument("--kind", choices=("rule", "path"), help="what the name means")
    parser.add_argument("--assert-unreachable", action="store_true", help="exit status 1 where it is reachable")
    add_machine_options(parser, ("launch", "log", "url"), revision=False)
    parser.add_argument(
        "--hidden", type=count, default=0, metavar="N", help="columns of a group's tensors, where a gate counts rows"
    )
    add_condition_options(parser)
    parser.set_defaults(run=run_reach)


def run_reach(args: argparse.Namespace) -> int:
    from .._proof.ask import reach
    from .._server.url import using_key
    from .._show.proof import reach_page
    from ..cli import show
    from .conditions import all_assumed, asked_group, fixed_conditions, has_group, has_server, server_keywords, server_with_facts

    if args.hidden and has_server(args):
        raise InputError("hidden", args.hidden, "the server's model says it; leave one of them out")
    common = {"sglang": args.sglang, "kind": args.kind}
    if has_group(args):
        group, assumed = asked_group(args, args.sglang)
        found = reach(args.target, group=group, hidden=args.hidden, **common)
        found = replace(found, assumed=all_assumed(assumed, found.assumed))
    elif has_server(args) and args.fact:
        if ".." in args.sglang:
            raise InputError("fact", args.fact[0], "goes with one release: each release of a range has facts of its own")
        with using_key(args.api_key):
            server = server_with_facts(args, args.sglang)
            found = reach(args.target, server=server, described=_described(args), **common)
    else:
        with using_key(args.api_key):
            found = reach(args.target, **common, **server_keywords(args), **fixed_conditions(args))
    show(args, found.to_dict, reach_page(found, args.verbose))
    return 1 if args.assert_unreachable and found.reachable else 0


def _described(args: argparse.Namespace) -> str:
    """The code that makes a group of the options' server with their facts; {group} is its name."""
    from .conditions import server_keywords
    from .options import facts_of

    keywords = {name: value for name, value in server_keywords(args).items() if value is not None}
    source = next(name for name in ("launch", "log", "url") if name in keywords)
    first = keywords.pop(source)
    more = "".join(f", {name}={value!r}" for name, value in keywords.items())
    text = f"probe.read_{source}({first!r}, sglang={args.sglang!r}{more})".replace("{", "{{").replace("}", "}}")
    facts = ", ".join(f"{name}={value}" for name, value in facts_of(args.fact).items())
    return f'{text}.groups["{{group}}"].with_facts({facts})'
