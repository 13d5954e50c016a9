"""Provenance (on what something was measured), Measurement (a file: cells and their provenance). Made by provenance.py, reader.py.

Invariant: a Measurement says of itself whether it is all that was measured: `partial`, and `notes` tell why; also after `write`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from .._show.page import Block, Line, items, to_html, to_text
from .._shown import Shown
from .._types import FrozenMap, InputError
from .cell import Cell
from .format import PARTIAL, check_mapping, check_text, freeze, members_of, thaw

if TYPE_CHECKING:
    from .summary import Summary

__all__ = ["Cell", "Measurement", "Provenance"]


@dataclass(frozen=True, repr=False)
class Provenance(Shown):
    """What something was measured on, as far as this machine tells; a Measurement has one. Plain frozen data; a text is "" and a mapping
    empty where something is not known, and `missing` says why. `stamp` of provenance.py makes one."""

    version: str
    """sglang_probe's."""
    revision: str = ""
    """The git commit of its code where it runs from a checkout; ``+`` and a hash of the changes where it is not that commit."""
    binaries: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    """Start of the SHA-256 of each extension module: what was really run."""
    started: str = ""
    """UTC."""
    host: str = ""
    """What tells the machine from others, hashed: of its GPUs' UUIDs ("gpus:..."), else of its machine-id ("machine:..."), else of its name
    ("name:..."); "" where nothing does."""
    system: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    cpu: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    python: str = ""
    driver: str = ""
    """NVIDIA's, and the newest CUDA that it runs."""
    cuda: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    """All of the machine, in the driver's order: name, uuid, memory, limits, ECC. `env` says which were visible."""
    links: tuple[tuple[str, ...], ...] = ()
    """From each GPU to each."""
    topology: str = ""
    """Fingerprint: start of the SHA-256 of `links`."""
    nccl: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    """Path and version of the library that communicators open."""
    torch: str = ""
    """Its version, where it had been imported."""
    env: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    state: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    """`machine_state()` at the start."""
    missing: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    """What could not be found, and why."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            kind = str(one.type)
            if kind == "str":
                value = check_text(value, one.name)
            elif kind.startswith("Mapping"):
                value = check_mapping(value, one.name)
            elif not isinstance(value, list | tuple):
                raise InputError(one.name, value, "give a list")
            else:
                value = freeze(value, one.name)
            if kind.startswith("Mapping[str, str]"):
                for key, text in value.items():
                    check_text(text, f"{one.name}.{key}")
            object.__setattr__(self, one.name, value)
        for name, kinds in (("gpus", Mapping), ("links", tuple)):
            for i, row in enumerate(getattr(self, name)):
                if not isinstance(row, kinds):
                    raise InputError(f"{name}[{i}]", row, "give a mapping" if kinds is Mapping else "give a list of texts")
        for i, row in enumerate(self.links):
            for j, text in enumerate(row):
                check_text(text, f"links[{i}][{j}]")

    @property
    def identity(self) -> dict[str, Any]:
        """All that must be the same for one file to be continued: everything but the moment, and a name that a container has anew at
        each start: what the machine is made of must be the same all the same."""
        told = {name: value for name, value in self.to_dict().items() if name not in ("started", "state")}
        if self.host.startswith("name:") or not self.host:
            told["host"] = ""
            told["missing"].pop("host", None)
        return told

    def __repr__(self) -> str:
        return f"<Provenance: {self}>"

    def __str__(self) -> str:
        names: dict[str, int] = {}
        for gpu in self.gpus:
            names[str(gpu.get("name"))] = names.get(str(gpu.get("name")), 0) + 1
        on = ", ".join(f"{count}x {name}" for name, count in names.items()) or str(self.cpu.get("model") or "a machine not told")
        parts = [
            on,
            *(f"{what} {value}" for what, value in (("driver", self.driver), ("NCCL", self.nccl.get("version"))) if value),
        ]
        revision = f" at {self.revision[:12]}" if self.revision else ""
        return f"{', '.join(parts)}; sglang_probe {self.version}{revision}{f', {self.started}' if self.started else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {one.name: thaw(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_dict(cls, plain: object) -> Provenance:
        """What `to_dict` gave. Raises InputError."""
        return cls(**members_of(cls, plain))


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """What a measurement file holds: ``Measurement.read(path)``, or what `bench` gives back. `format.py` documents the file.

    Times are microseconds a call, sizes are bytes. ``cells[i].device_us`` and its like are by rank: a tuple of ``world_size`` float64
    arrays of samples (see `Cell`). ``summary()`` puts cells of the same call together over process sets (see `Summary`); that is also what
    ``print`` and a notebook show.
    """

    cells: tuple[Cell, ...]
    """In the order in which they were measured."""
    provenance: Provenance | None
    """None only where a damaged header was skipped: ``rescue=True``."""
    plan: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    """What the bench meant to measure, as it calls it."""
    partial: bool = False
    """Something is missing, or may be: the file is unfinished, part of it was damaged, or it was written from such a one."""
    notes: tuple[str, ...] = ()
    """What a reader must know: what was dropped or skipped, line by line."""
    path: str = ""
    _shipped: bool = field(default=False, kw_only=True)

    @classmethod
    def shipped(cls, name: str = "2x_h200") -> Measurement:
        """One that comes with the package: every sample of a named machine that we measured. Raises InputError for a name that is none."""
        from .._costs.files import shipped_measurement

        return shipped_measurement(name)

    @property
    def origin(self) -> str:
        """Whose numbers these are: ``shipped``, ``measured on this machine`` or ``measured elsewhere``; ``measured``, where the file does
        not tell its machine from others."""
        from .._costs.machine import this_host

        if self._shipped:
            return "shipped"
        host = self.provenance.host if self.provenance else ""
        if not host:
            return "measured"
        return "measured on this machine" if host == this_host() else "measured elsewhere"

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, rescue: bool = False) -> Measurement:
        """A whole file, also one that gzip has packed, or a ``.partial`` one at any moment, also while it is being written.

        `rescue`: a damaged line is skipped and told in `notes` instead of refused; what is left is what was written, or not there.
        ``write`` makes a file of it that needs no rescue.
        Raises MeasurementError with the line and the reason: damaged, cut, of a newer version, no measurement file; InputError where
        there is no such file.
        """
        from .reader import read

        return read(path, rescue=rescue)

    def write(self, path: str | os.PathLike[str]) -> str:
        """A finished file of these cells; its name comes back. What was rescued can be used everywhere then, and stays marked.

        Where this is `partial`, the file's plan says so under "rescued", with all notes; who reads it has `partial` and the notes again.
        Raises InputError where the file or its ``.partial`` exists, where `provenance` is None, or where two cells have the same key;
        MeasurementError where it cannot be written.
        """
        from .writer import Writer

        name = os.fspath(path)
        if self.provenance is None:
            remedy = "on what these cells were measured is not known: dataclasses.replace(..., provenance=...) of a file of the same bench"
            raise InputError("provenance", None, remedy)
        if len({cell.key for cell in self.cells}) < len(self.cells):
            raise InputError("cells", f"{len(self.cells)} cells", "two of them are of the same call and process set")
        if os.path.lexists(name + PARTIAL):
            raise InputError("path", name, f"there is {name}{PARTIAL}, which is unfinished: give another name, or move it away")
        plan = thaw(self.plan)
        if self.partial:
            old = rescued_texts(self.plan)
            new = [text for text in self.notes if text not in old] or ([] if old else ["not all of it is there"])
            source = os.path.basename(self.path) or "a measurement that was never in a file"
            plan[_RESCUED] = [*old, *(f"rescued from {source}: {text}" for text in new)]
        with Writer(name, plan=plan, provenance=self.provenance) as writer:
            for cell in self.cells:
                writer.append(cell)
            return writer.finish()

    def summary(self) -> tuple[Summary, ...]:
        """One for each thing that was measured, over process sets: figures, their range, each rank's. In the order that ``print`` shows."""
        from .._bench.page import ordered
        from .summary import summaries

        return tuple(ordered(summaries(self)))

    def picture(
        self, what: Literal["latency", "buffers", "patterns", "drivers"] = "latency", *, dark: bool = False, **how: Any
    ) -> Any:
        """A matplotlib Figure over sizes: ``"latency"`` of every path, or two ways of a call: ``"buffers"`` (in place, out of place),
        ``"patterns"`` (back to back, interleaved), ``"drivers"`` (our C, SGLang's Python). ``how``: what latency_figure and against of
        `sglang_probe.notebook` take, as ``targets``. Raises InputError where it was not measured, ProbeUnavailable without matplotlib.
        """
        if what == "latency":
            from .._show.latency import latency_figure

            return latency_figure(self, dark=dark, **how)
        from .._show.against import against

        return against(self, what, **how).picture(dark=dark)

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Measurement: {self._answer()}>"

    def _answer(self) -> str:
        wrong, sets = sum(cell.wrong > 0 for cell in self.cells), len({cell.process for cell in self.cells})
        told = [f"{len(self.cells):,} cell{'s' * (len(self.cells) != 1)}", f"{sets} process set{'s' * (sets != 1)}"]
        told += ["PARTIAL"] if self.partial else []
        told += [f"{wrong} with WRONG results"] if wrong else []
        return ", ".join(told) + f"; {self.provenance or 'on what is not known'}"

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see: how much there is, on what, what is wrong with it, and the table that a bench ends with.

        ``verbose``: the range of every figure, and each rank's.
        """
        from .._bench.page import summary_blocks

        blocks: list[Block] = [Line(self._answer(), "answer"), *([Line(self.path, "dim")] if self.path else [])]
        blocks += items("Notes", self.notes, "warn")
        blocks += summary_blocks(self.summary(), self, verbose)
        missing = self.provenance.missing if self.provenance else {}
        blocks += items("Not known of this machine", (f"{name}: {why}" for name, why in missing.items()), "dim")
        return blocks

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "cells": [cell.to_dict() for cell in self.cells],
            "provenance": self.provenance.to_dict() if self.provenance else None,
            "plan": thaw(self.plan),
            "partial": self.partial,
            "notes": list(self.notes),
            "path": self.path,
        }


_RESCUED = "rescued"
"""Member of a plan: what is missing, of a file that was written from a partial Measurement. No bench has one of this name."""


def rescued_texts(plan: Mapping[str, Any]) -> list[str]:
    """What a plan says of what is missing."""
    told = plan.get(_RESCUED, ())
    return [*told] if isinstance(told, tuple) and all(isinstance(text, str) for text in told) else []
