"""A worker of one rank as SGLang starts it: plug-ins first where the release has them, then a process group. `python worker.py [load]`.

What it prints is one line of JSON; read by test_real_plugin.py. With `load` the plug-ins are loaded as in run_scheduler_process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from typing import Any


def ours() -> list[str]:
    return sorted(name for name in sys.modules if name.split(".")[0] == "sglang_probe")


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    at_start = ours()
    said: dict[str, Any] = {"at start": at_start, "hooks": 0}
    if "load" in sys.argv[1:]:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry

        before = set(sys.modules)
        load_plugins()
        said["hooks"] = len(HookRegistry._hooks)
        said["heavy"] = sorted({"numpy", "torch", "rich", "scipy"} & (set(sys.modules) - before))
    said["after plug-ins"] = ours()
    import sglang.srt.distributed.parallel_state as state
    import torch

    said["before the group"] = ours()
    state.init_distributed_environment(
        world_size=1, rank=0, distributed_init_method=f"file://{tempfile.mkdtemp()}/store", local_rank=0, backend="gloo"
    )
    group = state.init_model_parallel_group([[0]], 0, "gloo", use_custom_allreduce=False, group_name="tp")
    group._all_reduce_in_place(torch.ones(4))
    said["recording"] = ""
    if "sglang_probe.hook.session" in sys.modules:
        from sglang_probe import hook

        said["recording"] = hook.installed()
        if said["recording"]:
            from sglang_probe._record.ring import Ring

            with Ring(said["recording"]) as ring:
                said["records"] = len(ring.records().records)
                said["header"] = {name: ring.header[name] for name in ("rank", "world_size", "release")}
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
