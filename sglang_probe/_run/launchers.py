"""Who started this process: torchrun, mpirun or srun, each by the variables that it sets for its ranks. One table, no launcher of ours.

Called by joining.py. Invariant: an environment is a launch, or is none, or is refused by the name of the variable that is wrong: what
is half set is never guessed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .._types import InputError

RANKS_MAX = 16
APART = "SGLANG_PROBE_APART"
"""1: ranks of one machine meet as those of several do. For trying that on one; it takes shared memory away."""


@dataclass(frozen=True)
class Launcher:
    """The variables of one launcher; of several names for one thing the first that is set counts."""

    name: str
    rank: str
    size: tuple[str, ...]
    local_rank: str
    local_size: tuple[str, ...]
    """Ranks on this machine: a number, or srun's list of the machines of a step ("4(x2),3")."""
    job: tuple[str, ...]
    """What tells this launch from others. None of them: the process that started the ranks does."""
    only_with: str = ""
    """Without this variable the others say nothing."""
    node: str = ""
    """Number of this machine, for such a list."""

    def touched(self, environ: Mapping[str, str]) -> bool:
        if self.only_with:
            step = environ.get(self.only_with, "")
            return self.rank in environ and step != "" and not (step.isdigit() and int(step) >= _NO_SRUN)
        return any(name in environ for name in (self.rank, *self.size, self.local_rank, *self.local_size))


_NO_SRUN = 0xFFFFFFF0
"""Slurm's numbers from here on are steps that srun did not start: the batch script's own, and salloc's shell."""

LAUNCHERS = (  # the innermost first: torchrun is started by srun or mpirun, mpirun's own processes by srun, and never the other way round
    Launcher(
        "torchrun",
        "RANK",
        ("WORLD_SIZE",),
        "LOCAL_RANK",
        ("LOCAL_WORLD_SIZE",),
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"),
    ),
    Launcher(
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Launcher("MPICH's or Intel MPI's mpirun", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", ("MPI_LOCALNRANKS",), ()),
    Launcher(
        "srun",
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "SLURM_LOCALID",
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        "SLURM_STEP_ID",
        "SLURM_NODEID",
    ),
)


@dataclass(frozen=True)
class Launched:
    """This process's place in a launch. The same on all of its ranks: launcher, world_size, job and address."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_size: int
    job: str
    """What no other launch has, in words; the name under which ranks of one machine meet is made from it."""
    address: str
    """``host:port`` on rank 0's machine for NCCL's bootstrap; "" where nothing says it."""
    apart: bool
    """Whether its ranks are on several machines, or shall behave so."""

    def __str__(self) -> str:
        where = "several machines" if self.apart else "this machine"
        return f"rank {self.rank} of {self.world_size} on {where}, started by {self.launcher} ({self.job})"

    def need_address(self) -> str:
        """Raises InputError where nobody says where rank 0 is."""
        if not self.address:
            raise InputError(
                "MASTER_ADDR",
                None,
                f"{self.launcher} does not say where rank 0 is: set MASTER_ADDR to its machine and MASTER_PORT to a free port "
                "there, the same for every rank (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)",
            )
        return self.address


def find(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """The launch that this process belongs to; None where none started it. Raises InputError for what is half set or contradicts itself."""
    touched = [launcher for launcher in LAUNCHERS if launcher.touched(environ)]
    first: InputError | None = None
    for launcher in touched:
        try:
            return _read(launcher, environ)
        except InputError as error:
            if error.value is not None:
                raise
            first = first or error  # one is missing; another launcher may have all: srun sets MPICH's rank and size too
    if first is not None:
        raise first
    return None


def _read(launcher: Launcher, environ: Mapping[str, str]) -> Launched:
    size_name, size = _number(launcher, launcher.size, environ)
    _, rank = _number(launcher, (launcher.rank,), environ)
    if not 1 <= size <= RANKS_MAX:
        raise InputError(size_name, size, f"{launcher.name} started {size} ranks; start 1 to {RANKS_MAX}")
    if rank >= size:
        raise InputError(launcher.rank, rank, f"{size_name} is {size}, so ranks are 0 to {size - 1}: {_remedy(launcher)}")
    alone = size == 1
    local_rank = 0 if alone and launcher.local_rank not in environ else _number(launcher, (launcher.local_rank,), environ)[1]
    local_name, local_size = ("", 1) if alone else _local_size(launcher, environ)
    if not alone and local_size > size:
        raise InputError(local_name, local_size, f"{size_name} is {size}: {_remedy(launcher)}")
    if local_rank >= local_size:
        known = f"{local_name} is {local_size}" if local_name else f"{size_name} is {size}"
        raise InputError(launcher.local_rank, local_rank, f"{known}: {_remedy(launcher)}")
    job = "; ".join(_job(launcher, environ))
    apart = size > 1 and (local_size < size or _forced(environ))
    return Launched(launcher.name, rank, size, local_rank, local_size, job, _address(launcher, environ), apart)


def _forced(environ: Mapping[str, str]) -> bool:
    value = environ.get(APART, "")
    if value not in ("", "0", "1"):
        raise InputError(APART, value, "give 1 or 0")
    return value == "1"


def _remedy(launcher: Launcher) -> str:
    return f"start all ranks by {launcher.name}, or unset its variables ({launcher.rank}, {launcher.size[0]}, ...) to run by yourself"


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((name for name in names if name in environ), None)


def _number(launcher: Launcher, names: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, int]:
    name = _first(names, environ)
    if name is None:
        raise InputError(names[0], None, f"it is not set, and others of {launcher.name} are: {_remedy(launcher)}")
    return name, _whole(name, environ[name], _remedy(launcher))


def _whole(name: str, text: str, remedy: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InputError(name, text, f"it is no whole number: {remedy}")
    return int(text)


def _local_size(launcher: Launcher, environ: Mapping[str, str]) -> tuple[str, int]:
    name = _first(launcher.local_size, environ)
    if name is None:
        raise InputError(launcher.local_size[0], None, f"it is not set, and others of {launcher.name} are: {_remedy(launcher)}")
    text = environ[name]
    tasks: list[int] = []
    for part in text.split(",") if launcher.node else [text]:
        found = re.fullmatch(r"([1-9][0-9]{0,8})(?:\(x([1-9][0-9]{0,4})\))?" if launcher.node else r"([1-9][0-9]{0,8})()", part)
        if found is None:
            raise InputError(name, text, f"it is no number of ranks: {_remedy(launcher)}")
        tasks += [int(found[1])] * int(found[2] or 1)
    node = _whole(launcher.node, environ.get(launcher.node, "0"), _remedy(launcher)) if launcher.node and len(tasks) > 1 else 0
    if node >= len(tasks):
        raise InputError(launcher.node, node, f"{name} tells of {len(tasks)} machines: {_remedy(launcher)}")
    return name, tasks[node]


# ------------------------------------------------------------------------------------------------------------------- which launch it is


def _job(launcher: Launcher, environ: Mapping[str, str]) -> Iterator[str]:
    told = [f"{name}={environ[name]}" for name in launcher.job if environ.get(name)]
    yield from told or [f"started by process {_starter(launcher.rank)}"]
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if environ.get(name) and name not in launcher.job:
            yield f"{name}={environ[name]}"


def _starter(variable: str) -> str:
    """The process that gave ranks their variable: the nearest ancestor without it, so that a shell in between does no harm."""
    pid = os.getppid()
    while True:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                has = any(part.startswith(f"{variable}=".encode()) for part in file.read().split(b"\0"))
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # another user's, as Slurm's own are: it is no rank's
            return str(pid)
        if not has or int(fields[1]) <= 1:
            return f"{pid}, born at tick {fields[19]}"
        pid = int(fields[1])


# ---------------------------------------------------------------------------------------------------------------------- where rank 0 is


def _address(launcher: Launcher, environ: Mapping[str, str]) -> str:
    """Of NCCL's root: what NCCL itself was told, MASTER_ADDR and a port, or the first machine of Slurm's step and a port of the job's."""
    told = environ.get("NCCL_COMM_ID", "")
    if told:
        return told
    host = environ.get("MASTER_ADDR", "") or (_first_machine(environ) if launcher.name == "srun" else "")
    port = _port(launcher, environ)
    bare = host.strip("[]")
    return f"{f'[{bare}]' if ':' in bare else bare}:{port}" if bare and port else ""


def _port(launcher: Launcher, environ: Mapping[str, str]) -> int:
    text = environ.get("MASTER_PORT", "")
    if text:
        port = _whole("MASTER_PORT", text, "give a port, 1 to 65535, that is free on rank 0's machine")
        if not 1 <= port <= 65535:
            raise InputError("MASTER_PORT", port, "give a port, 1 to 65535, that is free on rank 0's machine")
        return port + (1 if port < 65535 else -1) if launcher.name == "torchrun" else port  # torchrun itself listens on its own
    if launcher.name != "srun":
        return 0
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    return 20_000 + zlib.crc32(job.encode()) % 10_000


def _first_machine(environ: Mapping[str, str]) -> str:
    """``node[03-05,9],gpu1`` begins with node03; rank 0 is on the first machine of a step."""
    machines = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    found = re.match(r"([^,\[\]]+)(?:\[([0-9]+)[^\]]*\]([^,\[\]]*))?", machines)
    return "" if found is None else found[1] + (found[2] or "") + (found[3] or "")
