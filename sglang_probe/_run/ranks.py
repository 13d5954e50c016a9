"""Ranks: all rank processes of a group and the board on which they meet: started, given orders, watched, ended. LocalGroup drives it.

Invariant: every wait has one deadline; the first rank that dies or cannot go on is told to the board at once, so that the others stop
waiting for it; and after an error that leaves ranks apart nothing of the group is left: no process, no descriptor, no memory.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _core
from .._types import ProbeError
from . import process
from .failures import READY, Failure, closed_text
from .messages import dump, load
from .packing import start_path
from .process import RankProcess
from .worker import Answer, Order, Setup

_TOGETHER_S = 1.0
"""From the first rank's exception until the others are told of it: where all of them raise, none is interrupted."""
_COLLECT_S = 2.0
"""From then until an answer is not waited for any more."""
_ENDING_S = 5.0
"""A process that has closed its connection is ending, which takes a driver's time on GPUs: its exit status is waited for."""
_CLOSE_S = 10.0
MARGIN_S = 1.0
"""A rank's own limit comes first: it knows more about what it waits for."""


class Ranks:
    """The processes of one group."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._board: _core.Board | None = None
        self._fds: list[int] = []
        self.all: list[RankProcess] = []
        self._gone = False
        self.closed = ""
        """Why nothing more is possible; empty while the group is usable."""

    # --------------------------------------------------------------------------------------------------------------------- start

    def start(
        self,
        coordinators: Sequence[Mapping[str, Any]],
        *,
        setup: Mapping[str, Any],
        arena_bytes: int,
        env: Mapping[str, str],
        store: bool,
        timeout_s: float,
        progress: Callable[[int], None],
    ) -> None:
        """One process for each Coordinator's arguments; returns when all have joined."""
        try:
            board = _board(len(coordinators), arena_bytes)
            self._fds.append(board)
            self._board = _core.Board(board, -1)
            shared = [board]
            if store:  # torch's process group meets in it
                shared.append(os.memfd_create("sglang_probe store"))
                self._fds.append(shared[1])
            reading, writing = process.lifeline()
            self._fds.append(writing)
            try:
                for rank in range(len(coordinators)):
                    self.all.append(process.start(rank, lifeline_fd=reading, pass_fds=shared, path=start_path(), env=env))
            finally:
                os.close(reading)
            deadline = time.monotonic() + timeout_s + MARGIN_S
            for one, arguments in zip(self.all, coordinators, strict=True):
                whole = {**arguments, "board": board, "rank": one.rank, "world_size": len(coordinators)}
                one.channel.send(dump(Setup(coordinator=whole, store=shared[-1] if store else -1, **setup)), deadline)
            self._gather(Failure("starting the group", timeout_s), 0, deadline, progress)
        except BaseException as error:
            self.end(f"its start failed: {closed_text(error)}")
            raise

    # --------------------------------------------------------------------------------------------------------------------- orders

    def call(self, what: str, toggles: Mapping[str, Any], packed: bytes, timeout_s: float) -> list[Any]:
        """What the function returned on every rank. Raises what ranks raised; what leaves them apart closes the group."""
        self.check_open()
        if not self._lock.acquire(blocking=False):
            raise ProbeError("this group is in a call of another thread; one thread drives it")
        try:
            answers = self._call(what, toggles, packed, timeout_s)
        except Failure as failure:
            # a failure that is not fatal came to all ranks alike, and they can go on
            if failure.fatal:
                self.end(failure.reason)
            raise failure.exception from failure.cause
        except BaseException as error:  # KeyboardInterrupt: the ranks are in the middle of something
            self.end(f"{what} was ended by {closed_text(error)}")
            raise
        finally:
            self._lock.release()
        return [load(answers[rank.rank].value) for rank in self.all]

    def check_open(self) -> None:
        """Raises ProbeError where nothing more is possible."""
        if self.closed:
            raise ProbeError(f"this group is closed ({self.closed}); start another")
        if os.getpid() != self._owner:
            raise ProbeError(f"this group belongs to process {self._owner}, of which this one is a fork; start another")

    def _call(self, what: str, toggles: Mapping[str, Any], packed: bytes, timeout_s: float) -> dict[int, Answer]:
        self._number += 1
        deadline = time.monotonic() + timeout_s + MARGIN_S
        failure = Failure(what, timeout_s)
        order = dump(Order(self._number, toggles, packed))
        for rank in self.all:
            rank.log.trim()
            with contextlib.suppress(EOFError, TimeoutError):  # its end is seen below; one that does not read does not answer
                rank.channel.send(order, deadline)
        return self._gather(failure, self._number, deadline, None)

    def _gather(
        self, failure: Failure, number: int, deadline: float, progress: Callable[[int], None] | None
    ) -> dict[int, Answer]:
        """Every rank's answer. On the first trouble the others are given a moment to answer too, then are told, then are left alone."""
        waiting = {rank.rank: rank for rank in self.all}
        answers: dict[int, Answer] = {}
        limit, told = deadline, False
        while waiting:
            tick = min(limit, time.monotonic() + 0.1) if progress else limit
            news, ended = process.watch(list(waiting.values()), tick)
            if progress:
                progress(len(answers))
            for rank, messages in news:
                for answer in map(load, messages):
                    if answer.kind == "phase":
                        rank.phase = answer.text
                        continue
                    if answer.kind == "ready":
                        rank.phase = READY
                    if answer.number == number:
                        answers[rank.rank] = answer
                        del waiting[rank.rank]
                        if answer.kind == "raised":
                            failure.raised(rank, answer)
                            told = told or self._is_told()
                            limit = min(limit, time.monotonic() + (_COLLECT_S if told else _TOGETHER_S))
            for rank in ended:
                if waiting.pop(rank.rank, None):
                    failure.died(rank, rank.cause(_ENDING_S) or "closed its connection", self._stands())
                    self._tell(failure)
                    limit, told = min(limit, time.monotonic() + _COLLECT_S), True
            if waiting and time.monotonic() >= limit:
                if told or not failure.first:
                    break
                self._tell(failure)
                limit, told = time.monotonic() + _COLLECT_S, True
        for rank in waiting.values():
            failure.silent(rank, self._stands())
        if failure:
            self._judge(failure, answers)
            raise (failure if number else failure.exception) from failure.cause
        return answers

    def _judge(self, failure: Failure, answers: Mapping[int, Answer]) -> None:
        """Whether the ranks can go on after it: they all answered, none is marked on the board, and all made as many calls."""
        failure.fatal = self._is_told()
        failure.fatal |= len(answers) < len(self.all) or len({answer.seq for answer in answers.values()}) > 1
        failure.finish(len(self.all))

    def _is_told(self) -> bool:
        """Whether the board already says that a rank cannot go on."""
        try:
            if self._board is not None:
                self._board.check()
        except ProbeError:
            return True
        return False

    def _stands(self) -> str:
        return self._board.describe() if self._board is not None else ""

    def _tell(self, failure: Failure) -> None:
        rank, text = failure.first or (0, "")
        if self._board is not None:
            self._board.fail(rank, text[:200].encode("ascii", "backslashreplace").replace(b"\0", b"").decode())

    # ------------------------------------------------------------------------------------------------------------------------ end

    def close(self) -> None:
        """Lets the ranks leave in order, then ends what is left. Twice is once; one that was interrupted is taken up again."""
        if not self.closed and os.getpid() == self._owner:
            deadline = time.monotonic() + _CLOSE_S
            for rank in self.all:
                with contextlib.suppress(EOFError, TimeoutError):  # it is ended below
                    rank.channel.send(dump(None), deadline)
            for rank in self.all:
                rank.cause(max(0.0, deadline - time.monotonic()))
        self.end("it was closed")

    def end(self, why: str) -> None:
        """Ends every process and gives everything back. A forked copy of the parent only lets go of its own descriptors."""
        if self._gone:
            return
        self.closed = self.closed or why
        if os.getpid() == self._owner:
            self.closed = "; ".join([self.closed, *process.end(self.all)])
        else:
            for rank in self.all:
                process.release(rank)
        self._board = None
        while self._fds:
            os.close(self._fds.pop())
        self._gone = True


def _board(size: int, arena_bytes: int) -> int:
    try:
        return _core.board_create(size, arena_bytes)
    except (ProbeError, MemoryError, ValueError) as error:
        raise type(error)(f"starting a group of {size} ranks: no board for them to meet on: {error}") from None
