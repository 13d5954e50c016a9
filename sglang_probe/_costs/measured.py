"""A Measurement as a Table: one estimate a size over its process sets. Called by files.py.

Invariant: what was wrong in any process set is in no point; CPU ranks' cells make a table of their own, and nobody takes them for GPUs'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._measure.measurement import Measurement, Provenance
from .._measure.summary import Summary, summaries
from .._types import FrozenMap
from .estimate import Point, over_processes
from .machine import Link, Machine, this_host
from .table import QUANTITIES, Origin, Quantity, Series, Table

_NCCL_KEPT = re.compile(r"NCCL_(?!DEBUG)")
_NO_GPUS = Machine(())
_KEY = ("path", "kernel", "phase", "pattern", "compute_us", "driver", "dtype", "world_size", "release")


def tables_of(
    name: str,
    provenance: Provenance | None,
    read: Callable[[], Measurement],
    notes: tuple[str, ...] = (),
    *,
    plan: Mapping[str, Any],
    shipped: bool = False,
) -> tuple[Table, Table]:
    """The cells of GPUs, and those of CPU ranks. `read` gives the whole file, when it is first asked for."""
    origin: Origin = "shipped" if shipped else "measured" if _is_here(provenance) else "measured elsewhere"
    kept: dict[str, tuple[Series, ...]] = {}

    def series(device: str) -> tuple[Series, ...]:
        if not kept:
            found = summaries(read())
            kept.update({kind: _series(one for one in found if one.device == kind) for kind in ("gpu", "host")})
        return kept[device]

    stamp, cpu = _stamp(provenance), str(provenance.cpu.get("model", "")) if provenance else ""
    notes = (*notes, *_environment(provenance))
    env = provenance.env if provenance else None
    ordinals = plan.get("ordinals")
    gpus, host = _machine(provenance, ordinals), Machine((), device="host", cpu=cpu)
    return (
        Table(origin, gpus, name, name, stamp, notes, _lacks(provenance, gpus, ordinals), env, lambda: series("gpu")),
        Table(origin, host, name, name, stamp, notes, "", env, lambda: series("host")),
    )


def _is_here(provenance: Provenance | None) -> bool:
    return provenance is not None and bool(provenance.host) and provenance.host == this_host()


def _lacks(provenance: Provenance | None, machine: Machine, ordinals: object) -> str:
    """Why its GPUs' figures are no machine's."""
    if isinstance(ordinals, tuple) and len({*ordinals}) < len(ordinals):
        return (
            f"its ranks shared GPUs (those of ranks 0 to {len(ordinals) - 1}: {', '.join(map(str, ordinals))}): a trial, no cost"
        )
    if machine.gpus:
        return ""
    if provenance is None:
        return "its header is damaged, which says on what it was measured: measure again"
    if provenance.gpus:
        return f"none of its GPUs was visible (CUDA_VISIBLE_DEVICES={provenance.env.get('CUDA_VISIBLE_DEVICES')})"
    why = provenance.missing.get("gpus", "no reason is told")
    return f"it does not name its GPUs ({why}): where it has any, install nvidia-ml-py (the extra gpu) and measure again"


def _stamp(provenance: Provenance | None) -> str:
    if provenance is None:
        return "on what is not known"
    nccl = provenance.nccl.get("version")
    return ", ".join(
        filter(
            None,
            [provenance.started[:10], f"driver {provenance.driver}" if provenance.driver else "", f"NCCL {nccl}" if nccl else ""],
        )
    )


def _environment(provenance: Provenance | None) -> tuple[str, ...]:
    """What of its environment changes NCCL: part of what was measured."""
    kept = {k: v for k, v in provenance.env.items() if _NCCL_KEPT.match(k)} if provenance else {}
    return (f"measured with {', '.join(f'{k}={v}' for k, v in kept.items())}",) if kept else ()


def _machine(provenance: Provenance | None, ordinals: object) -> Machine:
    """The GPUs of its ranks, then the others that its processes could see, in their order."""
    if provenance is None or not provenance.gpus:
        return _NO_GPUS
    order = _visible(provenance.gpus, provenance.env.get("CUDA_VISIBLE_DEVICES"))
    if isinstance(ordinals, tuple) and all(isinstance(i, int) and 0 <= i < len(order) for i in ordinals):
        order = [*(order[i] for i in ordinals), *(gpu for i, gpu in enumerate(order) if i not in ordinals)]
    links = provenance.links
    known = len(links) == len(provenance.gpus) and all(len(row) == len(links) for row in links)
    return Machine(
        tuple(str(provenance.gpus[i].get("name") or "") for i in order),
        tuple(tuple(_link(links[i][j]) for j in order) for i in order) if known else (),
    )


def _visible(gpus: tuple[Mapping[str, Any], ...], wish: str | None) -> list[int]:
    if wish is None:
        return list(range(len(gpus)))
    order: list[int] = []
    for name in (part.strip() for part in wish.split(",")):
        if name.isdigit():
            found = [int(name)] if int(name) < len(gpus) else []
        else:
            found = [i for i, one in enumerate(gpus) if name and str(one.get("uuid") or "").startswith(name)]
        if len(found) != 1:  # CUDA stops at the first that it does not know
            break
        order += found
    return order


def _link(text: str) -> Link:
    return "nvlink" if text.startswith("NVLink") else "pcie" if text.startswith("PCIe") else ""


def _series(found: Iterable[Summary]) -> tuple[Series, ...]:
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for s in found:
        groups.setdefault(tuple(getattr(s, name) for name in _KEY), []).append(s)
    return tuple(
        Series(
            **dict(zip(_KEY, key, strict=True)),
            points=FrozenMap({name: points for name in QUANTITIES if (points := _points(group, name))}),
            wrong=frozenset(s.nbytes for s in group if s.wrong),
        )
        for key, group in groups.items()
    )


def _points(group: list[Summary], name: Quantity) -> tuple[Point, ...]:
    estimates = {s.nbytes: over_processes(getattr(s, name)) for s in group if not s.wrong}
    return tuple(Point(nbytes, one) for nbytes, one in sorted(estimates.items()) if one is not None)
