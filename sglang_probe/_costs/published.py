"""Published figures: the format of their files, and a file -> Table. Called by files.py.

A file of published figures is JSON: one object, one source, one machine::

    {"format": "sglang_probe published costs", "version": 1,
     "source": {"title", "repository", "url", "date", "license", "read"},       where it stands, and where exactly it was read
     "machine": {"gpu", "count", "link": "nvlink" | "pcie", "nodes": 1},        the driver's name of the GPU; how many a node has
     "what": "...",                                                            what was measured, in words
     "cautions": ["..."],                                                      what a reader must know with each figure
     "series": [{"path", "kernel", "sglang", "phase", "pattern", "driver", "dtype", "world_size",
                 "quantity": "device_us" | "host_us" | "elapsed_us",
                 "rows": [[bytes, us], ...] or [[bytes, us, low_us, high_us], ...]}]}

All members are needed, no others are taken; rows stand in order of their sizes, numbers as they were published. Invariant: a file without
a source, or with a number that cannot be a time, is refused: what is cited must be there to be looked up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from .._facts import check_dtype
from .._measure.cell import Driver, Pattern, Phase
from .._measure.format import MeasurementError
from .._types import FrozenMap, InputError
from .estimate import Estimate, Point
from .machine import Link, Machine
from .table import QUANTITIES, Series, Table

FORMAT = "sglang_probe published costs"
VERSION = 1
MAGIC = FORMAT.encode()
_MEMBERS = {"format", "version", "source", "machine", "what", "cautions", "series"}
_SOURCE = {"title", "repository", "url", "date", "license", "read"}
_MACHINE = {"gpu", "count", "link", "nodes"}
_SERIES = {"path", "kernel", "sglang", "phase", "pattern", "driver", "dtype", "world_size", "quantity", "rows"}
_LINKS: tuple[Link, ...] = ("nvlink", "pcie")


def parse(data: bytes, name: str) -> Table:
    """Raises MeasurementError that names the file and the member."""
    try:
        return _table(json.loads(data), name)
    except (ValueError, RecursionError) as error:  # InputError is one
        reason = f"{error.field}: {error.remedy}" if isinstance(error, InputError) else f"it is not JSON ({error})"
        raise MeasurementError(name, None, f"not a file of published figures: {reason}") from None


def _table(plain: Any, name: str) -> Table:
    if isinstance(plain, dict) and plain.get("format") == FORMAT and plain.get("version") != VERSION:
        raise InputError(
            "version", plain.get("version"), f"this sglang_probe reads version {VERSION}, and it is {plain.get('version')!r}"
        )
    members = _members(plain, _MEMBERS, "file")
    if members["format"] != FORMAT:
        raise InputError("format", members["format"], f"it must be {FORMAT!r}")
    source = {key: _text(value, f"source.{key}") for key, value in _members(members["source"], _SOURCE, "source").items()}
    if not source["url"].startswith("https://"):
        raise InputError("source.url", source["url"], "give the https address of the source")
    cautions = tuple(_text(text, "cautions") for text in _list(members["cautions"], "cautions"))
    series = _merged([_one(item, f"series[{i}]") for i, item in enumerate(_list(members["series"], "series"))])
    return Table(
        origin="published",
        machine=_machine(_members(members["machine"], _MACHINE, "machine")),
        name=source["repository"],
        source=f"{source['title']}, {source['url']}",
        stamp=f"{source['date']}, read in {source['read']}",
        notes=(_text(members["what"], "what"), *cautions),
        _series=lambda: series,
    )


def _machine(plain: Mapping[str, Any]) -> Machine:
    count, nodes, link = _whole(plain["count"], "machine.count"), _whole(plain["nodes"], "machine.nodes"), plain["link"]
    if link not in _LINKS:
        raise InputError("machine.link", link, f"give one of {', '.join(_LINKS)}")
    return Machine((_text(plain["gpu"], "machine.gpu"),) * count, ((link,) * count,) * count, nodes=nodes)


def _one(plain: Any, name: str) -> Series:
    members = _members(plain, _SERIES, name)
    words = {"phase": get_args(Phase), "pattern": get_args(Pattern), "driver": get_args(Driver), "quantity": QUANTITIES}
    for key, known in words.items():
        if members[key] not in known:
            raise InputError(f"{name}.{key}", members[key], f"give one of {', '.join(known)}")
    if members["pattern"] == "interleaved":
        raise InputError(f"{name}.pattern", "interleaved", "the length of the kernel in between has no place in this format")
    points = [_point(row, f"{name}.rows[{i}]") for i, row in enumerate(_list(members["rows"], f"{name}.rows"))]
    if any(one.nbytes >= other.nbytes for one, other in zip(points, points[1:], strict=False)):
        raise InputError(f"{name}.rows", None, "sizes must grow")
    return Series(
        path=_text(members["path"], f"{name}.path"),
        kernel=_any_text(members["kernel"], f"{name}.kernel"),
        phase=members["phase"],
        pattern=members["pattern"],
        compute_us=0.0,
        driver=members["driver"],
        dtype=check_dtype(_text(members["dtype"], f"{name}.dtype")),
        world_size=_whole(members["world_size"], f"{name}.world_size"),
        release=_any_text(members["sglang"], f"{name}.sglang"),
        points=FrozenMap({members["quantity"]: tuple(points)}),
    )


def _merged(series: list[Series]) -> tuple[Series, ...]:
    """Two entries of the same thing would hide each other, but where they hold two quantities of it."""
    seen = set()
    for one in series:
        key = (one.path, one.kernel, one.phase, one.pattern, one.driver, one.dtype, one.world_size, one.release, *one.points)
        if key in seen:
            raise InputError("series", str(one), "the same stands there twice")
        seen.add(key)
    return tuple(series)


def _point(row: Any, name: str) -> Point:
    values = _list(row, name)
    if len(values) not in (2, 4):
        raise InputError(name, row, "give [bytes, us], or [bytes, us, low_us, high_us]")
    nbytes, times = _whole(values[0], name), values[1:]
    for time in times:
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 < time < float("inf"):
            raise InputError(name, time, "a time is a number above 0")
    us, low, high = times if len(times) == 3 else (times[0], None, None)
    if low is not None and not low <= us <= high:
        raise InputError(name, row, "a time lies within its interval")
    return Point(nbytes, Estimate(us, low, high, processes=0))


def _members(plain: Any, names: set[str], what: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise InputError(what, plain, "give an object")
    for name in sorted(names ^ set(plain)):
        raise InputError(f"{what}.{name}", None, "this member is missing" if name in names else "there is no such member")
    return plain


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(name, value, "give a list")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(name, value, "give a text")
    return value


def _any_text(value: Any, name: str) -> str:
    return "" if value == "" else _text(value, name)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
        raise InputError(name, value, "give a whole number, 1 or more")
    return value
