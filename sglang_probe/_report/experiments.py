"""An AbResult or a NoiseResult as a Sheet: its verdict's, with what was run and on what. Called by sheets.py.

Invariant: what differed between the arms, and what failed, stands above the figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._show.page import Table
from .nouns import Sheet
from .text import named
from .verdicts import finding_texts, verdict_picture, verdict_tables

if TYPE_CHECKING:
    from .._ab.noise import NoiseResult
    from .._ab.result import AbResult
    from .._measure.measurement import Provenance


def ab_sheet(result: AbResult) -> Sheet:
    """What a report says of an experiment."""
    verdict = result.verdict
    told = [f"{one.text}{f': {one.remedy}' if one.remedy else ''}" for one in result.differences]
    told += [text for text in (finding_texts(verdict) if verdict else ()) if text not in told]
    told += [f"run {run.number + 1} ({run.arm}) failed: {run.failed}" for run in result.failed]
    return Sheet(
        kind="ab",
        word=str(result.word),
        sentence=result.sentence,
        reason=result.reason,
        tables=verdict_tables(verdict) if verdict else (),
        findings=tuple(told),
        machine=machine_rows(result.provenance),
        unknown=tuple(result.provenance.missing.items()) if result.provenance else (),
        commands=_commands(result),
        versions=version_rows(result.provenance),
        picture=verdict_picture(verdict) if verdict else None,
    )


def _commands(result: AbResult) -> tuple[tuple[str, str], ...]:
    """What each arm ran."""
    if result.texts[0] == result.texts[1]:
        return (("both arms", result.texts[0]),)
    return tuple((named(key, label), text) for key, label, text in zip("ab", result.labels, result.texts, strict=True))


def noise_sheet(result: NoiseResult) -> Sheet:
    """What a report says of what a machine can resolve; its picture is that of the two equal arms."""
    sheet = ab_sheet(result.experiment)
    own = tuple(block for block in result.page() if isinstance(block, Table))
    return replace(
        sheet, kind="noise", word="NOISE", sentence=result.sentence, reason=result.reason, tables=(*own, *sheet.tables[:1])
    )


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
