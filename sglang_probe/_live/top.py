"""top(): all workers of this machine at one moment, and Watch, which looks again and again. What `sglang-probe top` prints.

Invariant: a rate is what was counted between two looks of the same Watch; without a second look there is none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._record.ring import Refusal
from .._show.page import Block, to_html, to_text
from .._types import FrozenMap, InputError
from .agree import Agreement
from .compare import agreement_of
from .counts import Key
from .find import Sources, open_ring, paths
from .findings import Finding, findings_of
from .shift import Known
from .worker import RECENT, Reader, Worker
from .worlds import World, worlds_of

_DIFFERENT_S = 60.0
"""For so long a difference is told after its calls were overwritten."""


@dataclass(frozen=True, eq=False, repr=False)
class Top:
    """All workers that were looked at: ``print(top())``, or a notebook, shows them as `sglang-probe top` does."""

    worlds: tuple[World, ...]
    agreement: Agreement
    findings: tuple[Finding, ...]
    refused: tuple[Refusal, ...] = ()
    hidden: int = 0
    """Processes that have ended and are not shown, since others live."""
    rates: Mapping[tuple[str, Key], float] = field(default_factory=lambda: FrozenMap({}))
    """Executed calls a second, by file and kind; empty after one look."""
    seconds: float | None = None
    """Between the two looks."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(worker for world in self.worlds for worker in world.workers)

    @property
    def alarms(self) -> int:
        return sum(worker.alarms for worker in self.workers)

    def rate(self, worker: Worker, key: Key | None = None) -> float | None:
        """Executed calls a second of one worker, of all kinds or of one; None without two looks."""
        if self.seconds is None or not worker.is_alive:
            return None
        kinds = [kind.key for kind in worker.kinds] if key is None else [key]
        return sum(self.rates.get((worker.path, one), 0.0) for one in kinds)

    @property
    def answer(self) -> str:
        """One line."""
        from .page import answer

        return answer(self)

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see. `verbose`: every call site and size, and all graphs."""
        from .page import top_page

        return top_page(self, verbose)

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Top: {self.answer}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "answer": self.answer,
            "seconds": self.seconds,
            "alarms": self.alarms,
            "agreement": self.agreement.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "servers": [world.to_dict() for world in self.worlds],
            "workers": [worker.to_dict() | {"executed_per_s": self.rate(worker)} for worker in self.workers],
            "refused": [{"path": os.fspath(one.path), "reason": one.reason} for one in self.refused],
            "hidden": self.hidden,
        }


class Watch:
    """Looks at all ring files, new ones too. ``with Watch() as watch: watch.look()``; each record is read once.

    Parameters
    ----------
    sources
        Processes or ring files; None: all of this user, looked for anew each time.
    dead
        All processes that have ended too, not only those whose other ranks live.
    """

    def __init__(self, sources: Sources = None, *, dead: bool = False, keep: int = RECENT) -> None:
        self._sources = sources if sources is None or isinstance(sources, int | str | os.PathLike) else tuple(sources)
        self._dead, self._keep = dead, keep
        self._readers: dict[tuple[Path, int], Reader] = {}
        self._before: dict[str, tuple[int, dict[Key, int]]] = {}
        self._shifts: Known = {}
        self._differed: tuple[float, Agreement] | None = None

    def look(self) -> Top:
        """What is there now. Raises InputError where a named source cannot be read."""
        refused: list[Refusal] = []
        workers = [worker for reader in self._open(refused) if (worker := self._read(reader, refused)) is not None]
        worlds = worlds_of(workers)
        shown = self._shown(worlds)
        hidden = sum(len(world.workers) for world in worlds) - sum(len(world.workers) for world in shown)
        rates, seconds = self._rates([worker for world in shown for worker in world.workers])
        agreement = self._remember(agreement_of(shown, self._shifts))
        return Top(shown, agreement, findings_of(shown), tuple(refused), hidden, FrozenMap(rates), seconds)

    def _shown(self, worlds: tuple[World, ...]) -> tuple[World, ...]:
        """Servers that live; where none does, the last one."""
        if self._dead or self._sources is not None:
            return worlds
        return tuple(world for world in worlds if world.is_alive) or worlds[:1]

    def _open(self, refused: list[Refusal]) -> list[Reader]:
        there: dict[tuple[Path, int], Reader] = {}
        for path, named in paths(self._sources, refused):
            try:
                key = (path, os.lstat(path).st_ino)  # another file of the same name is another ring
                known = self._readers.pop(key, None)
                there[key] = Reader(open_ring(path)) if known is None else known
            except OSError as error:
                if named and not self._readers:
                    raise InputError("ring", os.fspath(path), f"cannot be opened: {error.strerror}") from None
            except InputError as error:
                if named:
                    raise
                refused.append(Refusal(path, error.remedy))
        for reader in self._readers.values():
            reader.close()
        self._readers = there
        return list(there.values())

    def _read(self, reader: Reader, refused: list[Refusal]) -> Worker | None:
        try:
            return reader.look(self._keep)
        except (InputError, ValueError, OSError) as error:  # it was damaged, or got shorter, since it was opened
            refused.append(Refusal(reader.ring.path, error.remedy if isinstance(error, InputError) else str(error)))
            return None

    def _rates(self, workers: Sequence[Worker]) -> tuple[dict[tuple[str, Key], float], float | None]:
        now = {worker.path: (worker.looked_ns, {kind.key: kind.executed for kind in worker.kinds}) for worker in workers}
        before, self._before = self._before, now
        rates: dict[tuple[str, Key], float] = {}
        longest = None
        for path, (at, counts) in now.items():
            if path not in before or at <= before[path][0]:
                continue
            since, old = before[path]
            seconds = (at - since) / 1e9
            longest = max(seconds, longest or 0.0)
            rates.update({(path, key): max(count - old.get(key, 0), 0) / seconds for key, count in counts.items()})
        return rates, longest

    def _remember(self, found: Agreement) -> Agreement:
        """A difference stays for a while: its calls may be overwritten by the next look."""
        now = time.monotonic()
        if not found.agrees:
            self._differed = (now, found)
        elif self._differed is not None:
            if now - self._differed[0] < _DIFFERENT_S and any(group.differ for group in self._differed[1].groups):
                return self._differed[1]
            self._differed = None
        return found

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def top(sources: Sources = None, *, seconds: float = 1.0, dead: bool = False) -> Top:
    """All workers of this user on this machine that record: paths, sizes, rates, phases, alarms, replays, and whether ranks agree.

    Parameters
    ----------
    sources
        Numbers of processes, or ring files; None: all.
    seconds
        Between the two looks that give rates; 0: one look, without rates.
    dead
        All processes that have ended too.

    Raises InputError where a source that was named cannot be read. Nothing that a worker does is disturbed.
    """
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 3600:
        raise InputError("seconds", seconds, "give 0 to 3600")
    with contextlib.closing(Watch(sources, dead=dead)) as watch:
        found = watch.look()
        if seconds and any(worker.is_alive for worker in found.workers):
            time.sleep(seconds)
            found = watch.look()
        return found
