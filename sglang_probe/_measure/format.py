r"""What a line of a measurement file is, and how it is told from a damaged one. Called by writer.py, reader.py and measurement.py.

Invariant: a line that verifies is byte for byte the one that was written; whatever else is refused with a reason.

The format, version 1
=====================

A measurement file is text: UTF-8, one JSON object (RFC 8259) a line, each line ended by one LF (byte 10). The usual name ends
in ``.jsonl``; while it is being written it is called the same with ``.partial`` behind it.

1. The header, line 1, begins with these very bytes: ``{"format":"sglang_probe measurement","version":``. Its members, in this
   order: ``format``; ``version``: 1; ``kind``: "header"; ``line``: 1; ``plan``: an object, what the bench meant to measure, as
   it calls it; ``provenance``: an object, what it was measured on (the fields of `Provenance`); ``crc32``.
2. A cell, one line for each thing that was measured: ``version``, ``kind``: "cell", ``line``, ``cell``: an object (the fields
   of `Cell`), ``crc32``.
3. The end, the last line: ``version``, ``kind``: "end", ``line``, ``cells``: how many cell lines there are, ``sha256``: of all
   bytes before this line, in hexadecimal; ``crc32``. A file without it is unfinished, or was cut.

``line`` is the line's number, from 1. ``crc32`` is always the last member, eight lower-case hexadecimal digits, and so each
line ends with 20 bytes of the form ``,"crc32":"0123abcd"}``. It is the CRC-32 of zlib, gzip and PNG over the line's bytes with
these 20 replaced by one ``}``: that is, over the line's JSON without the member, without spaces, in the order above. To check a
line, no JSON needs to be parsed.

Values. Times are microseconds, sizes are bytes. Numbers are decimal, the shortest that gives the same IEEE double again; whole
numbers have up to 64 bits, more than a double holds. There is no NaN. A sample that is infinite is the string "inf" or "-inf";
nothing else is infinite. A field that is not known is null or an empty string, and `Provenance.missing` says why. Text has no
lone surrogates.

A cell's samples. ``device_us``, ``host_us``, ``elapsed_us``, ``wait_us`` and ``transfer_us`` are arrays, one for each rank in
order, of every sample that the rank took, in order; an empty array where nothing was timed. ``before`` and ``after`` are the
machine's state around the cell: clocks, power, temperature, throttle, load.

Versions. A field that is new, or a new word for ``phase``, ``pattern``, ``driver`` or ``device``, makes a new version; a new
path, kernel, backend, dtype or release is only a name. Every version keeps line 1 as it is described here, up to ``version``,
and its ``crc32``: so a reader can always tell "newer than I am" from "damaged".

What damage does. One flipped bit, and any burst of up to 32 bits, is always found by the CRC-32; other damage to a line passes
with a chance of one in four billion, and in a finished file the SHA-256 finds that too. Lines that are lost, repeated or out of
order are found by ``line``. A last line without its LF is what an interrupted writer leaves: in a ``.partial`` file it is
dropped, and told; elsewhere it is damage. Checksums guard against accidents, not against people: whoever rewrites a file can
compute them again.

Reading one without this package::

    import json, zlib
    for line in open("FILE", "rb").read().split(b"\n")[:-1]:
        assert zlib.crc32(line[:-20] + b"}") == int(line[-10:-2], 16), "damaged"
        print(json.loads(line))
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from .._types import FrozenMap, InputError, ProbeError

VERSION = 1
FORMAT = "sglang_probe measurement"
MAGIC = f'{{"format":"{FORMAT}","version":'.encode()
PARTIAL = ".partial"
KINDS = ("header", "cell", "end")
_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\Z')
_TAIL_BYTES = 20


class MeasurementError(ProbeError):
    """A measurement file that cannot be read, or not be written. Names the file, the line where there is one, and the reason."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        super().__init__(f"{path}{f', line {line}' if line else ''}: {reason}")
        self.path, self.line, self.reason = path, line, reason

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is pickled by its text alone, which is not what makes this one
        return type(self), (self.path, self.line, self.reason)


class DamagedLine(Exception):
    """Why a line is not what was written."""


class OtherVersion(Exception):
    """A whole line of another version than ours; its argument is that version."""


def encode(members: Mapping[str, Any]) -> bytes:
    """A line with its checksum and its LF."""
    text = json.dumps(members, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text.encode()
    return body[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def decode(raw: bytes) -> dict[str, Any]:
    """The members of a line, given without its LF. Raises DamagedLine, or OtherVersion where the line is whole."""
    found = _TAIL.search(raw)
    if found is None:
        if raw.endswith(b"}\r"):
            raise DamagedLine("it ends in CR LF: something converted this file's line ends; convert them back to LF")
        raise DamagedLine("it does not end with a checksum")
    sum_there, sum_here = int(found[1], 16), zlib.crc32(raw[:-_TAIL_BYTES] + b"}")
    if sum_there != sum_here:
        raise DamagedLine(f"its checksum is {sum_here:08x}, and it says {sum_there:08x}")
    try:
        members = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedLine(f"its checksum holds, and yet it is not JSON ({error})") from None
    if not isinstance(members, dict):
        raise DamagedLine("its checksum holds, and yet it is no object")
    version = members.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise DamagedLine(f"its version is {version!r}")
    if version != VERSION:
        raise OtherVersion(version)
    return members


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


# ------------------------------------------------------------------------------------------------- plain data that does not change


def freeze(value: object, name: str) -> Any:
    """Plain data (what JSON holds) as values that do not change: mappings as FrozenMap, sequences as tuples. Raises InputError."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise InputError(name, f"a number of {value.bit_length()} bits", "a whole number has at most 64 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(name, value, "only samples may be infinite, and nothing may be NaN; leave it out, or give None")
        return value
    if isinstance(value, str):
        return check_text(value, name)
    if isinstance(value, Mapping):
        return FrozenMap({check_text(key, f"a key of {name}"): freeze(item, f"{name}.{key}") for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item, f"{name}[{i}]") for i, item in enumerate(value))
    raise InputError(
        name,
        reprlib.repr(value),
        f"a {type(value).__name__} cannot be written as JSON; give text, numbers, lists and mappings of them",
    )


def check_text(value: object, name: str) -> str:
    """A text as UTF-8 holds it, without a subclass's own ways."""
    if not isinstance(value, str):
        raise InputError(name, value, "give a text")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(name, value, "it holds bytes that are not UTF-8 (lone surrogates); write them another way") from None
    return text


def check_mapping(value: object, name: str) -> FrozenMap[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(name, value, "give a mapping")
    frozen: FrozenMap[str, Any] = freeze(value, name)
    return frozen


def thaw(value: Any) -> Any:
    """The same as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value


def differences(here: Any, there: Any, name: str = "") -> list[str]:
    """Where two pieces of plain data differ: ``driver: '580.1' here, '570.2' in the file``."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        keys = [*here, *(key for key in there if key not in here)]
        return [
            text
            for key in keys
            for text in differences(here.get(key, _NOTHING), there.get(key, _NOTHING), f"{name}.{key}" if name else str(key))
        ]
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        return [text for i, pair in enumerate(zip(here, there, strict=True)) for text in differences(*pair, f"{name}[{i}]")]
    # 1 and True, or 1 and 1.0, are the same to Python, and are not the same in a file
    if type(here) is type(there) and here == there:
        return []
    return [f"{name}: {reprlib.repr(here)} here, {reprlib.repr(there)} in the file"]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def members_of(kind: type[Any], plain: object) -> dict[str, Any]:
    """The fields of a noun, all of them and no others."""
    what = kind.__name__.lower()
    if not isinstance(plain, Mapping):
        raise InputError(what, plain, "give an object")
    names = [one.name for one in fields(kind)]
    for name in names:
        if name not in plain:
            raise InputError(f"{what}.{name}", None, "this field is missing")
    for name in plain:
        if name not in names:
            raise InputError(f"{what}.{name}", plain[name], "there is no such field in this version")
    return dict(plain)
