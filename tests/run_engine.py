"""What the ranks of the engine driver's tests run. Called by test_bench_engine.py and test_bench_engine_sglang.py."""

from __future__ import annotations

from typing import Any

from sglang_probe import ProbeUnavailable
from sglang_probe._bench import engine
from sglang_probe._bench.driver import Wanted


def refused(c: Any, wanted: Wanted) -> str:
    """Why a rank does not prepare it; "" where it does."""
    try:
        engine.prepare(c, wanted)
    except ProbeUnavailable as error:
        return str(error)
    return ""
