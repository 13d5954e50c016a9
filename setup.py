"""Builds the extension modules; metadata lives in pyproject.toml.

Each extension lists the folders that it may be made of: what is globbed here is what enforces the layers (py -> core -> libc).
Invariant: `_core` needs a C11 compiler, Python's headers and NumPy's, and nothing else.

SP_WERROR=1 makes warnings errors. SP_CFLAGS and SP_LDFLAGS append flags (sanitizers, coverage).
"""

import os
import shlex
import sys
from glob import glob

import numpy
from setuptools import Extension, setup

WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]


def sources(*patterns: str) -> list[str]:
    """Sorted, so that a build does not depend on the file system's order."""
    found = [sorted(glob(pattern)) for pattern in patterns]
    if not all(found):
        raise SystemExit(f"setup.py: a pattern of {patterns} matches no file; run it in the repository's root")
    return sum(found, [])


def extension(name: str, *patterns: str) -> Extension:
    werror = ["-Werror"] if os.environ.get("SP_WERROR") == "1" else []
    exports = ["-Wl,--version-script=csrc/py/exports.map"] if sys.platform == "linux" else []
    return Extension(
        f"sglang_probe.{name}",
        sources=sources(*patterns),
        depends=sorted(glob("csrc/*/*.h") + glob("csrc/py/*.map")),
        include_dirs=["csrc", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=[
            "-std=c11",
            "-O3",
            "-fvisibility=hidden",
            *WARNINGS,
            *werror,
            *shlex.split(os.environ.get("SP_CFLAGS", "")),
        ],
        extra_link_args=exports + shlex.split(os.environ.get("SP_LDFLAGS", "")),
    )


setup(ext_modules=[extension("_core", "csrc/core/*.c", "csrc/py/core_*.c")])
