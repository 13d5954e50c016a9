"""`sglang-probe diff`: what changes between two revisions, in every state, or for a launch line in every size. Called by cli.py.

Invariant: exit status 0 means compared; only with ``--exit-code`` does a change give 1, as with git diff.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from .._types import InputError

_EXAMPLES = """examples:
  sglang-probe diff bba2fc4 0be30d4
  sglang-probe diff bba2fc4 0be30d4 --no-piecewise --exit-code
  sglang-probe diff 0.5.9 0.5.16 --launch "python -m sglang.launch_server ..." --gpu h200
  sglang-probe diff path/to/sglang@main path/to/sglang@my-branch --matrix launches.txt --exit-code"""


def add_parsers(commands: Any) -> None:
    from .conditions import add_condition_options, add_machine_options

    parser = commands.add_parser("diff", help="every state, or every size of a server, whose route changes", epilog=_EXAMPLES)
    for name, text in (("a", "before: 0.5.9, E10, path/to/checkout@revision"), ("b", "after")):
        parser.add_argument(name, metavar=name.upper(), help=text)
    parser.add_argument("--exit-code", action="store_true", help="exit status 1 where something changes")
    parser.add_argument("--matrix", metavar="FILE", help="launch lines, one a line: those whose routes change are told")
    add_machine_options(parser, ("launch",), revision=False)
    add_condition_options(parser)
    parser.set_defaults(run=run_diff)


def run_diff(args: argparse.Namespace) -> int:
    from .._proof.diff import diff
    from .._show.proof import diff_page
    from ..cli import show
    from .conditions import all_assumed, asked_group, fixed_conditions, has_group, has_server, server_keywords, server_with_facts

    if args.matrix is not None:
        return _run_matrix(args)
    if has_group(args):
        group, assumed = asked_group(args, args.a)
        found = diff(args.a, args.b, group=group)
        found = replace(found, assumed=all_assumed(assumed, found.assumed))
    elif has_server(args) and args.fact:
        found = diff(args.a, args.b, server=(server_with_facts(args, args.a), server_with_facts(args, args.b)))
    else:
        found = diff(args.a, args.b, **server_keywords(args), **fixed_conditions(args))
    show(args, found.to_dict, diff_page(found, args.verbose))
    return 1 if args.exit_code and found else 0


def _run_matrix(args: argparse.Namespace) -> int:
    from .._proof.matrix import matrix
    from .._show.history import matrix_page
    from ..cli import show
    from .conditions import fixed_conditions, server_keywords
    from .options import progress

    stray = {"launch": args.launch, "fact": args.fact or None, **fixed_conditions(args)}
    name = next((name for name, value in stray.items() if value is not None), None)
    if name:
        raise InputError(name, stray[name], "goes without --matrix, whose file holds the launch lines")
    with progress("reading") as tell:
        found = matrix(args.a, args.b, args.matrix, progress=tell, **server_keywords(args))
    show(args, found.to_dict, matrix_page(found, args.verbose))
    return 1 if args.exit_code and found else 0
