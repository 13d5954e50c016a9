"""One rank's process: started, watched, ended. Called by LocalGroup in the parent; worker.py is what runs inside.

A rank leads a session of its own (Ctrl-C reaches the parent alone), writes what it prints into a memfd, and holds the reading end of a
lifeline: when the parent's end closes, by whatever death, the kernel's signal ends the rank.
Invariant: a process is reaped in ``end`` and nowhere else, so its number stays ours until all that it started is killed too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._types import ProbeError, ProbeUnavailable
from .messages import Channel, pair

TERM_S = 1.0
"""From SIGTERM to SIGKILL."""
_KILL_S = 10.0
_TAIL_BYTES, _LOG_BYTES = 1 << 16, 1 << 20


class Log:
    """What a rank prints (stdout and stderr), in memory, bounded: the tail is kept."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_APPEND)

    def text(self) -> str:
        size = os.fstat(self.fd).st_size
        start = max(0, size - _TAIL_BYTES)
        return os.pread(self.fd, size - start, start).decode(errors="replace")

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    def trim(self) -> None:
        """Forgets all but the tail where it has grown large."""
        if os.fstat(self.fd).st_size > _LOG_BYTES:
            kept = self.text().encode()
            os.ftruncate(self.fd, 0)
            with contextlib.suppress(OSError):  # a full disk: the tail is lost, the rank is not
                os.write(self.fd, kept)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass
class RankProcess:
    """One rank as the parent sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel
    log: Log
    pidfd: int
    """Readable when the process has ended; -1 on kernels without such descriptors."""
    phase: str = "starting Python"

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"

    def cause(self, wait_s: float = 0.0) -> str:
        """How it ended, "" while it runs; nothing is reaped."""
        limit = time.monotonic() + wait_s
        while True:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return "is gone: somebody else reaped it"
            if ended is not None:
                return _cause(ended.si_code, ended.si_status)
            if time.monotonic() >= limit:
                return ""
            time.sleep(0.002)

    def signal(self, number: int, session: bool = False) -> None:
        """To the process, or to all of its session that kept its group; to nobody once it is reaped."""
        if self.process.returncode is not None:
            return
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else reaped it: its number may be another's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended; or a member that is not ours any more
            (os.killpg if session else os.kill)(self.pid, number)

    def where(self) -> str:
        """``is stopped``, or by its own fault handler: ``stands in wait (threading.py:331), called by main (script.py:7)``; else ""."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] in ("T", "t"):
                return "is stopped, by SIGSTOP or a debugger"
        before = len(self.log.text())
        self.signal(signal.SIGUSR1)
        limit = time.monotonic() + 0.3
        while time.monotonic() < limit and not self.cause():
            frames = _FRAME.findall(self.log.text()[before:])
            if frames and self.log.text().endswith("\n"):
                return f"stands in {_stack(frames)}"
            time.sleep(0.01)
        return ""


_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_STDLIB = os.path.dirname(os.__file__)


def _stack(frames: list[tuple[str, str, str]]) -> str:
    """The innermost frame, and the innermost that is the user's."""
    told = [f"{name} ({os.path.basename(file)}:{line})" for file, line, name in frames]
    users = (i for i, (file, _, _) in enumerate(frames) if os.path.dirname(file) not in (_STDLIB, os.path.dirname(__file__)))
    first = next(users, 0)
    return told[0] if not first else f"{told[0]}, called by {told[first]}"


def _cause(code: int, status: int) -> str:
    if code == os.CLD_EXITED:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(status).name
    except ValueError:
        name = "no name"
    return f"was killed by signal {status} ({name})"


def lifeline() -> tuple[int, int]:
    """(reading end for every rank, writing end of the parent)."""
    return os.pipe()


_BOOT = "import sys; sys.path[:] = sys.argv[6:]; from sglang_probe._run.worker import main; main()"
"""On the path that is given, and not on the folder in which the user happens to be, where another copy of this package may lie."""


def start(rank: int, *, lifeline_fd: int, pass_fds: Sequence[int], path: Sequence[str], env: Mapping[str, str]) -> RankProcess:
    """A rank's process; its orders are the next messages. Raises ProbeError where the machine starts no process."""
    if not sys.executable:
        raise ProbeUnavailable("this interpreter does not know its own file (sys.executable is empty): no rank can be started")
    ours, theirs = pair()
    log = None
    try:
        log = Log(f"sglang_probe rank {rank}")
        # A signal at the parent's death would come at the death of the thread that starts it: asked for in the main one alone.
        dies = "thread" if threading.current_thread() is threading.main_thread() else "process"
        numbers = [str(n) for n in (rank, theirs.fileno(), lifeline_fd, os.getpid())]
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *numbers, dies, *path],
            stdin=subprocess.DEVNULL,
            stdout=log.fd,
            stderr=log.fd,
            pass_fds=(theirs.fileno(), lifeline_fd, *pass_fds),
            env=dict(env),
            start_new_session=True,
        )
    except BaseException as error:
        ours.close()
        if log is not None:
            log.close()
        if isinstance(error, OSError):
            raise ProbeError(f"rank {rank} could not be started: {error}") from error
        raise
    finally:
        theirs.close()
    return RankProcess(rank, process, Channel(ours), log, _pidfd(process.pid))


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # before Linux 5.3, or forbidden: the socket's end tells nearly as soon
        return -1


def watch(ranks: Sequence[RankProcess], deadline: float) -> tuple[list[tuple[RankProcess, list[bytes]]], list[RankProcess]]:
    """Waits for the first news: (ranks with whole messages, ranks that have ended). Both are empty at the deadline.

    A rank that answered and then ended is in both lists.
    """
    poll = select.poll()
    by_fd = {}
    for rank in ranks:
        for fd in (rank.channel.fileno(), rank.pidfd):
            if fd >= 0:
                by_fd[fd] = rank
                poll.register(fd, select.POLLIN)
    messages: dict[int, list[bytes]] = {}
    while True:
        left = deadline - time.monotonic()
        ready = poll.poll(max(0.0, left) * 1e3)
        ended = {}
        for rank in {by_fd[fd].rank: by_fd[fd] for fd, _ in ready}.values():
            try:
                come = rank.channel.arrived()
            except EOFError:
                come, ended[rank.rank] = [], rank
            if come:
                messages[rank.rank] = come
            if rank.pidfd >= 0 and rank.cause():
                ended[rank.rank] = rank
        if messages or ended or left <= 0:
            by_rank = {rank.rank: rank for rank in ranks}
            return [(by_rank[n], come) for n, come in messages.items()], list(ended.values())


def end(ranks: Sequence[RankProcess], grace_s: float = TERM_S) -> list[str]:
    """Ends, reaps and forgets every process and what it started: SIGTERM, then SIGKILL. Returns what could not be ended."""
    for rank in ranks:
        if not rank.cause():
            rank.signal(signal.SIGTERM)
    limit = time.monotonic() + grace_s
    left = []
    for rank in ranks:
        rank.cause(max(0.0, limit - time.monotonic()))
        rank.signal(signal.SIGKILL, session=True)
    for rank in ranks:
        try:
            rank.process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            left.append(f"{rank} does not end: SIGKILL was sent {_KILL_S:g} s ago (it sits in the kernel)")
        release(rank)
    return left


def release(rank: RankProcess) -> None:
    """Closes the parent's descriptors of a rank."""
    rank.channel.close()
    rank.log.close()
    if rank.pidfd >= 0:
        os.close(rank.pidfd)
        rank.pidfd = -1
