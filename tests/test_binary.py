"""Contracts of the shared object: what it exports, what it needs, what importing it costs, and that a failed allocation is an error.

Invariant: every check looks at the file or the process that a user has, never at the sources.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from core_calls import BAD, GOOD, public_functions

from sglang_probe import _core

LIBRARY = Path(_core.__file__)
ELSEWHERE = LIBRARY.parents[1]  # a new process starts there, so that `import sglang_probe` finds the package that is tested
HEAVY = ["torch", "scipy", "matplotlib", "rich", "ipywidgets", "IPython", "pandas", "sglang"]


def _tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} (binutils) is not here")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_no_symbol_of_ours_can_clash_with_another_library() -> None:
    symbols = {line.split()[-1] for line in _tool("nm", "-D", "--defined-only", str(LIBRARY)).splitlines()}
    assert symbols - {"_init", "_fini", "__bss_start", "_edata", "_end"} == {"PyInit__core"}


def test_it_loads_where_there_is_no_gpu_software() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", _tool("readelf", "-d", str(LIBRARY)))
    assert needed
    allowed = re.compile(r"^(libc|libm|libpthread|libgcc_s|ld-linux.*|libpython3.*)\.so")
    assert [name for name in needed if not allowed.match(name)] == []


def test_every_public_function_is_in_the_table() -> None:
    assert public_functions() == set(GOOD) == set(BAD)


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_arguments_are_an_exception(name: str) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        BAD[name]()


_NO_MEMORY = """
import sys, _testcapi
sys.path.insert(0, sys.argv[1])
from core_calls import GOOD
thunk = GOOD[sys.argv[2]]
held = []
def drain(count):  # what lies on free lists would be handed out without an allocation that can fail
    held.append([tuple([None] * n) for n in range(1, 21) for _ in range(count)])
    held.append([([], {}, float(n)) for n in range(count)])
thunk()
drain(2100)
good = None
for first in range(5000):
    drain(40)
    _testcapi.set_nomemory(first, first + 1)
    try:
        thunk()
        good = True
    except MemoryError:
        good = False
    except BaseException as error:
        _testcapi.remove_mem_hooks()
        print("allocation", first, "failed as", repr(error))
        sys.exit(3)
    finally:
        _testcapi.remove_mem_hooks()
    if good:
        break
else:
    sys.exit(4)
thunk()
print("failed in turn:", first)
"""


@pytest.mark.parametrize("name", sorted(GOOD))
def test_running_out_of_memory_is_a_memory_error_and_no_crash(name: str) -> None:
    pytest.importorskip("_testcapi", reason="this Python comes without _testcapi, which fails allocations")
    done = subprocess.run(
        [sys.executable, "-c", _NO_MEMORY, str(Path(__file__).resolve().parent), name],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ELSEWHERE,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"


# Resident memory over NumPy's own, in a process of its own: after the import, and after every public name was looked up.
_IMPORT = """
import json, sys
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
import numpy
before, names = resident(), set(sys.modules)
import sglang_probe
if sys.argv[1] == "every_name":
    for name in sglang_probe.__all__:
        getattr(sglang_probe, name)
print(json.dumps({"bytes": resident() - before, "modules": sorted(set(sys.modules) - names)}))
"""


@pytest.mark.parametrize(("used", "limit_mib"), [("import_only", 15), ("every_name", 26)])
def test_importing_is_cheap_and_loads_nothing_heavy(used: str, limit_mib: int) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc: resident memory is read there")
    done = subprocess.run([sys.executable, "-c", _IMPORT, used], capture_output=True, text=True, cwd=ELSEWHERE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "sglang_probe" in found["modules"]
    assert [name for name in found["modules"] if name.split(".")[0] in HEAVY] == []
    assert found["bytes"] < limit_mib << 20
