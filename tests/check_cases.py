"""Launch lines, what their steps look like in a trace, and check with the invariants of its answer. Used by test_check*.py.

Invariant: whatever is asked through ``run``, the answer is JSON, its page begins with its sentence, and its status is that of its word.
"""

from __future__ import annotations

import json
from typing import Any

from trace_files import Recording

from sglang_probe._trace.check import check
from sglang_probe._trace.types import Checked

DEEPSEEK = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
LLAMA = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 8"
H200 = {"gpu": "h200", "link": "nvlink", "sglang": "0.5.9"}
FUSED = ["v1"] + ["fused"] * 121 + ["v1"]
"""DeepSeek-V3 of v0.5.9 on eight H200: 121 fused, and the two that are left by custom all-reduce."""
KEYS = {
    "word",
    "sentence",
    "status",
    "expected",
    "step",
    "ranks",
    "apart",
    "times",
    "findings",
    "notes",
    "assumed",
    "warnings",
    "files",
}


def run(trace: Any, **keywords: Any) -> Checked:
    """check, with the invariants of its answer checked."""
    found = check(trace, **keywords)
    data = json.loads(json.dumps(found.to_dict()))
    assert data.keys() >= KEYS
    assert found.sentence.startswith(str(found.word).replace("_", " ") + ": ")
    assert str(found).splitlines()[len(found.warnings)] == found.sentence
    assert found.status == {"AGREES": 0, "SEEN": 0, "DIFFERS": 1, "CANNOT_TELL": 2}[str(found.word)]
    assert found.sentence in found.why() and found.sentence in found._repr_html_().replace("&#x27;", "'").replace("&gt;", ">")
    return found


def recorded(ways: list[str], steps: int = 4, *, graph: bool = True, rank: int = 0, **keywords: Any) -> Recording:
    recording = Recording(rank)
    for _ in range(steps):
        recording.forward(ways, graph=graph, **keywords)
    return recording
