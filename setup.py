"""Builds the extension modules; metadata lives in pyproject.toml.

Each extension lists the folders that it may be made of: what is globbed here is what enforces the layers (py -> gpu, host -> core ->
libc). `_core` needs a C11 compiler, Python's headers and NumPy's. `_gpu` is built where CUDA and nccl.h are found, and says what is missing
where they are not. Invariant: `_core` never depends on what `_gpu` needs.

SP_GPU=0 leaves `_gpu` out, SP_GPU=1 makes its absence an error. SP_CUDA_ARCHS="90" builds for fewer GPUs. SP_WERROR=1 makes warnings
errors. SP_CFLAGS and SP_LDFLAGS append flags (sanitizers, coverage).
"""

import importlib
import os
import shlex
import sys
from glob import glob

import numpy
from setuptools import Extension, setup

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "csrc"))
build_gpu = importlib.import_module("build_gpu")

LINUX = sys.platform == "linux"
WERROR = os.environ.get("SP_WERROR") == "1"
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", *(["-Werror"] if WERROR else [])]


def sources(*patterns: str) -> list[str]:
    """Sorted, so that a build does not depend on the file system's order."""
    found = [sorted(glob(pattern)) for pattern in patterns]
    if not all(found):
        raise SystemExit(f"setup.py: a pattern of {patterns} matches no file; run it in the repository's root")
    return sum(found, [])


def arguments(*patterns: str, flags: tuple[str, ...] = (), link: tuple[str, ...] = ()) -> dict[str, list[object]]:
    exports = ["-Wl,--version-script=csrc/py/exports.map"] if LINUX else []
    optional = shlex.split(os.environ.get("SP_CFLAGS", ""))
    return {
        "sources": sources(*patterns),
        "depends": sorted(glob("csrc/*/*.h") + glob("csrc/py/*.map")),
        "include_dirs": ["csrc"],
        "define_macros": [("_GNU_SOURCE", "1")] if LINUX else [],
        "extra_compile_args": ["-std=c11", "-O3", "-fvisibility=hidden", *WARNINGS, *flags, *optional],
        "extra_link_args": [*exports, *link, *shlex.split(os.environ.get("SP_LDFLAGS", ""))],
    }


def core() -> Extension:
    made = arguments("csrc/core/*.c", "csrc/host/*.c", "csrc/py/core_*.c")
    made["include_dirs"] += [numpy.get_include()]
    made["define_macros"] += [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")]
    return Extension("sglang_probe._core", **made)


def gpu() -> list[Extension]:
    wish = os.environ.get("SP_GPU", "")
    if wish not in ("", "0", "1"):
        raise SystemExit(f"setup.py: SP_GPU={wish}: 0 leaves _gpu out, 1 demands it, unset builds it where it can be")
    if wish == "0" or not LINUX:
        print("setup.py: _gpu: left out", "(SP_GPU=0)" if wish == "0" else "(it needs Linux)")
        return []
    found = build_gpu.discover()
    for line in found.lines:
        print("setup.py: _gpu:", line)
    if not found:
        if wish == "1":
            raise SystemExit("setup.py: SP_GPU=1, and _gpu cannot be built: " + "; ".join(found.lines))
        print("setup.py: _gpu: not built; everything else works without it")
        return []
    # What the core has that the GPU's code calls: no rules, and of gates only the table of dtypes beside them.
    shared = [f"csrc/core/{name}.c" for name in ("status", "deadline", "region", "gate")]
    system = ("-isystem", found.include, "-isystem", found.nccl)
    link = ("-Wl,--as-needed", "-ldl", "-lpthread", "-lrt")
    made = arguments("csrc/gpu/*.c", "csrc/py/gpu_*.c", *shared, flags=system, link=link)
    made["depends"] += sorted(glob("csrc/gpu/*.cu*"))  # a changed kernel is linked anew
    return [build_gpu.GpuExtension("sglang_probe._gpu", found=found, cuda=sources("csrc/gpu/*.cu"), werror=WERROR, **made)]


setup(ext_modules=[core(), *gpu()], cmdclass={"build_ext": build_gpu.BuildExt})
