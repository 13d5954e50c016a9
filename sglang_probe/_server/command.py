"""From a command line to its environment and flags: shell words, wrappers, argparse's abbreviations, --config. Called by launch.py.

Nothing is executed and no variable of the shell is expanded. Invariant: any text gives a Command or an InputError that names what is
wrong with it; flags that the release does not know are in ``unknown``.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn

from .._types import InputError
from .defaults import flags

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATORS = frozenset({"&&", "||", ";", "|", "&", "|&", "\n"})
_REDIRECTION = re.compile(r"(\d*|&)(>>?|<|>\|)(&\d|&-)?")
_LONGEST = 1 << 20
_SHOWN = 60


@dataclass(frozen=True)
class Command:
    """A command line, taken apart."""

    env: Mapping[str, str]
    argv: tuple[str, ...]
    model: str | None = None
    """The model that ``sglang serve MODEL`` names without a flag."""


@dataclass
class Parsed:
    """Flags as arguments of the server."""

    args: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def split_command(line: str) -> Command:
    """Take a command line apart: variables before the program, the launcher, its flags."""
    if not isinstance(line, str):
        raise InputError("launch", _short(repr(line)), "give the command line as one string")
    if len(line) > _LONGEST:
        raise InputError(
            "launch", _short(line), f"{len(line)} characters are no command line; give the one that starts the server"
        )
    words = _words(line)
    if not words:
        raise InputError("launch", _short(line), "empty: give the command that starts the server")
    env: dict[str, str] = {}
    for segment in _segments(words):
        start = _launcher(segment)
        if start is None:
            env.update(_exports(segment))
            continue
        env.update(_variables(segment[:start]))
        argv = segment[start:]
        model = None
        if segment[start - 1] == "serve" and argv and not argv[0].startswith("-"):
            model, argv = argv[0], argv[1:]
        return Command(env, tuple(argv), model)
    return _bare(words, line)


def _words(line: str) -> list[str]:
    text = line.replace("\\\r\n", " ").replace("\\\n", " ")
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)
    except ValueError as error:
        raise InputError("launch", _short(line), f"the shell's quoting is broken ({str(error).lower()}): close it") from None


def _segments(words: Sequence[str]) -> list[list[str]]:
    """The simple commands of a line, without redirections."""
    segments: list[list[str]] = [[]]
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _OPERATORS or (word and set(word) <= set(";&|")):
            segments.append([])
        elif (found := _REDIRECTION.match(word)) and (found.end() == len(word) or not word.startswith("-")):
            skip = found.end() == len(word) and found.group(3) is None
        else:
            segments[-1].append(word)
    return [segment for segment in segments if segment]


def _launcher(segment: Sequence[str]) -> int | None:
    """Where the server's own flags begin; None where this command starts no server."""
    for i, word in enumerate(segment):
        name = word.rsplit("/", 1)[-1]
        if word == "sglang.launch_server" or name == "launch_server.py":
            return i + 1
        if word == "serve" and i and segment[i - 1].rsplit("/", 1)[-1] in ("sglang", "sglang.cli.main"):
            return i + 1
    return None


def _variables(prefix: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE before the program, whatever wrapper (env, nohup, docker run -e) they belong to."""
    found = (word.split("=", 1) for word in prefix if _ASSIGNMENT.match(word))
    joined = (word.split("=", 1)[1].split("=", 1) for word in prefix if re.match(r"--env=[A-Za-z_]\w*=", word))
    return dict((*found, *joined))


def _exports(segment: Sequence[str]) -> dict[str, str]:
    return (
        _variables(segment[1:]) if segment[0] == "export" else _variables(segment) if all(map(_ASSIGNMENT.match, segment)) else {}
    )


def _bare(words: Sequence[str], line: str) -> Command:
    """Flags without a program: what stands behind it in a container's arguments."""
    first = next((i for i, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    if first < len(words) and words[first].startswith("--"):
        return Command(_variables(words[:first]), tuple(words[first:]))
    remedy = "names neither sglang.launch_server nor `sglang serve`; give the command that starts the server"
    raise InputError("launch", _short(line), remedy)


class _Refused(Exception):
    """argparse refuses the flags."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Refused(message or "")


_DEPRECATED = "\0"
"""Marks an argument that a flag names although it does nothing."""


@functools.cache
def _parser(sglang: str) -> _Parser:
    """A parser with the flags of a release, so that abbreviations and lists are taken as SGLang takes them."""
    parser = _Parser(prog="sglang", add_help=False, argument_default=argparse.SUPPRESS)
    for flag in flags(sglang):
        parser.add_argument(flag.name, **_action(flag.name, flag.dest, flag.kind))
    return parser


def _action(name: str, dest: str, kind: str) -> dict[str, Any]:
    if kind == "b":
        return {"dest": dest, "action": "store_true"}
    if kind == "B":
        return {"dest": dest, "action": argparse.BooleanOptionalAction}
    if kind == "x":
        return {"dest": _DEPRECATED + name, "action": "store_true"}
    if kind.startswith("c="):
        return {"dest": dest, "action": "store_const", "const": kind[2:]}
    options: dict[str, Any] = {"dest": dest, "type": {"i": int, "f": float}.get(kind[0], str)}
    return {**options, "nargs": kind[1:]} if kind[1:] else options


def parse_flags(argv: Sequence[str], sglang: str) -> Parsed:
    """The server's arguments that these flags give, in a release."""
    parsed = Parsed()
    words = _with_config(list(argv), sglang, parsed)
    try:
        found, rest = _parser(sglang).parse_known_args(words)
    except _Refused as refused:
        flag, value, message = _explain(str(refused))
        raise InputError(flag, value, f"{message}; SGLang {sglang} refuses it too") from None
    for name, value in vars(found).items():
        if name.startswith(_DEPRECATED):
            parsed.notes.append(f"{name[1:]}: known to SGLang {sglang}, but does nothing any more")
        elif name != "config":
            parsed.args[name] = value
    parsed.unknown = [word.split("=", 1)[0] for word in rest if word.startswith("-") and not re.fullmatch(r"-\d.*|-", word)]
    return parsed


def unknown_flag(flag: str, sglang: str) -> str:
    """The note of a flag that a release does not have: a slip of the pen, or another release's."""
    near = get_close_matches(flag, [known.name for known in flags(sglang)], n=1, cutoff=0.85)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"{flag}: {UNKNOWN} {sglang}, which does not start with it; ignored here{meant}"


UNKNOWN = "unknown to SGLang"
"""In the note of such a flag: it stands above an answer."""


def _explain(message: str) -> tuple[str, str, str]:
    """argparse's sentence as (flag, value, message)."""
    found = re.match(r"argument ([^:\s]+): (?:invalid (\w+) value: (.*)|(.*))$", message, re.DOTALL)
    if found is None:
        ambiguous = re.match(r"ambiguous option: (\S+) (.*)$", message, re.DOTALL)
        if ambiguous:
            return (
                ambiguous[1].split("=")[0],
                _short(ambiguous[1]),
                f"an ambiguous abbreviation ({_short(ambiguous[2])}): write the flag out",
            )
        return "launch", _short(message), "give flags that argparse accepts"
    flag = found[1].split("/")[0]
    if found[2]:
        return flag, _short(found[3].strip("'")), f"give {'a whole number' if found[2] == 'int' else 'a number'}"
    return flag, "", _short(found[4])


def _with_config(argv: list[str], sglang: str, parsed: Parsed) -> list[str]:
    """The flags with those of the --config file before them: what the command line says wins."""
    at = [i for i, word in enumerate(argv) if word == "--config" or word.startswith("--config=")]
    if not at or not any(flag.name == "--config" for flag in flags(sglang)):
        return argv
    i = at[0]
    inline = argv[i].startswith("--config=")
    if len(at) > 1 or (not inline and i + 1 == len(argv)):
        raise InputError("--config", " ".join(argv[i:])[:_SHOWN], "give one file")
    path = argv[i].split("=", 1)[1] if inline else argv[i + 1]
    rest = argv[:i] + argv[i + (1 if inline else 2) :]
    content = _read_yaml(path, parsed)
    return [*_config_words(content, path), *rest]


def _read_yaml(path: str, parsed: Parsed) -> Mapping[Any, Any]:
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore] # optional
    except ImportError:
        parsed.notes.append(
            f"--config {path}: not read, because PyYAML is not installed here; its flags are missing from this answer"
        )
        return {}
    try:
        content = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError("--config", _short(path), f"cannot be read as YAML ({_short(error)}); give a readable file") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError("--config", _short(path), "the top of the file must be a mapping of flags")
    return content


def _config_words(content: Mapping[Any, Any], path: str) -> list[str]:
    words: list[str] = []
    for key, value in content.items():
        if not isinstance(key, str):
            raise InputError("--config", _short(path), f"{key!r} is no flag")
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        elif isinstance(value, list):
            words += [flag, *map(str, value)] if value else []
        elif value is not None:
            words += [flag, str(value)]
    return words
