"""What the lines of a log mean for the server that its arguments describe: facts found, and contradictions. Called by launch.py.

Invariant: a contradiction names its line; a fact that was found replaces what was assumed, and the assumption's sentence goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .._decision import Decision
from .._types import Call, FrozenMap, Group, Server
from .log import Line, Log


def apply_log(server: Server, log: Log) -> Server:
    """The server, corrected by what its log says; what contradicts its arguments is listed with the line."""
    told = any(line.kind == "registered" and line.value for line in log.lines)
    for line in log.lines:
        if line.kind == "registered" and not line.value and told:
            continue  # another group's, or the draft's: some calls did go to custom all-reduce
        server = _EFFECTS[line.kind](server, line)
    return server


def _contradict(server: Server, line: Line, because: str) -> Server:
    return replace(server, contradictions=(*server.contradictions, f"line {line.number}: {line.text} ({because})"))


def _with_fact(server: Server, line: Line, **facts: int) -> Server:
    tp = server.groups["tp"]
    found = tp.with_facts("found", f"line {line.number} of the log", **facts)
    groups: dict[str, Group] = {name: found if group is tp else group for name, group in server.groups.items()}
    names = tuple(facts)
    assumed = tuple(text for text in server.assumed if not text.startswith(_SENTENCES.get(names[0], "\0")))
    return replace(server, groups=FrozenMap(groups), assumed=assumed)


_SENTENCES = {"multicast": "multicast:", "full_nvlink": "links:", "p2p": "peer access:"}


def _custom(server: Server) -> bool:
    tp = server.groups["tp"]
    return bool(tp.value("own_custom")) and tp.world_size > 1


def _on_registered(server: Server, line: Line) -> Server:
    if line.value == 0 and _custom(server) and server.decode_graph and _registers(server):
        return _contradict(server, line, "no captured call went to custom all-reduce, though it is not turned off")
    if line.value and not _custom(server):
        return _contradict(server, line, "captured calls went to custom all-reduce, though the arguments turn it off")
    return server


_REGISTERING = {"v1": ("one_shot", "two_shot"), "V2": ("one_shot_pull", "two_shot_pull")}
"""Kernels that read the tensors of a captured graph in place, so that their addresses are registered; those that push copy first."""


def _registers(server: Server) -> bool:
    """Whether any captured call of this server should register an address: so says its own route, batch by batch."""
    if server.groups["tp"].value("memory_saver_graph"):
        return False
    return any(
        decision.path == "custom" and decision.kernel in _REGISTERING.get(decision.backend[:2], ())
        for decision in _captured_routes(server)
    )


def _captured_routes(server: Server) -> Iterator[Decision]:
    from .._route import route
    from .._step.step import step_of

    if server.model is None:  # its calls are not known: one tensor, as small as a decode step's
        yield route(Call(16 << 10), server.groups["tp"], context="capture", sglang=server.sglang)
        return
    for batch in server.captured_batches or (1,):
        step = step_of(server, sglang=server.sglang, batch=batch, context="capture")
        yield from (call.decision for call in step.calls)


def _on_custom_failed(server: Server, line: Line) -> Server:
    if _custom(server):
        server = _contradict(server, line, "the arguments ask for custom all-reduce; the group has none")
    return _with_fact(server, line, own_custom=0)


def _on_custom_disabled(server: Server, line: Line) -> Server:
    text = str(line.value)
    if _custom(server):
        server = _contradict(server, line, "the arguments ask for custom all-reduce; it switched itself off")
    if "PCIe" in text or "not supported on more" in line.text or text.startswith("it's not supported on"):
        return _with_fact(server, line, full_nvlink=0)
    if "P2P" in line.text or text.startswith("your platform lacks"):
        return _with_fact(server, line, p2p=0, p2p_check=1)
    return server


def _on_multicast(server: Server, line: Line) -> Server:
    if bool(server.groups["tp"].value("multicast")) != line.value:
        server = _contradict(server, line, "taken instead of what was assumed")
    return _with_fact(server, line, multicast=int(line.value))


def _on_fusion(server: Server, line: Line) -> Server:
    if server.fusion.enabled:
        return server
    return _contradict(server, line, f"fusion was taken to be off: {server.fusion.reason}")


def _on_fusion_failed(server: Server, line: Line) -> Server:
    """FlashInfer's workspace is missing: nothing is fused, and no all-reduce goes to FlashInfer."""
    if not server.fusion.enabled:
        return server
    server = _contradict(server, line, "fusion is asked for, but FlashInfer's workspace is not there")
    fusion = replace(server.fusion, enabled=False, reason=f"line {line.number} of the log", assumed=())
    return _with_fact(replace(server, fusion=fusion), line, fi_workspace=0)


def _on_fusion_backend(server: Server, line: Line) -> Server:
    if not server.fusion.enabled:
        return _contradict(server, line, f"fusion was taken to be off: {server.fusion.reason}")
    server = replace(server, fusion=replace(server.fusion, backend=str(line.value), assumed=()))
    return _with_fact(server, line, fi_backend=int(line.value == "mnnvl"))


def _on_batches(server: Server, line: Line) -> Server:
    if not line.value:
        return server
    if not server.decode_graph:
        server = _contradict(server, line, "the arguments turn decode graphs off")
    elif any(note.startswith("captured batches: from line") for note in server.notes):
        return server  # the draft's own
    note = f"captured batches: from line {line.number} of the log"
    assumed = tuple(text for text in server.assumed if not text.startswith("captured batches:"))
    return replace(server, captured_batches=tuple(sorted(set(line.value))), notes=(*server.notes, note), assumed=assumed)


def _on_prefill(server: Server, line: Line) -> Server:
    if server.prefill_graph != "none":
        return server
    return _contradict(server, line, "the prefill graph was taken to be off")


def _on_mscclpp(server: Server, line: Line) -> Server:
    return _contradict(server, line, "the arguments ask for mscclpp") if server.groups["tp"].value("own_mscclpp") else server


def _on_symm_multicast(server: Server, line: Line) -> Server:
    return _with_fact(_contradict(server, line, "the arguments ask for torch symmetric memory"), line, multicast=0)


def _on_symm(server: Server, line: Line) -> Server:
    return (
        _contradict(server, line, "the arguments ask for torch symmetric memory")
        if server.groups["tp"].value("own_torch_symm_mem")
        else server
    )


def _on_pcie_missing(server: Server, line: Line) -> Server:
    return _with_fact(server, line, own_pcie_ipc=1, has_flashinfer_pcie=0)


def _on_pcie_failed(server: Server, line: Line) -> Server:
    return _with_fact(_contradict(server, line, "the environment asks for PCIe-IPC"), line, own_pcie_ipc=0)


def _on_pcie(server: Server, line: Line) -> Server:
    return _with_fact(server, line, own_pcie_ipc=1, has_flashinfer_pcie=1)


def _on_nccl(server: Server, line: Line) -> Server:
    return replace(server, notes=(*server.notes, f"NCCL {line.value} (line {line.number} of the log)"))


_EFFECTS: dict[str, Callable[[Server, Line], Server]] = {
    "registered": _on_registered,
    "custom failed": _on_custom_failed,
    "custom disabled": _on_custom_disabled,
    "multicast": _on_multicast,
    "fusion": _on_fusion,
    "fusion failed": _on_fusion_failed,
    "fusion backend": _on_fusion_backend,
    "batches": _on_batches,
    "prefill sizes": _on_prefill,
    "mscclpp disabled": _on_mscclpp,
    "symm multicast": _on_symm_multicast,
    "symm disabled": _on_symm,
    "pcie missing": _on_pcie_missing,
    "pcie failed": _on_pcie_failed,
    "pcie on": _on_pcie,
    "nccl": _on_nccl,
}
