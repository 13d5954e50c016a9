"""bands: the path per byte range for one group, every boundary exact. Called by people, step's report and the notebook's picture.

Invariant: the boundaries are those that the gates themselves compared the size with; no size between two of them routes differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import _core
from ._costs.bands import BandCost, cost_band
from ._costs.costs import CostFiles, Costs, load_costs, phase_of, wanted_of
from ._costs.machine import target_of
from ._decision import Decision
from ._facts import DTYPE_BYTES, SIZE_MAX, check_dtype, pack_call, pack_facts
from ._releases import Release, resolve
from ._route import check_group, context_bits, route
from ._shown import Reported, Shown
from ._types import Call, Group, InputError, Path

_FALLBACKS = {Path.PYNCCL_IN_PLACE, Path.PYNCCL_OUT_OF_PLACE, Path.TORCH_DISTRIBUTED, Path.RAISES}


@dataclass(frozen=True)
class Band(Shown):
    """One range of sizes, both ends included, on which everything is the same."""

    first_bytes: int
    last_bytes: int
    multiple: int
    """16: sizes that are multiples of 16 bytes; 4: multiples of 4 but not of 16; 1: the rest."""
    decision: Decision
    gap: bool = False
    """A fallback between two ranges of the same better path, or an exception: worth a look."""
    cost: BandCost | None = None
    """Device time at both ends, by tables; None where no costs were asked for, or no call is made."""

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest size of the band that a tensor of its kind can have."""
        return -(-self.first_bytes // self.multiple) * self.multiple, self.last_bytes // self.multiple * self.multiple

    @property
    def path(self) -> Path:
        return self.decision.path

    def to_dict(self) -> dict[str, Any]:
        d = self.decision
        return {
            "first_bytes": self.first_bytes,
            "last_bytes": self.last_bytes,
            "multiple": self.multiple,
            "path": str(d.path),
            "kernel": d.kernel,
            "backend": d.backend,
            "rule": d.rule,
            "returns": d.returns,
            "reduces": d.reduces,
            "error": d.error,
            "gap": self.gap,
            "device_us": None if self.cost is None else self.cost.to_dict(),
        }


@dataclass(frozen=True, repr=False)
class Bands(Reported):
    """All bands of one group, context, dtype and release, smallest first."""

    sglang: str
    ruleset: str
    context: str
    dtype: str
    world_size: int
    bands: tuple[Band, ...]
    """Sizes that are multiples of 16 bytes: every [tokens, hidden] of the usual models."""
    odd: tuple[Band, ...]
    """Other sizes, where they route differently from the multiples of 16 around them."""

    def __iter__(self) -> Iterator[Band]:
        return iter(self.bands)

    def path_at(self, nbytes: int) -> Path:
        """The path of one size; for many sizes use ``router``."""
        multiple = 16 if nbytes % 16 == 0 else 4 if nbytes % 4 == 0 else 1
        for band in (*self.odd, *self.bands):
            if band.first_bytes <= nbytes <= band.last_bytes and band.multiple in (multiple, 16):
                return band.path
        raise InputError("nbytes", nbytes, "a tensor has 1 to 2^63 - 1 bytes")

    def to_dict(self) -> dict[str, Any]:
        return {
            "sglang": self.sglang,
            "ruleset": self.ruleset,
            "context": self.context,
            "dtype": self.dtype,
            "world_size": self.world_size,
            "bands": [band.to_dict() for band in self.bands],
            "odd": [band.to_dict() for band in self.odd],
        }

    def __repr__(self) -> str:
        paths = ", ".join(dict.fromkeys(str(band.path) for band in self.bands))
        return f"<Bands: {self.sglang}, {self.context}, {self.dtype}, {self.world_size} ranks: {paths}>"

    def __str__(self) -> str:
        from ._show.render import bands_text

        return bands_text(self)

    def _repr_html_(self) -> str:
        from ._show.render import bands_html

        return bands_html(self)

    def picture(self, *, dark: bool = False) -> Any:
        """A matplotlib Figure: where each size (bytes) goes. Raises ProbeUnavailable without matplotlib."""
        from ._show.strips import picture

        return picture(self, dark)


def _key(decision: Decision) -> tuple[object, ...]:
    d = decision
    return d.path, d.kernel, d.backend, d.rule, d.returns, d.reduces, d.error


def _merge(bands: Iterable[Band]) -> list[Band]:
    merged: list[Band] = []
    for band in bands:
        before = merged[-1] if merged else None
        if before and _key(before.decision) == _key(band.decision) and before.last_bytes + 1 == band.first_bytes:
            merged[-1] = replace(before, last_bytes=band.last_bytes)
        else:
            merged.append(band)
    return merged


def _flag_gaps(bands: list[Band]) -> tuple[Band, ...]:
    better = [i for i, band in enumerate(bands) if band.path not in _FALLBACKS]
    flagged = []
    for i, band in enumerate(bands):
        below = {bands[k].path for k in better if k < i}
        above = {bands[k].path for k in better if k > i}
        gap = band.path in _FALLBACKS and bool(below & above) or band.path is Path.RAISES
        flagged.append(replace(band, gap=gap))
    return tuple(flagged)


def bands(
    group: Group,
    *,
    context: str | Iterable[str] = "eager",
    dtype: str = "bf16",
    hidden: int = 0,
    sglang: str | Release,
    costs: CostFiles = None,
) -> Bands:
    """The path per byte range of one group, boundaries exact, over all sizes from 1 byte to 2^63 - 1.

    ``hidden`` (elements of the last dimension) matters only where a communicator's workspace is counted in rows: FlashInfer, PCIe-IPC.
    ``costs`` says by which tables the ends of the bands are costed, as ``step`` takes it.
    Raises InputError as ``route`` does, MeasurementError for a file of costs that cannot be read.
    """
    tables = load_costs(costs)
    release, name = resolve(sglang), check_dtype(dtype)
    context = context if isinstance(context, str) else tuple(context)
    check_group(group)
    call = Call(nbytes=16, dtype=name, hidden=hidden)
    bits = context_bits(context)
    found = _core.bands(release.index, pack_facts(group), pack_call(call), bits, release.derived)
    rows: dict[int, list[Band]] = {16: [], 4: [], 1: []}
    for i, (first, samples) in enumerate(found):
        last = found[i + 1][0] - 1 if i + 1 < len(found) else SIZE_MAX
        for multiple, sample in zip(rows, samples, strict=True):
            if sample:
                decision = route(replace(call, nbytes=sample), group, context=context, sglang=release)
                rows[multiple].append(Band(first, last, multiple, decision))
    main = {(band.first_bytes, band.last_bytes): _key(band.decision) for band in rows[16]}
    odd = [
        band
        for multiple in (4, 1)
        if multiple == 4 or DTYPE_BYTES[name] < 4
        for band in _merge(b for b in rows[multiple] if _key(b.decision) != main.get((b.first_bytes, b.last_bytes)))
    ]
    return Bands(
        sglang=release.name,
        ruleset=release.ruleset,
        context=context if isinstance(context, str) else "+".join(context),
        dtype=name,
        world_size=group.world_size,
        bands=tuple(_with_cost(band, group, context, name, tables) for band in _flag_gaps(_merge(rows[16]))),
        odd=tuple(odd),
    )


def _with_cost(band: Band, group: Group, context: str | Iterable[str], dtype: str, costs: Costs) -> Band:
    first, last = band.ends
    wanted = wanted_of(band.decision, target_of(group), phase_of(context), dtype, first)
    return replace(band, cost=cost_band(costs, wanted, first, last)) if wanted is not None and costs.tables else band
