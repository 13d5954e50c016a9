"""Plan: everything that a bench measures, as plain data that its file keeps; Task: one cell of it in one process set. Made by bench.py.

A process set measures its tasks in an order drawn by the plan's seed and the set's number: what drifts (clocks, heat, a neighbour) and what
one cell leaves behind for the next fall on another cell in each set, so they show as spread over sets and not as a difference of targets.
Invariant: the same arguments on the same machine give the same plan, and a plan its tasks; a file is continued by its own plan alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from .._facts import DTYPE_BYTES
from .._measure.cell import Cell, Driver, Pattern, Phase
from .._releases import resolve
from .._run.inputs import ELEMENTS
from .._run.machine import Device
from .._show.sizes import human_bytes
from .._types import Group, InputError
from .driver import Wanted
from .targets import TARGETS, Target, routed, why_not

VERSION = 1
PHASES: tuple[Phase, ...] = ("eager", "captured")
PATTERNS: tuple[Pattern, ...] = ("back_to_back", "interleaved")
_EAGER_GPU = ((1 << 20, 20), (16 << 20, 10), (0, 4))
_HOST = ((64 << 10, 20), (4 << 20, 5), (0, 1))
# Calls in one sample by size up to which it holds: enough that one wait at the end is nothing, few enough that a sample ends. One launch of
# a graph costs what several small calls do, so more of them share it.
_CALLS = {
    ("gpu", "eager"): _EAGER_GPU,
    ("gpu", "captured"): ((256 << 10, 60), *_EAGER_GPU),
    ("host", "eager"): _HOST,
    ("host", "captured"): _HOST,
}

Identity = tuple[str | int | float, ...]


@dataclass(frozen=True)
class Task:
    """One cell in one process set."""

    wanted: Wanted
    phase: Phase
    pattern: Pattern
    compute_us: float
    driver: Driver
    calls: int
    """In one sample."""
    process: int
    split: int = 0
    """Calls that are cut into waiting and moving data besides; 0: none."""

    @property
    def identity(self) -> Identity:
        """What is measured, the process set apart."""
        w = self.wanted
        return (
            w.path,
            w.kernel,
            w.settings.release.name,
            self.phase,
            self.pattern,
            self.compute_us,
            self.driver,
            w.dtype,
            w.nbytes,
        )

    @property
    def key(self) -> Identity:
        """What tells a cell of this file from the others."""
        return (*self.identity, self.process)

    def __str__(self) -> str:
        compute = f" {self.compute_us:g} us" if self.compute_us else ""
        size = human_bytes(self.wanted.nbytes)
        return f"{self.wanted.target}, {self.driver}, {self.phase}, {self.pattern}{compute}, {size} of {self.wanted.dtype}"


def key_of(cell: Cell) -> Identity:
    """The key of the task that a cell answers."""
    return (
        *(cell.path, cell.kernel, cell.release, cell.phase, cell.pattern, cell.compute_us, cell.driver, cell.dtype, cell.nbytes),
        cell.process,
    )


@dataclass(frozen=True)
class LeftOut:
    """What a plan does not ask for, and why."""

    target: str
    driver: str
    phase: str
    nbytes: int
    why: str


@dataclass(frozen=True)
class Plan:
    """What to measure. ``to_dict()`` is what a file keeps."""

    device: Device
    world_size: int
    group: Group
    targets: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    """(rows, columns) of each tensor, smallest first."""
    dtype: str
    phases: tuple[Phase, ...]
    patterns: tuple[Pattern, ...]
    compute_us: float
    drivers: Mapping[Driver, str]
    """Each with the one release that it runs, "" for any."""
    processes: int
    seed: int
    samples: tuple[int, int]
    """Least and most of a cell."""
    cell_ms: float
    """What the samples of one cell may take, between those two."""
    split: int = 0
    """Calls of our own C, back to back, that are cut into waiting and moving data besides."""
    how: str = ""
    """How processes are started."""
    ordinals: tuple[int, ...] = ()
    """The GPU of each rank, of those that are visible; empty for CPU ranks."""
    left_out: tuple[LeftOut, ...] = ()
    cells: tuple[Task, ...] = field(default=(), repr=False)
    """Those of one process set, in the order of the arguments; number 0's."""

    def tasks(self, process: int) -> list[Task]:
        """One process set's, in its own order."""
        tasks = [replace(task, process=process) for task in self.cells]
        random.Random(f"{self.seed} {process}").shuffle(tasks)
        return tasks

    def calls_of(self, nbytes: int, phase: str) -> int:
        return next(calls for limit, calls in _CALLS[self.device, phase] if nbytes <= limit or not limit)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "bench": VERSION,
            "device": self.device,
            "world_size": self.world_size,
            "started": self.how,
            "ordinals": list(self.ordinals),
            "facts": {name: fact.value for name, fact in sorted(self.group.facts.items())},
            "targets": list(self.targets),
            "shapes": [list(shape) for shape in self.shapes],
            "dtype": self.dtype,
            "phases": list(self.phases),
            "patterns": list(self.patterns),
            "compute_us": self.compute_us,
            "drivers": dict(self.drivers),
            "processes": self.processes,
            "seed": self.seed,
            "calls_a_sample": {phase: [list(pair) for pair in _CALLS[self.device, phase]] for phase in self.phases},
            "samples": list(self.samples),
            "cell_ms": self.cell_ms,
            "split": self.split,
            "cells": len(self.cells) * self.processes,
            "left_out": self.left_out_texts(),
        }

    def left_out_texts(self) -> list[str]:
        return grouped((text.target, text.driver, text.phase, text.nbytes, text.why) for text in self.left_out)


def make_plan(plan: Plan) -> Plan:
    """The plan with its cells: every combination that the dispatch gives to its target. Raises InputError where none is left."""
    cells: list[Task] = []
    left_out: list[LeftOut] = []
    for driver, name, shape, phase in product(plan.drivers, plan.targets, plan.shapes, plan.phases):
        wanted, why = _wanted(plan, driver, TARGETS[name], shape, phase == "captured")
        if why:
            left_out.append(LeftOut(name, driver, phase, wanted.nbytes, why))
            continue
        for pattern in plan.patterns:
            compute_us = plan.compute_us if pattern == "interleaved" else 0.0
            split = plan.split if driver == "native" and not compute_us else 0
            cells.append(Task(wanted, phase, pattern, compute_us, driver, plan.calls_of(wanted.nbytes, phase), 0, split))
    whole = replace(plan, cells=tuple(cells), left_out=tuple(left_out))
    if not cells:
        raise InputError("targets", ", ".join(plan.targets), f"nothing is left to measure: {'; '.join(whole.left_out_texts())}")
    return whole


def _wanted(plan: Plan, driver: Driver, target: Target, shape: tuple[int, int], captured: bool) -> tuple[Wanted, str]:
    """The call, and why it is not to be had."""
    own = plan.drivers[driver]
    settings = target.settings(plan.group, resolve(own) if own else None)
    nbytes = shape[0] * shape[1] * DTYPE_BYTES[plan.dtype]
    decision = routed(settings, nbytes, shape[1], plan.dtype, captured)
    wanted = Wanted(target.name, str(decision.path), decision.kernel, settings, captured, shape, plan.dtype, nbytes)
    if own and target.ours:
        return wanted, "no release of SGLang runs it"
    why = why_not(target, decision)
    if why:
        others = (dtype for dtype in ELEMENTS if dtype != plan.dtype)
        took = [dtype for dtype in others if not why_not(target, routed(settings, nbytes, shape[1], dtype, captured))]
        if took:  # it is the dtype that stops it
            why += f"; {target.name} takes {', '.join(took)}, and this is {plan.dtype}"
    return wanted, why


_NUMBER = re.compile(r"\d[\d,.]*")


def grouped(rows: Any) -> list[str]:
    """(target, driver, phase, nbytes, why) as sentences: one a target, driver and kind of reason, with the sizes and the first reason.

    Reasons that differ in their numbers alone are of one kind.
    """
    found: dict[tuple[str, str, str], tuple[dict[int, None], dict[str, None], str]] = {}
    for target, driver, phase, nbytes, why in rows:
        sizes, phases, _ = found.setdefault((target, driver, _NUMBER.sub("#", why)), ({}, {}, why))
        sizes[nbytes] = phases[phase] = None
    return [
        f"{target} ({driver}{f', {only}' if len(phases) == 1 and (only := next(iter(phases))) else ''}), {_sizes(list(sizes))}: {why}"
        for (target, driver, _), (sizes, phases, why) in found.items()
    ]


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) <= 2:
        return " and ".join(human_bytes(size) for size in sorted(sizes))
    return f"{human_bytes(min(sizes))} to {human_bytes(max(sizes))} ({len(sizes)} sizes)"
