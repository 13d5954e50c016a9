"""The output of nccl-tests as a Table. Called by files.py.

What its times are: means on the host's clock from the first call to the end of the last, over iterations, over ranks: our "elapsed", of
calls back to back; with -C the host's time for launching, our "host". One run, so there is no interval. Its two halves are pynccl's out of
place and in place: SGLang's pynccl calls ncclAllReduce as nccl-tests does.
Invariant: nothing of it is called device time, and a row with a wrong result is left out.
"""

from __future__ import annotations

from typing import cast

from .._measure.nccl_tests import NcclRow, NcclTests
from .._server.hardware import GPUS
from .._types import FrozenMap
from .estimate import Estimate, Point
from .machine import Link, Machine, short_name
from .table import Quantity, Series, Table

DRIVER = "nccl-tests"


def table_of(tests: NcclTests) -> Table:
    """Raises nothing: what the output does not tell (which GPUs, how they are linked) is told beside its figures, or keeps it from use."""
    quantity: Quantity = "host_us" if tests.cpu_time else "elapsed_us"
    series = tuple(_series(tests, path, quantity) for path in ("pynccl_out_of_place", "pynccl_in_place"))
    parts = [f"NCCL {tests.nccl}" if tests.nccl else "", f"nccl-tests {tests.tests}" if tests.tests else ""]
    machine = _machine(tests)
    notes = [*tests.notes, *(["its results were not checked (-c 0)"] if tests.wrong is None else [])]
    if machine.link:
        notes.append(f"its output does not say how the GPUs are linked: taken as {machine.gpus[0]} cards usually are")
    if wrong := sum(any((row.out_of_place_wrong, row.in_place_wrong)) for row in tests.rows):
        notes.append(f"results of {wrong} of its {len(tests.rows)} sizes are WRONG: those are not used")
    stamp = ", ".join(filter(None, parts))
    return Table("nccl-tests", machine, tests.path, tests.path, stamp, tuple(notes), _lacks(tests), _series=lambda: series)


def _lacks(tests: NcclTests) -> str:
    if tests.gpus:
        return ""
    return (
        "its lines `#  Rank  0 ... device  0 [...] NVIDIA ...`, which say how many ranks and which GPUs, are missing: keep all that "
        "all_reduce_perf prints (`all_reduce_perf ... > FILE`), from its first line on"
    )


def _machine(tests: NcclTests) -> Machine:
    known = {GPUS[short].link for name in tests.gpus if (short := short_name(name))}
    links: tuple[tuple[Link, ...], ...] = ()
    if len(known) == 1:
        links = ((cast(Link, known.pop()),) * len(tests.gpus),) * len(tests.gpus)
    return Machine(tests.gpus, links, nodes=max(1, tests.nodes))


def _series(tests: NcclTests, path: str, quantity: Quantity) -> Series:
    points = tuple(Point(row.nbytes, Estimate(_us(row, path))) for row in tests.rows if not _wrong(row, path))
    return Series(
        path=path,
        kernel="",
        phase="captured" if tests.captured else "eager",
        pattern="back_to_back",
        compute_us=0.0,
        driver=DRIVER,
        dtype=tests.dtype,
        world_size=tests.ranks,
        points=FrozenMap({quantity: points} if points else {}),
        wrong=frozenset(row.nbytes for row in tests.rows if _wrong(row, path)),
    )


def _us(row: NcclRow, path: str) -> float:
    return row.out_of_place_us if path == "pynccl_out_of_place" else row.in_place_us


def _wrong(row: NcclRow, path: str) -> bool:
    return bool(row.out_of_place_wrong if path == "pynccl_out_of_place" else row.in_place_wrong)
