"""What a measurement is stamped with: the code, the machine, its GPUs, NCCL, the environment that matters; and its state around a cell.

Called by benches (`stamp` once, `Monitor.state` around each cell). Nothing here needs a GPU.
Invariant: what cannot be found is told in `Provenance.missing`, never guessed; no secret and no host's plain name is kept.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .. import gpu
from .._types import ProbeError
from .gpus import Gpus
from .measurement import Provenance

PREFIXES = (
    "NCCL_",
    "CUDA_",
    "SGLANG_",
    "SGL_",
    "TORCH_",
    "PYTORCH_",
    "MSCCLPP_",
    "FLASHINFER_",
    "NVSHMEM_",
    "UCX_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
)
NAMES = (
    *(
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    *("MALLOC_CONF", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONHASHSEED", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.I)
_WITHHELD = "(set; not kept)"
_DIGITS = 16
"""Of a SHA-256: enough to tell two apart, short enough to compare by eye."""
_GIT_SECONDS = 20
_FOLDER = Path(__file__).resolve().parents[1]
_GPU_FILES = "/proc/driver/nvidia/gpus/*/information"
"""What NVIDIA's kernel module tells of each GPU, without a call into the driver."""
_MACHINE_ID = Path("/etc/machine-id")
_NO_NAMES = ("", "localhost", "localhost.localdomain")
"""Names that any container may have."""


def stamp(nccl: str | os.PathLike[str] | None = None) -> Provenance:
    """All that this machine tells of itself now. `nccl`: the library that communicators were told to open; else the one they would find.

    Opens that library, and asks git, `/proc`, and NVIDIA's driver where nvidia-ml-py is installed. Never raises for what is not there.
    """
    from .. import __version__

    missing: dict[str, str] = {}
    host = socket.gethostname()
    with Monitor() as monitor:
        described, state = monitor.gpus.describe(), monitor.state()
        identity = host_identity(monitor.gpus)
    missing.update(described.pop("missing"))
    if not identity:
        missing["host"] = f"no GPU, no {_MACHINE_ID}, and a name that every container has: it cannot be told from another"
    return Provenance(
        version=__version__,
        revision=_revision(_FOLDER, missing),
        binaries={name: text for name in ("_core", "_gpu") if (text := _binary(name, missing))},
        started=state["at"],
        host=identity,
        system=_system(),
        cpu=_cpu(Path("/proc/cpuinfo"), missing),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        nccl=_nccl(nccl, missing),
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
        env=environment(os.environ, host),
        state=state,
        missing=missing,
        **described,
    )


def machine_state() -> dict[str, Any]:
    """The machine now: UTC, load averages, and of each GPU clocks, power, temperature, throttle reasons. For many, keep a `Monitor`."""
    with Monitor() as monitor:
        return monitor.state()


def host_identity(gpus: Gpus | None = None) -> str:
    """What tells this machine from others, hashed: ``gpus:``, ``machine:`` or ``name:`` and 16 digits; "" where nothing does.

    The UUIDs of its GPUs, as the kernel's module lists them, else as the driver does (`gpus`, where it is open already): a container that
    is given some of them is another machine. Without GPUs /etc/machine-id and the CPU's model (containers of one image may share the
    first); without that the host's name, which a container changes at each start.
    """
    found = _uuids_of_files() or _uuids_of_driver(gpus)
    if found:
        return f"gpus:{_hash(' '.join(['sglang_probe gpus', *sorted(found)]).encode())}"
    try:
        machine = _MACHINE_ID.read_text(errors="replace").strip()
    except OSError:
        machine = ""
    if machine not in ("", "uninitialized"):
        model = _cpu(Path("/proc/cpuinfo"), {})["model"]
        return f"machine:{_hash(f'sglang_probe machine {machine} {model}'.encode())}"
    name = socket.gethostname()
    return "" if name.lower() in _NO_NAMES else f"name:{_hash(f'sglang_probe host {name}'.encode())}"


def _uuids_of_files() -> set[str]:
    """All of them or none: a part of them would be another machine."""
    found = set()
    for name in glob.glob(_GPU_FILES):
        try:
            uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", Path(name).read_text(errors="replace"), re.M)
        except OSError:
            return set()
        if uuid is None:  # of a GPU that was not used yet, question marks
            return set()
        found.add(uuid[1])
    return found


def _uuids_of_driver(gpus: Gpus | None) -> set[str]:
    opened = Gpus() if gpus is None else gpus
    try:
        told = [one["uuid"] for one in opened.state()]
    finally:
        if gpus is None:
            opened.close()
    return set(told) if all(told) else set()


class Monitor:
    """Keeps NVIDIA's driver open, so that a state costs no initialisation. ``with Monitor() as monitor: monitor.state()``."""

    def __init__(self) -> None:
        self.gpus = Gpus()

    def state(self) -> dict[str, Any]:
        """Plain data, for Cell.before and Cell.after."""
        load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
        return {"at": _now(), "load": load, "gpus": self.gpus.state()}

    def close(self) -> None:
        self.gpus.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment(env: Mapping[str, str], host: str) -> dict[str, str]:
    """The variables that matter, by name; without secrets and without this host's name."""
    names = sorted(name for name in env if name.startswith(PREFIXES) or name in NAMES)
    return {_text(name): _WITHHELD if _SECRET.search(name) else _text(_hide(env[name], host)) for name in names}


def _hide(value: str, host: str) -> str:
    """Its full name as well as its first part, as whole words; "localhost" says nothing of anyone."""
    for name in dict.fromkeys((host, host.split(".")[0])):
        if len(name) > 2 and name != "localhost":
            value = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<host>", value, flags=re.I)
    # user:password@ of a URL
    return re.sub(r"(?<=://)[^/@\s]+@", "<user>@", value)


def _text(value: str) -> str:
    """What the system calls text may hold bytes that are none."""
    return value.encode("utf-8", "backslashreplace").decode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


# --------------------------------------------------------------------------------------------------------------------- the code


def _revision(folder: Path, missing: dict[str, str]) -> str:
    """The commit of the checkout that tracks this very code; with a hash of what was changed since."""
    git = shutil.which("git")
    if git is None:
        missing["revision"] = "git is not installed"
        return ""
    try:
        tracked = _git(git, folder, "ls-files", "--error-unmatch", "__init__.py")
        if tracked is None:
            missing["revision"] = "this code does not run from a git checkout that git will read"
            return ""
        commit = (_git(git, folder, "rev-parse", "--verify", "HEAD") or b"").decode().strip()
        changes = _git(git, folder, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD") or b""
    except subprocess.TimeoutExpired:
        missing["revision"] = f"git did not answer in {_GIT_SECONDS} s"
        return ""
    return commit + (f"+{_hash(changes)}" if commit and changes else "")


def _git(git: str, folder: Path, *command: str) -> bytes | None:
    """What git says; None where it refuses. A hook's GIT_DIR would be another repository's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run([git, "-C", str(folder), *command], capture_output=True, env=env, timeout=_GIT_SECONDS, check=False)
    return done.stdout if done.returncode == 0 else None


def _binary(name: str, missing: dict[str, str]) -> str:
    spec = importlib.util.find_spec(f"sglang_probe.{name}")
    if spec is None or not spec.origin:
        missing[f"binaries.{name}"] = "it is not built"
        return ""
    try:
        return _hash(Path(spec.origin).read_bytes())
    except OSError as error:
        missing[f"binaries.{name}"] = f"it cannot be read: {error.strerror}"
        return ""


# ------------------------------------------------------------------------------------------------------------------- the machine


def _system() -> dict[str, str]:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return {
        "os": _text(name or platform.system()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


def _cpu(info: Path, missing: dict[str, str]) -> dict[str, Any]:
    try:
        found = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(errors="replace"), re.M)
    except OSError as error:
        found, missing["cpu.model"] = [], f"{info}: {error.strerror}"
    if not found:
        missing.setdefault("cpu.model", f"{info} does not tell")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"model": found[0].strip() if found else "", "cores": os.cpu_count(), "usable": usable}


def _nccl(path: str | os.PathLike[str] | None, missing: dict[str, str]) -> dict[str, str]:
    try:
        return {name: _text(value) for name, value in gpu.nccl(path).to_dict().items()}
    except (ProbeError, ImportError) as error:
        missing["nccl"] = _text(str(error))
        return {}
