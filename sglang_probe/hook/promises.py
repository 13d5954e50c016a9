"""What a flag promised and no call did: paths that a group was built for, the fused operator, graphs. Pure; called by watching.py.

Each check reads what was counted since the hook began (the ring's tables) and the live groups, and gives findings.
Invariant: a promise is broken only after enough calls to say so; what a release never runs there was not promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._record.ring import Tables
from .._types import Path
from .facts import communicator
from .targets import FUSED
from .telling import Finding

CALLS = 1000
"""Calls of a group after which a path that none took is told."""
_PATH = {name: i for i, (name, _) in enumerate(_core.PATHS)}
_FLAG = {name: 1 << i for i, (name, _) in enumerate(_core.RING_FLAGS)}
_PHASE = {name: i for i, (name, _) in enumerate(_core.PHASES)}
_V1 = ("", "one_shot", "two_shot")
"""Where the rules do not say which, it has no name."""
_PULLS = ("one_shot_pull", "two_shot_pull")


@dataclass(frozen=True)
class Promise:
    """A flag, by the group's attributes that hold it, and the path that it promises."""

    flags: tuple[str, ...]
    communicators: tuple[str, ...]
    path: Path
    named: str
    words: tuple[str, ...]
    """One of them stands in a constructor's warning that is about it."""


PROMISES = (
    Promise(("use_custom_allreduce",), ("ca_comm",), Path.CUSTOM, "custom all-reduce", ("custom all", "customall", "cuda graph")),
    Promise(("use_pymscclpp", "use_mscclpp"), ("pymscclpp_comm",), Path.MSCCLPP, "MSCCL++", ("mscclpp",)),
    Promise(
        ("use_torch_symm_mem_all_reduce", "use_torch_symm_mem", "use_symm_mem"),
        ("torch_symm_mem_comm", "symm_mem_comm"),
        Path.TORCH_SYMM_MEM,
        "torch symmetric memory",
        ("symm",),
    ),
)


def total(kinds: NDArray[np.void], chosen: Any) -> int:
    return int(kinds["calls"][chosen].sum())


def _of_group(tables: Tables, name: str) -> Any:
    ids = [number for number, text in tables.names["group"].items() if text == name]
    return np.isin(tables.kinds["group"], ids)


def broken_promises(
    tables: Tables, group: Any, warnings: Iterable[str], stopped: Callable[[str], str] = lambda _: "", least: int = CALLS
) -> Iterable[Finding]:
    """Of one group of several ranks. ``stopped`` says what the model knows against a path for one of its calls."""
    name, kinds = str(group.unique_name), tables.kinds
    mine = _of_group(tables, name) & ~_entered(tables, FUSED)
    calls = total(kinds, mine)
    if int(group.world_size) < 2 or calls < least:
        return
    for promise in PROMISES:
        took = total(kinds, mine & (kinds["path"] == _PATH[promise.path.value]))
        if took or not any(getattr(group, flag, False) for flag in promise.flags):
            continue
        why = _why(communicator(group, *promise.communicators), promise, warnings) or stopped(promise.path.value)
        why = why or "the communicator is enabled, and no call was for it"
        text = f"{name}: {promise.named} is on by flag; 0 of {calls:,} calls took it: {why}"
        yield Finding("promise", f"{name} {promise.path}", text)


def _why(comm: Any, promise: Promise, warnings: Iterable[str]) -> str:
    said = [text for text in warnings if any(word in text.lower() for word in promise.words)]
    heard = f"; its constructor warned: {' | '.join(said)}" if said else ""
    if comm is None:
        return "there is no such communicator" + heard
    if getattr(comm, "disabled", False):
        return "the communicator is disabled" + (heard or ", and SGLang's log does not say why")
    return ""


def unfused(tables: Tables, asked: bool, least: int = CALLS) -> Iterable[Finding]:
    """The fused all-reduce and norm, that the server's arguments ask for."""
    fused = _entered(tables, FUSED)
    calls = total(tables.kinds, ~fused)
    if asked and calls >= least and not total(tables.kinds, fused):
        yield Finding("promise", "fused", f"FlashInfer's fused all-reduce is on by flag; 0 of {calls:,} calls were fused")


def reduced_nothing(tables: Tables) -> Iterable[Finding]:
    """A fused operator that gave back nothing: what calls it goes on with a sum that nobody made, or (from v0.5.23) all-reduces itself."""
    fused = _entered(tables, FUSED)
    nothing = total(tables.kinds, fused & (tables.kinds["flags"] & _FLAG["nothing"] != 0))
    if nothing:
        text = (
            f"the fused all-reduce was chosen and reduced nothing in {nothing:,} of {total(tables.kinds, fused):,} calls: "
            "no FlashInfer, no workspace for it, or a tensor that is not contiguous"
        )
        yield Finding("fused", "nothing", text)


def _entered(tables: Tables, entry: str) -> Any:
    ids = [number for number, text in tables.names["entry"].items() if text == entry]
    return np.isin(tables.kinds["entry"], ids)


def registering(tables: Tables, first: int, piecewise: bool, saver: bool) -> int:
    """Captured calls of custom all-reduce, in graphs from ``first`` on, that read registered inputs: v1's, and V2's pulls.

    Under the memory saver inputs are copied, and V2 copies them inside of a piecewise graph.
    """
    names = tables.names["kernel"]
    reading = [number for number, text in names.items() if text in _V1 or (text in _PULLS and not piecewise)]
    kinds = tables.kinds
    chosen = (kinds["graph"] >= first) & (kinds["path"] == _PATH["custom"]) & np.isin(kinds["kernel"], reading)
    return 0 if saver else total(kinds, chosen & (kinds["flags"] & _FLAG["dry"] == 0))


def unregistered(tables: Tables) -> Iterable[Finding]:
    """Captured calls of custom all-reduce whose inputs' addresses were not exchanged: the hook said 0 where some were needed."""
    graphs, kinds = tables.graphs, tables.kinds
    for batch in np.unique(graphs["batch"][graphs["registered"] == 1]):
        mine = np.flatnonzero(graphs["batch"] == batch) + 1
        calls = total(kinds, np.isin(kinds["graph"], mine) & (kinds["path"] == _PATH["custom"]))
        if calls:
            text = f"custom all-reduce was captured in {calls:,} calls of {len(mine)} graphs, and 0 addresses were registered for them"
            yield Finding("graph", f"batch {batch}", text)


def never_replayed(tables: Tables, look: Callable[[], NDArray[np.void]], least: int = CALLS) -> Iterable[Finding]:
    """Graphs with all-reduces, of which none was ever replayed while calls went on outside of them. ``look`` gives the records."""
    graphs = tables.graphs[tables.graphs["captured"] > 0]
    if not len(graphs) or graphs["replays"].any() or (graphs["ended_ns"] == 0).any():
        return
    records = look()
    eager = int(((records["time_ns"] > graphs["ended_ns"].max()) & (records["phase"] == _PHASE["eager"])).sum())
    if eager >= least:
        captured = int(graphs["captured"].sum())
        text = f"{len(graphs)} graphs with {captured:,} calls were captured and never replayed; {eager:,} calls ran eagerly since"
        yield Finding("graph", "never replayed", text)
