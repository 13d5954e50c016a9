"""Toggles around a server's step, from its launch line. Used by sglang_probe.notebook.

A communicator is toggled as a person would: by a flag of the launch line, or a variable. SWITCHES is the table of these.
Invariant: what is asked is ``probe.step`` with a launch line, so that whatever is toggled can be asked again, or started.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._costs.costs import load_costs
from .._releases import RELEASES, newest, resolve
from .._server.command import Command, parse_flags, split_command
from .._server.environment import _FALSE
from .._server.hardware import DEFAULT_GPU
from .._step.step import step
from .._types import FrozenMap, Group, InputError
from ..launch import read_launch
from .toggles import Question, Rows, Said, toggles


@dataclass(frozen=True)
class Switch:
    """How a communicator is turned on and off; "" where that is what a server does anyway."""

    on: str = ""
    off: str = ""
    variable: str = ""
    """In place of a flag; ``on`` is a value of it."""
    idle: tuple[str, ...] = ()
    """Values of the variable that turn nothing on, in lower case."""
    usual: bool | None = False
    """What a launch line without a word of it means; None: the release decides."""


SWITCHES: Mapping[str, Switch] = FrozenMap(
    {
        "custom": Switch(off="--disable-custom-all-reduce", usual=True),
        "torch_symm_mem": Switch("--enable-torch-symm-mem"),
        "symm_mem": Switch("--enable-symm-mem"),
        "mscclpp": Switch("--enable-mscclpp"),
        "quick": Switch("FP", variable="ROCM_QUICK_REDUCE_QUANTIZATION", idle=("", "none")),
        "pcie_ipc": Switch("1", variable="SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", idle=_FALSE),
        "flashinfer": Switch("--enable-flashinfer-allreduce-fusion", "--enforce-disable-flashinfer-allreduce-fusion", usual=None),
    }
)


@dataclass(frozen=True)
class Launch:
    """A launch line apart from what can be toggled."""

    given: str
    command: Command
    """Without the switches."""
    values: Mapping[str, str]
    """Variables that were taken out of it, as the line has them."""
    switched: Mapping[str, bool | None]
    """As the line has them."""
    ranks: int

    def text(self, ranks: int, switched: Mapping[str, bool | None]) -> str:
        """The line as toggled; the very text that was given where nothing is."""
        if ranks == self.ranks and switched == self.switched:
            return self.given
        words = [word for name, state in switched.items() for word in _flags(SWITCHES[name], state)]
        if ranks != self.ranks:
            words += ["--tp", str(ranks)]
        on = [SWITCHES[name] for name, state in switched.items() if state]
        chosen = {switch.variable: self.values.get(switch.variable, switch.on) for switch in on if switch.variable}
        pairs = [f"{name}={value}" for name, value in {**self.command.env, **chosen}.items()]
        return shlex.join([*pairs, "python", "-m", "sglang.launch_server", *self.command.argv, *words])


def _flags(switch: Switch, state: bool | None) -> list[str]:
    word = "" if switch.variable or state is None or state == switch.usual else switch.on if state else switch.off
    return [word] if word else []


def read_line(launch: str, release: str, ranks: int) -> Launch:
    """The line, with the flags of SWITCHES and their variables taken out of it and remembered."""
    command = split_command(launch)
    argv = list(command.argv) if command.model is None else ["--model-path", command.model, *command.argv]
    switched: dict[str, bool | None] = {}
    for name, switch in SWITCHES.items():
        if switch.variable:
            switched[name] = command.env.get(switch.variable, "").strip().lower() not in switch.idle
            continue
        switched[name] = switch.usual
        for flag, state in ((switch.on, True), (switch.off, False)):
            left = [word for word in argv if not _is_flag(word, flag, release)] if flag else argv
            if left != argv:
                argv, switched[name] = left, state
    taken = [switch.variable for name, switch in SWITCHES.items() if switch.variable and switched[name]]
    env = {name: value for name, value in command.env.items() if name not in taken}
    return Launch(launch, Command(env, tuple(argv)), {name: command.env[name] for name in taken}, switched, ranks)


def _is_flag(word: str, flag: str, release: str) -> bool:
    """Whether a word is this flag, or the release's argparse takes it for an abbreviation of it."""
    if not word.startswith("--") or not flag.startswith(word):
        return False
    try:
        return word == flag or parse_flags((word,), release).args == parse_flags((flag,), release).args != {}
    except InputError:
        return False


def which_step(
    launch: str,
    *,
    model: str | None = None,
    gpu: str = DEFAULT_GPU,
    link: str | None = None,
    sglang: str | None = None,
    batch: int = 1,
    draft_tokens: int | None = None,
    context: str | None = None,
    costs: str | None = None,
) -> Any:
    """Toggles (release, model, GPU, link, ranks, requests, draft tokens, context, piecewise flag, communicators) around the step of
    a launch line: its paths, the rule, the reasons and the costs, as ``probe.step`` tells them. An ipywidgets box.

    What can be given is what ``probe.step`` takes, and starts the toggles; ``costs`` is a file, or "none", by default the package's tables.
    Raises InputError where the launch line itself, or a value to start with, is none; ProbeUnavailable without ipywidgets.
    """
    start = sglang or newest()
    release = resolve(start)
    known = RELEASES[release.index]
    found = load_costs(costs)
    for table in found.tables:
        _ = table.series  # read now: no toggle is to wait for a file
    step(
        launch,
        model=model,
        gpu=gpu,
        link=link,
        sglang=start,
        batch=batch,
        draft_tokens=draft_tokens,
        context=context,
        costs=found,
    )  # what cannot be asked is refused here
    server = read_launch(launch, model=model, gpu=gpu, link=link, sglang=known)
    line = read_line(launch, known, int(server.args["tp_size"].value))
    rows: Rows = {
        "server": {"sglang": start, "model": model, "gpu": gpu, "link": link, "world_size": line.ranks},
        "step": {"batch": batch, "draft_tokens": draft_tokens, "phase": context, "piecewise": False},
        "communicators": {"pynccl": True, **line.switched},
    }
    tables = None if costs is None else Said(found, repr(costs))
    return toggles(rows, lambda values: _question(line, tables, values))


def _question(line: Launch, costs: Said | None, values: dict[str, Any]) -> Question:
    """``probe.step``, told what departs from what it does by itself."""
    group = None if values["pynccl"] else Said(Group.make(own_pynccl=False), "probe.Group.make(own_pynccl=False)")
    named = {name: values[name] for name in ("model", "gpu", "link", "sglang", "batch", "draft_tokens")}
    named |= {"context": values["phase"], "group": group, "costs": costs}
    if values["batch"] == 1:
        del named["batch"]
    switched = {name: values[name] for name in SWITCHES}
    told = {name: value for name, value in named.items() if value is not None}
    question = Question("probe.step", step, (line.text(values["world_size"], switched),), told)
    context = "" if not values["piecewise"] else values["phase"] or question.answer().context
    if context and "piecewise" not in context:
        question = replace(question, named={**told, "context": f"{context}+piecewise"})
    return question
