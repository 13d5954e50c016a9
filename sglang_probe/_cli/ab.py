"""`sglang-probe ab`: runs two things in fresh processes, interleaved, until it is known which is faster. Called by cli.py.

Exit status: 0 its rule or its budget ended it; 1 an arm failed too often, or the arms ran under different conditions; 3 its time was over
before each arm had run once; 130 interrupted, 143 by SIGTERM, 129 by SIGHUP. After all but 0 the same command goes on.
Invariant: every option is a keyword of the Python function, of Command or of Target.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._types import InputError

if TYPE_CHECKING:
    from .._ab.commands import Command
    from .._ab.result import AbResult
    from .._ab.targets import Target

UNFINISHED = 3
_ABOUT = """Which of two is faster? Each run is of fresh processes; runs of a and b are interleaved in a balanced random order, until the
interval decides or the budget ends. What may differ is what is given here: a command, a variable, an NCCL library, a path, a release.
The machine's state is taken around each run; if it, or anything that was not declared, differs between the arms, there is no verdict."""
_EXAMPLES = """examples:
  sglang-probe ab -a "python bench.py" -b "python bench.py --new" --figure "throughput: ([0-9.]+)" --unit tok/s
  sglang-probe ab --b-env NCCL_ALGO=Ring --figure json:latency_ms --unit ms -- python bench.py
  sglang-probe ab --b-nccl /opt/nccl/lib/libnccl.so.2 --figure last --unit us -- ./all_reduce_latency
  sglang-probe ab --a-target one_shot --b-target pynccl_in_place --size 42KiB
  sglang-probe ab --target pynccl_in_place --a-phase eager --b-phase captured --tokens 3 --hidden 7168
  sglang-probe ab --a-sglang 0.5.8 --b-sglang 0.5.9 --size 8MiB
interrupted, or over --time? The same command goes on."""
_TIME = re.compile(r"(\d+(?:\.\d*)?)\s*(s|m|min|h)?")
_FACTORS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}
EACH = ("target", "sglang", "phase", "pattern", "driver", "dtype")
"""Options of a target that either arm may have for itself."""


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser(
        "ab", help="which of two is faster: an experiment that ends when it is known", description=_ABOUT, epilog=_EXAMPLES
    )
    arms = parser.add_argument_group("the arms")
    for arm in "ab":
        text = 'a command, as "python bench.py"; NAME=VALUE may stand in front' if arm == "a" else "the other one"
        arms.add_argument(f"-{arm}", metavar="COMMAND", help=text)
    arms.add_argument("line", nargs="*", metavar="-- COMMAND", help="one command for both arms, which differ in what follows")
    for arm in "ab":
        arms.add_argument(
            f"--{arm}-env", action="append", default=[], metavar="NAME=VALUE", help=f"a variable of {arm}, declared; repeat it"
        )
        arms.add_argument(f"--{arm}-nccl", metavar="FILE", help=f"the libnccl.so.2 of {arm}")
        for name in EACH:
            text = {"target": "a path of bench", "sglang": "a release, whose dispatch chooses the path"}.get(
                name, "instead of both's"
            )
            arms.add_argument(f"--{arm}-{name}", metavar=name.upper(), help=f"{arm}: {text}")
        text = f"{arm}: with --{arm}-sglang: custom=disabled, piecewise=1, ...; repeat it"
        arms.add_argument(f"--{arm}-toggle", action="append", default=[], metavar="NAME=VALUE", help=text)
        arms.add_argument(f"--{arm}-label", default="", metavar="TEXT", help=f"what {arm} is called in the answer")
    add_common(parser, "ab.jsonl", "30: of each arm, at most")
    parser.verbose_text = "the machine's state of both arms, each run, each look"
    parser.set_defaults(run=run_ab)


def add_common(parser: Any, out: str, runs: str) -> None:
    """What `ab` and `noise` share."""
    how = parser.add_argument_group("what is judged")
    text = "wall (the wall clock, the default), last (the last number printed), json:KEY, or a regular expression with one group"
    how.add_argument("--figure", default="wall", metavar="SPEC", help=text)
    how.add_argument(
        "--every", action="store_true", help="all matches of the expression are iterations of one process; else the last"
    )
    how.add_argument("--unit", help="of the figure, as tok/s, ms or us")
    how.add_argument("--better", choices=("higher", "lower"), help="by default what the unit says")
    target = parser.add_argument_group("a path of our own bench (instead of a command)")
    target.add_argument("--target", metavar="NAME", help="one_shot, pynccl_in_place, ... (sglang-probe bench -h lists them)")
    target.add_argument("--sglang", metavar="REVISION", help="instead: the path that this release takes")
    target.add_argument("--toggle", action="append", default=[], metavar="NAME=VALUE", help="with --sglang; repeat it")
    target.add_argument("--size", metavar="BYTES", help="of the tensor, as 42KiB")
    target.add_argument("--tokens", type=int, metavar="N", help="instead of --size: so many rows")
    target.add_argument("--hidden", type=int, default=7168, metavar="N", help="with --tokens: of so many columns (7168)")
    target.add_argument("--phase", default="captured", help="captured or eager (captured)")
    target.add_argument("--pattern", default="back_to_back", help="back_to_back or interleaved (back_to_back)")
    target.add_argument(
        "--compute-us", type=float, default=5.0, metavar="US", help="interleaved: length of the kernel between (5)"
    )
    target.add_argument("--dtype", default="bf16", help="of the tensor (bf16)")
    target.add_argument("--driver", default="native", help="native (our C) or engine (SGLang's own call) (native)")
    target.add_argument(
        "--column", default="", help="device_us, elapsed_us or host_us (device_us where all is captured, else elapsed_us)"
    )
    target.add_argument(
        "--device", default="auto", choices=("auto", "gpu", "host"), help="GPUs, or CPU ranks; auto: GPUs if there"
    )
    target.add_argument("--world-size", type=int, metavar="N", help="ranks (one a GPU; 2 CPU ranks)")
    target.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help="a fact of the group; repeat it")
    both = parser.add_argument_group("both")
    both.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of both arms; repeat it")
    both.add_argument("--nccl", metavar="FILE", help="the libnccl.so.2 of both arms")
    both.add_argument("--cwd", metavar="FOLDER", help="where commands run")
    _add_rule(parser.add_argument_group("budget and rule"), runs)
    parser.add_argument("--out", default=out, metavar="FILE", help=f"where runs are kept ({out}); never overwritten")
    parser.add_argument("--markdown", action="store_true", help="print Markdown for a bug report")


def _add_rule(budget: Any, runs: str) -> None:
    from .verdict import fraction

    budget.add_argument("--runs", type=int, metavar="N", help=f"runs ({runs})")
    budget.add_argument("--time", metavar="T", help="end after 90, 10m or 2h; a run that has begun is let end (no limit)")
    budget.add_argument("--limit", metavar="T", default="600", help="of one run, after which it is ended and has failed (600)")
    budget.add_argument(
        "--warm-up", type=int, default=1, metavar="N", help="runs of each arm that are made first, not judged (1)"
    )
    budget.add_argument("--failures", type=int, default=3, metavar="N", help="of one arm, after which all ends (3)")
    budget.add_argument("--margin", type=fraction, default=0.02, metavar="M", help="what counts as the same (2%%)")
    text = "of the answer, all looks together (95%%)"
    budget.add_argument("--confidence", type=fraction, default=0.95, metavar="C", help=text)
    budget.add_argument("--seed", type=int, default=0, metavar="N", help="of the order (0)")
    text = (
        "a difference that is meant: a variable, a library (libnccl), or variables, libraries, cores, governor, throttle, clocks"
    )
    budget.add_argument("--allow", action="append", default=[], metavar="NAME", help=f"{text}; repeat it")


# ---------------------------------------------------------------------------------------------------------------------------- arms


def arm_of(args: argparse.Namespace, arm: str) -> Command | Target:
    """What this arm is: its own options, else both's. ``arm`` is "" where there is one for both."""
    from .._ab.commands import Command
    from .._ab.targets import Target
    from .options import facts_of, pairs

    def own(name: str) -> Any:
        value = getattr(args, f"{arm}_{name}", None) if arm else None
        return value if value not in (None, [], "") else getattr(args, name, None)

    env = pairs("env", args.env) | (pairs(f"{arm}_env", getattr(args, f"{arm}_env")) if arm else {})
    nccl, label = own("nccl"), (getattr(args, f"{arm}_label") if arm else "")
    line = getattr(args, arm) if arm else None
    named = {name: own(name) for name in ("target", "sglang")}
    if arm and getattr(args, f"{arm}_target") is None and getattr(args, f"{arm}_sglang") is not None:
        named["target"] = None  # its own word counts more than both's
    if line is None and not args.line and (named["target"] or named["sglang"]):
        toggles = {name: _toggle(value) for name, value in pairs("toggle", own("toggle")).items()}
        shared = {
            name: getattr(args, name) for name in ("size", "tokens", "hidden", "compute_us", "column", "device", "world_size")
        }
        each = {name: own(name) for name in ("phase", "pattern", "driver", "dtype")}
        facts = facts_of(args.fact)
        name, sglang = named["target"] or "", "" if named["target"] else named["sglang"]
        return Target(name, sglang=sglang, toggles=toggles, facts=facts, env=env, nccl=nccl, label=label, **shared, **each)
    if line is not None and args.line:
        raise InputError(arm, line, f"give either -{arm}, or one command for both behind --")
    given = line if line is not None else args.line
    if not given:
        what = (
            f"-{arm} COMMAND, or a command for both behind --, or --{arm}-target" if arm else "a command behind --, or --target"
        )
        raise InputError(arm or "command", None, f"give {what}")
    return Command(given, env=env, figure=args.figure, every=args.every, nccl=nccl, cwd=args.cwd, label=label)


def _toggle(text: str) -> Any:
    words: Mapping[str, Any] = {"true": True, "false": False, "1": True, "0": False}
    return words.get(text.lower(), text)


def rule_of(args: argparse.Namespace, runs: int) -> dict[str, Any]:
    """The keywords that `ab` and `noise` share."""
    return {
        "out": args.out,
        "runs": runs if args.runs is None else args.runs,
        "time_s": None if args.time is None else time_of("time", args.time),
        "limit_s": time_of("limit", args.limit),
        "unit": args.unit,
        "better": args.better,
        "margin": args.margin,
        "confidence": args.confidence,
        "seed": args.seed,
        "warm_up": args.warm_up,
        "failures": args.failures,
        "allow": args.allow,
    }


def time_of(name: str, text: str) -> float:
    """Seconds of ``90``, ``10m`` or ``2h``."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise InputError(name, text, "give seconds, as 90; or 10m, or 2h")
    return float(found[1]) * _FACTORS[found[2]]


# ----------------------------------------------------------------------------------------------------------------------------- run


def run_ab(args: argparse.Namespace) -> int:
    from .._ab.ab import RUNS
    from .._ab.ab import run_ab as run

    a, b = arm_of(args, "a"), arm_of(args, "b")
    return ended(args, lambda say: run(a, b, say=say, **rule_of(args, RUNS)), lambda result: result)


def ended(args: argparse.Namespace, do: Callable[[Callable[[str], None]], Any], experiment: Callable[[Any], AbResult]) -> int:
    """Carries it out, shows what it came to, also where a signal ended it; the exit status."""
    from .._ab.ab import Interrupted
    from .._ab.noise import NoiseInterrupted
    from .._show.page import printable
    from .bench import _ended_by_signals
    from .verdict import show_result

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # of a terminal that was closed: the experiment goes on
            sys.stderr.write(f"sglang-probe: {printable(text)}\n")

    with _ended_by_signals(True) as came:
        try:
            result = do(say)
        except KeyboardInterrupt as stop:
            say(str(stop) or "interrupted before anything was measured")
            if isinstance(stop, Interrupted | NoiseInterrupted) and stop.result is not None:
                with contextlib.suppress(OSError):  # of a terminal that was closed
                    show_result(args, stop.result)
                    sys.stdout.flush()
            return 128 + (came[0] if came else signal.SIGINT)
    show_result(args, result)
    return _status(experiment(result))


def _status(result: AbResult) -> int:
    if result.refused or result.stopped_by == "failures":
        return 1
    return 0 if result.whole else UNFINISHED
