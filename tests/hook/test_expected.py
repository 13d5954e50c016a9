"""Facts read off a live group, and the answer that they give, over objects with the attributes of SGLang's communicators.

Invariant: the answer is the router's own for the same facts; what the group does not say is not made up.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sglang_probe import Call, Group, _core, resolve, route
from sglang_probe._facts import DTYPES
from sglang_probe._route import context_bits
from sglang_probe.hook.expected import Expected, switches
from sglang_probe.hook.facts import group_facts, server_argument
from sglang_probe.hook.wrapping import PATHS

NAMES = [name for name, _ in _core.PATHS]
LAYOUT = 1 | 2 | 4 | 2 << 5  # contiguous, dense, aligned, two dimensions


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As much of it as the facts read: a Hopper GPU in a world of 8."""
    made = SimpleNamespace(
        version=SimpleNamespace(hip=None, cuda="13.0"),
        cuda=SimpleNamespace(get_device_capability=lambda *_: (9, 0)),
        distributed=SimpleNamespace(get_world_size=lambda: 8),
    )
    monkeypatch.setitem(sys.modules, "torch", made)  # type: ignore[arg-type]
    for name in list(sys.modules):
        if name.split(".")[0] == "sglang":
            monkeypatch.delitem(sys.modules, name)
    for name in ("SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB", "LOCAL_SIZE", "SGLANG_USE_1STAGE_ALLREDUCE"):
        monkeypatch.delenv(name, raising=False)
    return made


class Live(SimpleNamespace):
    """With room for a weak reference."""


def live(**more: Any) -> Any:
    attributes = {
        "unique_name": "tp:0",
        "world_size": 8,
        "ranks": list(range(8)),
        "local_size": 0,
        "device": SimpleNamespace(type="cuda", index=0),
        "ca_comm": None,
        "pynccl_comm": SimpleNamespace(available=True, disabled=True),
        "is_symmetric_memory_enabled": lambda: False,
        "device_group": "device",
        "cpu_group": "cpu",
    }
    return Live(**{**attributes, **more})


def comm(kind: str, **attributes: Any) -> Any:
    return type(kind, (), {"disabled": False, **attributes})()


def answer(
    release: str, group: Any, nbytes: int, entry: str = "out_place", context: str = "", direct: bool = False, **more: Any
) -> str:
    expected = Expected(resolve(release))
    expected.add(group)
    if "in_graph_capture" in context:
        expected.captured(group.unique_name)
    bits = context_bits(context) if context else 0
    asked = {"dtype": DTYPES["bf16"], "rows": 1, "columns": nbytes // 2, "layout": LAYOUT, "owner": group, **more}
    found = expected(
        group.unique_name,
        entry,
        asked["dtype"],
        nbytes,
        asked["rows"],
        asked["columns"],
        asked["layout"],
        bits,
        direct,
        asked["owner"],
    )
    return "" if found is None else NAMES[found[0]]


V1 = comm("CustomAllreduce", full_nvlink=True, max_size=8 << 20, tms_cudagraph=False)
V2 = comm("CustomAllReduceV2", override_algo=None, config=SimpleNamespace(num_mc_blocks=16), max_size=16 << 20)
CASES = [
    ("0.5.9", {"ca_comm": V1}, 1 << 20, "", {"custom_v2": 0}),
    ("0.5.9", {"ca_comm": V1}, 16 << 20, "", {"custom_v2": 0}),
    ("0.5.9", {"ca_comm": None}, 1 << 20, "in_graph_capture+stream_capturing", {"own_custom": 0}),
    ("0.5.9", {"ca_comm": None}, 1 << 20, "piecewise", {"own_custom": 0}),
    ("0.5.16", {"ca_comm": V2}, 300 << 10, "", {"custom_v2": 1}),
    ("0.5.23", {"ca_comm": V2}, 32 << 20, "in_graph_capture", {"custom_v2": 1}),
    ("0.5.9", {"is_symmetric_memory_enabled": lambda: True}, 1 << 20, "", {"own_custom": 0, "symm_mem": 1}),
    ("0.5.14", {"pymscclpp_comm": comm("PyMscclppCommunicator", available=True, disabled=True)}, 1 << 15,
     "in_graph_capture+stream_capturing", {"own_custom": 0, "own_mscclpp": 1, "has_mscclpp": 1}),
    ("0.5.9", {"torch_symm_mem_comm": comm("TorchSymmMemCommunicator")}, 1 << 20, "", {"own_custom": 0, "own_torch_symm_mem": 1}),
    ("0.5.4", {"symm_mem_comm": comm("SymmMemCommunicator")}, 1 << 20, "", {"own_custom": 0, "own_torch_symm_mem": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("release", "attributes", "nbytes", "context", "facts"), CASES)
def test_the_answer_is_the_routers_for_what_the_group_is(
    release: str, attributes: dict[str, Any], nbytes: int, context: str, facts: dict[str, int]
) -> None:
    given = Group.make(world_size=8, arch=90, full_nvlink=1, multicast=1, captured="in_graph_capture" in context, **facts)
    wanted = route(Call(nbytes, hidden=nbytes // 2), given, context=context or "eager", sglang=release)
    entry = "in_place" if wanted.op == "in_place" else "out_place"
    assert answer(release, live(**attributes), nbytes, entry, context) == wanted.path


def test_a_communicator_that_is_disabled_now_is_not_expected() -> None:
    disabled = comm("CustomAllreduce", disabled=True, full_nvlink=True, max_size=8 << 20)
    assert answer("0.5.9", live(ca_comm=disabled), 1 << 20) == "torch_distributed"
    assert switches(live(ca_comm=disabled))[0] and not switches(live(ca_comm=V1))[0]


def test_what_is_switched_off_is_what_the_calls_context_says_and_not_what_is_so_later() -> None:
    group, expected = live(ca_comm=V1), Expected(resolve("0.5.9"))
    expected.add(group)
    sources = list(expected.switches())
    bits = {name.partition(".")[0]: bit for bit, where, name, when in sources}
    assert [(name, when) for _, _, name, when in sources] == [("ca_comm.disabled", 0), ("pynccl_comm.disabled", 0)]
    assert expected.watched == bits["ca_comm"] | bits["pynccl_comm"] and not expected.watched & 0xFFFF

    def path(context: int, entry: str = "out_place", direct: bool = False) -> str:
        found = expected("tp:0", entry, DTYPES["bf16"], 1 << 20, 1, 1 << 19, LAYOUT, context, direct, group)
        return NAMES[found[0]] if found else ""

    for disabled in (True, False):  # whatever they are when the question comes
        group.pynccl_comm.disabled = disabled
        assert path(bits["pynccl_comm"]) == path(0) == "custom"
        assert path(bits["ca_comm"] | bits["pynccl_comm"]) == "torch_distributed"
        assert path(bits["ca_comm"]) == "pynccl_in_place"
        assert path(bits["pynccl_comm"], "in_place", True) == "torch_distributed"
        assert path(0, "in_place", True) == "pynccl_in_place"
    another = live(unique_name="pp:0", qr_comm=comm("QuickAllReduce"))
    expected.add(another)
    assert [name for _, _, name, _ in expected.switches()] == ["ca_comm.disabled", "qr_comm.disabled", "pynccl_comm.disabled"]


def test_the_kernel_is_the_routers_and_a_dry_one_is_none() -> None:
    group, expected = live(ca_comm=V1), Expected(resolve("0.5.9"))
    expected.add(group)

    def kernel(nbytes: int, context: str = "", entry: str = "out_place") -> str:
        bits = context_bits(context) if context else 0
        found = expected("tp:0", entry, DTYPES["bf16"], nbytes, 1, nbytes // 2, LAYOUT, bits, False, None)
        return found[1] if found else "?"

    assert [kernel(nbytes) for nbytes in (1024, (256 << 10) - 16, 256 << 10, 4 << 20)] == ["one_shot"] * 2 + ["two_shot"] * 2
    expected.captured("tp:0")
    assert kernel(1024, "in_graph_capture") == kernel(64 << 20, entry="in_place") == kernel(1024, entry="fused") == ""


def test_pynccl_that_stays_enabled_is_expected_eagerly() -> None:
    enabled = SimpleNamespace(available=True, disabled=False)
    assert answer("0.5.9", live(pynccl_comm=enabled), 1 << 20, "in_place") == "pynccl_in_place"


def test_a_direct_call_of_the_in_place_operator_knows_no_other_communicator() -> None:
    group = live(ca_comm=V1)
    assert answer("0.5.9", group, 1 << 10, "in_place") == "custom"
    assert answer("0.5.9", group, 1 << 10, "in_place", direct=True) == "torch_distributed"
    group.pynccl_comm.disabled = False
    assert answer("0.5.9", group, 1 << 10, "in_place", direct=True) == "pynccl_in_place"


def test_auto_never_ends_in_place() -> None:
    assert answer("0.5.16", live(), 1 << 20, "out_place") == "torch_distributed"
    assert answer("0.5.16", live(), 1 << 20, "out_place", direct=True) == "pynccl_out_of_place"
    assert answer("0.5.16", live(pynccl_comm=None), 1 << 20, "out_place", direct=True) == "torch_distributed"


def test_a_fused_call_was_chosen_for_flashinfer() -> None:
    assert answer("0.5.9", live(), 1 << 10, "fused", owner=object()) == "flashinfer"


def test_flashinfers_workspace_is_read_where_it_is_and_only_if_it_is_this_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SimpleNamespace(
        initialized=True, workspace=object(), world_size=8, group=("device", "cpu"), max_token_num=2048, hidden_dim=7168,
        dtype="torch.bfloat16", backend="trtllm",
    )  # fmt: skip
    module = ModuleType("sglang.srt.layers.flashinfer_comm_fusion")
    vars(module).update(
        _get_workspace_manager=lambda attention: manager, _flashinfer_comm=object(), _flashinfer_allreduce_unavailable=False
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    group, size = live(_fi_workspace_hint="attn_tp"), 4 * 7168 * 2
    assert answer("0.5.18", group, size, "flashinfer", rows=4, columns=7168) == "flashinfer"
    assert answer("0.5.18", live(_fi_workspace_hint=None), size, "in_place", rows=4, columns=7168) == "torch_distributed"
    manager.group = ("other", "cpu")
    assert answer("0.5.18", group, size, "in_place", rows=4, columns=7168) == "torch_distributed"
    manager.group, module._flashinfer_allreduce_unavailable = ("device", "cpu"), True  # type: ignore[attr-defined]
    assert answer("0.5.18", group, size, "in_place", rows=4, columns=7168) == "torch_distributed"


def test_what_is_not_known_is_not_answered() -> None:
    nobody = Expected(None)
    assert nobody("tp:0", "in_place", 0, 1024, 1, 512, LAYOUT, 0, False, live()) is None
    assert answer("0.5.9", live(), 1 << 10, dtype=255) == ""
    assert answer("0.5.9", live(), 0) == ""
    group = live()
    expected = Expected(resolve("0.5.9"))
    assert expected("", "symm_mem_bypass", 0, 1024, 1, 512, LAYOUT, 0, False, SimpleNamespace()) is None
    assert expected("tp:0", "in_place", 0, 1024, 1, 512, LAYOUT, 0, False, group) == (
        PATHS["torch_distributed"],
        "",
    )  # its owner is one


def test_facts_are_read_anew_when_something_has_changed() -> None:
    group, expected = live(ca_comm=V1), Expected(resolve("0.5.9"))
    expected.add(group)
    ask = ("tp:0", "out_place", 0, 1 << 20, 1, 1 << 19, LAYOUT, 0, False, group)
    assert expected(*ask) == (PATHS["custom"], "two_shot")
    group.ca_comm = None
    assert expected(*ask) == (PATHS["custom"], "two_shot")
    expected.forget()
    assert expected(*ask) == (PATHS["torch_distributed"], "")


def test_the_environment_counts_only_in_releases_that_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB", "64")
    assert group_facts(live(), resolve("0.5.16"), False).value("v2_max_kb") == 64
    assert group_facts(live(), resolve("0.5.15"), False).value("v2_max_kb") == 16384
    monkeypatch.setenv("SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB", "nonsense")
    assert group_facts(live(), resolve("0.5.16"), False).value("v2_max_kb") == 16384


def test_nodes_are_counted_from_the_servers_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sglang.srt.server_args")
    module.get_global_server_args = lambda: SimpleNamespace(nnodes=2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert server_argument("nnodes") == 2 and server_argument("nothing", 5) == 5
    assert group_facts(live(), resolve("0.5.9"), False).value("nodes") == 2
    assert group_facts(live(ranks=[0, 1], world_size=2), resolve("0.5.9"), False).value("nodes") == 1


def test_a_release_before_published_arguments_has_its_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sglang.srt.managers.schedule_batch")
    module.global_server_args_dict = {"enable_x": True}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert server_argument("enable_x") is True and server_argument("other") is None
