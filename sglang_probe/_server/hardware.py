"""GPUs by name: architecture, memory, usual link; or found through nvidia-ml-py. Called by the launch, log and URL readers.

Memory is what the driver reports, because SGLang compares that number with its thresholds.
Invariant: nothing is looked for unless asked ("auto"); what a name does not say (multicast, peer access) is an assumption.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

from .._types import InputError, ProbeUnavailable

LINKS = ("nvlink", "pcie", "xgmi")


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    device: str
    """As facts know it: cuda or hip."""
    arch: int
    """CUDA: 10 x major + minor of the compute capability; HIP: the gfx number."""
    memory_mib: int
    link: str
    """How the GPUs of one node are linked, where nothing else is said."""
    multicast: bool = False
    """NVLink multicast (NVSwitch of the third generation on)."""
    peer: bool = True
    """The stock driver lets GPUs read each other's memory."""
    fabric: bool = False
    """NVLink reaches across nodes."""

    @property
    def sm90(self) -> bool:
        return self.device == "cuda" and self.arch // 10 == 9

    @property
    def sm100(self) -> bool:
        return self.device == "cuda" and self.arch // 10 == 10

    @property
    def sm120(self) -> bool:
        return self.device == "cuda" and self.arch // 10 == 12


_GPUS: tuple[Gpu, ...] = (
    Gpu("a100", "cuda", 80, 81920, "nvlink"),
    Gpu("a100-40gb", "cuda", 80, 40960, "nvlink"),
    Gpu("a100-pcie", "cuda", 80, 81920, "pcie"),
    Gpu("a800", "cuda", 80, 81920, "nvlink"),
    Gpu("a10", "cuda", 86, 23028, "pcie"),
    Gpu("l4", "cuda", 89, 23034, "pcie"),
    Gpu("l40s", "cuda", 89, 46068, "pcie"),
    Gpu("rtx4090", "cuda", 89, 24564, "pcie", peer=False),
    Gpu("rtx5090", "cuda", 120, 32607, "pcie", peer=False),
    Gpu("rtx-pro-6000", "cuda", 120, 97887, "pcie"),
    Gpu("h20", "cuda", 90, 97871, "nvlink", multicast=True),
    Gpu("h100", "cuda", 90, 81559, "nvlink", multicast=True),
    Gpu("h100-pcie", "cuda", 90, 81559, "pcie"),
    Gpu("h800", "cuda", 90, 81559, "nvlink", multicast=True),
    Gpu("h200", "cuda", 90, 143771, "nvlink", multicast=True),
    Gpu("h200-nvl", "cuda", 90, 143771, "nvlink"),
    Gpu("gh200", "cuda", 90, 97871, "nvlink", multicast=True),
    Gpu("b200", "cuda", 100, 183359, "nvlink", multicast=True),
    Gpu("b300", "cuda", 103, 275040, "nvlink", multicast=True),
    Gpu("gb200", "cuda", 100, 189471, "nvlink", multicast=True, fabric=True),
    Gpu("gb300", "cuda", 103, 284208, "nvlink", multicast=True, fabric=True),
    Gpu("mi250x", "hip", 90, 65520, "xgmi"),
    Gpu("mi300x", "hip", 942, 196592, "xgmi"),
    Gpu("mi308x", "hip", 942, 196592, "xgmi"),
    Gpu("mi325x", "hip", 942, 262128, "xgmi"),
    Gpu("mi350x", "hip", 950, 294896, "xgmi"),
    Gpu("mi355x", "hip", 950, 294896, "xgmi"),
)
GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _GPUS}
DEFAULT_GPU = "h200"

_ALIASES = {
    "rtxpro6000": "rtx-pro-6000",
    "rtx6000pro": "rtx-pro-6000",
    "rtxpro6000blackwell": "rtx-pro-6000",
    "rtxpro6000blackwellserveredition": "rtx-pro-6000",
    "rtxpro6000blackwellworkstationedition": "rtx-pro-6000",
    "rtxpro6000blackwellmaxqworkstationedition": "rtx-pro-6000",
    "geforcertx4090": "rtx4090",
    "geforcertx5090": "rtx5090",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "a10080gb": "a100",
    "a100sxm480gb": "a100",
    "a100sxm440gb": "a100-40gb",
    "a10080gbpcie": "a100-pcie",
    "h10080gbhbm3": "h100",
    "h100sxm": "h100",
    "h200sxm": "h200",
    "gh200480gb": "gh200",
    "mi300": "mi300x",
    "mi325": "mi325x",
    "mi355": "mi355x",
}


def gpu_by_name(name: str) -> Gpu:
    """A GPU by its short name, or by the name that the driver gives it."""
    squeezed = re.sub(r"[^a-z0-9]", "", name.lower())
    squeezed = squeezed.removeprefix("nvidia").removeprefix("amdinstinct").removeprefix("instinct")
    for gpu in _GPUS:
        if squeezed == gpu.name.replace("-", ""):
            return gpu
    if squeezed in _ALIASES:
        return GPUS[_ALIASES[squeezed]]
    near = difflib.get_close_matches(squeezed, [g.replace("-", "") for g in GPUS], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError("gpu", name, f"{hint}give one of {', '.join(GPUS)}, or auto to look at this machine")


def check_link(link: str) -> str:
    found = link.lower()
    if found not in LINKS:
        raise InputError("link", link, f"give one of {', '.join(LINKS)}")
    return found


@dataclass(frozen=True)
class Found:
    """The GPUs of this machine."""

    gpu: Gpu
    link: str
    count: int


def find_gpus() -> Found:
    """The GPUs of this machine, through nvidia-ml-py. Raises ProbeUnavailable where it, the driver or a GPU is missing."""
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore] # optional
    except ImportError:
        raise ProbeUnavailable("no nvidia-ml-py here to look for GPUs: install it, or give --gpu and --link") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ProbeUnavailable(f"NVIDIA's driver does not answer ({error}): give --gpu and --link") from None
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        if count == 0:
            raise ProbeUnavailable("NVIDIA's driver shows no GPU: give --gpu and --link")
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        return Found(_describe(pynvml, handles[0]), _link(pynvml, handles), count)
    except pynvml.NVMLError as error:
        raise ProbeUnavailable(f"NVIDIA's driver does not say what the GPUs are ({error}): give --gpu and --link") from None
    finally:
        pynvml.nvmlShutdown()


def _describe(nvml: Any, handle: Any) -> Gpu:
    name = nvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    arch = 10 * int(major) + int(minor)
    try:
        known = gpu_by_name(text)
    except InputError:
        known = Gpu(text.lower(), "cuda", arch, memory_mib, "pcie", multicast=False)
    return replace(known, arch=arch, memory_mib=memory_mib)


def _link(nvml: Any, handles: list[Any]) -> str:
    """nvlink where every pair says so: the question that SGLang asks, too."""
    for i, one in enumerate(handles):
        for other in handles[i + 1 :]:
            status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status != nvml.NVML_P2P_STATUS_OK:
                return "pcie"
    return "nvlink" if len(handles) > 1 else "pcie"
