"""history: since when a launch routes so, and which change did it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_probe import Group, InputError, route
from sglang_probe._proof.causes import Side, causes_of
from sglang_probe._proof.history import History, history
from sglang_probe._proof.looks import group_look
from sglang_probe._releases import COMMITS, RELEASES, resolve
from sglang_probe._step.step import step_of
from sglang_probe._types import Call

SERVE = "python -m sglang.launch_server --model-path"
KIMI = (
    f"{SERVE} moonshotai/Kimi-K2.5 --tp 8 --speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 3"
)
QWEN = f"{SERVE} Qwen/Qwen3-235B-A22B --tp 8"
ALL = [name for name in RELEASES if name not in COMMITS]


@pytest.fixture(scope="module")
def qwen() -> History:
    return history(QWEN, gpu="h200")


def kinds(found: History, release: str, what: str = "verify") -> list[str]:
    row = next(row for row in found.every if row.release == release)
    return [cause.kind for change in row.change if change.what == what for cause in change.causes]


@pytest.mark.parametrize(
    "line, gpu",
    [
        (KIMI + " --disable-cuda-graph", "rtx-pro-6000"),
        (f"{SERVE} deepseek-ai/DeepSeek-V3 --tp 8 --enable-symm-mem", "h200"),
        (QWEN + " --ep-size 2", "h200"),
        (QWEN, "mi300x"),
        (f"{SERVE} meta-llama/Llama-3.1-70B-Instruct --tp 4 --enable-torch-compile --enable-mscclpp", "h100"),
    ],
)
@pytest.mark.parametrize("batch", [1, 200])
def test_every_release_shows_the_step_that_step_shows(line: str, gpu: str, batch: int) -> None:
    found = history(line, gpu=gpu, batch=batch)
    assert [row.release for row in found.every] == ALL
    asked = 0
    for row in found.every:
        if row.server is None:
            continue
        step, look = step_of(row.server, sglang=row.release, batch=batch), row.verify
        assert (look.paths, look.fused, look.context) == (step.paths, step.fused, step.context), row.release
        assert (look.all_reduces, look.tokens, look.nbytes) == (step.all_reduces, step.tokens, step.nbytes), row.release
        asked += 1
    assert asked > 60


def test_a_row_that_is_left_out_is_equal_to_the_one_before(qwen: History) -> None:
    for before, row in zip(qwen.every, qwen.every[1:], strict=False):
        same = before.verify.key == row.verify.key and before.prefill.key == row.prefill.key
        assert same == (not row.change)
    assert [row.release for row in qwen.rows][0] == ALL[0]
    assert len(qwen.rows) < len(qwen.every)


def test_each_kind_of_change_is_told_by_its_name(qwen: History) -> None:
    assert kinds(qwen, "0.5.7") == ["fusion"]  # on by default from here
    assert kinds(qwen, "0.5.12") == ["gate"]  # V2 instead of v1
    assert kinds(qwen, "0.5.10rc0", "prefill") == ["default"]  # the piecewise graph is on by default
    symmetric = history(f"{SERVE} deepseek-ai/DeepSeek-V3 --tp 8 --enable-symm-mem", gpu="h200")
    assert kinds(symmetric, "0.5.19") == ["dispatch"]  # the bypass yields to custom
    assert kinds(symmetric, "0.5.4.post3") == ["dispatch"]  # the flag is read, no longer a tag: no gate's doing
    ranks = Group.make(world_size=8, arch=90, full_nvlink=True)
    assert kinds(history(group=ranks, releases=["0.5.8", "0.5.9"]), "0.5.9") == [
        "threshold"
    ]  # exactly 8 MiB is custom's from here


def test_what_needs_several_changes_at_once_names_all_of_them(qwen: History) -> None:
    row = next(row for row in qwen.every if row.release == "0.5.18")
    assert kinds(qwen, "0.5.18") == ["dispatch", "gate", "default"]
    assert not any(cause.either for change in row.change for cause in change.causes)
    assert "fi_workspace 0 -> 1" in row.because


def test_the_motivating_launch_never_leaves_pynccl_and_torch() -> None:
    found = history(KIMI, gpu="rtx-pro-6000", link="pcie", gpus=8, releases="0.5.9..0.5.23")
    assert {path for row in found.every for path in row.verify.paths} == {"pynccl_in_place"}
    assert all(row.verify.nbytes == 43008 and row.verify.all_reduces == 123 for row in found.every)


def test_a_release_that_refuses_the_line_is_said_to_refuse_it() -> None:
    found = history(KIMI, gpu="h200", releases=["0.4.4", "0.5.9"])
    assert found.every[0].verify.note.startswith("refused: ") and not found.every[0].verify.routes
    assert "no longer refused" in found.every[1].because
    with pytest.raises(InputError, match="EAGLE3"):
        history(KIMI, gpu="h200", releases=["0.4.4"])


def test_a_flag_that_old_releases_lack_is_named_with_them() -> None:
    found = history(QWEN + " --enable-torch-symm-mem", gpu="h200")
    assert any(note.startswith("--enable-torch-symm-mem: unknown to 0.4.1.post7") for note in found.notes)


def test_a_chunk_that_is_larger_than_the_prefill_graph_runs_eagerly() -> None:
    large, small = (history(QWEN, gpu="h200", releases=["0.5.12"], prefill_tokens=n).every[0].prefill for n in (16384, 1000))
    assert large.context == "piecewise_capture"  # the graph is as large as the chunk
    assert small.context == "piecewise_capture" and small.tokens == 1024  # padded to a captured size
    kimi = history(KIMI, gpu="h200", releases=["0.5.16"]).every[0].prefill
    assert kimi.context == "eager" and "more than the prefill graph's 2,048" in kimi.note
    kimi = history(KIMI, gpu="h200", releases=["0.5.16"], prefill_tokens=2048).every[0].prefill
    assert kimi.context == "piecewise_capture"


def test_what_was_read_is_kept_only_while_the_model_is_the_same(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 512, "vocab_size": 1000}
    for layers in (4, 8):
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        found = history(f"{SERVE} {tmp_path} --tp 2", gpu="h200", releases=["0.5.8", "0.5.9"])
        assert {row.verify.all_reduces for row in found.every} == {2 * layers + 1}


def test_a_group_by_itself_is_asked_at_every_size() -> None:
    group = Group.make(world_size=4, arch=90, full_nvlink=True)
    found = history(group=group, releases="0.5.3..0.5.23")
    assert found.names == ("captured", "eager") and found.level == "group"
    for row in found.every:
        for look in (row.verify, row.prefill):
            for r in look.routes:
                for size in {-(-r.first_bytes // 16) * 16, min(r.last_bytes, 1 << 40) // 16 * 16}:
                    decision = route(Call(size), group, context=look.context, sglang=row.release)
                    assert (r.outcome.path, r.outcome.kernel) == (str(decision.path), decision.kernel)


def test_a_cause_is_only_named_where_its_substitution_was_run() -> None:
    group = Group.make(world_size=8, arch=90, full_nvlink=True)
    sides = [Side(resolve(name), group_look(group, resolve(name), "capture"), None) for name in ("0.5.9", "0.5.10")]
    assert causes_of(*sides) == ()
    sides = [Side(resolve(name), group_look(group, resolve(name), "capture"), None) for name in ("0.5.9", "0.5.23")]
    assert [cause.kind for cause in causes_of(*sides)] == ["gate"]


def test_it_reads_as_text_html_and_data(qwen: History) -> None:
    text = str(qwen)
    assert text.startswith(f"{sum(bool(row.change) for row in qwen.every)} changes over {len(ALL)} releases")
    assert "0.5.12" in text and "decode step: gate: custom: v1 -> V2" in text
    assert "<table" in qwen._repr_html_()
    data = qwen.to_dict()
    assert len(data["rows"]) == len(qwen.rows) and len(qwen.to_dict(every=True)["rows"]) == len(ALL)
    assert data["rows"][0]["verify"]["routes"][0]["path"] == "custom"


def test_the_picture_has_every_release_in_one_column(qwen: History) -> None:
    labels = [label for label, _, _ in qwen.columns("verify")]
    assert labels[0].startswith(ALL[0]) and labels[-1].endswith(ALL[-1])
    with pytest.raises(InputError, match="verify"):
        qwen.columns("both")


@pytest.mark.parametrize(
    "question, field",
    [
        ({}, "launch"),
        ({"launch": QWEN, "group": Group.make()}, "launch"),
        ({"launch": QWEN, "batch": 0}, "batch"),
        ({"launch": QWEN, "prefill_tokens": -1}, "prefill_tokens"),
        ({"launch": QWEN, "releases": []}, "releases"),
        ({"launch": QWEN, "releases": "0.5.23..0.5.9"}, "sglang"),
        ({"launch": f"{SERVE} nobody/Nothing --tp 8"}, "model"),
        ({"group": Group.make(), "gpu": "h200"}, "gpu"),
    ],
)
def test_a_question_without_an_answer_is_refused_by_its_field(question: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        history(**question)  # type: ignore[arg-type] # wrong on purpose
    assert refused.value.field == field
