"""A server's log: its resolved arguments, and lines that say what became of its communicators. Called by launch.py;
what the lines mean for a server is log_effects.py's.

Read line by line: a log may have gigabytes. FINDINGS is a table: a pattern, and what it says. To v0.5.18 SGLang prints
``server_args=ServerArgs(...)``, from v0.5.19 ``server_args={...}``. Invariant: values are read as literals, never evaluated; of a log
with several starts only the last one's lines count.
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._types import InputError
from .defaults import FIELDS

_START = re.compile(r"server_args=(ServerArgs\(|\{)")
_VERSION = re.compile(r"\bsglang(?:==|[ _-]version[ :=]+'?|[ ]+v)(\d+\.\d+\.\d+(?:rc\d+)?(?:\.post\d+)?)\b", re.IGNORECASE)
_LONGEST_LINE = 4 << 20
_MOST_JOINED = 400
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True)
class Line:
    """A line that says something about a communicator."""

    kind: str
    number: int
    text: str
    value: Any = None


@dataclass
class Log:
    """What a log says."""

    args: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    newest_version: str | None = None
    """The last one that any line named: a server says its version before or after its arguments."""


@dataclass(frozen=True)
class Start:
    """A line where a server began, and who it was."""

    number: int
    text: str


@dataclass(frozen=True)
class Finding:
    kind: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Any] = lambda match: match.group(match.lastindex) if match.lastindex else None


def _sizes(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d{1,7}", match.group(1)))


def _find(kind: str, pattern: str, read: Callable[[re.Match[str]], Any] | None = None) -> Finding:
    compiled = re.compile(pattern)
    return Finding(kind, compiled, read) if read else Finding(kind, compiled)


FINDINGS: tuple[Finding, ...] = (
    _find("registered", r"Registering (\d{1,9}) cuda graph addresses", lambda match: int(match.group(1))),
    _find("custom failed", r"Setup Custom allreduce failed with (.{0,200})"),
    _find("custom disabled", r"Custom allreduce is disabled because (.{0,200})"),
    _find("multicast", r"All Reduce config: .*multicast = (True|False)", lambda match: match.group(1) == "True"),
    _find("fusion", r"Auto-enabling FlashInfer AllReduce Fusion"),
    _find(
        "fusion failed",
        r"(flashinfer\.comm .{0,60}not available|Failed to initialize FlashInfer workspace|[Aa]ll[Rr]educe fusion disabled|"
        r"Skipping allreduce fusion)",
        lambda match: None,
    ),
    _find("fusion backend", r"FlashInfer AllReduce Fusion enabled and workspace initialized: backend=(\w+)"),
    _find("batches", r"Capture cuda graph bs \[([\d, ]*)\]", _sizes),
    _find("batches", r"Capture (?!draft)(?:(?!draft|prefill)[^.])* begin\. .*\bbs=\[([\d, ]*)\]", _sizes),
    _find("prefill sizes", r"Capture cuda graph num tokens \[([\d, ]*)\]", _sizes),
    _find("prefill sizes", r"Capture (?!draft)[^.]*prefill[^.]* begin\. .*num_tokens=\[([\d, ]*)\]", _sizes),
    _find("mscclpp disabled", r"PyMscclpp is disabled due to (.{0,120})"),
    _find("symm multicast", r"TorchSymmMemCommunicator: torch symmetric memory multicast operations are not supported"),
    _find("symm disabled", r"TorchSymmMemCommunicator: (.{0,120}not supported.{0,80})"),
    _find("pcie missing", r"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is set but this FlashInfer build has"),
    _find("pcie failed", r"Setup FlashInfer PCIe-IPC allreduce failed with (.{0,200})"),
    _find("pcie on", r"FlashInfer PCIe-IPC all-reduce enabled"),
    _find("nccl", r"sglang is using nccl==([\d.]+)"),
)
# No pattern can match a line without one of these: most lines of a log are decode statistics.
_HINT = re.compile(
    r"server_args=|(?i:sglang.{0,12}\d)|[Aa]ll ?[Rr]educe|Capture |cuda graph addresses|PyMscclpp|SymmMem|PCI[Ee]|nccl=="
)


def scan_log(path: pathlib.Path) -> Log:
    """Read a log. Raises InputError where it cannot be read, or holds no arguments of a server."""
    log = Log()
    seen: set[tuple[str, Any]] = set()
    try:
        with _open(path) as stream:
            lines = _lines(stream)
            for number, text in lines:
                if not _HINT.search(text):
                    continue
                if start := _START.search(text):
                    _begin(log, seen, number, _arguments(_whole(text[start.start(1) :], lines), number, path))
                _note(log, seen, number, text)
    except OSError as error:
        raise InputError("log", str(path), f"{error.strerror or error}; give a readable log of a server") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("log", str(path), f"{error}; give a readable log of a server") from None
    if not log.args:
        raise InputError(
            "log",
            str(path),
            "holds no server_args=ServerArgs(...), which SGLang prints when it starts: give the log from its start",
        )
    _note_starts(log)
    return log


def _begin(log: Log, seen: set[tuple[str, Any]], number: int, args: dict[str, Any]) -> None:
    """A server begins: what the log said of the one before it says nothing of this one.

    Another node of the same server is none, nor is the same server that prints its arguments once more on its way up.
    """
    same = bool(log.args) and all(log.args.get(name) == args.get(name) for name in ("model_path", *FIELDS))
    if same and (log.args.get("node_rank") != args.get("node_rank") or not log.lines):
        return
    if log.args:
        log.lines.clear()
        seen.clear()
        log.version = log.newest_version
    log.args = args
    log.starts.append(Start(number, f"{args.get('model_path', 'no model named')}, tp_size {args['tp_size']}"[:200]))


def _note_starts(log: Log) -> None:
    *before, last = log.starts
    if before:
        shown = "; ".join(f"line {start.number}: {start.text}" for start in before[-3:])
        more = f"; and {len(before) - 3} before them" if len(before) > 3 else ""
        log.notes.append(
            f"the log holds {len(before) + 1} starts of a server: answered for the last, line {last.number}: {last.text}"
            f" (not for {shown}{more})"
        )


def _open(path: pathlib.Path) -> io.TextIOWrapper:
    """Text of any encoding: UTF-16 by its mark, all else as UTF-8 with what is not replaced."""
    raw = path.open("rb")
    mark = raw.read(2)
    raw.seek(0)
    encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return io.TextIOWrapper(raw, encoding=encoding, errors="replace")


def _lines(stream: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    """(number, line); what a line has over the limit comes as more lines of the same number."""
    number = 1
    while text := stream.readline(_LONGEST_LINE):
        yield number, text.rstrip("\n")
        number += text.endswith("\n")


def _whole(text: str, lines: Iterator[tuple[int, str]]) -> str:
    """The arguments up to their closing bracket; some log collectors break long lines."""
    for _ in range(_MOST_JOINED):
        end = _closing(text)
        if end is not None:
            return text[: end + 1]
        following = next(lines, None)
        if following is None or len(text) > _LONGEST_LINE:
            break
        text += following[1]
    return text


def _closing(text: str) -> int | None:
    """Where the first bracket closes; None where it does not."""
    depth = 0
    for i, letter in _outside_quotes(text):
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
            if depth == 0:
                return i
    return None


def _outside_quotes(text: str) -> Iterator[tuple[int, str]]:
    quote = ""
    escaped = False
    for i, letter in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        else:
            yield i, letter


def _arguments(text: str, number: int, path: pathlib.Path) -> dict[str, Any]:
    """``ServerArgs(a=1, ...)`` or ``{'a': 1, ...}`` as a dictionary; a value that is no literal stays text."""
    body = text[text.index("(") + 1 if text.startswith("ServerArgs(") else 1 :]
    mark = "=" if text.startswith("ServerArgs(") else ":"
    body = body[:-1] if _closing(text) is not None else body
    args = {}
    for part in _split(body, ","):
        name, _, value = part.partition(mark)
        name = name.strip().strip("'\"")
        if name.isidentifier():
            args[name] = _value(value.strip())
    if "tp_size" not in args:
        raise InputError("log", f"{path}, line {number}", "its server_args have no tp_size: give a log whose arguments are whole")
    return args


def _split(text: str, separator: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, letter in _outside_quotes(text):
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == separator and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _value(text: str) -> Any:
    """A literal; nested records such as CudaGraphConfig(...) as dictionaries."""
    try:
        return _literal(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg}
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(ast.literal_eval(key)): _literal(value) for key, value in pairs if key is not None}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    return ast.literal_eval(node)


def _note(log: Log, seen: set[tuple[str, Any]], number: int, text: str) -> None:
    if version := _VERSION.search(text):
        log.newest_version = version.group(1)
        log.version = log.version or log.newest_version
    for finding in FINDINGS:
        match = finding.pattern.search(text)
        if match is None:
            continue
        value = finding.read(match)
        # Every rank prints its own: one of a kind and value is enough.
        if (finding.kind, value) not in seen and len(log.lines) < 200:
            seen.add((finding.kind, value))
            log.lines.append(Line(finding.kind, number, text.strip()[:300], value))
        return
