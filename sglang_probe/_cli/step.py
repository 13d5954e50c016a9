"""`sglang-probe step`: every all-reduce of one verify step. Called by cli.py.

Invariant: with nothing given it reads a server that runs here, or says how to ask; it never answers for a server that nobody named.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._show.page import Items, Line
from .._types import InputError
from .costs import add_costs_option
from .options import add_server_options, count, progress, server_arguments

if TYPE_CHECKING:
    from .._step.types import Step
    from ..launch import Running

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
    add_server_options(parser, api_key=True)
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs in all")
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="requests in the batch (1)")
    parser.add_argument(
        "--draft-tokens", type=count, metavar="N", help="tokens of a request in a verify step; by default the server's"
    )
    parser.add_argument("--context", help="capture or eager, ...; by default what the server would do")
    add_costs_option(parser)
    parser.set_defaults(run=run_step)


def run_step(args: argparse.Namespace) -> int:
    from .._server.url import using_key
    from .._show.step import step_page
    from ..cli import say, show

    _check_example(args)
    running = None
    if not args.example and all(getattr(args, name) is None for name in ("launch", "log", "url", "model")):
        running = _running_server()
        if running is None:
            say(_HOW)
            return 2
    with progress("reading") as tell, using_key(args.api_key):
        keywords = {
            **({"sglang": args.sglang} if args.example else server_arguments(args)),
            "gpus": args.gpus,
            "batch": args.batch,
            "draft_tokens": args.draft_tokens,
            "context": args.context,
            "costs": args.costs,
            "progress": tell,
        }
        found = _ask(args, keywords) if running is None else _ask_running(running, keywords)
        # Inside, because the single changes are routed here and rows of it may take a moment.
        page = () if args.json and args.report is None else step_page(found, args.verbose)
        data = found.to_dict() if args.json or args.report is not None else None
    show(args, data, page, found)
    return 0


def _ask(args: argparse.Namespace, keywords: Mapping[str, Any]) -> Step:
    from .._step.step import step

    return step(args.launch, log=args.log, url=args.url, example=args.example, **keywords)


def _ask_running(running: Running, keywords: Mapping[str, Any]) -> Step:
    """The server that was found here, with its own environment; by its command line while it does not answer."""
    from .._step.step import step

    keywords = {**keywords, "env": {**running.env, **(keywords["env"] or {})} or None}
    try:
        found = step(url=running.url, **keywords)
        how = f"found here: process {running.pid}, {running.url}"
    except InputError as error:
        if error.field != "url":
            raise
        found = step(running.launch, **keywords)
        how = f"found here: process {running.pid}, by its command line, because {running.url} gives no answer ({error.remedy})"
    return replace(found, notes=(how, *found.notes))


def _check_example(args: argparse.Namespace) -> None:
    if not args.example:
        return
    for name in ("launch", "log", "url", "model", "gpu", "link", "nodes", "gpus", "env"):
        if getattr(args, name) not in (None, []):
            raise InputError(
                name, getattr(args, name), "the example has its own server and machine: leave it out, or leave --example out"
            )


def _running_server() -> Running | None:
    from ..launch import find_running

    return find_running()
