"""Command: any program as an arm: it prints a figure, or is timed by the wall clock. Public; run by experiment.py through its Side.

Invariant: no shell is between; the program gets this process's environment and what was declared, and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._measure.provenance import _SECRET, _WITHHELD
from .._report.text import words_without_secrets
from .._shown import Shown
from .._types import FrozenMap, InputError
from .figure import Figure, NoFigure, figure_of
from .process import Ran, run
from .seen import seen_of_command
from .sides import Declared, Look, Outcome, declared_of

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NCCL_NAMES = ("LD_PRELOAD", "SGLANG_NCCL_SO_PATH")
"""What makes a program take this libnccl: the loader's own, and SGLang's."""
_TAIL_LINES, _TAIL_CHARS = 20, 4000
_SHELL = frozenset("|&;<>()")


@dataclass(frozen=True)
class Command(Shown):
    """``Command("python bench.py --tokens 64", figure="last")``: a program and how its figure is read.

    ``argv``: a list, or a text that is cut as a shell would; ``NAME=VALUE`` in front of a text goes to ``env``. No shell runs it: for
    pipes write ``sh -c '...'``. ``env``: variables on top of this process's own, declared: they are meant to differ. ``nccl``: a
    libnccl.so.2 that it is to load (by LD_PRELOAD and SGLANG_NCCL_SO_PATH; whether it did is looked at). ``figure``: ``"wall"`` (seconds),
    ``"last"`` (the last number that it prints), ``"json:KEY"``, or a regular expression, whose last match counts; with ``every``, all of
    its matches are iterations of this process. ``cwd``: the folder that it runs in. ``label``: what it is called in the answer.

    Raises InputError for what cannot be run.
    """

    argv: Sequence[str] | str
    env: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    figure: str | Figure = "wall"
    every: bool = False
    nccl: str | os.PathLike[str] | None = None
    cwd: str | os.PathLike[str] | None = None
    label: str = ""

    def __post_init__(self) -> None:
        argv, assigned = _argv(self.argv)
        env = {**assigned, **_env(self.env)}
        object.__setattr__(self, "argv", argv)
        object.__setattr__(self, "env", FrozenMap(env))
        object.__setattr__(self, "figure", figure_of(self.figure, self.every))
        if not isinstance(self.label, str):
            raise InputError("label", self.label, "give a text")
        cwd = None if self.cwd is None else os.path.abspath(os.fspath(self.cwd))
        if cwd is not None and not os.path.isdir(cwd):
            raise InputError("cwd", self.cwd, "there is no such folder")
        object.__setattr__(self, "cwd", cwd)
        object.__setattr__(self, "nccl", None if self.nccl is None else nccl_file(self.nccl))

    def __str__(self) -> str:
        told = [f"{name}={shlex.quote(value)}" for name, value in withheld(self.env).items()]
        told += [f"[NCCL {self.nccl}]"] if self.nccl else []
        return " ".join([*told, shlex.join(words_without_secrets(self.argv))])


class CommandSide:
    """A Command on one side of an experiment."""

    def __init__(self, command: Command, label: str) -> None:
        self._command, self.label = command, command.label or label
        self.text = str(command)
        self._figure = figure_of(command.figure, command.every)
        self.unit = self._figure.unit
        self.declared: Declared = declared_of(command.env, None if command.nccl is None else str(command.nccl), self.label)
        self._env = {**os.environ, **command.env}
        if command.nccl is not None:
            self.declared |= Declared(frozenset(_NCCL_NAMES))
            before = self._env.get("LD_PRELOAD", "")
            path = str(command.nccl)
            self._env |= {"LD_PRELOAD": f"{path}:{before}" if before else path, "SGLANG_NCCL_SO_PATH": path}
        found = shutil.which(command.argv[0], path=self._env.get("PATH"))
        if found is None and not os.path.exists(os.path.join(str(command.cwd or "."), command.argv[0])):
            quoted = len(command.argv) == 1 and len(command.argv[0].split()) > 1
            way = "the quotes make it one word: leave them out, or" if quoted else "for a shell's own words"
            raise InputError(self.label, command.argv[0], f"there is no such program; {way} give sh -c '...'")

    def to_dict(self) -> dict[str, Any]:
        """What a file keeps of it."""
        c = self._command
        return {
            "kind": "command",
            "label": self.label,
            "argv": words_without_secrets(c.argv),
            "env": withheld(c.env),
            "nccl": c.nccl,
            "cwd": c.cwd,
            "figure": self._figure.to_dict(),
            "unit": self.unit,
        }

    def run(self, number: int, limit_s: float, look: Look) -> Outcome:
        """See Side."""
        ran = run(self._command.argv, self._env, None if self._command.cwd is None else str(self._command.cwd), limit_s, look)
        failed, figures = ran.failed, tuple[float, ...]()
        if not failed:
            try:
                figures = self._figure.read(ran.out, ran.wall_s)
            except NoFigure as why:
                failed = str(why)
        return Outcome(figures, failed, ran.wall_s, ran.note, seen_of_command(ran.looked), None, _tail(ran) if failed else "")


def _tail(ran: Ran) -> str:
    """What a reader needs of a run that failed: the end of both streams."""
    told = []
    for name, text in (("stdout", ran.out), ("stderr", ran.err)):
        lines = text.rstrip().splitlines()[-_TAIL_LINES:]
        told += [f"{name}: {line}" for line in lines]
    return "\n".join(told)[-_TAIL_CHARS:]


def _argv(given: object) -> tuple[tuple[str, ...], dict[str, str]]:
    """(program and arguments, variables that stand in front of a text)."""
    remedy = "give a program and its arguments, as 'python bench.py --n 3' or a list"
    if isinstance(given, str):
        words, assigned = _split(given), {}
        while words and (found := _ASSIGNMENT.fullmatch(words[0])):
            assigned[found[1]] = found[2]
            words = words[1:]
    elif isinstance(given, Sequence) and not isinstance(given, bytes):
        words, assigned = list(given), {}
    else:
        raise InputError("argv", given, remedy)
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        raise InputError("argv", given, remedy)
    return tuple(words), assigned


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
        marks = shlex.shlex(text, posix=True, punctuation_chars=True)
        marks.whitespace_split, marks.commenters = True, ""
        signs = [word for word in marks if word and set(word) <= _SHELL]
    except ValueError as error:
        raise InputError("argv", text, f"its quotes do not close ({error})") from None
    if signs:
        raise InputError("argv", text, f"{signs[0]!r} is a shell's, and no shell runs it: give sh -c {shlex.quote(text)}")
    return words


def _env(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise InputError("env", given, "give names and values as text, as {'NCCL_ALGO': 'Ring'}")
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise InputError("env", {name: value}, "this is no variable: give NAME=VALUE")
    return dict(given)


def withheld(env: Mapping[str, str]) -> dict[str, str]:
    """As a file keeps it: no secrets."""
    return {name: _WITHHELD if _SECRET.search(name) else value for name, value in sorted(env.items())}


def nccl_file(given: object) -> str:
    """The absolute path of a shared library."""
    if not isinstance(given, str | os.PathLike):
        raise InputError("nccl", given, "give the path of a libnccl.so.2")
    path = os.path.abspath(os.fspath(given))
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError("nccl", str(given), f"it cannot be read: {error.strerror}; give the path of a libnccl.so.2") from None
    if start != b"\x7fELF":
        raise InputError("nccl", str(given), "it is no shared library; give the path of a libnccl.so.2")
    return path
