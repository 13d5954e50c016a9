"""Where ring files lie: one private folder a user. Called by the hook that makes them and by every reader.

Invariant: a folder that is not a plain directory of this user, with no right for anybody else, is refused: nothing is read from it or
put into it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from .._types import InputError, ProbeUnavailable

NAME = "sglang_probe"
SHARED = Path("/dev/shm")
ROOM = 512 << 20
"""Bytes that must be free in /dev/shm: NCCL and SGLang need what a small one has (64 MiB in a plain container), and fail without it."""
VARIABLE = "SGLANG_PROBE_DIR"


def candidates() -> list[Path]:
    """In the order of asking: SGLANG_PROBE_DIR alone where it is set; else in the user's runtime folder, /dev/shm, the temporary one."""
    given = os.environ.get(VARIABLE)
    if given:
        return [Path(given)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(runtime) / NAME] if runtime else []
    return [*places, *(place / f"{NAME}-{os.geteuid()}" for place in (SHARED, Path(tempfile.gettempdir())))]


def refusal(folder: Path) -> str:
    """Why a folder is not to be used, "" where it is fine; a missing one is not fine either."""
    try:
        found = os.lstat(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no directory (a link is not followed)"
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to user {found.st_uid}, this is user {os.geteuid()}: run as that user, or set {VARIABLE}"
    if found.st_mode & 0o077:
        return f"{folder} is open to others (mode {stat.S_IMODE(found.st_mode):o}): chmod 700 {folder}"
    return _movable(folder.parent)


def _movable(parent: Path) -> str:
    """Why others could put a folder of theirs in the place of one in here."""
    try:
        found = os.stat(parent)
    except OSError as error:
        return f"{parent}: {error.strerror}"
    if found.st_uid not in (0, os.geteuid()):
        return f"{parent} belongs to user {found.st_uid}, who could replace what is in it: set {VARIABLE} to a folder elsewhere"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(found.st_mode)
        return f"{parent} is everybody's (mode {mode:o}, not sticky), who could replace what is in it: chmod +t {parent}"
    return ""


def _scarce(folder: Path) -> str:
    """Why a ring there could be at others' expense."""
    if folder.parent != SHARED:
        return ""
    try:
        found = os.statvfs(SHARED)
    except OSError as error:
        return f"{SHARED}: {error.strerror}"
    free = found.f_bavail * found.f_frsize
    return f"{SHARED} has {free >> 20} MiB free, which NCCL needs" if free < ROOM else ""


def make_folder() -> Path:
    """The first folder that can be used, made (0700) where it is missing. ProbeUnavailable says what was wrong with each."""
    reasons = []
    for folder in candidates():
        scarce = "" if os.environ.get(VARIABLE) else _scarce(folder)
        if scarce:
            reasons.append(scarce)
            continue
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        reason = refusal(folder)
        if not reason:
            return folder
        reasons.append(reason)
    raise ProbeUnavailable(
        "no folder for ring files: " + "; ".join(reasons) + f"; set {VARIABLE} to a folder of your own (mode 700)"
    )


def folders(given: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders to read from: the given one, refused with InputError where it is not fine; else every candidate that is."""
    if given is None:
        return [folder for folder in candidates() if not refusal(folder)]
    reason = refusal(Path(given))
    if reason:
        raise InputError("folder", os.fspath(given), reason)
    return [Path(given)]


def ring_name(pid: int, started: int) -> str:
    """Of the file of the process `pid` that started at `started` (clock ticks after boot, as /proc has it)."""
    return f"{pid}.{started}.ring"


def started(pid: int) -> int:
    """When a process started, 0 where there is none of this number, or only what is left of one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def unwritten(fd: int) -> bool | None:
    """Whether no process has this ring open to write into it; None: the file system has no locks. Its writer's lock lasts as long as it,
    in whatever container it lives, and as long as what it has forked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _remove(path: Path) -> bool:
    """A ring that nobody writes: a process that is not seen from here may have a number that is free here."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def sweep(folder: Path, keep: int = 64) -> list[Path]:
    """Removes what ended processes left in a folder of ours, but for the newest `keep` rings; gives back what is gone.

    A ring names its process: pid and start. What is named otherwise is left alone, but for rings that were killed while they were made.
    So is what a process holds its lock on.
    """
    left: list[tuple[int, Path]] = []
    for path in folder.iterdir():
        pid, _, rest = path.name.partition(".")
        start, _, kind = rest.partition(".")
        if kind in ("ring", "ring.new") and pid.isdigit() and start.isdigit() and started(int(pid)) != int(start):
            with suppress(OSError):
                left.append((0 if kind == "ring.new" else path.lstat().st_mtime_ns, path))
    gone = [path for made, path in sorted(left, reverse=True)[max(keep, 0) :]] + [path for made, path in left if not made]
    return [path for path in dict.fromkeys(gone) if _remove(path)]
