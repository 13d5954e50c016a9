"""Ranks that a launcher started, on two GPUs: in shared memory as on one machine, and made to meet over NCCL as on several.

``SGLANG_PROBE_APART=1`` makes one machine stand for several: NCCL's own bootstrap at NCCL_COMM_ID, no shared memory, deadlines where a
board would tell. Invariant: each rank's answer is compared, and every wait that is made to fail ends by its own limit and says why.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import launches
import pytest
from launches import LAUNCHERS, Said

from sglang_probe import Measurement, gpu

REASON = "" if gpu.available() and len(gpu.devices()) > 1 else str(gpu.available()) if not gpu.available() else "one GPU alone"
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

JOIN = """
import json, os
import torch
from sglang_probe import Coordinator, Path

c = Coordinator.join(device="gpu", sglang="0.5.9", timeout_s=60.0)
seen = {"rank": c.rank, "nodes": c.settings.group.value("nodes"), "apart": c.launched.apart, "calls": []}

def call(name):
    mine = torch.full((4, 1024), float(c.rank + 1), dtype=torch.bfloat16, device="cuda")
    reduced = c.all_reduce(mine)
    c.wait()
    seen["calls"].append([name, str(reduced.path), sorted(set(reduced.tensor.flatten().tolist()))])

call("as it comes")
c.custom.disabled = True
call("torch")
c.pynccl.disabled = False
call("pynccl")
with c.graph_capture():
    mine = torch.full((4, 1024), float(c.rank + 1), dtype=torch.bfloat16, device="cuda")
    with c.graph() as graph:
        reduced = c.all_reduce(mine)
graph.replay()
c.wait()
seen["calls"].append(["captured", str(reduced.path), sorted(set(reduced.tensor.flatten().tolist()))])
c.barrier()
seen["custom"] = c.paths[Path.CUSTOM]
seen["described"] = c.describe()
c.close()
os.write(1, (json.dumps(seen) + "\\n").encode())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(rank: int, apart: bool, **more: str) -> dict[str, str]:
    base = LAUNCHERS["Open MPI"](rank, 2, "41")
    where = {"SGLANG_PROBE_APART": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": more.pop("port")} if apart else {}
    return {**base, **where, **more}


def ran(code: str, folder: Path, apart: bool) -> list[Said]:
    port = str(free_port())
    with launches.Launch(["-c", code], [variables(rank, apart, port=port) for rank in range(2)], folder) as ranks:
        return ranks.said()


def answers(said: list[Said]) -> list[dict[str, Any]]:
    assert [one.status for one in said] == [0, 0], said
    return [json.loads(one.out.splitlines()[-1]) for one in said]


def calls(*paths: str) -> list[list[Any]]:
    """What JOIN sees where these are taken, and every sum is right."""
    return [[name, path, [3.0]] for name, path in zip(("as it comes", "torch", "pynccl", "captured"), paths, strict=True)]


def test_ranks_of_one_machine_join_and_every_path_sums(tmp_path: Path) -> None:
    for rank, seen in enumerate(answers(ran(JOIN, tmp_path, apart=False))):
        assert (seen["rank"], seen["nodes"], seen["apart"]) == (rank, 1, False)
        assert seen["calls"] == calls("custom", "torch_distributed", "pynccl_in_place", "pynccl_in_place")
        assert not seen["custom"].startswith("not here"), seen


def test_ranks_that_meet_over_nccl_sum_and_custom_says_why_it_is_not_there(tmp_path: Path) -> None:
    for rank, seen in enumerate(answers(ran(JOIN, tmp_path, apart=True))):
        assert (seen["rank"], seen["nodes"], seen["apart"]) == (rank, 2, True)
        assert seen["calls"] == calls("torch_distributed", "torch_distributed", "pynccl_in_place", "pynccl_in_place")
        assert seen["custom"].startswith("not here") and "CUDA IPC" in seen["custom"], seen
        assert f"rank {rank} of 2 meets the others over NCCL" in seen["described"]


# -------------------------------------------------------------------------------------------------------------------------- the exchange

EXCHANGE = """
import json, os, sys, time
from sglang_probe import _gpu, gpu

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["NCCL_COMM_ID"] = "127.0.0.1:" + os.environ["MASTER_PORT"]
path = gpu.find_nccl()
exchange = _gpu.exchange(rank, 2, rank, path, 60.0)
del os.environ["NCCL_COMM_ID"]
said = []

def tell():
    os.write(1, (json.dumps(said) + "\\n").encode())

def gather(mine, timeout_s=30.0):
    try:
        return _gpu.exchange_all_gather(exchange, mine, timeout_s)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""

SIZES = """
for size in (0, 1, 100, 4079, 4080, 4081, 65536, 69616, 69617, 1 << 20):
    mine = bytes((7 * rank + i * 31) % 251 for i in range(min(size, 4096))) * (size // 4096 + 1)
    mine = mine[:size]
    both = gather(mine)
    other = bytes((7 * (1 - rank) + i * 31) % 251 for i in range(min(size, 4096))) * (size // 4096 + 1)
    said.append([size, both == ([mine, other[:size]] if rank == 0 else [other[:size], mine])])
both = gather(b"x" * (10 + 5000 * rank))  # of other lengths
said.append(["lengths", [len(one) for one in both]])
both = [gather(bytes([i % 256])) for i in range(300)]
said.append(["300", all(one == [bytes([i % 256])] * 2 for i, one in enumerate(both))])
_gpu.exchange_check(exchange)
tell()
"""


def test_the_exchange_over_nccl_gathers_bytes_of_any_number(tmp_path: Path) -> None:
    for said in (json.loads(one.out) for one in ran(EXCHANGE + SIZES, tmp_path, apart=True)):
        assert said[-2:] == [["lengths", [10, 5010]], ["300", True]]
        assert all(right for _, right in said[:-2]), said


ABSENT = """
if rank == 0:
    before = time.monotonic()
    said.append(gather(b"here", 3.0))
    said.append(time.monotonic() - before < 20)
    said.append(gather(b"again", 3.0))
    try:
        _gpu.exchange_check(exchange)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
    tell()
else:
    WHAT
"""


@pytest.mark.parametrize("what", ["time.sleep(25)", "os.kill(os.getpid(), 9)"])
def test_a_peer_that_does_not_come_or_is_dead_ends_a_gather_by_its_limit_and_breaks_it(what: str, tmp_path: Path) -> None:
    zero, one = ran(EXCHANGE + ABSENT.replace("WHAT", what), tmp_path, apart=True)
    first, in_time, again, check = json.loads(zero.out)
    assert first.startswith(("TimeoutError: ", "ProbeError: ")) and "rank 0 of 2, meeting over NCCL" in first, zero
    assert in_time
    assert "it is broken" in again and "it is broken" in check, zero
    assert one.status == (-signal.SIGKILL if "kill" in what else 0)


def test_a_rank_that_never_comes_to_nccls_bootstrap_is_waited_for_no_longer_than_the_limit(tmp_path: Path) -> None:
    code = EXCHANGE.replace("60.0)", "4.0)")
    with launches.Launch(["-c", code], [variables(0, True, port=str(free_port()))], tmp_path) as ranks:
        (zero,) = ranks.said()
    assert zero.status == 1 and "TimeoutError" in zero.err and "a rank does not come" in zero.err and "127.0.0.1:" in zero.err, (
        zero
    )


HELD = """
import torch
from sglang_probe import Coordinator

c = Coordinator.join(device="gpu", sglang="0.5.9", timeout_s=30.0)
stream = torch.cuda.current_stream().cuda_stream
for turn in range(20):
    c.hold(stream)
    c.spin(5.0, stream)
    c.barrier()  # over NCCL, while the stream that is measured stands still
    c.release()
    c.wait(stream)
c.close()
print("through")
"""


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_meet_while_the_measured_stream_is_held(apart: bool, tmp_path: Path) -> None:
    said = ran(HELD, tmp_path, apart)
    assert [one.out for one in said] == ["through\n"] * 2, said


# ------------------------------------------------------------------------------------------------------------------------------- bench

BENCH = (
    "-m",
    "sglang_probe",
    "bench",
    "--device",
    "gpu",
    "--quick",
    "--sizes",
    "1K:64K",
    "--processes",
    "1",
    "--drivers",
    "native",
)


@pytest.mark.parametrize("name", ["torchrun", "openmpi", "mpich"])
def test_bench_under_a_real_launcher_measures_what_it_measures_by_itself(name: str, tmp_path: Path) -> None:
    command, why_not = launches.real(name, 2, [*BENCH, "--out", "launched.jsonl"])
    if why_not:
        pytest.skip(why_not)
    alone = [sys.executable, *BENCH, "--world-size", "2", "--out", "alone.jsonl"]
    for one in (alone, command):
        done = subprocess.run(
            one, env=launches.bare_environment(), capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
        )
        assert done.returncode == 0, done
    from sglang_probe._bench.plan import key_of

    found = [Measurement.read(tmp_path / f"{which}.jsonl").cells for which in ("alone", "launched")]
    assert {key_of(cell) for cell in found[0]} == {key_of(cell) for cell in found[1]}
    assert all(cell.checked > 0 and cell.wrong == 0 for cells in found for cell in cells)


def test_bench_of_ranks_that_meet_over_nccl_measures_what_runs_there(tmp_path: Path) -> None:
    port = str(free_port())
    command = [*BENCH, "--targets", "pynccl_in_place,pynccl_out_of_place,torch_distributed,one_shot", "--out", "far.jsonl"]
    with launches.Launch(command, [variables(rank, True, port=port) for rank in range(2)], tmp_path) as ranks:
        said = ranks.said()
    assert [one.status for one in said] == [0, 0], said
    cells = Measurement.read(tmp_path / "far.jsonl").cells
    assert {cell.path for cell in cells} == {"pynccl_in_place", "pynccl_out_of_place", "torch_distributed"}
    assert all(cell.checked > 0 and cell.wrong == 0 for cell in cells)


def test_a_rank_that_dies_in_a_bench_over_nccl_ends_it_and_keeps_what_was_measured(tmp_path: Path) -> None:
    port = str(free_port())
    # enough for several batches, so that some are in the file while others run
    command = [
        *BENCH[:5],
        "--sizes",
        "1K:64M:2",
        "--targets",
        "pynccl_in_place",
        "--drivers",
        "native",
        "--timeout",
        "5",
        "--out",
        "far.jsonl",
    ]
    partial = tmp_path / "far.jsonl.partial"
    with launches.Launch(command, [variables(rank, True, port=port) for rank in range(2)], tmp_path) as ranks:
        launches.until(lambda: partial.exists() and partial.read_bytes().count(b"\n") > 3, "nothing is measured")
        os.kill(ranks.processes[1].pid, signal.SIGKILL)
        zero, one = ranks.said()
    assert zero.status not in (0, None) and one.status == -signal.SIGKILL, (zero, one)
    assert len(Measurement.read(partial).cells) >= 2
