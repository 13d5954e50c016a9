"""The pytest plug-in: README's own tests, passing and failing, in a pytest inside of pytest.

Invariant: what a failure offers as code is run, and gives the answer that stands beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import readme_blocks
from failures import message, run_witness

import sglang_probe as probe_package
from sglang_probe._conform import derived  # noqa: F401 # what an inner pytest loads first is forgotten with it: NumPy cannot load twice
from sglang_probe._proof import asserting, diff, reach_launch  # noqa: F401 # the same
from sglang_probe._releases import newest
from sglang_probe._route import decision_of
from sglang_probe._source.lines import find_source
from sglang_probe._step import step  # noqa: F401 # the same

TEXT = readme_blocks.README.read_text(encoding="utf-8")
README_TEST = re.search(r"<!-- test: test_routing.py -->\n```python\n(.*?)```\n", TEXT, re.DOTALL)
README_FAILURE = re.search(r"<!-- failure: (\w+) (.*?) -->\n```console\n(.*?)```\n", TEXT, re.DOTALL)
# Installed, the plug-in is loaded by its entry point; from a bare checkout it has to be named.
LOADED = any(point.name == "sglang_probe" for point in entry_points(group="pytest11"))
PLUGIN = () if LOADED else ("-p", "sglang_probe.pytest_plugin")
LLAMA = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --tp 8"


@pytest.fixture(autouse=True)
def _no_source_at_hand(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Whether a release's source happens to lie in the cache of this machine changes no text here, but where a test asks for it."""
    if "network" not in request.keywords:
        monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path_factory.mktemp("cache")))
    for remembers in (find_source, decision_of):
        remembers.cache_clear()
    yield
    for remembers in (find_source, decision_of):
        remembers.cache_clear()


def readme_code() -> str:
    assert README_TEST
    return README_TEST[1]


# ---------------------------------------------------------------------------------------------------------- README's assertions


def test_readmes_assertions_pass_on_the_newest_release(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_routing=readme_code())
    result = pytester.runpytest_inprocess(*PLUGIN, path, f"--sglang-probe-release={newest()}")
    result.assert_outcomes(passed=readme_code().count("def test_"))


# test, what is changed in it, release, what its failure says first, what its code prints
CHANGES = [
    (
        "piecewise_rule",
        ", piecewise=False",
        "",
        newest(),
        "reachable: rule piecewise_pynccl",
        ["pynccl_out_of_place by rule piecewise_pynccl"],
    ),
    (
        "piecewise_rule",
        " --disable-piecewise-cuda-graph",
        "",
        "0.5.10",
        "reachable: rule piecewise_pynccl in SGLang 0.5.10",
        ["pynccl_out_of_place (nccl) by rule piecewise_pynccl"],
    ),
    ("quick", " --disable-custom-all-reduce", "", newest(), "reachable: rule quick", ["quick (quick_reduce) by rule quick"]),
    (
        "patch",
        ", piecewise=False",
        "",
        newest(),
        "routes change from bba2fc4 to 0be30d4: 1,296 of 12,289 states\nall with piecewise=True\n",
        ["pynccl_in_place by rule in_place_pynccl", "pynccl_out_of_place by rule piecewise_pynccl"],
    ),
    (
        "twelve",
        "",
        "",
        "0.5.9",
        "not path custom but pynccl_in_place: 12,582,912 bytes of bf16, capture",
        ["pynccl_in_place (nccl)"],
    ),
    (
        "twelve",
        "full_nvlink=True",
        "full_nvlink=False",
        newest(),
        "not path custom but pynccl_in_place",
        ["pynccl_in_place (nccl)"],
    ),
    ("batch", "", "", "0.4.9", "routing changes between batch ", ["custom (v1, one_shot)", "custom (v1, two_shot)"]),
    (
        "batch",
        " --enable-deterministic-inference",
        "",
        "0.5.9",
        "routing changes between batch ",
        ["(v1, one_shot)", "(v1, two_shot)"],
    ),
]


@pytest.mark.parametrize(
    ("name", "old", "new", "release", "answer", "printed"), CHANGES, ids=[f"{c[0]}-{c[3]}-{c[1]}" for c in CHANGES]
)
def test_readmes_assertions_fail_with_a_witness_that_runs(
    pytester: pytest.Pytester, name: str, old: str, new: str, release: str, answer: str, printed: list[str]
) -> None:
    assert old in readme_code()
    path = pytester.makepyfile(test_routing=readme_code().replace(old, new) if old else readme_code())
    result = pytester.runpytest_inprocess(*PLUGIN, path, "-k", name, f"--sglang-probe-release={release}")
    result.assert_outcomes(failed=1, deselected=readme_code().count("def test_") - 1)
    said = message(result.stdout.str())
    assert said.startswith(answer), said
    assert len(said.splitlines()) <= 15, said
    lines = run_witness(said).splitlines()
    assert len(lines) == len(printed) and all(part in line for part, line in zip(printed, lines, strict=True)), (said, lines)
    assert "asserting.py:" not in result.stdout.str(), "the failure points at the test, not into this package"


def test_the_failure_that_readme_shows_is_what_a_reader_gets(pytester: pytest.Pytester) -> None:
    assert README_FAILURE
    name, option, shown = README_FAILURE.groups()
    path = pytester.makepyfile(test_routing=readme_code())
    result = pytester.runpytest_inprocess(*PLUGIN, f"{path}::{name}", *option.split())
    assert message(result.stdout.str()) + "\n" == shown


@pytest.mark.network
def test_a_failure_names_sglangs_file_and_line(pytester: pytest.Pytester) -> None:
    from sglang_probe._source.fetch import fetch

    fetch("0.5.9")
    path = pytester.makepyfile(test_routing=readme_code())
    result = pytester.runpytest_inprocess(*PLUGIN, path, "-k", "twelve", "--sglang-probe-release=0.5.9")
    found = re.search(
        r"SGLang 0\.5\.9, rule in_place_pynccl: (.*?\.zip)/(.*\.py):(\d+)$", message(result.stdout.str()), re.MULTILINE
    )
    assert found
    import zipfile

    line = zipfile.ZipFile(found[1]).read(found[2]).decode().splitlines()[int(found[3]) - 1]
    assert "pynccl_comm" in line


# ----------------------------------------------------------------------------------------------------------------- the plug-in


HEAVY = ("numpy", "rich", "packaging.version", "sglang_probe._core", "sglang_probe._route")


@pytest.fixture
def entry(root: Path, tmp_path: Path) -> dict[str, str]:
    """Variables of a process in which pytest finds the plug-in as an installed package's, by the entry point of pyproject.toml."""
    text = (root / "pyproject.toml").read_text()
    section = text[text.index("[project.entry-points.pytest11]") :].split("\n\n")[0]
    name, module = re.findall(r'^(\w+) = "([\w.]+)"$', section, re.MULTILINE)[0]
    info = tmp_path / "installed" / "sglang_probe-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang_probe\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    paths = [str(info.parent), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_pytest(folder: Path, variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=120)


def test_importing_the_plug_in_imports_nothing_heavy(root: Path) -> None:
    code = f"import sys, sglang_probe.pytest_plugin\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


UNUSED = f"""
import sys

def test_something(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("sglang_probe") == LOADED
    assert not [name for name in {HEAVY!r} if name in sys.modules]
"""


@pytest.mark.parametrize("blocked", [False, True])
def test_a_suite_that_does_not_use_it_pays_and_sees_nothing(tmp_path: Path, entry: dict[str, str], blocked: bool) -> None:
    (tmp_path / "test_unused.py").write_text(UNUSED.replace("LOADED", str(not blocked)))
    run = run_pytest(tmp_path, entry, *(["-p", "no:sglang_probe"] if blocked else []))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "sglang_probe:" not in run.stdout


def test_an_installed_plug_in_offers_its_fixture_and_option(tmp_path: Path, entry: dict[str, str]) -> None:
    (tmp_path / "test_used.py").write_text("def test_used(probe):\n    assert probe.release.name == '0.5.9'\n")
    run = run_pytest(tmp_path, entry, "--sglang-probe-release", "v0.5.9")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "sglang_probe: release under test 0.5.9 (E10, asked for)" in run.stdout


def test_workers_of_xdist_ask_the_same_release(tmp_path: Path, entry: dict[str, str]) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed; the test extra brings it")
    (tmp_path / "test_used.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test_used(probe, n):\n    assert probe.release.name == '0.5.9'\n"
    )
    run = run_pytest(tmp_path, entry, "-n", "2", "--sglang-probe-release", "0.5.9")
    assert run.returncode == 0 and "4 passed" in run.stdout, run.stdout + run.stderr


def test_an_unknown_revision_ends_the_run_at_once_and_names_a_near_one(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_used(probe): pass")
    result = pytester.runpytest_inprocess(*PLUGIN, path, "--sglang-probe-release=0.5.9.post7")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--sglang-probe-release: sglang='0.5.9.post7': *nearest known release is 0.5.9*"])


def test_the_default_is_said_where_it_is_used(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(
        "def test_used(probe):\n    assert probe.route(1, probe.Group.make()).sglang == probe.release.name"
    )
    result = pytester.runpytest_inprocess(*PLUGIN, path)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["sglang_probe: release under test * (E*, *)"])


def test_the_ini_file_says_the_release_and_the_option_wins(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nsglang_probe_release = 0.5.9\n")
    path = pytester.makepyfile("def test_used(probe):\n    print('asked', probe.release.name)")
    for option, name in (((), "0.5.9"), (("--sglang-probe-release=E9",), "E9")):
        result = pytester.runpytest_inprocess(*PLUGIN, path, "-s", *option)
        result.stdout.fnmatch_lines([f"*asked {probe_package.resolve(name).name}*"])


def test_a_folder_without_sglang_ends_the_run_at_once(pytester: pytest.Pytester, tmp_path: Path) -> None:
    path = pytester.makepyfile("def test_used(probe): pass")
    result = pytester.runpytest_inprocess(*PLUGIN, path, f"--sglang-probe-release={tmp_path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no sglang package there*"])


@pytest.mark.network
def test_source_that_nobody_named_can_be_the_release_under_test(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """A checkout in real life; here a release's source by its path."""
    from sglang_probe._source.fetch import fetch

    source = tmp_path / "patched.zip"
    source.write_bytes(fetch("0.5.9").read_bytes())
    path = pytester.makepyfile(test_routing=readme_code().replace('"bba2fc4", "0be30d4"', '"0.5.9"'))
    result = pytester.runpytest_inprocess(*PLUGIN, path, "-k", "patch or twelve", f"--sglang-probe-release={source}")
    result.assert_outcomes(passed=1, failed=1, deselected=readme_code().count("def test_") - 2)
    said = message(result.stdout.str())
    assert f"{source}/sglang/srt/distributed/parallel_state.py:" in said
    assert run_witness(said).startswith("pynccl_in_place (nccl)")


def test_a_suites_own_fixture_of_that_name_wins(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(
        "import pytest\n\n@pytest.fixture\ndef probe():\n    return 7\n\ndef test_own(probe):\n    assert probe == 7"
    )
    result = pytester.runpytest_inprocess(*PLUGIN, path)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("sglang_probe:*")


USES = """
def test_bound(probe):
    group = probe.Group.make(world_size=8, arch=90, full_nvlink=True)
    assert "0.5.9" in repr(probe) and "reach" in dir(probe)
    assert probe.dispatch(pynccl="enabled").sglang == "0.5.9"
    assert probe.dispatch("0.5.8", pynccl="enabled").sglang == "0.5.8"
    assert probe.route(16, group).sglang == "0.5.9"
    assert probe.route(16, group, sglang="0.5.8").sglang == "0.5.8"
    assert probe.bands(group).sglang == "0.5.9"
    assert not probe.reach("piecewise_pynccl", piecewise=False)
    assert probe.reach("piecewise_pynccl")
    assert probe.diff("0.5.8").b == "0.5.9"
    assert probe.diff("0.5.7", "0.5.8").b == "0.5.8"
    assert probe.read_launch(LAUNCH, gpu="h200").sglang == "0.5.9"
    assert probe.step(LAUNCH, gpu="h200").sglang == "0.5.9"
    assert probe.assert_same_routing("0.5.9").changed == 0
    assert not hasattr(probe, "no_such_name")
"""


def test_the_fixture_asks_the_release_under_test_unless_told_otherwise(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(f"LAUNCH = {LLAMA!r}\n{USES}")
    pytester.runpytest_inprocess(*PLUGIN, path, "--sglang-probe-release=0.5.9").assert_outcomes(passed=1)
