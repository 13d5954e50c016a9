"""`sglang-probe dump`: all that workers have on record, shown or written in the formats of the field. Called by cli.py.

Exit status 0; 1 where nobody is on record, and with --agree where ranks differ, or one is behind and stands still.
Invariant: a file is written whole or not at all.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._live.recording import Recording

_ABOUT = """Records of running workers and of those that ended, killed ones too. Formats: table; json; npz (NumPy arrays); perfetto (a
trace for ui.perfetto.dev); prometheus (text); measurement (times of eager calls, which `verdict` and `step --costs` read)."""
_EPILOG = """examples:
  sglang-probe dump --example
  sglang-probe dump --agree                                  # exit status 1: ranks do not make the same calls
  sglang-probe dump --format perfetto --out trace.json.gz
  sglang-probe dump 4242.567.ring --format npz --out records.npz
  sglang-probe dump --format measurement --out live.jsonl && sglang-probe step --example --costs live.jsonl"""
_TABLE = "table"


def add_parsers(commands: Any) -> None:
    from .top import add_sources

    parser = commands.add_parser(
        "dump", help="all that workers have on record: tables, traces, arrays, costs", description=_ABOUT, epilog=_EPILOG
    )
    parser.add_argument(
        "file",
        nargs="*",
        metavar="FILE",
        help="ring files (.gz too), or folders of them; by default those of all workers of this user",
    )
    add_sources(parser)
    formats = (_TABLE, "json", "npz", "perfetto", "prometheus", "measurement")
    parser.add_argument("--format", choices=formats, help="what it becomes (table)")
    parser.add_argument("--out", metavar="FILE", help="where it goes (stdout); a name that ends in .gz is packed")
    parser.add_argument("--force", action="store_true", help="with --out: replace a file that is there")
    parser.add_argument("--last", type=int, metavar="N", help="the N newest records of each process alone")
    parser.add_argument("--example", action="store_true", help="instead of files: the recording that comes with the package")
    parser.add_argument(
        "--agree", action="store_true", help="instead: do all ranks make the same calls? Exit status 1: they do not"
    )
    parser.verbose_text = "every call site and size, every graph, more records"
    parser.set_defaults(run=run_dump)


def run_dump(args: argparse.Namespace) -> int:
    from .._live.recording import read_recording
    from .._types import InputError
    from ..cli import show
    from .top import sources_of

    format = _format(args)
    if args.agree:
        return _agree(args)
    if args.force and args.out is None:
        raise InputError("force", True, "goes with --out")
    recording = read_recording(sources_of(args), dead=args.dead, example=args.example)
    if format == _TABLE:
        if args.out is not None:
            raise InputError("format", _TABLE, "goes to the terminal: with --out give another format")
        show(args, None, recording.page(args.verbose))
        return 0 if recording.workers else 1
    return _write(args, recording, format)


def _format(args: argparse.Namespace) -> str:
    from .._types import InputError

    given = args.format
    if args.json and given not in (None, "json"):
        raise InputError("format", given, "--json is --format json: give one of them")
    if args.agree and (given is not None or args.out is not None):
        raise InputError("agree", True, "it has no --format and no --out; --json is JSON")
    return str(given or ("json" if args.json else _TABLE))


def _agree(args: argparse.Namespace) -> int:
    from .._live.asked import agree
    from .._live.control import record_status
    from .._live.find import example
    from ..cli import show
    from .top import sources_of

    found = agree(example() if args.example else sources_of(args), dead=args.dead)
    data, page = found.to_dict() if args.json else {}, found.page(args.verbose)
    if not found.groups and not args.example:
        there = record_status(sources_of(args), dead=True)
        if not there.workers:  # a script that looks in the wrong place must not read that all is well
            show(args, data | {"answer": there.answer}, there.page())
            return 1
    show(args, data, page)
    return 0 if found.agrees else 1


def _write(args: argparse.Namespace, recording: Recording, format: str) -> int:
    from .._live.recording import BINARY
    from .._types import InputError

    if args.out is not None:
        name = recording.write(args.out, format, last=args.last, replace=args.force)
        sys.stderr.write(f"{name}: {recording.answer}\n")
        return 0
    if format in BINARY:
        raise InputError("out", None, f"{format} is no text: give --out FILE")
    parts = list(recording.export(format, last=args.last))
    sys.stdout.write(b"".join(parts).decode())
    return 0
