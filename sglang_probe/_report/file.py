"""The file of a report: written whole or not at all, read back with every check. Called by __init__.py.

A report ends with a comment that tells how many bytes stand before it, and their SHA-256. Its data are JSON in one element.
Invariant: what `read` gives is what `write` was given; a file that was cut or changed anywhere is refused with the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
from typing import Any

from .._measure.writer import _sync_folder as sync_folder
from .._types import InputError, ProbeError
from .hypertext import DATA

FORMAT = "sglang_probe report"
VERSION = 1
_BEGIN = b"<!DOCTYPE html>\n<html lang="
_GENERATOR = b'<meta name="generator" content="sglang_probe '
_END = re.compile(rb"<!-- sglang_probe report (\d+): (\d+) bytes above, SHA-256 ([0-9a-f]{64}) -->\n\Z")
_DATA = re.compile(rb'<script type="application/json" id="%s">([^<]*)</script>' % DATA.encode())
_HEAD = 4096
"""Bytes in which our mark stands, where a file has one."""


class ReportError(ProbeError):
    """A report that cannot be read, or not be written. Names the file and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is pickled by its text alone, which is not what makes this one
        return type(self), (self.path, self.reason)


def sealed(page: str) -> bytes:
    """The page's bytes, and behind them what a reader checks."""
    data = page.encode()
    end = f"<!-- {FORMAT} {VERSION}: {len(data)} bytes above, SHA-256 {hashlib.sha256(data).hexdigest()} -->\n"
    return data + end.encode()


# ---------------------------------------------------------------------------------------------------------------------------- write


def write(page: str, path: str | os.PathLike[str]) -> str:
    """The page under that name; its name comes back. A report that is there is replaced, anything else is not."""
    name = os.fspath(path)
    check(name)
    try:
        _replace(name, os.path.dirname(name) or ".", sealed(page))
    except OSError as error:
        raise ReportError(name, f"it cannot be written: {error.strerror or error}; nothing was left behind") from error
    return name


def check(name: str, field: str = "path") -> None:
    """What cannot be a report's name. Raises InputError that names `field`."""
    if not name.lower().endswith((".html", ".htm")):
        raise InputError(field, name, "give a name that ends in .html, which browsers open")
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        raise InputError(field, name, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(field, name, f"nothing can be written in {folder}: give another folder")
    _refuse_others(name, field)


def _refuse_others(name: str, field: str) -> None:
    """What is no report of ours is somebody's work."""
    try:
        kind = os.lstat(name).st_mode
        if not stat.S_ISREG(kind):
            raise InputError(field, name, "it is there, and no file: give another name")
        with open(name, "rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(field, name, f"it is there and cannot be read ({error.strerror}): give another name") from error
    if not (head.startswith(_BEGIN) and _GENERATOR in head):
        raise InputError(field, name, "it is there, and no report: it is not overwritten; give another name")


def _replace(name: str, folder: str, data: bytes) -> None:
    """All of it on the disk under another name first, then renamed: at no moment is half a report there."""
    fd, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(name)[:100]}.", suffix=".partial")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), _mode(name))
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(name)


def _mode(name: str) -> int:
    """What the file had, else what a new file gets."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(os.stat(name).st_mode)
    return 0o644


# ----------------------------------------------------------------------------------------------------------------------------- read


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a report holds: the whole result with every sample under "result", and what it stands on. Raises ReportError, InputError."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            whole = file.read()
    except FileNotFoundError:
        raise InputError("path", name, "there is no such file") from None
    except OSError as error:
        raise ReportError(name, f"it cannot be read: {error.strerror}") from error
    return parse(whole, name)


def parse(whole: bytes, name: str) -> dict[str, Any]:
    """The data of a report's bytes."""
    if not whole:
        raise ReportError(name, "it is empty")
    if not whole.startswith(_BEGIN[: len(whole)]):
        raise ReportError(name, "it is no report: it does not begin as one does")
    end = _END.search(whole)
    if end is None:
        raise ReportError(
            name, "its end is missing or was changed: it was cut, or an editor saved it; ask for the file as it was written"
        )
    version, size, digest = int(end[1]), int(end[2]), end[3].decode()
    if version != VERSION:
        raise ReportError(name, f"it is of version {version}, and this sglang_probe reads version {VERSION}")
    above = whole[: end.start()]
    if len(above) != size:
        raise ReportError(
            name, f"{size:,} bytes were written above its end and {len(above):,} are there: part of it was lost or added"
        )
    if hashlib.sha256(above).hexdigest() != digest:
        raise ReportError(name, "its checksum does not hold: something in it was changed after it was written")
    found = _DATA.findall(above)
    if len(found) != 1:
        raise ReportError(name, f"it has {len(found)} blocks of data, and a report has one")
    try:
        data = json.loads(found[0])
    except ValueError as error:
        raise ReportError(name, f"its data are no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ReportError(name, "its data are not a report's")
    return data
