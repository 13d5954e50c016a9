"""The engine driver without SGLang: what it refuses and why, how ranks agree on it, how a call is watched; and that every release has what
the driver looks up in it, by that release's own source. SGLang itself runs in test_bench_engine_sglang.py.

Invariant: nothing here imports SGLang, and what stands in for a part of it is told by its file's name alone.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path as File
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from run_engine import refused

from sglang_probe import Group, LocalGroup, ProbeUnavailable
from sglang_probe._bench import engine, engine_state, engine_watch
from sglang_probe._bench.driver import Wanted
from sglang_probe._bench.engine_ranks import agree, tell
from sglang_probe._bench.engine_state import Built, Engine
from sglang_probe._bench.targets import TARGETS, routed
from sglang_probe._releases import COMMITS, RELEASES, known_release, newest, resolve
from sglang_probe._route import context_bits
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree

KNOWN = [name for name in RELEASES if name not in COMMITS]
LAST = {known_release(name).ruleset: name for name in KNOWN}
SINCE = [name for name in KNOWN[KNOWN.index("0.5.9") :] if name == "0.5.9" or name in LAST.values()]
"""The last release of every era from there on: what the conformance tests fetch too."""

# -------------------------------------------------------------------------------------------------------------- without SGLang


def wanted_for(target: str, *, release: str = "0.5.9", rows: int = 1, captured: bool = False, **facts: int) -> Wanted:
    one = TARGETS[target]
    settings = one.settings(Group.make(world_size=2, full_nvlink=1, **facts), resolve(release))
    decision = routed(settings, rows * 1024 * 2, 1024, "bf16", captured)
    return Wanted(target, str(decision.path), decision.kernel, settings, captured, (rows, 1024), "bf16", rows * 1024 * 2)


@pytest.fixture
def packages(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes folders that look like an installed sglang of some version, and torch; nothing in them is ever run."""
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("an sglang is installed here")
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(version: str, torch: bool = True) -> None:
        (tmp_path / "sglang" / "srt").mkdir(parents=True)
        (tmp_path / "sglang" / "__init__.py").write_text("raise AssertionError('imported')")
        (tmp_path / "sglang" / "srt" / "server_args.py").write_text("")
        (tmp_path / "sglang" / "_version.py").write_text(f"__version__ = {version!r}\n")
        if torch:
            (tmp_path / "torch").mkdir()
            (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
        importlib.invalidate_caches()

    yield make


def test_the_release_that_is_installed_is_found_without_importing_it(packages: Callable[..., None]) -> None:
    packages("0.5.11")
    assert engine.release() == "0.5.11"


def test_an_installed_release_that_no_table_knows_is_refused_with_the_nearest_one(packages: Callable[..., None]) -> None:
    packages("99.0.1")
    with pytest.raises(ProbeUnavailable, match=rf"sglang 99\.0\.1 .*{newest()}"):
        engine.release()


def test_no_sglang_is_said_in_the_parent_before_any_rank_is_started() -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("an sglang is installed here")
    with pytest.raises(ProbeUnavailable, match="no sglang is installed"):
        engine.release()


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_sglang_without_torch_is_refused(packages: Callable[..., None]) -> None:
    packages("0.5.9", torch=False)
    with pytest.raises(ProbeUnavailable, match="torch is not"):
        engine.release()


def _kernel(one: Wanted) -> Wanted:
    return replace(one, settings=replace(one.settings, kernel="one_shot"))


def _compiling(one: Wanted) -> Wanted:
    return replace(one, settings=replace(one.settings, bits=context_bits("compiling")))


@pytest.mark.parametrize(
    ("wanted", "device", "why"),
    [
        (_kernel(wanted_for("one_shot")), "gpu", "cannot be told to run one_shot"),
        (_compiling(wanted_for("torch_distributed")), "gpu", "only eager calls"),
        (wanted_for("pynccl_in_place", symm_mem=1), "gpu", "--enable-symm-mem"),
        (replace(wanted_for("torch_symm_mem"), kernel="multimem"), "gpu", "multicast, which is not run"),
        (wanted_for("pynccl_in_place"), "host", "pynccl_in_place needs GPUs"),
        (wanted_for("torch_distributed", captured=True), "host", "captures CUDA graphs on GPUs alone"),
    ],
)
def test_what_sglang_cannot_be_asked_for_is_refused_before_it_is_imported(wanted: Wanted, device: str, why: str) -> None:
    with pytest.raises(ProbeUnavailable, match=why):
        engine.prepare(SimpleNamespace(device=device), wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "captured", "built"),
    [
        ("torch_distributed", False, Built(pynccl=True)),
        ("torch_distributed", True, Built()),  # graph_capture() would switch pynccl on
        ("pynccl_in_place", False, Built(pynccl=True)),
        ("pynccl_in_place", True, Built(pynccl=True)),
        ("pynccl_out_of_place", True, Built(pynccl=True)),
        ("one_shot", False, Built(pynccl=True, custom=True)),
        ("torch_symm_mem", False, Built(pynccl=True, torch_symm_mem=True)),
    ],
)
def test_each_target_gets_the_communicators_of_a_server_in_which_it_is_taken(target: str, captured: bool, built: Built) -> None:
    assert engine.built_for(wanted_for(target, captured=captured)) == built


def test_v2_is_built_by_the_switch_that_the_facts_say() -> None:
    assert engine.built_for(wanted_for("one_shot", custom_v2=1)).v2 == 1
    before = dict(os.environ)
    with engine_state._environment(1):
        assert os.environ["SGLANG_USE_JIT_ALL_REDUCE"] == os.environ["SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"] == "1"
    assert dict(os.environ) == before
    with engine_state._environment(-1):
        assert dict(os.environ) == before


# ------------------------------------------------------------------------------------------------------------------ ranks agree


@pytest.fixture(scope="module")
def ranks() -> Iterator[LocalGroup]:
    with LocalGroup(2, device="host") as group:
        yield group


def test_ranks_tell_one_another_any_text_whatever_route_is_set(ranks: LocalGroup) -> None:
    def said(c: Any) -> tuple[list[str], bool]:
        c.piecewise, c.custom.disabled = True, False
        before = c.settings
        heard = tell(c, f"rank {c.rank}: Ünïcode\nlines" if c.rank else "")
        return heard, c.settings is before

    assert ranks.run(said) == [(["", "rank 1: Ünïcode\nlines"], True)] * 2


def test_what_fails_on_one_rank_is_refused_on_all_of_them_and_none_waits(ranks: LocalGroup) -> None:
    def step(c: Any) -> str:
        def fails() -> None:
            if c.rank == 1:
                raise ValueError("of \n this rank")

        try:
            agree(c, "a step", fails)
        except ProbeUnavailable as error:
            return str(error)
        return "done"

    assert ranks.run(step) == ["a step: ValueError: of this rank (rank 1)", "a step: ValueError: of this rank"]
    assert ranks.run(lambda c: agree(c, "a step", lambda: c.rank)) == [0, 1]


def test_ranks_without_sglang_are_refused_and_go_on(ranks: LocalGroup) -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("an sglang is installed here")

    assert all("no sglang is installed" in why for why in ranks.run(refused, wanted_for("torch_distributed")))
    assert ranks.all_reduce(1024).correct


# ---------------------------------------------------------------------------------------------------------------------- watched


def module(tmp_path: File, name: str, code: str) -> ModuleType:
    """A stand-in: a file that is called as SGLang's is, and code of ours in it."""
    (tmp_path / f"{name}.py").write_text(code)
    spec = importlib.util.spec_from_file_location(f"stand_in_{name}", tmp_path / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


PYNCCL = "def all_reduce(x): return x\ndef outplace_all_reduce(x): return -x\n"
V2_BY_ENUM = """
import enum
class Algo(enum.Enum):
    ONE_SHOT_PULL = 1
class Mode(enum.Enum):
    MULTICAST = 1
def _all_reduce(x):
    algo = Algo.ONE_SHOT_PULL
    return -x
def custom_all_reduce(x):
    return _all_reduce(x)
def through_multicast(x):
    algo, mode = Algo.ONE_SHOT_PULL, Mode.MULTICAST
    return -x
"""
V2_BY_NAME = """
def custom_all_reduce(x):
    algo_name, use_multicast = "2shot_push", False
    return -x
"""


def test_what_a_call_enters_is_its_path_and_what_it_gives_comes_back(tmp_path: File) -> None:
    pynccl = module(tmp_path, "pynccl", PYNCCL)
    seen = engine_watch.watch(lambda: pynccl.all_reduce(3))
    assert (seen.path, seen.kernel, seen.backend, seen.result) == ("pynccl_in_place", "", "", 3)
    seen = engine_watch.watch(lambda: pynccl.outplace_all_reduce(3))
    assert (seen.path, seen.result) == ("pynccl_out_of_place", -3)


def test_two_paths_in_one_call_are_both_told_and_none_is_none(tmp_path: File) -> None:
    pynccl = module(tmp_path, "pynccl", PYNCCL)
    torchs = module(tmp_path, "distributed_c10d", "def all_reduce(x): return x")
    seen = engine_watch.watch(lambda: (pynccl.all_reduce(1), torchs.all_reduce(1), pynccl.all_reduce(1)))
    assert seen.path == "pynccl_in_place then torch_distributed"
    assert engine_watch.watch(lambda: 1).path == "none"


def test_the_kernel_that_v2_chooses_is_read_where_each_release_keeps_it(tmp_path: File) -> None:
    (tmp_path / "older").mkdir()
    older = module(tmp_path / "older", "custom_all_reduce_v2", V2_BY_ENUM)
    seen = engine_watch.watch(lambda: older.custom_all_reduce(1))
    assert (seen.path, seen.backend, seen.kernel) == ("custom", "V2", "one_shot_pull")
    assert str(seen) == "custom (V2, one_shot_pull)"
    assert engine_watch.watch(lambda: older.through_multicast(1)).kernel == "two_shot_multicast"
    newer = module(tmp_path, "custom_all_reduce_v2", V2_BY_NAME)
    assert engine_watch.watch(lambda: newer.custom_all_reduce(1)).kernel == "two_shot_push"


def test_v1_says_its_path_and_no_kernel(tmp_path: File) -> None:
    v1 = module(tmp_path, "custom_all_reduce", "def custom_all_reduce(x):\n    algo_name = 'of no meaning here'\n    return -x")
    seen = engine_watch.watch(lambda: v1.custom_all_reduce(1))
    assert (seen.path, seen.backend, seen.kernel) == ("custom", "v1", "")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
def test_a_call_that_goes_through_an_operator_of_torch_is_seen_too(tmp_path: File) -> None:
    torch, pynccl = importlib.import_module("torch"), module(tmp_path, "pynccl", PYNCCL)
    library = torch.library.Library("sglang_probe_test", "FRAGMENT")
    library.define("out_of_place(Tensor x) -> Tensor")
    library.impl("out_of_place", pynccl.outplace_all_reduce, "CPU")
    seen = engine_watch.watch(lambda: torch.ops.sglang_probe_test.out_of_place(torch.ones(2)))
    assert seen.path == "pynccl_out_of_place" and seen.result.tolist() == [-1, -1]


def test_a_profiler_that_was_there_is_there_again_even_after_an_error() -> None:
    def mine(*_: Any) -> None: ...

    before = sys.getprofile()
    sys.setprofile(mine)
    try:
        with pytest.raises(ZeroDivisionError):
            engine_watch.watch(lambda: 1 // 0)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)


# --------------------------------------------------------------------------------------------------------------------- switched

# A flag whose own context manager does not clear it where a call raises, as in v0.5.9.
FLAG = """
import contextlib
on = False
def is_in_piecewise_cuda_graph():
    return on
@contextlib.contextmanager
def enable_piecewise_cuda_graph():
    global on
    on = True
    yield
    on = False
"""


def an_engine(state: Any) -> Engine:
    made = object.__new__(Engine)
    made.version, made.state = "of this test", state
    return made


def test_the_piecewise_flag_is_off_again_even_where_a_call_raises(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = module(tmp_path, "flag", FLAG)
    monkeypatch.setitem(sys.modules, flag.__name__, flag)
    state = SimpleNamespace(is_in_piecewise_cuda_graph=flag.is_in_piecewise_cuda_graph)
    with an_engine(state)._piecewise():
        assert flag.is_in_piecewise_cuda_graph()
    assert not flag.is_in_piecewise_cuda_graph()
    with pytest.raises(MemoryError), an_engine(state)._piecewise():
        raise MemoryError
    assert not flag.is_in_piecewise_cuda_graph()
    with pytest.raises(ProbeUnavailable, match="no piecewise"), an_engine(SimpleNamespace())._piecewise():
        pass


class Communicator:
    """Its change_state forgets what was before where a call raises, as in v0.5.9."""

    disabled, stream = True, "its own"

    def change_state(self, enable: bool | None = None, stream: Any = None) -> Any:
        @contextlib.contextmanager
        def changed() -> Iterator[None]:
            self.disabled, self.stream = not enable, stream
            yield
            self.disabled, self.stream = True, "its own"

        return changed()


def test_pynccl_is_enabled_on_the_stream_of_the_call_and_as_before_even_where_it_raises() -> None:
    one = Communicator()
    with engine_state._enabled(one, lambda: "the call's"):
        assert (one.disabled, one.stream) == (False, "the call's")
    assert (one.disabled, one.stream) == (True, "its own")
    with pytest.raises(MemoryError), engine_state._enabled(one, lambda: "the call's"):
        raise MemoryError
    assert (one.disabled, one.stream) == (True, "its own")


def test_a_communicator_that_was_not_built_is_named() -> None:
    group = SimpleNamespace(
        ca_comm=None, torch_symm_mem_comm=SimpleNamespace(disabled=True), pynccl_comm=SimpleNamespace(available=True)
    )
    assert engine_state._missing(group, Built(pynccl=True)) == ""
    assert engine_state._missing(group, Built(custom=True)) == "ca_comm"
    assert engine_state._missing(group, Built(torch_symm_mem=True)) == "torch_symm_mem_comm"
    group.pynccl_comm.available = False
    assert engine_state._missing(group, Built(pynccl=True)) == "pynccl_comm"


# ------------------------------------------------------------------------------------------------- every release's own source

_FILES = "srt/distributed/device_communicators"


def _functions(tree: Tree, relpath: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(ast.parse(tree.source(relpath))) if isinstance(node, ast.FunctionDef)}


@pytest.mark.network
@pytest.mark.parametrize("version", SINCE)
def test_every_release_has_what_the_driver_looks_up_in_it(version: str) -> None:
    tree = Tree(_fetch.fetch(version))
    state = _functions(tree, "srt/distributed/parallel_state.py")
    asked = {
        "group_ranks",
        "local_rank",
        "backend",
        "use_pynccl",
        "use_custom_allreduce",
        "use_torch_symm_mem_allreduce",
        "group_name",
    }
    known = {arg.arg for arg in state["init_model_parallel_group"].args.args}
    assert asked <= known and known & {"use_mscclpp_allreduce", "use_mscclpp"}
    begin = {arg.arg for arg in state["init_distributed_environment"].args.args}
    assert {"world_size", "rank", "distributed_init_method", "local_rank", "backend"} <= begin
    flags = [name for name in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph") if name in _names(tree)]
    assert len(flags) == 1
    assert {"all_reduce", "graph_capture"} <= state.keys()
    assert "set_global_server_args_for_scheduler" in _functions(tree, "srt/server_args.py")
    assert "monkey_patch_p2p_access_check" in _functions(tree, "srt/utils/common.py")
    assert "change_state" in _functions(tree, f"{_FILES}/pynccl.py")


def _names(tree: Tree) -> set[str]:
    module = ast.parse(tree.source("srt/distributed/parallel_state.py"))
    return {alias.name for node in ast.walk(module) if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.network
@pytest.mark.parametrize("version", SINCE)
def test_every_call_by_which_a_release_communicates_is_one_that_is_watched_for(version: str) -> None:
    tree = Tree(_fetch.fetch(version))
    state = _functions(tree, "srt/distributed/parallel_state.py")
    watched = {function for _, function in engine_watch._PATHS}
    called = set()
    for name in ("_all_reduce_out_place", "_all_reduce_in_place"):
        for node in ast.walk(state[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "all_reduce" in node.func.attr:
                called.add(node.func.attr)
    assert called - {"_resolve_outplace_all_reduce_method", "_all_reduce_in_place"} <= watched, called
    for (stem, function), _path in engine_watch._PATHS.items():
        if tree.exists(f"{_FILES}/{stem}.py"):
            assert function in _functions(tree, f"{_FILES}/{stem}.py")
    v2 = f"{_FILES}/custom_all_reduce_v2.py"
    if tree.exists(v2):
        assert {"algo", "algo_name"} & {node.id for node in ast.walk(ast.parse(tree.source(v2))) if isinstance(node, ast.Name)}
