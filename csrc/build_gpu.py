"""Where CUDA's compiler and headers and NCCL's header are, and how `_gpu` is built of them. Called by setup.py and by tests.

A toolkit is one folder that holds nvcc, the headers and the static runtime: a CUDA toolkit, or what the CUDA packages of the Python
index leave in site-packages (nvidia/cu13). Invariant: all of it comes from one folder, because mixed versions do not compile, or do.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

PACKAGES = "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.* nvidia-nccl-cu13"
OLDEST_NCCL = (2, 27)
ARCHS = "90 100"  # our kernels use what Hopper brought (griddepcontrol)
HOST_FLAGS = "-fPIC,-fno-threadsafe-statics,-fvisibility=hidden"


@dataclass(frozen=True)
class Found:
    """What `_gpu` is built of; `lines` say what was found or missing, for people."""

    nvcc: str = ""
    include: str = ""
    cudart: str = ""
    nccl: str = ""
    lines: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.nvcc and self.nccl)


def _packages() -> list[Path]:
    """Folders of this Python that packages lie in; `nvidia` is a namespace, so it may be in any of them."""
    places = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    return [Path(p) / "nvidia" for p in dict.fromkeys(places) if p and (Path(p) / "nvidia").is_dir()]


def toolkit_roots() -> list[Path]:
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    compiler = shutil.which("nvcc")
    on_path = [Path(compiler).resolve().parents[1]] if compiler else []
    packaged = [folder / "cu13" for folder in _packages() if (folder / "cu13").is_dir()]
    return list(dict.fromkeys([*map(Path, named), *on_path, *packaged, Path("/usr/local/cuda")]))


def nccl_roots(toolkit: Path | None) -> list[Path]:
    named = [os.environ[name] for name in ("NCCL_HOME", "NCCL_ROOT") if os.environ.get(name)]
    packaged = [folder / "nccl" for folder in _packages()]
    return [*map(Path, named), *packaged, *([toolkit] if toolkit else []), Path("/usr"), Path("/usr/local")]


def _first(candidates: Iterable[Path]) -> str:
    return next((str(c) for c in candidates if c.exists()), "")


def _toolkit(root: Path) -> tuple[Found, list[str]]:
    """What this folder has, and the names of what it lacks."""
    found = Found(
        nvcc=_first([root / "bin/nvcc"]),
        include=str(root / "include") if (root / "include/cuda_runtime_api.h").exists() else "",
        cudart=_first(root / lib / "libcudart_static.a" for lib in ("lib64", "lib", "targets/x86_64-linux/lib")),
    )
    parts = {"bin/nvcc": found.nvcc, "include/cuda_runtime_api.h": found.include, "libcudart_static.a": found.cudart}
    return found, [name for name, path in parts.items() if not path]


def _nccl_version(header: Path) -> tuple[int, int]:
    text = header.read_text(errors="replace")
    numbers = [re.search(rf"^#define NCCL_{part} (\d+)", text, re.M) for part in ("MAJOR", "MINOR")]
    return tuple(int(n[1]) if n else 0 for n in numbers)  # type: ignore[return-value] # two parts


def discover() -> Found:
    """Look everywhere, in order, and say in `lines` what was found and what is missing."""
    lines: list[str] = []
    toolkit, root = Found(), None
    for candidate in toolkit_roots():
        if not candidate.is_dir():
            continue
        toolkit, missing = _toolkit(candidate)
        if not missing:
            root = candidate
            lines.append(f"CUDA: {candidate}")
            break
        lines.append(f"CUDA: {candidate} has no {', no '.join(missing)}")
        toolkit = Found()
    if root is None:
        lines.append(f"CUDA: missing; set CUDA_HOME, or install {PACKAGES}")
    nccl = ""
    for folder in nccl_roots(root):
        header = folder / "include/nccl.h"
        if nccl or not header.exists():
            continue
        version = _nccl_version(header)
        text = ".".join(map(str, version))
        if version >= OLDEST_NCCL:
            nccl = str(header.parent)
            lines.append(f"NCCL: nccl.h {text} in {nccl}")
        else:
            lines.append(f"NCCL: nccl.h {text} in {header.parent} is older than {'.'.join(map(str, OLDEST_NCCL))}")
    if not nccl:
        lines.append("NCCL: nccl.h is missing; set NCCL_HOME, or install nvidia-nccl-cu13")
    return Found(toolkit.nvcc, toolkit.include, toolkit.cudart, nccl, lines)


class GpuExtension(Extension):
    """An extension with CUDA sources; `werror` makes nvcc's warnings errors."""

    def __init__(self, *args: object, found: Found, cuda: list[str], werror: bool, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type] # setuptools' own arguments, passed on
        self.found, self.cuda, self.werror = found, cuda, werror


def archs() -> list[str]:
    """nvcc's flags: machine code for each of SP_CUDA_ARCHS, and PTX of the newest for what comes after it."""
    wanted = os.environ.get("SP_CUDA_ARCHS", ARCHS).replace(",", " ").split()
    newest = max(wanted, key=lambda arch: int(re.sub(r"\D", "", arch) or 0))
    codes = {arch: f"[sm_{arch},compute_{arch}]" if arch == newest else f"sm_{arch}" for arch in wanted}
    return [flag for arch, code in codes.items() for flag in ("-gencode", f"arch=compute_{arch},code={code}")]


class BuildExt(build_ext):
    """Compiles CUDA sources by nvcc; the C compiler links, so that no C++ runtime comes in."""

    def build_extension(self, ext: Extension) -> None:
        if isinstance(ext, GpuExtension):
            ext.extra_objects = [*self._objects(ext), ext.found.cudart]
        super().build_extension(ext)

    def _objects(self, ext: GpuExtension) -> list[str]:
        objects = []
        for source in ext.cuda:
            target = Path(self.build_temp) / (source + ".o")
            target.parent.mkdir(parents=True, exist_ok=True)
            objects.append(str(target))
            newest = max(os.path.getmtime(path) for path in [source, *ext.depends])
            if not self.force and target.exists() and target.stat().st_mtime > newest:
                continue
            flags = [
                "-O3",
                "-std=c++17",
                "-Icsrc",
                "-Xcompiler",
                HOST_FLAGS,
                *(["-Werror", "all-warnings"] if ext.werror else []),
            ]
            subprocess.run([ext.found.nvcc, "-c", *flags, *archs(), source, "-o", str(target)], check=True)
        return objects
