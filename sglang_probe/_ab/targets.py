"""Target: a path of our own bench as an arm, or the path that a release takes; one fresh set of processes a run. Public.

Run by experiment.py through its Side; what the ranks do is _bench/sample.py's. Invariant: each run's result is checked for its sum before
it is timed; what is wrong, or takes another path or kernel than was meant, gives no figure.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from .._bench import options
from .._bench.driver import MODULES, driver_of
from .._bench.local import Local
from .._bench.plan import PATTERNS, PHASES, Plan, make_plan
from .._bench.runner import cell_of
from .._bench.sample import Look as Checked
from .._bench.sample import Taken, look, measure
from .._bench.targets import TARGETS
from .._measure.cell import Cell
from .._measure.provenance import Monitor
from .._run.toggles import checked as checked_toggles
from .._show.sizes import human_bytes
from .._shown import Shown
from .._types import FrozenMap, InputError, ProbeError, ProbeUnavailable
from .._verdict.measured import NEGATIVE, UNSEEN, iterations_of
from .commands import nccl_file, withheld
from .releases import release_task
from .seen import Seen, merged, seen_here
from .sides import Declared, Look, Outcome, declared_of

COLUMNS = ("device_us", "host_us", "elapsed_us")
Column = Literal["", "device_us", "host_us", "elapsed_us"]


@dataclass(frozen=True)
class Target(Shown):
    """``Target("one_shot", size="42KiB")``: an all-reduce of `bench`, one figure (us a call) for each fresh set of processes.

    ``name``: a target of `bench` (one_shot, pynccl_in_place, ...). Or ``sglang``: a release, whose dispatch takes the path that it takes;
    ``toggles`` switch what it reads, as LocalGroup takes them: ``{"custom": "disabled", "piecewise": True}``.
    ``size``: bytes of the tensor; or ``tokens`` rows of ``hidden`` columns. ``phase``, ``pattern``, ``compute_us``, ``dtype``, ``driver``:
    as `bench` has them. ``column``: which of its times is judged: ``device_us``, ``host_us`` or ``elapsed_us``; by default device_us where
    both arms are captured, else elapsed_us, which holds the host's part.
    ``device``, ``world_size``, ``ordinals``, ``facts``, ``timeout_s``: the ranks, as `bench` has them. ``env``, ``nccl``: variables and
    the libnccl.so.2 of the ranks, declared: they are meant to differ. ``label``: what it is called in the answer.

    Raises InputError for what cannot be measured; ProbeUnavailable where the ranks cannot be had.
    """

    name: str = ""
    size: int | str | None = None
    phase: str = "captured"
    pattern: str = "back_to_back"
    compute_us: float = 5.0
    dtype: str = "bf16"
    column: Column = ""
    driver: str = "native"
    tokens: int | None = None
    hidden: int = options.HIDDEN
    sglang: str = ""
    toggles: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    device: str = "auto"
    world_size: int | None = None
    ordinals: Sequence[int] | None = None
    facts: Mapping[str, int | bool] = field(default_factory=lambda: FrozenMap({}))
    env: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    nccl: str | os.PathLike[str] | None = None
    timeout_s: float = 30.0
    label: str = ""

    def __post_init__(self) -> None:
        if bool(self.name) == bool(self.sglang):
            raise InputError("name", self.name, f"give one of {', '.join(TARGETS)}; or sglang, whose dispatch chooses")
        if self.name:
            options.names("name", [self.name], tuple(TARGETS))
            if self.toggles:
                remedy = "go with sglang, whose dispatch reads them; a named target sets them itself"
                raise InputError("toggles", dict(self.toggles), remedy)
        checked_toggles(self.toggles)
        options.names("phase", [self.phase], PHASES)
        options.names("pattern", [self.pattern], PATTERNS)
        options.names("driver", [self.driver], tuple(MODULES))
        if self.column:
            options.names("column", [self.column], COLUMNS)
        options.dtype_of(self.dtype)
        self.shape()
        object.__setattr__(self, "nccl", None if self.nccl is None else nccl_file(self.nccl))
        for name in ("toggles", "facts", "env"):
            object.__setattr__(self, name, FrozenMap(dict(getattr(self, name))))
        if self.ordinals is not None:
            object.__setattr__(self, "ordinals", tuple(self.ordinals))

    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the tensor."""
        if (self.size is None) == (self.tokens is None):
            raise InputError("size", self.size, "give the bytes of the tensor, as 42KiB; or tokens, its rows")
        if self.tokens is not None:
            return options.whole("tokens", self.tokens), options.whole("hidden", self.hidden)
        sizes = options.sizes_of([self.size] if isinstance(self.size, int) else str(self.size), self.dtype)
        if len(sizes) != 1:
            raise InputError("size", self.size, "give one size: an experiment answers one question")
        return 1, sizes[0] // _bytes_of(self.dtype)

    def __str__(self) -> str:
        w = self.name or f"SGLang {self.sglang}{''.join(f', {name}={value}' for name, value in self.toggles.items())}"
        rows, columns = self.shape()
        compute = f" {self.compute_us:g} us" if self.pattern == "interleaved" else ""
        told = [w, human_bytes(rows * columns * _bytes_of(self.dtype)), self.dtype, self.phase, f"{self.pattern}{compute}"]
        told += [f"{name}={value}" for name, value in withheld(self.env).items()]
        told += [f"NCCL {self.nccl}"] if self.nccl else []
        return ", ".join(told)


def _bytes_of(dtype: str) -> int:
    from .._facts import DTYPE_BYTES

    return DTYPE_BYTES[options.dtype_of(dtype)]


class TargetSide:
    """A Target on one side of an experiment."""

    unit = "us"

    def __init__(self, target: Target, label: str, column: str) -> None:
        self._target, self._column = target, column
        self.label = target.label or label
        ranks = Local(
            target.world_size,
            target.device,
            ordinals=target.ordinals,
            facts=target.facts,
            timeout_s=target.timeout_s,
            nccl=target.nccl,
            env=target.env or None,
        )
        self._ranks = ranks
        self._plan = Plan(
            device=ranks.device,
            world_size=ranks.world_size,
            group=ranks.group,
            targets=(target.name,) if target.name else (),
            shapes=(target.shape(),),
            dtype=options.dtype_of(target.dtype),
            phases=(_word(target.phase, PHASES),),
            patterns=(_word(target.pattern, PATTERNS),),
            compute_us=options.compute_of(target.compute_us),
            drivers=FrozenMap({_word(target.driver, MODULES): driver_of(target.driver).release()}),
            processes=1,
            seed=0,
            samples=options.SAMPLES,
            cell_ms=options.CELL_MS,
            how=ranks.how,
            ordinals=ranks.ordinals,
        )
        self._task = make_plan(self._plan).cells[0] if target.name else release_task(self._plan, target.sglang, target.toggles)
        wanted = self._task.wanted
        self.takes = f"{wanted.path} ({wanted.kernel})" if wanted.kernel else wanted.path
        on = f"{ranks.world_size} {'GPU' if ranks.device == 'gpu' else 'CPU'} ranks"
        self.text = f"{target}, {on}, {column}" + ("" if target.name else f": takes {self.takes}")
        self.declared: Declared = declared_of(target.env, None if target.nccl is None else str(target.nccl), self.label)

    def to_dict(self) -> dict[str, Any]:
        """What a file keeps of it."""
        plain = {one.name: getattr(self._target, one.name) for one in fields(Target)}
        plain |= {name: dict(plain[name]) for name in ("toggles", "facts")} | {"env": withheld(self._target.env)}
        plain["ordinals"] = None if self._target.ordinals is None else list(self._target.ordinals)
        ranks = {"device": self._ranks.device, "world_size": self._ranks.world_size, "takes": self.takes}
        return {"kind": "target", **plain, **ranks, "label": self.label, "column": self._column, "unit": self.unit}

    def run(self, number: int, limit_s: float, look: Look) -> Outcome:
        """See Side."""
        start = time.monotonic()
        try:
            cell, seen = self._measured(number, start + limit_s, look)
        except (ProbeUnavailable, InputError):
            raise
        except (ProbeError, TimeoutError, MemoryError) as error:
            return Outcome(failed=f"{type(error).__name__}: {error}", wall_s=time.monotonic() - start)
        wall_s = time.monotonic() - start
        figures, failed = _figures(cell, self._column)
        alone = len(figures) == 1 < min(map(len, getattr(cell, self._column)))
        note = f"{cell.note}; the median alone: {NEGATIVE}" if alone else cell.note
        return Outcome(figures, failed, wall_s, note, seen, cell.to_dict())

    def _measured(self, number: int, deadline: float, tell: Look) -> tuple[Cell, Seen]:
        """Fresh ranks: looked at, checked, measured, ended."""

        def left() -> float:
            return max(deadline - time.monotonic(), 0.05)

        task = replace(self._task, process=number)
        with Monitor() as monitor, self._ranks.start() as ranks:
            looks: Sequence[Checked] = [one[0] for one in ranks.run(look, [task], timeout_s=left())]
            _refused(looks)
            wrong = next((f"rank {rank}: {one.said}" for rank, one in enumerate(looks) if one.wrong), "")
            backends = [one.backend for one in looks]
            if wrong:
                taken = [Taken(backend=backend) for backend in backends]
                note = f"WRONG, and therefore not timed: {wrong}"
                seen = merged(ranks.run(seen_here, timeout_s=left()))
                return cell_of(self._plan, task, taken, *_counts(looks), note=note), seen
            before = monitor.state()
            samples = self._samples(max(one.us for one in looks))
            taken = [one[0] for one in ranks.run(measure, [(task, samples)], timeout_s=left())]
            after = monitor.state()
            tell(True)
            _refused(taken)
            seen = merged(ranks.run(seen_here, timeout_s=left()))
        note = f"{task.calls} calls a sample"
        return cell_of(self._plan, task, taken, *_counts(looks), before=before, after=after, note=note), seen

    def _samples(self, call_us: float) -> int:
        """As many as there is time for, as a bench's runner has it: two batches of calls, and two of compute kernels."""
        least, most = self._plan.samples
        batch_us = self._task.calls * 2 * (call_us + self._task.compute_us) + 500.0
        return max(least, min(most, int(self._plan.cell_ms * 1e3 / batch_us)))


def _counts(looks: Sequence[Checked]) -> tuple[int, int]:
    """Results that were compared, and those of them that were wrong, over all ranks."""
    return sum(one.checked for one in looks), sum(one.wrong for one in looks)


def _word(word: str, words: Sequence[Any]) -> Any:
    return next(one for one in words if one == word)


def _refused(by_rank: Sequence[Checked] | Sequence[Taken]) -> None:
    """What does not run here never will."""
    why = next((one.refused for one in by_rank if one.refused), "")
    if why:
        raise ProbeUnavailable(f"this arm does not run here: {why}")


def _figures(cell: Cell, column: str) -> tuple[tuple[float, ...], str]:
    """The samples of the rank whose median is the largest, as a Summary has it: a call is done when the last rank has it."""
    if cell.wrong:
        return (), f"{cell.wrong} of {cell.checked} results are WRONG: {cell.note}"
    by_rank = [samples for samples in getattr(cell, column) if len(samples)]
    if len(by_rank) < cell.world_size:
        return (), f"no {column} was taken: {cell.note}"
    figures = iterations_of(by_rank)
    if not all(map(math.isfinite, figures)):
        return (), f"{column} has samples that are not finite: no ratio is made of them"
    return ((), f"{column} is {figures[0]:.4g} us: {UNSEEN}") if figures[0] <= 0 else (figures, "")
