"""On what it was measured, as rows of a report. Called by verdicts.py and experiments.py.

Invariant: what is not known has no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._measure.measurement import Provenance


def machine_rows(provenance: Provenance | None) -> tuple[tuple[str, str], ...]:
    """What a bug report needs; nothing where it is not known."""
    if provenance is None:
        return ()
    names: dict[str, int] = {}
    for gpu in provenance.gpus:
        names[str(gpu.get("name"))] = names.get(str(gpu.get("name")), 0) + 1
    cpu, system = provenance.cpu, provenance.system
    rows = (
        ("GPUs", ", ".join(f"{count}x {name}" for name, count in names.items())),
        ("driver", provenance.driver),
        ("CUDA of the driver", provenance.cuda),
        ("NCCL", " ".join(filter(None, (_text(provenance.nccl, "version"), _text(provenance.nccl, "path"))))),
        ("links", _links(provenance)),
        (
            "CPU",
            f"{_text(cpu, 'model')}, {_text(cpu, 'usable') or '?'} of {_text(cpu, 'cores') or '?'} cores usable" if cpu else "",
        ),
        ("system", ", ".join(filter(None, (_text(system, name) for name in ("os", "kernel", "machine", "libc"))))),
        ("machine", provenance.host),
        ("started", provenance.started),
        ("environment", " ".join(f"{name}={value}" for name, value in provenance.env.items())),
    )
    return tuple((what, which) for what, which in rows if which)


def _text(found: Any, name: str) -> str:
    value = found.get(name)
    return "" if value is None else str(value)


def _links(provenance: Provenance) -> str:
    """Kinds of links between different GPUs, each once."""
    kinds = dict.fromkeys(text for i, row in enumerate(provenance.links) for j, text in enumerate(row) if i != j)
    return ", ".join(kinds)


def version_rows(provenance: Provenance | None) -> tuple[tuple[str, str], ...]:
    """What was measured with, which may be another than what the report is written with."""
    if provenance is None:
        return ()
    rows = (
        ("measured with sglang_probe", f"{provenance.version}{f' at {provenance.revision}' if provenance.revision else ''}"),
        ("measured with Python", provenance.python),
        ("measured with PyTorch", provenance.torch),
    )
    return tuple((what, which) for what, which in rows if which)
