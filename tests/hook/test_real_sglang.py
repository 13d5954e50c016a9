"""The hook over SGLang's released code: its operators, its GroupCoordinator and communicators, on CPU ranks over gloo (scenes.py).

Invariant: what is SGLang's is imported and never rewritten; which modules of it were is printed, and asserted. What must be right is also
seen by somebody else: sums are numbers, paths are seen by the interpreter's profile hook, graphs by Dynamo.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hook.releases import RELEASES, needed, together

pytestmark = [needed, pytest.mark.network, pytest.mark.slow]

Scenes = dict[str, Any]
# What of each release the hook is about, by the beginnings of names after `sglang.srt.`.
SUBJECT = (
    "distributed",
    "plugins",
    "utils.custom_op",
    "layers.flashinfer_comm_fusion",
    "compilation.piecewise_context",
    "compilation.compile_phase",
)
SUBJECT += ("model_executor.runner_backend_utils",)
COMMON = """
    distributed distributed.communication_op distributed.parallel_state distributed.utils utils.custom_op layers.flashinfer_comm_fusion
    distributed.device_communicators distributed.device_communicators.all_reduce_utils distributed.device_communicators.cuda_wrapper
    distributed.device_communicators.custom_all_reduce distributed.device_communicators.custom_all_reduce_ops
    distributed.device_communicators.custom_all_reduce_utils distributed.device_communicators.hpu_communicator
    distributed.device_communicators.pymscclpp distributed.device_communicators.pynccl distributed.device_communicators.pynccl_allocator
    distributed.device_communicators.pynccl_wrapper distributed.device_communicators.shm_broadcast
    distributed.device_communicators.torch_symm_mem distributed.device_communicators.xpu_communicator
""".split()
IMPORTED = {
    "0.5.9": "compilation.piecewise_context_manager distributed.device_communicators.npu_communicator".split(),
    "0.5.11": """compilation.piecewise_context_manager distributed.device_communicators.npu_communicator
        distributed.device_communicators.custom_all_reduce_v2""".split(),
    "0.5.23": """compilation.compile_phase distributed.device_communicators.configs plugins plugins.hook_registry
        distributed.device_communicators.configs.custom_all_reduce_v2 distributed.device_communicators.custom_all_reduce_v2
        distributed.device_communicators.mooncake_transfer_engine distributed.device_communicators.pcie_ipc_ar
        distributed.naive_distributed model_executor.runner_backend_utils.breakable_cuda_graph
        model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph
        model_executor.runner_backend_utils.breakable_cuda_graph.context model_executor.runner_backend_utils.breakable_cuda_graph.cuda_utils
        model_executor.runner_backend_utils model_executor.runner_backend_utils.tc_piecewise_cuda_graph
        model_executor.runner_backend_utils.tc_piecewise_cuda_graph.context_manager""".split(),
}
PICKERS = {"0.5.9": set(), "0.5.11": {"_determine_algo"}, "0.5.23": {"_pick_config", "_eager_plan"}}


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ranks(release: str, tmp_path_factory: pytest.TempPathFactory) -> list[Scenes]:
    """All scenes of both ranks."""
    folder = tmp_path_factory.mktemp(f"sglang-{release}")
    (folder / "rings").mkdir(mode=0o700)
    return [json.loads(file.read_text()) for file in together("scenes.py", release, folder)]


def of(ranks: list[Scenes], scene: str) -> list[Any]:
    found = [rank[scene] for rank in ranks]
    for one in found:
        assert not (isinstance(one, dict) and "error" in one), one["error"]
    return found


def test_the_code_under_test_is_sglangs_own(ranks: list[Scenes], release: str) -> None:
    for said in of(ranks, "modules"):
        names = [name.removeprefix("sglang.srt.") for name in said["names"]]
        mine = sorted(name for name in names if name.startswith(SUBJECT))
        print(f"sglang {said['version']}: {len(names)} modules imported, of the hook's subject: {' '.join(mine)}")
        assert said["version"] == release
        assert mine == sorted(COMMON + IMPORTED[release])
        assert said["elsewhere"] == [] and said["stubs"] == ["torchvision"]


def test_what_the_release_has_is_wrapped_and_nothing_is_missing(ranks: list[Scenes], release: str) -> None:
    for said in of(ranks, "wrapped"):
        names = {name.rsplit(".", 2)[-2] + "." + name.rsplit(".", 1)[-1] for name in said["done"]}
        assert said["findings"] == []
        assert {
            "GroupCoordinator._all_reduce_in_place",
            "GroupCoordinator._all_reduce_out_place",
            "PyNcclCommunicator.all_reduce",
        } <= names
        assert "flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm" in names
        assert {name.split(".")[1] for name in names if name.startswith("CustomAllReduceV2._")} == PICKERS[release]


def test_sums_are_right_and_calls_through_the_operator_and_past_it_are_recorded(ranks: list[Scenes]) -> None:
    for said in of(ranks, "sums"):
        assert said["right"]
        through, direct = said["records"]
        assert (through["nbytes"], direct["nbytes"]) == (4 * 64 * 4, 8 * 4)
        for record in (through, direct):
            assert record["group"] == said["group"] and record["entry"] == "in_place"
            assert record["path"] == record["expected"] == "torch_distributed" and record["flags"] == []


def test_every_call_took_the_path_that_was_expected_and_that_the_interpreter_saw(ranks: list[Scenes], release: str) -> None:
    for found in of(ranks, "routes"):
        phases = {row["asked"] for row in found}
        assert {"eager", "in place", "warmup", "captured", "piecewise", "piecewise captured"} <= phases
        assert ("auto" in phases) == (release == "0.5.23")
        assert {row["custom"] for row in found} == {"none", "v1"} | ({"v2"} if release != "0.5.9" else set())
        assert len(found) >= 216
        wrong = [row for row in found if not row["seen"] == row["path"] == row["expected"]]
        assert not wrong, wrong[:3]
        assert len({row["path"] for row in found}) == 4  # custom, pynccl in place and out of place, torch.distributed


def test_v2s_kernel_is_the_one_that_it_chose(ranks: list[Scenes], release: str) -> None:
    for found in of(ranks, "routes"):
        chosen = {(row["chosen"], row["kernel"]) for row in found if row["custom"] == "v2" and row["path"] == "custom"}
        assert all(seen == recorded != "" for seen, recorded in chosen)
        assert bool(chosen) == (release != "0.5.9")


def test_a_warm_up_of_v1_is_dry_and_a_direct_call_is_known_for_one(ranks: list[Scenes]) -> None:
    for found in of(ranks, "routes"):
        for row in found:
            dry = row["custom"] == "v1" and row["asked"] == "warmup" and row["path"] == "custom"
            assert ("dry" in row["flags"]) == dry, row
            assert "alarm" not in row["flags"]
        direct = [row for row in found if "direct" in row["flags"]]
        assert direct and {row["asked"] for row in direct} <= {"in place", "auto"}


def test_a_phase_and_its_graph_are_what_surrounds_the_call(ranks: list[Scenes]) -> None:
    words = {"eager": "eager", "in place": "eager", "auto": "eager", "warmup": "warmup", "captured": "captured"}
    words |= {"piecewise": "piecewise", "piecewise captured": "captured"}
    for found in of(ranks, "routes"):
        assert all(row["phase"] == words[row["asked"]] and bool(row["graph"]) == ("captured" in row["asked"]) for row in found)


def test_ncclss_symmetric_memory_is_a_record_of_its_own(ranks: list[Scenes]) -> None:
    for (record,) in of(ranks, "bypass"):
        assert (record["entry"], record["path"], record["expected"]) == ("symm_mem_bypass", "pynccl_in_place", "pynccl_in_place")
        assert record["group"].startswith("tp:")


def test_a_fused_operator_that_reduces_nothing_is_told(ranks: list[Scenes]) -> None:
    for said in of(ranks, "fused"):
        assert said["nothing"]
        assert [(r["entry"], r["path"], "nothing" in r["flags"], r["rows"]) for r in said["records"]] == [
            ("fused", "", True, 4)
        ] * 2
        (text,) = said["told"]
        assert "chosen and reduced nothing in 2 of 2 calls" in text
        assert {record["group"] for record in said["records"]} == {"fused"}  # no server has made its groups


def test_a_fused_call_belongs_to_the_group_that_sglangs_own_workspace_is_for(ranks: list[Scenes], release: str) -> None:
    for said in of(ranks, "fused"):
        attention, experts = said["groups"]
        assert said["chooses"] == (release != "0.5.9")
        both = [attention, experts, experts, attention, experts] if said["chooses"] else [attention] * 4
        assert said["reducing"] == both and attention != experts


def test_a_full_graph_compiles_and_runs_the_same_with_the_hook(ranks: list[Scenes]) -> None:
    for with_hook, without in of(ranks, "compiled"):
        assert with_hook["entries"] == ["in_place", "fused"]
        for one in (with_hook, without):
            assert one["value"] == 5.0 and one["count"] == 2
            (graph,) = one["graphs"]
            assert {"sglang.inplace_all_reduce", "sglang.flashinfer_allreduce_residual_rmsnorm"} <= set(graph)
        assert with_hook["graphs"] == without["graphs"]


def test_dynamo_goes_through_all_reduce_and_meets_no_wrapper(ranks: list[Scenes], release: str) -> None:
    for answers in of(ranks, "traced"):
        assert len(answers) == 6
        for (kind, _, shape, ops), without in zip(answers[::2], answers[1::2], strict=True):
            assert [kind, False, shape, ops] == without and shape == [4, 64]
            assert len(ops) == 1 and ops[0] in ("sglang.inplace_all_reduce", "sglang.outplace_all_reduce")
        assert answers[2][3] == ["sglang.outplace_all_reduce"]  # with v1


def test_where_the_graph_breaks_without_the_hook_it_breaks_as_often_with_it(ranks: list[Scenes]) -> None:
    for with_hook, without in of(ranks, "broken"):
        assert with_hook == without and with_hook[0] == 2.0


def test_captured_calls_replays_and_registered_addresses_are_counted_by_graph(ranks: list[Scenes], release: str) -> None:
    replays = 5 + (2 if release == "0.5.23" else 0)  # which can launch deduplicated graphs itself
    for said in of(ranks, "graphs"):
        first, second = said["graphs"]
        assert first == {"state": 2, "captured": 3, "replays": replays, "registered": 1 + 3}
        assert second == {"state": 2, "captured": 3, "replays": 0, "registered": 1 + 0}
        assert said["last"] == 0 and not [text for text in said["before"] if "captured" in text]
        (text,) = said["told"]
        assert "captured in 3 calls of 1 graphs, and 0 addresses were registered" in text


def test_a_flag_without_effect_is_told_with_the_constructors_own_words(ranks: list[Scenes]) -> None:
    for said in of(ranks, "promised"):
        assert not said["there"]
        (text,) = said["told"]
        assert "custom all-reduce is on by flag; 0 of 1,001 calls took it" in text and "Setup Custom allreduce failed" in text


def test_another_path_than_the_releases_rules_say_is_an_alarm_once(ranks: list[Scenes]) -> None:
    for said in of(ranks, "differs"):
        (text,) = said["told"]
        assert said["again"] == said["told"]
        assert (
            "in_place ran torch_distributed, and custom was expected: 3 calls so far, for instance 512 bytes bf16, eager" in text
        )


def test_what_is_expected_follows_communicators_that_are_switched_on_and_off(ranks: list[Scenes]) -> None:
    for said in of(ranks, "toggled"):
        through, direct = said["rows"][::2], said["rows"][1::2]
        assert len(said["states"]) == len(through) == len(direct) == 12
        for (custom, pynccl), one, past in zip(said["states"], through, direct, strict=True):
            in_place = "pynccl_in_place" if pynccl else "torch_distributed"
            assert one["path"] == one["expected"] == ("custom" if custom else in_place), (custom, pynccl, one)
            assert past["path"] == past["expected"] == in_place, (custom, pynccl, past)
            assert "alarm" not in one["flags"] + past["flags"]
        assert said["told"] == [] and said["asked"] <= 4 * 3  # each state once, and once more for a direct call
        alarm, switched = said["patched"]
        assert (alarm["path"], alarm["expected"], "alarm" in alarm["flags"]) == ("torch_distributed", "custom", True)
        assert (switched["path"], switched["expected"], "alarm" in switched["flags"]) == ("torch_distributed",) * 2 + (False,)


def test_the_kernel_that_nobody_sees_is_the_one_that_the_rules_pick(ranks: list[Scenes]) -> None:
    for found in of(ranks, "routes"):
        for row in found:
            derived = row["custom"] == "v1" and row["path"] == "custom" and "dry" not in row["flags"]
            assert ("derived" in row["flags"]) == derived, row
            assert not derived or row["kernel"] == "one_shot"  # of two ranks
        assert any("derived" in row["flags"] for row in found)


def test_nothing_of_ours_failed_inside_of_sglangs_calls(ranks: list[Scenes]) -> None:
    for said in of(ranks, "counts"):
        assert said["findings"] == [] and said["failures"] and set(said["failures"]) == {0}


def test_install_is_idempotent_and_uninstall_gives_everything_back(ranks: list[Scenes]) -> None:
    for said in of(ranks, "again"):
        assert said["paths"] == 1
        assert said["left"] == []
        changed = " ".join(said["changed"])
        assert (
            "_all_reduce_in_place" in changed
            and "flashinfer_allreduce_residual_rmsnorm code" in changed
            and "CUDAGraph.replay" in changed
        )


def test_a_worker_without_room_for_the_ring_or_with_an_unknown_sglang_serves_on(ranks: list[Scenes]) -> None:
    for said in of(ranks, "aside"):
        for name, one in said.items():
            assert one["sum"] == 3.0, name
            (text,) = one["told"]
            assert one["began"] == (name == "unknown release")
            assert ("stands aside" in text) != one["began"], text
        assert said["unknown release"]["expected"] == [""]
        assert "99.0" in said["unknown release"]["told"][0] and "0.5.23" in said["unknown release"]["told"][0]
        assert "ulimit" in said["full disk"]["told"][0] and "SGLANG_PROBE_DIR" in said["no folder"]["told"][0]
