"""Phases that ask a machine: GPUs, driver, links, health, peer access, IPC, environment, limits; on stand-ins, healthy ones and sick ones.

Invariant: each sickness is planted in what the phase asks (nvidia-ml-py, CUDA, files, variables), never in what it answers.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from preflight_report import Kept, asked
from test_provenance import FakeNvml

from sglang_probe import ProbeError, ProbeUnavailable, gpu
from sglang_probe._bench.targets import TARGETS
from sglang_probe._preflight import devices, driver, environment, health, ipc, links, paths, peer, system
from sglang_probe._preflight.variables import VARIABLES
from sglang_probe._server.environment import VARIABLES as ROUTES

H200 = gpu.Device(0, "NVIDIA H200", "GPU-0", "0000:10:00.0", (9, 0), 132, 150_000_000_000)


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the kernel module tells of itself: two GPUs."""
    for name in ("gpus/0000:10:00.0", "gpus/0000:11:00.0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a)  Mon Jan  1\nGCC version: 12\n"
    )
    for module in (devices, driver):
        monkeypatch.setattr(module, "PROC", tmp_path)
    return tmp_path


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, proc: Path) -> Callable[..., FakeNvml]:
    """Plants nvidia-ml-py; members that are given replace its own."""

    def plant(off: tuple[str, ...] = (), **members: Any) -> FakeNvml:
        fake = FakeNvml(off=off)
        for name, value in {"nvmlDeviceGetRemappedRows": lambda handle: (0, 0, 0, 0), **members}.items():
            setattr(fake, name, value)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return plant


def sees(monkeypatch: pytest.MonkeyPatch, *found: gpu.Device, why: str = "") -> None:
    monkeypatch.setattr(gpu, "available", lambda: gpu.Availability(why))
    monkeypatch.setattr(gpu, "devices", lambda: tuple(found))


# --------------------------------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("wish", "seen", "words"),
    [
        ("0,7,1", 1, "names 3 GPUs, and CUDA shows 1: it stops at the first that is not here (7)"),
        ("GPU-0,GPU-9", 1, "names 2 GPUs, and CUDA shows 1"),
        ("0,0", 1, "(0) or stands there twice"),
        ("0,-1,1", 1, ""),
        ("MIG-0a,MIG-0b", 1, ""),
        ("1,0", 2, ""),
        ("", 0, "CUDA_VISIBLE_DEVICES='' hides every GPU: unset it"),
        ("-1", 0, "CUDA_VISIBLE_DEVICES='-1' hides every GPU"),
        ("7", 0, "CUDA_VISIBLE_DEVICES='7' may name none that is here: unset it"),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_gpus_that_a_variable_hides_are_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, proc: Path, wish: str, seen: int, words: str, listed: bool
) -> None:
    """Also where the kernel's module lists none, as in some containers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wish)
    if not listed:
        for name in ("0000:10:00.0", "0000:11:00.0"):
            (proc / "gpus" / name).rmdir()
    sees(monkeypatch, *(replace(H200, ordinal=i) for i in range(seen)), why="" if seen else "no CUDA-capable device is detected")
    found = asked(devices.ask).findings
    assert (len(found) == 1 and words in found[0]) if words else found == []


def test_a_variable_that_hides_gpus_where_there_is_no_driver_is_worth_knowing_and_not_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "PROC", tmp_path)
    monkeypatch.setattr(devices, "driver_missing", lambda: True)
    sees(monkeypatch, why="no driver")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    heard = asked(devices.ask)
    assert heard.findings == [] and "CUDA_VISIBLE_DEVICES='3'" in heard.notes[0] and "no NVIDIA driver" in heard.notes[0]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert asked(devices.ask).notes == []


def test_gpus_are_counted_and_named(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    sees(monkeypatch, H200, replace(H200, ordinal=1))
    heard = asked(devices.ask)
    assert heard.end == ("ok", "2 x NVIDIA H200 (sm_90, 140 GiB)")
    assert heard.facts["count"] == 2 and heard.facts["gpus"][1]["ordinal"] == 1 and heard.findings == heard.notes == []


def test_gpus_that_cannot_be_used_are_a_finding(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    sees(monkeypatch, why="system not yet initialized (802); start the fabric manager")
    heard = asked(devices.ask)
    assert heard.end == ("ok", "no GPU: system not yet initialized (802)") and heard.facts["count"] == 0
    assert heard.findings == [
        "2 GPUs are in this machine, and none can be used: system not yet initialized (802); start the fabric manager"
    ]


def test_gpus_that_are_hidden_and_gpus_of_two_kinds_are_told(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    sees(monkeypatch, H200)
    assert asked(devices.ask).notes == ["2 GPUs are in this machine, 1 of them visible here (CUDA_VISIBLE_DEVICES=0)"]
    sees(monkeypatch, H200, replace(H200, name="NVIDIA L4", capability=(8, 9)))
    assert "not all of one kind" in asked(devices.ask).notes[0]


def test_no_driver_is_no_finding(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    (proc / "version").unlink()
    for folder in (proc / "gpus").iterdir():
        folder.rmdir()
    sees(monkeypatch, why="no NVIDIA driver here (no libcuda.so.1 can be opened)")
    assert asked(devices.ask).findings == []
    if devices.driver_missing():  # this machine has no device files of a GPU either
        monkeypatch.setitem(sys.modules, "pynvml", None)
        for phase in (driver.ask, links.ask, health.ask):
            assert asked(phase).end == ("skipped", "no NVIDIA driver here")


# ---------------------------------------------------------------------------------------------------------------------------- driver


def test_a_driver_that_was_updated_without_a_reboot_is_a_finding(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml(nvmlSystemGetDriverVersion=lambda: "580.159.04")
    heard = asked(driver.ask)
    assert heard.end == ("ok", "driver 580.159.04, CUDA up to 13.0") and heard.findings == [] and fake.opened == 0
    assert heard.facts["module"] == "580.159.04" and heard.facts["module_kind"] == "open"
    nvml(nvmlSystemGetDriverVersion=lambda: "590.1")
    assert asked(driver.ask).findings == ["kernel module 580.159.04, and its library is 590.1: a driver was updated, reboot"]
    nvml(off=("nvmlInit",))
    assert "kernel module 580.159.04 is loaded, and NVIDIA's driver does not answer" in asked(driver.ask).findings[0]


def test_a_driver_without_nvidia_ml_py_is_told_and_no_finding(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    heard = asked(driver.ask)
    assert heard.findings == [] and "pip install nvidia-ml-py" in heard.notes[0] and heard.facts["module"] == "580.159.04"


def test_versions_of_the_proprietary_module_are_read_too() -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    found = driver._VERSION.search(text)
    assert found and found[1] == "535.183.01"


# ----------------------------------------------------------------------------------------------------------------------------- links


def test_links_are_told_as_nvml_tells_them(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml()
    heard = asked(links.ask)
    assert heard.end == ("ok", "NVLink x18, switched") and heard.findings == heard.notes == [] and fake.opened == 0
    assert heard.facts["links"] == [["self", "NVLink x18, switched"], ["NVLink x18, switched", "self"]]


def test_nvlinks_that_are_down_and_ways_that_differ_are_findings(nvml: Callable[..., FakeNvml]) -> None:
    def three(i: int, handle: int) -> int:
        return 1 if i < (16 if handle == 2 else 18) else 0

    nvml(nvmlDeviceGetCount=lambda: 3, nvmlDeviceGetNvLinkState=lambda handle, i: three(i, handle))
    assert asked(links.ask).findings == [
        "GPU 2 has 16 active NVLinks and others have 18: some are down (nvidia-smi nvlink --status)"
    ]
    nvml(nvmlDeviceGetP2PStatus=lambda one, other, index: int(one == 0))
    assert any("a link that works in one direction" in text for text in asked(links.ask).findings)


def test_no_peer_access_is_told_and_no_finding(nvml: Callable[..., FakeNvml]) -> None:
    nvml(nvmlDeviceGetP2PStatus=lambda one, other, index: 1)
    heard = asked(links.ask)
    assert heard.findings == [] and heard.end == ("ok", "PCIe, system; no peer access")
    assert "the driver allows no peer access between GPUs 0->1, 1->0" in heard.notes[0]


# ---------------------------------------------------------------------------------------------------------------------------- health


def test_healthy_gpus_have_no_finding(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 1, nvmlDeviceGetTotalEccErrors=lambda *_: 0)
    heard = asked(health.ask)
    assert heard.end == ("ok", "1755 MHz, 40 C, 123 W, 0 uncorrected ECC errors, not throttled")
    assert heard.findings == heard.notes == [] and fake.opened == 0
    assert heard.facts["gpus"][0]["sm_mhz"] == 1755 and heard.facts["remapped_rows"] == [{"pending": False, "failed": False}] * 2


@pytest.mark.parametrize(
    ("members", "finding"),
    [
        (
            {"nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 3 * kind},
            "GPU 0: 3 memory errors that could not be corrected",
        ),
        (
            {"nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x40},
            "GPU 0: the hardware slows it down because it is too hot",
        ),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x80}, "GPU 0: an external power brake slows it down"),
        (
            {"nvmlDeviceGetRemappedRows": lambda handle: (0, 1, 1, 0)},
            "GPU 0: rows of its memory are broken and are replaced at the next",
        ),
        (
            {"nvmlDeviceGetRemappedRows": lambda handle: (0, 9, 0, 1)},
            "GPU 0: rows of its memory are broken and could not be replaced",
        ),
    ],
)
def test_a_sick_gpu_is_a_finding(nvml: Callable[..., FakeNvml], members: dict[str, Any], finding: str) -> None:
    quiet = {"nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 1, "nvmlDeviceGetTotalEccErrors": lambda *_: 0}
    nvml(**{**quiet, **members})
    heard = asked(health.ask)
    assert len(heard.findings) == 2 and heard.findings[0].startswith(finding)  # both GPUs have it


def test_a_gpu_that_fell_off_the_bus_is_a_finding(nvml: Callable[..., FakeNvml]) -> None:
    def handle(i: int) -> int:
        if i == 1:
            raise FakeNvml.NVMLError("GPU is lost")
        return i

    nvml(nvmlDeviceGetHandleByIndex=handle)
    heard = asked(health.ask)
    assert any(text.startswith("GPU 1: the driver tells nothing of it") for text in heard.findings)
    assert heard.facts["remapped_rows"][1] is None


def test_a_power_cap_corrected_errors_and_no_ecc_are_told_and_no_finding(nvml: Callable[..., FakeNvml]) -> None:
    nvml(
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4,
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 0 if kind else 7,
        nvmlDeviceGetEccMode=lambda handle: [0, 0],
    )
    heard = asked(health.ask)
    assert heard.findings == []
    for words in ("7 memory errors were corrected", "ECC is off", "software_power_cap"):
        assert any(words in note for note in heard.notes), words


def test_what_nvml_does_not_tell_is_not_known(nvml: Callable[..., FakeNvml]) -> None:
    nvml(
        off=tuple(
            name
            for name in vars(FakeNvml)
            if name.startswith("nvmlDeviceGet")
            and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")
        )
    )
    heard = asked(health.ask)
    assert heard.findings == [] and heard.end == ("ok", "ECC not told, not throttled")


# ------------------------------------------------------------------------------------------------------------------------------ peer


def with_copier(monkeypatch: pytest.MonkeyPatch, copy: Callable[[int, int, int, int], tuple[int, int] | None]) -> None:
    monkeypatch.setattr(gpu, "_module", lambda: SimpleNamespace(peer_copy=copy))


def test_every_ordered_pair_moves_data(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    with_copier(monkeypatch, lambda source, target, nbytes, seed: (seen.append((source, target, seed)), (0, -1))[1])
    heard = asked(peer.ask, {"devices": {"count": 3}})
    assert heard.end == ("ok", "6 of 6 ordered pairs moved 8 MiB rightly by our kernel") and heard.findings == []
    assert {pair[:2] for pair in seen} == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert len({pair[2] for pair in seen}) == 6  # another pattern each time


def test_wrong_data_names_the_pair_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with_copier(monkeypatch, lambda source, target, nbytes, seed: (12, 1024) if (source, target) == (0, 1) else (0, -1))
    heard = asked(peer.ask, {"devices": {"count": 2}})
    assert heard.findings == ["peer access 0->1 moved wrong data: 12 of 2,097,152 words, the first at byte 4,096"]
    assert heard.end == ("ok", "1 of 2 ordered pairs moved 8 MiB rightly by our kernel")


def test_pairs_without_peer_access_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with_copier(monkeypatch, lambda source, target, nbytes, seed: None)
    heard = asked(peer.ask, {"devices": {"count": 2}})
    assert heard.end == ("ok", "no pair of GPUs has peer access") and heard.findings == []
    assert heard.notes == ["no peer access between GPUs 0->1, 1->0"] and heard.facts["denied"] == ["0->1", "1->0"]


class FakeTorch(ModuleType):
    """torch, as far as copies go: tensors are NumPy's, `lie` is what a copy does to the words that it moves."""

    __version__ = "2.0"

    def __init__(self, lie: Callable[[Any], Any], access: bool = True, gpus: bool = True) -> None:
        super().__init__("torch")
        self.lie = lie
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus, can_device_access_peer=lambda one, other: access, synchronize=lambda device: None
        )

    def from_numpy(self, array: Any) -> Any:
        return _Tensor(self, array.copy())

    def full_like(self, tensor: Any, value: int, device: str) -> Any:
        return _Tensor(self, np.full_like(tensor.array, value))


class _Tensor:
    def __init__(self, torch: FakeTorch, array: Any) -> None:
        self.torch, self.array = torch, array

    def to(self, device: str) -> _Tensor:
        return self

    def copy_(self, other: _Tensor) -> None:
        moved = self.torch.lie(other.array.copy())
        if moved is not None:
            self.array = moved

    def cpu(self) -> _Tensor:
        return self

    def numpy(self) -> Any:
        return self.array


def flipped(array: Any) -> Any:
    array[77] ^= 1 << 20
    return array


@pytest.mark.parametrize(
    ("lie", "wrong"),
    [
        (lambda a: a, 0),
        (flipped, 1),
        (lambda a: None, 1 << 21),
        (lambda a: a * 0, 1 << 21),
        (lambda a: np.roll(a, 4), 1 << 21),
    ],
    ids=["moved", "one bit flipped", "not moved", "zeros", "moved elsewhere"],
)
def test_torchs_copies_are_compared_word_by_word(monkeypatch: pytest.MonkeyPatch, lie: Callable[[Any], Any], wrong: int) -> None:
    monkeypatch.setattr(gpu, "_module", lambda: None)
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(lie))
    heard = asked(peer.ask, {"devices": {"count": 2}})
    assert [copy["wrong_words"] for copy in heard.facts["copies"]] == [wrong, wrong]
    assert bool(heard.findings) == bool(wrong)
    assert "this build has no GPU extension" in heard.notes[0]


def test_nothing_that_copies_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_module", lambda: SimpleNamespace())
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: None)
    heard = asked(peer.ask, {"devices": {"count": 2}})
    assert heard.end and heard.end[0] == "skipped" and "_gpu has no peer_copy, and torch is not installed" in heard.end[1]
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(lambda a: a, gpus=False))
    assert asked(peer.ask, {"devices": {"count": 2}}).end == (
        "skipped",
        "nothing moves data between GPUs here: this build's _gpu has no peer_copy, and torch sees no GPU (torch 2.0)",
    )


def test_patterns_tell_pairs_and_places_apart() -> None:
    one, other = peer.pattern(1, 1 << 16), peer.pattern(2, 1 << 16)
    assert len(np.unique(one)) == len(one) and not np.any(one == other)
    assert int(peer.pattern(3, 8)[5]) == (5 + 3 * 65536) * 2_654_435_761 % 2**32
    assert peer.compare(one, one) == (0, -1) and peer.compare(one, other) == (1 << 16, 0)


# ------------------------------------------------------------------------------------------------------------------------------- ipc


def on_gpus(result: str, runs: str = "our kernels") -> dict[str, Any]:
    rows = [{"target": "one_shot", "path": "custom", "kernel": "one_shot", "result": result}]
    return {"device": "gpu", "where": "2 x NVIDIA H200", "runs": {"custom": runs}, "all_reduces": rows}


def test_a_correct_custom_all_reduce_shows_that_ipc_works() -> None:
    heard = asked(ipc.ask, {"paths": on_gpus("correct")})
    assert heard.end and heard.end[1].startswith("works: ") and heard.findings == []


def test_memory_that_another_process_cannot_open_is_a_finding_with_what_to_do() -> None:
    broken = on_gpus("", "not here: cudaIpcOpenMemHandle: invalid device context")
    heard = asked(ipc.ask, {"paths": broken, "peer": {"copies": [{}]}})
    assert heard.findings[0].startswith(
        "one process cannot use another's GPU memory: cudaIpcOpenMemHandle: invalid device context; "
    )
    assert "--ipc=host" in heard.findings[0]
    heard = asked(ipc.ask, {"paths": broken, "peer": {"denied": ["0->1", "1->0"]}})
    assert heard.findings == [] and "no pair of GPUs has peer access" in heard.notes[0]


def test_cpu_ranks_say_nothing_of_ipc_and_neither_does_a_phase_that_hung() -> None:
    assert asked(ipc.ask, {"paths": {"device": "host", "why": "no torch"}}).end == (
        "skipped",
        "the ranks of phase 'paths' were CPU ranks: no torch",
    )
    end = asked(ipc.ask, {"paths": {}}).end  # tried alone; where there are no two GPUs, that says why
    assert end and end[0] in ("skipped", "ok") and ("GPU ranks" in end[1] or "works" in end[1])


# ----------------------------------------------------------------------------------------------------------------------------- paths


class FakeGroup:
    """A LocalGroup whose calls give, or raise, what a test says."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        from sglang_probe import Group

        self.group = Group.make(world_size=2, full_nvlink=1)
        self.closed, self.answer = "", answer

    def run(self, function: Any, *args: Any) -> None: ...

    def all_reduce(self, nbytes: int, **_: Any) -> Any:
        return self.answer()

    def close(self) -> None:
        self.closed = "closed"


def outcome(path: str = "custom", kernel: str = "one_shot", wrong: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(path=path, kernel=kernel, correct=not wrong, wrong=wrong)


def raising(error: Exception) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (outcome, "correct"),
        (lambda: outcome(wrong=("rank 1: 3 of 8 wrong",)), "WRONG: rank 1: 3 of 8 wrong"),
        (lambda: outcome(kernel="two_shot"), "WRONG: custom two_shot ran instead"),
        (lambda: outcome("torch_distributed", ""), "WRONG: torch_distributed ran instead"),
        (raising(ProbeUnavailable("custom needs peer access\nmore")), "not here: custom needs peer access"),
        (raising(TimeoutError("rank 1 (pid 7) did not answer")), "FAILED: rank 1 (pid 7) did not answer"),
        (raising(ProbeError("rank 1 was killed")), "FAILED: rank 1 was killed"),
    ],
)
def test_a_row_says_correct_only_of_the_path_that_was_asked_for(answer: Callable[[], Any], result: str) -> None:
    row = paths.try_one(FakeGroup(answer), TARGETS["one_shot"])  # type: ignore[arg-type]
    assert row["result"] == result


def test_a_path_that_this_machine_does_not_take_says_what_stops_it() -> None:
    group = FakeGroup(outcome)
    group.group = group.group.with_facts("given", "", world_size=4, full_nvlink=False)
    row = paths.try_one(group, TARGETS["one_shot"])  # type: ignore[arg-type]
    assert row["result"].startswith("not taken here: more than two GPUs that are not fully linked by NVLink")


def test_a_group_that_breaks_is_replaced_and_hides_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[FakeGroup] = []

    def broken() -> Any:
        groups[-1].closed = "broken"
        raise ProbeError("rank 0 died")

    monkeypatch.setattr(paths, "_start", lambda size: groups.append(FakeGroup(broken)) or groups[-1])
    report = Kept()
    assert paths._targets(report, paths._start(2), 2) == 0  # type: ignore[arg-type]
    results = [row["result"] for row in report.heard.facts["all_reduces"]]
    assert len(groups) == 3 and len(results) == len(TARGETS)
    assert results[:3] == ["FAILED: rank 0 died"] * 3 and set(results[3:]) == {"not tried: the group broke 3 times"}
    assert len(report.heard.findings) == 3 and all(group.closed for group in groups)


# ----------------------------------------------------------------------------------------------------------------------- environment


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "SGLANG_", "LD_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "_FILES", (str(tmp_path / "nccl.conf"),))


def test_what_is_set_is_told_with_what_it_does_and_without_secrets(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_DISABLE": "0",
        "NCCL_DEBUG": "WARN",
        "NCCL_UNKNOWN_THING": "1",
        "SGLANG_USE_AITER_AR": "0",
        "SGLANG_API_KEY": "sk-123",
    }.items():
        monkeypatch.setenv(name, value)
    heard = asked(environment.ask)
    assert heard.findings == [] and len(heard.notes) == 2
    assert heard.notes[0] == f"NCCL_ALGO=Ring: {VARIABLES['NCCL_ALGO'].text}"
    assert heard.notes[1].startswith("SGLANG_USE_AITER_AR=0: changes SGLang's route (fact use_aiter)")
    assert heard.facts["variables"]["NCCL_UNKNOWN_THING"] == "1"
    assert "sk-123" not in repr(vars(heard)) and heard.facts["variables"]["SGLANG_API_KEY"] == "(set; not kept)"


@pytest.mark.parametrize("name", [name for name, variable in VARIABLES.items() if variable.wrong])
def test_what_makes_every_time_wrong_is_a_finding(quiet: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert asked(environment.ask).findings == [f"{name}=1: {VARIABLES[name].text}"]
    for idle in VARIABLES[name].idle:
        monkeypatch.setenv(name, idle)
        assert asked(environment.ask).findings == []


def test_nccls_files_of_settings_are_read(quiet: None, tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("# a comment\nNCCL_PROTO = Simple\nOTHER=1\nNCCL_AUTH_TOKEN=abc\n")
    heard = asked(environment.ask)
    path = str(tmp_path / "nccl.conf")
    assert heard.facts[path] == {"NCCL_AUTH_TOKEN": "(set; not kept)", "NCCL_PROTO": "Simple"}
    assert heard.notes == [f"{path}: NCCL_PROTO=Simple: {VARIABLES['NCCL_PROTO'].text}"]


def test_no_variable_has_two_meanings() -> None:
    assert not set(VARIABLES) & {variable.name for variable in ROUTES}
    assert all(variable.text and variable.name == name for name, variable in VARIABLES.items())


# ---------------------------------------------------------------------------------------------------------------------------- system


def test_little_shared_memory_is_a_finding_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def shm(size: int, free: int) -> None:
        monkeypatch.setattr(system.os, "statvfs", lambda path: SimpleNamespace(f_frsize=1 << 20, f_blocks=size, f_bavail=free))

    shm(64, 64)
    assert any("/dev/shm has 64 MiB: too little" in note for note in asked(system.ask).notes)
    shm(64, 3)
    assert asked(system.ask).findings == []
    found = asked(system.ask, {"devices": {"count": 2}}).findings
    assert len(found) == 1 and found[0].startswith("/dev/shm has 3 MiB left of 64: NCCL's start fails without")
    shm(1 << 14, 1 << 14)
    heard = asked(system.ask, {"devices": {"count": 2}})
    assert heard.findings == [] and not any("/dev/shm" in note for note in heard.notes)
    assert heard.facts["shm"] == {"bytes": 16 << 30, "free": 16 << 30}


def test_limits_and_versions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.resource, "getrlimit", lambda kind: (256, -1) if kind == resource.RLIMIT_NOFILE else (-1, -1))
    heard = asked(system.ask)
    assert any("a process may open 256 files" in note for note in heard.notes)
    assert heard.facts["limit_files"] == {"soft": 256, "hard": None}
    assert heard.facts["versions"]["sglang_probe"] and heard.end and heard.end[1].startswith("Python 3.")


def test_a_container_with_name_spaces_of_its_own_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_FIRST", {"ipc": -1, "pid": os.stat("/proc/self/ns/pid").st_ino})
    heard = asked(system.ask)
    assert heard.facts["namespaces"] == {"ipc": "its own", "pid": "the host's"}
    assert any("this container has its own IPC namespace:" in note and "--ipc=host" in note for note in heard.notes)
