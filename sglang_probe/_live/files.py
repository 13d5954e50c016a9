"""Files of exports: whole or not at all. Called by recording.py.

Invariant: at no moment is half a file there under its name; a file that is there is replaced only where that was asked for.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import tempfile
from collections.abc import Iterable

from .._measure.writer import _rename as rename
from .._measure.writer import _sync_folder as sync_folder
from .._types import InputError, ProbeError


def packed(parts: Iterable[bytes], name: str) -> Iterable[bytes]:
    """By gzip where the name says so."""
    if not name.endswith(".gz"):
        yield from parts
        return
    held = io.BytesIO()
    with gzip.GzipFile(fileobj=held, mode="wb", filename="", mtime=0) as file:
        for part in parts:
            file.write(part)
            if held.tell() > 1 << 20:
                yield held.getvalue()
                held.seek(0)
                held.truncate()
    yield held.getvalue()


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes], *, replace: bool = False) -> str:
    """The bytes under that name, which comes back. Raises InputError where it is there, ProbeError where it cannot be written."""
    name = os.fspath(path)
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        raise InputError("out", name, f"there is no folder {folder}")
    _refuse(name, replace)
    temporary = ""
    try:
        fd, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(name)[:100]}.", suffix=".partial")
        with os.fdopen(fd, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fchmod(file.fileno(), _mode(name))
            os.fsync(file.fileno())
        (os.replace if replace else rename)(temporary, name)
        sync_folder(name)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, FileExistsError):
            raise InputError("out", name, _THERE) from None
        if isinstance(error, OSError):
            raise ProbeError(f"{name} cannot be written: {error.strerror or error}; nothing was left behind") from error
        raise
    return name


_THERE = "it is there, and is not overwritten: give another name, or --force"


def _refuse(name: str, replace: bool) -> None:
    try:
        kind = os.lstat(name).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError("out", name, f"cannot be looked at: {error.strerror}") from None
    if not replace:
        raise InputError("out", name, _THERE)
    if not stat.S_ISREG(kind):
        raise InputError("out", name, "it is there, and no plain file: give another name")


def _mode(name: str) -> int:
    """What the file had, else what a new file gets."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(os.stat(name).st_mode)
    return 0o644
