"""Started by torchrun, mpirun or srun: which rank this process is, by their variables; and how the ranks of one launch meet.

Ranks are plain processes with the variables that a launcher sets; real launchers, where they are there, are the last test. Invariant: each
rank that is refused says why, and a rank that waits in vain ends by its limit.
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
from launches import LAUNCHERS, launch

from sglang_probe import InputError
from sglang_probe._run.launchers import Launched, find
from sglang_probe._run.meeting import name_of

JOIN = """
import json, os, sys
import numpy as np
from sglang_probe import Coordinator
options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
try:
    c = Coordinator.join(**{"device": "host", "start_timeout_s": 60.0, "timeout_s": 20.0, "sglang": "0.5.9", **options})
except BaseException as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(4)
mine = np.full(1024, c.rank + 1, np.float32)
reduced = c.all_reduce(mine)
c.wait()
told = json.dumps([c.rank, c.world_size, str(reduced.path), float(reduced.tensor[0]), float(reduced.tensor[-1])])
os.write(1, f"{told}\\n".encode())  # whole: all ranks may write into one pipe
c.close()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "join.py"
    path.write_text(JOIN)
    return str(path)


def row(of: str, rank: int = 1, size: int = 2, **changed: str | None) -> dict[str, str]:
    """A rank's variables; None takes one away."""
    variables: dict[str, str | None] = {**LAUNCHERS[of](rank, size, "77"), **changed}
    return {name: value for name, value in variables.items() if value is not None}


# ------------------------------------------------------------------------------------------------------------------------- the one table


@pytest.mark.parametrize("of", LAUNCHERS)
def test_each_launchers_variables_say_which_rank_this_is(of: str) -> None:
    for rank in range(3):
        found = find(row(of, rank, 3))
        assert found is not None
        assert (found.rank, found.world_size, found.local_rank, found.local_size, found.apart) == (rank, 3, rank, 3, False)


@pytest.mark.parametrize("of", LAUNCHERS)
def test_ranks_of_one_launch_have_one_name_to_meet_under_and_those_of_another_have_not(of: str) -> None:
    def name(rank: int, job: str) -> str:
        found = find(LAUNCHERS[of](rank, 2, job))
        assert found is not None
        return name_of(found)

    assert name(0, "5") == name(1, "5") != name(0, "6")


def test_no_launcher_is_seen_in_an_environment_without_ranks() -> None:
    for variables in (
        {},
        {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        # a batch script, as sbatch starts it: rank 0 of nothing
        {"SLURM_JOB_ID": "4", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "2"},
        # the same as a step of Slurm's own, and salloc's shell
        row("srun", SLURM_STEP_ID=str(0xFFFFFFFB)),
        row("srun", SLURM_STEP_ID=str(0xFFFFFFFA)),
        {"SLURM_JOB_ID": "4", "SLURM_NTASKS": "2"},
    ):
        assert find(variables) is None, variables


def test_the_innermost_launcher_counts() -> None:
    agent = row("srun", 1, 2)  # torchrun or mpirun as one step of Slurm's, on its second machine
    for inner in ("torchrun", "Open MPI", "MPICH"):
        found = find({**agent, **row(inner, 3, 4)})
        assert found is not None and (found.rank, found.world_size) == (3, 4)
    pmi2 = {"PMI_RANK": "1", "PMI_SIZE": "2"}  # srun --mpi=pmi2 sets these, and no local ones
    found = find({**agent, **pmi2})
    assert found is not None and found.launcher == "srun"
    found = find({"RANK": "0", "WORLD_SIZE": "1", **row("Open MPI", 1, 2)})  # what a Kubernetes operator sets for a pod
    assert found is not None and found.rank == 0 and found.world_size == 1


@pytest.mark.parametrize(
    ("variables", "field", "value", "words"),
    [
        (row("torchrun", RANK=None), "RANK", None, "not set"),
        (row("torchrun", WORLD_SIZE=None), "WORLD_SIZE", None, "not set"),
        (row("torchrun", LOCAL_RANK=None), "LOCAL_RANK", None, "not set"),
        (row("torchrun", LOCAL_WORLD_SIZE=None), "LOCAL_WORLD_SIZE", None, "not set"),
        ({"RANK": "0"}, "WORLD_SIZE", None, "unset"),
        (row("Open MPI", OMPI_COMM_WORLD_SIZE=None), "OMPI_COMM_WORLD_SIZE", None, "not set"),
        (row("MPICH", MPI_LOCALRANKID=None), "MPI_LOCALRANKID", None, "not set"),
        (row("srun", SLURM_LOCALID=None), "SLURM_LOCALID", None, "not set"),
        (row("torchrun", RANK="one"), "RANK", "one", "no whole number"),
        (row("torchrun", RANK="-1"), "RANK", "-1", "no whole number"),
        (row("torchrun", WORLD_SIZE=""), "WORLD_SIZE", "", "no whole number"),
        (row("torchrun", WORLD_SIZE="2.0"), "WORLD_SIZE", "2.0", "no whole number"),
        (row("torchrun", RANK="2"), "RANK", 2, "0 to 1"),
        (row("torchrun", WORLD_SIZE="0"), "WORLD_SIZE", 0, "1 to 16"),
        (row("Open MPI", 1, 17), "OMPI_COMM_WORLD_SIZE", 17, "1 to 16"),
        ({**row("srun", 0, 2), **row("Open MPI", 1, 17)}, "OMPI_COMM_WORLD_SIZE", 17, "1 to 16"),
        (row("torchrun", LOCAL_WORLD_SIZE="3"), "LOCAL_WORLD_SIZE", 3, "WORLD_SIZE is 2"),
        (row("torchrun", LOCAL_WORLD_SIZE="1"), "LOCAL_RANK", 1, "LOCAL_WORLD_SIZE is 1"),
        (row("torchrun", LOCAL_WORLD_SIZE="0"), "LOCAL_WORLD_SIZE", "0", "no number of ranks"),
        (row("torchrun", MASTER_PORT="ssh"), "MASTER_PORT", "ssh", "1 to 65535"),
        (row("torchrun", MASTER_PORT="70000"), "MASTER_PORT", 70000, "1 to 65535"),
        (row("srun", SLURM_STEP_TASKS_PER_NODE="2(x"), "SLURM_STEP_TASKS_PER_NODE", "2(x", "no number of ranks"),
        (row("srun", SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_NODEID="2"), "SLURM_NODEID", 2, "2 machines"),
        (row("torchrun", SGLANG_PROBE_APART="yes"), "SGLANG_PROBE_APART", "yes", "1 or 0"),
    ],
)
def test_a_variable_that_is_missing_or_wrong_is_named_with_its_value_and_a_remedy(
    variables: dict[str, str], field: str, value: object, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        find(variables)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert words in caught.value.remedy


def test_where_rank_0_is_comes_from_the_launcher_or_is_asked_for() -> None:
    def found(of: str, **changed: str | None) -> Launched:
        one = find(row(of, 1, 2, **changed))
        assert one is not None
        return one

    # torchrun's own store listens at MASTER_PORT
    assert found("torchrun", MASTER_ADDR="node1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1").need_address() == "node1:29501"
    assert found("torchrun", MASTER_PORT="65535").address == "localhost:65534"
    assert found("Open MPI", MASTER_ADDR="fd00::1", MASTER_PORT="4000").address == "[fd00::1]:4000"
    assert found("Open MPI", NCCL_COMM_ID="10.0.0.1:5", MASTER_ADDR="x", MASTER_PORT="4000").address == "10.0.0.1:5"
    with pytest.raises(InputError, match="MASTER_ADDR"):
        found("Open MPI").need_address()
    for nodes, first in (("gpu[03-05,9],cpu1", "gpu03"), ("a,b", "a"), ("n[7]-ib", "n7-ib"), ("one", "one")):
        far = found("srun", SLURM_STEP_NODELIST=nodes, SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_NODEID="1", SLURM_LOCALID="0")
        host, _, port = far.need_address().rpartition(":")
        assert far.apart and host == first and 20_000 <= int(port) < 30_000
    assert found("srun", SLURM_JOB_ID="5").address != found("srun", SLURM_JOB_ID="6").address


def test_ranks_on_several_machines_are_told_from_those_on_one() -> None:
    one = find(row("srun", 5, 8, SLURM_STEP_TASKS_PER_NODE="3(x2),2", SLURM_NODEID="1", SLURM_LOCALID="2"))
    assert one is not None and (one.local_rank, one.local_size, one.apart) == (2, 3, True)
    forced = find(row("torchrun", SGLANG_PROBE_APART="1"))
    assert forced is not None and forced.apart and forced.local_rank == 1


def test_without_a_job_id_the_process_that_started_the_ranks_tells_them_from_others_whatever_stands_between(
    tmp_path: Path,
) -> None:
    code = "from sglang_probe._run.launchers import find; print(find().job)"
    variables = {name: value for name, value in row("MPICH").items() if name != "MASTER_ADDR"}
    env = {**launches.bare_environment(), **variables}
    # this process stands for mpirun: it has no rank of its own
    direct = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd=tmp_path)
    shell = f"'{sys.executable}' -c '{code}'; true"
    wrapped = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert direct.stdout == wrapped.stdout
    assert f"process {os.getpid()}," in direct.stdout


# ---------------------------------------------------------------------------------------------------------------------------- they meet


@pytest.mark.parametrize("of", LAUNCHERS)
def test_a_script_joins_and_sums_under_each_launchers_variables(of: str, script: str, tmp_path: Path) -> None:
    with launch([script], of, 2, "11", tmp_path) as ranks:
        said = ranks.said()
    assert [json.loads(one.out) for one in said] == [[rank, 2, "custom", 3.0, 3.0] for rank in range(2)], said
    assert [one.status for one in said] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["join.py"]


def test_two_launches_at_once_do_not_meet(script: str, tmp_path: Path) -> None:
    with launch([script], "torchrun", 2, "a", tmp_path) as one, launch([script], "torchrun", 3, "b", tmp_path) as other:
        first, second = one.said(), other.said()
    assert [json.loads(said.out)[1::2] for said in first] == [[2, 3.0]] * 2, first
    assert [json.loads(said.out)[1::2] for said in second] == [[3, 6.0]] * 3, second


def test_an_absent_rank_is_named_by_all_that_came(script: str, tmp_path: Path) -> None:
    with launch([script, '{"start_timeout_s": 6}'], "Open MPI", 4, "12", tmp_path, ranks=(0, 1, 3)) as ranks:
        said = ranks.said()
    for one in said:
        assert one.status == 4 and one.out.startswith("TimeoutError: rank 2 of 4 never came: rank 0, rank 1 (pid "), one
        assert "OMPI_MCA_ess_base_jobid=12" in one.out and "network namespace" in one.out


def test_without_rank_0_the_others_say_that_it_is_absent(script: str, tmp_path: Path) -> None:
    with launch([script, '{"start_timeout_s": 1}'], "srun", 2, "13", tmp_path, ranks=(1,)) as ranks:
        (one,) = ranks.said()
    assert one.status == 4 and one.out.startswith("TimeoutError: rank 0 of 2 never came: rank 1 (pid "), one


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": '{"max_bytes": 4096}'}, "rank 0 has max_bytes=16777216 and rank 1 max_bytes=4096: give every rank the same"),
        ({"RANK": "0", "LOCAL_RANK": "0"}, "is another rank 0 of it alive?"),
        ({"LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "3"}, "has world_size 3 and rank 0 2"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_alike(changed: dict[str, str], words: str, script: str, tmp_path: Path) -> None:
    limit = {"start_timeout_s": 5}
    zero = launches.Launch([script, json.dumps(limit)], [row("torchrun", 0)], tmp_path)
    options = {**limit, **json.loads(changed.pop("options", "{}"))}
    one = launches.Launch([script, json.dumps(options)], [row("torchrun", 1, 2, **changed)], tmp_path)
    with zero, one:
        said = [*zero.said(), *one.said()]
    assert all(each.status == 4 for each in said), said
    assert any(words in each.out for each in said), said


def test_a_rank_that_comes_twice_is_refused(script: str, tmp_path: Path) -> None:
    with launches.Launch(
        [script, '{"start_timeout_s": 20}'], [row("torchrun", rank, 3) for rank in (0, 1, 1)], tmp_path
    ) as ranks:
        said = ranks.said()
    assert all(one.status == 4 and "both say that they are rank 1" in one.out for one in said), said


def test_a_name_that_a_dead_rank_0_had_is_free_again(script: str, tmp_path: Path) -> None:
    with launch([script], "torchrun", 2, "14", tmp_path, ranks=(0,)) as dead:
        found = find(LAUNCHERS["torchrun"](0, 2, "14"))
        assert found is not None
        _until_listens(name_of(found)).close()
        dead.processes[0].send_signal(signal.SIGKILL)
        dead.processes[0].wait(launches.LIMIT_S)
        with launch([script], "torchrun", 2, "14", tmp_path) as ranks:
            said = ranks.said()
    assert [json.loads(one.out)[3] for one in said] == [3.0, 3.0], said


SQUAT = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX); s.bind("\\0" + sys.argv[1]); s.listen(8)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="taking the name as another user needs root")
def test_a_name_that_another_user_has_is_refused_and_nothing_is_told_to_it(script: str, tmp_path: Path) -> None:
    found = find(row("torchrun", 1))
    assert found is not None
    squatter = subprocess.Popen(
        [sys.executable, "-c", SQUAT, name_of(found)[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert squatter.stdout is not None and squatter.stdout.readline() == "there\n"
        with launch([script, '{"start_timeout_s": 5}'], "torchrun", 2, "77", tmp_path) as ranks:
            zero, one = ranks.said()
    finally:
        squatter.kill()
        squatter.communicate()
    assert f"process {squatter.pid} of another user (65534) is where its ranks were to meet" in zero.out, zero
    assert f"process {squatter.pid} of another user (65534) listens: nothing was told to it" in one.out, one


def test_a_stranger_that_comes_to_the_meeting_is_refused(script: str, tmp_path: Path) -> None:
    with launch([script], "torchrun", 2, "15", tmp_path, ranks=(0,)) as ranks:
        found = find(LAUNCHERS["torchrun"](0, 2, "15"))
        assert found is not None
        with _until_listens(name_of(found)) as stranger:
            stranger.sendall((5).to_bytes(8, "little") + b"hello")
            (zero,) = ranks.said()
    assert zero.status == 4 and f"process {os.getpid()} came, and is no rank of this version" in zero.out, zero


def _until_listens(name: str) -> socket.socket:
    """Connected to it, as soon as there is somebody."""
    end = socket.socket(socket.AF_UNIX)
    launches.until(lambda: end.connect_ex(name) == 0, "nobody listens")
    return end


DIES = """
import os, signal
import numpy as np
from sglang_probe import Coordinator
c = Coordinator.join(device="host", sglang="0.5.9", timeout_s=20.0)
mine = np.ones(64, np.float32)
try:
    for i in range(1000):
        if c.rank == 1 and i == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        c.all_reduce(mine)
        c.wait()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_a_rank_that_dies_in_the_middle_is_named_by_the_others(tmp_path: Path) -> None:
    with launch(["-c", DIES], "MPICH", 3, "16", tmp_path) as ranks:
        said = ranks.said()
    assert [one.status for one in said] == [0, -signal.SIGKILL, 0], said
    for one in (said[0], said[2]):
        assert one.out.startswith("ProbeError: ") and f"rank 1 (pid {ranks.processes[1].pid})" in one.out, one


def test_where_nobody_launched_it_join_says_how_to(tmp_path: Path) -> None:
    code = "from sglang_probe import Coordinator; Coordinator.join()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=launches.bare_environment(), capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "ProbeUnavailable: no launcher started this process" in done.stderr and "torchrun --nproc-per-node" in done.stderr


def test_cpu_ranks_on_several_machines_are_refused_with_the_reason(script: str, tmp_path: Path) -> None:
    variables = row("torchrun", 1, 2, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    with launches.Launch([script], [variables], tmp_path) as ranks:
        (one,) = ranks.said()
    assert one.status == 4 and "ranks on several machines are GPU ranks" in one.out, one


# ------------------------------------------------------------------------------------------------------------------------ real launchers


@pytest.mark.parametrize("name", ["torchrun", "openmpi", "mpich", "srun"])
def test_a_script_joins_and_sums_under_the_real_launcher(name: str, script: str, tmp_path: Path) -> None:
    command, why_not = launches.real(name, 2, [script])
    if why_not:
        pytest.skip(why_not)
    done = launches.run(command, tmp_path)
    rows: list[Any] = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert rows == [[rank, 2, "custom", 3.0, 3.0] for rank in range(2)], done
    assert done.returncode == 0
