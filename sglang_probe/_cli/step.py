"""`sglang-probe step`: every all-reduce of one verify step. Called by cli.py.

Invariant: with nothing given it reads a server that runs here, or says how to ask; it never answers for a server that nobody named.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .._show.page import Items, Line
from .._types import InputError
from .options import add_server_options, count, server_arguments

_HOW = (
    Line("sglang-probe: no server was named, and none answers on this machine. Ask by one of:"),
    Items(
        "",
        (
            "sglang-probe step --example",
            'sglang-probe step --launch "python -m sglang.launch_server ..." --gpu h200 --sglang 0.5.9',
            "sglang-probe step --log server.log",
            "sglang-probe step --url http://127.0.0.1:30000",
            "sglang-probe step --model DeepSeek-V3 --gpus 8 --gpu h200 --sglang 0.5.9",
        ),
    ),
)


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("step", help="every all-reduce of one verify step: calls, bytes, path, count, why")
    parser.add_argument("--example", action="store_true", help="the motivating case: Kimi-K2.5 on 8 PCIe GPUs, two commits")
    add_server_options(parser)
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs in all")
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="requests in the batch (1)")
    parser.add_argument(
        "--draft-tokens", type=count, metavar="N", help="tokens of a request in a verify step; by default the server's"
    )
    parser.add_argument("--context", help="capture or eager, ...; by default what the server would do")
    parser.set_defaults(run=run_step)


def run_step(args: argparse.Namespace) -> int:
    from .._show.step import step_page
    from .._step.step import step
    from ..cli import say, show

    _check_example(args)
    if not (args.example or args.launch or args.log or args.url or args.model):
        args.url = _running_server()
        if args.url is None:
            say(_HOW)
            return 2
    with _progress() as tell:
        keywords = {"sglang": args.sglang} if args.example else server_arguments(args)
        found = step(
            args.launch,
            log=args.log,
            url=args.url,
            gpus=args.gpus,
            batch=args.batch,
            draft_tokens=args.draft_tokens,
            context=args.context,
            example=args.example,
            progress=tell,
            **keywords,
        )
        # Inside, because the single changes are routed here and rows of it may take a moment.
        page = () if args.json else step_page(found, args.verbose)
        data = found.to_dict() if args.json else None
    show(args, data, page)
    return 0


def _check_example(args: argparse.Namespace) -> None:
    if not args.example:
        return
    for name in ("launch", "log", "url", "model", "gpu", "link", "nodes", "gpus", "env"):
        if getattr(args, name):
            raise InputError(
                name, getattr(args, name), "the example has its own server and machine: leave it out, or leave --example out"
            )


def _running_server() -> str | None:
    from ..launch import find_server

    url: str | None = find_server()
    return url


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """What is being done, on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield status.update
