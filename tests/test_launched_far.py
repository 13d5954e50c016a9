"""A crew on several machines: orders and answers over an exchange, which threads stand for here; the real one is NCCL's (gpu/).

Invariant: rank 0 and the others make the same gathers in the same order, whatever a rank raises in between; else a thread would be left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sglang_probe import ProbeError
from sglang_probe._run import far
from sglang_probe._run.crew import End, Member, Message
from sglang_probe._run.far import FarRanks, serve
from sglang_probe._run.joining import Together
from sglang_probe._run.messages import dump, load
from sglang_probe._run.worker import Answer, raised

SIZE = 3


class Exchange:
    """All-gathers among threads; as NCCL's, it fails on all where ranks are in different ones."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(SIZE)
        self._slots: list[bytes] = [b""] * SIZE

    def gather(self, rank: int, mine: bytes, timeout_s: float) -> list[bytes]:
        self._slots[rank] = mine
        try:
            self._barrier.wait(timeout_s)
            all_of_them = list(self._slots)
            self._barrier.wait(timeout_s)
        except threading.BrokenBarrierError:
            raise TimeoutError("timed out: nothing came") from None
        if len({one == b"inside" for one in all_of_them}) > 1:
            raise ProbeError("mismatch: ranks gather different things")
        return all_of_them


class Calls:
    """Stands for a Member: functions by name, on a coordinator that counts calls."""

    def __init__(self, at: Any) -> None:
        self.at, self.seq, self.left = at, 0, 0

    def answer(self, message: Message) -> bytes:
        try:
            if message.kind != "call":
                return dump(Answer("done", message.number, dump(None)))
            name, *args = load(message.payload)
            return dump(Answer("done", message.number, dump(getattr(self, name)(*args)), seq=self.seq))
        except Exception as error:
            return dump(raised(message.number, error, self.seq))

    def leave(self) -> None:
        self.left += 1

    def rank(self) -> int:
        self.seq += 1
        return int(self.at.launched.rank)

    def all_refuse(self) -> None:
        raise LookupError("nowhere")

    def one_refuses(self, which: int) -> str:
        """The others are inside a gather of the call when it raises."""
        if self.at.launched.rank == which:
            raise ValueError("not with me")
        self.seq += 1
        self.at.exchange.gather(self.at.launched.rank, b"inside", 10.0)
        return "through"


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(rank 0's ranks, what the others ended with, started as threads)."""
    monkeypatch.setattr(far, "_gather", lambda at, mine, timeout_s: at.exchange.gather(at.launched.rank, mine, timeout_s))
    exchange = Exchange()
    at = [cast(Together, SimpleNamespace(launched=SimpleNamespace(rank=rank), exchange=exchange)) for rank in range(SIZE)]
    members = [cast(Member, Calls(one)) for one in at]
    ends: list[Any] = [None] * SIZE

    def follow(rank: int) -> None:
        try:
            ends[rank] = serve(at[rank], members[rank])
        except Exception as error:
            ends[rank] = error

    threads = [threading.Thread(target=follow, args=(rank,), daemon=True) for rank in range(1, SIZE)]
    for thread in threads:
        thread.start()

    def ended() -> list[Any]:
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        return ends[1:]

    return SimpleNamespace(ranks=FarRanks(at[0], members[0]), members=members, ended=ended)


def call(crew: Any, name: str, *args: Any) -> Any:
    return crew.ranks.order("call", name, dump((name, *args)), 5.0)


def test_every_rank_does_what_rank_0_says_and_the_end_is_told_to_all(crew: Any) -> None:
    assert call(crew, "rank") == [0, 1, 2]
    assert call(crew, "rank") == [0, 1, 2]
    crew.ranks.close()
    assert crew.ranks.closed == "it was closed" and crew.members[0].left
    crew.ranks.tell(End(b"done"))
    assert crew.ended() == [End(b"done"), End(b"done")]
    with pytest.raises(ProbeError, match="closed"):
        call(crew, "rank")


def test_what_all_ranks_raise_is_raised_here_and_they_go_on(crew: Any) -> None:
    with pytest.raises(LookupError, match="all 3 ranks: nowhere"):
        call(crew, "all_refuse")
    assert call(crew, "rank") == [0, 1, 2] and not crew.ranks.closed
    crew.ranks.tell(End(error="enough"))
    assert crew.ended() == [End(error="enough")] * 2


@pytest.mark.parametrize("which", range(SIZE))
def test_a_rank_that_raises_while_others_wait_in_the_call_is_named_and_nobody_waits_on(which: int, crew: Any) -> None:
    with pytest.raises(ValueError, match=f"rank {which} of 3: not with me"):
        call(crew, "one_refuses", which)
    assert "not with me" in crew.ranks.closed
    crew.ranks.tell(End(error="failed"))
    assert crew.ended() == [End(error="failed")] * 2


def test_where_rank_0_says_nothing_the_others_end_by_their_limit(crew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "_IDLE_S", 0.2)
    waited = far._IDLE_S
    call(crew, "rank")  # the next wait has the new limit
    ends: list[Callable[..., Any]] = crew.ended()
    assert all(isinstance(end, ProbeError) and f"rank 0 has said nothing for {waited:g} s" in str(end) for end in ends), ends
