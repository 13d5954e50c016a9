"""What should have run: the router's answer for the installed release and the live group, once a kind of call. The Recorder calls it.

    expect(group, entry, dtype, nbytes, rows, columns, layout, context, direct, owner) -> (index in PATHS, kernel), or None

Which communicators are switched off is part of ``context``: SGLang enables pynccl for one block and disables custom all-reduce for another,
and the Recorder remembers an answer.
A call is asked about as all_reduce would be. Where SGLang's operator was called by somebody else (``direct``), its own answer is what
counts: the in-place one knows pynccl, torch symmetric memory and torch.distributed alone; the other one was told its method when Dynamo
traced its caller.
Invariant: an answer is the core's, of facts that are read when it is asked; where the release is not known there is none.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from .. import _core
from .._facts import DTYPES, pack_call, pack_facts
from .._releases import Release
from .._route import context_bits
from .._run.switches import GATES, KERNELS
from .._types import Call, Group, Path
from .._versions import at_least
from .facts import attribute, communicator, group_facts, usable
from .forking import Lock
from .targets import FUSED
from .wrapping import PATHS

_DTYPES = tuple(DTYPES)
_LAYOUT = {name: 1 << i for i, (name, _) in enumerate(_core.RING_LAYOUTS)}
_DIMS_SHIFT = 5
_BITS = (1 << len(_core.CONTEXTS)) - 1
_COMPILING = context_bits("compiling")
_IN_PLACE = 1
_COMMUNICATORS = {
    "custom": ("ca_comm",),
    "quick": ("qr_comm",),
    "mscclpp": ("pymscclpp_comm",),
    "torch_symm_mem": ("torch_symm_mem_comm", "symm_mem_comm"),
    "pcie_ipc": ("pcie_ipc_comm",),
    "pynccl": ("pynccl_comm",),
}
_OFF = {name: 1 << (16 + i) for i, name in enumerate(_COMMUNICATORS)}
"""Bits of a call's context that say which of its group's communicators are switched off."""
_SWITCHED_BY_CAPTURE = ("pynccl", "mscclpp")
_PAST_THE_GROUP = "symm_mem_bypass"
"""The entry whose first argument is no group: its switches are read as it is asked about."""
_KERNELS = tuple(name for name, _, _ in _core.KERNELS)
_DRY = "dry"
Answer = tuple[int, str]
"""A path's index, and its kernel's name where the router has one."""
_BYPASSED = {"own_custom": 0, "own_mscclpp": 0, "own_pcie_ipc": 0, "fi_workspace": 0, "symm_mem": 0}


class Expected:
    """The model of this process's SGLang."""

    def __init__(self, release: Release | None) -> None:
        self.release = release
        self._lock = Lock()
        self._groups: dict[str, weakref.ref[Any]] = {}
        self._captured: set[str] = set()
        self._facts: dict[str, Group] = {}
        self.watched = 0
        """Of _OFF, what the calls' contexts say."""

    def add(self, group: Any) -> None:
        with self._lock:
            self._groups[str(group.unique_name)] = weakref.ref(group)
            self._facts.clear()

    def captured(self, name: str) -> None:
        """graph_capture() has entered this group."""
        with self._lock:
            self._captured.add(name)
            self._facts.clear()

    def forget(self) -> None:
        """Facts are read anew."""
        with self._lock:
            self._facts.clear()

    def group(self, name: str) -> Any:
        found = self._groups.get(name)
        return None if found is None else found()

    def groups(self) -> list[Any]:
        return [group for found in list(self._groups.values()) if (group := found()) is not None]

    def switches(self) -> Iterable[tuple[int, None, str, int]]:
        """Sources for the Recorder: of the communicators that any group has."""
        groups, sources, watched = self.groups(), [], 0
        for name, attributes in _COMMUNICATORS.items():
            held = next((one for one in attributes if any(getattr(group, one, None) is not None for group in groups)), None)
            if held is not None:
                sources.append((_OFF[name], None, f"{held}.disabled", 0))
                watched |= _OFF[name]
        self.watched = watched
        return sources

    def facts(self, group: Any) -> Group:
        """Raises where there is no release to read them for, or SGLang's objects are not what that release has."""
        assert self.release is not None
        name = str(group.unique_name)
        with self._lock:
            found = self._facts.get(name)
        if found is None:
            found = group_facts(group, self.release, name in self._captured)
            with self._lock:
                self._facts[name] = found
        return found

    def __call__(
        self,
        group: str,
        entry: str,
        dtype: int,
        nbytes: int,
        rows: int,
        columns: int,
        layout: int,
        context: int,
        direct: bool,
        owner: Any,
    ) -> Answer | None:
        if self.release is None or not nbytes or dtype >= len(_DTYPES):
            return None
        if entry == FUSED:
            return PATHS[Path.FLASHINFER], ""
        live = self.group(group) or (owner if hasattr(owner, "world_size") and hasattr(owner, "ranks") else None)
        if live is None:
            return None
        elsewhere = layout & _LAYOUT["elsewhere"]
        contiguous = bool(elsewhere or layout & _LAYOUT["contiguous"])
        call = Call(
            nbytes,
            _DTYPES[dtype],
            hidden=columns,
            dims=(layout >> _DIMS_SHIFT) or 2,
            contiguous=contiguous,
            weak_contiguous=bool(contiguous or layout & _LAYOUT["dense"]),
            aligned=bool(elsewhere or layout & _LAYOUT["aligned"]),
            registered=entry == _PAST_THE_GROUP and not at_least(self.release.name, "0.5.4.post3"),
        )
        switched = switches(live, context, 0 if entry == _PAST_THE_GROUP else self.watched)
        return self._answer(live, entry, call, context & _BITS, switched, direct)

    def _answer(self, live: Any, entry: str, call: Call, bits: int, switched: Switched, direct: bool) -> Answer:
        facts = self.facts(live)
        if entry == "in_place" and direct:
            if switched[1] & GATES["pynccl"]:
                return PATHS[Path.PYNCCL_IN_PLACE], ""
            return self._route(facts.with_facts("found", "the in-place operator", **_BYPASSED), call, 0, switched)[0]
        answer, op = self._route(facts, call, bits, switched)
        if entry == "out_place" and direct and op == _IN_PLACE:  # from code that Dynamo traced: "auto" never ends in place
            return self._route(facts, call, bits | _COMPILING, switched)[0]
        return answer

    def _route(self, facts: Group, call: Call, bits: int, switched: Switched) -> tuple[Answer, int]:
        assert self.release is not None
        found = _core.route(self.release.index, pack_facts(facts), pack_call(call), bits, self.release.derived, 0, *switched)
        codes, kernel = found[2], _KERNELS[found[3][1]]
        return (codes[0], "" if kernel == _DRY else kernel), codes[2]


Switched = tuple[int, int, int]
"""What ``_core.route`` takes: gates that are off, gates that are on, a kernel."""


def switches(live: Any, context: int = 0, watched: int = 0) -> Switched:
    """Communicators that are disabled, or enabled, in a call of this context, and now where it does not say; and the kernel that somebody
    told V2 to run."""
    off = on = 0
    for name, names in _COMMUNICATORS.items():
        comm = communicator(live, *names)
        if comm is None:
            continue
        if not context & _OFF[name] if watched & _OFF[name] else usable(comm):
            on |= GATES[name] if name in _SWITCHED_BY_CAPTURE else 0
        elif name not in _SWITCHED_BY_CAPTURE:
            off |= GATES[name]
    told = str(attribute(live, "ca_comm.override_algo.name", "")).lower()
    return off, on, KERNELS.get(told, 0)
