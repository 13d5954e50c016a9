"""Phase `nccl`: every libnccl is found where loaders look, and who would load which is what happens when they do.

Invariant: the libraries here are tiny ones of our own, built with the C compiler and put where real ones lie; torch is a stand-in that
loads one of them as torch does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sglang_probe
from sglang_probe._preflight import nccl, nccl_files
from sglang_probe._preflight.phases import PHASES
from sglang_probe._preflight.result import PhaseResult
from sglang_probe._preflight.runner import Nobody, run

PACKAGE_PARENT = str(Path(sglang_probe.__file__).parents[1])
PHASE = next(phase for phase in PHASES if phase.name == "nccl")
Build = Callable[[Path, int], Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A libnccl.so.2 that says it has this version; 0: its ncclGetVersion fails; -1: it ends the process when it is opened."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.skip(f"no C compiler ({compiler}) to build libraries with")
    source = tmp_path_factory.mktemp("source") / "nccl.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "int ncclGetVersion(int *v) { *v = VERSION; return VERSION == 0; }\n"
        "__attribute__((constructor)) static void open(void) { if (VERSION < 0) abort(); }\n"
    )

    def one(folder: Path, version: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "libnccl.so.2"
        command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", f"-DVERSION={version}", str(source), "-o", str(path)]
        subprocess.run(command, check=True)
        return path

    return one


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without NCCL: nothing in the environment, no loader's cache, no package but what a test puts into `site`."""
    for name in ("SGLANG_NCCL_SO_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "NCCL_HOME", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def fake_torch(site: Path, library: Path | None, cuda: str | None = "13.0") -> None:
    """A torch that loads this library as its own when it is imported."""
    (site / "torch").mkdir()
    load = f"ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)" if library else ""
    (site / "torch" / "__init__.py").write_text(
        f"import ctypes\n__version__ = '2.0'\n{load}\nclass version:\n    cuda, hip = {cuda!r}, None\n"
    )


def package(site: Path, name: str, version: str, file: str = "nvidia/nccl/lib/libnccl.so.2") -> None:
    """What pip leaves of an installed package."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{file},,\n")


def asked() -> PhaseResult:
    """The whole phase, in its process."""
    result = run([PHASE], Nobody()).phases[0]
    assert result.state in ("ok", "finding"), result
    return result


def ways(result: PhaseResult) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {row["path"]: (row["version"], row["found_by"]) for row in result.facts.get("libraries", ())}


def loads(result: PhaseResult) -> dict[str, tuple[str, str]]:
    return {row["user"]: (row["version"], row["path"]) for row in result.facts["users"]}


# --------------------------------------------------------------------------------------------------------------------------- found


def test_a_library_is_found_where_loaders_look_and_told_once(bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = build(bare / "nvidia/nccl/lib", 22809)
    other, link = build(bare / "other", 22105), bare / "link"
    link.mkdir()
    (link / "libnccl.so.2").symlink_to(other)
    home = build(bare / "home/lib", 22304)
    monkeypatch.setenv("SGLANG_NCCL_SO_PATH", str(other))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{link}:/nowhere")
    monkeypatch.setenv("NCCL_HOME", str(home.parents[1]))
    found = ways(asked())
    assert found[str(wheel)] == ("2.28.9", ("nvidia-nccl package",))
    assert found[str(other)] == ("2.21.5", ("SGLANG_NCCL_SO_PATH", "LD_LIBRARY_PATH"))
    assert found[str(home)] == ("2.23.4", ("NCCL_HOME",))
    assert str(link / "libnccl.so.2") not in found


def test_what_the_callers_process_has_loaded_comes_first(bare: Path, build: Build) -> None:
    library = build(bare / "mine", 22707)
    code = (
        "import ctypes, json, sys\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "import sglang_probe as probe\n"
        "print(json.dumps(probe.preflight(only='nccl', show=False)['nccl'].to_dict()['facts']['libraries'][0]))"
    )
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True, env=env, timeout=120)
    assert '"already loaded in the calling process"' in done.stdout and str(library) in done.stdout, done.stderr


def test_the_loaders_cache_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "ldconfig"
    tool.write_text(
        "#!/bin/sh\n"
        "echo '3 libs found in cache'\n"
        "echo '\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2'\n"
        "echo '\tlibnccl-net.so (libc6,x86-64) => /opt/net/libnccl-net.so'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert nccl_files._cached() == ["/usr/lib/x86_64-linux-gnu/libnccl.so.2"]


def test_a_library_that_is_broken_costs_its_own_answer_alone(bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    good, aborts, fails = build(bare / "a", 22809), build(bare / "b", -1), build(bare / "c", 0)
    text = bare / "d" / "libnccl.so.2"
    text.parent.mkdir()
    text.write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(str(path.parent) for path in (good, aborts, fails, text)))
    result = asked()
    versions = {path: version for path, (version, _) in ways(result).items()}
    assert [versions[str(path)] for path in (good, aborts, fails, text)] == ["2.28.9", "", "", ""]
    why = {row["path"]: row["why"] for row in result.facts["libraries"]}
    assert why[str(aborts)] == "opening it ends the process by signal 6"
    assert why[str(fails)] == "ncclGetVersion answers 1"
    assert "invalid ELF header" in why[str(text)] or "too short" in why[str(text)]
    assert sum("is no libnccl that can be used" in note for note in result.notes) >= 3


def test_versions_are_read_as_nccl_writes_them() -> None:
    assert [nccl.version_text(n) for n in (22809, 2804, 21903, 23000)] == ["2.28.9", "2.8.4", "2.19.3", "2.30.0"]
    assert nccl._same("2.28.9", "2.28.9") and nccl._same("2.28.9", "2.28.9.post1") and not nccl._same("2.28.9", "2.28.90")


# --------------------------------------------------------------------------------------------------------------------------- loaded


def test_one_library_for_all_is_no_finding(bare: Path, build: Build) -> None:
    own = build(bare / "nvidia/nccl/lib", 22809)
    package(bare, "nvidia-nccl-cu13", "2.28.9")
    fake_torch(bare, own)
    result = asked()
    assert loads(result)["torch"] == loads(result)["SGLang's pynccl"] == ("2.28.9", str(own))
    assert result.findings == () and "NCCL 2.28.9 for torch" in result.text
    assert {"name": "nvidia-nccl-cu13", "version": "2.28.9", "path": str(own)} in result.facts["packages"]


def test_two_users_that_load_different_versions_are_a_finding(bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    own, wish = build(bare / "nvidia/nccl/lib", 22705), build(bare / "wish", 22809)
    fake_torch(bare, own)
    monkeypatch.setenv("SGLANG_NCCL_SO_PATH", str(wish))
    result = asked()
    assert loads(result)["torch"] == ("2.27.5", str(own)) and loads(result)["SGLang's pynccl"] == ("2.28.9", str(wish))
    assert result.state == "finding"
    assert f"torch loads 2.27.5 ({own})" in result.findings[0] and f"SGLang's pynccl loads 2.28.9 ({wish})" in result.findings[0]


def test_two_files_of_one_version_are_told_and_no_finding(bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(bare, build(bare / "nvidia/nccl/lib", 22809))
    monkeypatch.setenv("SGLANG_NCCL_SO_PATH", str(build(bare / "wish", 22809)))
    result = asked()
    assert result.findings == () and any("is loaded from several files" in note for note in result.notes)


def test_torchs_own_comes_before_ld_library_path_once_it_is_loaded(
    bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = build(bare / "nvidia/nccl/lib", 22809), build(bare / "other", 22105)
    fake_torch(bare, own)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other.parent))
    assert loads(asked())["SGLang's pynccl"] == ("2.28.9", str(own))


def test_ld_library_path_decides_where_torch_has_loaded_none(bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    other = build(bare / "other", 22105)
    fake_torch(bare, None)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other.parent))
    assert loads(asked())["SGLang's pynccl"] == ("2.21.5", str(other))


def test_a_wish_that_is_not_there_is_a_finding(bare: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(bare, build(bare / "nvidia/nccl/lib", 22809))
    monkeypatch.setenv("SGLANG_NCCL_SO_PATH", "/nowhere/libnccl.so.2")
    result = asked()
    assert result.state == "finding" and "SGLang's pynccl cannot load NCCL" in result.findings[0]


def test_no_torch_or_one_without_cuda_loads_none_and_that_is_no_finding(bare: Path) -> None:
    fake_torch(bare, None, cuda=None)
    result = asked()
    assert result.findings == () and loads(result)["torch"] == loads(result)["SGLang's pynccl"] == ("", "")
    why = {row["user"]: row["why"] for row in result.facts["users"]}
    assert why["torch"] == "torch 2.0 is built without CUDA"


def test_a_torch_that_does_not_import_is_a_finding(bare: Path) -> None:
    (bare / "torch").mkdir()
    (bare / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    result = asked()
    assert result.state == "finding" and "torch does not import: libcudart.so.13" in result.findings[0]


# ------------------------------------------------------------------------------------------------------------------------- packages


def test_two_packages_that_own_one_file_are_a_finding(bare: Path, build: Build) -> None:
    own = build(bare / "nvidia/nccl/lib", 22809)
    package(bare, "nvidia-nccl-cu12", "2.28.9")
    package(bare, "nvidia-nccl-cu13", "2.28.9")
    found = [text for text in asked().findings if "both own" in text]
    assert len(found) == 1 and str(own) in found[0] and "nvidia-nccl-cu12 2.28.9" in found[0]


def test_a_file_that_is_not_its_packages_version_is_a_finding(bare: Path, build: Build) -> None:
    own = build(bare / "nvidia/nccl/lib", 22105)
    package(bare, "nvidia-nccl-cu13", "2.28.9")
    assert f"{own} is NCCL 2.21.5, and its package nvidia-nccl-cu13 says 2.28.9: install it again" in asked().findings
