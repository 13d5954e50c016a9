"""`sglang-probe record`: what running workers record, started and stopped; or a command that is run with the hook. Called by cli.py.

Exit status 0; that of the command where one is run; 1 where status finds nobody. Invariant: of a running worker only its control word
is written.
"""

from __future__ import annotations

import argparse
from typing import Any

_ABOUT = """start, stop: what running workers record, from their next call on, without a restart. status: who records what. clean:
removes the files of processes that have ended. Or, for SGLang before v0.5.11 (later ones have plug-ins: SGLANG_PROBE=1 is enough): a
command, run with the hook in each of its workers."""
_EPILOG = """examples:
  sglang-probe record status
  sglang-probe record start --site-every 64 --timer-every 100 --host-time
  sglang-probe record stop --pid 4242
  sglang-probe record -- python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"""
_ACTIONS = ("start", "stop", "status", "clean")


def add_parsers(commands: Any) -> None:
    from .top import add_sources

    text = "start and stop recording in running workers; or run a server with the hook"
    parser = commands.add_parser("record", help=text, description=_ABOUT, epilog=_EPILOG)
    parser.add_argument(
        "line", nargs="*", metavar="ACTION | -- COMMAND", help=f"{', '.join(_ACTIONS)}; or what is run with the hook"
    )
    add_sources(parser)
    group = parser.add_argument_group("start")
    group.add_argument("--site-every", type=int, metavar="N", help="the call site of every n-th call; 0: of none")
    group.add_argument("--timer-every", type=int, metavar="N", help="the device time of every n-th eager call; 0: of none")
    group.add_argument("--host-time", action=argparse.BooleanOptionalAction, help="the host's time of every call")
    parser.set_defaults(run=run_record)


def run_record(args: argparse.Namespace) -> int:
    from .._types import InputError

    line = args.line
    if not line:
        raise InputError("record", "", f"give one of {', '.join(_ACTIONS)}, or -- and a command")
    if len(line) > 1 or line[0] not in _ACTIONS:
        return _command(args, line)
    action = line[0]
    given = [name for name in ("site_every", "timer_every", "host_time") if getattr(args, name) is not None]
    if given and action != "start":
        raise InputError(given[0], getattr(args, given[0]), "goes with start")
    return _clean(args) if action == "clean" else _tell(args, action)


def _command(args: argparse.Namespace, line: list[str]) -> int:
    from .._types import InputError
    from ..hook.bootstrap import launch

    for name in ("pid", "site_every", "timer_every", "host_time"):
        if getattr(args, name) not in (None, []):
            raise InputError(
                name,
                getattr(args, name),
                f"goes with start: once it runs, sglang-probe record start --{name.replace('_', '-')} ...",
            )
    launch(line)


def _tell(args: argparse.Namespace, action: str) -> int:
    from .._live.control import record_start, record_status, record_stop
    from ..cli import show
    from .top import sources_of

    sources = sources_of(args)
    if action == "start":
        found = record_start(sources, site_every=args.site_every, timer_every=args.timer_every, host_time=args.host_time)
    else:
        found = record_stop(sources) if action == "stop" else record_status(sources, dead=args.dead)
    show(args, found.to_dict() if args.json else None, found.page(args.verbose))
    return 0 if found.workers else 1


def _clean(args: argparse.Namespace) -> int:
    from .._live.control import record_clean
    from .._live.words import many
    from .._show.page import Line
    from .._show.sizes import human_bytes
    from .._types import InputError
    from ..cli import show

    if args.pid:
        raise InputError("pid", args.pid[0], "clean removes the files of all that have ended")
    files, nbytes, left = record_clean()
    told = f"removed {many(files, 'file')} of processes that have ended" + (f" ({human_bytes(nbytes)})" if nbytes else "")
    told += f"; left {many(left, 'file')} that were written to a moment ago, without a goodbye" if left else ""
    show(args, {"removed": files, "bytes": nbytes, "left": left}, [Line(told, "answer")])
    return 0
