"""Writes measurement files: lines into a .partial file, each on the disk before the next, renamed when whole. Called by benches.

Invariant: at any moment, whatever happens to this process, the .partial file holds every cell whose `append` came back; no file that exists
under the final name is ever touched.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .._types import FrozenMap, InputError
from .cell import Cell, Key
from .format import FORMAT, MAGIC, PARTIAL, VERSION, MeasurementError, differences, encode, freeze, thaw
from .measurement import Provenance
from .reader import Contents, parse

_SHOWN = 6
"""Differences that a refusal names."""


class Writer:
    """One measurement file being written. ``with Writer(path, plan=..., provenance=...) as writer``: append cells, then `finish`.

    Where ``path.partial`` is there already, of the same plan and on the same machine, it is continued: `done` has its cells. Leaving the
    ``with`` without `finish` leaves the .partial file. One thread writes.

    Raises InputError where the file exists, or is another's; MeasurementError where it cannot be written, or another process writes it.
    """

    def __init__(self, path: str | os.PathLike[str], *, plan: Mapping[str, Any], provenance: Provenance) -> None:
        self.path = os.fspath(path)
        if self.path.endswith(PARTIAL):
            raise InputError("path", self.path, f"give the name that the finished file will have, without {PARTIAL}")
        self.partial_path = self.path + PARTIAL
        self.notes: tuple[str, ...] = ()
        """What resuming found: a cut line that was dropped."""
        self._cells: list[Cell] = []
        self._plan: FrozenMap[str, Any] = freeze(dict(plan), "plan")
        self._keys: set[Key] = set()
        self._sha = hashlib.sha256()
        self._size = self._lines = 0
        self._ended = False
        self._fd = -1
        self._file: os.stat_result | None = None
        self._failed = ""
        self._refuse_existing()
        try:
            self._open()
            self._begin(provenance)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------------------------------- for benches

    @property
    def done(self) -> tuple[Cell, ...]:
        """The cells that are in the file."""
        return tuple(self._cells)

    def append(self, cell: Cell) -> None:
        """One more cell; it is on the disk when this returns."""
        if self._ended:
            raise MeasurementError(self.partial_path, None, "it has its end line: nothing can follow; call finish()")
        if cell.key in self._keys:
            raise InputError("cell", cell, "this was measured already; number repeated processes by Cell.process")
        self._write({"kind": "cell", "line": self._lines + 1, "cell": cell.to_dict()})
        self._keys.add(cell.key)
        self._cells.append(cell)

    def finish(self) -> str:
        """Ends the file and gives it its name, which comes back. All cells of the plan are there: the caller knows."""
        if not self._ended:
            self._write({"kind": "end", "line": self._lines + 1, "cells": self._lines - 1, "sha256": self._sha.hexdigest()})
            self._ended = True
        self._check_untouched(0)
        try:
            _rename(self.partial_path, self.path)
            _sync_folder(self.path)
        except FileExistsError:
            raise InputError(
                "path",
                self.path,
                f"it appeared meanwhile and is not overwritten: move it away and finish() again; all is in {self.partial_path}",
            ) from None
        except OSError as error:
            raise MeasurementError(
                self.partial_path, None, f"whole, but it cannot be renamed to {self.path}: {error.strerror}"
            ) from error
        self._failed = "it is finished"
        self.close()
        return self.path

    def close(self) -> None:
        """Leaves the file as it is, and lets others have it; twice is once."""
        if self._fd >= 0 and self._ours():  # what else has its number by now is not ours to close
            os.close(self._fd)
        self._fd = -1
        self._failed = self._failed or "it was closed"

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Writer: {self.partial_path}, {len(self._cells)} cells, {self._failed or 'open'}>"

    # ---------------------------------------------------------------------------------------------------------------------- beginning

    def _open(self) -> None:
        """Opens the .partial file, new or not, and locks it: alone we may look at what is in it."""
        name = self.partial_path
        try:
            self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._file = os.fstat(self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MeasurementError(
                name, None, "another writer has it open (a bench, or a child that outlived one): wait for it, or end it"
            ) from None
        except OSError as error:
            raise MeasurementError(name, None, f"cannot be opened for writing: {error.strerror}") from error
        # Whoever held the lock before us may have finished in between: then this file is no longer a .partial one.
        if not _same(self._fd, name):
            raise MeasurementError(name, None, "another writer has just finished it")
        self._refuse_existing()

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.path):
            raise InputError("path", self.path, "it exists already, and a measurement is never overwritten: give another name")

    def _begin(self, provenance: Provenance) -> None:
        """A header into a new file; or what is there, checked against ours."""
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, size, 0) if size else b""
        while len(data) < size and (more := os.pread(self._fd, size - len(data), len(data))):
            data += more
        if b"\n" not in data:
            if data and not data.startswith(MAGIC[: len(data)]):
                raise MeasurementError(self.partial_path, 1, "not a measurement file, and therefore not overwritten")
            # A header that was cut: nothing had been measured.
            self._cut(0)
            header = {"kind": "header", "line": 1, "plan": thaw(self._plan), "provenance": provenance.to_dict()}
            self._write(header, format=FORMAT)
            _sync_folder(self.partial_path)
            return
        found = parse(data, self.partial_path, unfinished=True)
        self._check_same(found, provenance)
        self._cut(found.whole_bytes)
        self._sha.update(data[: found.whole_bytes])
        self._size, self._lines, self._ended = found.whole_bytes, found.last, found.ended
        self._cells, self.notes = found.cells, tuple(found.notes)
        self._keys = {cell.key for cell in found.cells}

    def _check_same(self, found: Contents, provenance: Provenance) -> None:
        assert found.provenance is not None
        told = [f"plan.{text}" for text in differences(thaw(self._plan), thaw(found.plan))]
        told += differences(provenance.identity, found.provenance.identity)
        if told:
            more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
            raise InputError(
                "path",
                self.path,
                f"{self.partial_path} is of another run, and is not continued ({'; '.join(told[:_SHOWN])}{more}): "
                "give another name, or move it away",
            )

    # ------------------------------------------------------------------------------------------------------------------------ writing

    def _write(self, members: dict[str, Any], **first: str) -> None:
        """One line, on the disk when this returns. On failure the file is cut back to its last whole line, and we let go of it."""
        line = encode({**first, "version": VERSION, **members})
        self._check_untouched(len(line))
        try:
            sent = 0
            while sent < len(line):
                sent += os.write(self._fd, line[sent:])
            os.fsync(self._fd)
            self._sha.update(line)
            self._size += len(line)
            self._lines += 1
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, OSError):
                raise MeasurementError(self.partial_path, self._lines + 1, self._failed) from error
            raise

    def _check_untouched(self, nbytes: int) -> None:
        """That our descriptor is still our file, as we left it: a descriptor that someone closed may be another file's by now."""
        what = f"writing {nbytes:,} bytes after {self._size:,} is refused: " if nbytes else ""
        if self._fd < 0:
            raise MeasurementError(self.partial_path, None, f"{what}{self._failed}; {self._kept()}")
        try:
            now = os.fstat(self._fd)
            reason = (
                "" if _same(self._fd, self.partial_path) else "it was moved or removed, or its descriptor was closed by others"
            )
        except OSError as error:
            reason = f"its descriptor was closed by others ({error.strerror})"
        else:
            reason = reason or ("" if now.st_size == self._size else f"something else changed it: it has {now.st_size:,} bytes")
        if reason:
            self._failed = reason
            self.close()
            raise MeasurementError(self.partial_path, None, f"{what}{reason}; {self._kept()}")

    def _ours(self) -> bool:
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._fd), self._file)
        except OSError:
            return False

    def _give_up(self, error: BaseException) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        hint = ": free some space, and start again with the same name" if _full(error) else ""
        tail = "" if self._cut(self._size) else "; its last line is cut, which readers drop"
        self._failed = f"writing to it failed after {self._size:,} bytes ({reason}{hint}); {self._kept()}{tail}"
        self.close()

    def _kept(self) -> str:
        cells = max(self._lines - 1, 0)
        return f"{cells} cell{'s' * (cells != 1)} before it {'are' if cells != 1 else 'is'} safe"

    def _cut(self, size: int) -> bool:
        try:
            if not self._ours():
                return False
            if os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, size)
        except OSError:
            return False
        return True


def _full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _same(fd: int, name: str) -> bool:
    """Whether this descriptor is the file of that name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name))
    except FileNotFoundError:
        return False


def _rename(old: str, new: str) -> None:
    """Never over a file that is there, also where two do it at once. Raises FileExistsError."""
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # No hard links on this file system: take the name, then replace our own empty file.
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        try:
            os.replace(old, new)
        except OSError:
            os.unlink(new)
            raise
        return
    os.unlink(old)


def _sync_folder(name: str) -> None:
    """A name is on the disk when its folder is."""
    folder = os.open(os.path.dirname(os.path.abspath(name)), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):  # file systems where a folder cannot be synced
            raise
    finally:
        os.close(folder)
