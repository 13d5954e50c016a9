"""Crew: the ranks of one launch, driven by rank 0, which is one of them: it sends what all do, does it too, and gathers the answers.

LaunchedRanks (rank 0) and Member.serve (the others) talk over the sockets at which the ranks met; far.py does the same where they are on
several machines. Called by _bench/launched.py. Invariant: rank 0 says when it is over; a rank whose connection ends is dead, and is named.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from .. import _core
from .._types import ProbeError
from .failures import READY, Failure, closed_text
from .joining import Joined, Together
from .meeting import Peer
from .messages import dump, dump_anything, load
from .packing import by_value
from .process import RankProcess
from .ranks import MARGIN_S, Ranks
from .toggles import seconds
from .worker import Answer, Order, answer_of, raised

CLOSED = "it was closed"
_TELL_S = 1.0
"""How long a rank that is told of the end may take to read it."""
_INTERRUPT_S = 4.0
"""How long the others may take to answer once rank 0 is interrupted; Ranks waits for them no longer either."""


@dataclass(frozen=True)
class Message:
    """What rank 0 tells the others."""

    kind: Literal["join", "call", "leave", "end"]
    number: int
    payload: bytes
    """join: arguments of Joined and the limit of waits after it; call: (function, args); end: an End."""
    timeout_s: float


@dataclass(frozen=True)
class End:
    """The last message."""

    value: bytes = b""
    """What rank 0's work came to, as it packed it."""
    error: str = ""
    """Or what it raised."""


class Member:
    """One rank's part, the same on all of them: a Coordinator that comes, is called, and goes."""

    def __init__(self, at: Together) -> None:
        self._at, self._used = at, False
        self._coordinator: Joined | None = None

    def answer(self, message: Message) -> bytes:
        """Does it; what it raises is the answer."""
        try:
            if message.kind == "call":
                if self._coordinator is None:
                    raise ProbeError("this rank has no Coordinator: it has left, or never joined")
                return answer_of(self._coordinator, Order(message.number, {}, message.payload))
            if message.kind == "join":
                arguments, timeout_s = load(message.payload)
                self._used = True
                self._coordinator = Joined(replace(self._at, peers=()), **arguments)
                self._coordinator.timeout_s = timeout_s
            else:
                self.leave()
            return dump(Answer("done", message.number, dump(None)))
        except Exception as error:
            return dump(raised(message.number, error, 0))

    def leave(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def end(self) -> None:
        """Nothing of the launch is held any more but the connections."""
        self.leave()
        if not self._used:
            self._used = True
            self._at.close()

    def serve(self) -> End:
        """Ranks 1 and on: does what rank 0 says until it says the end. Raises ProbeError where rank 0 is gone before."""
        host = self._at.peers[0]
        try:
            while True:
                message: Message = load(host.channel.receive())
                if message.kind == "end":
                    return cast(End, load(message.payload))
                with contextlib.suppress(EOFError):  # it did not wait for this: what it said before it went is still to be read
                    host.channel.send(self.answer(message))
        except EOFError:
            raise ProbeError(f"rank {self._at.launched.rank}: {host} is gone, and with it what there was to do") from None


# ----------------------------------------------------------------------------------------------------------------- as rank 0 sees them


class _Silent:
    """What a launcher's rank prints goes to the launcher."""

    def tail(self, lines: int = 0) -> str:
        return ""

    def trim(self) -> None:
        """Nothing is kept."""


class _Other:
    """Another rank, as Ranks and Failure see one; its process is not ours to end."""

    def __init__(self, peer: Peer) -> None:
        self.rank, self.pid, self.channel = peer.rank, peer.pid, peer.channel
        self.log, self.phase = _Silent(), READY
        try:
            self.pidfd = os.pidfd_open(peer.pid)
        except (OSError, ValueError):  # too old a kernel, or a process that this one cannot see: the connection's end tells
            self.pidfd = -1

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"

    def cause(self, wait_s: float = 0.0) -> str:
        """That its process has ended; how, only its launcher knows."""
        if self.pidfd < 0:
            return ""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return "has ended" if poll.poll(wait_s * 1e3) else ""

    def where(self) -> str:
        return ""

    def release(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class _Own:
    """Rank 0 to itself: its answer lies ready before anybody asks."""

    def __init__(self) -> None:
        self.rank, self.pid, self.pidfd = 0, os.getpid(), -1
        self.log, self.phase, self.channel = _Silent(), READY, self
        self._event = os.eventfd(0)
        self._answers: list[bytes] = []

    def __str__(self) -> str:
        return f"rank 0 (pid {self.pid})"

    def put(self, answer: bytes) -> None:
        self._answers.append(answer)
        os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        return self._event

    def arrived(self) -> list[bytes]:
        come, self._answers = self._answers, []
        if come:
            os.eventfd_read(self._event)
        return come

    def cause(self, wait_s: float = 0.0) -> str:
        return ""

    def where(self) -> str:
        return ""

    def release(self) -> None:
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class _Watcher:
    """While rank 0 is in a call itself: hears the others' answers and ends, and tells the board of them, which ends its wait for them."""

    def __init__(self, gather: Callable[[], dict[int, Answer]]) -> None:
        self._gather = gather
        self._answers: dict[int, Answer] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sglang_probe watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers = self._gather()
        except BaseException as error:
            self._error = error

    def ended(self, wait_s: float = 0.0) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> dict[int, Answer]:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers


class Driven(ABC):
    """What both kinds of crews can do; a RankSet."""

    closed: str
    broken = False
    """Whether it ended before it was closed."""
    limit_s = 30.0
    """Of a call that has no limit of its own."""

    @abstractmethod
    def order(self, kind: Literal["join", "call", "leave"], what: str, payload: bytes, timeout_s: float) -> list[Any]:
        """What every rank answers, by rank."""

    def join(self, arguments: Mapping[str, Any], join_s: float, timeout_s: float) -> None:
        """A Coordinator on every rank."""
        self.limit_s = timeout_s
        whole = {**arguments, "timeout_s": join_s}
        self.order("join", "joining", dump((whole, timeout_s)), join_s)

    def run(self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """``function(coordinator, *args)`` on every rank; what it returned, by rank."""
        with by_value(function):
            packed = dump_anything((function, args))
        name = getattr(function, "__name__", type(function).__name__)
        return self.order("call", f"run({name})", packed, self.limit_s if timeout_s is None else seconds("timeout_s", timeout_s))


class LaunchedRanks(Ranks, Driven):
    """All ranks of a launch on one machine, in rank 0."""

    def __init__(self, at: Together, member: Member) -> None:
        super().__init__()
        self._member = member
        self._board = _core.Board(at.board, -1)
        self._own, self._others = _Own(), [_Other(peer) for peer in at.peers]
        self.all = cast("list[RankProcess]", [self._own, *self._others])
        self._message = Message("end", 0, b"", 0.0)
        self._watcher: _Watcher | None = None

    def order(self, kind: Literal["join", "call", "leave"], what: str, payload: bytes, timeout_s: float) -> list[Any]:
        self._message = Message(kind, 0, payload, timeout_s)
        return self.call(what, {}, payload, timeout_s)

    def _call(self, what: str, toggles: Mapping[str, Any], packed: bytes, timeout_s: float) -> dict[int, Answer]:
        self._number += 1
        message = Message(self._message.kind, self._number, packed, timeout_s)
        deadline = time.monotonic() + timeout_s + MARGIN_S
        failure = Failure(what, timeout_s)
        for other in self._others:
            with contextlib.suppress(EOFError, TimeoutError):  # its end is seen below; one that does not read does not answer
                other.channel.send(dump(message), deadline)
        self._watcher = watcher = _Watcher(lambda: self._gather(failure, self._number, deadline, None))
        try:
            self._own.put(self._member.answer(message))
            return watcher.result()
        except BaseException as error:
            if not watcher.ended():  # KeyboardInterrupt: the others hear that this rank does not go on
                self._own.put(dump(raised(self._number, error, -1)))
                self._fail("interrupted")
                watcher.ended(_INTERRUPT_S)
            raise

    def tell(self, end: End) -> None:
        """The last message, to whoever reads it."""
        message = dump(Message("end", 0, dump(end), 0.0))
        for other in self._others:
            with contextlib.suppress(EOFError, TimeoutError):
                other.channel.send(message, time.monotonic() + _TELL_S)

    def close(self) -> None:
        """Lets the ranks leave their Coordinators in order; twice is once. They still wait for the end."""
        if not self.closed:
            try:
                self.order("leave", "leaving", b"", 10.0)
            except Exception as error:  # whatever it is, nothing more is asked of these ranks
                self.end(f"closing it failed: {closed_text(error)}")
        self.end(CLOSED)

    def end(self, why: str) -> None:
        """Nothing more is asked of the ranks; those that wait for this one hear that it has gone. Their processes are their launcher's."""
        if self._gone:
            return
        self._gone = True
        self.broken = why != CLOSED
        self.closed = self.closed or why
        if self.broken:
            self._fail(why)
        with contextlib.suppress(Exception):  # a broken one is left without its peers
            self._member.leave()
        if self._watcher is not None and not self._watcher.ended():
            return  # a thread still looks at what is released below: it goes with the process
        self._board = None
        self._own.release()
        for other in self._others:
            other.release()

    def _fail(self, why: str) -> None:
        if self._board is not None:
            self._board.fail(0, why[:200].encode("ascii", "backslashreplace").replace(b"\0", b"").decode())
