"""Ranks started as torchrun, mpirun and srun start them: by their variables alone, or really. Imported by test_launched*.py and gpu/.

Invariant: no process outlives its test, and none sees variables of a launcher under which the tests themselves may run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Variables = Callable[[int, int, str], dict[str, str]]
LIMIT_S = 120
_FOREIGN = ("OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
_OF_THE_MACHINE = ("OMPI_MCA_plm", "OMPI_MCA_btl", "OMPI_MCA_rmaps")
"""How Open MPI starts ranks here, which no launch sets: where there is no ssh it does not start without the first."""
_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NCCL_COMM_ID",
    "SGLANG_PROBE_APART",
)


def _torchrun(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "TORCHELASTIC_RUN_ID": job,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


def _by_hand(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": job,
    }


def _open_mpi(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "OMPI_MCA_ess_base_jobid": job,
    }


def _mpich(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": str(size),
        "MASTER_ADDR": job,
    }


def _srun(rank: int, size: int, job: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_NODEID": "0",
        "SLURM_STEP_NODELIST": "localhost",
    }


LAUNCHERS: dict[str, Variables] = {
    "torchrun": _torchrun,
    "torchrun's variables, set by hand": _by_hand,
    "Open MPI": _open_mpi,
    "MPICH": _mpich,
    "srun": _srun,
}


def bare_environment() -> dict[str, str]:
    """This one without any launcher's variables; this very package is found."""
    kept = {
        n: v for n, v in os.environ.items() if n.startswith(_OF_THE_MACHINE) or n not in _NAMES and not n.startswith(_FOREIGN)
    }
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@dataclass(frozen=True)
class Said:
    """How a rank ended, and what it printed."""

    status: int
    out: str
    err: str


class Launch:
    """Ranks as plain processes. ``with Launch(...) as launch: launch.said()``"""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], cwd: str | os.PathLike[str]) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self._command, self._environments, self._cwd = command, environments, cwd

    def __enter__(self) -> Launch:
        for variables in self._environments:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *self._command],
                    env={**bare_environment(), **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=self._cwd,
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def said(self) -> list[Said]:
        """By rank, when all have ended."""
        texts = [process.communicate(timeout=LIMIT_S) for process in self.processes]
        return [Said(process.returncode, *both) for process, both in zip(self.processes, texts, strict=True)]


def launch(
    command: Sequence[str], of: str, size: int, job: str, cwd: str | os.PathLike[str], ranks: Sequence[int] = ()
) -> Launch:
    """``size`` ranks, or those of ``ranks`` alone, with one launcher's variables."""
    return Launch(command, [LAUNCHERS[of](rank, size, job) for rank in ranks or range(size)], cwd)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """One command to its end, as no launcher's child."""
    return subprocess.run(
        command, env=bare_environment(), capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=folder
    )


def until(condition: Callable[[], object], what: str) -> None:
    """Looks until it is so."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------------------------------ real launchers


def _root(*options: str) -> list[str]:
    return list(options) if os.getuid() == 0 else []


def real(name: str, size: int, python: Sequence[str]) -> tuple[list[str], str]:
    """(the command that starts ``python ...`` on so many ranks, "" or why it cannot be had here)."""
    if name == "torchrun":
        try:
            import torch.distributed.run  # noqa: F401 # whether it is there is the question
        except ImportError as error:
            return [], f"torchrun is not here: {error}"
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), *python], ""
    if name == "srun":
        found = shutil.which("srun")
        try:
            if found is None or subprocess.run(["sinfo"], capture_output=True, check=False, timeout=20).returncode:
                return [], "srun is not here, or has no cluster"
        except (OSError, subprocess.TimeoutExpired):
            return [], "srun is here, and its cluster does not answer"
        return [found, "-n", str(size), sys.executable, *python], ""
    for program in (f"mpirun.{name}", "mpirun"):
        found = shutil.which(program)
        if found is None:
            continue
        version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
        if name == "openmpi" and "Open MPI" in version:
            options = [*_root("--allow-run-as-root"), "--oversubscribe"]
            return [found, *options, "-n", str(size), sys.executable, *python], ""
        if name == "mpich" and ("HYDRA" in version or "Intel" in version):
            return [found, "-n", str(size), sys.executable, *python], ""
    return [], f"no mpirun of {name} is here"
