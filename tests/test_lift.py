"""Lifting: SGLang's functions are executed from their source, and nothing else of SGLang is."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import traceback
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_probe._source.lift import LiftError, Tree, fingerprint, lift
from sglang_probe._types import InputError, ProbeError

SOURCE = textwrap.dedent('''
    """A module."""
    import a_package_that_is_not_there
    from another import decorated, Missing

    LIMITS = {2: 8, 4: 16}
    SCALE: Missing = 3
    raise_if_run = a_package_that_is_not_there.anything()

    try:
        import third
        HAVE = True
    except ImportError:
        HAVE = False

    @decorated(Missing)
    def limit(world: Missing, scale: "Missing" = SCALE) -> Missing:
        """Says a limit."""
        found: Missing = LIMITS[world]
        return found * scale

    if HAVE:
        def nested():
            return "nested"

    class Group(Missing):
        shared = 7

        def __init__(self, size):
            self.size = Missing(size)

        @property
        def double(self):
            return 2 * self.shared

        def ask(self, tensor):
            # a comment
            import inner.module as im
            from deep.module import name as alias
            return im.value + alias + self.shared

        def fail(self):
            assert self.shared == 0, "line 46"
''')


def make_package(root: Path, version: str = "9.9.9") -> Path:
    package = root / "sglang"
    (package / "srt" / "distributed").mkdir(parents=True)
    (package / "version.py").write_text(f'__version__ = "{version}"\n')
    (package / "srt" / "server_args.py").write_text("class ServerArgs:\n    tp_size: int = 1\n")
    (package / "srt" / "distributed" / "parallel_state.py").write_text(SOURCE)
    return package


def test_only_what_is_named_runs_so_a_package_that_is_not_there_does_no_harm() -> None:
    found = lift(SOURCE, ["LIMITS", "SCALE", "limit"], {})
    assert found["limit"](4) == 48
    assert set(found) == {"LIMITS", "SCALE", "limit"}


def test_a_class_is_reduced_to_the_members_that_are_asked_for() -> None:
    found = lift(SOURCE, ["Group.double", "Group.shared"], {})
    group = found["Group"]()  # its __init__ and its missing base class are gone
    assert group.double == 14
    assert not hasattr(group, "ask")


def test_an_import_inside_lifted_code_never_imports() -> None:
    space = {"inner.module": SimpleNamespace(value=1), "deep.module:name": 10}
    before = set(sys.modules)
    found = lift(SOURCE, ["Group.ask", "Group.shared"], space)
    assert found["Group"]().ask(None) == 18
    assert set(sys.modules) == before
    with pytest.raises(LiftError, match="deep.module"):
        lift(SOURCE, ["Group.ask", "Group.shared"], {"inner.module": SimpleNamespace(value=1)})["Group"]().ask(None)


@pytest.mark.parametrize("call", ["open('x')", "__import__('os')", "eval('1')", "exec('1')", "compile('1', 'x', 'eval')"])
def test_lifted_code_cannot_reach_files_or_run_text(call: str) -> None:
    with pytest.raises(NameError):
        lift(f"def f():\n    return {call}\n", ["f"], {})["f"]()


def test_a_definition_under_if_or_try_is_found() -> None:
    assert lift(SOURCE, ["nested", "HAVE"], {})["nested"]() == "nested"


def test_a_missing_name_is_named_unless_it_is_optional() -> None:
    with pytest.raises(LiftError, match=r"parallel\.py: does not define Group\.gone, gone"):
        lift(SOURCE, ["Group.gone", "gone"], {}, filename="parallel.py")
    assert "gone" not in lift(SOURCE, ["limit", "LIMITS", "SCALE"], {}, optional=["gone"])


def test_a_name_that_nobody_gave_is_named() -> None:
    with pytest.raises(LiftError, match="THRESHOLD"):
        lift("def f(x=THRESHOLD):\n    return x\n", ["f"], {})


def test_a_traceback_points_at_the_real_line(tmp_path: Path) -> None:
    tree = Tree(make_package(tmp_path))
    found = tree.lift("srt/distributed/parallel_state.py", ["Group.fail", "Group.shared"], {})
    with pytest.raises(AssertionError) as caught:
        found["Group"]().fail()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == str(tmp_path / "sglang" / "srt" / "distributed" / "parallel_state.py")
    assert last.line is not None and last.line.startswith("assert self.shared == 0")
    assert tree.where("srt/distributed/parallel_state.py", "Group.fail") == (last.filename, (last.lineno or 0) - 1)


def test_syntax_that_this_python_cannot_read_is_said_so() -> None:
    with pytest.raises(LiftError, match="<lifted>:1: this Python cannot read it"):
        lift("def f(:\n", ["f"], {})


@pytest.mark.parametrize("kind", ["package", "parent", "repository", "wheel"])
def test_a_tree_is_found_in_a_package_its_parent_a_repository_and_a_wheel(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "python" if kind == "repository" else tmp_path
    package = make_package(home)
    root = {"package": package, "parent": tmp_path, "repository": tmp_path, "wheel": tmp_path / "s.whl"}[kind]
    if kind == "wheel":
        with zipfile.ZipFile(root, "w") as archive:
            for file in package.rglob("*.py"):
                archive.write(file, file.relative_to(tmp_path))
    tree = Tree(root)
    assert tree.version == "9.9.9"
    assert tree.source("srt/distributed/parallel_state.py") == SOURCE
    assert tree.files("srt/distributed") == ["srt/distributed/parallel_state.py"]
    assert tree.has("srt/distributed/parallel_state.py", "Group.ask") and not tree.has(
        "srt/distributed/parallel_state.py", "gone"
    )
    assert not tree.exists("srt/gone.py")
    with pytest.raises(LiftError, match=r"srt/gone\.py: not in"):
        tree.source("srt/gone.py")


def test_a_revision_is_read_from_git_and_not_from_the_work_tree(tmp_path: Path) -> None:
    package = make_package(tmp_path / "python")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    (package / "srt" / "distributed" / "parallel_state.py").write_text("LIMITS = 0\n")
    assert Tree(tmp_path, "HEAD").source("srt/distributed/parallel_state.py") == SOURCE
    assert Tree(tmp_path).source("srt/distributed/parallel_state.py") == "LIMITS = 0\n"
    assert Tree(tmp_path, "HEAD").files("srt/distributed") == ["srt/distributed/parallel_state.py"]


def test_what_is_no_sglang_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no sglang package there"):
        Tree(tmp_path)
    (tmp_path / "x.whl").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="not a wheel"):
        Tree(tmp_path / "x.whl")


def test_a_damaged_wheel_says_that_it_is_damaged(tmp_path: Path) -> None:
    make_package(tmp_path)
    wheel = tmp_path / "s.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "sglang" / "srt" / "server_args.py", "sglang/srt/server_args.py")
    raw = bytearray(wheel.read_bytes())
    raw[raw.index(b"class ServerArgs") + 3] ^= 1
    wheel.write_bytes(raw)
    with pytest.raises(ProbeError, match="is damaged"):
        Tree(wheel)


BASE = "import x\nLIMIT = 8\n\ndef f(n: int) -> bool:\n    return n <= LIMIT\n"


@pytest.mark.parametrize(
    "same",
    [
        "import y\nLIMIT = 8\n\n\ndef f(n):\n    '''Says.'''\n    # why\n    return n <= LIMIT\n",
        "LIMIT: int = 8\ndef f(n):\n    logger.warning('n')\n    return (n <= LIMIT)\n".replace("LIMIT: int", "LIMIT"),
    ],
)
def test_a_fingerprint_does_not_see_comments_annotations_imports_or_logging(same: str) -> None:
    assert fingerprint(same) == fingerprint(BASE)


@pytest.mark.parametrize("other", [BASE.replace("<=", "<"), BASE.replace("8", "16"), BASE.replace("n <=", "2 * n <=")])
def test_a_fingerprint_sees_a_comparison_a_constant_and_a_factor(other: str) -> None:
    assert fingerprint(other) != fingerprint(BASE)
    assert fingerprint(BASE, ["gone"]) == ""


def test_a_fingerprint_does_not_depend_on_the_python_that_computes_it() -> None:
    # Computed with Python 3.10, 3.11, 3.12 and 3.13; a new Python that answers otherwise would call every gate unknown.
    text = textwrap.dedent("""
        def f(*, a=1, **k):
            with a as b, k:
                x = f"{a!r:>{k}}" "tail"
            return [i for i in b if i] or (lambda: x[1:2, ...])
    """)
    assert fingerprint(text) == "751fcc1b458c7aec"
