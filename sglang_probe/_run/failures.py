"""Failure: what went wrong on which ranks of a group during one call, and the exception that says so. Made by ranks.py.

Invariant: the text names the rank that failed first, its process, how it ended or what it raised, and what the group was doing.
"""

from __future__ import annotations

import builtins
import textwrap
from dataclasses import dataclass

from .._types import ProbeError, ProbeUnavailable
from .messages import load
from .process import RankProcess
from .worker import Answer

_OURS = {"sglang_probe.ProbeError": ProbeError, "sglang_probe.ProbeUnavailable": ProbeUnavailable}
READY = "ready"
_PEER = "another rank failed"
"""How the text of an error begins that only follows from another rank's."""


class RankTraceback(Exception):
    """The cause of an exception that a rank raised: its traceback there."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def closed_text(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__


@dataclass(frozen=True)
class _Event:
    """The end of one rank, or what it raised."""

    rank: RankProcess
    told: str
    answer: Answer | None = None

    @property
    def follows(self) -> bool:
        """Whether it is only the echo of another rank's."""
        return self.answer is not None and self.answer.text.startswith(_PEER)

    @property
    def told_shortly(self) -> str:
        return self.told.splitlines()[0]


class Failure(Exception):
    """All that is known so far; false while nothing went wrong."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(what)
        self.what, self._timeout_s = what, timeout_s
        self.fatal = False
        self.exception: BaseException = ProbeError(what)
        self.cause: BaseException | None = None
        self._events: list[_Event] = []
        self._silent: list[RankProcess] = []
        self._stood = ""

    def __bool__(self) -> bool:
        return bool(self._events or self._silent)

    @property
    def first(self) -> tuple[int, str] | None:
        """The rank whose trouble came first and is no echo, and what the board is told of it."""
        event = next((e for e in self._events if not e.follows), self._events[0] if self._events else None)
        return (event.rank.rank, f"{event.rank} {event.told}") if event else None

    @property
    def reason(self) -> str:
        """Why the group is closed, in one line."""
        return closed_text(self.exception)

    def died(self, rank: RankProcess, cause: str, stands: str) -> None:
        self._note(_Event(rank, cause), stands)

    def raised(self, rank: RankProcess, answer: Answer) -> None:
        self._note(_Event(rank, f"raised {answer.type_name}: {answer.text}", answer), "")

    def _note(self, event: _Event, stands: str) -> None:
        self._events.append(event)
        self._stood = self._stood or stands

    def silent(self, rank: RankProcess, stands: str) -> None:
        self._silent.append(rank)
        self._stood = self._stood or stands

    def finish(self, size: int) -> None:
        """Settles the exception; processes still stand, so that they can be asked where."""
        roots = [event for event in self._events if not event.follows]
        if not roots and (self._silent or not self._events):
            self._of_silence(size)
            return
        first = roots[0] if roots else self._events[0]
        root = min((event for event in self._events if event.told == first.told), key=lambda event: event.rank.rank)
        also = "; ".join(self._also(root))
        if root.answer is None:
            phase = f", while {root.rank.phase}" if root.rank.phase != READY else ""
            text = f"{root.rank} {root.told} during {self.what}{phase} (group of {size})"
            dead = [event.rank for event in self._events if event.answer is None]
            self.exception = ProbeError(_paragraphs(text, also, self._stood, *map(_tail, dead)))
            return
        alike = sum(event.told == root.told for event in self._events)
        who = f"all {size} ranks" if alike == size > 1 else f"{root.rank} of {size}"
        text = f"{who}: {root.answer.text} ({root.answer.type_name} in {self.what})"
        self.exception = _exception(root.answer, _paragraphs(text, also))
        self.cause = RankTraceback(f"rank {root.rank.rank} (pid {root.rank.pid}):\n{root.answer.trace}")

    def _also(self, root: _Event) -> list[str]:
        """The other ranks: what else they raised, who was only stopped by it, who did not answer."""
        told = [f"{event.rank} {event.told_shortly}" for event in self._events if event.told != root.told and not event.follows]
        stopped = sorted(event.rank.rank for event in self._events if event is not root and event.follows)
        if stopped:
            names = ", ".join(map(str, stopped))
            told.append(f"rank{'s' if len(stopped) > 1 else ''} {names} stopped waiting for it")
        return [*told, *map(_silence, self._silent)]

    def _of_silence(self, size: int) -> None:
        text = f"{self.what} did not end within {self._timeout_s:g} s: {'; '.join(map(_silence, self._silent))} (group of {size})"
        self.exception = TimeoutError(_paragraphs(text, self._stood, *map(_tail, self._silent)))


def _silence(rank: RankProcess) -> str:
    """A rank that did not answer: how far it came, or where it stands."""
    where = f"is {rank.phase}" if rank.phase != READY else rank.where()
    return f"{rank} did not answer" + (f", it {where}" if where else "")


def _exception(answer: Answer, text: str) -> BaseException:
    """Of the type that the rank raised: built anew with rank and phase where it takes a text, else as it was there."""
    kind = _OURS.get(answer.type_name) or getattr(builtins, answer.type_name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            made: BaseException = kind(text)
            return made
        except TypeError:  # one that wants more than a text, such as UnicodeDecodeError
            pass
    try:
        original = load(answer.error)
    except Exception:  # a type that this process does not know
        original = None
    if isinstance(original, Exception):
        return original
    return ProbeError(text)


def _tail(rank: RankProcess) -> str:
    said = rank.log.tail()
    return f"last lines of rank {rank.rank}:\n{textwrap.indent(said, '  ')}" if said else ""


def _paragraphs(*parts: str) -> str:
    return "\n".join(filter(None, parts))
