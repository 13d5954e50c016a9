"""`sglang-probe dispatch`: the rules alone, conditions in and a decision out. Called by cli.py.

Invariant: every keyword of the Python function is an option of the same name.
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

_SWITCHES = "symmetric_memory", "piecewise", "compiling", "flashinfer", "cpu_shm", "amd_deterministic", "custom_multinode"


def add_parsers(commands: Any) -> None:
    from .._route import COMMUNICATORS, DEVICES

    parser = commands.add_parser("dispatch", help="the rules alone: conditions in, decision out")
    parser.add_argument(
        "--sglang", required=True, metavar="REVISION", help="0.5.9, 0be30d4, E10, installed, path/to/checkout@revision"
    )
    parser.add_argument("--world-size", type=int, default=8, metavar="N", help="ranks (8)")
    for name in COMMUNICATORS:
        parser.add_argument(_option(name), default="absent", metavar="STATE", help="absent, disabled, declines or accepts")
    parser.add_argument("--pynccl", default="absent", metavar="STATE", help="absent, disabled or enabled")
    for name in _SWITCHES:
        parser.add_argument(_option(name), action="store_true")
    parser.add_argument("--device", default="cuda", help=", ".join(DEVICES))
    parser.set_defaults(run=run_dispatch)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def run_dispatch(args: argparse.Namespace) -> int:
    from .._route import dispatch
    from .._show.render import decision_page
    from ..cli import show

    names = [name for name in inspect.signature(dispatch).parameters if name != "sglang"]
    decision = dispatch(args.sglang, **{name: getattr(args, name) for name in names})
    show(args, decision.to_dict, decision_page(decision, verbose=args.verbose))
    return 0
