"""matrix: which of many launches change their routes between two revisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_probe import InputError, diff
from sglang_probe._proof.matrix import matrix, parse_lines

QWEN = "python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8"
KIMI = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8"


def test_lines_have_comments_continuations_and_machines() -> None:
    text = ["# all", "", f"{QWEN}  # ours", "gpu=rtx-pro-6000 link=pcie gpus=8 :: \\", f"   {KIMI} \\", "   --enable-symm-mem"]
    assert parse_lines(text) == [
        (3, QWEN, {}),
        (4, f"{KIMI} --enable-symm-mem", {"gpu": "rtx-pro-6000", "link": "pcie", "gpus": 8}),
    ]


def test_a_hash_inside_of_a_word_is_no_comment() -> None:
    assert parse_lines([f"{QWEN} --api-key a#b"]) == [(1, f"{QWEN} --api-key a#b", {})]


def test_a_whole_file_without_a_change_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "launches.txt"
    file.write_text("# of one week\n" + f"{QWEN}\ngpu=rtx-pro-6000 link=pcie gpus=8 :: {KIMI}\n" * 19)
    found = matrix("bba2fc4", "0be30d4", file, gpu="h200")
    assert str(found) == "no route changes for 38 launches, SGLang bba2fc4 to 0be30d4"
    assert not found and len(found) == 38 and found.to_dict()["changed"] == 0


def test_a_launch_that_changes_is_told_with_its_line_sizes_before_and_after() -> None:
    lines = ["", f"gpu=rtx-pro-6000 link=pcie gpus=8 :: {KIMI}", f"{QWEN}"]
    told: list[str] = []
    found = matrix("0.5.11", "0.5.12", lines, gpu="h200", progress=told.append)
    assert found and [entry.number for entry in found.changed] == [3] and len(told) == 2
    assert found.changed[0].diff.to_dict() == diff("0.5.11", "0.5.12", launch=QWEN, gpu="h200").to_dict()
    text = str(found)
    assert text.startswith("1 of 2 launches change routes, SGLang 0.5.11 to 0.5.12")
    assert f"line 3: gpu=h200 :: {QWEN}" in text and "16 MiB" in text and "one_shot_push" in text and "v1" in text
    assert "<table" in found._repr_html_()


def test_a_context_that_only_one_side_sets_is_a_change() -> None:
    """v0.5.10 runs prefill in a piecewise graph: what is common to both routes alike, but calls are made that were not before."""
    found = matrix("0.5.9", "0.5.10", [f"{QWEN} --disable-custom-all-reduce"], gpu="h200")
    assert (
        found and any("piecewise_capture" in note for note in found.entries[0].diff.notes) and "piecewise_capture" in str(found)
    )


@pytest.mark.parametrize(
    "line, said",
    [
        ("gpu=zz :: " + QWEN, "gpu"),
        ("colour=red :: " + QWEN, "before :: give gpu"),
        ("nodes=two :: " + QWEN, "whole number"),
        (QWEN + " --tp 0", "--tp"),
        ("vim notes.txt", "give the command that starts the server"),
    ],
)
def test_a_bad_line_is_refused_by_its_number_before_anything_is_compared(line: str, said: str) -> None:
    told: list[str] = []
    with pytest.raises(InputError, match=said) as refused:
        matrix("0.5.8", "0.5.9", ["# a comment", QWEN, line], gpu="h200", progress=told.append)
    assert refused.value.field == "line 3" and not told


def test_no_line_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no launch line"):
        matrix("0.5.8", "0.5.9", ["# nothing", ""])
    with pytest.raises(InputError, match="cannot be read"):
        matrix("0.5.8", "0.5.9", tmp_path / "gone.txt")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="text file"):
        matrix("0.5.8", "0.5.9", tmp_path / "bytes")
