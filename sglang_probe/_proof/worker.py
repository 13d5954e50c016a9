"""Every call that a worker can make, in classes: its groups, the contexts that its settings ever set, all dtypes, layouts and sizes.

Called by reach, diff and history of a launch. Invariant: a context is left out only with the reason why the server never sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._facts import DTYPE_BYTES, DTYPES, fact_value, pack_call, pack_facts
from .._releases import Release
from .._route import CONTEXTS, check_group, context_bits
from .._types import Call, FrozenMap, Group, InputError, Server
from .._versions import at_least

COLUMN = {name: i for i, name in enumerate(_core.CLASS_COLUMNS)}
RESIDUE_TEXT = ("multiples of 16 bytes", "multiples of 4 bytes, not of 16", "other sizes")
_ALL_DTYPES = (1 << len(DTYPES)) - 1
_ALL_LAYOUTS = (1 << len(_core.LAYOUTS)) - 1
PLAIN = 0
"""The layout of nearly every tensor: contiguous and aligned."""


@dataclass(frozen=True)
class Worker:
    """What can be asked of one server, or of one group by itself."""

    release: Release
    groups: Mapping[str, Group]
    contexts: tuple[str, ...]
    never: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    """Contexts that the server never sets, each with the setting that says so."""
    hidden: int = 0
    dtype: str = "bf16"
    assumed: tuple[str, ...] = ()
    every: Mapping[str, Group] = field(default_factory=FrozenMap)
    """All groups by name; in ``groups`` those that are one object in SGLang stand once."""
    server: Server | None = None


@dataclass(frozen=True)
class Classes:
    """All calls of one group, in classes."""

    group: Group
    hidden: int
    dims: int
    rows: NDArray[np.uint64]
    """One row a class, columns as in ``COLUMN``."""


def worker_of_group(group: Group, release: Release, *, dtype: str = "bf16", hidden: int = 0) -> Worker:
    """A group by itself: every context may be set."""
    check_group(group)
    assumed = tuple(f"{name} = {fact.value}" for name, fact in group.facts.items() if fact.origin == "assumed")
    return Worker(release, FrozenMap({group.name: group}), tuple(CONTEXTS), hidden=hidden, dtype=dtype, assumed=assumed)


def worker_of_server(server: Server, release: Release) -> Worker:
    """A server: its groups of more than one rank, and the contexts that its graphs and flags ever set."""
    every = {name: group for name, group in server.groups.items() if group.world_size > 1}
    groups = _distinct(every)
    tp = server.groups["tp"]
    groups = groups or {"tp": tp}
    never = _never(server, tp)
    contexts = tuple(name for name in CONTEXTS if name not in never)
    hidden = server.model.hidden if server.model else 0
    dtype = server.model.dtype if server.model else "bf16"
    return Worker(
        release,
        FrozenMap(groups),
        contexts,
        FrozenMap(never),
        hidden,
        dtype,
        (*_loud(server), *server.assumed),
        FrozenMap(every),
        server,
    )


def _loud(server: Server) -> list[str]:
    """Notes that may change the answer: a flag that SGLang does not know may be a slip of the pen."""
    return [note for note in server.notes if "unknown" in note]


def _distinct(groups: Mapping[str, Group]) -> dict[str, Group]:
    """Groups that are one object in SGLang (attn_tp and moe_tp with plain tensor parallelism) are walked once."""
    seen: dict[tuple[int, ...], str] = {}
    for name, group in groups.items():
        seen.setdefault(pack_facts(group), name)
    return {name: groups[name] for name in seen.values()}


def _never(server: Server, tp: Group) -> dict[str, str]:
    """Contexts that this server never sets, each with its reason."""
    never = {}
    why = f" ({server.prefill_reason})" if server.prefill_reason else ""
    captured = server.decode_graph or server.prefill_graph != "none"
    if not captured:
        never["warmup"] = never["capture"] = "no CUDA graph is captured"
    if server.prefill_graph != "tc_piecewise":
        reason = f"the prefill graph of this server is {server.prefill_graph!r}{why}: it never sets the piecewise flag"
        for name in ("piecewise_compile", "piecewise_capture"):
            never[name] = reason
        # on ROCm the eager extend path sets the flag wherever there is a prefill graph runner
        hip = fact_value(tp, "device") == _core.DEVICES.index("hip")
        if not (hip and server.prefill_graph != "none" and at_least(server.sglang, "0.5.13")):
            never["piecewise_replay"] = reason
    compiled = server.args.get("enable_torch_compile")
    if not (compiled is not None and compiled.value) and server.prefill_graph != "tc_piecewise":
        never["compile"] = "--enable-torch-compile is off, so nothing is traced"
    if "compile" in never or not server.decode_graph or not (compiled is not None and compiled.value):
        never["compiled_capture"] = never.get("compile", "no decode graph is compiled, then captured")
    return never


def shapes_of(worker: Worker, group: Group) -> list[tuple[int, int]]:
    """(columns, dimensions) to walk: more than the model's own only where a workspace is counted in rows."""
    shapes = [(worker.hidden, 2)]
    if fact_value(group, "fi_workspace") or fact_value(group, "own_pcie_ipc"):
        shapes += [(1, 2), (8, 2), (2 * worker.hidden or 8192, 2), (worker.hidden, 1), (worker.hidden, 3)]
    return list(dict.fromkeys(shapes))


_DENSE = sum(1 << i for i, name in enumerate(_core.LAYOUTS) if name in ("contiguous", "contiguous, misaligned"))
"""Layouts in which the other shapes can matter: whoever counts rows takes nothing else, and tags are older than they are."""


def classes_of(
    worker: Worker,
    group: Group,
    *,
    everything: bool = True,
    contexts: tuple[str, ...] | None = None,
    shapes: Iterable[tuple[int, int]] | None = None,
) -> list[Classes]:
    """The classes of one group. ``everything``: all dtypes, layouts and shapes; else the model's dtype, contiguous [tokens, hidden]."""
    bits = tuple(context_bits(name) for name in (contexts or worker.contexts))
    if not bits:
        raise InputError("contexts", contexts, "no context is left: an empty space proves nothing")
    facts = pack_facts(group)
    found: list[Classes] = []
    for hidden, dims in shapes or (shapes_of(worker, group) if everything else [(worker.hidden, 2)]):
        call = pack_call(Call(nbytes=16, hidden=hidden, dims=dims))
        dtypes = _ALL_DTYPES if everything else 1 << DTYPES[worker.dtype]
        layouts = (_DENSE if found else _ALL_LAYOUTS) if everything else 1 << PLAIN
        rows = _core.classes(worker.release.index, facts, call, bits, dtypes, layouts, worker.release.derived)
        found.append(Classes(group, hidden, dims, rows))
    return found


def context_name(bits: int) -> str:
    """The preset of some context bits."""
    return next(name for name in CONTEXTS if context_bits(name) == bits)


def call_of(classes: Classes, row: NDArray[np.uint64]) -> Call:
    """The sample of a class as a Call."""
    dtype = _core.DTYPES[int(row[COLUMN["dtype"]])][0]
    nbytes, hidden = int(row[COLUMN["sample"]]), classes.hidden
    width = hidden * DTYPE_BYTES[dtype]
    layout = _core.LAYOUTS[int(row[COLUMN["layout"]])]
    return Call(
        nbytes=nbytes,
        dtype=dtype,
        group=classes.group.name,
        tokens=nbytes // width if width and nbytes % width == 0 else 0,
        hidden=hidden,
        dims=classes.dims,
        contiguous=layout.startswith("contiguous"),
        weak_contiguous=layout != "not contiguous",
        aligned="misaligned" not in layout,
        registered="symmetric" in layout,
    )
