"""Provenance: what a measurement is stamped with; on any machine, with and without GPUs, and without anybody's secrets.

Invariant: the GPUs here are a stand-in for nvidia-ml-py with its names and shapes of answers; no real one is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sglang_probe import InputError, __version__, _core
from sglang_probe._measure import gpus, provenance
from sglang_probe._measure.measurement import Provenance
from sglang_probe._measure.writer import Writer


class _Error(Exception):
    """NVMLError."""


class FakeNvml(ModuleType):
    """Two GPUs behind a switch, 18 links each, as nvidia-ml-py would tell of them. `off` names questions that the driver refuses."""

    NVMLError = _Error
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_P2P_CAPS_INDEX_READ, NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = (0,), 2, 0  # a tuple, as some versions have it
    NVML_NVLINK_MAX_LINKS = 36

    def __init__(self, off: tuple[str, ...] = (), switched: bool = True) -> None:
        super().__init__("pynvml")
        self.off, self.switched, self.opened = off, switched, 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "off"):

            def refuse(*_: object) -> None:
                raise _Error("not supported")

            return refuse
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        return i

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:1{handle}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1 << 37)

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1755, 2: 3201}[kind]

    def nvmlDeviceGetVbiosVersion(self, handle: int) -> str:
        return "96.00"

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 18:
            raise _Error("invalid argument")
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId="00000000:90:00.0" if self.switched else f"00000000:1{1 - handle}:00.0")

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        assert isinstance(index, int)
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 50

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 123_456

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 40

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x4 | 0x20 | 0x8000

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return kind


QUESTIONS = sorted(name for name in vars(FakeNvml) if name.startswith("nvml") and name not in ("nvmlInit", "nvmlShutdown"))


def _fake(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> FakeNvml:
    fake = FakeNvml(**changes)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_stamp_of_this_machine_is_whole_and_says_what_it_could_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    stamp = provenance.stamp()
    assert stamp.version == __version__
    assert stamp.binaries["_core"] == hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()[:16]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", stamp.started)
    assert stamp.system["kernel"] == os.uname().release
    assert stamp.cpu["usable"] == len(os.sched_getaffinity(0))
    assert (stamp.gpus, stamp.missing["gpus"]) == ((), "nvidia-ml-py is not installed")
    assert bool(stamp.nccl) != ("nccl" in stamp.missing)
    assert bool(stamp.revision) != ("revision" in stamp.missing)
    assert Provenance.from_dict(json.loads(json.dumps(stamp.to_dict(), allow_nan=False))) == stamp
    assert provenance.stamp().identity == stamp.identity
    assert "\n" not in repr(stamp)


def test_the_hosts_name_is_nowhere_in_a_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "prod-Node17.example.com")
    monkeypatch.setenv("NCCL_COMM_ID", "PROD-node17:29500")
    monkeypatch.setenv("SGLANG_PEERS", "prod-node17.example.com,prod-node170")
    stamp = provenance.stamp()
    assert stamp.env["NCCL_COMM_ID"] == "<host>:29500"
    assert stamp.env["SGLANG_PEERS"] == "<host>,prod-node170"
    assert "node17." not in json.dumps(stamp.to_dict()).lower()
    assert re.fullmatch("(machine|name):[0-9a-f]{16}", stamp.host)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No GPU, no machine-id: files can be put there."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(provenance, "_GPU_FILES", str(tmp_path / "gpus" / "*"))
    monkeypatch.setattr(provenance, "_MACHINE_ID", tmp_path / "machine-id")
    (tmp_path / "gpus").mkdir()
    return tmp_path


def named(monkeypatch: pytest.MonkeyPatch, name: str) -> Provenance:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    return provenance.stamp()


def test_a_machine_is_told_by_its_gpus_then_by_its_id_then_by_its_name(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, other = named(monkeypatch, "a").host, named(monkeypatch, "b").host
    assert name.startswith("name:") and other.startswith("name:") and name != other
    for common in ("localhost", "LOCALHOST.localdomain", ""):
        assert named(monkeypatch, common).host == "" and "cannot be told" in named(monkeypatch, common).missing["host"]
    ids = set()
    for text in ("0123456789abcdef0123456789abcdef\n", "f" * 32):
        (bare / "machine-id").write_text(text)
        ids |= {named(monkeypatch, name).host for name in ("a", "b", "localhost")}
        assert text.strip() not in json.dumps(provenance.stamp().to_dict()), "the plain id is not kept"
    assert len(ids) == 2 and all(re.fullmatch("machine:[0-9a-f]{16}", one) for one in ids)
    (bare / "machine-id").write_text("uninitialized\n")
    assert named(monkeypatch, "a").host == name
    gpus = set()
    for order in ((1, 2), (2, 1), (1, 3)):
        for i, number in enumerate(order):
            (bare / "gpus" / str(i)).write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t GPU-{number}a\nBus Type: PCIe\n")
        gpus.add(named(monkeypatch, f"host{order}").host)
    assert len(gpus) == 2 and all(re.fullmatch("gpus:[0-9a-f]{16}", one) for one in gpus)
    (bare / "gpus" / "1").write_text("GPU UUID: \t GPU-????????\n")
    assert named(monkeypatch, "a").host == name, "a part of its GPUs would be another machine"


def test_the_drivers_uuids_are_the_same_identity_as_those_of_its_files(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _fake(monkeypatch)
    driver = provenance.stamp().host
    assert driver.startswith("gpus:") and provenance.host_identity() == driver and fake.opened == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for i in range(2):
        (bare / "gpus" / str(i)).write_text(f"GPU UUID: \t GPU-{i}\n")
    assert provenance.host_identity() == driver


def test_a_container_that_starts_anew_continues_its_file_and_another_machine_does_not(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bare / "m.jsonl"
    for name in ("3f0d1c2b4a59", "99aa88bb77cc", "localhost"):  # a new name at each start, or everybody's
        Writer(path, plan={}, provenance=named(monkeypatch, name)).close()
    (bare / "machine-id").write_text("f" * 32)
    with pytest.raises(InputError, match="another run.*host"):
        Writer(path, plan={}, provenance=named(monkeypatch, "localhost"))
    for i in range(2):
        (bare / "gpus" / str(i)).write_text(f"GPU UUID: \t GPU-{i}\n")
    other = bare / "n.jsonl"
    for name in ("3f0d1c2b4a59", "99aa88bb77cc"):
        Writer(other, plan={}, provenance=named(monkeypatch, name)).close()
    (bare / "gpus" / "1").write_text("GPU UUID: \t GPU-9\n")
    with pytest.raises(InputError, match="another run.*host"):
        Writer(other, plan={}, provenance=named(monkeypatch, "99aa88bb77cc"))


def test_the_environment_that_matters_is_kept_and_secrets_are_not() -> None:
    env = {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SGLANG_USE_X": "1",
        "TORCH_NCCL_AVOID": "0",
        "OMP_NUM_THREADS": "8",
        "LD_PRELOAD": "/lib/x.so",
        "SGLANG_API_KEY": "sk-123",
        "NCCL_AUTH_TOKEN": "abc",
        "SGLANG_STORE": "redis://me:secret@store/0",
        "NCCL_ODD": "a\udcffb",
        "HOME": "/home/me",
        "PATH": "/bin",
    }
    kept = provenance.environment(env, "host")
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LD_PRELOAD": "/lib/x.so",
        "NCCL_ALGO": "Ring",
        "NCCL_AUTH_TOKEN": "(set; not kept)",
        "NCCL_ODD": "a\\udcffb",
        "OMP_NUM_THREADS": "8",
        "SGLANG_API_KEY": "(set; not kept)",
        "SGLANG_STORE": "redis://<user>@store/0",
        "SGLANG_USE_X": "1",
        "TORCH_NCCL_AVOID": "0",
    }
    assert "sk-123" not in repr(kept) and "secret" not in repr(kept)


def test_torch_is_named_where_it_was_imported_and_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert provenance.stamp().torch == ""
    assert "torch" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.11.0+cu130"))  # type: ignore[arg-type]
    assert provenance.stamp().torch == "2.11.0+cu130"


def test_the_revision_is_the_commit_of_this_code_and_says_when_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*command: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *command], check=True, capture_output=True, text=True
        ).stdout.strip()

    missing: dict[str, str] = {}
    assert provenance._revision(tmp_path, missing) == "" and "checkout" in missing["revision"]
    git("init", "-q")
    (tmp_path / "__init__.py").write_text("a = 1\n")
    (tmp_path / "other").write_text("x")
    git("add", "other")
    git("commit", "-qm", "other")
    # A package that lies in somebody's repository, such as a virtual environment in it, is not of that commit.
    assert provenance._revision(tmp_path, {}) == ""
    git("add", "__init__.py")
    git("commit", "-qm", "code")
    commit = git("rev-parse", "HEAD")
    assert provenance._revision(tmp_path, {}) == commit
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    assert provenance._revision(tmp_path, {}) == commit
    monkeypatch.delenv("GIT_DIR")
    found = set()
    for text in ("a = 2\n", "a = 3\n"):
        (tmp_path / "__init__.py").write_text(text)
        found.add(provenance._revision(tmp_path, {}))
    assert len(found) == 2 and all(re.fullmatch(commit + r"\+[0-9a-f]{16}", text) for text in found)
    monkeypatch.setenv("PATH", "")
    assert provenance._revision(tmp_path, missing) == "" and missing["revision"] == "git is not installed"


# ------------------------------------------------------------------------------------------------------------------------------ GPUs


def test_gpus_their_links_and_their_state_are_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _fake(monkeypatch)
    stamp = provenance.stamp()
    assert (stamp.driver, stamp.cuda) == ("580.1", "13.0")
    assert [gpu["uuid"] for gpu in stamp.gpus] == ["GPU-0", "GPU-1"]
    assert stamp.gpus[0] == {
        "name": "NVIDIA H200",
        "uuid": "GPU-0",
        "pci": "00000000:10:00.0",
        "memory_bytes": 1 << 37,
        "power_limit_w": 700.0,
        "sm_mhz_max": 1980,
        "memory_mhz_max": 3201,
        "ecc": True,
        "vbios": "96.00",
    }
    assert stamp.links == (("self", "NVLink x18, switched"), ("NVLink x18, switched", "self"))
    assert stamp.state["gpus"][1] == {
        "uuid": "GPU-1",
        "sm_mhz": 1755,
        "memory_mhz": 3201,
        "power_w": 123.456,
        "temperature_c": 40,
        "throttle": ("software_power_cap", "software_thermal", "0x8000"),
        "ecc_corrected": 0,
        "ecc_uncorrected": 1,
    }
    assert "2x NVIDIA H200, driver 580.1" in repr(stamp)
    assert "gpus" not in stamp.missing
    assert fake.opened == 0


def test_another_way_of_linking_is_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for changes in ({}, {"switched": False}, {"off": ("nvmlDeviceGetP2PStatus",)}):
        _fake(monkeypatch, **changes)
        found.append(provenance.stamp())
    assert [stamp.links[0][1] for stamp in found] == [
        "NVLink x18, switched",
        "NVLink x18",
        "PCIe, system; peer access not told",
    ]
    assert len({stamp.topology for stamp in found}) == 3
    assert provenance.stamp().topology == found[-1].topology


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_the_driver_refuses_costs_no_other_answer(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    fake = _fake(monkeypatch, off=(question,))
    stamp = provenance.stamp()
    assert Provenance.from_dict(json.loads(json.dumps(stamp.to_dict(), allow_nan=False))) == stamp
    assert (len(stamp.gpus) == 2) == (question != "nvmlDeviceGetCount")
    assert bool(stamp.missing.get("gpus")) == (question == "nvmlDeviceGetCount")
    assert fake.opened == 0


def test_a_driver_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(monkeypatch, off=("nvmlInit",))
    assert provenance.stamp().missing["gpus"] == "NVIDIA's driver does not answer: not supported"
    assert provenance.machine_state()["gpus"] == []


def test_a_monitor_keeps_the_driver_open_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _fake(monkeypatch)
    with provenance.Monitor() as monitor:
        states = [monitor.state() for _ in range(3)]
        assert fake.opened == 1
    assert fake.opened == 0
    assert [len(state["gpus"]) for state in states] == [2, 2, 2]
    assert states[0]["load"] is None or len(states[0]["load"]) == 3
    assert monitor.state()["gpus"] == []


def test_every_name_that_is_asked_for_exists_in_nvidia_ml_py() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    text = Path(gpus.__file__).read_text()
    names = set(re.findall(r'"(nvml[A-Z]\w+)"|\bnvml\.(\w+)|\b(?:n|self\._nvml|pynvml)\.(NVML\w*|nvml\w+)', text))
    asked = {name for found in names for name in found if name}
    assert {"nvmlDeviceGetUUID", "NVML_CLOCK_SM", "NVMLError"} <= asked
    missing = {name for name in asked if not hasattr(pynvml, name)}
    assert missing <= {"nvmlDeviceGetTemperatureV"}, "a question that no version of it knows"  # newer than some that are in use
    bits = {int(v) for k, v in vars(pynvml).items() if k.startswith("nvmlClocksThrottleReason") and k[-3:] not in ("All", "one")}
    assert bits <= set(gpus._THROTTLE)
