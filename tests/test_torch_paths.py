"""torch's own process group behind a path, on CPU ranks with gloo: it meets in a memfd, sums, and leaves no file and no port.

On GPUs the same class runs with NCCL, through LocalGroup. Needs torch; without it each test is skipped and says so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")

RANK = """
import sys, torch
from sglang_probe._run.torch_paths import TorchDistributed, TorchGroup
rank, store = int(sys.argv[1]), int(sys.argv[2])
path = TorchDistributed(TorchGroup(rank, 2, store, "gloo"))
print([path.supports(8, "bf16"), path.supports(8, "fp8")])
mine = torch.full((3,), float(rank + 1))
path.enqueue(mine, mine, 20.0)
out = torch.empty(3)
path.enqueue(mine, out, 20.0)
print(mine.tolist(), out.tolist())
path.group.leave()
path.group.leave()
print(torch.distributed.is_initialized())
"""


def test_torchs_group_meets_in_a_memfd_sums_in_place_and_out_of_place_and_leaves(tmp_path: Path) -> None:
    store = os.memfd_create("store")
    try:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(store)],
                pass_fds=(store,),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=env,
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        os.close(store)
    expected = "['', 'NCCL sums no fp8']\n[3.0, 3.0, 3.0] [6.0, 6.0, 6.0]\nFalse\n"
    assert [out for out, _ in said] == [expected] * 2, said
    assert not list(tmp_path.iterdir())
