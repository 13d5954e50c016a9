"""Ring: one process's file, opened for reading; `rings()` finds those of this user. Called by top, dump, exports and whoever else looks.

Invariant: the file is read by pread alone and everything that it says is checked against its size first, so a file that changes, shrinks
or lies gives an error with a reason, or fewer records, and never a crash or a record that nobody wrote.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._types import FrozenMap, InputError, ProbeError
from .dtype import GRAPH, KIND, RECORD
from .folder import folders, started, unwritten
from .header import OfHeader

CONTROLS = ("site_every", "timer_every", "host_time")


@dataclass(frozen=True)
class Records:
    """What one look at the slots gave: records in order of seq, and what could not be had."""

    records: NDArray[np.void]
    """Of dtype RECORD."""
    next: int
    """`since` for the next look."""
    overwritten: int
    """Records after `since` that newer ones had replaced before this look."""
    torn: int
    """Records that were being written, or replaced, while they were read; and slots that a writer never left."""


@dataclass(frozen=True)
class Tables:
    """What is counted beside the ring and never overwritten."""

    graphs: NDArray[np.void]
    """Of dtype GRAPH; row n is graph n + 1."""
    kinds: NDArray[np.void]
    """Of dtype KIND; the used rows."""
    names: Mapping[str, Mapping[int, str]]
    """By kind (group, entry, kernel, site, graph, note) and id; id 0, which is none, is ""."""


@dataclass(frozen=True)
class Refusal:
    """A file that was not opened, and why."""

    path: Path
    reason: str


class Ring(OfHeader):
    """One process's ring file.

    Parameters
    ----------
    path
        The file. It must be a plain file of this user, and a whole ring of this version: InputError says what it is instead.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = _open(self.path, os.O_RDONLY)
        try:
            self.header: dict[str, int | str] = _look(self._fd, self.path)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ring:
        return cls(path)

    @property
    def recording(self) -> bool:
        return bool(int(self.header["control"]) & 1)

    @property
    def alive(self) -> bool:
        """The process that writes is still there: the same one, not another of its number; and this file is no copy of its own."""
        return not self.header["closed"] and _runs(self.pid, int(self.header["started"])) and unwritten(self._fd) is not True

    def refresh(self) -> dict[str, int | str]:
        """Reads the header anew (counters, rank, control words) and gives it."""
        self.header = _look(self._fd, self.path)
        return self.header

    def records(self, since: int = 0) -> Records:
        """Records with a seq above `since` that are still there."""
        try:
            data, following, overwritten, torn = _core.ring_records(self._fd, since)
        except (ValueError, ProbeError) as error:
            raise InputError("ring", os.fspath(self.path), str(error)) from None
        return Records(np.frombuffer(data, RECORD), following, overwritten, torn)

    def tables(self) -> Tables:
        try:
            graphs, kinds, listed = _core.ring_tables(self._fd)
        except (ValueError, ProbeError) as error:
            raise InputError("ring", os.fspath(self.path), str(error)) from None
        names: dict[str, dict[int, str]] = {kind: {0: ""} for kind, _ in _core.RING_NAMES}
        for kind, number, text in listed:
            names[kind].setdefault(number, text)
        return Tables(
            np.frombuffer(graphs, GRAPH),
            np.frombuffer(kinds, KIND),
            FrozenMap({kind: FrozenMap(of) for kind, of in names.items()}),
        )

    def start(self) -> None:
        """The process records from its next call on. InputError where it is gone."""
        self._control(True)

    def stop(self) -> None:
        """The process's next calls are not recorded."""
        self._control(False)

    def set(self, name: str, value: int) -> None:
        """`site_every`, `timer_every` or `host_time` of the process, from its next call on."""
        if name not in CONTROLS:
            raise InputError("name", name, f"give one of {', '.join(CONTROLS)}")
        self._write(name, value)

    def _control(self, on: bool) -> None:
        word = int(self.refresh()["control"])
        if bool(word & 1) != on:
            self._write("control", (word + 1) & 0xFFFFFFFF)

    def _write(self, name: str, value: int) -> None:
        if not self.alive:
            raise InputError("ring", os.fspath(self.path), f"process {self.pid} is gone: nobody would see it")
        fd = _open(self.path, os.O_RDWR)
        try:
            if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
                raise InputError("ring", os.fspath(self.path), "another file has this name by now: open it anew")
            _core.ring_control(fd, name, value)
        except InputError:
            raise
        except (ValueError, ProbeError) as error:
            raise InputError("ring", os.fspath(self.path), str(error)) from None
        finally:
            os.close(fd)
        self.refresh()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ring of process {self.pid}, rank {self.rank}, {self.path}>"


def _runs(pid: int, start: int) -> bool:
    """The process of this number and start; of the number alone where one of us has no /proc to know a start from."""
    if start and started(os.getpid()):
        return started(pid) == start
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return pid > 0


def _open(path: Path, flags: int) -> int:
    """A descriptor of a plain file of this user. Opening does not wait (a FIFO), and follows no link."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError("ring", os.fspath(path), f"cannot be opened: {error.strerror}") from None
    found = os.fstat(fd)
    reason = ""
    if not stat.S_ISREG(found.st_mode):
        reason = "it is no plain file"
    elif found.st_uid != os.geteuid():
        reason = f"it belongs to user {found.st_uid}, this is user {os.geteuid()}: ask as that user"
    elif found.st_mode & 0o022:
        reason = f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}): nothing in it can be believed"
    if reason:
        os.close(fd)
        raise InputError("ring", os.fspath(path), reason)
    return fd


def _look(fd: int, path: Path) -> dict[str, int | str]:
    try:
        return _core.ring_look(fd)
    except (ValueError, ProbeError) as error:
        raise InputError("ring", os.fspath(path), str(error)) from None


def rings(folder: str | os.PathLike[str] | None = None, *, dead: bool = False) -> tuple[list[Ring], list[Refusal]]:
    """Ring files of this user's processes, by rank and then pid, and those that were refused.

    Parameters
    ----------
    folder
        Where to look; else the folders of folder.py.
    dead
        Also files whose process has ended.
    """
    found: list[Ring] = []
    refused: list[Refusal] = []
    for place in folders(folder):
        for path in sorted(place.glob("*.ring")):
            try:
                ring = Ring(path)
            except InputError as error:
                refused.append(Refusal(path, str(error)))
                continue
            if dead or ring.alive:
                found.append(ring)
            else:
                ring.close()
    return sorted(found, key=lambda ring: (ring.rank, ring.pid)), refused
