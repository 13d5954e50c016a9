"""Greps and symbol tables: known mistakes that no compiler tells, and layers that must stay apart.

Invariant: each pattern is tried on a line that it must find, so that a broken pattern cannot pass for a clean tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# pattern, folders, a line that it must find, why
MISTAKES = [
    (r"\b(?:f|v|vf)?printf\(|\bputs\(|\bperror\(", "csrc", 'printf("x");', "library code never prints"),
    (r"(?<![>.])\b(?:exit|_exit|abort|quick_exit|raise)\(", "csrc", "abort();", "library code never ends the process"),
    (r"Python\.h|numpy/", "csrc/core csrc/host csrc/gpu", "#include <Python.h>", "only csrc/py knows Python"),
    (r"cuda_runtime|nccl\.h", "csrc/core csrc/host csrc/py", "#include <nccl.h>", "only csrc/gpu knows CUDA and NCCL"),
    (r"\b(?:malloc|calloc|realloc|strdup)\(", "csrc/core", "p = malloc(8);", "the core's callers own every buffer"),
    (r"\b(?:strcpy|strcat|sprintf|gets|strtok)\(", "csrc", "strcpy(a, b);", "a copy without a bound"),
    (
        r"^\s*(?:PyModule_AddObject|PyModule_Create|PyEval_CallObject)\(",
        "csrc/py",
        "PyModule_Create(&m);",
        "a newer call replaced it",
    ),
    (r"->\s*ob_type\b|\bPyTuple_SetItem\b", "csrc/py", "x->ob_type", "a macro or a checked call stands for it"),
    (r"^\s*return PyErr_", "csrc/py", "  return PyErr_Occurred();", "it does not return NULL on every Python"),
    (r"\bTODO\b|\bFIXME\b|\bXXX\b", "csrc sglang_probe tests", "/* TODO */", "finish it, or say in words what is missing"),
    (r"\bexcept\s*:|except Exception:\s*pass", "sglang_probe", "except:", "an error that nobody sees"),
    (r"\bassert True\b", "tests", "assert True", "a test that cannot fail"),
    (r"\btime\.sleep\(|\bperf_counter\b[^\n]*<", "tests/test_*.py", "time.sleep(1)", "no timed assertion"),
]
# Results of a size that no caller can know; each has its own sp_..._free, and the hot path never meets them.
EXCEPTED = {("cover.c", "the core's callers own every buffer"), ("classes.c", "the core's callers own every buffer")}
# Words of any place where this was written, put together here so that this file does not hold them.
FOREIGN = re.compile(
    "|".join(["/" + "work/", "/" + "tmp/sgl", "py" + r"pi\.org", "pythonhosted" + r"\.org", "deb" + r"ian\.org"])
)
HERE = Path(__file__).name


def _files(root: Path, folders: str) -> Iterator[Path]:
    for folder in folders.split():
        found = root.glob(folder) if "*" in folder else (root / folder).rglob("*")
        yield from (f for f in found if f.suffix in (".c", ".h", ".cu", ".py", ".pyi") and f.name != HERE)


def _code(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without string literals' contents and without C comments."""
    text = path.read_text()
    if path.suffix in (".c", ".h", ".cu"):
        text = re.sub(r"/\*.*?\*/", lambda m: m[0] if "TODO" in m[0] else "\n" * m[0].count("\n"), text, flags=re.S)
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"', lambda m: m[0] if m[0].endswith('.h"') else '""', text)
    yield from enumerate(text.splitlines(), 1)


@pytest.mark.parametrize(("pattern", "folders", "example", "why"), MISTAKES, ids=[m[3] for m in MISTAKES])
def test_known_mistakes_are_not_made(root: Path, pattern: str, folders: str, example: str, why: str) -> None:
    finder = re.compile(pattern)
    assert finder.search(example), "the pattern does not find its own example"
    files = list(_files(root, folders))
    assert files, f"no file in {folders}"
    found = [
        f"{f.relative_to(root)}:{n}: {line.strip()}"
        for f in files
        for n, line in _code(f)
        if finder.search(line) and (f.name, why) not in EXCEPTED
    ]
    assert not found, why + "\n" + "\n".join(found)


def _tracked(root: Path) -> list[Path]:
    if shutil.which("git") is None or not (root / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the project is not known")
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [root / name for name in names if name and (root / name).is_file()]


def test_the_project_speaks_of_itself_alone(root: Path) -> None:
    found = []
    for path in _tracked(root):
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(root)}: {match[0]}" for match in FOREIGN.finditer(text)]
    assert not found


def test_every_file_says_what_it_holds_before_it_starts(root: Path) -> None:
    missing = []
    for path in _files(root, "csrc sglang_probe tests"):
        first = path.read_text().lstrip()
        opening = ("/*", "//") if path.suffix in (".c", ".h", ".cu") else ('"""', 'r"""', "#")
        if first and not first.startswith(opening):
            missing.append(str(path.relative_to(root)))
    assert not missing


def test_no_file_grew_past_what_one_can_read(root: Path) -> None:
    """400 lines hold one noun; released data and lists are not read as a text."""
    long = {
        str(p.relative_to(root)): n for p in _files(root, "csrc sglang_probe") if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long


# Symbols of each object: T code, R constants, D and d initialised data, B and b zeroed data, C common.
def _symbols(root: Path, tmp_path: Path, source: Path) -> list[tuple[str, str]]:
    compiler = os.environ.get("CC", "cc")
    for tool in (compiler, "nm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here")
    output = tmp_path / (source.stem + ".o")
    # -fPIC would move constants with relocations into .data.rel.ro, which nm calls d as well.
    subprocess.run(
        [compiler, "-std=c11", "-D_GNU_SOURCE=1", "-O1", "-fno-pic", "-Icsrc", "-c", str(source), "-o", str(output)],
        check=True,
        cwd=root,
    )
    lines = subprocess.run(["nm", "-P", str(output)], check=True, capture_output=True, text=True).stdout.splitlines()
    return [(line.split()[0], line.split()[1]) for line in lines]


def test_the_core_has_no_state_and_its_names_cannot_clash(root: Path, tmp_path: Path) -> None:
    sources = sorted((root / "csrc/core").glob("*.c"))
    assert sources
    allowed = {"error_text"}  # thread-local
    wrong, outside = [], []
    for source in sources:
        for name, kind in _symbols(root, tmp_path, source):
            if kind in "dDbBC" and name.split(".")[0] not in allowed:
                wrong.append(f"{source.name}: {name}")
            # Weak names are what target_clones makes.
            if kind in "TRDBC" and not name.startswith("sp_") and ".resolver" not in name:
                outside.append(f"{source.name}: {name}")
    assert not wrong, "writable globals: " + ", ".join(wrong)
    assert not outside, "external names without sp_: " + ", ".join(outside)
