"""LocalGroup: SGLang's dispatch on several ranks of this machine, driven from one notebook cell or one test. Public.

It starts one process a rank (ranks.py), sends calls and toggles, and puts the ranks' answers together (outcome.py).
Invariant: a toggle costs nothing until the next call takes it along; an error that leaves ranks apart closes the group.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from .._facts import DEFAULTS
from .._releases import Release, newest, resolve
from .._route import check_group, context_bits
from .._show.page import Block, Line, Table, to_html
from .._types import Call, Fact, Group, InputError, Path
from . import machine
from .ask import ask_of, whole
from .job import check, measure
from .messages import dump, dump_anything
from .outcome import Outcome
from .packing import by_value
from .progress import Starting
from .ranks import Ranks
from .rows import merged
from .toggles import checked, seconds

RANKS_MAX = 16
_ARENA_BYTES = 64 << 20
_MAX_BYTES = 1 << 38
_ORDER_BYTES, _ORDER_CALLS = 64 << 20, 512
"""Of one order to the ranks: many calls are sent in parts, so that each part's wait has the group's limit."""
_BYTES_S = 16 << 20
"""What a slow CPU makes, checks and moves in a second: the time that a large tensor has on top of the limit."""


class LocalGroup:
    """One process a rank; conditions are toggled, a real all-reduce takes a real path, and its path, numbers and times come back.

    ``device``: ``"gpu"`` (one GPU a rank, ``ordinals`` says which), ``"host"`` (CPU ranks over shared memory), or ``"auto"``: GPUs where
    there are enough of them, else CPU ranks (``why`` says which and why). ``sglang`` is the release whose dispatch runs. The group's facts
    are ``group``'s, or those found here; ``facts`` are set on top of either: ``LocalGroup(2, full_nvlink=False)``. Every wait ends after
    ``timeout_s`` (the start: ``start_timeout_s``). ``max_bytes`` sizes the buffers of the custom paths, ``nccl`` is the libnccl to open,
    ``env`` is added to the environment of the ranks.

    Raises InputError for bad values, ProbeUnavailable where the device is not there, TimeoutError and ProbeError with rank and phase.
    A group ends with ``close()``, with its ``with`` block, with its last reference, or with the process, whatever ends that.
    """

    def __init__(
        self,
        world_size: int = 2,
        *,
        device: Literal["auto", "host", "gpu"] = "auto",
        sglang: str | Release | None = None,
        group: Group | None = None,
        timeout_s: float = 30.0,
        start_timeout_s: float = 60.0,
        max_bytes: int = 16 << 20,
        nccl: str | os.PathLike[str] | None = None,
        ordinals: Sequence[int] | None = None,
        env: Mapping[str, str] | None = None,
        **facts: int | bool,
    ) -> None:
        self._ranks = Ranks()
        _check_size(world_size)
        whole("max_bytes", max_bytes)
        if max_bytes > _MAX_BYTES:
            raise InputError("max_bytes", max_bytes, f"give at most {_MAX_BYTES} (256 GiB): no custom path takes more")
        self._timeout_s, start_s = seconds("timeout_s", timeout_s), seconds("start_timeout_s", start_timeout_s)
        self._release = resolve(newest() if sglang is None else sglang)
        if group is not None and not isinstance(group, Group):
            raise InputError("group", group, "give a Group, as Group.make(world_size=2, full_nvlink=True)")
        if nccl is not None and not isinstance(nccl, (str, os.PathLike)):
            raise InputError("nccl", nccl, "give the path of a libnccl.so.2")
        if env is not None and not (isinstance(env, Mapping) and all(isinstance(x, str) for kv in env.items() for x in kv)):
            raise InputError("env", env, "give names and values as text, as {'NCCL_DEBUG': 'INFO'}")
        choice = machine.choose(device, world_size, ordinals)
        if nccl is not None and choice.device == "host":
            raise InputError(
                "nccl", os.fspath(nccl), f"CPU ranks have no NCCL ({choice.why}); leave it out, or give device='gpu'"
            )
        self.device, self.why = choice.device, choice.why
        self._group = (machine.default_group(choice, world_size) if group is None else group).with_facts("given", "", **facts)
        if self._group.world_size != world_size:
            raise InputError("group", self._group.world_size, f"its world_size is not the {world_size} of this call")
        check_group(self._group)
        self._toggles: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        common = {
            "group": self._group,
            "device": choice.device,
            "sglang": self._release,
            "timeout_s": start_s,
            "max_bytes": max_bytes,
            "nccl": None if nccl is None else os.fspath(nccl),
        }
        ordinal = choice.ordinals or (0,) * world_size
        weakref.finalize(self, self._ranks.close)
        with Starting(str(self)) as progress:
            self._ranks.start(
                [{**common, "ordinal": ordinal[rank]} for rank in range(world_size)],
                setup={
                    "sys_path": tuple(sys.path),
                    "toggles": {"timeout_s": self._timeout_s},
                },
                arena_bytes=_ARENA_BYTES + 8 * max_bytes if choice.device == "host" else _ARENA_BYTES,
                env={**os.environ, **(env or {})},
                store=choice.device == "gpu",
                timeout_s=start_s,
                progress=progress,
            )

    # ---------------------------------------------------------------------------------------------------------------------- state

    @property
    def world_size(self) -> int:
        """Ranks of this group."""
        return self._group.world_size

    @property
    def sglang(self) -> str:
        """The release whose dispatch the next call runs."""
        return self._release.name

    @property
    def group(self) -> Group:
        """The facts that the next call's gates read, each with its origin."""
        return self._group

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, by rank."""
        return tuple(rank.pid for rank in self._ranks.all)

    @property
    def closed(self) -> str:
        """Why nothing more is possible; empty while the group is usable."""
        return self._ranks.closed

    @property
    def output(self) -> tuple[str, ...]:
        """What each rank has printed (its last 64 KiB), while the group lives."""
        return () if self.closed else tuple(rank.log.text() for rank in self._ranks.all)

    # -------------------------------------------------------------------------------------------------------------------- toggles

    def set(self, **toggles: Any) -> LocalGroup:
        """Switches conditions for the calls to come; costs nothing: it goes along with the next one.

        ``sglang``, ``piecewise``, ``compiling``, ``symmetric_memory``, ``timeout_s``; communicators (``custom="disabled"``); and any fact
        of the group (``full_nvlink=False``). Raises InputError for anything else.
        """
        self._ranks.check_open()
        clean = checked(toggles)
        facts = {name: value for name, value in clean.items() if name in DEFAULTS}
        group = self._group.with_facts("given", "", **facts)
        check_group(group)
        self._group = group
        self._release = clean.get("sglang", self._release)
        self._timeout_s = clean.get("timeout_s", self._timeout_s)
        self._toggles.update(clean)
        self._pending.update(clean)
        return self

    # ---------------------------------------------------------------------------------------------------------------------- calls

    def all_reduce(
        self,
        call: int | Call | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: str = "bf16",
        context: str | Iterable[str] = "eager",
        repeat: int = 2,
        timed: int = 10,
        seed: int = 0,
        inputs: Literal["both", "exact", "random"] = "both",
    ) -> Outcome:
        """One all-reduce on every rank: checked ``repeat`` times with other inputs each time, then, where all is right, timed.

        ``call``: bytes (one row of them) or a Call; or give ``shape=(tokens, hidden)``. ``context`` is a preset of CONTEXTS, or bits as
        ``route`` takes them; where its stream is captured, one capture is replayed ``repeat`` times. ``timed=0``: no times.

        Raises what SGLang raises here, of the same type, on all ranks; ProbeUnavailable where the path does not run on this device.
        """
        ask = ask_of(call, shape, dtype, context_bits(context), seed, inputs)
        whole("repeat", repeat)
        whole("timed", timed, least=0)
        name = context if isinstance(context, str) else "+".join(context)
        what = f"all_reduce of {ask.nbytes} bytes of {ask.dtype} ({name})"
        part = min(_ORDER_CALLS, max(1, _ORDER_BYTES // (ask.nbytes * self.world_size)))
        limit = self._timeout_s + min(part * ask.nbytes * self.world_size / _BYTES_S, 3600)
        checks = [self._order(what, limit, check, ask.part(at, min(part, repeat - at))) for at in range(0, repeat, part)]
        rows = tuple(merged([done[rank][0] for done in checks]) for rank in range(self.world_size))
        outcome = Outcome(checks[0][0][1], self.device, name, ask.nbytes, ask.dtype, ask.shape, rows)
        if not outcome.correct or not timed:
            return outcome
        return outcome.with_times(self._order(f"timing {what}", limit, measure, ask.part(0, timed)))

    def run(self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """``function(coordinator, *args)`` on every rank; what it returns, by rank.

        Any function: of a notebook, a lambda, a closure (it travels by its code where ranks cannot import it). What ranks raise is raised
        here, with rank and traceback. The whole call ends within ``timeout_s`` (the group's, unless given).
        """
        if not callable(function):
            raise InputError("function", function, "give a function of a Coordinator")
        name = getattr(function, "__name__", type(function).__name__)
        with by_value(function):
            packed = dump_anything((function, args))
        limit = self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)
        return self._send(f"run({name})", packed, limit)

    def paths(self) -> dict[Path, str]:
        """What runs each path on this device, or ``not here: why``."""
        by_rank = self._order("paths()", self._timeout_s, _paths)
        return {
            path: text
            if len({str(one[path]) for one in by_rank}) == 1
            else "; ".join(f"rank {i}: {one[path]}" for i, one in enumerate(by_rank))
            for path, text in by_rank[0].items()
        }

    def _order(self, what: str, timeout_s: float, function: Callable[..., Any], *args: Any) -> list[Any]:
        return self._send(what, dump((function, args)), timeout_s)

    def _send(self, what: str, packed: bytes, timeout_s: float) -> list[Any]:
        toggles, self._pending = self._pending, {}
        return self._ranks.call(what, toggles, packed, timeout_s)

    # ------------------------------------------------------------------------------------------------------------------------ end

    def close(self) -> None:
        """Ends the ranks and gives everything back; twice is once."""
        self._ranks.close()

    def __enter__(self) -> LocalGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------------------------- shown

    def __str__(self) -> str:
        if self.closed:
            return f"closed: {self.closed}"
        on = "over shared memory" if self.device == "host" else "on GPUs"
        pids = f" (pids {', '.join(map(str, self.pids))})" if self.pids else ""
        ranks = f"{self.world_size} {'CPU' if self.device == 'host' else 'GPU'} rank{'s' if self.world_size > 1 else ''}"
        return f"{ranks} {on}{pids}, SGLang {self.sglang}"

    def __repr__(self) -> str:
        return f"<LocalGroup: {self}>"

    def page(self) -> list[Block]:
        """What people see: the answer, why this device, what is toggled and what the gates read."""
        blocks: list[Block] = [Line(str(self), "warn" if self.closed else "answer"), Line(self.why, "dim")]
        rows = [(name, str(value if name != "sglang" else value.name), "set") for name, value in self._toggles.items()]
        rows += [(name, str(fact.value), _origin(fact)) for name, fact in self._group.facts.items() if name not in self._toggles]
        return [*blocks, Table("", ("condition", "value", "origin"), tuple(rows), frozenset({"value"}))]

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "world_size": self.world_size,
            "device": self.device,
            "why": self.why,
            "pids": list(self.pids),
            "sglang": self.sglang,
            "closed": self.closed,
            "timeout_s": self._timeout_s,
            "toggles": {name: value if name != "sglang" else value.name for name, value in self._toggles.items()},
            "facts": {name: {"value": f.value, "origin": f.origin, "source": f.source} for name, f in self._group.facts.items()},
        }


def _paths(coordinator: Any) -> dict[Path, str]:
    return dict(coordinator.paths)


def _origin(fact: Fact) -> str:
    return f"{fact.origin}: {fact.source}" if fact.source else fact.origin


def _check_size(world_size: object) -> None:
    if isinstance(world_size, bool) or not isinstance(world_size, int) or not 1 <= world_size <= RANKS_MAX:
        raise InputError("world_size", world_size, f"give 1 to {RANKS_MAX} ranks")
