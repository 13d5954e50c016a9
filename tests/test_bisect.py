"""bisect: planted commits in a repository that is made of released sources; each is judged by what it does to a launch's routes."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_probe import Group, InputError
from sglang_probe._conform.dispatch import FILE
from sglang_probe._proof.bisect import Bisect, Judged, bisect
from sglang_probe._proof.settings import changed_defaults, changed_setters, settings_of
from sglang_probe._source.fetch import fetch

BASE, NEXT = "0.5.8.post1", "0.5.9"
QWEN = "python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8"
CUSTOM = "srt/distributed/device_communicators/custom_all_reduce.py"
KEPT = (
    "sglang/srt/distributed/",
    "sglang/srt/server_args.py",
    "sglang/srt/environ.py",
    "sglang/srt/utils/common.py",
    "sglang/srt/layers/",
)
Edit = Callable[[str, str, str], None]


def git(path: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(path), *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()


class Repository:
    """A checkout laid out as SGLang's, with planted commits."""

    def __init__(self, path: Path, release: str) -> None:
        self.path, self.package = path, path / "python" / "sglang"
        with zipfile.ZipFile(fetch(release)) as archive:
            names = [n for n in archive.namelist() if n.startswith((*KEPT, "sglang/_version.py"))]
            archive.extractall(path / "python", [n for n in names if not n.startswith("sglang/srt/layers/") or "comm" in n])
        git(path, "init", "-q", "-b", "main")
        git(path, "add", "-A")
        git(path, "commit", "-qm", release)
        git(path, "tag", "good")

    def edit(self, subject: str, relpath: str, old: str, new: str) -> None:
        file = self.package / relpath
        text = file.read_text()
        assert old in text, f"{relpath} no longer has the text that this test edits"
        file.write_text(text.replace(old, new, 1))
        self.commit(subject)

    def take(self, subject: str, release: str, *relpaths: str) -> None:
        """Files of another release."""
        with zipfile.ZipFile(fetch(release)) as archive:
            for relpath in relpaths:
                (self.package / relpath).write_bytes(archive.read(f"sglang/{relpath}"))
        self.commit(subject)

    def commit(self, subject: str) -> None:
        git(self.path, "add", "-A")
        git(self.path, "commit", "-qm", subject)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Six commits: a text, a comment in the dispatch, a swap in it, a threshold as released, a threshold nobody has, a default."""
    repo = Repository(tmp_path_factory.mktemp("planted"), BASE)
    (repo.path / "README.md").write_text("hello\n")
    repo.commit("readme")
    repo.edit("comment", FILE, "    def all_reduce(self", "    # a comment\n    def all_reduce(self")
    # custom all-reduce is never chosen any more: what went there goes on
    repo.edit("dispatch", FILE, "self.ca_comm.should_custom_ar(input_)", "not self.ca_comm.should_custom_ar(input_)")
    repo.edit("dispatch back", FILE, "not self.ca_comm.should_custom_ar(input_)", "self.ca_comm.should_custom_ar(input_)")
    repo.take("threshold", NEXT, CUSTOM, "srt/distributed/device_communicators/custom_all_reduce_utils.py")
    repo.edit("stranger", CUSTOM, "8192 * 1024", "4096 * 1024")
    repo.edit(
        "default", "srt/server_args.py", "disable_custom_all_reduce: bool = False", "disable_custom_all_reduce: bool = True"
    )
    repo.edit("help", "srt/server_args.py", "Disable the custom all-reduce kernel", "Turn custom all-reduce off, the kernel")
    return repo


@pytest.fixture(scope="module")
def found(planted: Repository) -> Bisect:
    return bisect(planted.path, "good..main", launch=QWEN, gpu="h200")


def of(found: Bisect, subject: str) -> Judged:
    return next(commit for commit in found.commits if commit.subject == subject)


def test_what_touches_nothing_is_not_walked(found: Bisect) -> None:
    assert found.total == 8
    assert [c.subject for c in found.commits] == [
        "comment",
        "dispatch",
        "dispatch back",
        "threshold",
        "stranger",
        "default",
        "help",
    ]


def test_a_comment_and_a_help_text_change_nothing(found: Bisect) -> None:
    for subject in ("comment", "help"):
        commit = of(found, subject)
        assert commit.verdict == "nothing" and commit.diff is None and not commit.touched


def test_a_changed_dispatch_is_found_with_the_routes_before_and_after(found: Bisect) -> None:
    commit = of(found, "dispatch")
    assert commit.verdict == "changes" and commit.touched == ("dispatch",) and commit.diff is not None
    captured = [s for s in commit.diff.sizes if s.context == "capture" and s.group == "tp" and s.before.path == "custom"]
    assert captured and all(s.after.path != "custom" for s in captured)
    back = of(found, "dispatch back")
    assert back.verdict == "changes" and back.diff is not None
    assert {(s.after, s.before) for s in back.diff.sizes} == {(s.before, s.after) for s in commit.diff.sizes}


def test_a_threshold_of_a_known_release_changes_one_size(found: Bisect) -> None:
    commit = of(found, "threshold")
    assert commit.verdict == "changes" and commit.touched == ("gate custom",) and commit.diff is not None
    ordinary = [s for s in commit.diff.sizes if any(t.startswith("bf16, contiguous, multiples") for t in s.tensors)]
    assert ordinary and all(s.first_bytes <= 8 << 20 <= s.last_bytes and s.last_bytes - s.first_bytes < 16 for s in ordinary)
    assert {(s.before.path, s.after.path) for s in ordinary if s.context == "capture"} == {("pynccl_in_place", "custom")}


def test_a_gate_that_nobody_knows_is_never_called_nothing(found: Bisect) -> None:
    commit = of(found, "stranger")
    assert commit.verdict == "may change" and commit.may == ("gate custom has code nobody knows",)
    assert commit in found.unjudged and "may change: gate custom has code nobody knows" in str(found)


def test_a_default_is_judged_as_if_it_were_given(found: Bisect) -> None:
    commit = of(found, "default")
    assert commit.verdict == "changes" and commit.touched == ("default of disable_custom_all_reduce",) and commit.diff is not None
    assert all(s.after.path != "custom" for s in commit.diff.sizes)


def test_the_count_is_one_line(found: Bisect) -> None:
    assert str(found).splitlines()[0] == "7 commits: 2 change nothing under your flags; 4 do; 1 may, by code that nobody knows"
    assert "of 8 in good..main" in str(found) and "<table" in found._repr_html_() and found
    data = found.to_dict()
    assert (data["total"], data["touching"], data["changing"], data["unjudged"]) == (8, 7, 4, 1)


def test_a_default_that_the_launch_overrides_changes_nothing(planted: Repository) -> None:
    found = bisect(planted.path, "good..main", launch=QWEN + " --disable-custom-all-reduce", gpu="h200")
    assert of(found, "default").verdict == "nothing"
    assert of(found, "threshold").verdict == "nothing"  # custom is off: what it takes does not matter
    assert of(found, "stranger").verdict == "nothing"  # nor does code of it that nobody knows


def test_a_group_is_judged_without_any_server(planted: Repository) -> None:
    told: list[str] = []
    found = bisect(planted.path, "good..main", group=Group.make(world_size=8, arch=90, full_nvlink=True), progress=told.append)
    assert [c.subject for c in found.changes] == ["dispatch", "dispatch back", "threshold"]
    assert len(told) == 7 and told[0].startswith("1 of 7: ")


def test_a_good_on_a_branch_is_walked_from_where_it_left(planted: Repository) -> None:
    git(planted.path, "checkout", "-q", "-b", "release", "good")
    (planted.path / "NOTES").write_text("notes\n")
    planted.commit("own")
    git(planted.path, "checkout", "-q", "main")
    found = bisect(planted.path, "release..main", launch=QWEN, gpu="h200")
    assert found.total == 8 and "its own 1 commits are not looked at" in found.notes[0]


@pytest.mark.parametrize(
    "commits, said",
    [
        ("good", "GOOD..BAD"),
        ("..main", "GOOD..BAD"),
        ("good...main", "GOOD..BAD"),
        ("good..gone", "no revision gone"),
        ("--all..main", "no revision --all"),
        ("main..good", "older"),
        ("main..main", "empty range"),
    ],
)
def test_a_range_that_is_none_is_refused(planted: Repository, commits: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        bisect(planted.path, commits, launch=QWEN, gpu="h200")


def test_what_is_no_checkout_is_refused(planted: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match="no folder"):
        bisect(tmp_path / "gone", "a..b", launch=QWEN)
    with pytest.raises(InputError, match="not a git checkout"):
        bisect(tmp_path, "a..b", launch=QWEN)
    with pytest.raises(InputError, match="launch line or a group"):
        bisect(planted.path, "good..main")
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(InputError, match="git is not installed"):
        bisect(planted.path, "good..main", launch=QWEN)


ARGS = """
class ServerArgs:
    tp_size: int = 1
    enable_mscclpp: bool = False
    other: int = 3
    def _handle(self):
        if self.device == "cuda":
            self.disable_custom_all_reduce = True
        arch = self.arch
        if arch in ["AForCausalLM", "BForCausalLM"]:
            self.attention_backend = "x"
        elif self.tp_size > 1:
            self.enable_mscclpp = False
        logger.info("tp_size")
"""


@pytest.mark.parametrize(
    "old, new, names",
    [
        ("other: int = 3", "other: int = 4", ()),
        ('"cuda"', '"cpu"', ("disable_custom_all_reduce",)),
        ("custom_all_reduce = True", "custom_all_reduce = False", ("disable_custom_all_reduce",)),
        ('"BForCausalLM"]', '"BForCausalLM", "CForCausalLM"]', ()),
        ('"BForCausalLM"]', '"BForCausalLM", "OursForCausalLM"]', ("attention_backend", "enable_mscclpp")),
        ("tp_size > 1", "tp_size > 2", ("enable_mscclpp",)),
        ('"tp_size")', '"tp")', ()),
    ],
)
def test_code_that_sets_an_argument_counts_and_code_of_other_models_does_not(old: str, new: str, names: tuple[str, ...]) -> None:
    assert old in ARGS
    before, after = (settings_of("srt/server_args.py", text, "OursForCausalLM") for text in (ARGS, ARGS.replace(old, new)))
    assert changed_setters(before, after) == names
    assert changed_defaults(before, after) == {}


def test_a_changed_default_is_read_and_a_computed_one_is_not_guessed() -> None:
    def read(text: str) -> object:
        return changed_defaults(settings_of("srt/server_args.py", ARGS), settings_of("srt/server_args.py", text))

    assert read(ARGS.replace("tp_size: int = 1", "tp_size: int = 2")) == {"tp_size": (1, 2)}
    assert repr(read(ARGS.replace("tp_size: int = 1", "tp_size: int = f()"))) == "{'tp_size': (1, <computed>)}"
    assert read(ARGS.replace("enable_mscclpp: bool = False", "enable_mscclpp: bool = 0")) == {"enable_mscclpp": (False, 0)}
