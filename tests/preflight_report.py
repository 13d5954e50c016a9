"""A Report that keeps what a phase says, so that tests can ask a phase's function in their own process. Used by test_preflight_*.py.

Invariant: it understands what a phase's parent understands, by the same code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sglang_probe._preflight.child import Heard
from sglang_probe._preflight.inside import Known, Report, Skip


class Kept(Report):
    """What was said: ``.heard``."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.heard = Heard()

    def _say(self, *words: object) -> None:
        self.heard.hear(json.dumps(words).encode() + b"\n")
        assert not self.heard.broken, self.heard.broken


def asked(function: Callable[[Report, Known], str], known: Mapping[str, Mapping[str, Any]] | None = None) -> Heard:
    """What a phase's function says; its answer, or why it skips, is ``.end``."""
    report = Kept()
    try:
        report.end("ok", function(report, known or {"caller": {}}))
    except Skip as skip:
        report.end("skipped", str(skip))
    return report.heard
