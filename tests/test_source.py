"""A Decision points to SGLang's own line, where its source is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_probe import dispatch
from sglang_probe._releases import resolve
from sglang_probe._source.fetch import fetch
from sglang_probe._source.lift import Tree
from sglang_probe._source.lines import find_source


@pytest.mark.parametrize(
    ("sglang", "rule", "text"),
    [
        ("0.5.9", "piecewise_pynccl", "is_in_piecewise_cuda_graph()"),
        ("0.5.9", "cpu", "if input_.is_cpu:"),
        ("0.5.9", "symm_mem_bypass", "is_symmetric_memory_enabled()"),
        ("0.5.9", "in_place_torch", "torch.distributed.all_reduce"),
        ("0.4.9", "in_place_pynccl", "pynccl_comm is not None"),
    ],
)
def test_the_line_behind_a_rule_is_that_rules_branch(sglang: str, rule: str, text: str) -> None:
    zipped = fetch(sglang)
    found = find_source(resolve(sglang), rule)
    assert found is not None and found.startswith(str(zipped))
    line = Tree(zipped).source("srt/distributed/parallel_state.py").splitlines()[int(found.rsplit(":", 1)[1]) - 1]
    assert text in line


def test_without_source_a_decision_says_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path))
    find_source.cache_clear()
    assert dispatch("0.5.8", pynccl="enabled").source is None
    find_source.cache_clear()
