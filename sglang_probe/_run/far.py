"""Far: a crew whose ranks are on several machines. Orders and answers go over the exchange on which their Coordinators meet, in turn.

Called by _bench/launched.py. What shared memory gives is not there: a rank that dies is seen when a wait for it ends, and which one it was
is not known. Invariant: every rank makes the same gathers in the same order: one for an order, then one for what came of it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Literal, cast

from .._types import ProbeError
from .crew import CLOSED, Driven, End, Member, Message
from .failures import READY, Failure, closed_text
from .joining import Together
from .messages import dump, load
from .process import RankProcess
from .worker import Answer

_IDLE_S = 300.0
"""How long the others wait for the next order: their GPUs wait with them, so a rank 0 that is gone is not waited for much longer."""
_MISMATCH = "mismatch"
"""How the text begins where ranks are in different gathers: one has failed in the middle of a call, and the others come after it."""
_MARGIN_S = 1.0


def _gather(at: Together, mine: bytes, timeout_s: float) -> list[bytes]:
    from .. import _gpu

    return _gpu.exchange_all_gather(at.exchange, mine, timeout_s)


def _answers(at: Together, mine: bytes, timeout_s: float) -> list[Answer]:
    """Every rank's; one that is still in the call hears in it that this one is through."""
    limit = time.monotonic() + timeout_s
    while True:
        try:
            return [load(answer) for answer in _gather(at, mine, max(0.1, limit - time.monotonic()))]
        except ProbeError as error:
            if not str(error).startswith(_MISMATCH) or time.monotonic() > limit:
                raise


class _Distant:
    """A rank on another machine, as Failure names it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.phase = rank, READY

    def __str__(self) -> str:
        return f"rank {self.rank}"

    @property
    def pid(self) -> str:
        return "on its own machine"

    def where(self) -> str:
        return ""


class FarRanks(Driven):
    """All ranks of a launch on several machines, in rank 0."""

    def __init__(self, at: Together, member: Member) -> None:
        self._at, self._member, self._number = at, member, 0
        self.closed = ""

    def order(self, kind: Literal["join", "call", "leave"], what: str, payload: bytes, timeout_s: float) -> list[Any]:
        if self.closed:
            raise ProbeError(f"this group is closed ({self.closed}); start another")
        self._number += 1
        message = Message(kind, self._number, payload, timeout_s)
        try:
            _gather(self._at, dump(message), timeout_s + _MARGIN_S)
            own = self._member.answer(message)
            answers = _answers(self._at, own, timeout_s + _MARGIN_S)
        except BaseException as error:
            self.end(f"{what} was ended by {closed_text(error)}")
            raise
        failure = Failure(what, timeout_s)
        raised = [(answer, rank) for rank, answer in enumerate(answers) if answer.kind == "raised"]
        # who was still in the call when another had left it was told of a mismatch: what ended the other comes first
        for answer, rank in sorted(raised, key=lambda one: one[0].text.startswith(_MISMATCH)):
            failure.raised(cast(RankProcess, _Distant(rank)), answer)
        if not failure:
            return [load(answer.value) for answer in answers]
        failure.finish(len(answers))
        if len({answer.seq for answer in answers}) > 1:
            self.end(failure.reason)
        raise failure.exception from failure.cause

    def tell(self, end: End) -> None:
        """The last message; those whose exchange is broken wait for it no longer."""
        with contextlib.suppress(ProbeError, TimeoutError, ValueError):
            _gather(self._at, dump(Message("end", 0, dump(end), 0.0)), _MARGIN_S)

    def close(self) -> None:
        """Lets the ranks leave their Coordinators in order; twice is once."""
        if not self.closed:
            with contextlib.suppress(Exception):  # nothing more is asked of them
                self.order("leave", "leaving", b"", 10.0)
        self.end(CLOSED)

    def end(self, why: str) -> None:
        self.broken = self.broken or (why != CLOSED and not self.closed)
        self.closed = self.closed or why
        with contextlib.suppress(Exception):  # a broken one is left without its peers
            self._member.leave()


def serve(at: Together, member: Member) -> End:
    """Ranks 1 and on: does what rank 0 says until it says the end."""
    while True:
        try:
            message: Message = load(_gather(at, b"", _IDLE_S)[0])
        except TimeoutError as error:
            raise ProbeError(f"rank {at.launched.rank}: rank 0 has said nothing for {_IDLE_S:g} s ({error})") from None
        if message.kind == "end":
            return cast(End, load(message.payload))
        _answers(at, member.answer(message), message.timeout_s + _MARGIN_S)
