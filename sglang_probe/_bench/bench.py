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
from importlib.util import find_spec
from typing import Any, Literal

from .._facts import DTYPE_BYTES
from .._measure.cell import Driver
from .._measure.format import PARTIAL
from .._measure.measurement import Measurement, Provenance
from .._measure.provenance import Monitor, stamp
from .._measure.writer import Writer
from .._run.machine import Device
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
from .targets import GROUPS, TARGETS

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

    def __init__(self, text: str, done: Done | None = None) -> None:
        super().__init__(text)
        self.done = done
        """What was measured before it; None where nothing was begun."""


def bench(
    out: str | os.PathLike[str] = OUT,
    *,
    device: Literal["auto", "host", "gpu"] = "auto",
    world_size: int | None = None,
    targets: Texts | None = None,
    sizes: Sizes | None = None,
    tokens: str | Sequence[int] | None = None,
    hidden: int | None = None,
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

    What is measured:
    ``targets``: names of paths and kernels, by default all; ``custom`` is every kernel of custom all-reduce.
    ``sizes``: bytes (``"1K:256M"`` goes by a factor of 4); or ``tokens`` rows of ``hidden`` (7168) columns.
    ``phases``: ``eager``, ``captured`` (calls recorded into a CUDA graph). ``patterns``: ``back_to_back``, ``interleaved`` (before each
    call a compute kernel of ``compute_us`` microseconds, whose own time is subtracted).
    ``dtype``: of the tensors: bf16, fp16, fp32, fp64, int8, int32 or int64, also as torch's.
    ``drivers``: ``native`` (our C), ``engine`` (SGLang's GroupCoordinator). By default native, and on GPUs also engine, where SGLang can
    be imported. ``nccl``: the libnccl.so.2 to measure, by default the one that SGLang would load.
    ``split``: so many calls of each cell of our own C, back to back, are cut into waiting for the last rank and moving data besides.

    On what:
    ``device``: ``gpu``, ``host`` (CPU ranks), or ``auto``: GPUs if they are there. ``world_size``: ranks, by default one a GPU, or 2 on
    CPUs. ``ordinals``: the GPU of each rank. ``facts``: of the group, as LocalGroup takes them.
    ``processes``: sets of fresh processes (5); each measures everything once, in an order that ``seed`` draws. ``quick``: few sizes, two
    sets, fewer samples.
    ``timeout_s``: seconds of each wait of a rank for another. ``time_limit_s``: seconds, after which it stops; by default never.
    ``progress``: a bar on stderr; None: where a terminal or a notebook shows it.

    Each call is checked for its sum before it is timed, in the first process set that makes it; what is wrong is kept as WRONG and not
    timed. Cells go to ``out`` + ``.partial`` one by one; the file gets its name when the plan is done. Its format, line by line, is in
    ``sglang_probe/_measure/format.py``; ``Measurement.read(out)`` reads it.

    Returns the Measurement. It is ``partial``, and its ``notes`` say why, where ``time_limit_s`` or ranks that died ended it early, or
    where a launcher's ranks did their one process set: the same call goes on from there. An interrupt raises KeyboardInterrupt, whose
    text says what is kept: ``Measurement.read(out + ".partial")`` has it, and the same call goes on.

    Raises InputError for bad values, where ``out`` exists, or where the unfinished file is another plan's or another machine's;
    ProbeUnavailable where the ranks that are asked for cannot be had (no such GPUs, no torch); MeasurementError where the file cannot be
    written, is damaged, or another bench writes it; ProbeError or TimeoutError where not even the first ranks come up.
    """
    asked = {name: value for name, value in locals().items() if name not in ("out", "progress", "time_limit_s", "facts")}
    done = run_bench(out, time_limit_s=time_limit_s, progress=progress, facts=facts, **asked)
    told = [*filter(None, [to_come(done)]), *ending(done), *(f"failed once: {text}" for text in done.report.retried)]
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
    name = options.file_name(out, PARTIAL)
    if progress is not None and not isinstance(progress, bool):
        raise InputError("progress", progress, "give True, False or None")
    deadline = None if time_limit_s is None else start + seconds("time_limit_s", time_limit_s)
    clean = _checked(asked)
    ranks = clean.pop("ranks")

    def driven(given: Provider) -> Done:
        options.check_free(name, PARTIAL)
        plan = _plan(given, clean)
        shown = partial(Progress, len(plan.cells) * plan.processes, show=progress, say=say)
        return _driven(name, plan, given, deadline, shown, asked["nccl"], start)

    if provider is not None:
        return driven(provider)
    launch = under_launcher(**ranks)
    return driven(Local(**ranks)) if launch is None else launch.led(lambda: driven(launch))


def _driven(
    name: str, plan: Plan, provider: Provider, deadline: float | None, shown: Callable[[int], Progress], nccl: Any, start: float
) -> Done:
    """In the one process that drives the ranks."""
    runner = None
    try:
        with Monitor() as monitor:
            ranks = provider.start()
            try:
                provenance: Provenance = ranks.run(_stamp, nccl)[0]
                writer = _writer(name, plan, provenance)
            except BaseException:
                ranks.close()
                raise
            with writer:
                runner = Runner(plan, provider, ranks, writer, monitor, deadline)
                with shown(len(writer.done)) as progress:
                    report = runner.run(progress)
                path = _finished(writer, name) if report.whole else writer.partial_path
        return _done(path, report, plan, start)
    except KeyboardInterrupt:
        if runner is None:
            raise Interrupted("interrupted before anything was measured") from None
        whole = not os.path.lexists(name + PARTIAL)  # it was renamed a moment ago
        runner.report.stopped = "" if whole else "it was interrupted"
        done = _done(name if whole else name + PARTIAL, runner.report, plan, start)
        kept = f"{len(done.measurement.cells)} of {len(plan.cells) * plan.processes} cells are in {done.path}"
        raise Interrupted(f"interrupted: {kept}{', all of the plan' if whole else f'; {_AGAIN}'}", done) from None


_AGAIN = "the same command goes on from there"


def _done(path: str, report: Report, plan: Plan, start: float) -> Done:
    return Done(Measurement.read(path), report, plan, time.monotonic() - start, path)


def ending(done: Done) -> list[str]:
    """What a reader must know of how it went; nothing where all was measured."""
    report = done.report
    told = [f"left out: {text}" for text in done.plan.left_out_texts()]
    told += [f"does not run here: {text}" for text in report.refused_texts()]
    told += [f"failed twice: {task}: {why}" for task, why in report.failed]
    if report.stopped:
        told.append(f"stopped: {report.stopped}; {_AGAIN}")
    elif report.failed:
        told.append(f"{len(report.failed)} cells are missing; the same command tries them again")
    return told


def to_come(done: Done) -> str:
    """Of a launch, which is one process set, and is as it should be: what further ones add. "" where nothing is to come."""
    if not done.report.launches:
        return ""
    ours = done.plan.processes - done.report.launches
    sets = f"set 1 of {done.plan.processes} is" if ours == 1 else f"sets 1 to {ours} of {done.plan.processes} are"
    return f"{sets} done; the same command adds the next (a launch is one set of fresh processes)"


def _stamp(coordinator: Any, nccl: str | os.PathLike[str] | None) -> Provenance:
    """On the ranks: the torch and the NCCL that they have loaded are the ones that are measured."""
    return stamp(nccl)


def _writer(name: str, plan: Plan, provenance: Provenance) -> Writer:
    """Its complaints of the path are of what is called ``out`` here."""
    try:
        return Writer(name, plan=plan.to_dict(), provenance=provenance)
    except InputError as error:
        if error.field != "path":
            raise
        free = options.free_name(name, PARTIAL)
        raise InputError("out", name, f"{error.remedy} ({free} is free)") from None


def _finished(writer: Writer, name: str) -> str:
    try:
        return writer.finish()
    except InputError:
        raise InputError(
            "out", name, f"it appeared meanwhile and is not overwritten, all is in {name}{PARTIAL}: move it away, and {_AGAIN}"
        ) from None


# ------------------------------------------------------------------------------------------------------------------------- plan


def _checked(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything but what depends on the device."""
    options.check_facts_of(bench, asked["facts"])
    quick = asked["quick"]
    if not isinstance(quick, bool):
        raise InputError("quick", quick, "give True or False")
    if asked["sizes"] is not None and asked["tokens"] is not None:
        raise InputError("tokens", asked["tokens"], "give either sizes or tokens")
    hidden = options.HIDDEN if asked["hidden"] is None else options.whole("hidden", asked["hidden"], most=options.COLUMNS_MAX)
    if asked["tokens"] is None and hidden != options.HIDDEN:
        raise InputError(
            "hidden", hidden, "these are the columns of tokens, and no tokens are given: give tokens too, or leave it out"
        )
    nccl = asked["nccl"]
    if nccl is not None and not isinstance(nccl, (str, os.PathLike)):
        raise InputError("nccl", nccl, "give the path of a libnccl.so.2")
    seed = asked["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError("seed", seed, "give a whole number")
    processes = asked["processes"]
    if processes is None:
        processes = options.QUICK_PROCESSES if quick else options.PROCESSES
    targets = asked["targets"]
    dtype = options.dtype_of(asked["dtype"])
    clean: dict[str, Any] = {
        "targets": tuple(TARGETS) if targets is None else options.names("targets", targets, tuple(TARGETS), GROUPS),
        "phases": options.names("phases", asked["phases"], PHASES),
        "patterns": options.names("patterns", asked["patterns"], PATTERNS),
        "compute_us": options.compute_of(asked["compute_us"]),
        "dtype": dtype,
        "processes": options.whole("processes", processes),
        "seed": seed,
        "samples": options.QUICK_SAMPLES if quick else options.SAMPLES,
        "cell_ms": options.QUICK_CELL_MS if quick else options.CELL_MS,
        "quick": quick,
        "split": options.whole("split", asked["split"], least=0, most=options.SPLIT_MAX),
        "drivers": None if asked["drivers"] is None else options.names("drivers", asked["drivers"], tuple(MODULES)),
        "sizes": None if asked["sizes"] is None else options.sizes_of(asked["sizes"], dtype),
        "tokens": None if asked["tokens"] is None else options.tokens_of(asked["tokens"]),
        "hidden": hidden,
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


def _drivers(wanted: tuple[Driver, ...] | None, device: Device) -> dict[Driver, str]:
    """Each driver with the release that it runs. By default those that are here; SGLang's own on GPUs alone."""
    if wanted is not None:
        try:
            return {name: driver_of(name).release() for name in wanted}
        except ProbeUnavailable as error:
            why = "install sglang, or leave it out" if find_spec("sglang") is None else f"{error}: change that, or leave it out"
            raise InputError("drivers", "engine", why) from None
    found: dict[Driver, str] = {"native": driver_of("native").release()}
    if device == "gpu":
        try:
            found["engine"] = driver_of("engine").release()
        except ProbeUnavailable:  # nobody asked for it
            pass
    return found
