"""Phase `environment`: what the user has set for NCCL, CUDA, torch and SGLang, and what that does to an all-reduce.

Invariant: no secret and no host's name is told (`provenance.environment` withholds them); what is set in files is told too.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from .inside import Known, Report
from .variables import VARIABLES

_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
_SETTING = re.compile(r"^\s*(NCCL_\w+)\s*=\s*(.*?)\s*$", re.M)


def ask(report: Report, known: Known) -> str:
    from .._measure.provenance import environment

    host = socket.gethostname()
    kept = environment(os.environ, host)
    report.fact("variables", kept)
    effects = [name for name, value in kept.items() if _tell(report, name, value, "")]
    for path in (*_FILES, os.environ.get("NCCL_CONF_FILE", "")):
        try:
            text = Path(path).expanduser().read_text(errors="replace") if path else ""
        except (OSError, RuntimeError):
            continue
        settings = environment(dict(_SETTING.findall(text)), host)
        if settings:
            report.fact(path, settings)
            effects += [name for name, value in settings.items() if _tell(report, name, value, f"{path}: ")]
    if not kept and not effects:
        return "nothing is set"
    are = f"{len(kept)} variable{'s are' if len(kept) != 1 else ' is'} set"
    return f"{are}, {len(effects)} of them known to change an all-reduce" if effects else are


def _tell(report: Report, name: str, value: str, where: str) -> bool:
    """Whether it does something that is known."""
    from .._server.environment import VARIABLES as ROUTES

    known = VARIABLES.get(name)
    if known is not None and value.strip() not in known.idle:
        text = f"{where}{name}={value}: {known.text}"
        (report.finding if known.wrong else report.note)(text)
        return True
    facts = sorted({variable.fact for variable in ROUTES if variable.name == name})
    if facts:
        report.note(
            f"{where}{name}={value}: changes SGLang's route (fact {', '.join(facts)}); give it to route and step with --env"
        )
    return bool(facts)
