"""Which path did this SGLang all-reduce take, why, and what would another cost?

``import sglang_probe as probe``; every public name below is loaded when it is first used, so that the import costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import hook
    from ._ab.ab import ab
    from ._ab.commands import Command
    from ._ab.noise import NoiseResult, noise
    from ._ab.result import AbResult
    from ._ab.targets import Target
    from ._bands import Band, Bands, bands
    from ._bench.bench import bench
    from ._conform.conform import conform
    from ._decision import Blocked, Decision, Gate, Stop
    from ._explain.explain import explain
    from ._explain.types import Explanation
    from ._live.agree import Agreement
    from ._live.asked import agree
    from ._live.control import record_clean, record_start, record_status, record_stop
    from ._live.recording import Recording, read_recording
    from ._live.top import Top, top
    from ._measure.cell import Cell
    from ._measure.format import MeasurementError
    from ._measure.measurement import Measurement, Provenance
    from ._measure.summary import Summary
    from ._preflight.runner import preflight
    from ._proof.ask import Reached, assert_unreachable, reach
    from ._proof.asserting import assert_constant_over, assert_route, assert_same_routing
    from ._proof.bisect import Bisect, bisect
    from ._proof.diff import Diff, diff
    from ._proof.history import History, history
    from ._proof.matrix import Matrix, matrix
    from ._proof.reach import Reach, Witness
    from ._releases import Release, resolve
    from ._report import read_report
    from ._route import CONTEXTS, dispatch, route, router
    from ._run.coordinator import Coordinator
    from ._run.local_group import LocalGroup
    from ._step.step import Step, step
    from ._trace.check import check
    from ._trace.types import Checked
    from ._types import Call, Fact, Fusion, Group, InputError, Model, Path, ProbeError, ProbeUnavailable, Server, Setting
    from ._verdict.arm import Arm, arm
    from ._verdict.reading import arms
    from ._verdict.runs import runs_for
    from ._verdict.verdict import Finding, Verdict, Word, verdict
    from .launch import find_server, read_launch, read_log, read_url
    from .models import load_model

_HOME = {
    "_decision": ("Blocked", "Decision", "Gate", "Stop"),
    "_releases": ("Release", "resolve"),
    "_route": ("CONTEXTS", "dispatch", "route", "router"),
    "_run.coordinator": ("Coordinator",),
    "_run.local_group": ("LocalGroup",),
    "_types": (
        "Call",
        "Fact",
        "Fusion",
        "Group",
        "InputError",
        "Model",
        "Path",
        "ProbeError",
        "ProbeUnavailable",
        "Server",
        "Setting",
    ),
    "_ab.ab": ("ab",),
    "_ab.commands": ("Command",),
    "_ab.noise": ("NoiseResult", "noise"),
    "_ab.result": ("AbResult",),
    "_ab.targets": ("Target",),
    "_live.agree": ("Agreement",),
    "_live.asked": ("agree",),
    "_live.control": ("record_clean", "record_start", "record_status", "record_stop"),
    "_live.recording": ("Recording", "read_recording"),
    "_live.top": ("Top", "top"),
    "_trace.check": ("check",),
    "_trace.types": ("Checked",),
    "_verdict.verdict": ("Finding", "Verdict", "Word", "verdict"),
    "_verdict.arm": ("Arm", "arm"),
    "_verdict.reading": ("arms",),
    "_verdict.runs": ("runs_for",),
    "_explain.explain": ("explain",),
    "_explain.types": ("Explanation",),
    "_report": ("read_report",),
    "_bands": ("Band", "Bands", "bands"),
    "_bench.bench": ("bench",),
    "_measure.cell": ("Cell",),
    "_measure.format": ("MeasurementError",),
    "_measure.measurement": ("Measurement", "Provenance"),
    "_measure.summary": ("Summary",),
    "_conform.conform": ("conform",),
    "launch": ("find_server", "read_launch", "read_log", "read_url"),
    "models": ("load_model",),
    "_step.step": ("Step", "step"),
    "_preflight.runner": ("preflight",),
    "_proof.reach": ("Reach", "Witness"),
    "_proof.diff": ("Diff", "diff"),
    "_proof.history": ("History", "history"),
    "_proof.bisect": ("Bisect", "bisect"),
    "_proof.matrix": ("Matrix", "matrix"),
    "_proof.ask": ("Reached", "assert_unreachable", "reach"),
    "_proof.asserting": ("assert_constant_over", "assert_route", "assert_same_routing"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBMODULES = ("hook",)

__all__ = [
    "AbResult",
    "Agreement",
    "Arm",
    "Band",
    "Bands",
    "Bisect",
    "Blocked",
    "CONTEXTS",
    "Call",
    "Cell",
    "Checked",
    "Command",
    "Coordinator",
    "Decision",
    "Diff",
    "Explanation",
    "Fact",
    "Finding",
    "Fusion",
    "Gate",
    "Group",
    "History",
    "InputError",
    "LocalGroup",
    "Matrix",
    "Measurement",
    "MeasurementError",
    "Model",
    "NoiseResult",
    "Path",
    "ProbeError",
    "ProbeUnavailable",
    "Provenance",
    "Reach",
    "Reached",
    "Recording",
    "Release",
    "Server",
    "Setting",
    "Step",
    "Stop",
    "Summary",
    "Target",
    "Top",
    "Verdict",
    "Witness",
    "Word",
    "ab",
    "agree",
    "arm",
    "arms",
    "assert_constant_over",
    "assert_route",
    "assert_same_routing",
    "assert_unreachable",
    "bands",
    "bench",
    "bisect",
    "check",
    "conform",
    "diff",
    "dispatch",
    "explain",
    "find_server",
    "history",
    "hook",
    "load_model",
    "matrix",
    "noise",
    "preflight",
    "reach",
    "read_launch",
    "read_log",
    "read_recording",
    "read_report",
    "read_url",
    "record_clean",
    "record_start",
    "record_status",
    "record_stop",
    "resolve",
    "route",
    "router",
    "runs_for",
    "step",
    "top",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module("." + name, __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sglang_probe' has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
