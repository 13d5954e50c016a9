"""Two ranks on a machine with one GPU: they share it, as hosts of their own to NCCL where SGLang makes communicators. Used by GPU tests.

Processes that share a GPU take turns of milliseconds, unless CUDA's MPS runs. Invariant: where each rank has its own, nothing is changed.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from sglang_probe import gpu

_LINKS = "sglang.srt.distributed.device_communicators.custom_all_reduce_utils"


def ordinals() -> tuple[int, int]:
    """The GPU of either rank."""
    return 0, min(1, len(gpu.devices()) - 1)


def need(name: str) -> None:
    """Skips where two ranks share a GPU and our own NCCL paths are not there."""
    if len(gpu.devices()) < 2 and not name.startswith(("one_shot", "two_shot", "limit")):
        pytest.skip(f"{name}: two ranks share a GPU, and NCCL refuses that")


def share(c: Any) -> None:
    """Ranks of one GPU are hosts of their own to NCCL, or it refuses; and to SGLang they are linked, as memory of one GPU needs no link."""
    if len(gpu.devices()) > 1:
        return
    os.environ["NCCL_HOSTID"] = f"rank {c.rank}"
    links: Any = importlib.import_module(_LINKS)
    links.is_full_nvlink = lambda *_: True
