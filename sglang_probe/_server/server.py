"""From arguments, wherever they come from, to a Server: defaults, rules, graphs, fusion, groups. Called by launch.py.

Invariant: every setting has an origin, every implied one a reason, and everything about the machine that nobody said is in ``assumed``.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .. import _core
from .._types import FrozenMap, InputError, Model, Server, Setting
from .defaults import FIELDS, defaults
from .environment import environment_notes
from .groups import assumptions, build_groups
from .hardware import DEFAULT_GPU, Gpu, check_link, find_gpus, gpu_by_name
from .implied import apply_rules, note_environment
from .implied_fusion import resolve_fusion
from .implied_graphs import captured_batches, decode_graph, largest_batch, tokens_of_request
from .implied_prefill import prefill_graph
from .refused import check_devices, check_refused
from .state import State

_LARGEST = {"tp_size": 65536, "pp_size": 65536, "dp_size": 65536, "ep_size": 65536, "nnodes": 65536, "attn_dp_size": 65536}
_COUNTS = (
    "tp_size pp_size dp_size attn_dp_size ep_size attn_cp_size moe_dp_size dcp_size dwdp_size nnodes speculative_num_draft_tokens "
    "speculative_num_steps speculative_eagle_topk max_running_requests cuda_graph_max_bs cuda_graph_max_bs_decode page_size "
    "speculative_ngram_max_bfs_breadth speculative_ngram_max_match_window_size speculative_dflash_block_size"
).split()
_LISTS = ("cuda_graph_bs", "cuda_graph_bs_decode")
_MOST = 1_000_000
_KEPT = {*FIELDS, "model_path"}


@dataclass(frozen=True)
class Machine:
    """What a person says about the machine; None is unsaid, and then assumed."""

    gpu: str | None = None
    link: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    """GPUs of one node."""


@dataclass
class Sources:
    """Arguments on their way in."""

    args: Mapping[str, Any]
    source: str
    origin: Literal["given", "found"] = "given"
    env: Mapping[str, str] = field(default_factory=dict)
    model: str | Model | None = None
    notes: Sequence[str] = ()
    resolved: bool = False


def build_server(sglang: str, sources: Sources, machine: Machine) -> Server:
    """The server that these arguments start, in a release, on such a machine."""
    assumed: list[str] = []
    gpu, link = _machine(machine, assumed)
    args = {name: Setting(value, "default") for name, value in defaults(sglang).items()}
    args |= {name: Setting(value, sources.origin) for name, value in sources.args.items()}
    _check(args)
    state = State(
        sglang=sglang,
        args=args,
        env=dict(sources.env),
        model=_model(sources, assumed),
        gpu=gpu,
        link=link,
        link_known=machine.link is not None or machine.gpu == "auto",
        resolved=sources.resolved,
        assumed=assumed,
        notes=list(sources.notes),
    )
    _check_nodes(state, machine)
    _check_device(state)
    if not state.resolved:
        check_refused(state)
    apply_rules(state)
    note_environment(state)
    state.notes += environment_notes(state)
    _check_shape(state, machine)
    return _assemble(state, sources.source)


def _assemble(state: State, source: str) -> Server:
    captured, why_not = decode_graph(state)
    batches = captured_batches(state) if captured else ()
    prefill, why_prefill = prefill_graph(state)
    fusion = resolve_fusion(state)
    tokens = tokens_of_request(state)
    rows = (largest_batch(state) or 160) * tokens
    groups = build_groups(state, fusion, prefill == "tc_piecewise", rows)
    state.assumed += assumptions(state, groups)
    if not captured:
        state.notes.append(f"decode and verify batches run eagerly: {why_not}")
    state.notes.append(f"prefill graph: {prefill} ({why_prefill})")
    if batches and not state.resolved and state.get("max_running_requests") is None:
        state.assumed.append("captured batches: the memory left for requests is assumed to hold the largest of them")
    if state.get("speculative_adaptive", False):
        state.assumed.append("adaptive speculation changes its steps while it runs: the starting values are shown")
    return Server(
        sglang=state.sglang,
        source=source,
        args=FrozenMap(dict(state.args)),
        env=FrozenMap(dict(state.env)),
        groups=FrozenMap(groups),
        model=state.model,
        decode_graph=captured,
        captured_batches=batches,
        prefill_graph=prefill,
        prefill_reason=why_prefill,
        fusion=fusion,
        draft_tokens=tokens,
        speculative_steps=state.number("speculative_num_steps", 0) if state.algorithm else 0,
        speculative_topk=state.number("speculative_eagle_topk", 0) if state.algorithm else 0,
        speculative_algorithm=state.algorithm or None,
        notes=tuple(state.notes),
        assumed=tuple(state.assumed),
    )


def _machine(machine: Machine, assumed: list[str]) -> tuple[Gpu, str]:
    if machine.gpu == "auto":
        found = find_gpus()
        return found.gpu, found.link if machine.link is None else check_link(machine.link)
    gpu = gpu_by_name(DEFAULT_GPU if machine.gpu is None else machine.gpu)
    if machine.gpu is None:
        assumed.append(f"GPU: {gpu.name} assumed; --gpu says another, --gpu auto looks")
    if machine.link is None:
        assumed.append(f"link: {gpu.link} assumed, the usual one of {gpu.name}")
        return gpu, gpu.link
    link = check_link(machine.link)
    if (link == "xgmi") != (gpu.device == "hip") and link != "pcie":
        raise InputError("link", link, f"{gpu.name} has {gpu.link}; give {gpu.link} or pcie")
    return gpu, link


def _model(sources: Sources, assumed: list[str]) -> Model | None:
    from ..models import load_model

    if sources.model is not None:
        return sources.model if isinstance(sources.model, Model) else load_model(sources.model)
    path = sources.args.get("model_path")
    if not isinstance(path, str) or not path.strip():
        assumed.append("model: not named, so what depends on its architecture is unknown")
        return None
    try:
        return load_model(path)
    except (InputError, RuntimeError):  # RuntimeError: the home of a user that does not exist
        if _on_disk(path):
            raise
        assumed.append(
            f"model: {path} is no preset and not on disk here, so what depends on its architecture is unknown; give its config.json"
        )
        return None


def unknown_model(server: Server) -> InputError:
    """For a question that needs the model's numbers, asked of a server whose model we do not know."""
    from ..models import presets

    setting = server.args.get("model_path")
    path = setting.value if setting is not None else None
    what = "the server names no model" if path is None else "neither a preset nor on disk here"
    names = ", ".join(model.name for model in presets())
    return InputError("model", path, f"{what}: give --model with its config.json (or its folder), or with a preset: {names}")


def _on_disk(path: str) -> bool:
    try:
        return pathlib.Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _check(args: dict[str, Setting]) -> None:
    """Refuse values that no server starts with, before they are counted with."""
    for name in _COUNTS:
        value = args[name].value if name in args else None
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST.get(name, _MOST):
            raise InputError(_flag(name), value, f"give a whole number from 1 to {_LARGEST.get(name, _MOST)}")
    for name in _LISTS:
        _check_batches(_flag(name), args[name].value if name in args else None)
    config = args.get("cuda_graph_config")
    if config is not None and config.value is not None:
        args["cuda_graph_config"] = replace(config, value=_graph_config(config.value))


def _check_batches(name: str, value: Any) -> None:
    if value is None:
        return
    sizes = value if isinstance(value, (list, tuple)) else [value]
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= _MOST for size in sizes):
        raise InputError(name, value, f"give batch sizes from 1 to {_MOST}")


def _graph_config(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError("--cuda-graph-config", value[:60], f"not JSON ({error}); give an object such as {{}}") from None
    phases = ("decode", "prefill")
    if not isinstance(value, dict) or not all(key in phases and isinstance(part, dict) for key, part in value.items()):
        raise InputError("--cuda-graph-config", str(value)[:60], "give an object with decode and prefill, each an object")
    for phase in phases:
        part = value.get(phase, {})
        _check_batches(f"--cuda-graph-config {phase}.bs", part.get("bs"))
        _check_batches(f"--cuda-graph-config {phase}.max_bs", part.get("max_bs"))
    return value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_device(state: State) -> None:
    if state.device not in _core.DEVICES:
        raise InputError("--device", state.device, f"give one of {', '.join(_core.DEVICES)}")
    if state.device != state.gpu.device:
        state.notes.append(f"--device {state.device}: its dispatch is modelled, its graphs and communicators are not")


def _check_nodes(state: State, machine: Machine) -> None:
    if machine.nodes is None:
        return
    if isinstance(machine.nodes, bool) or not isinstance(machine.nodes, int) or not 1 <= machine.nodes <= 65536:
        raise InputError("nodes", machine.nodes, "give the number of nodes, from 1")
    if state.given("nnodes") and state.number("nnodes") != machine.nodes:
        raise InputError("nodes", machine.nodes, f"the server says --nnodes {state.number('nnodes')}; give one of the two")
    state.args["nnodes"] = Setting(machine.nodes, "given", "--nodes")


def _check_shape(state: State, machine: Machine) -> None:
    tp, attention = state.number("tp_size"), state.attn_dp_size * state.number("attn_cp_size")
    if tp % attention:
        raise InputError("--tp-size", tp, f"not divisible by the {attention} attention groups; SGLang refuses it too")
    if tp % (state.number("ep_size") * state.number("moe_dp_size")):
        raise InputError("--ep-size", state.number("ep_size"), f"does not divide --tp-size {tp}; SGLang refuses it too")
    replicas = 1 if state.attn_dp_size > 1 and not state.within("0.5.22") else state.number("dp_size")
    per_node = -(-tp * state.number("pp_size") * replicas // state.number("nnodes"))
    check_devices(state, per_node)
    if machine.gpus is None:
        return
    if isinstance(machine.gpus, bool) or not isinstance(machine.gpus, int) or machine.gpus < 1:
        raise InputError("gpus", machine.gpus, "give the GPUs of one node, from 1")
    if machine.gpus < per_node:
        raise InputError("gpus", machine.gpus, f"this server takes {per_node} GPUs a node; give as many, or more --nodes")


def kept(args: Mapping[str, Any]) -> dict[str, Any]:
    """Of the hundreds of arguments that a server prints, those that we read."""
    return {name: value for name, value in args.items() if name in _KEPT}
