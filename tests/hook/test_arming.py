"""Waiting for SGLang: a module that comes later, and the first group, with a package made here in SGLang's shape.

Invariant: whatever the hook does there, the package imports and its groups are made as without it.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sglang_probe.hook import arming

STATE = arming.STATE


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An sglang whose parallel state makes groups of no use."""
    folder = tmp_path / "sglang" / "srt" / "distributed"
    folder.mkdir(parents=True)
    for place in (tmp_path / "sglang", tmp_path / "sglang" / "srt", folder):
        (place / "__init__.py").write_text("")
    (folder / "parallel_state.py").write_text(
        textwrap.dedent(
            """
            MADE = []
            class GroupCoordinator:
                def __init__(self, name, fail=False):
                    "A group."
                    if fail:
                        raise ValueError(name)
                    self.name = name
                    MADE.append(self)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(arming, "_ARMED", False)
    yield folder
    arming.WATCHER.forget()
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "sglang":
            del sys.modules[name]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(arming, "_begin", lambda: calls.append("begin"))
    monkeypatch.setattr(arming, "_construct", lambda given, group, *args, **kwargs: given(group, *args, **kwargs))
    return calls


def state() -> Any:
    return importlib.import_module(STATE)


def test_a_module_is_told_once_it_is_imported_and_keeps_its_own_loader(package: Path) -> None:
    seen: list[ModuleType] = []
    arming.when_imported(STATE, seen.append)
    arming.when_imported(STATE, seen.append)
    assert seen == []
    module = state()
    assert seen == [module, module]
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert importlib.reload(module) is module and len(seen) == 2
    arming.when_imported(STATE, seen.append)
    assert len(seen) == 3


def test_an_error_of_ours_is_no_error_of_their_import(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: ModuleType) -> None:
        raise RuntimeError("ours")

    arming.when_imported(STATE, broken)
    assert state().MADE == []
    assert "RuntimeError: ours" in caplog.text


def test_an_error_of_theirs_is_theirs(package: Path) -> None:
    (package / "broken.py").write_text("raise OSError('theirs')")
    seen: list[ModuleType] = []
    arming.when_imported("sglang.srt.distributed.broken", seen.append)
    with pytest.raises(OSError, match="theirs"):
        importlib.import_module("sglang.srt.distributed.broken")
    arming.when_imported("sglang.srt.distributed.missing", seen.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sglang.srt.distributed.missing")
    assert seen == []


def test_the_hook_begins_right_before_the_first_group_and_only_then(package: Path, begun: list[str]) -> None:
    arming.arm()
    arming.arm()
    module = state()
    given = module.GroupCoordinator.__init__.__wrapped__
    assert begun == [] and given.__doc__ == "A group."
    first = module.GroupCoordinator("first")
    assert begun == ["begin"] and first.name == "first"
    assert module.GroupCoordinator.__init__ is given
    second = module.GroupCoordinator("second")
    assert begun == ["begin"] and module.MADE == [first, second]


def test_it_begins_at_once_where_there_are_groups_already(package: Path, begun: list[str]) -> None:
    module = state()
    module._groups = {"tp:0": lambda: None}
    given = module.GroupCoordinator.__init__
    arming.arm()
    assert begun == ["begin"] and module.GroupCoordinator.__init__ is given


def test_another_plugin_around_the_constructor_is_no_loop(package: Path, begun: list[str]) -> None:
    arming.arm()
    module = state()
    waiting = module.GroupCoordinator.__init__

    def around(self: Any, *args: Any, **kwargs: Any) -> None:
        around.calls += 1  # type: ignore[attr-defined]
        waiting(self, *args, **kwargs)

    around.calls = 0  # type: ignore[attr-defined]
    module.GroupCoordinator.__init__ = around
    names = [module.GroupCoordinator(name).name for name in ("a", "b", "c")]
    assert names == ["a", "b", "c"] and begun == ["begin"] and around.calls == 3  # type: ignore[attr-defined]
    assert len(module.MADE) == 3


def test_a_constructor_that_raises_raises(package: Path, begun: list[str]) -> None:
    arming.arm()
    module = state()
    with pytest.raises(ValueError, match="first"):
        module.GroupCoordinator("first", fail=True)
    assert module.GroupCoordinator("second").name == "second" and begun == ["begin"]


def test_a_process_that_makes_no_group_is_left_alone(package: Path, begun: list[str]) -> None:
    arming.arm()
    state()
    assert begun == [] and arming.WATCHER not in sys.meta_path or not arming.WATCHER._wanted
