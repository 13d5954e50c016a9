"""One run of a command as the parent sees it: started behind its guard, heard, ended. Called by commands.py; guard.py runs beside it.

What the command prints comes over two pipes, what the guard says over a third; nobody waits for a pipe's end, because a process that was
left behind may hold it. Invariant: no call waits past the command's limit and the seconds that ending it takes; whatever ends the parent,
the command ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._measure.provenance import NAMES, PREFIXES
from .._run.process import lifeline
from .._types import FrozenMap, ProbeUnavailable

OUTPUT_BYTES, ERRORS_BYTES = 8 << 20, 1 << 16
"""Of what a command prints, the tails that are kept while it runs."""
_GUARD = Path(__file__).with_name("guard.py")
_LOOKS_S = (0.02, 0.08, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_LOOK_EVERY_S, _LOOKS_MAX = 64.0, 200
_TICK_S = 0.2
_END_S = 8.0
"""What the guard takes at most for ending all that was started: SIGTERM, SIGKILL, a look at what is left."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Looked:
    """What a guard saw of a run's processes while they ran."""

    looks: int = 0
    libraries: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: FrozenMap({}))
    """By path: size, time of change, number of the file; zeros where the file is not to be found."""
    env: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: FrozenMap({}))
    """By the variable's name: its values in all processes that have it."""
    cores: tuple[str, ...] = ()
    """What they were allowed to run on, as ``0-3,8``."""


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it left."""

    failed: str
    """Why it gave nothing; "" where it ended with exit status 0."""
    wall_s: float
    out: str
    """What it printed to stdout, the tail of it."""
    err: str
    looked: Looked
    note: str = ""
    """What it left behind."""


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    limit_s: float,
    tell: Callable[[bool], None] = lambda looked: None,
) -> Ran:
    """Starts it, and comes back when it has ended, or was ended at ``limit_s`` seconds; what it started is gone then.

    ``tell`` is called now and then; with True when the guard has looked at it, which is the moment for others to look too.
    Raises ProbeUnavailable where this machine starts no process; KeyboardInterrupt when all is ended.
    """
    setup = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "limit_s": limit_s,
        "looks_s": _looks(limit_s),
        "prefixes": list(PREFIXES),
        "names": list(NAMES),
    }
    with _Guarded(setup) as guarded:
        return guarded.ran(limit_s, tell)


def _looks(limit_s: float) -> list[float]:
    later = (_LOOKS_S[-1] + _LOOK_EVERY_S * (1 + i) for i in range(_LOOKS_MAX))
    return [at for at in (*_LOOKS_S, *later) if at < limit_s]


class _Guarded:
    """The guard's process; ``with`` ends it."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        if not sys.executable:
            raise ProbeUnavailable(
                "this interpreter does not know its own file (sys.executable is empty): no command can be started"
            )
        self._out, self._err, self._said = bytearray(), bytearray(), b""
        self._words: list[dict[str, Any]] = []
        self._pid = 0
        self._open: dict[int, Callable[[bytes], None]] = {}
        self._lifeline = -1
        theirs: list[int] = []
        try:
            ends = []
            for hear in (self._hear_out, self._hear_err, self._hear):
                here, there = os.pipe()
                self._open[here] = hear
                ends.append(there)
                theirs.append(there)
            held, self._lifeline = lifeline()
            theirs.append(held)
            setup_fd = os.memfd_create("sglang_probe ab")
            theirs.append(setup_fd)
            _write(setup_fd, json.dumps(setup).encode())
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), *map(str, (setup_fd, ends[2], held))],
                stdin=subprocess.DEVNULL,
                stdout=ends[0],
                stderr=ends[1],
                pass_fds=(setup_fd, ends[2], held),
                start_new_session=True,
            )
            for fd in self._open:
                os.set_blocking(fd, False)
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise ProbeUnavailable(f"no process can be started here: {error}") from error
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def __enter__(self) -> _Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        """Its lifeline closes, and it ends all that it started; where it does not, it is ended itself."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()
            self._close()

    def _kill(self) -> None:
        """Of what is there still. A guard that ended by itself has left nothing; the session is the command's own."""
        if self._process.poll() == 0:
            return
        self._process.kill()
        if self._pid and (not self._words or self._words[-1]["kind"] != "end"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _close(self) -> None:
        for fd in (*self._open, self._lifeline):
            if fd >= 0:
                os.close(fd)
        self._open, self._lifeline = {}, -1

    # -------------------------------------------------------------------------------------------------------------------------- heard

    def ran(self, limit_s: float, tell: Callable[[bool], None]) -> Ran:
        """Until the guard has said how it ended."""
        poll = select.poll()
        for fd in self._open:
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + limit_s + _END_S + 5.0
        seen = 0
        while True:
            for fd, _ in poll.poll(_TICK_S * 1e3):
                if self._read(fd) == 0:
                    poll.unregister(fd)
            looks = sum(one["kind"] == "seen" for one in self._words)
            tell(looks > seen)
            seen = looks
            if any(one["kind"] in ("end", "refused") for one in self._words) or self._process.poll() is not None:
                for fd in self._open:
                    while self._read(fd):
                        pass
                return self._result()
            if time.monotonic() >= deadline:  # the guard hangs
                return self._result()

    def _read(self, fd: int) -> int | None:
        """Bytes that came, at most one chunk; 0 at the end, None where nothing is there."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        self._open[fd](data)
        return len(data)

    def _hear_out(self, data: bytes) -> None:
        _keep(self._out, data, 2 * OUTPUT_BYTES)

    def _hear_err(self, data: bytes) -> None:
        _keep(self._err, data, 2 * ERRORS_BYTES)

    def _hear(self, data: bytes) -> None:
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            word = json.loads(line)
            self._words.append(word)
            if word["kind"] == "started":
                self._pid = word["pid"]

    def _result(self) -> Ran:
        end = next((one for one in self._words if one["kind"] == "end"), None)
        refused = next((one["why"] for one in self._words if one["kind"] == "refused"), "")
        out, err = _clean(self._out[-OUTPUT_BYTES:]), _clean(self._err[-ERRORS_BYTES:])
        seen = _merged([one for one in self._words if one["kind"] == "seen"])
        if end is None:
            why = f"it cannot be started: {refused}" if refused else "its guard was ended by something else"
            return Ran(why, 0.0, out, err, seen)
        failed = _failed(end, float(end["wall_s"]))
        return Ran(failed, end["wall_s"], out, err, seen, _left(end, bool(failed)))


def _failed(end: Mapping[str, Any], wall_s: float) -> str:
    if end["cause"] == "limit":
        return f"it had not ended after {wall_s:.3g} s, its limit"
    if end["cause"] == "alone":
        return "its guard was told to end"
    status = int(end["status"])
    if status >= 0:
        return f"it ended with exit status {status}" if status else ""
    with contextlib.suppress(ValueError):
        return f"it was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"it was killed by signal {-status}"


def _left(end: Mapping[str, Any], failed: bool) -> str:
    if end["left"]:
        return f"processes {', '.join(map(str, end['left']))} do not end, though SIGKILL was sent"
    count = 0 if failed else end["left_over"]
    return f"it left {count} process{'es' * (count != 1)} behind, which {'were' if count != 1 else 'was'} ended" if count else ""


def _merged(looks: Sequence[Mapping[str, Any]]) -> Looked:
    libraries: dict[str, tuple[int, ...]] = {}
    env: dict[str, set[str]] = {}
    cores: set[str] = set()
    found = [one for one in looks if one["processes"]]
    for one in found:
        libraries |= {path: tuple(identity) for path, identity in one["libraries"].items()}
        for name, values in one["env"].items():
            env.setdefault(name, set()).update(values)
        cores |= {text for text in one["cores"] if text}
    return Looked(
        len(found),
        FrozenMap(dict(sorted(libraries.items()))),
        FrozenMap({name: tuple(sorted(values)) for name, values in sorted(env.items())}),
        tuple(sorted(cores)),
    )


def _keep(kept: bytearray, data: bytes, most: int) -> None:
    """The last half of ``most`` bytes at least."""
    kept += data
    if len(kept) > most:
        del kept[: len(kept) - most // 2]


def _clean(data: bytes | bytearray) -> str:
    """What is no text is spelt out, so that a file can hold it."""
    return data.decode("utf-8", "backslashreplace")


def _write(fd: int, data: bytes) -> None:
    """All of it, from the start of a file."""
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], written)
