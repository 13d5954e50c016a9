"""What people see of workers: the answer, the ranks, who differs, what is odd, paths, sizes, call sites. Called by top.py and recording.py.

Invariant: ranks that are alike share a row, and a row says whose it is; what is wrong stands above every table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .._show.page import Block, Line, Table, items
from .._show.sizes import human_bytes
from .counts import Key, Kind
from .find import nothing_text
from .tally import Share
from .words import many, ranks_short, ranks_text, rate_text, seconds_text, us_text
from .worker import Worker
from .worlds import World

if TYPE_CHECKING:
    from .top import Top

_SIZES = 1
_SITES = 12
_LOUD = {"killed": "KILLED", "ended": "ended", "stopped": "stopped", "recording": "recording"}


def answer(top: Top) -> str:
    if not top.workers:
        return nothing_text(top.refused)
    alive = [worker for worker in top.workers if worker.is_alive]
    if not alive:
        told = [
            f"{many(len(top.workers), 'process', 'processes')} {'has' if len(top.workers) == 1 else 'have'} ended; nobody records"
        ]
    else:
        told = [str(world) for world in top.worlds if world.is_alive]
        rates = [rate for worker in alive if (rate := top.rate(worker)) is not None]
        told += [f"{rate_text(max(rates))} all-reduces/s a rank"] if rates else []
        gone = sum(not worker.is_alive for worker in top.workers)
        told += [f"{many(gone, 'process', 'processes')} GONE"] if gone else []
    told.append(many(top.alarms, "ALARM" if top.alarms else "alarm"))
    told.append(top.agreement.short)
    return "; ".join(told)


def top_page(top: Top, verbose: bool = False) -> list[Block]:
    blocks: list[Block] = [Line(answer(top), "answer")]
    if not top.workers:
        return blocks
    blocks += items("Ranks", (group.text for group in top.agreement.groups if not group.agrees or group.shifts), "warn")
    blocks += items("Graphs differ", top.agreement.graphs, "warn")
    loud = [finding for finding in top.findings if finding.kind != "dry"]
    blocks += items("Findings", map(str, loud), "warn")
    several = len(top.worlds) > 1
    for world in top.worlds:
        blocks.append(_workers(top, world, str(world) if several or world.missing else "Workers"))
        if world.missing and world.world_size:
            blocks.append(Line(f"no file here of {ranks_text(world.missing)}: on another machine, or without the hook", "dim"))
        blocks += _paths(top, world)
        blocks += _sites(world, verbose)
        blocks += _graphs(world, verbose)
    blocks += items("Worth knowing", (str(finding) for finding in top.findings if finding.kind == "dry"), "dim")
    if top.hidden:
        blocks.append(
            Line(f"{many(top.hidden, 'file')} of processes that have ended: --all shows them, `record clean` removes them", "dim")
        )
    blocks += items("Not read", (f"{one.path}: {one.reason}" for one in top.refused), "dim")
    return blocks


def _workers(top: Top, world: World, title: str) -> Table:
    columns = ("rank", "pid", "state", "calls", "executed", "per s", "graphs", "replays", "alarms", "last call")
    rows = tuple(
        (
            str(worker.rank) if worker.rank >= 0 else "?",
            str(worker.pid),
            _LOUD[worker.state],
            f"{worker.calls:,}",
            f"{worker.executed:,}",
            rate_text(top.rate(worker)),
            f"{len(worker.graphs):,}",
            f"{worker.replays:,}",
            f"{worker.alarms:,}",
            "-" if worker.idle_s is None else f"{seconds_text(worker.idle_s)} ago",
        )
        for worker in world.workers
    )
    return Table(title, columns, rows, frozenset(columns) - {"state"}, "state")


# ---------------------------------------------------------------------------------------------------------------------------- paths


def _paths(top: Top, world: World) -> list[Block]:
    """What ran, of all ranks; one row where they did the same. Columns that would be the same or empty in every row are left out."""
    rows: dict[Key, dict[Worker, list[Kind]]] = {}
    sizes: dict[Key, list[Share]] = {}
    for worker in world.workers:
        for kind in worker.kinds:
            rows.setdefault(tuple(getattr(kind, name) for name in _ROW), {}).setdefault(worker, []).append(kind)
        for share in worker.tally.shares(worker.tables.names, _ROW[:6], _SIZES):
            sizes.setdefault(share.key, []).append(share)
    cells = [_path_row(top, of, sizes.get(key[:6], ())) for key, of in sorted(rows.items(), key=lambda row: _weight(row[1]))]
    if not cells:
        return []
    kept = [i for i, name in enumerate(_COLUMNS) if name not in _MAY_GO or any(row[i] != "-" for row in cells)]
    dtypes = {row[_DTYPE] for row in cells}
    title = "Paths"
    if len(dtypes) == 1:
        kept.remove(_DTYPE)
        title += f", all of {dtypes.pop()}"
    columns = tuple(_COLUMNS[i] for i in kept)
    right = frozenset(("calls", "executed", "per s", "host", "device")) & {*columns}
    return [Table(title, columns, tuple(tuple(row[i] for i in kept) for row in cells), right, "path")]


_ROW = ("group", "path", "kernel", "expected", "phase", "dtype", "op", "flags")
"""What calls of one row share: the first six of them the sizes too."""
_COLUMNS = ("ranks", "group", "phase", "path", "expected", "dtype", "calls", "executed", "per s", "host", "device", "sizes")
_DTYPE = _COLUMNS.index("dtype")
_MAY_GO = ("per s", "host", "device", "sizes")


def _weight(of: dict[Worker, list[Kind]]) -> tuple[bool, int]:
    """Alarms first, then what ran most."""
    kinds = [kind for found in of.values() for kind in found]
    return not kinds[0].is_alarm, -sum(kind.executed for kind in kinds)


def _path_row(top: Top, of: dict[Worker, list[Kind]], shares: Sequence[Share]) -> tuple[str, ...]:
    kinds = [kind for found in of.values() for kind in found]
    kind = kinds[0]
    by_worker = [sum(rate for one in found if (rate := top.rate(worker, one.key)) is not None) for worker, found in of.items()]
    known = top.seconds is not None and any(worker.is_alive for worker in of)
    flags = [flag for flag in kind.flags if flag in ("dry", "nothing", "raised", "many")]
    path = (kind.path or "not seen") + (f" ({kind.kernel})" if kind.kernel else "") + (f" [{', '.join(flags)}]" if flags else "")
    hosted, timed = sum(share.hosted for share in shares), sum(one.timed for one in kinds)
    return (
        ranks_short(worker.rank for worker in of),
        kind.group,
        f"{kind.phase}, fused" if kind.op == "fused" else kind.phase,
        path,
        f"{kind.expected} ALARM" if kind.is_alarm else "=" if kind.expected else "-",
        kind.dtype or "-",
        _range([sum(one.calls for one in found) for found in of.values()]),
        _range([sum(one.executed for one in found) for found in of.values()]),
        rate_text(max(by_worker)) if known else "-",
        us_text(sum(share.host_ns for share in shares) / hosted) if hosted else "-",
        us_text(sum(one.device_ns for one in kinds) / timed) if timed else "-",
        _sizes(shares),
    )


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(shares: Iterable[Share]) -> str:
    """The most frequent ones of what was read."""
    counted: dict[int, int] = {}
    different = 0
    for share in shares:
        different = max(different, share.different)
        for nbytes, calls in share.sizes:
            counted[nbytes] = counted.get(nbytes, 0) + calls
    order = sorted(counted, key=lambda nbytes: (-counted[nbytes], nbytes))[:_SIZES]
    more = f", {different - len(order):,} more" if different > len(order) else ""
    return ", ".join(human_bytes(nbytes) for nbytes in order) + more or "-"


# ---------------------------------------------------------------------------------------------------------------- sites and graphs


def _sites(world: World, verbose: bool) -> list[Block]:
    rows: dict[Key, list[tuple[int, Share]]] = {}
    for worker in world.workers:
        for share in worker.tally.shares(worker.tables.names, ("site", "group", "phase", "path", "expected"), _SIZES):
            if share.key[0]:
                rows.setdefault(share.key, []).append((worker.rank, share))
    if not rows:
        return []
    ordered = sorted(rows.items(), key=lambda row: -sum(share.calls for _, share in row[1]))
    shown = ordered if verbose else ordered[:_SITES]
    cells = tuple(
        (
            ranks_short(rank for rank, _ in found),
            group,
            site,
            phase,
            (path or "not seen") + (f" (not {expected})" if expected and expected != path else ""),
            _range([share.calls for _, share in found]),
            _sizes(share for _, share in found),
        )
        for (site, group, phase, path, expected), found in shown
    )
    hidden = f" ({len(rows) - len(shown)} more: --why)" if len(shown) < len(rows) else ""
    columns = ("ranks", "group", "site", "phase", "path", "seen", "sizes")
    return [Table(f"Call sites, of the calls where they were looked for{hidden}", columns, cells, frozenset({"seen"}), "path")]


def _graphs(world: World, verbose: bool) -> list[Block]:
    rows: dict[tuple[str, int, int, int | None], list[tuple[int, int]]] = {}
    if not verbose:
        return []
    for worker in world.workers:
        for graph in worker.graphs:
            key = (graph.label or str(graph.number), graph.captured, graph.nbytes, graph.registered)
            rows.setdefault(key, []).append((worker.rank, graph.replays))
    cells = tuple(
        (
            ranks_short(rank for rank, _ in found),
            label + _times(rank for rank, _ in found),
            f"{captured:,}",
            human_bytes(nbytes) if nbytes else "-",
            "-" if registered is None else f"{registered:,}",
            _range([replays for _, replays in found]),
        )
        for (label, captured, nbytes, registered), found in rows.items()
    )
    columns = ("ranks", "graph", "captured", "bytes", "registered", "replays")
    return [Table("Graphs", columns, cells, frozenset(columns[2:]))] if cells else []


def _times(ranks: Iterable[int]) -> str:
    """Pieces of one piecewise graph share its label: how many a rank has, where they are several."""
    most = max(Counter(ranks).values())
    return f" ({most} graphs)" if most > 1 else ""
