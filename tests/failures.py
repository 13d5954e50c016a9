"""What a failed assertion said, and what the code in it prints. Called by test_plugin.py and test_asserting.py.

Invariant: the code is run as it stands, with nothing but sglang_probe at hand.
"""

from __future__ import annotations

import contextlib
import io
import re

import sglang_probe


def message(text: str) -> str:
    """The failure's own words, of pytest's report of one failed test."""
    lines = [line[8:] for line in text.splitlines() if line.startswith("E ")]
    lines[0] = re.sub(r"^[\w.]*(?:Reached|Misrouted|Rerouted|NotConstant): ", "", lines[0])
    return "\n".join(line.rstrip() for line in lines)


def run_witness(text: str) -> str:
    """What the code in a failure prints."""
    _, _, after = text.partition("to reproduce, after import sglang_probe as probe:\n")
    assert after, text
    code = [line[2:] for line in after.splitlines() if line.startswith("  ") and not line.startswith("  ->")]
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec("\n".join(code), {"probe": sglang_probe})  # noqa: S102 # our own text
    return stream.getvalue()
