"""Phase `peer`: is what one GPU reads of another's memory what lies there? A pattern is written on one, copied to the other, compared.

Every ordered pair whose peer access the driver allows, by `_gpu.peer_copy` (a kernel that reads the mapped address) where this build has
it, else by torch (the copy engine, over the same mapping). Invariant: the target holds something else before, so that a copy that did not
happen is wrong data.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from .inside import Known, Report

_NBYTES = 8 << 20
_POISON = 0x5A5A5A5A
Copy = Callable[[int, int, int], tuple[int, int] | None]
"""(source, target, seed) -> (words that are wrong, the first of them), or None where there is no peer access."""


def ask(report: Report, known: Known) -> str:
    from .. import gpu

    report.doing("looking for something that copies between GPUs")
    count = int(known.get("devices", {}).get("count") or len(gpu.devices()))
    copy, by, more = _copier()
    if copy is None:
        report.skip(by)
    report.fact("by", by)
    report.fact("bytes", _NBYTES)
    if more:
        report.note(more)
    moved, denied, wrong = 0, [], 0
    for seed, (source, target) in enumerate(permutations(range(count), 2), 1):
        report.doing(f"copying {_NBYTES >> 20} MiB from GPU {source} to GPU {target} by {by}")
        result = copy(source, target, seed)
        if result is None:
            denied.append(f"{source}->{target}")
            report.item("denied", f"{source}->{target}")
            continue
        words, first = result
        moved += 1
        report.item("copies", {"source": source, "target": target, "wrong_words": words})
        if words:
            wrong += 1
            report.finding(
                f"peer access {source}->{target} moved wrong data: {words:,} of {_NBYTES // 4:,} words, the first at byte {4 * first:,}"
            )
    if denied:
        report.note(f"no peer access between GPUs {', '.join(denied[:8])}{' and others' if len(denied) > 8 else ''}")
    if not moved:
        return "no pair of GPUs has peer access"
    return f"{moved - wrong} of {moved} ordered pairs moved {_NBYTES >> 20} MiB rightly by {by}"


def pattern(seed: int, words: int) -> NDArray[np.uint32]:
    """No two words in a row alike, and no two seeds alike at one place: word i is (i + seed * 2^16) * 2654435761 modulo 2^32."""
    index = np.arange(words, dtype=np.uint64) + np.uint64(seed << 16)
    return (index * np.uint64(2_654_435_761) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def compare(expected: NDArray[np.uint32], found: NDArray[np.uint32]) -> tuple[int, int]:
    """(words that differ, the first of them or -1)"""
    where = np.flatnonzero(expected != found)
    return len(where), int(where[0]) if len(where) else -1


def _copier() -> tuple[Copy | None, str, str]:
    """(what copies, its name, what is to be told of it); (None, why, "") where nothing does."""
    from .. import gpu

    module = gpu._module()
    own = getattr(module, "peer_copy", None)
    if own is not None:
        return lambda source, target, seed: own(source, target, _NBYTES, seed), "our kernel", ""
    lacking = "this build has no GPU extension" if module is None else "this build's _gpu has no peer_copy"
    if importlib.util.find_spec("torch") is None:
        return None, f"nothing moves data between GPUs here: {lacking}, and torch is not installed", ""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None, f"nothing moves data between GPUs here: {lacking}, and torch sees no GPU (torch {torch.__version__})", ""
    return _by_torch, "torch's copy engine", f"peer access was tried by torch's copies, not by a kernel's reads: {lacking}"


def _by_torch(source: int, target: int, seed: int) -> tuple[int, int] | None:
    torch = importlib.import_module("torch")
    if not torch.cuda.can_device_access_peer(target, source):
        return None
    expected = pattern(seed, _NBYTES // 4)
    there = torch.from_numpy(expected.view(np.int32)).to(f"cuda:{source}")
    here = torch.full_like(there, _POISON, device=f"cuda:{target}")
    for device in (source, target):
        torch.cuda.synchronize(device)
    here.copy_(there)
    for device in (source, target):
        torch.cuda.synchronize(device)
    return compare(expected, here.cpu().numpy().view(np.uint32))
