"""`sglang-probe explain`: can this change of SGLang explain that difference? Called by cli.py.

Exit status: 0 answered, whatever the answer. Invariant: every option is a keyword of the Python function.
"""

from __future__ import annotations

import argparse
from typing import Any

from .._types import InputError

_ABOUT = """Something became slower, or faster, between two releases. Can their all-reduce dispatch be the cause? Says in one word:
CANNOT (unreachable: proved over every state, or too small: calls x difference of the two paths), COULD (and the experiment that would
show it), NOTHING TO EXPLAIN yet (the difference is inside the noise), or INCONSISTENT (the figures cannot be of one stream)."""
_EXAMPLES = """examples:
  sglang-probe explain --example
  sglang-probe explain --before 19ms --after 29ms --sglang-before 0.5.8 --sglang-after 0.5.9 --gpu h200 --launch "python -m ..."
  sglang-probe explain --before 89tok/s 91tok/s 88tok/s 90tok/s --after 82tok/s 83tok/s 81tok/s 82tok/s --accepted 2.1 ...
  sglang-probe explain --before old.csv --after new.csv --unit ms --costs bench.jsonl ...
  sglang-probe explain --plain-before 89tok/s --plain-after 82tok/s ...      without speculation"""
_SEEN = "19ms, 89tok/s, several of them (runs), both kinds, a CSV, or a file that bench wrote (the time of one call)"
_FIGURES = ("before", "after", "plain_before", "plain_after")


def add_parsers(commands: Any) -> None:
    from .costs import add_costs_option
    from .options import add_server_options, count
    from .verdict import fraction

    parser = commands.add_parser(
        "explain", help="can this change of SGLang explain that difference?", description=_ABOUT, epilog=_EXAMPLES
    )
    parser.add_argument("--example", action="store_true", help="the motivating case: Kimi-K2.5 on 8 PCIe GPUs, two commits")
    seen = parser.add_argument_group("what was seen")
    for name in ("before", "after"):
        seen.add_argument(f"--{name}", action="extend", nargs="+", metavar="FIGURE", help=_SEEN)
    for name in ("before", "after"):
        seen.add_argument(f"--plain-{name}", action="extend", nargs="+", metavar="FIGURE", help="the same, without speculation")
    seen.add_argument("--unit", help="of figures that bring none: us, ms, s or tok/s")
    cell = "of a file that bench wrote, words that only one of its cells has; twice: before and after"
    seen.add_argument("--cell", action="append", default=[], metavar="WORDS", help=cell)
    seen.add_argument("--column", metavar="NAME", help="of a file that bench wrote, which times; of a CSV, which column")
    text = "mean accepted length of a verify step, the bonus token with it; two numbers: before and after"
    seen.add_argument("--accepted", metavar="N[,N]", help=text)
    change = parser.add_argument_group("the change")
    for name, text in (("before", "0.5.8, bba2fc4, E9, path/to/checkout@revision"), ("after", "the other one")):
        change.add_argument(f"--sglang-{name}", metavar="REVISION", help=text)
    add_server_options(parser, revision=False, api_key=True)
    step = parser.add_argument_group("the step that was timed")
    step.add_argument("--gpus", type=count, metavar="N", help="GPUs in all, where there is a --model alone")
    step.add_argument("--batch", type=count, default=1, metavar="N", help="requests in the batch (1)")
    step.add_argument("--draft-tokens", type=count, metavar="N", help="tokens of a request; by default the server's")
    step.add_argument("--context", help="capture or eager, ...; by default what the server would do")
    add_costs_option(parser)
    parser.add_argument("--pattern", choices=("interleaved", "back_to_back"), help="only costs that were taken so")
    parser.add_argument("--margin", type=fraction, default=0.02, metavar="M", help="what counts as the same (2%%)")
    parser.add_argument("--confidence", type=fraction, default=0.95, metavar="C", help="of the verdicts (95%%)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for a bug report")
    parser.verbose_text = "every call, rule, number with its origin, and what was assumed"
    parser.set_defaults(run=run_explain)


def run_explain(args: argparse.Namespace) -> int:
    from .._explain.explain import explain
    from .._server.url import using_key
    from .options import pairs, progress
    from .verdict import show_result

    with progress("reading") as tell, using_key(args.api_key):
        found = explain(
            **{name: _figures(getattr(args, name)) for name in _FIGURES},
            **{name: getattr(args, name) for name in _SAME},
            env=pairs("env", args.env) or None,
            accepted=_accepted(args.accepted),
            cell=_cell(args.cell),
            progress=tell,
        )
    show_result(args, found)
    return 0


_SAME = (
    *("sglang_before", "sglang_after", "launch", "log", "url", "model", "gpu", "link", "nodes", "gpus", "batch", "draft_tokens"),
    *("context", "unit", "column", "costs", "pattern", "margin", "confidence", "example"),
)
"""Options that are called as the keyword is."""


def _figures(given: list[str] | None) -> Any:
    """One as it is, so that a file is one."""
    return given[0] if given and len(given) == 1 else given


def _cell(given: list[str]) -> Any:
    if len(given) > 2:
        raise InputError("cell", given[2], "give it once for both, or twice: before and after")
    return None if not given else tuple(given) if len(given) == 2 else given[0]


def _accepted(text: str | None) -> Any:
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError("accepted", text, "give one number, or two: before and after, as 1.8,2.4") from None
    return found[0] if len(found) == 1 else found
