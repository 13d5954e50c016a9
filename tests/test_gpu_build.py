"""The GPU extension where there is no GPU: is it found, built, left out or refused with the right reason; which libnccl would be opened.

What only a built `_gpu` can show is skipped where it is not built; `.ci/run gpu` builds it and runs this file again. Invariant: no
test here needs a driver.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sglang_probe
from sglang_probe import gpu
from sglang_probe._types import ProbeUnavailable

BUILT = importlib.util.find_spec("sglang_probe._gpu") is not None
needs_built = pytest.mark.skipif(not BUILT, reason="_gpu is not built here: no CUDA or no nccl.h, or SP_GPU=0")


def run_python(code: str, **environment: str) -> str:
    """What a fresh process prints, of the package that is tested and not of a folder that it happens to start in."""
    env = {name: value for name, value in os.environ.items() if name != "SGLANG_NCCL_SO_PATH"} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def build_gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """csrc/build_gpu.py, blind to what this machine has."""
    monkeypatch.syspath_prepend(str(root / "csrc"))
    module = importlib.import_module("build_gpu")
    for name in ("CUDA_HOME", "CUDA_PATH", "NCCL_HOME", "NCCL_ROOT", "SP_CUDA_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "_packages", list)
    return module


def toolkit(folder: Path, without: str = "") -> Path:
    for name in ("bin/nvcc", "include/cuda_runtime_api.h", "lib64/libcudart_static.a"):
        if name != without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    return folder


def nccl_header(folder: Path, version: str) -> Path:
    (folder / "include").mkdir(parents=True, exist_ok=True)
    major, minor = version.split(".")
    (folder / "include/nccl.h").write_text(f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n")
    return folder


def test_a_machine_without_the_extension_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_module", lambda: None)
    available = gpu.available()
    assert not available
    assert "SP_GPU=1" in str(available) and "nvidia-nccl-cu13" in str(available)
    for question in (gpu.devices, gpu.seam, gpu.nccl, lambda: gpu.link(0, 1)):
        with pytest.raises(ProbeUnavailable, match="SP_GPU=1"):
            question()
    assert gpu.find_nccl() is None


def test_a_broken_extension_raises_its_own_error_and_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> Any:
            return importlib.util.spec_from_loader(name, BrokenLoader()) if name == "sglang_probe._gpu" else None

    class BrokenLoader(importlib.abc.Loader):
        def create_module(self, spec: object) -> ModuleType:
            raise ImportError("undefined symbol: sp_nothing")

        def exec_module(self, module: ModuleType) -> None: ...

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "sglang_probe._gpu", raising=False)
    monkeypatch.delattr(sglang_probe, "_gpu", raising=False)
    with pytest.raises(ImportError, match="sp_nothing"):
        gpu.available()


def test_the_wheels_nccl_is_found_without_importing_torch(tmp_path: Path) -> None:
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    code = "import sys; from sglang_probe import gpu; print(gpu._wheel()); print('torch' in sys.modules)"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    assert run_python(code, PYTHONPATH=path).splitlines() == [str(library), "False"]


def test_a_complete_toolkit_and_header_are_found_and_named(
    build_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, nccl = toolkit(tmp_path / "cuda"), nccl_header(tmp_path / "nccl", "2.28")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("NCCL_HOME", str(nccl))
    found = build_gpu.discover()
    assert found
    assert (found.nvcc, found.cudart) == (str(home / "bin/nvcc"), str(home / "lib64/libcudart_static.a"))
    assert (found.include, found.nccl) == (str(home / "include"), str(nccl / "include"))
    assert found.lines == [f"CUDA: {home}", f"NCCL: nccl.h 2.28 in {nccl / 'include'}"]


@pytest.mark.parametrize("missing", ["bin/nvcc", "include/cuda_runtime_api.h", "lib64/libcudart_static.a"])
def test_half_a_toolkit_is_not_mixed_with_another(
    build_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    half, whole = toolkit(tmp_path / "half", without=missing), toolkit(tmp_path / "whole")
    monkeypatch.setenv("CUDA_HOME", str(half))
    monkeypatch.setenv("CUDA_PATH", str(whole))
    found = build_gpu.discover()
    assert {Path(p).parents[1] for p in (found.nvcc, found.cudart)} == {whole} and Path(found.include).parent == whole
    assert found.lines[0] == f"CUDA: {half} has no {missing.removeprefix('lib64/')}"


def test_what_is_missing_is_said_in_one_line_each(build_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_gpu, "toolkit_roots", lambda: [tmp_path / "none"])
    monkeypatch.setattr(build_gpu, "nccl_roots", lambda toolkit: [nccl_header(tmp_path / "old", "2.19")])
    found = build_gpu.discover()
    assert not found
    assert [line.split(";")[0] for line in found.lines] == [
        "CUDA: missing",
        f"NCCL: nccl.h 2.19 in {tmp_path / 'old/include'} is older than 2.27",
        "NCCL: nccl.h is missing",
    ]


def test_the_newest_architecture_brings_code_for_gpus_to_come(build_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_CUDA_ARCHS", "90, 80")
    assert build_gpu.archs() == ["-gencode", "arch=compute_90,code=[sm_90,compute_90]", "-gencode", "arch=compute_80,code=sm_80"]


# What setup.py does with a wish, on a machine that has nothing.
SETUP = """
import runpy, sys
sys.path.insert(0, "csrc")
import build_gpu
build_gpu.discover = lambda: build_gpu.Found(lines=["CUDA: missing", "NCCL: missing"])
sys.argv = ["setup.py", "--name"]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("wish", "good", "said"),
    [
        ("", True, "_gpu: not built; everything else works without it"),
        ("0", True, "_gpu: left out (SP_GPU=0)"),
        ("1", False, "SP_GPU=1, and _gpu cannot be built: CUDA: missing; NCCL: missing"),
        ("yes", False, "SP_GPU=yes: 0 leaves _gpu out, 1 demands it"),
    ],
    ids=["unset", "forced off", "demanded", "a typing mistake"],
)
def test_the_build_does_what_was_wished_or_says_why_not(root: Path, wish: str, good: bool, said: str) -> None:
    environment: Mapping[str, str] = {**os.environ, "SP_GPU": wish}
    done = subprocess.run([sys.executable, "-c", SETUP], cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is good, done.stderr
    assert said in done.stdout + done.stderr


@needs_built
def test_the_module_imports_without_a_driver_and_gives_the_reason() -> None:
    available = gpu.available()
    if available:
        assert gpu.devices()
    else:
        assert str(available)
        with pytest.raises(ProbeUnavailable) as raised:
            gpu.devices()
        assert str(available) in str(raised.value)


@needs_built
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no library at all, but text", "cannot open"), (None, "cannot open"), (b"", "cannot open")],
    ids=["text", "absent", "empty"],
)
def test_a_wrong_nccl_is_named_with_the_reason_and_the_remedy(tmp_path: Path, content: bytes | None, said: str) -> None:
    wrong = tmp_path / "libnccl.so.2"
    if content is not None:
        wrong.write_bytes(content)
    with pytest.raises(ProbeUnavailable) as raised:
        gpu.nccl(wrong)
    assert said in str(raised.value) and str(wrong) in str(raised.value) and "SGLANG_NCCL_SO_PATH" in str(raised.value)


@needs_built
def test_another_library_is_not_taken_for_nccl() -> None:
    from sglang_probe import _gpu

    other = str(_gpu.__file__)
    with pytest.raises(ProbeUnavailable) as raised:
        gpu.nccl(other)
    assert f"{other} lacks ncclGetVersion" in str(raised.value)


@needs_built
def test_a_wrong_path_in_the_environment_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    wrong = tmp_path / "libnccl.so.2"
    wrong.write_text("text")
    code = "from sglang_probe import gpu\ntry: print(gpu.nccl())\nexcept gpu.ProbeUnavailable as e: print(e)"
    said = run_python(code, SGLANG_NCCL_SO_PATH=str(wrong))
    assert "SGLANG_NCCL_SO_PATH" in said and str(wrong) in said


@needs_built
def test_the_nccl_that_is_already_in_the_process_is_the_one_that_is_measured() -> None:
    wheel = gpu._wheel()
    if wheel is None:
        pytest.skip("nvidia-nccl-cu13 is not installed here")
    loaded = "import ctypes; ctypes.CDLL(PATH)\nfrom sglang_probe import gpu\nprint(gpu.nccl().path)"
    assert run_python(f"PATH={wheel!r}\n{loaded}", SGLANG_NCCL_SO_PATH=os.devnull) == wheel
    assert run_python("from sglang_probe import gpu\nprint(gpu.nccl().path, gpu.nccl().version)").split()[0] == wheel


@needs_built
def test_the_stub_has_the_names_and_arguments_of_the_module() -> None:
    from sglang_probe import _gpu

    stub = ast.parse((Path(sglang_probe.__file__).parent / "_gpu.pyi").read_text())
    functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert set(functions) == {name for name in vars(_gpu) if not name.startswith("_")}
    for name, node in functions.items():
        function = getattr(_gpu, name)
        assert function.__doc__, f"{name} has no docstring"
        theirs = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
        arguments = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
        defaults = [inspect.Parameter.empty] * (len(arguments) - len(node.args.defaults)) + [
            ast.literal_eval(d) for d in node.args.defaults
        ]
        ours = list(zip(arguments, defaults, strict=True))
        ours += [(a.arg, ast.literal_eval(d)) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
        assert ours == theirs, name


@needs_built
def test_nonsense_for_the_kernels_is_refused_before_a_gpu_is_asked() -> None:
    from sglang_probe import _gpu

    for call in (
        lambda: _gpu.tune(object(), 0),
        lambda: _gpu.shape(object(), 1, 0, 1024),
        lambda: _gpu.empty(object(), 1, 99, 1024),
        lambda: _gpu.ping_pong(object(), 1),
        lambda: _gpu.reduce(object(), 1, 0, 1024, 0, 0),
        lambda: _gpu.reduce(object(), 256, 0, 1024, 0, 0),
        lambda: _gpu.many_check(2, 256, 0, 1024),
        lambda: _gpu.many_check(2, 1, 0, 1024, style=9),
    ):
        with pytest.raises(ValueError):
            call()
