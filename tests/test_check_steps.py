"""Which steps of a trace are held against the launch line: by ranges, replays, gathers, a period, stage, batch, phase and number."""

from __future__ import annotations

from pathlib import Path

from check_cases import DEEPSEEK, FUSED, H200, LLAMA, recorded, run
from trace_files import Recording, write_nsys

from sglang_probe._trace.types import Seen


def chrome(path: Path, recording: Recording) -> Path:
    return recording.chrome(path / "a.trace.json")


def nsys(path: Path, recording: Recording) -> Path:
    return write_nsys(path / "a.sqlite", [recording])


def test_drafts_and_prefills_of_the_same_trace_are_left_out(tmp_path: Path) -> None:
    recording = Recording()
    recording.forward(["nccl"] * 123, graph=False)  # a prefill
    for _ in range(4):
        recording.forward(["v1"] * 3, graph=True).forward(FUSED, graph=True)
    eagle = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    found = run(chrome(tmp_path, recording), launch=f"{DEEPSEEK} {eagle}", **H200)
    assert found.agrees and found.ranks[0].steps == 4
    assert found.ranks[0].others == {"eager (other batches, or prefill)": 1, "of another number of calls": 4}


def test_sglangs_own_ranges_say_the_step_and_its_batch(tmp_path: Path) -> None:
    recording = Recording()
    for batch in (4, 4, 8, 4):
        recording.forward(["nccl"] * 65, graph=False, mark="step[EXTEND bs=1 toks=900]")
        recording.forward(["v2"] * 65, graph=True, mark=f"step[DECODE bs={batch}]")
        recording.forward(["v2"] * 65, graph=True, mark="step[DRAFT bs=4]")
    for path in (chrome(tmp_path, recording), nsys(tmp_path, recording)):
        found = run(path, launch=LLAMA, gpu="h200", sglang="0.5.16")
        assert found.agrees and found.ranks[0].steps == 3 and found.step is not None and found.step.batch == 4
        assert found.ranks[0].found_by == "SGLang's own step ranges"
        assert found.ranks[0].others["steps of other batches"] == 1
        assert any(note.startswith("batch 4: 3 of 4 decode and verify ranges") for note in found.notes)
        assert run(path, launch=LLAMA, gpu="h200", sglang="0.5.16", batch=8).ranks[0].steps == 1
        other = run(path, launch=LLAMA, gpu="h200", sglang="0.5.16", batch=2)
        assert other.agrees and any("no step of batch 2 is in the trace" in text for text in other.ranks[0].notes)


def test_a_verify_step_is_not_taken_for_a_decode_step(tmp_path: Path) -> None:
    recording = Recording()
    for _ in range(3):
        recording.forward(["nccl"] * 65, graph=True, mark="step[DECODE bs=1]").forward(
            ["v2"] * 65, graph=True, mark="step[VERIFY bs=1]"
        )
    eagle = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    assert run(chrome(tmp_path, recording), launch=f"{LLAMA} {eagle}", gpu="h200", sglang="0.5.16").agrees
    assert run(chrome(tmp_path, recording), launch=LLAMA, gpu="h200", sglang="0.5.16").status == 1


def test_ranges_within_a_range_do_not_end_it(tmp_path: Path) -> None:
    recording = Recording()
    for batch in (1, 1, 1):
        began = recording.clock
        recording.forward(["v1"] * 30, graph=False, gather=False, mark="step[SPLIT bs=1]")
        inner = recording.marks.pop()
        recording.forward(["v1"] * 65, graph=False, gather=False)
        recording.kernels = [k for k in recording.kernels if not inner[1] <= k.start <= inner[2] + 40]
        recording.marks += [(f"step[DECODE bs={batch}]", began - 5, recording.launches[-1][1] + 2), inner]
    found = run(chrome(tmp_path, recording), launch=f"{LLAMA} --disable-cuda-graph", **H200)
    assert found.ranks[0].found_by == "SGLang's own step ranges" and found.ranks[0].steps == 3


def test_a_batch_that_nobody_told_is_named_where_it_may_be_the_reason(tmp_path: Path) -> None:
    path = chrome(tmp_path, recorded(["nccl"] * 65))
    assert "batch 1 was assumed: give --batch, if the recording is of another" in run(path, launch=LLAMA, **H200).findings
    assert not any("assumed" in text for text in run(path, launch=LLAMA, batch=1, **H200).findings)
    # 1,025 tokens of 8 KiB are over custom all-reduce's limit of 8 MiB.
    assert run(path, launch=f"{LLAMA} --cuda-graph-max-bs 2048", batch=1025, **H200).agrees


def test_profiler_steps_are_taken_where_they_hold_one_forward(tmp_path: Path) -> None:
    recording = Recording()
    for number in range(4):
        recording.forward(["v1"] * 65, graph=False, gather=False, mark=f"ProfilerStep#{number}")
    found = run(chrome(tmp_path, recording), launch=f"{LLAMA} --disable-cuda-graph", **H200)
    assert found.agrees and found.ranks[0].found_by == "ProfilerStep ranges" and found.ranks[0].steps == 4


def test_ranges_that_hold_several_forwards_give_way_to_replays(tmp_path: Path) -> None:
    recording = Recording()
    recording.forward(["v1"] * 65, graph=True).forward(["v1"] * 65, graph=True)
    recording.marks.append(("ProfilerStep#1", 0.0, recording.clock))
    found = run(chrome(tmp_path, recording), launch=LLAMA, **H200)
    assert found.agrees and found.ranks[0].found_by == "replays of graphs" and found.ranks[0].steps == 2


def test_ranges_of_any_name_serve_where_they_are_asked_for(tmp_path: Path) -> None:
    recording = Recording()
    for number in range(3):
        recording.forward(["v1"] * 65, graph=False, gather=False, mark=f"my decode {number}")
    launch = f"{LLAMA} --disable-cuda-graph"
    found = run(chrome(tmp_path, recording), launch=launch, mark="^my decode [01]$", **H200)
    assert found.agrees and found.ranks[0].steps == 2 and found.ranks[0].outside == 65


def test_the_expected_number_alone_cuts_where_nothing_else_does_and_says_so(tmp_path: Path) -> None:
    recording = recorded(["v1"] * 65, 3, graph=False, gather=False)
    found = run(chrome(tmp_path, recording), launch=f"{LLAMA} --disable-cuda-graph", **H200)
    assert found.agrees and found.ranks[0].found_by == "the expected number of calls"


def test_a_period_finds_steps_without_any_marks(tmp_path: Path) -> None:
    recording = recorded(["v1", *["fused"] * 6, "v1"], 5, graph=False, gather=False)
    found = run(chrome(tmp_path, recording))
    assert found.ranks[0].found_by == "their period" and found.ranks[0].steps == 5
    assert found.sentence == "SEEN: 6 fused, 2 custom a step (eager, 5 times) [1 rank]"


def test_a_step_cut_by_an_end_of_the_recording_is_left_out(tmp_path: Path) -> None:
    recording = recorded(["v1"] * 65, 4, graph=False)
    recording.kernels = recording.kernels[40:-30]
    found = run(chrome(tmp_path, recording), launch=f"{LLAMA} --disable-cuda-graph", **H200)
    assert found.agrees and found.ranks[0].steps == 2 and found.ranks[0].others == {"of another number of calls": 2}


def test_a_file_of_prefill_alone_is_not_held_against_a_decode_step(tmp_path: Path) -> None:
    path = recorded(["nccl"] * 65, graph=False).chrome(tmp_path / "1-TP-0-EXTEND.trace.json")
    found = run(path, launch=LLAMA, **H200)
    assert found.word is Seen.CANNOT_TELL and "prefill, as the file's name says" in found.sentence
    decode = recorded(["v1"] * 65).chrome(tmp_path / "1-TP-0-DECODE.trace.json")
    assert run([path, decode], launch=LLAMA, **H200).agrees


def test_a_phase_can_be_asked_for(tmp_path: Path) -> None:
    recording = recorded(["nccl"] * 65, 2, graph=False)
    recording.forward(["v1"] * 65, graph=True)
    path = chrome(tmp_path, recording)
    assert run(path, phase="eager").ranks[0].steps == 2
    assert run(path, phase="replayed").sentence == "SEEN: 65 custom a step (replayed, 1 times) [1 rank]"
