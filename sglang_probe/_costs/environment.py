"""Whether NCCL was told the same where a cost was taken: its variables there and at the server that is asked about. Called by step's costs.

Invariant: a variable that is set to what NCCL does anyway is as one that is not set; paths without NCCL are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from .._preflight.variables import VARIABLES
from .._types import Path
from .table import Figure

_WITH_NCCL = (Path.PYNCCL_IN_PLACE, Path.PYNCCL_OUT_OF_PLACE, Path.TORCH_DISTRIBUTED)
_NO_SPEED = ("NCCL_DEBUG", "NCCL_COMM_ID", "NCCL_SOCKET_IFNAME")
"""Where ranks meet, and what is printed."""
_SGLANGS = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
"""SGLang sets them itself at its start, by flags that are noted with the answer: not given is not unset."""


def differences(figure: Figure, env: Mapping[str, str]) -> list[str]:
    """``NCCL_ALGO is Ring where the costs of PATH were taken (FILE), and is not given for this server ...``; one a variable."""
    if figure.series.path not in map(str, _WITH_NCCL):
        return []
    ours, theirs = _settings(env), _settings(figure.table.env or {})
    known = figure.table.env is not None
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    told = [name for name in names if name in ours or name in env or name not in _SGLANGS]
    return [_text(figure, name, env.get(name), (figure.table.env or {}).get(name), known) for name in told]


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    """What makes NCCL another one."""
    found = {}
    for name, variable in VARIABLES.items():
        value = env.get(name, "").strip()
        if name.startswith("NCCL_") and name not in _NO_SPEED and value not in variable.idle:
            found[name] = value
    return found


def _text(figure: Figure, name: str, ours: str | None, theirs: str | None, known: bool) -> str:
    there = f"is {theirs}" if theirs is not None else "was not set" if known else "is not told"
    here = (
        f"is {ours} at this server" if ours is not None else "is not given for this server (before its launch line, or by --env)"
    )
    return (
        f"{name} {there} where the costs of {figure.series.path} were taken ({figure.origin}: {figure.table.name}), and {here}. "
        f"It changes NCCL's speed ({VARIABLES[name].text}): the server's calls may take another time than is told here"
    )
