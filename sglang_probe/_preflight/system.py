"""Phase `system`: what surrounds the processes: shared memory, limits, containers and their namespaces, and versions that are installed.

Invariant: nothing is imported to learn its version; a bound that matters only with GPUs is a finding only where there are some.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from pathlib import Path

from .inside import Known, Report

_PACKAGES = (
    "sglang_probe",
    "torch",
    "sglang",
    "sgl-kernel",
    "sglang-kernel",
    "numpy",
    "nvidia-ml-py",
    "flashinfer-python",
    "triton",
)
_FIRST = {"ipc": 0xEFFFFFFF, "pid": 0xEFFFFFFC}
"""Inodes of the namespaces that Linux starts with: the host's."""
_SHM_SMALL, _SHM_FREE = 128 << 20, 32 << 20
_FILES = 4096
_MEMLOCK = 1 << 30


def ask(report: Report, known: Known) -> str:
    gpus = int(known.get("devices", {}).get("count") or 0)
    versions = _versions()
    report.fact("versions", versions)
    report.doing("looking at /dev/shm")
    _shared_memory(report, gpus)
    report.doing("looking at limits")
    _limits(report, gpus)
    report.doing("looking for a container")
    container = _container(report)
    report.fact("cores", {"all": os.cpu_count(), "usable": len(os.sched_getaffinity(0))})
    told = [f"Python {versions['python']}", *(f"{name} {versions[name]}" for name in ("torch", "sglang") if versions.get(name))]
    lacking = [name for name in ("torch", "sglang") if not versions.get(name)]
    return ", ".join([*told, *(f"no {name}" for name in lacking), *([f"in a container ({container})"] if container else [])])


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if found["sglang_probe"] is None:  # from its sources
        from .. import __version__

        found["sglang_probe"] = __version__
    return found


def _shared_memory(report: Report, gpus: int) -> None:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError as error:
        report.fact("shm", None)
        report.note(f"/dev/shm: {error.strerror}: NCCL has no shared memory between processes")
        return
    size, free = shm.f_frsize * shm.f_blocks, shm.f_frsize * shm.f_bavail
    report.fact("shm", {"bytes": size, "free": free})
    remedy = "give the container more (docker: --shm-size=16g, or --ipc=host)"
    if gpus > 1 and free < _SHM_FREE:
        report.finding(f"/dev/shm has {free >> 20} MiB left of {size >> 20}: NCCL's start fails without; empty it, or {remedy}")
    elif size <= _SHM_SMALL:
        report.note(f"/dev/shm has {size >> 20} MiB: too little for NCCL where GPUs have no peer access; {remedy}")


def _limits(report: Report, gpus: int) -> None:
    for name, kind in (
        ("memlock", resource.RLIMIT_MEMLOCK),
        ("files", resource.RLIMIT_NOFILE),
        ("processes", resource.RLIMIT_NPROC),
    ):
        soft, hard = resource.getrlimit(kind)
        report.fact(f"limit_{name}", {end: None if value < 0 else value for end, value in (("soft", soft), ("hard", hard))})
    files, memlock = resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if 0 <= files < _FILES:
        report.note(f"a process may open {files} files (ulimit -n): CUDA IPC and NCCL hold several for each peer")
    if gpus and 0 <= memlock < _MEMLOCK and any(Path("/dev/infiniband").glob("uverbs*")):
        report.finding(f"a process may lock {memlock >> 10} KiB (ulimit -l), and InfiniBand needs more: give unlimited")


def _container(report: Report) -> str:
    """Its kind, or "" where nothing hints at one."""
    kind = _kind()
    spaces = {}
    for name, first in _FIRST.items():
        try:
            spaces[name] = "the host's" if os.stat(f"/proc/self/ns/{name}").st_ino == first else "its own"
        except OSError:
            spaces[name] = "not known"
    report.fact("container", kind or None)
    report.fact("namespaces", spaces)
    own = [name.upper() for name, whose in spaces.items() if whose == "its own"]
    if own:
        which = f"its own {' and '.join(own)} namespace{'s' if len(own) > 1 else ''}"
        report.note(
            f"this container has {which}: ranks in it share GPU memory with each other, not with ranks of another container "
            "or of the host (docker: --ipc=host --pid=host)"
        )
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = ""
    report.fact("ptrace_scope", scope or None)
    if scope not in ("", "0"):
        report.note(
            f"kernel.yama.ptrace_scope is {scope}: torch symmetric memory takes descriptors of its peers, which that may forbid"
        )
    return kind


def _kind() -> str:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    for path, kind in (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")):
        if os.path.exists(path):
            return kind
    try:
        words = Path("/proc/1/cgroup").read_text()
    except OSError:
        return ""
    return next((kind for word, kind in (("docker", "Docker"), ("kubepods", "Kubernetes"), ("lxc", "LXC")) if word in words), "")
