"""compute-sanitizer's memcheck over every custom kernel, eager and captured: two rank processes, each under its own sanitizer, one a
GPU. On one GPU alone they take turns, which takes longer.

    python tests/gpu/sanitize.py              0 errors, or exit status 1
    python tests/gpu/sanitize.py --control    a kernel that reads freed memory: does the sanitizer see such a thing through IPC at all?
    python tests/gpu/sanitize.py --plain      the same calls without the sanitizer, to try this script

Prints `memcheck: N launches, 0 errors` for each rank; N was counted by its GPU. torch does little more than copy here, and NCCL is left
out, so that what is checked is ours. Invariant: it ends within --limit seconds; no launches, wrong sums or a missing summary fail.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

SIZES = (16, 37 * 16, 16 * 1024 + 16)
RELEASES = {"one_shot_push": "0.5.12", "one_shot_pull": "0.5.12", "two_shot_pull": "0.5.12"}
"""Besides what ranks.options_of gives: these sum in place."""
MAX_BYTES = 1 << 20
JOIN_S = 100.0
TOOL = (
    "--tool memcheck --error-exitcode 9 --report-api-errors no --target-processes application-only --launch-timeout 100 "
    "--print-limit 5"
)


# ---------------------------------------------------------------------------------------------------------------------------- one rank


def values(rank: int, count: int, turn: int) -> Any:
    """Small integers, made on the CPU: a kernel of torch's would be checked too, and take its time."""
    import torch

    return (torch.arange(count) * (2 * rank + 3) + 7 * turn + rank).remainder(17) - 8


class Checked:
    """Tensors of one dtype at all sizes, and how many of their sums were wrong."""

    def __init__(self, c: Any, dtype: Any) -> None:
        import torch

        self.c, self.dtype, self.turn, self.wrong = c, dtype, 0, 0
        self.tensors = [torch.empty(size // dtype.itemsize, dtype=dtype, device="cuda") for size in SIZES]

    def fill(self) -> None:
        self.turn += 1
        for tensor in self.tensors:
            tensor.copy_(values(self.c.rank, tensor.numel(), self.turn).to(self.dtype))

    def look(self, reduced: list[Any]) -> None:
        import torch

        self.c.wait(torch.cuda.current_stream().cuda_stream)
        for one in reduced:
            total = sum(values(rank, one.tensor.numel(), self.turn) for rank in range(self.c.world_size))
            self.wrong += int((one.tensor.cpu() != total.to(self.dtype)).sum())


def run_kernel(c: Any, options: dict[str, Any], dtype: Any) -> tuple[int, int]:
    """(launches, wrong elements): eager, and one graph of all sizes replayed twice."""
    import ranks

    ranks.configure(c, options)
    made, launches = Checked(c, dtype), 0
    made.fill()
    for tensor in made.tensors:
        c.barrier()
        made.look([c.all_reduce(tensor)])
        launches += 1
    made.fill()
    with c.graph_capture():
        c.barrier()
        launches += c.all_reduce(made.tensors[0]).kernel != "dry"
        with c.graph() as graph:
            reduced = [c.all_reduce(tensor) for tensor in made.tensors]
    for _ in range(2):
        made.fill()
        c.barrier()
        graph.replay()
        made.look(reduced)
        launches += len(reduced)
    return launches, made.wrong


def read_freed_memory(c: Any) -> None:
    """A captured input that is freed before the replay."""
    import ranks
    import torch

    ranks.configure(c, ranks.options_of("one_shot"))
    freed = c.empty(4096, "bf16")
    with c.graph_capture(), c.graph() as graph:
        reduced = c.all_reduce(freed)
    del freed
    c.barrier()
    graph.replay()
    try:
        c.wait(torch.cuda.current_stream().cuda_stream)
    except Exception as error:  # the sanitizer may end the kernel, and then nothing works any more
        print(f"after the read: {type(error).__name__}")
    del reduced


def work(rank: int, board: str, control: bool) -> int:
    import ranks
    import torch

    from sglang_probe._run.coordinator import Coordinator

    ordinal = min(rank, torch.cuda.device_count() - 1)
    torch.cuda.set_device(ordinal)
    c = Coordinator(
        board=os.open(board, os.O_RDWR),
        rank=rank,
        world_size=2,
        device="gpu",
        ordinal=ordinal,
        timeout_s=JOIN_S,
        max_bytes=MAX_BYTES,
        nccl="/nowhere/libnccl.so.2",  # its kernels would take longer to load than ours to run
    )
    if control:
        read_freed_memory(c)
        sys.stdout.flush()
        os._exit(0)  # in order is nothing to be left any more
    cases = [ranks.options_of(name) for name in ranks.CUSTOM]
    cases += [ranks.options_of(name, release) for name, release in RELEASES.items()]
    done = [run_kernel(c, options, dtype) for options in cases for dtype in ranks.DTYPES.values()]
    ran = ranks.ran(c, "custom")
    print(json.dumps({"asked": sum(n for n, _ in done), "ran": ran, "wrong": sum(wrong for _, wrong in done)}), flush=True)
    c.close()
    return 0


# ---------------------------------------------------------------------------------------------------------------------- both, watched


def find_tool(given: str | None) -> str | None:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    places = [str(Path(home) / "bin") for home in homes if home] + ["/usr/local/cuda/compute-sanitizer"]
    return given or shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def start(prefix: list[str], rank: int, board: int, control: bool, said: IO[str]) -> subprocess.Popen[str]:
    # by the parent's own descriptor: a sanitizer may close what its child would inherit
    command = [*prefix, sys.executable, __file__, "--rank", str(rank), "--board", f"/proc/{os.getpid()}/fd/{board}"]
    return subprocess.Popen(
        [*command, *(["--control"] if control else [])],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
        text=True,
    )


def end_all(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def judge(rank: int, status: int, text: str, plain: bool, control: bool) -> bool:
    """Prints what one rank's sanitizer found; whether that is as it must be."""
    summary = re.search(r"ERROR SUMMARY: (\d+) error", text)
    counted = re.search(r'^\{"asked": (\d+), "ran": (\d+), "wrong": (\d+)\}$', text, re.MULTILINE)
    asked, ran, wrong = map(int, counted.groups()) if counted else (0, 0, 0)
    errors = int(summary[1]) if summary else 0
    if control:
        good = bool(summary) and errors > 0 and "Invalid __global__ read" in text
        print(f"rank {rank}: control: {errors} errors found in a kernel that reads freed memory; {'good' if good else 'BAD'}")
    else:
        good = (plain or summary is not None) and not errors and status == 0 and ran == asked > 0 and not wrong
        what = "no sanitizer" if plain else f"{errors} errors" if summary else "no summary"
        print(f"rank {rank}: memcheck: {ran} launches, {what}; {wrong} wrong elements, exit status {status}")
        if ran != asked:
            print(f"rank {rank}: {asked} launches were asked for")
    if not good:
        print("\n".join(f"    {line}" for line in text.splitlines()[-60:]))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", action="store_true", help="prove that memcheck finds a read of freed memory")
    parser.add_argument("--plain", action="store_true", help="without the sanitizer")
    parser.add_argument("--sanitizer", help="compute-sanitizer, where it is not on the path")
    parser.add_argument("--limit", type=float, default=115.0, help="seconds until both ranks are killed")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--board", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        return work(given.rank, given.board, given.control)

    from sglang_probe import _core, gpu

    tool = None if given.plain else find_tool(given.sanitizer)
    reason = "" if gpu.available() else str(gpu.available())
    reason = reason or ("" if tool or given.plain else "compute-sanitizer is not here: give --sanitizer PATH")
    if reason:
        print(reason, file=sys.stderr)
        return 2
    board, began = _core.board_create(2, 1 << 20), time.monotonic()
    with tempfile.TemporaryFile("w+") as first, tempfile.TemporaryFile("w+") as second:
        said = [first, second]
        prefix = [tool, *TOOL.split()] if tool else []
        processes = [start(prefix, rank, board, given.control, said[rank]) for rank in range(2)]
        try:
            while time.monotonic() - began < given.limit and any(process.poll() is None for process in processes):
                time.sleep(0.1)
            if any(process.poll() is None for process in processes):
                print(f"killed after {given.limit:g} s")
        finally:
            end_all(processes)
        for file in said:
            file.seek(0)
        good = [judge(rank, processes[rank].returncode, said[rank].read(), given.plain, given.control) for rank in range(2)]
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
