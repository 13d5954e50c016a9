"""torch's own process group behind a path, on CPU ranks with gloo: it meets in a memfd, sums, and leaves no file and no port.

On GPUs the same class runs with NCCL, through LocalGroup. Needs torch; without it each test is skipped and says so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_probe._run import torch_paths

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


@pytest.mark.parametrize("can_abort", [True, False])
def test_a_group_that_torch_does_not_end_is_aborted_at_the_limit(can_abort: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called, never = [], threading.Event()

    def destroy() -> None:
        called.append("destroy")
        never.wait(20)

    def abort() -> None:
        called.append("abort")
        raise RuntimeError("and nobody is left to be told")

    monkeypatch.setattr(torch_paths, "_LEAVING_S", 0.1)
    group = torch_paths.TorchGroup(0, 2, -1, "gloo")
    inner = SimpleNamespace(_abort_process_group=abort) if can_abort else SimpleNamespace()
    group._made, group._distributed = True, SimpleNamespace(destroy_process_group=destroy, distributed_c10d=inner)
    start = time.monotonic()
    group.leave()
    group.leave()
    assert called == ["destroy", "abort"][: 1 + can_abort] and time.monotonic() - start < 10
    never.set()
