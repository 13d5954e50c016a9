"""The engine driver with SGLang itself: its real GroupCoordinator on CPU ranks, over gloo, and its own dispatch and switches.

Released packages come from the index; each test runs where torch and the modules in NEEDS are (CI's phase torch), and is skipped elsewhere
with what is missing. Invariant: in CI a missing module is a failure where torch is there. No time is asserted but that one was taken.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as File
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from run_engine import refused

from sglang_probe import Group, LocalGroup
from sglang_probe._bench import engine, engine_state, engine_watch
from sglang_probe._bench.bench import run_bench
from sglang_probe._bench.driver import Wanted
from sglang_probe._bench.engine_state import Built
from sglang_probe._bench.targets import TARGETS
from sglang_probe._releases import newest, resolve
from sglang_probe._route import context_bits
from sglang_probe._run.switches import GATES
from sglang_probe._source import fetch as _fetch

pytestmark = [pytest.mark.network, pytest.mark.slow]

NEEDS = "IPython PIL aiohttp msgspec orjson psutil pybase64 pydantic requests starlette torch tqdm triton tvm_ffi zmq".split()
"""What these releases import, of other packages, before their parallel state is there."""
REAL = ("0.5.21", newest())
"""Older ones import torchvision too, which has no package for torch without CUDA."""


def whole_package(version: str) -> File:
    """The released wheel, unpacked once; what the tables are derived from is only a part of it."""
    folder = _fetch.cache_dir() / f"sglang-{version}-whole"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".whole-") as scratch:
            done, said = _fetch._pip(version, f"{sys.version_info[0]}.{sys.version_info[1]}", scratch)
            wheels = list(File(scratch).glob("sglang-*.whl"))
            assert done and wheels, f"the package index gave no sglang {version}: {said[-500:]}"
            with zipfile.ZipFile(wheels[0]) as archive:
                archive.extractall(File(scratch) / "site")
            with contextlib.suppress(OSError):  # another process was faster
                (File(scratch) / "site").rename(folder)
    return folder


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest) -> Iterator[str]:
    """A release that can be imported in the ranks; its version."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed here")
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"SGLang imports {', '.join(missing)}, not installed here")
    assert not missing, f"install what SGLang imports: {', '.join(missing)} are missing"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(whole_package(request.param)))
        yield request.param


@pytest.fixture(scope="module")
def group(real: str) -> Iterator[LocalGroup]:
    with LocalGroup(2, device="host", timeout_s=120.0) as made:
        yield made


def one_call(c: Any, wanted: Wanted) -> dict[str, Any]:
    prepared = engine.prepare(c, wanted)
    numbers = np.arange(prepared.tensor.size) % 7 + c.rank
    if wanted.dtype == "bf16":  # its bits, of small whole numbers
        prepared.tensor.reshape(-1)[:] = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        prepared.tensor.reshape(-1)[:] = numbers
    result = prepared.call(0.0)
    bits = result.reshape(-1)
    values = (bits.astype(np.uint32) << 16).view(np.float32) if wanted.dtype == "bf16" else bits
    right = bool((values == (np.arange(values.size) % 7) * 2 + 1).all())
    prepared.tensor[:] = 0
    us = [prepared.enqueue(3, 0.0), prepared.enqueue(3, 2.0)]
    return {
        "right": right,
        "in place": result is prepared.tensor,
        "what": (prepared.path, prepared.kernel, prepared.backend, prepared.release),
        "us": us,
        "zeros": not prepared.tensor.any(),
        "engine": (c.rank, id(vars(c)["engine"]["engine"])),
    }


def real_wanted(release: str, dtype: str, rows: int) -> Wanted:
    nbytes = rows * 1024 * {"bf16": 2, "fp32": 4}[dtype]
    settings = TARGETS["torch_distributed"].settings(Group.make(world_size=2), resolve(release))
    return Wanted("torch_distributed", "torch_distributed", "", settings, False, (rows, 1024), dtype, nbytes)


def test_sglangs_own_group_sums_on_every_rank_and_its_time_is_taken(group: LocalGroup, real: str) -> None:
    engines = set()
    for dtype, rows in (("fp32", 1), ("bf16", 1), ("bf16", 300)):
        for said in group.run(one_call, real_wanted(real, dtype, rows), timeout_s=300.0):
            assert said["right"] and said["in place"] and said["zeros"], said
            assert said["what"] == ("torch_distributed", "", "gloo", real)
            assert all(us > 0 for us in said["us"])
            engines.add(said["engine"])
    assert len(engines) == 2  # one a rank, kept
    assert group.all_reduce(4096).correct  # ours goes on beside it


def test_another_release_than_the_installed_one_and_another_path_than_sglang_takes_are_refused(
    group: LocalGroup, real: str
) -> None:

    for why in group.run(refused, real_wanted("0.5.10", "fp32", 1), timeout_s=300.0):
        assert f"sglang {real} is installed, and this is asked of 0.5.10" in why
    other = replace(real_wanted(real, "fp32", 1), path="cpu_shm")
    for why in group.run(refused, other, timeout_s=300.0):
        assert "SGLang took torch_distributed here, and not cpu_shm" in why


def test_sglangs_own_switches_do_what_the_driver_takes_them_for(group: LocalGroup, real: str) -> None:
    def switched(c: Any, wanted: Wanted) -> list[Any]:
        from sglang.srt.distributed.device_communicators.pynccl import PyNcclCommunicator

        engine.prepare(c, wanted)
        own = vars(c)["engine"]["engine"]
        asks = next(n for n in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph") if hasattr(own.state, n))
        flag, seen = getattr(own.state, asks), []
        settings = replace(wanted.settings, bits=context_bits("piecewise"))
        with own.surroundings(None, settings, False):
            seen += [flag(), __import__("torch").is_grad_enabled()]
        seen.append(flag())
        pynccl = object.__new__(PyNcclCommunicator)  # its switch, and nothing of NCCL's
        pynccl.available, pynccl.disabled, pynccl.stream = True, True, None
        with engine_state._enabled(pynccl, lambda: None):
            seen.append(pynccl.disabled)
        return [*seen, pynccl.disabled]

    expected = [True, False, False, False, True]
    assert group.run(switched, real_wanted(real, "fp32", 1), timeout_s=300.0) == [expected] * 2


def dispatched(c: Any, wanted: Wanted) -> list[tuple[str, bool, bool]]:
    """What each switch gives: SGLang's dispatch of a tensor that says it is on a GPU, and its pynccl over an NCCL that does nothing."""
    import torch
    from sglang.srt.distributed.device_communicators import pynccl as module

    engine.prepare(c, wanted)
    own = vars(c)["engine"]["engine"]
    group, state, nothing = own.group(Built()), own.state, SimpleNamespace(cuda_stream=0)
    communicator = object.__new__(module.PyNcclCommunicator)
    nccl = SimpleNamespace(ncclAllReduce=lambda *_: None)
    communicator.__dict__.update(available=True, disabled=True, device=torch.device("cpu"), comm=None, stream=nothing, nccl=nccl)
    communicator.use_current_stream = True  # before v0.5.10
    for one in (module, state):
        one.get_current_device_stream_fast = lambda: nothing
    library = torch.library.Library("sglang", "FRAGMENT")  # its operators are registered for GPUs alone
    library.impl("inplace_all_reduce", lambda x, group_name: group._all_reduce_in_place(x), "CPU")
    library.impl(
        "outplace_all_reduce", lambda x, group_name, outplace_all_reduce_method: group._all_reduce_out_place(x, "pynccl"), "CPU"
    )

    class OnGpu(torch.Tensor):
        is_cpu = False

    tensor, found = torch.zeros(8).as_subclass(OnGpu), []
    piecewise, current = context_bits("piecewise"), torch.cuda.current_stream
    group.pynccl_comm, torch.cuda.current_stream = communicator, lambda: nothing
    try:
        for on, bits in ((0, 0), (GATES["pynccl"], 0), (0, piecewise), (0, 0)):
            with own.surroundings(group, replace(wanted.settings, on=on, bits=bits), False):
                seen = engine_watch.watch(lambda: group.all_reduce(tensor))
            found.append((seen.path, seen.result is tensor, communicator.disabled))
    finally:
        group.pynccl_comm, torch.cuda.current_stream = None, current
    return found


def test_sglangs_own_dispatch_takes_the_path_that_each_switch_is_for(group: LocalGroup, real: str) -> None:
    plain = ("torch_distributed", True, True)
    expected = [plain, ("pynccl_in_place", True, True), ("pynccl_out_of_place", False, True), plain]
    assert group.run(dispatched, real_wanted(real, "fp32", 1), timeout_s=300.0) == [expected] * 2


def test_a_bench_through_sglang_checks_and_keeps_its_cells(real: str, tmp_path: File) -> None:
    asked: dict[str, Any] = {
        **dict.fromkeys(("tokens", "nccl", "ordinals", "world_size", "provider", "time_limit_s")),
        "targets": "torch_distributed,pynccl_in_place",
        "sizes": "1K,64K",
        "phases": "eager,captured",
        "patterns": "back_to_back,interleaved",
        "compute_us": 5.0,
        "dtype": "bf16",
        "processes": 1,
        "quick": True,
        "split": 0,
        "drivers": "engine",
        "hidden": 7168,
        "seed": 0,
        "timeout_s": 120.0,
        "device": "host",
        "facts": {},
    }
    done = run_bench(tmp_path / "engine.jsonl", **asked)
    cells = done.measurement.cells
    assert {(c.path, c.driver, c.backend, c.release, c.phase) for c in cells} == {
        ("torch_distributed", "engine", "gloo", real, "eager")
    }
    assert len(cells) == 4 and all((c.checked, c.wrong) == (4, 0) for c in cells)
    assert all((rank > 0).all() and len(rank) >= 3 for c in cells for rank in c.host_us)
    refused = " ".join(done.report.refused_texts())
    assert "pynccl_in_place needs GPUs" in refused and "captures CUDA graphs on GPUs alone" in refused
