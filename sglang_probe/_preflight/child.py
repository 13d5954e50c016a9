"""One phase's process as the parent sees it: started, heard, ended. Called by runner.py; inside.py is what runs in it.

What it says comes over one pipe, what it prints over another; neither pipe's end is waited for, because a grandchild may hold it.
Invariant: from `Child` to the end of `end` no call waits past the deadline, whatever the process does; one that cannot be killed is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._run.packing import start_path
from .._run.process import lifeline

_TICK_S = 0.05
"""How often its end is looked for, and the watcher is told how long it takes."""
_CHUNK = 1 << 16
_SAID_BYTES, _PRINTED_BYTES = 8 << 20, 1 << 14
"""Most that a phase may say; of what it prints, the tail that is kept."""
_BOOT = "import sys; sys.path[:] = sys.argv[7:]; from sglang_probe._preflight.inside import main; main()"


class Heard:
    """What a phase has said so far."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.findings: list[str] = []
        self.notes: list[str] = []
        self.doing = "starting Python"
        self.end: tuple[str, str] | None = None
        """(ok, skipped or failed; text)"""
        self.broken = ""
        """Why it is not listened to any more."""
        self.printed = b""
        self._come, self._bytes = b"", 0

    def hear(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > _SAID_BYTES:
            self.broken = f"it said more than {_SAID_BYTES >> 20} MiB"
            return
        *lines, self._come = (self._come + data).split(b"\n")
        for line in lines:
            if self.end is None and not self.broken:
                try:
                    self._understand(json.loads(line, parse_constant=str))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    self.broken = f"it said what cannot be understood: {line[:60]!r}"

    def _understand(self, words: Any) -> None:
        kind, *rest = words
        if kind in ("fact", "item"):
            name, value = rest
            if kind == "fact":
                self.facts[_clean(name)] = _clean(value)
            else:
                self.facts.setdefault(_clean(name), []).append(_clean(value))
        elif kind in ("finding", "note"):
            (self.findings if kind == "finding" else self.notes).append(_line(rest[0]))
        elif kind == "doing":
            self.doing = _line(rest[0])
        elif kind == "end":
            state, text = rest
            self.end = str(state), _line(text)
        else:
            raise ValueError(kind)

    def print(self, data: bytes) -> None:
        self.printed = (self.printed + data)[-_PRINTED_BYTES:]

    @property
    def output(self) -> str:
        """The tail of what it printed."""
        return "\n".join(self.printed.decode("utf-8", "backslashreplace").splitlines()[-40:])


def _clean(value: Any) -> Any:
    """Plain data that JSON in UTF-8 can hold: what the system calls text may be none."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 63 else value


def _line(text: Any) -> str:
    return " ".join(str(_clean(str(text))).split())


class Child:
    """A process that runs one phase's function, in a session of its own: Ctrl-C reaches the parent alone."""

    def __init__(self, function: str, known: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """Starts it. Raises OSError where this machine starts no process."""
        if not sys.executable:
            raise OSError("this interpreter does not know its own file (sys.executable is empty)")
        self.heard = Heard()
        self._process: subprocess.Popen[bytes] | None = None
        self._open: dict[int, Callable[[bytes], None]] = {}
        self._lifeline = -1
        theirs: list[int] = []
        try:
            out, said = os.pipe()
            self._open[out] = self.heard.hear
            theirs.append(said)
            printed, prints = os.pipe()
            self._open[printed] = self.heard.print
            theirs.append(prints)
            ends, self._lifeline = lifeline()
            theirs.append(ends)
            facts = os.memfd_create("sglang_probe preflight")
            theirs.append(facts)
            _write(facts, json.dumps(known).encode())
            # A signal at the parent's death would come at the death of the thread that starts it: asked for in the main one alone.
            dies = "thread" if threading.current_thread() is threading.main_thread() else "process"
            numbers = [str(n) for n in (said, facts, ends, os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *numbers, dies, function, *start_path()],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=prints,
                pass_fds=(said, facts, ends),
                env=dict(env),
                start_new_session=True,
            )
            for fd in self._open:
                os.set_blocking(fd, False)
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    # ------------------------------------------------------------------------------------------------------------------------ heard

    def listen(self, deadline: float, tell: Callable[[], None]) -> str:
        """Until it has answered (""), has ended without an answer (how), is not understood (why), or the deadline: "hung"."""
        poll = select.poll()
        for fd in self._open:
            poll.register(fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "hung"
            for fd, _ in poll.poll(min(left, _TICK_S) * 1e3):
                if self._read(fd) == 0:
                    poll.unregister(fd)
            if not self.heard.end and (cause := self._cause()):
                self._drain()
                return "" if self.heard.end else self.heard.broken or cause
            if self.heard.end or self.heard.broken:
                return self.heard.broken
            tell()

    def _read(self, fd: int) -> int | None:
        """Bytes that came, at most one chunk; 0 at the end, None where nothing is there."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        self._open[fd](data)
        return len(data)

    def _drain(self) -> None:
        """What a process that is gone has left in the pipes; a grandchild may write on for ever."""
        for fd in self._open:
            for _ in range(64):
                if not self._read(fd):
                    break

    def _cause(self) -> str:
        """How it ended, "" while it runs; nothing is reaped, so that its number stays ours."""
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "ended, and somebody else reaped it"
        if ended is None:
            return ""
        if ended.si_code == os.CLD_EXITED:
            return f"ended with exit status {ended.si_status}"
        with contextlib.suppress(ValueError):
            return f"was killed by signal {ended.si_status} ({signal.Signals(ended.si_status).name})"
        return f"was killed by signal {ended.si_status}"

    # ------------------------------------------------------------------------------------------------------------------------- ended

    def end(self, deadline: float) -> str:
        """Kills it and all that it started and kept in its session. "" where it is gone by the deadline, else what is left behind."""
        process = self._process
        if process is None:
            return ""
        self._kill()
        while not (cause := self._cause()) and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(0.005, left))
        self._close()
        if cause:
            process.wait()
            return ""
        state = _state(process.pid)
        # It is reaped when it ends, if it ever does; nobody waits for that.
        threading.Thread(target=process.wait, name=f"sglang_probe reaps {process.pid}", daemon=True).start()
        return f"its process {process.pid} has not ended, though SIGKILL was sent (state {state}): it is left behind"

    def _kill(self) -> None:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else reaped it: its number may be another's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _close(self) -> None:
        for fd in (*self._open, self._lifeline):
            if fd >= 0:
                os.close(fd)
        self._open, self._lifeline = {}, -1


def _write(fd: int, data: bytes) -> None:
    """All of it, from the start of a file."""
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], written)


def _state(pid: int) -> str:
    """D: it sits in the kernel, in the named function where the kernel tells."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            letter = stat.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/wchan") as channel:
            where = channel.read().strip()
    except (OSError, IndexError):
        return "not known"
    return f"{letter}, in {where}" if where not in ("", "0") else letter
