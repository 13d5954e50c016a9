"""Named ranges that mean a step, and what they say of it. Called by the readers, which keep only these, and by steps.py.

Invariant: a range that names its kind of step or its batch is believed; all else of a step is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SGLANG = re.compile(r"step\[(\w+)(?: bs=(\d{1,9}))?(?: toks=(\d{1,9}))?")
_PROFILER = re.compile(r"ProfilerStep#\d+")
_SCHEDULER = re.compile(r"(scheduler\.)?run_batch")
DECODES = ("VERIFY", "TARGET_VERIFY", "DECODE")
"""SGLang's words for the step that is asked about; DRAFT, EXTEND and others are not."""


@dataclass(frozen=True)
class Family:
    """One way to mark steps."""

    name: str
    """As it is told."""
    pattern: re.Pattern[str] | None


SGLANG = Family("SGLang's own step ranges", _SGLANG)
FAMILIES = (SGLANG, Family("ProfilerStep ranges", _PROFILER), Family("SGLang's run_batch ranges", _SCHEDULER))
"""The best first."""


def is_mark(name: str, asked: re.Pattern[str] | None) -> bool:
    """Whether a range is worth keeping: it means a step, or somebody asked for its like."""
    if asked is not None and asked.search(name):
        return True
    return any(family.pattern is not None and family.pattern.match(name) for family in FAMILIES)


def stage_of(name: str) -> tuple[str, int]:
    """(SGLang's word for the kind of step, requests in its batch), as far as a range's name says them."""
    found = _SGLANG.match(name)
    return (found[1], int(found[2] or 0)) if found else ("", 0)
