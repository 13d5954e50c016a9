"""Checkouts: a revision that nobody tabulated is routed by its own code, and what is unknown about it is named."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._conform.derived import derivation
from sglang_probe._conform.dispatch import FILE
from sglang_probe._releases import resolve
from sglang_probe._source import checkout as _checkout
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import LiftError, Tree
from sglang_probe._types import InputError

BASE = "0.5.9"
BASE_RULES = "E10"
CUSTOM = "srt/distributed/device_communicators/custom_all_reduce.py"


def git(path: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(path), *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def bare_package(root: Path, version: str) -> Path:
    """The least that counts as a package."""
    package = root / "python" / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "srt" / "server_args.py").write_text("class ServerArgs: ...\n")
    (package / "version.py").write_text(f'__version__ = "{version}"\n')
    return package


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of one release, laid out as SGLang's repository is."""
    root = tmp_path_factory.mktemp("released")
    with zipfile.ZipFile(_fetch.fetch(BASE)) as archive:
        read = ("sglang/srt/distributed/", "sglang/srt/server_args.py", "sglang/srt/utils/common.py", "sglang/_version.py")
        archive.extractall(root / "python", [n for n in archive.namelist() if n.startswith(read)])
    return root


Edit = Callable[..., str]


@pytest.fixture
def edit(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """A repository with the release as tag `base` and one edit on branch `change`; gives "path@change"."""
    monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "repository"

    def change(relpath: str = FILE, old: str = "", new: str = "", count: int = -1) -> str:
        shutil.copytree(released, repository)
        git(repository, "init", "-q")
        git(repository, "add", ".")
        git(repository, "commit", "-qm", "base")
        git(repository, "tag", "base")
        git(repository, "checkout", "-qb", "change")
        path = repository / "python" / "sglang" / relpath
        text = path.read_text()
        if old:
            assert old in text, "the release no longer has the text that this test edits"
            path.write_text(text.replace(old, new, count))
            git(repository, "commit", "-qam", "change")
        git(repository, "checkout", "-q", "base")
        return f"{repository}@change"

    return change


@pytest.mark.parametrize("text", ["no/such/path", "no/such/path@main", "./gone.whl"])
def test_a_path_that_does_not_exist_is_named(text: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        _checkout.open_checkout(text)


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match="not a git checkout that git will read"):
        _checkout.open_checkout(f"{tmp_path}@main")


def test_a_revision_that_does_not_exist_is_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for revision, said in {
        "gone": "has no revision gone",
        "": "nothing stands after the @",
        "--help": "has no revision --help",
    }.items():
        with pytest.raises(InputError, match=said):
            _checkout.open_checkout(f"{tmp_path}@{revision}")


def test_without_git_a_revision_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(InputError, match="git is not installed"):
        _checkout.open_checkout(f"{tmp_path}@main")


def test_a_revision_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("")
    with pytest.raises(InputError, match="a revision needs a git checkout"):
        _checkout.open_checkout(f"{tmp_path / 'x.whl'}@main")


def test_a_branch_is_read_at_its_commit_and_paths_and_revisions_may_hold_an_at_sign(tmp_path: Path) -> None:
    root = tmp_path / "home@work"
    package = bare_package(root, "0.5.9")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    (package / "version.py").write_text('__version__ = "0.5.10"\n')
    git(root, "commit", "-qam", "two")
    assert _checkout.open_checkout(f"{root}@main").version == "0.5.10"
    assert _checkout.open_checkout(f"{root}@main@{{1}}").version == "0.5.9"
    assert _checkout.open_checkout(str(root)).revision is None
    assert _checkout.open_checkout(f"{root}@main").revision == git(root, "rev-parse", "main")


def test_a_checkout_from_before_the_dispatch_was_in_use_is_refused(tmp_path: Path) -> None:
    bare_package(tmp_path, "0.4.1.post6")
    with pytest.raises(InputError, match="0.4.1.post6 ran vLLM's dispatch"):
        resolve(str(tmp_path))


@pytest.mark.network
def test_an_unchanged_revision_is_the_release_with_its_own_rules(edit: Edit) -> None:
    release = resolve(edit())
    assert (release.kind, release.ruleset, release.derived, release.unknown_gates) == ("checkout", BASE_RULES, None, ())
    assert _core.releases()[release.index][0] == BASE


@pytest.mark.network
def test_an_edited_dispatch_answers_by_its_own_code(edit: Edit) -> None:
    # The edit asks for pynccl outside of the piecewise graph too.
    release = resolve(edit(old="elif is_in_piecewise_cuda_graph():", new="elif self.pynccl_comm is not None:"))
    assert release.derived is not None and len(release.derived) == len(_core.walk(release.ruleset_index)) * 5
    there = probe.dispatch(release, pynccl="enabled")
    here = probe.dispatch(BASE, pynccl="enabled")
    assert (there.path, here.path) == ("pynccl_out_of_place", "pynccl_in_place")
    assert probe.dispatch(release, custom="accepts").path == "custom"
    assert release.unknown_gates == ()


@pytest.mark.network
def test_a_gate_with_unknown_code_is_named_and_the_others_stay_known(edit: Edit) -> None:
    text = edit(CUSTOM, old="_SUPPORTED_WORLD_SIZES = [2, 4, 6, 8]", new="_SUPPORTED_WORLD_SIZES = [2, 4, 6, 8, 16]")
    release = resolve(text)
    assert release.unknown_gates == ("custom",)
    assert release.derived is None, "the dispatch itself did not change"
    found = derivation(_checkout.open_checkout(text))
    assert found.gates["custom"] == () and BASE in found.gates["quick"]


@pytest.mark.network
def test_a_communicator_that_nobody_knows_is_named(edit: Edit) -> None:
    old = "        outplace_all_reduce_method = None\n        if ("
    new = (
        "        outplace_all_reduce_method = None\n        if self.brand_new_comm is not None:\n"
        "            outplace_all_reduce_method = 'brand_new'\n        elif ("
    )
    text = edit(old=old, new=new, count=1)
    for _ in ("walked", "from the cache"):
        found = derivation(_checkout.open_checkout(text))
        assert found.unknown == ("brand_new_comm",) and not found.equal


@pytest.mark.network
def test_code_that_cannot_be_walked_is_an_error_that_names_what_is_missing(edit: Edit) -> None:
    with pytest.raises(LiftError, match="a_new_question"):
        resolve(edit(old="elif is_in_piecewise_cuda_graph():", new="elif a_new_question():"))


@pytest.mark.network
def test_a_walk_is_kept_by_the_hash_of_its_code(edit: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = edit(old="elif is_in_piecewise_cuda_graph():", new="elif self.pynccl_comm is not None:")
    first = derivation(_checkout.open_checkout(text))
    kept = list((tmp_path / "cache").glob("derived-*.bin"))
    assert [p.read_bytes() for p in kept] == [first.table]
    with monkeypatch.context() as patched:
        patched.setattr("sglang_probe._conform.derived.derive_codes", lambda _dispatch: pytest.fail("walked again"))
        assert derivation(_checkout.open_checkout(text)).table == first.table
    kept[0].write_bytes(first.table[:-1])  # a table that is cut short is walked again
    assert derivation(_checkout.open_checkout(text)).table == first.table
    assert derivation(_checkout.open_checkout(text.replace("@change", "@base"))).table != first.table


@pytest.mark.network
def test_a_derived_table_and_the_ruleset_of_the_same_code_agree_in_every_state() -> None:
    found = derivation(Tree(_fetch.fetch(BASE)))
    ours = np.asarray(_core.walk(resolve(BASE).ruleset_index), dtype=np.uint8)
    assert found.differing == 0 and found.table == ours.tobytes()
    for state in (0, 1, 777, len(ours) - 1):
        assert tuple(_core.decide_derived(found.table, _core.state_word(state))) == tuple(ours[state])


@pytest.mark.network
def test_a_patched_installation_of_a_known_version_is_not_taken_for_the_release(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sglang"
    shutil.copytree(released / "python" / "sglang", package)
    monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_fetch, "installed", lambda: package)
    monkeypatch.setattr("sglang_probe._conform.derived.installed", lambda: package)
    assert (resolve("installed").name, resolve("installed").derived, resolve("installed").kind) == (BASE, None, "installed")
    path = package / FILE
    path.write_text(path.read_text().replace("elif is_in_piecewise_cuda_graph():", "elif False:"))
    assert resolve("installed").ruleset == "E9"
