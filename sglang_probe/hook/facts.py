"""The facts of a live GroupCoordinator: what the model asks of a server, read off the objects that SGLang has built. Called by expected.py.

Only attributes are read, of the kinds that the releases have; nothing is imported, and no communicator is asked for anything collective.
Invariant: what a communicator became is taken from itself (is it there, is it disabled), never concluded from the machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import _core
from .._facts import DTYPES, check_dtype
from .._releases import Release
from .._server.environment import VARIABLES
from .._types import Group, InputError
from .._versions import at_least

if TYPE_CHECKING:
    from .expected import Expected

_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
_DEVICES = {name: i for i, name in enumerate(_core.DEVICES)}


def attribute(owner: Any, path: str, default: Any = None) -> Any:
    """``a.b`` of an object; the default where any of it is missing or None."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
        if owner is None:
            return default
    return owner


def communicator(group: Any, *names: str) -> Any:
    """By the first of the names that releases have given it."""
    return next((found for name in names if (found := getattr(group, name, None)) is not None), None)


def usable(comm: Any) -> bool:
    return comm is not None and not getattr(comm, "disabled", False)


def saves_memory(expected: Expected) -> bool:
    """The memory saver of CUDA graphs is on."""
    if expected.release is None:
        return False
    return any(expected.facts(group).value("memory_saver_graph") for group in expected.groups())


def server_argument(name: str, default: Any = None) -> Any:
    """Of the server's arguments, where this process has published them."""
    for module, function in (
        ("sglang.srt.runtime_context", "get_server_args"),
        ("sglang.srt.server_args", "get_global_server_args"),
    ):
        ask = attribute(sys.modules.get(module), function)
        with contextlib.suppress(Exception):  # not published: each release has its own error for that
            found = None if ask is None else getattr(ask(), name, None)
            if found is not None:
                return found
    old = attribute(sys.modules.get("sglang.srt.managers.schedule_batch"), "global_server_args_dict", {})
    return old.get(name, default)


def group_facts(group: Any, release: Release, captured: bool) -> Group:
    """A group as the model knows one. ``captured``: graph_capture() has entered it."""
    name = str(getattr(group, "unique_name", ""))
    found = Group(name.partition(":")[0] or "group")
    found = _environment(found, release).with_facts(
        "found",
        "the live group",
        world_size=int(group.world_size),
        nodes=_nodes(group),
        consecutive=_consecutive(group),
        captured=captured,
        tp_group=name.startswith("tp:"),
        local_size=int(getattr(group, "local_size", 0) or 0),
        device=_device(group),
        **_arch(group),
    )
    for part in (_custom, _pynccl, _mscclpp, _torch_symm_mem, _pcie_ipc, _flashinfer):
        found = found.with_facts("found", "the live group", **part(group))
    return found


def _environment(group: Group, release: Release) -> Group:
    """As the release reads its variables; text that it would refuse it has refused."""
    for variable in VARIABLES:
        text = os.environ.get(variable.name)
        within = at_least(release.name, variable.since) and not (variable.until and at_least(release.name, variable.until))
        if text is not None and within:
            with contextlib.suppress(ValueError, InputError):
                group = group.with_facts("found", variable.name, **{variable.fact: variable.read(text)})
    return group


def _device(group: Any) -> int:
    torch = sys.modules["torch"]
    kind = str(attribute(group, "device.type", "cuda"))
    if kind == "cuda" and getattr(torch.version, "hip", None):
        kind = "hip"
    return _DEVICES.get(kind, _DEVICES["cuda"])


def _arch(group: Any) -> dict[str, int]:
    torch = sys.modules["torch"]
    if attribute(group, "device.type") != "cuda" or getattr(torch.version, "hip", None):
        return {}
    major, minor = torch.cuda.get_device_capability(group.device)
    return {"arch": 10 * major + minor}


def _nodes(group: Any) -> int:
    nodes = int(server_argument("nnodes", 1) or 1)
    torch = sys.modules["torch"]
    world = torch.distributed.get_world_size() if nodes > 1 else 1
    per_node = max(1, world // nodes)
    return len({rank // per_node for rank in group.ranks}) if nodes > 1 else 1


def _consecutive(group: Any) -> bool:
    ranks = list(group.ranks)
    return ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def _custom(group: Any) -> dict[str, int]:
    comm = getattr(group, "ca_comm", None)
    if comm is None:
        return {"own_custom": 0}
    kind = type(comm).__name__
    facts = {
        "own_custom": 1,
        "custom_v2": int(kind == "CustomAllReduceV2"),
        "has_aiter": int("aiter" in kind.lower()),
        "full_nvlink": int(getattr(comm, "full_nvlink", True)),
        "p2p": 1,
        "has_custom_ops": 1,
        "device_ids_ok": 1,
    }
    if getattr(comm, "tms_cudagraph", False):
        facts["memory_saver_graph"] = 1
    if hasattr(comm, "config") and hasattr(comm.config, "num_mc_blocks"):
        facts["multicast"] = int(comm.config.num_mc_blocks is not None)
    if kind == "CustomAllreduce":  # v0.5.3.post2 gave it another limit where the piecewise graph was on
        facts["piecewise_server"] = int(getattr(comm, "max_size", 0) > 1 << 27)
    return facts


def _pynccl(group: Any) -> dict[str, int]:
    comm = getattr(group, "pynccl_comm", None)
    symmetric = getattr(group, "is_symmetric_memory_enabled", None)
    facts = {"own_pynccl": int(comm is not None), "has_nccl": int(getattr(comm, "available", True))}
    if callable(symmetric):
        with contextlib.suppress(Exception):  # no arguments published: SGLang takes it as off, or says so at its own call
            facts["symm_mem"] = int(bool(symmetric()))
    return facts


def _mscclpp(group: Any) -> dict[str, int]:
    comm = getattr(group, "pymscclpp_comm", None)
    facts = {"own_mscclpp": int(comm is not None), "has_mscclpp": int(bool(getattr(comm, "available", comm is not None)))}
    if isinstance(getattr(comm, "max_bytes", None), int):
        facts["mscclpp_max_bytes"] = comm.max_bytes  # type: ignore[union-attr] # it has the attribute
    return facts


def _torch_symm_mem(group: Any) -> dict[str, int]:
    comm = communicator(group, "torch_symm_mem_comm", "symm_mem_comm")
    facts = {"own_torch_symm_mem": int(comm is not None)}
    return facts | ({"multicast": 1} if usable(comm) else {})


def _pcie_ipc(group: Any) -> dict[str, int]:
    comm = getattr(group, "pcie_ipc_comm", None)
    most = int(getattr(comm, "max_numel", 0) or 0)
    facts = {"own_pcie_ipc": int(comm is not None), "has_flashinfer_pcie": int(usable(comm))}
    return facts | ({"pcie_max_numel": most} if most else {})


def _flashinfer(group: Any) -> dict[str, int]:
    """The workspace that this group was tagged for, if it is there and was made for these ranks."""
    hint, module = getattr(group, "_fi_workspace_hint", None), sys.modules.get(_FUSION)
    manager_of = getattr(module, "_get_workspace_manager", None)
    if hint is None or manager_of is None or getattr(module, "_flashinfer_comm", None) is None:
        return {"fi_workspace": 0}
    manager = manager_of(hint == "attn_tp")
    there = (
        not getattr(module, "_flashinfer_allreduce_unavailable", False)
        and manager.initialized
        and getattr(manager, "workspace", None) is not None
        and manager.world_size == group.world_size
        and manager.group == (group.device_group, group.cpu_group)
    )
    if not there:
        return {"fi_workspace": 0}
    facts = {
        "fi_workspace": 1,
        "fi_max_tokens": int(manager.max_token_num),
        "fi_hidden": int(manager.hidden_dim),
        "fi_backend": int(getattr(manager, "backend", "trtllm") == "mnnvl"),
    }
    with contextlib.suppress(InputError):
        facts["fi_dtype"] = DTYPES[check_dtype(str(manager.dtype))]
    return facts
