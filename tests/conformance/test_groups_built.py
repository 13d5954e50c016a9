"""Which communicators each group of a launch is built with, against SGLang's own initialize_model_parallel and graph_capture.

Both are lifted and run with a recorder in the place of GroupCoordinator. Invariant: the widths that SGLang is given stand beside the
launch line here, and the groups that it makes are compared by name, ranks and flags; a group of ours that it does not make fails.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

import sglang_probe as probe
from sglang_probe._conform import torch_stand_ins as fake
from sglang_probe._conform.dispatch import FILE
from sglang_probe._releases import COMMITS, RELEASES
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree, parse

pytestmark = [pytest.mark.network, pytest.mark.slow]

NEWEST = [name for name in RELEASES if name not in COMMITS][-1]
BUILT = ("0.5.9", "0.5.11", "0.5.12", "0.5.16", "0.5.17", "0.5.20", "0.5.22", NEWEST)
# A launch line's flags, and the widths that they mean: tp, ep, pp, attention's dp.
LINES: dict[str, dict[str, int]] = {
    "--tp 8": {"tp": 8},
    "--tp 4 --pp-size 2": {"tp": 4, "pp": 2},
    "--tp 8 --disable-custom-all-reduce": {"tp": 8},
    "--tp 8 --enable-mscclpp": {"tp": 8},
    "--tp 8 --enable-torch-symm-mem": {"tp": 8},
    "--tp 8 --enable-symm-mem --dp 2 --enable-dp-attention": {"tp": 8, "attn_dp": 2},
    "--tp 8 --dp 2 --enable-dp-attention": {"tp": 8, "attn_dp": 2},
    "--tp 8 --dp 2 --enable-dp-attention --enable-mscclpp --enable-torch-symm-mem": {"tp": 8, "attn_dp": 2},
    "--tp 8 --ep-size 4": {"tp": 8, "ep": 4},
    "--tp 8 --ep-size 4 --enable-mscclpp": {"tp": 8, "ep": 4},
}
_NAMES = {"attention_tp": "attn_tp"}
_WIDTHS = "srt/runtime_context.py"


class Group:
    """What GroupCoordinator was asked for; its rank is 0."""

    made: dict[str, Group] = {}
    entered: list[str] = []

    def __init__(self, group_ranks: list[list[int]], group_name: str, **flags: Any) -> None:
        self.name, self.flags = _NAMES.get(group_name, group_name), flags
        self.ranks = next(ranks for ranks in group_ranks if 0 in ranks)
        self.pynccl_comm, self.rank_in_group, self.world_size = None, 0, len(self.ranks)
        Group.made[self.name] = self

    @contextlib.contextmanager
    def graph_capture(self, *_: object, **__: object) -> Iterator[None]:
        Group.entered.append(self.name)
        yield


def own(group: Group) -> dict[str, int]:
    flags = group.flags
    return {
        "own_custom": int(flags["use_custom_allreduce"]),
        "own_pynccl": int(flags["use_pynccl"]),
        "own_mscclpp": int(flags.get("use_pymscclpp", flags.get("use_mscclpp"))),
        "own_torch_symm_mem": int(flags["use_torch_symm_mem_all_reduce"]),
    }


def build(tree: Tree, line: str, widths: Mapping[str, int]) -> dict[str, Group]:
    """SGLang's own groups of rank 0, by name; a group that is the tensor-parallel one stands there under its own name too."""
    tp, pp = widths["tp"], widths.get("pp", 1)
    torch = fake.torch(world_size=tp * pp)
    torch.distributed.get_world_size = lambda group=None: tp * pp
    parallel = {
        "tp_size": tp,
        "pp_size": pp,
        "moe_ep_size": widths.get("ep", 1),
        "attn_dp_size": widths.get("attn_dp", 1),
        "attn_cp_size": 1,
        "moe_dp_size": 1,
        "attn_dcp_size": 1,
        "shared_experts_tp_size": None,
    }
    published = SimpleNamespace(**parallel)
    published.override_permanently = lambda **values: vars(published).update(values)
    module = parse(tree.source(FILE), tree.filename(FILE))
    unset = [
        n.target.id
        for n in module.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id[0] == "_"
    ]
    unset += [n.id for n in ast.walk(module) if isinstance(n, ast.Name) and n.id.isupper() and n.id[0] == "_"]
    off = SimpleNamespace(get=lambda: False)
    platform = SimpleNamespace(is_out_of_tree=lambda: False)
    names = {
        **dict.fromkeys(unset),
        "torch": torch,
        "contextmanager": contextlib.contextmanager,
        "GroupCoordinator": Group,
        "logger": fake.logger(),
        "get_world_group": lambda: SimpleNamespace(local_rank=0, device_group=None),
        "get_bool_env_var": lambda *_: False,
        "envs": SimpleNamespace(SGLANG_USE_MESSAGE_QUEUE_BROADCASTER=off),
        "SYNC_TOKEN_IDS_ACROSS_TP": False,
        "get_parallel": lambda: published,
        "platforms": SimpleNamespace(current_platform=platform),
        "current_platform": platform,
        "is_hip": lambda: False,
        "is_cuda": lambda: True,
        "_is_npu": False,
        "_is_xpu": False,
        "_is_hip": False,
        "_is_cuda": True,
    }
    lifted = tree.lift(
        FILE, ["initialize_model_parallel", "init_model_parallel_group", "graph_capture"], names, ["get_tp_group", "get_pp_group"]
    )
    scope = lifted["initialize_model_parallel"].__globals__
    scope |= {
        "_ENABLE_CUSTOM_ALL_REDUCE": "--disable-custom-all-reduce" not in line,
        "_ENABLE_MSCCLPP_ALL_REDUCE": "--enable-mscclpp" in line,
        "_ENABLE_MSCCLPP": "--enable-mscclpp" in line,
        "_ENABLE_TORCH_SYMM_MEM_ALL_REDUCE": "--enable-torch-symm-mem" in line,
    }
    if tree.exists(_WIDTHS):
        widths_of = [
            n.name for n in parse(tree.source(_WIDTHS)).body if isinstance(n, ast.FunctionDef) and n.name.startswith("derive_")
        ]
        scope |= tree.lift(_WIDTHS, widths_of, {}) if widths_of else {}
    Group.made, Group.entered = {}, []
    initialize = lifted["initialize_model_parallel"]
    takes = initialize.__code__.co_varnames[: initialize.__code__.co_argcount]
    asked = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "expert_model_parallel_size": parallel["moe_ep_size"],
        "attention_data_parallel_size": parallel["attn_dp_size"],
        "enable_symm_mem": "--enable-symm-mem" in line,
        "backend": "nccl",
    }
    initialize(**{name: value for name, value in asked.items() if name in takes})
    with lifted["graph_capture"]():
        pass
    made = dict(Group.made)
    for name, variable in (("attn_tp", "_ATTN_TP"), ("moe_ep", "_MOE_EP"), ("moe_tp", "_MOE_TP"), ("pp", "_PP")):
        if scope.get(variable) is not None:
            made[name] = scope[variable]
    return made


@pytest.mark.parametrize("release", BUILT)
@pytest.mark.parametrize("line", LINES)
def test_a_group_of_a_launch_owns_what_sglangs_own_constructor_is_asked_for(line: str, release: str) -> None:
    made = build(Tree(_fetch.fetch(release)), line, LINES[line])
    server = probe.read_launch(f"python -m sglang.launch_server --model-path Qwen/Qwen3-8B {line}", sglang=release, gpu="h200")
    compared = 0
    for name, group in server.groups.items():
        if group.world_size == 1:
            continue
        theirs = made[name]
        facts = {fact: group.value(fact) for fact in own(theirs)}
        assert (group.world_size, facts) == (len(theirs.ranks), own(theirs)), f"{name}: {theirs.ranks} {theirs.flags}"
        assert group.value("consecutive") == (theirs.ranks == list(range(len(theirs.ranks)))), name
        assert group.value("captured") == (theirs.name in Group.entered), f"{name}: graph_capture() enters {Group.entered}"
        compared += 1
    assert compared
