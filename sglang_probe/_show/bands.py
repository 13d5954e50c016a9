"""What people see of Bands: the paths in one line, then every boundary. Called by render and by the command line.

Invariant: a size is printed exactly, and is one that a tensor of the row's kind can have: 16 B, not 1 B, starts the multiples of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._facts import SIZE_MAX
from .costs import end_text
from .page import Block, Line, Page, Table, items
from .render import NOT_CONFORMED_TITLE, answer, blockers
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._bands import Band, Bands


_DEVICE_US = ("device us, at its first", "at its last")


def bands_page(bands: Bands, verbose: bool = False) -> Page:
    """The path per byte range: in one line, then every boundary."""
    page: list[Block] = [Line(_bands_answer(bands.bands), "answer")]
    subject = f"{bands.dtype}, {bands.context}, {bands.world_size} ranks, SGLang {bands.sglang} ({bands.ruleset})"
    page.append(Line(f"{subject}; both ends included", "dim"))
    page += [Line(_gap(band), "warn") for band in bands.bands if band.gap]
    page.append(_bands_table("Sizes that are multiples of 16 bytes", bands.bands, verbose))
    if bands.odd:
        page.append(_bands_table("Other sizes, where they differ", bands.odd, verbose))
    page += _costs(bands.bands)
    notes = dict.fromkeys(f"{band.path}: {note}" for band in (*bands.bands, *bands.odd) for note in band.decision.not_conformed)
    page += items(NOT_CONFORMED_TITLE, notes, "dim")
    if verbose:
        for band in bands.bands:
            page += [Line(f"{_range(band)}: {answer(band.decision)}", "answer"), *blockers([("", band.decision)])]
    return page


def _bands_table(title: str, bands: Sequence[Band], verbose: bool) -> Table:
    """One row a band. Exact bytes, rules and multiples where they are asked for, or where rows differ in them."""
    rows = [_band_cells(band) for band in bands]
    shown = ["from", "to", "path", "kernel", "result"]
    shown += ["to, bytes", "rule"] if verbose else []
    shown[:0] = ["multiple of"] if any(band.multiple != 16 for band in bands) else []
    shown += list(_DEVICE_US) if any(band.cost and band.cost.first for band in bands) else []
    shown += [""] if any(band.gap for band in bands) else []
    right = frozenset({"from", "to", "to, bytes", "multiple of", *_DEVICE_US})
    return Table(title, tuple(shown), tuple(tuple(row[name] for name in shown) for row in rows), right, "path")


def _bands_answer(bands: Sequence[Band]) -> str:
    """``custom up to 8 MiB, then pynccl_in_place``."""
    parts: list[tuple[str, int]] = []
    for band in bands:
        name = f"raises {band.decision.error}" if band.decision.error else str(band.path)
        if parts and parts[-1][0] == name:
            parts[-1] = (name, band.last_bytes)
        else:
            parts.append((name, band.last_bytes))
    if len(parts) == 1:
        return f"{parts[0][0]} for every size"
    told = [f"{name} up to {human_bytes(_last(last))}" for name, last in parts[:-1]]
    return ", ".join(told) + f", then {parts[-1][0]}"


def _first(nbytes: int, multiple: int = 16) -> int:
    """The first size of the band's kind: a band of multiples of 16 that starts at byte 1 starts at 16."""
    return -(-nbytes // multiple) * multiple


def _last(nbytes: int, multiple: int = 16) -> int:
    return nbytes // multiple * multiple


def _range(band: Band) -> str:
    return f"{human_bytes(_first(band.first_bytes))} to {_end(band)}"


def _gap(band: Band) -> str:
    if band.decision.error:
        return f"{_range(band)} raises {band.decision.error}"
    return f"gap: {_range(band)} goes to {band.path}, between ranges of a better path"


def _end(band: Band) -> str:
    return "any" if band.last_bytes >= SIZE_MAX else human_bytes(_last(band.last_bytes, band.multiple))


def _band_cells(band: Band) -> dict[str, str]:
    d = band.decision
    result = {"input": "in place", "new": "new tensor", None: ""}[d.returns]
    if not d.reduces and not d.error and d.path != "none":
        result = "NOT REDUCED"
    return {
        "multiple of": {4: "4, not 16", 1: "neither"}.get(band.multiple, str(band.multiple)),
        "from": human_bytes(_first(band.first_bytes, band.multiple)),
        "to": _end(band),
        "to, bytes": "" if band.last_bytes >= SIZE_MAX else f"{_last(band.last_bytes, band.multiple):,}",
        "path": f"raises {d.error}" if d.error else str(d.path),
        "kernel": d.kernel or (d.backend if d.backend not in ("torch", "nccl", str(d.path)) else ""),
        "result": result,
        "rule": d.rule,
        **dict(zip(_DEVICE_US, map(end_text, (band.cost.first, band.cost.last) if band.cost else (None, None)), strict=True)),
        "": "GAP" if band.gap else "",
    }


def _costs(bands: Sequence[Band]) -> list[Block]:
    """Where the times are from, and why others are not there."""
    ends = [end for band in bands if band.cost for end in (band.cost.first, band.cost.last) if end is not None]
    figures = [figure for _, figure in ends]
    sources = dict.fromkeys(f"{f.origin}: {f.machine}, {f.table.source}" for f in figures)
    basis = dict.fromkeys((*(f"{f.series.phase}, {f.series.how}" for f in figures), *(note for f in figures for note in f.notes)))
    why = dict.fromkeys(band.cost.why for band in bands if band.cost and band.cost.why)
    return [*items("Device time is", sources), *items("It rests on", basis, "dim"), *items("No device time", why, "dim")]
