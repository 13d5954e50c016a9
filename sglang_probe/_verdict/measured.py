"""Arms of Measurement files: which cell, which times, and when each process set was measured. Called by reading.py.

Invariant: of a process set the figure is what `Summary` has, the largest over ranks of the rank's median; what was WRONG has none.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .._measure.cell import SAMPLES, Cell, Samples
from .._measure.cell import _median as median
from .._measure.format import MAGIC, differences
from .._measure.measurement import Measurement
from .._measure.summary import Summary
from .._show.sizes import human_bytes, parse_bytes
from .._types import InputError
from .arm import UTC, Arm
from .nouns import Finding

_COLUMNS = ("device_us", "elapsed_us", "host_us")
"""Tried in this order where none is named."""
_SHOWN, _DIFFERENCES = 8, 6
_RANKS = {"gpu": "GPU", "host": "CPU"}
_FIELDS = ("path", "kernel", "backend", "release", "phase", "pattern", "driver", "device", "dtype")


def is_measurement(path: Path, label: str) -> bool:
    """By its first bytes, also of what gzip has packed. Raises InputError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return True  # which reads it, and says where it is damaged
    except OSError as error:
        raise InputError(label, os.fspath(path), f"cannot be read ({error.strerror}); numbers are given as 89.2,94.1") from None


def of_measurement(measurement: Measurement, label: str, cell: Any, column: str | None, path: str) -> Arm:
    """See `arm`."""
    summary = _chosen(list(measurement.summary()), cell, path or "this measurement")
    if summary.wrong:
        raise InputError(
            "cell", what(summary), f"{summary.wrong} of {summary.checked} results were WRONG: such a call has no figure"
        )
    name = _column(summary, column)
    cells = [one for one in summary.cells if all(len(rank) for rank in getattr(one, name)) and getattr(one, name)]
    processes = tuple(iterations_of(getattr(one, name)) for one in cells)
    for one, process in zip(cells, processes, strict=True):
        if process[0] <= 0:
            raise InputError(
                f"{label}, process set {one.process}", f"{process[0]:.4g} us", f"{name} of {what(summary)}: {UNSEEN}"
            )
    alone = sum(len(process) == 1 < min(map(len, getattr(one, name))) for one, process in zip(cells, processes, strict=True))
    places = {id(one): place for place, one in enumerate(measurement.cells)}
    order = tuple(_moment(one, places[id(one)]) for one in cells)
    known = all(order)
    told = [f"{os.path.basename(path)}: " if path else "", what(summary), f", {name}"]
    told += [f" (of {alone} of {len(cells)} process sets the median alone: {NEGATIVE})"] if alone else []
    return Arm(
        label,
        processes,
        "us",
        "".join(told),
        order if known else (),
        tuple(one.process for one in cells),
        clock=UTC if known else "",
        work=f"{human_bytes(summary.nbytes)} of {summary.dtype} on {summary.world_size} {_RANKS[summary.device]} ranks",
        experiment=f"{path} {id(measurement) if not path else ''}".strip(),
        provenance=measurement.provenance,
    )


def opened(source: Any, label: str) -> Any:
    """The Measurement of a path that is one; all else as it is."""
    if isinstance(source, str | os.PathLike) and os.path.isfile(source) and is_measurement(Path(os.fspath(source)), label):
        return Measurement.read(source)
    return source


def findings_of(a: Any, b: Any) -> tuple[Finding, ...]:
    """What Measurements say besides their figures: what is missing in one."""
    text = "its file is not whole: what is missing may not be missing at random"
    return tuple(
        Finding("few_runs", label, text) for label, one in (("a", a), ("b", b)) if isinstance(one, Measurement) and one.partial
    )


def unlike(a: Arm, b: Arm) -> tuple[Finding, ...]:
    """What two arms of Measurements differ in besides their figures: the work that was done, and on what."""
    found = []
    if a.work and b.work and a.work != b.work:
        found.append(Finding("states", "", f"they did not do the same: {a.label} is of {a.work}, {b.label} of {b.work}"))
    if a.provenance and b.provenance:
        told = [_of_both(text, a.label, b.label) for text in differences(a.provenance.identity, b.provenance.identity)]
        more = f"; and {len(told) - _DIFFERENCES} more" if len(told) > _DIFFERENCES else ""
        if told:
            found.append(Finding("states", "", f"they were not measured on the same: {'; '.join(told[:_DIFFERENCES])}{more}"))
    return tuple(found)


def _of_both(text: str, a: str, b: str) -> str:
    """``driver: '580' here, '570' in the file`` is of a and b."""
    name, _, value = text.removesuffix(" in the file").rpartition(" here, ")
    return f"{name} in {a}, {value} in {b}"


NEGATIVE = "single samples are not above 0, since what compute kernels take alone is subtracted"
UNSEEN = "no time is left when that of the compute kernels beside it is subtracted: measure back_to_back, or a larger tensor"


def iterations_of(by_rank: Sequence[Samples]) -> tuple[float, ...]:
    """Those of the rank whose median is the largest: a call is done when the last rank has it.

    A compute kernel's time that is subtracted may have been the longer one now and then, where its host had other things to do. No ratio is
    made of such a sample; the median, which is what counts, holds it as it is, and then stands alone.
    """
    slowest = max(by_rank, key=median)
    return tuple(slowest.tolist()) if bool((slowest > 0).all()) else (float(median(slowest)),)


def _moment(cell: Cell, place: int) -> int:
    """Microseconds since 1970 of the batch that it was measured in, and then its place in the file; 0 where it does not say."""
    try:
        at = datetime.fromisoformat(str(cell.before["at"]).replace("Z", "+00:00")).timestamp()
    except (KeyError, ValueError):
        return 0
    return int(at * 1e6) + place


def _column(summary: Summary, column: str | None) -> str:
    there = [name for name in SAMPLES if len(getattr(summary, name))]
    if column is None:
        found = next((name for name in _COLUMNS if name in there), "")
        if not found:
            raise InputError("cell", what(summary), "nothing was timed here")
        return found
    if column not in SAMPLES:
        raise InputError("column", column, f"give one of {', '.join(SAMPLES)}")
    if column not in there:
        raise InputError("column", column, f"{what(summary)} has {', '.join(there) or 'no times'}")
    return column


def what(summary: Summary) -> str:
    """``custom (one_shot), captured, back_to_back, native, 16 KiB of bf16``."""
    kernel = f" ({summary.kernel})" if summary.kernel else ""
    beside = f" {summary.compute_us:g} us" if summary.compute_us else ""
    how = f"{summary.phase}, {summary.pattern}{beside}, {summary.driver}"
    return f"{summary.path}{kernel}, {how}, {human_bytes(summary.nbytes)} of {summary.dtype}"


def _chosen(found: list[Summary], cell: Any, path: str) -> Summary:
    if not found:
        raise InputError("cell", cell, f"{path} has no cells")
    left = [one for one in found if cell is None or all(_has(one, word) for word in _words(cell))]
    if len(left) == 1:
        return left[0]
    shown = "; ".join(what(one) for one in (left or found)[:_SHOWN])
    more = f"; and {len(left or found) - _SHOWN} more" if len(left or found) > _SHOWN else ""
    if not left:
        raise InputError("cell", cell, f"{path} has none like that. It has {shown}{more}")
    raise InputError(
        "cell", cell, f"{path} has {len(left)} of {'these' if cell is not None else 'them'}; name one by its words: {shown}{more}"
    )


def _words(cell: Any) -> list[str]:
    if isinstance(cell, Mapping):
        return [f"{name}={value}" for name, value in cell.items()]
    if not isinstance(cell, str):
        raise InputError("cell", cell, "give words that only one has: 'custom captured 16KiB'")
    return cell.replace(",", " ").split()


def _has(one: Summary, word: str) -> bool:
    """Whether this word, or ``name=value``, is of it."""
    name, equals, value = word.partition("=")
    if equals:
        held = getattr(one, name, None)
        if name not in (*_FIELDS, "nbytes", "compute_us", "world_size"):
            raise InputError("cell", word, f"a cell has {', '.join((*_FIELDS, 'nbytes', 'compute_us', 'world_size'))}")
        return str(held).lower() == value.lower() or name == "nbytes" and _is_size(one, value)
    return any(str(getattr(one, field)).lower() == word.lower() for field in _FIELDS) or _is_size(one, word)


def _is_size(one: Summary, word: str) -> bool:
    try:
        return parse_bytes(word) == one.nbytes
    except InputError:
        return False
