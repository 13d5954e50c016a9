"""bench: what each path costs on this machine, every sample kept in a file. Public; the command of the same name calls it.

It makes the plan, starts the first processes, asks them what they are, opens the file and lets runner.py carry the plan out.
Invariant: nothing is measured that is not in the file when this returns or raises; the same arguments go on with an unfinished file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from .._facts import DTYPE_BYTES
from .._measure.format import PARTIAL
from .._measure.measurement import Measurement, Provenance
from .._measure.provenance import Monitor, stamp
from .._measure.writer import Writer
from .._run.toggles import seconds
from .._types import FrozenMap, InputError, ProbeUnavailable
from . import options
from .driver import MODULES, driver_of
from .launched import under_launcher
from .local import Local
from .options import Sizes, Texts
from .plan import PATTERNS, PHASES, Plan, make_plan
from .progress import Progress
from .provider import Provider
from .runner import Report, Runner
from .targets import TARGETS

OUT = "bench.jsonl"


@dataclass(frozen=True)
class Done:
    """What a bench came to: the file's content, and how it went."""

    measurement: Measurement
    report: Report
    plan: Plan
    seconds: float
    path: str
    """The file: finished, or the .partial one."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a bench; the text says what is kept and how to go on."""


def bench(
    out: str | os.PathLike[str] = OUT,
    *,
    device: Literal["auto", "host", "gpu"] = "auto",
    world_size: int | None = None,
    targets: Texts | None = None,
    sizes: Sizes | None = None,
    tokens: str | Sequence[int] | None = None,
    hidden: int = options.HIDDEN,
    phases: Texts = PHASES,
    patterns: Texts = PATTERNS,
    compute_us: float = 5.0,
    drivers: Texts | None = None,
    dtype: str = "bf16",
    processes: int | None = None,
    quick: bool = False,
    split: int = 0,
    time_limit_s: float | None = None,
    seed: int = 0,
    timeout_s: float = 30.0,
    nccl: str | os.PathLike[str] | None = None,
    ordinals: Sequence[int] | None = None,
    progress: bool | None = None,
    **facts: int | bool,
) -> Measurement:
    """Measures every target at every size, eager and captured, back to back and with a compute kernel before each call.

    ``targets``: names of paths and kernels, by default all. ``sizes``: bytes (``"1K:256M"`` goes by a factor of 4), or ``tokens`` rows of
    ``hidden`` columns. ``drivers``: ``native`` (our C), ``engine`` (SGLang's GroupCoordinator); by default both, where SGLang can be
    imported. ``processes``: sets of fresh processes; each measures everything once. ``quick``: few sizes, two sets, fewer samples.
    ``split``: so many calls of each cell of our own C, back to back, are cut into waiting for the last rank and moving data besides.
    ``facts`` are facts of the group, as LocalGroup takes them.

    Each call is checked for its sum before it is timed, in the first process set that makes it; what is wrong is kept as WRONG and not
    timed. Cells go to ``out`` + ``.partial`` one by one; the file gets its name when the plan is done. An interrupt (KeyboardInterrupt),
    ``time_limit_s``, or ranks that die leave a valid file, and the same call goes on from there; what comes back is then ``partial``.

    Raises InputError for bad values, where ``out`` exists, or where the unfinished file is another plan's or another machine's.
    """
    asked = {name: value for name, value in locals().items() if name not in ("out", "progress", "time_limit_s", "facts")}
    done = run_bench(out, time_limit_s=time_limit_s, progress=progress, facts=facts, **asked)
    told = ending(done)
    return replace(done.measurement, notes=(*done.measurement.notes, *told))


def run_bench(
    out: str | os.PathLike[str],
    *,
    time_limit_s: float | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
    provider: Provider | None = None,
    **asked: Any,
) -> Done:
    """What bench does, with all that the command line shows. ``provider``: other ranks than this machine's or a launcher's."""
    start = time.monotonic()
    name = os.fspath(out)
    deadline = None if time_limit_s is None else start + seconds("time_limit_s", time_limit_s)
    clean = _checked(asked)
    ranks = clean.pop("ranks")

    def driven(given: Provider) -> Done:
        _check_out(name)
        plan = _plan(given, clean)
        shown = partial(Progress, len(plan.cells) * plan.processes, show=progress, say=say)
        report, path = _driven(name, plan, given, deadline, shown, asked["nccl"])
        return Done(Measurement.read(path), report, plan, time.monotonic() - start, path)

    if provider is not None:
        return driven(provider)
    launch = under_launcher(**ranks)
    return driven(Local(**ranks)) if launch is None else launch.led(lambda: driven(launch))


def _driven(
    name: str, plan: Plan, provider: Provider, deadline: float | None, shown: Callable[[int], Progress], nccl: Any
) -> tuple[Report, str]:
    """In the one process that drives the ranks: (how it went, the file)."""
    runner = None
    try:
        with Monitor() as monitor:
            ranks = provider.start()
            try:
                provenance: Provenance = ranks.run(_stamp, nccl)[0]
                writer = Writer(name, plan=plan.to_dict(), provenance=provenance)
            except BaseException:
                ranks.close()
                raise
            with writer:
                runner = Runner(plan, provider, ranks, writer, monitor, deadline)
                with shown(len(writer.done)) as progress:
                    report = runner.run(progress)
                return report, writer.finish() if report.whole else writer.partial_path
    except KeyboardInterrupt:
        if runner is None:
            raise Interrupted("interrupted before anything was measured") from None
        kept, cells = runner.report.there + runner.report.measured, len(plan.cells) * plan.processes
        raise Interrupted(f"interrupted: {kept} of {cells} cells are in {name}{PARTIAL}; {_AGAIN}") from None


_AGAIN = "the same command goes on from there"


def ending(done: Done) -> list[str]:
    """What a reader must know of how it went; nothing where all was measured."""
    report = done.report
    told = [f"left out: {text}" for text in done.plan.left_out_texts()]
    told += [f"does not run here: {text}" for text in report.refused_texts()]
    told += [f"failed twice: {task}: {why}" for task, why in report.failed]
    if report.stopped:
        told.append(f"stopped: {report.stopped}; {_AGAIN}")
    elif report.launches:
        more = f"{report.launches} more process set{'s' * (report.launches > 1)}"
        told.append(f"a launch is one set of fresh processes, and {more} to come: launch the same command again for each")
    elif report.failed:
        told.append(f"{len(report.failed)} cells are missing; the same command tries them again")
    return told


def _stamp(coordinator: Any, nccl: str | os.PathLike[str] | None) -> Provenance:
    """On the ranks: the torch and the NCCL that they have loaded are the ones that are measured."""
    return stamp(nccl)


def _check_out(name: str) -> None:
    """Writer asks again; here nothing has been started yet."""
    if os.path.lexists(name):
        raise InputError("out", name, "it exists already, and a measurement is never overwritten: give another name")
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise InputError("out", name, f"there is no folder {folder}")


# ------------------------------------------------------------------------------------------------------------------------- plan


def _checked(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything but what depends on the device."""
    quick = asked["quick"]
    if not isinstance(quick, bool):
        raise InputError("quick", quick, "give True or False")
    if asked["sizes"] is not None and asked["tokens"] is not None:
        raise InputError("tokens", asked["tokens"], "give either sizes or tokens")
    seed = asked["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError("seed", seed, "give a whole number")
    processes = asked["processes"]
    if processes is None:
        processes = options.QUICK_PROCESSES if quick else options.PROCESSES
    targets = asked["targets"]
    dtype = options.dtype_of(asked["dtype"])
    clean: dict[str, Any] = {
        "targets": tuple(TARGETS) if targets is None else options.names("targets", targets, tuple(TARGETS)),
        "phases": options.names("phases", asked["phases"], PHASES),
        "patterns": options.names("patterns", asked["patterns"], PATTERNS),
        "compute_us": options.compute_of(asked["compute_us"]),
        "dtype": dtype,
        "processes": options.whole("processes", processes),
        "seed": seed,
        "samples": options.QUICK_SAMPLES if quick else options.SAMPLES,
        "cell_ms": options.QUICK_CELL_MS if quick else options.CELL_MS,
        "quick": quick,
        "split": options.whole("split", asked["split"], least=0),
        "drivers": None if asked["drivers"] is None else options.names("drivers", asked["drivers"], tuple(MODULES)),
        "sizes": None if asked["sizes"] is None else options.sizes_of(asked["sizes"], dtype),
        "tokens": None if asked["tokens"] is None else options.tokens_of(asked["tokens"]),
        "hidden": options.whole("hidden", asked["hidden"]),
    }
    names = ("world_size", "device", "ordinals", "facts", "timeout_s", "nccl")
    clean["ranks"] = {name: asked[name] for name in names}
    return clean


def _plan(ranks: Provider, clean: dict[str, Any]) -> Plan:
    sizes, tokens, hidden, quick = (clean.pop(name) for name in ("sizes", "tokens", "hidden", "quick"))
    wanted = clean.pop("drivers")
    if tokens is not None:
        shapes = tuple((rows, hidden) for rows in tokens)
    else:
        default = (options.QUICK_SIZES if quick else options.SIZES)[ranks.device]
        each = options.sizes_of(default, clean["dtype"]) if sizes is None else sizes
        shapes = tuple((1, size // DTYPE_BYTES[clean["dtype"]]) for size in each)
    return make_plan(
        Plan(
            device=ranks.device,
            world_size=ranks.world_size,
            group=ranks.group,
            shapes=shapes,
            drivers=FrozenMap(_drivers(wanted, ranks.device)),
            how=ranks.how,
            ordinals=ranks.ordinals,
            **clean,
        )
    )


def _drivers(wanted: tuple[str, ...] | None, device: str) -> dict[str, str]:
    """Each driver with the release that it runs. By default those that are here: SGLang needs GPUs."""
    if wanted is not None:
        return {name: driver_of(name).release() for name in wanted}
    found = {"native": driver_of("native").release()}
    if device == "gpu":
        try:
            found["engine"] = driver_of("engine").release()
        except ProbeUnavailable:  # nobody asked for it
            pass
    return found
