"""What runs beside a command: starts it in a session of its own, times it, looks at what it has loaded, ends all that it started.

A script that imports nothing of this package, so that it starts at once: ``python -I -S guard.py SETUP REPORT LIFELINE`` (numbers of
descriptors), started by process.py. SETUP holds JSON: argv, env, cwd, limit_s, looks_s, prefixes, names. REPORT gets a line of
JSON each for "started", "seen", "end" (or "refused"). Orphans of the command become the guard's children, whatever session they made.
Invariant: when the guard ends, nothing of the command is left; it ends with its parent (LIFELINE closes), and the command with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_S, _KILL_S = 1.0, 5.0
"""From SIGTERM to SIGKILL; from there until what is left is given up."""
_TICK_S = 0.01
_PROCESSES = 64
"""Of a command at most, that a look reads."""


def main() -> None:
    setup_fd, report_fd, lifeline = map(int, sys.argv[1:4])
    setup = json.loads(os.pread(setup_fd, os.fstat(setup_fd).st_size, 0))
    for fd in (setup_fd, report_fd, lifeline):
        os.set_inheritable(fd, False)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake)

    def say(kind: str, **members: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: its lifeline tells so
            os.write(report_fd, json.dumps({"kind": kind, **members}).encode() + b"\n")

    guard = Guard(setup, lifeline, woken, say, libc)
    signal.signal(signal.SIGCHLD, lambda *_: guard.note_end())
    guard.run()


class Guard:
    """One command, from its start to its end."""

    def __init__(self, setup: dict[str, Any], lifeline: int, woken: int, say: Callable[..., None], libc: Any) -> None:
        self._setup, self._lifeline, self._woken, self._say, self._libc = setup, lifeline, woken, say, libc
        self._pid = 0
        self._ended_ns = 0
        """When the command itself ended; its end must not wait for a look that is going on."""
        self._left_over = 0

    def run(self) -> None:
        setup = self._setup
        start = time.perf_counter_ns()
        try:
            process = subprocess.Popen(
                setup["argv"],
                stdin=subprocess.DEVNULL,
                env=setup["env"],
                cwd=setup["cwd"],
                start_new_session=True,
                preexec_fn=self._child,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._say("refused", why=str(error))
            return
        self._pid = process.pid
        self._say("started", pid=process.pid)
        cause, wall_ns = self._wait(start)
        left, status = self._end()
        process.returncode = status  # it was reaped here
        self._say(
            "end",
            cause=cause,
            status=status,
            wall_s=wall_ns / 1e9,
            left_over=self._left_over,
            left=left,
        )

    def note_end(self) -> None:
        """At the kernel's signal that some child has ended."""
        if not self._pid or self._ended_ns:
            return
        with contextlib.suppress(ChildProcessError):  # it was reaped
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._ended_ns = time.perf_counter_ns()

    def _child(self) -> None:
        """In the command's own process, before it is the command."""
        self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    # ------------------------------------------------------------------------------------------------------------------------ waiting

    def _wait(self, start: int) -> tuple[str, int]:
        """Until it has ended ("ended"), the limit ("limit"), or there is nobody to do it for ("alone"); and how long that took."""
        poll = select.poll()
        for fd in (self._lifeline, self._woken):
            poll.register(fd, select.POLLIN)
        looks = list(self._setup["looks_s"])
        limit = start + int(self._setup["limit_s"] * 1e9)
        while True:
            now = time.perf_counter_ns()
            if now >= limit:
                return "limit", now - start
            until = min([limit, *(start + int(looks[0] * 1e9) for _ in looks[:1])])
            ready = {fd for fd, _ in poll.poll(max(0.0, (until - now) / 1e6))}
            if self._woken in ready:
                signals = os.read(self._woken, 4096)
                if signal.SIGTERM in signals or signal.SIGHUP in signals:
                    return "alone", time.perf_counter_ns() - start
            self.note_end()  # it may have ended before its number was known
            if self._ended_ns:
                return "ended", self._ended_ns - start
            now = time.perf_counter_ns()
            if self._lifeline in ready:
                return "alone", now - start
            self._reap()
            if looks and now >= start + int(looks[0] * 1e9):
                at = looks.pop(0)
                self._say("seen", at_s=at, **self._look())

    def _reap(self) -> None:
        """Orphans that have ended; never the command itself."""
        for pid in self._children():
            if pid != self._pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    # ------------------------------------------------------------------------------------------------------------------------- ending

    def _end(self) -> tuple[list[int], int]:
        """All that it started: SIGTERM, then SIGKILL. (what cannot be ended, the command's status as subprocess has it)"""
        ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        self._left_over = len(self._alive(self._tree())) if ended else 0
        status = 0
        for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
            limit = time.monotonic() + patience
            sent: set[int] = set()
            while True:
                tree = self._tree()
                if not self._alive(tree) or time.monotonic() >= limit:
                    break
                fresh = [pid for pid in tree if pid not in sent or number == signal.SIGKILL]
                sent.update(fresh)
                self._send(fresh, number)
                time.sleep(_TICK_S)
                self._reap()
        with contextlib.suppress(ChildProcessError):
            pid, word = os.waitpid(self._pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(word) if pid else 0
        return self._alive(self._tree()), status

    def _send(self, pids: Sequence[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    # ---------------------------------------------------------------------------------------------------------------------- processes

    def _children(self) -> list[int]:
        return [pid for pid, parent, _ in _processes() if parent == os.getpid()]

    def _tree(self) -> list[int]:
        """All that descend from us: the command first, then who came of it, orphans too."""
        children: dict[int, list[int]] = {}
        for pid, parent, _ in _processes():
            children.setdefault(parent, []).append(pid)
        found, queue = [], [os.getpid()]
        while queue:
            came = children.get(queue.pop(0), [])
            found += came
            queue += came
        return found

    def _alive(self, pids: Sequence[int]) -> list[int]:
        """Without those that have ended and were not reaped."""
        states = {pid: state for pid, _, state in _processes()}
        return [pid for pid in pids if states.get(pid, "Z") not in ("Z", "X")]

    # ------------------------------------------------------------------------------------------------------------------------- looking

    def _look(self) -> dict[str, Any]:
        """Of all its processes: libraries that are mapped, variables that matter, cores that they may use."""
        libraries: dict[str, list[int]] = {}
        env: dict[str, set[str]] = {}
        cores: set[str] = set()
        tree = self._tree()
        for pid in tree[:_PROCESSES]:
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile, or is another user's
                _libraries(pid, libraries)
                self._variables(pid, env)
                cores.add(_cores(pid))
        return {
            "processes": len(tree),
            "libraries": libraries,
            "env": {name: sorted(values) for name, values in env.items()},
            "cores": sorted(cores),
        }

    def _variables(self, pid: int, found: dict[str, set[str]]) -> None:
        prefixes, names = tuple(self._setup["prefixes"]), self._setup["names"]
        with open(f"/proc/{pid}/environ", "rb") as file:
            for one in file.read().split(b"\0"):
                name, equals, value = one.decode("utf-8", "backslashreplace").partition("=")
                if equals and (name.startswith(prefixes) or name in names):
                    found.setdefault(name, set()).add(value)


def _processes() -> list[tuple[int, int, str]]:
    """(number, parent, state) of every process of this machine."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                found.append((int(name), int(parent), state.decode()))
    return found


def _libraries(pid: int, found: dict[str, list[int]]) -> None:
    """Path of each, with size, time of change and number of its file."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            parts = line.split(None, 5)
            if len(parts) == 6 and b"x" in parts[1] and b".so" in parts[5]:
                path = parts[5].rstrip(b"\n").decode("utf-8", "backslashreplace")
                if path not in found:
                    found[path] = _identity(path)


def _identity(path: str) -> list[int]:
    try:
        one = os.stat(path)
    except OSError:  # of another mount, or replaced since
        return [0, 0, 0]
    return [one.st_size, one.st_mtime_ns, one.st_ino]


def _cores(pid: int) -> str:
    """``0-3,8``"""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("Cpus_allowed_list:"):
                return line.split(":", 1)[1].strip()
    return ""


if __name__ == "__main__":
    main()
