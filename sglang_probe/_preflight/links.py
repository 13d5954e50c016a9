"""Phase `links`: from each GPU to each, as NVML tells: NVLink and how many, else the nearest PCIe part that they share; and peer access.

Invariant: this is what the driver says; whether data really moves is phase `peer`'s.
"""

from __future__ import annotations

import re
from collections import Counter

from .devices import driver_missing
from .inside import Known, Report

_NVLINK = re.compile(r"NVLink x(\d+), switched")


def ask(report: Report, known: Known) -> str:
    from .._measure.gpus import Gpus

    report.doing("opening NVML")
    gpus = Gpus()
    if gpus.why:
        report.skip("no NVIDIA driver here" if driver_missing() else f"no link is known: {gpus.why}")
    report.doing("asking NVML for every link")
    described = gpus.describe()
    gpus.close()
    links: list[list[str]] = described["links"]
    report.fact("links", links)
    report.fact("topology", described["topology"])
    report.fact("order", [one["uuid"] for one in described["gpus"]])
    count = len(links)
    if count < 2:
        return "one GPU: no link"
    pairs = {(i, j): links[i][j] for i in range(count) for j in range(count) if i != j}
    _lopsided(report, links)
    _one_sided(report, pairs)
    kinds = Counter(pairs.values())
    for text in sorted(text for text in kinds if "no peer access" in text):
        some = [f"{i}->{j}" for (i, j), kind in pairs.items() if kind == text]
        report.note(
            f"the driver allows no peer access between GPUs {_short(some)} ({text}): NCCL goes through the host's memory there"
        )
    return "; ".join(
        f"{text} ({number} of {len(pairs)} ways)" if len(kinds) > 1 else text for text, number in kinds.most_common()
    )


def _lopsided(report: Report, links: list[list[str]]) -> None:
    """Behind a switch every GPU has as many NVLinks: one that has fewer has lost some."""
    lanes = {i: max((int(found[1]) for text in row if (found := _NVLINK.match(text))), default=0) for i, row in enumerate(links)}
    most = max(lanes.values())
    for i, number in lanes.items():
        if number < most:
            report.finding(
                f"GPU {i} has {number} active NVLinks and others have {most}: some are down (nvidia-smi nvlink --status)"
            )


def _one_sided(report: Report, pairs: dict[tuple[int, int], str]) -> None:
    for (i, j), text in pairs.items():
        if i < j and text != pairs[j, i]:
            report.finding(f"GPU {i} to {j} is {text}, and back it is {pairs[j, i]}: a link that works in one direction")


def _short(texts: list[str]) -> str:
    return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")
