"""`sglang-probe check`: a profiler trace against what a launch line or log should do. Called by cli.py.

Exit status: 0 agrees (or nothing was expected, and all ranks go one way), 1 differs, 2 bad input, or a trace that cannot answer.
Invariant: the first line is the answer, whatever it is; it fits a job of CI as it is.
"""

from __future__ import annotations

import argparse

_ABOUT = """What did a server's all-reduces do, by a profiler trace, and is that what they should do? Reads traces of PyTorch's profiler
(.json, .json.gz: SGLang's /start_profile writes one a rank) and SQLite exports of Nsight Systems, holds each step against the calls that
`step` expects of the launch line or log, and ranks against one another. Exit status 0 agrees, 1 differs, 2 cannot be told."""
_EXAMPLES = """examples:
  sglang-probe check traces/ --launch "python -m sglang.launch_server ..." --gpu h200 --sglang 0.5.9
  sglang-probe check TP-0.trace.json.gz --log server.log
  sglang-probe check report.sqlite --model DeepSeek-V3 --gpus 8 --gpu h200 --sglang 0.5.16 --batch 4
  sglang-probe check TP-0.trace.json.gz                            without a server: what is in it"""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from .options import add_server_options, count

    parser = commands.add_parser(
        "check", help="a profiler trace against what a launch line or log should do", description=_ABOUT, epilog=_EXAMPLES
    )
    parser.add_argument("trace", nargs="+", metavar="TRACE", help="files, or a folder of them; one a rank, or all in one")
    add_server_options(parser, api_key=True)
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs in all, where there is a --model alone")
    step = parser.add_argument_group("the step")
    step.add_argument("--batch", type=count, metavar="N", help="requests in the batch; by default what the trace says, else 1")
    step.add_argument(
        "--draft-tokens", type=count, metavar="N", help="tokens of a request in a verify step; by default the server's"
    )
    step.add_argument("--context", help="capture or eager, ...; by default what the server would do")
    chosen = parser.add_argument_group("what of the trace")
    chosen.add_argument("--rank", type=int, metavar="N", help="this rank alone")
    chosen.add_argument("--phase", choices=("replayed", "eager"), help="only steps that a graph replays, or that run eagerly")
    chosen.add_argument("--steps", type=_steps, metavar="A:B", help="only steps A to B - 1, counted from 0")
    chosen.add_argument("--mark", metavar="REGEX", help="steps are what ranges of such names hold")
    chosen.add_argument("--partial", action="store_true", help="use a damaged trace as far as it is whole")
    parser.set_defaults(run=run_check)


def _steps(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: give the first step, and the one behind the last: 5:20")
    return int(first), int(last)


def run_check(args: argparse.Namespace) -> int:
    from .._server.url import using_key
    from .._trace.check import check
    from ..cli import show
    from .options import progress, server_arguments

    with progress("reading") as tell, using_key(args.api_key):
        found = check(
            args.trace,
            launch=args.launch,
            log=args.log,
            url=args.url,
            gpus=args.gpus,
            batch=args.batch,
            draft_tokens=args.draft_tokens,
            context=args.context,
            rank=args.rank,
            phase=args.phase,
            steps=args.steps,
            mark=args.mark,
            partial=args.partial,
            progress=tell,
            **server_arguments(args),
        )
    show(args, found.to_dict, found.page(args.verbose))
    return found.status
