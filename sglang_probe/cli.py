"""The command `sglang-probe`: its parser, and the one place where errors become messages and exit statuses. Commands are in _cli/.

Exit status: 0 answered; 1 something of ours or of this machine failed, conform or check found differences, or what
``--assert-unreachable`` or ``--exit-code`` asked about is so; 2 bad input; 3 a bench was stopped, and goes on; 130 interrupted
(a bench also 143 by SIGTERM, 129 by SIGHUP).
Invariant: after an error nothing stands on stdout; on stderr stands one message that names the field, the value and the remedy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__

if TYPE_CHECKING:
    from ._show.page import Page

_EPILOG = """examples:
  sglang-probe step --example
  sglang-probe step --launch "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8" --gpu h200 --sglang 0.5.9
  sglang-probe step --log server.log
  sglang-probe route --bytes 42KiB --gpu h200 --world-size 8 --context capture --sglang 0.5.9
  sglang-probe bands --gpu h200 --context capture --sglang 0.5.16
  sglang-probe reach piecewise_pynccl --sglang 0.5.9..0.5.23 --no-piecewise
  sglang-probe diff bba2fc4 0be30d4
  sglang-probe conform 0.5.9
  sglang-probe preflight
  sglang-probe bench --quick
  sglang-probe verdict 78.4,83.2,89.2 94.1,97.3 --unit tok/s
  sglang-probe ab --a-target one_shot --b-target pynccl_in_place --size 42KiB
  sglang-probe explain --example
  sglang-probe check traces/ --log server.log
  sglang-probe record status; sglang-probe top"""


_KEYWORD = re.compile(
    r"\b(sglang|sglang_before|sglang_after|model|gpu|gpus|link|nodes|context|batch|draft_tokens|launch|log|url|api_key|unit|better|cell|column|margin|confidence"
    r"|accepted)=(['\"]?)([^'\"\s]+)\2"
)


REPORTED = frozenset(
    ("step", "route", "bands", "dispatch", "reach", "diff", "history", "bisect", "conform", "check")
    + ("verdict", "ab", "noise", "explain")
)
"""Commands whose answer can be a report."""


class Parser(argparse.ArgumentParser):
    """Errors in one line, as those of the commands."""

    verbose_text = "all the evidence: every gate, rule and fact"
    commands: Mapping[str, Parser] = MappingProxyType({})

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"sglang-probe: {_CHOICE.sub(_with_nearest, message)} (see {self.prog} --help)\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Words that stand nowhere: named by the command that they were given to, with the nearest option that it has."""
        near = _nearest(words[0].split("=", 1)[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {shlex.join(words)}{near}")


_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)'(?= \(choose from (?P<choices>.*)\))")


def _with_nearest(found: re.Match[str]) -> str:
    return found[0] + _nearest(found["given"], re.findall(r"[\w.-]+", found["choices"]))


def _nearest(word: str, words: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, list(words), n=1, cutoff=0.75)
    return f", did you mean {near[0]}?" if near else ""


def build_parser() -> Parser:
    from ._cli import ab as _cli_ab
    from ._cli import bench as _cli_bench
    from ._cli import check as _cli_check
    from ._cli import conform as _cli_conform
    from ._cli import diff as _cli_diff
    from ._cli import dispatch as _cli_dispatch
    from ._cli import dump as _cli_dump
    from ._cli import explain as _cli_explain
    from ._cli import history as _cli_history
    from ._cli import noise as _cli_noise
    from ._cli import preflight as _cli_preflight
    from ._cli import reach as _cli_reach
    from ._cli import record as _cli_record
    from ._cli import releases as _cli_releases
    from ._cli import route as _cli_route
    from ._cli import show as _cli_show
    from ._cli import step as _cli_step
    from ._cli import top as _cli_top
    from ._cli import verdict as _cli_verdict

    parser = Parser(prog="sglang-probe", description="Which path does an all-reduce of SGLang take, and why?", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"sglang-probe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=Parser)
    for module in (
        _cli_step,
        _cli_route,
        _cli_dispatch,
        _cli_reach,
        _cli_diff,
        _cli_history,
        _cli_conform,
        _cli_releases,
        _cli_preflight,
        _cli_bench,
        _cli_show,
        _cli_verdict,
        _cli_noise,
        _cli_ab,
        _cli_explain,
        _cli_check,
        _cli_record,
        _cli_top,
        _cli_dump,
    ):
        module.add_parsers(commands)
    parser.commands = commands.choices
    for name, command in commands.choices.items():
        if name in REPORTED:
            command.add_argument("--report", metavar="FILE.html", help="write one HTML file too that holds everything")
        command.add_argument("--json", action="store_true", help="print only JSON")
        command.add_argument("-v", "--why", dest="verbose", action="store_true", help=command.verbose_text)
    return parser


def show(args: argparse.Namespace, data: Any, page: Page, result: Any = None) -> None:
    """The answer to stdout; before it, where that is asked for, into a report.

    `data` may be a function that makes it; `result` is what the report's picture is drawn of.
    """
    report = getattr(args, "report", None)
    if callable(data):
        data = data() if args.json or report is not None else None
    if report is not None:
        from . import _report

        _report.write_page(args.command, page, data, report, command=command_line(args), result=result)
    print_answer(args, data, page)


def print_answer(args: argparse.Namespace, data: Any, page: Page) -> None:
    """JSON or a page to stdout, whole or not at all."""
    if args.json:
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        return
    from ._show.page import print_page

    print_page(page)


def command_line(args: argparse.Namespace) -> str:
    """What was typed; "" where nothing was: the command was called by a program."""
    return shlex.join(["sglang-probe", *args.argv]) if getattr(args, "argv", None) else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # also while modules are imported
        return _fail(130, "interrupted")
    except MemoryError as error:
        return _fail(1, f"out of memory{f' ({error})' if str(error) else ''}: ask for less, or end what else takes it here")


def _main(argv: Sequence[str] | None) -> int:
    from ._types import InputError, ProbeError

    try:
        if sys.stderr is None:  # closed by who called (`2>&-`)
            sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        if sys.stdout is None:
            return _fail(1, "the answer could not be written: stdout is closed")
        parser = build_parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            parser.commands.get(args.command, parser).refuse(unknown)
        args.argv = list(sys.argv[1:] if argv is None else argv)
        if args.command is None:
            parser.print_help(sys.stderr)
            return 2
        if getattr(args, "report", None) is not None:  # before anything is asked or measured for it
            from . import _report

            _report.check_name(args.report, "report")
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SystemExit as stop:  # argparse: --help, --version, bad options
        return stop.code if isinstance(stop.code, int) else 2
    except InputError as error:
        given = "" if error.value is None else f"={error.value!r}"
        return _fail(2, f"{error.field}{given}: {_as_options(error.remedy)}")
    except (ProbeError, TimeoutError) as error:  # a rank that is not there, or stands still
        return _fail(1, str(error))
    except BrokenPipeError:
        _drop_stdout()
        return 141
    except OSError as error:  # what is ours to read was read and refused above: this is where the answer goes (a full disk)
        _drop_stdout()
        return _fail(1, f"the answer could not be written: {error.strerror or error}; make room, or write it elsewhere")


def _drop_stdout() -> None:
    """Nobody can read any more. The interpreter's own flush at exit must not complain about it either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_options(remedy: str) -> str:
    """A remedy as it is typed here: ``--sglang 0.5.9`` for ``sglang='0.5.9'``."""
    return _KEYWORD.sub(lambda found: f"--{found[1].replace('_', '-')} {found[3]}", remedy)


def _fail(status: int, message: str) -> int:
    from ._show.page import printable

    with contextlib.suppress(OSError):
        sys.stderr.write(f"sglang-probe: {printable(message)}\n")
    return status


def say(page: Page) -> None:
    """Help that belongs to an error: to stderr."""
    from ._show.page import to_text

    sys.stderr.write(to_text(page, 100) + "\n")


if __name__ == "__main__":
    sys.exit(main())
