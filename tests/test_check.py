"""check: traces that agree, and each way to differ, whoever wrote them; what cannot be told, and what is said without a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from check_cases import DEEPSEEK, FUSED, H200, LLAMA, recorded, run
from trace_files import NAMES, Recording, write_chrome, write_nsys

from sglang_probe._trace.check import check
from sglang_probe._trace.types import Seen
from sglang_probe._types import InputError

Writer = Callable[[Path, Recording], Path]


def _chrome(path: Path, recording: Recording) -> Path:
    return recording.chrome(path / "a.trace.json")


def _gzip(path: Path, recording: Recording) -> Path:
    return recording.chrome(path / "a.trace.json.gz")


def _nsys_2023(path: Path, recording: Recording) -> Path:
    return write_nsys(path / "a.sqlite", [recording], "2023")


def _nsys_2025(path: Path, recording: Recording) -> Path:
    return write_nsys(path / "b.sqlite", [recording], "2025")


@pytest.fixture(params=[_chrome, _gzip, _nsys_2023, _nsys_2025], ids=["JSON", "gzip", "nsys 2023", "nsys 2025"])
def write(request: pytest.FixtureRequest) -> Writer:
    writer: Writer = request.param
    return writer


# ------------------------------------------------------------------------------------------------------------------ agree and differ


def test_a_server_that_does_as_its_launch_line_says_agrees(tmp_path: Path, write: Writer) -> None:
    found = run(write(tmp_path, recorded(FUSED)), launch=DEEPSEEK, **H200)
    assert found.word is Seen.AGREES and found.agrees and found.status == 0
    assert found.sentence == "AGREES: 121 fused + 2 custom a step, as expected, in 4 steps of 1 rank"
    (rank,) = found.ranks
    assert (rank.steps, rank.calls, rank.replayed, rank.gathers, rank.outside) == (4, 4 * 123, 4 * 123, 4, 0)
    assert rank.found_by == "replays of graphs" and rank.graph_launches == 4


def test_a_server_that_fell_back_to_nccl_is_told_with_the_first_call_that_differs(tmp_path: Path, write: Writer) -> None:
    found = run(write(tmp_path, recorded(["nccl"] * 123)), launch=DEEPSEEK, **H200)
    assert found.word is Seen.DIFFERS and found.status == 1
    assert found.sentence == (
        "DIFFERS: expected 121 fused + 2 custom a step; saw 0 fused, 123 ncclDevKernel_AllReduce; "
        "first difference: the embedding, before layer 0"
    )
    assert "attention output           61  fused" in str(found)


@pytest.mark.parametrize(
    ("at", "where"),
    [
        (1, "layer 0, attention output"),
        (6, "layer 2, MLP output"),
        (8, "layer 3, MoE output"),
        (121, "layer 60, attention output"),
    ],
)
def test_the_layer_of_the_first_difference_is_named(tmp_path: Path, at: int, where: str) -> None:
    ways = [*FUSED[:at], "nccl", *FUSED[at + 1 :]]
    found = run(_chrome(tmp_path, recorded(ways)), launch=DEEPSEEK, **H200)
    assert found.sentence.endswith(f"first difference: {where}")
    assert found.ranks[0].kinds[0].differing == 1


def test_fused_calls_that_reduce_nothing_are_a_finding(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded(["v1", "v1"])), launch=DEEPSEEK, **H200)
    assert found.word is Seen.DIFFERS
    assert "saw 0 fused, 2 custom; first difference: layer 0, attention output" in found.sentence
    assert any("121 calls a step are in the trace neither fused nor as all-reduces" in text for text in found.findings)


def test_a_call_too_many_differs_behind_the_last_layer(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded([*FUSED, "v1"])), launch=DEEPSEEK, **H200)
    assert found.word is Seen.DIFFERS and "first difference: behind the last layer" in found.sentence


def test_steps_that_ran_eagerly_where_a_graph_is_expected_differ(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded(FUSED, graph=False)), launch=DEEPSEEK, **H200)
    assert found.word is Seen.DIFFERS
    assert "expected 121 fused + 2 custom a step, replayed from a graph; saw 121 fused, 2 custom, eager" in found.sentence
    assert any("ran eagerly" in text and "prefills" in text for text in found.findings)
    assert run(_chrome(tmp_path, recorded(FUSED, graph=False)), launch=f"{DEEPSEEK} --disable-cuda-graph", **H200).agrees


def test_custom_kernels_of_another_generation_differ(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded(["v1"] * 65)), launch=LLAMA, gpu="h200", sglang="0.5.16")
    assert found.word is Seen.DIFFERS
    assert "expected 65 custom (V2, one_shot_push) a step; saw 65 custom (v1, one_shot)" in found.sentence
    assert run(_chrome(tmp_path, recorded(["v2"] * 65)), launch=LLAMA, gpu="h200", sglang="0.5.16").agrees


def test_another_kernel_of_the_right_code_is_a_finding_and_no_difference(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded(["v1_two"] * 65)), launch=LLAMA, **H200)
    assert found.agrees
    assert found.findings == (
        "the right path by another of its kernels: two_shot in the place of one_shot (65 calls a step); it picks by size",
    )


def test_steps_that_differ_now_and_then_are_counted(tmp_path: Path) -> None:
    recording = recorded(FUSED, 3)
    recording.forward(["nccl"] * 123, graph=True)
    found = run(_chrome(tmp_path, recording), launch=DEEPSEEK, **H200)
    assert found.word is Seen.DIFFERS and "in 1 of 4 steps" in found.sentence and found.ranks[0].differing == 1
    assert run(_chrome(tmp_path, recording), launch=DEEPSEEK, steps=(0, 3), **H200).agrees


@pytest.mark.parametrize(
    ("way", "flags", "sglang"),
    [("nccl", "--disable-custom-all-reduce", "0.5.9"), ("nccl", "--enable-symm-mem", "0.5.9"), ("v1", "", "0.5.9"), ("v2", "", "0.5.16"),
     ("symm_mem", "--disable-custom-all-reduce --enable-torch-symm-mem", "0.5.9"), ("mscclpp", "--enable-mscclpp", "0.5.14")],
)  # fmt: skip
def test_every_path_that_a_launch_line_can_bring_is_recognised(tmp_path: Path, way: str, flags: str, sglang: str) -> None:
    found = run(_chrome(tmp_path, recorded([way] * 65)), launch=f"{LLAMA} {flags}", gpu="h200", link="nvlink", sglang=sglang)
    assert found.agrees, found.sentence
    other = "v1" if way == "nccl" else "nccl"
    assert (
        run(_chrome(tmp_path, recorded([other] * 65)), launch=f"{LLAMA} {flags}", gpu="h200", link="nvlink", sglang=sglang).status
        == 1
    )


def test_a_fused_call_of_two_kernels_is_one_call(tmp_path: Path) -> None:
    recording = Recording()
    for _ in range(3):
        recording.forward(["v1", *["mnnvl", "mnnvl_norm"] * 121, "v1"], graph=True)
    found = run(_chrome(tmp_path, recording), launch=DEEPSEEK, **H200)
    assert found.agrees and found.ranks[0].calls == 3 * 123


def test_only_eager_kernels_that_torch_recorded_are_torch_distributed(tmp_path: Path) -> None:
    flags = f"{LLAMA} --disable-custom-all-reduce --disable-cuda-graph"
    told = {"Collective name": "allreduce", "In msg nelems": 4096, "dtype": "BFloat16", "Group size": 8}
    found = run(_chrome(tmp_path, recorded(["nccl"] * 65, graph=False, args=told)), launch=flags, **H200)
    assert found.agrees and found.expected is not None and found.expected.counts == {"torch_distributed": 65}
    # pynccl's kernels have the same name; in a trace that holds torch's own, they are the ones that it did not record.
    recording = recorded(["nccl"] * 65, graph=False)
    recording.kernels[-1].args = {"Collective name": "_allgather_base"}
    found = run(_chrome(tmp_path, recording), launch=flags, **H200)
    assert found.word is Seen.DIFFERS and "ncclDevKernel_AllReduce (pynccl)" in str(found)


def test_tensors_of_another_size_than_expected_are_a_finding(tmp_path: Path) -> None:
    told = {"Collective name": "allreduce", "In msg nelems": 8 * 4096, "dtype": "BFloat16"}
    flags = f"{LLAMA} --disable-custom-all-reduce --disable-cuda-graph"
    found = run(_chrome(tmp_path, recorded(["nccl"] * 65, graph=False, args=told)), launch=flags, **H200)
    assert any(text == "the tensors have 64 KiB, where 8 KiB were expected: another batch?" for text in found.findings)


def test_rccl_does_not_say_its_collective_and_the_gather_at_the_end_is_not_counted(tmp_path: Path) -> None:
    recording = Recording()
    for _ in range(3):
        recording.forward(["rccl"] * 66, graph=True, gather=False)
    launch = f"{LLAMA} --disable-custom-all-reduce"
    found = run(_chrome(tmp_path, recording), launch=launch, gpu="mi300x", sglang="0.5.9")
    assert found.agrees, found.sentence
    assert any("RCCL" in note for note in found.notes)


def test_a_log_serves_as_a_launch_line_and_what_it_contradicts_stands_above(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    said = "server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B-Instruct', tp_size=8, disable_custom_all_reduce=False)"
    log.write_text(f"[2026-02-01 10:00:00] {said}\n")
    path = _chrome(tmp_path, recorded(["v1"] * 65))
    assert run(path, log=log, **H200).agrees
    log.write_text(f"[2026-02-01 10:00:00] {said}\n[2026-02-01 10:00:01 TP0] Setup Custom allreduce failed with x\n")
    found = run(path, log=log, **H200)
    assert found.word is Seen.DIFFERS and "expected 65 pynccl_in_place a step; saw 65 custom" in found.sentence
    assert found.warnings[0].startswith("the log says otherwise: ")


# ---------------------------------------------------------------------------------------------------------------------- what cannot be told


def test_a_trace_of_the_cpu_alone_cannot_tell(tmp_path: Path) -> None:
    found = run(write_chrome(tmp_path / "cpu.json", Recording().events()), launch=LLAMA, **H200)
    assert found.word is Seen.CANNOT_TELL and found.status == 2 and "of the CPU alone" in found.sentence


def test_a_trace_without_any_known_collective_cannot_tell(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded(["norm"] * 5, gather=False)), launch=LLAMA, **H200)
    assert found.word is Seen.CANNOT_TELL and "none of its 40 GPU kernels is an all-reduce" in found.sentence


def test_gathers_alone_are_no_steps(tmp_path: Path) -> None:
    found = run(_chrome(tmp_path, recorded(["gather", "scatter"])), launch=LLAMA, **H200)
    assert found.word is Seen.CANNOT_TELL
    assert (found.ranks[0].gathers, found.ranks[0].reduce_scatters) == (8, 4)


def test_one_rank_expects_none_and_agrees_where_there_is_none(tmp_path: Path) -> None:
    one = LLAMA.replace("--tp 8", "--tp 1")
    assert run(_chrome(tmp_path, recorded(["norm"] * 5, gather=False)), launch=one, **H200).agrees
    found = run(_chrome(tmp_path, recorded(["nccl"] * 5)), launch=one, **H200)
    assert found.word is Seen.DIFFERS and "first difference: behind the last layer" in found.sentence


def test_a_server_whose_calls_are_not_modelled_is_not_held_against_counts(tmp_path: Path) -> None:
    dp = f"{DEEPSEEK} --enable-dp-attention --dp 8"
    found = run(_chrome(tmp_path, recorded(FUSED)), launch=dp, **H200)
    assert found.word is Seen.CANNOT_TELL and "not modelled" in found.sentence
    found = run(_chrome(tmp_path, recorded(["v1"] * 33)), launch=f"{LLAMA} --pp-size 2", **H200)
    assert found.agrees and any("counts were not held against the trace: 2 pipeline stages" in text for text in found.warnings)
    assert run(_chrome(tmp_path, recorded(["nccl"] * 33)), launch=f"{LLAMA} --pp-size 2", **H200).status == 1


def test_without_a_server_only_what_was_seen_is_told(tmp_path: Path, write: Writer) -> None:
    found = run(write(tmp_path, recorded(FUSED)))
    assert found.word is Seen.SEEN and found.expected is None and found.step is None and found.assumed == ()
    assert found.sentence == "SEEN: 121 fused, 2 custom a step (replayed, 4 times) [1 rank]"


def test_times_are_those_of_the_trace(tmp_path: Path, write: Writer) -> None:
    found = run(write(tmp_path, recorded(["v1"] * 5, 2)))
    (row,) = [row for row in found.times if row.kind == "all_reduce"]
    assert (row.calls, row.phase, row.least_us, row.most_us) == (10, "replayed", 3.25, 7.25)
    assert row.sum_us == pytest.approx(2 * (3.25 * 5 + 10)) and row.median_us == pytest.approx(5.25)
    assert "measured in this trace" in str(found)


@pytest.mark.parametrize(
    ("keywords", "field"),
    [({"sglang": "0.5.9"}, "sglang"), ({"batch": 4}, "batch"), ({"gpu": "h200"}, "gpu"), ({"rank": -1}, "rank"), ({"rank": 5}, "rank"),
     ({"phase": "graph"}, "phase"), ({"steps": (5, 5)}, "steps"), ({"steps": "5:9"}, "steps"), ({"mark": "("}, "mark"),
     ({"launch": "x", "log": "y"}, "log")],
)  # fmt: skip
def test_bad_arguments_are_named(tmp_path: Path, keywords: dict[str, Any], field: str) -> None:
    path = _chrome(tmp_path, recorded(["v1"] * 3))
    with pytest.raises(InputError) as caught:
        check(path, **keywords)
    assert caught.value.field == field


def test_names_that_only_hold_a_collectives_name_are_none(tmp_path: Path) -> None:
    assert "reduce_kernel" in NAMES["norm"]
    found = run(_chrome(tmp_path, recorded(["norm"] * 9, gather=False)))
    assert found.ranks[0].calls == 0 and found.ranks[0].kernels == 4 * 18
