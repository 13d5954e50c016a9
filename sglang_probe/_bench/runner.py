"""Runner: a plan, carried out: fresh processes for each process set, batches of cells, every cell into the file as soon as it is there.

Called by bench.py, in the one process that drives the ranks. Invariant: whatever ends it (an interrupt, a limit, a dead or a hung rank),
every cell of a batch that came back is in the file, and the same plan goes on from there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._measure.cell import Cell
from .._measure.provenance import Monitor
from .._measure.summary import over_ranks
from .._measure.writer import Writer
from .._types import ProbeUnavailable
from .plan import Identity, Plan, Task, grouped, key_of
from .progress import Progress
from .provider import Provider, RankSet
from .sample import Look, Taken, look, measure
from .waiting import split

_BATCH_S = 1.5
"""What is lost where a batch does not come back."""
_CELL_S = 0.05
"""Of a cell besides its samples: preparing it, a capture, writing it."""
_SAMPLE_US = 500.0
"""Of a sample besides its calls: barriers, marks, waits."""
_STREAK = 3
"""Groups that fail one after the other before nothing more is tried."""
_WAIT_S, _SLOW = 30.0, 4.0
_ENGINE_S = 180.0
"""SGLang is imported, its groups are built and its kernels compiled in the first of its calls."""
"""A batch is waited for this long, and so many times as long as it should take."""
_BYTES_US = {"gpu": 50_000.0, "host": 500.0}
"""What a call moves in a microsecond, about, where it was not looked at yet."""
_CHECK_BYTES_S = 16 << 20
"""What a slow CPU makes, sums and compares in a second."""
_END_S = 5.0


@dataclass
class Report:
    """What became of a plan."""

    measured: int = 0
    there: int = 0
    """Cells that the file had already."""
    refused: list[tuple[Task, str]] = field(default_factory=list)
    """What does not run here, each once."""
    failed: list[tuple[Task, str]] = field(default_factory=list)
    """What ended its ranks, or never came back, twice; not in the file."""
    retried: tuple[str, ...] = ()
    """What ended its ranks, or never came back, once: which process set and rank, the reason, and how many cells were asked for again.
    Their notes say it too."""
    stopped: str = ""
    """Why it ended before its plan did."""
    launches: int = 0
    """Process sets that further launches are to measure: nothing went wrong, there is no more to be had from this one."""

    @property
    def whole(self) -> bool:
        """Whether the plan is done: nothing that can be measured here is missing."""
        return not self.failed and not self.stopped and not self.launches

    @property
    def unfinished(self) -> bool:
        """Whether it ended otherwise than it was to: a launch that did its one set did all that it could."""
        return bool(self.failed or self.stopped)

    def refused_texts(self) -> list[str]:
        return grouped((t.wanted.target, t.driver, t.phase, t.wanted.nbytes, why) for t, why in self.refused)


class Runner:
    """``run()`` carries the plan out; ``report`` says how far it came, also after an exception."""

    def __init__(
        self, plan: Plan, provider: Provider, ranks: RankSet, writer: Writer, monitor: Monitor, deadline: float | None = None
    ) -> None:
        self._plan, self._provider, self._writer, self._monitor = plan, provider, writer, monitor
        self._ranks: RankSet | None = ranks
        """Of the process set that is being measured; the first was started by the caller, who asked it what it is."""
        self._unused = True
        self._deadline = deadline
        self._us: dict[Identity, float] = {}
        """About what a call takes, of everything that was found right."""
        self._checked: dict[Identity, tuple[int, int]] = {}
        """(checked, wrong) in this process set, for the cells to come."""
        self._out: set[Identity] = set()
        """Refused, failed or wrong: not asked for again."""
        self._streak = 0
        self.report = Report(there=len(writer.done))
        for cell in writer.done:
            identity = key_of(cell)[:-1]
            elapsed = over_ranks(cell.elapsed_us)
            if cell.wrong:
                self._out.add(identity)
            elif elapsed is not None:
                self._us.setdefault(identity, max(elapsed, 0.0) + cell.compute_us)
        self._keys = {key_of(cell) for cell in writer.done}

    def run(self, progress: Progress) -> Report:
        """Until the plan is done, or something ends it."""
        try:
            for process in range(self._plan.processes):
                tasks = [t for t in self._plan.tasks(process) if t.key not in self._keys and t.identity not in self._out]
                if not tasks:
                    continue
                if not self._provider.fresh and not self._unused:
                    self.report.launches = self._plan.processes - process
                    break
                progress.begin(process, self._plan.processes)
                self._begin()
                self._set(tasks, progress)
                if self.report.stopped:
                    break
        finally:
            self._end()
        return self.report

    # --------------------------------------------------------------------------------------------------------------- process sets

    def _begin(self) -> None:
        """New processes, unless the first set's are still unused."""
        if not self._unused:
            self._end()
        self._unused = False
        self._checked.clear()

    def _end(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def _alive(self) -> RankSet:
        if self._ranks is None or self._ranks.closed:
            self._end()
            self._ranks = self._provider.start()
        return self._ranks

    def _set(self, tasks: Sequence[Task], progress: Progress) -> None:
        queue = deque((batch, "") for batch in self._batches(tasks))
        while queue:
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self.report.stopped = "its time limit is over"
                return
            batch, before = queue.popleft()
            refused = len(self.report.refused)
            try:
                cells = self._batch(batch)
            except Exception as error:  # what ranks raised may be of any type; the writer is not asked in here
                self._failed(batch, before, error, queue, progress)
                if self.report.stopped:
                    return
                continue
            self._streak = 0
            for cell in cells:
                self._writer.append(replace(cell, note=f"{cell.note}; asked for again after {before}") if before else cell)
                self._keys.add(key_of(cell))
                self.report.measured += 1
            ever = self._plan.processes * (len(self.report.refused) - refused)
            progress.advance(len(cells), ever)

    def _failed(
        self, batch: Sequence[Task], before: str, error: Exception, queue: deque[tuple[list[Task], str]], progress: Progress
    ) -> None:
        """The batch is tried once more, one cell at a time, so that one of them alone is listed. ``before``: why it was tried again."""
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
        self._streak += 1
        for task in batch:
            self._us.pop(task.identity, None)
            self._checked.pop(task.identity, None)
        if before:
            self.report.failed += [(task, told) for task in batch]
            self._out.update(task.identity for task in batch)
        else:
            queue.extendleft(([task], told) for task in reversed(batch))
        if not self._provider.fresh and (self._ranks is None or self._ranks.closed):
            self.report.stopped = f"its ranks are gone ({told})"
        elif self._streak >= _STREAK:
            self.report.stopped = f"{self._streak} groups in a row failed ({told})"
        elif not before:
            cells = f"{len(batch)} cell{'s' * (len(batch) != 1)}"
            said = f"process set {batch[0].process + 1} of {self._plan.processes}: {told}; {cells} asked for again"
            self.report.retried += (said,)
            progress.tell(said)

    # -------------------------------------------------------------------------------------------------------------------- batches

    def _batches(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Cut by the time that they should take."""
        batch: list[Task] = []
        seconds = 0.0
        for task in tasks:
            batch.append(task)
            seconds += self._seconds(task)
            if seconds >= _BATCH_S:
                yield batch
                batch, seconds = [], 0.0
        if batch:
            yield batch

    def _call_us(self, task: Task) -> float:
        guess = task.wanted.nbytes / _BYTES_US[self._plan.device] + task.compute_us
        return self._us.get(task.identity, guess)

    def _sample_us(self, task: Task) -> float:
        """Two batches of calls; two of compute kernels alone."""
        us = self._call_us(task)
        return task.calls * 2 * (us + task.compute_us) + _SAMPLE_US

    def _samples(self, task: Task) -> int:
        least, most = self._plan.samples
        return max(least, min(most, int(self._plan.cell_ms * 1e3 / self._sample_us(task))))

    def _seconds(self, task: Task) -> float:
        split = task.split * 2 * self._call_us(task) / 1e6
        return self._samples(task) * self._sample_us(task) / 1e6 + split + _CELL_S

    def _limit(self, seconds: float, tasks: Iterable[Task]) -> float:
        limit = _WAIT_S + _SLOW * seconds + (_ENGINE_S if any(task.driver == "engine" for task in tasks) else 0.0)
        if self._deadline is not None:
            limit = min(limit, max(self._deadline - time.monotonic(), 0.0) + _END_S)
        return limit

    def _batch(self, tasks: Sequence[Task]) -> list[Cell]:
        """Looked at where they were not yet, then measured: cells, the wrong ones without samples."""
        ranks = self._alive()
        before = self._monitor.state()
        new = [task for task in tasks if task.identity not in self._us]
        cells = []
        if new:
            seconds = sum(task.wanted.nbytes * self._plan.world_size / _CHECK_BYTES_S for task in new)
            looks = ranks.run(look, new, timeout_s=self._limit(seconds, new))
            for task, by_rank in zip(new, zip(*looks, strict=True), strict=True):
                wrong = self._looked(task, by_rank)
                if wrong is not None:
                    cells.append(wrong)
        timed = [(task, self._samples(task)) for task in tasks if task.identity in self._us]
        if not timed:
            return cells
        seconds = sum(self._seconds(task) for task, _ in timed)
        taken = ranks.run(measure, timed, timeout_s=self._limit(seconds, tasks))
        after = self._monitor.state()
        for (task, _), of_task in zip(timed, zip(*taken, strict=True), strict=True):
            refused = next((one.refused for one in of_task if one.refused), "")
            if refused:
                self._refuse(task, refused)
                continue
            checked, wrong_count = self._checked.pop(task.identity, (0, 0))
            more, note = _split(of_task)
            note = f"{task.calls} calls a sample{note}"
            cells.append(cell_of(self._plan, task, of_task, checked, wrong_count, before=before, after=after, note=note, **more))
        return cells

    def _looked(self, task: Task, by_rank: Sequence[Look]) -> Cell | None:
        """Notes what was found; the cell, where that is all there will be: a wrong result is not timed."""
        refused = next((one.refused for one in by_rank if one.refused), "")
        if refused:
            self._refuse(task, refused)
            return None
        checked, wrong = sum(one.checked for one in by_rank), sum(one.wrong for one in by_rank)
        if wrong:
            self._out.add(task.identity)
            said = next(f"rank {rank}: {one.said}" for rank, one in enumerate(by_rank) if one.wrong)
            nothing = [Taken(backend=one.backend) for one in by_rank]
            return cell_of(self._plan, task, nothing, checked, wrong, note=f"WRONG, and therefore not timed: {said}")
        self._us[task.identity] = max(one.us for one in by_rank)
        self._checked[task.identity] = (checked, wrong)
        return None

    def _refuse(self, task: Task, why: str) -> None:
        self._out.add(task.identity)
        self._us.pop(task.identity, None)
        self.report.refused.append((task, why))


def cell_of(plan: Plan, task: Task, by_rank: Sequence[Taken], checked: int, wrong: int, **more: Any) -> Cell:
    """What the ranks took of one task, as it is kept. `ab` keeps its runs' so too."""
    w = task.wanted
    return Cell(
        path=w.path,
        kernel=w.kernel,
        backend=by_rank[0].backend,
        release=w.settings.release.name,
        phase=task.phase,
        pattern=task.pattern,
        compute_us=task.compute_us,
        driver=task.driver,
        device=plan.device,
        dtype=w.dtype,
        nbytes=w.nbytes,
        world_size=plan.world_size,
        device_us=tuple(one.device_us for one in by_rank),
        host_us=tuple(one.host_us for one in by_rank),
        elapsed_us=tuple(one.elapsed_us for one in by_rank),
        checked=checked,
        wrong=wrong,
        process=task.process,
        **more,
    )


def _split(by_rank: Sequence[Taken]) -> tuple[dict[str, Any], str]:
    """The fields of a Cell that stamps fill; and where they cannot, why."""
    stamped = [one.stamped for one in by_rank if one.stamped is not None]
    if not stamped:
        return {}, ""
    try:
        return split(stamped).of_cell(), ""
    except ProbeUnavailable as error:
        return {}, f"; not split: {error}"
