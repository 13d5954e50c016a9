"""What runs in a phase's process: ``main`` with OUT KNOWN LIFELINE PARENT thread|process FUNCTION as arguments; child.py starts it.

It calls the phase's function with a Report, whose every word goes to the parent at once as one line of JSON, so that a hang costs only what
was not known yet. Invariant: it ends with its parent, whatever ends that; after its last word it ends without any driver's farewell.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

Known = Mapping[str, Mapping[str, Any]]
"""Facts of earlier phases by the phase's name; under "caller" what the calling process told of itself."""


class Skip(Exception):
    """There is nothing to ask here; the text says why."""


class Report:
    """How a phase tells what it knows, the moment it knows it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def doing(self, text: str) -> None:
        """What it is about to do: where it hangs, this is what hangs."""
        self._say("doing", text)

    def fact(self, name: str, value: object) -> None:
        """Plain data."""
        self._say("fact", name, value)

    def item(self, name: str, value: object) -> None:
        """One more of a list of facts."""
        self._say("item", name, value)

    def finding(self, text: str) -> None:
        """Something is wrong."""
        self._say("finding", text)

    def note(self, text: str) -> None:
        """Something is worth knowing."""
        self._say("note", text)

    def skip(self, why: str) -> NoReturn:
        """Ends the phase."""
        raise Skip(why)

    def _say(self, *words: object) -> None:
        line = memoryview(json.dumps(words).encode() + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]

    def end(self, state: str, text: str) -> None:
        self._say("end", state, text)


def main() -> None:
    from .._run.worker import _die_with  # a rank's process ends with its parent in the same way

    out, known, lifeline, parent = map(int, sys.argv[1:5])
    _die_with(parent, lifeline, sys.argv[5] == "thread")
    faulthandler.enable()
    report = Report(out)
    try:
        facts: Known = json.loads(os.pread(known, os.fstat(known).st_size, 0))
        module, _, name = sys.argv[6].partition(":")
        report.doing("importing what it needs")
        function = getattr(importlib.import_module(module, __package__), name)
        report.doing("")
        text = function(report, facts)
        report.end("ok", str(text or ""))
    except Skip as skip:
        report.end("skipped", str(skip))
    except BaseException as error:
        traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        told = str(error).splitlines()[0] if str(error) else ""
        report.end("failed", f"{type(error).__name__}{': ' if told else ''}{told}")
    os._exit(0)
