"""The parts of README.md that a program writes: outputs of commands and cells, tables of the core's lists. Called by test_readme.py.

``python tests/readme_blocks.py`` writes them anew. A block is what follows ``<!-- output: ARGUMENTS -->`` (fenced; ``| head -n N`` may
end the arguments), ``<!-- shows: NAME -->`` (what the Python after ``<!-- run: NAME -->`` prints, with ``...`` for each time, as times
differ at every run) or ``<!-- table: NAME -->``. Invariant: README never shows an output that the command or the code does not give.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
_BLOCK = re.compile(r"<!-- (output|shows|table): (?P<what>[^\n]*?) -->\n(?P<body>(?:```.*?\n```|\|.*?)\n)(?=\n)", re.DOTALL)
_TIME = re.compile(r"\d[\d,.]*(?= us\b)")


@dataclass(frozen=True)
class Block:
    kind: str
    what: str
    body: str


def blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        yield Block(found[1], found["what"], found["body"])


def expected(kind: str, what: str, text: str | None = None) -> str:
    """The block's body as it must be; ``text`` is the README that holds the cell to run, by default the one that is there."""
    if kind == "shows":
        return shown(cell(README.read_text(encoding="utf-8") if text is None else text, what))
    return output(what) if kind == "output" else table(what)


def cells(text: str) -> list[str]:
    """Names of the Python cells that README runs."""
    return re.findall(r"<!-- run: ([^\n]*?) -->\n```python\n", text)


def cell(text: str, name: str) -> str:
    found = re.search(rf"<!-- run: {re.escape(name)} -->\n```python\n(.*?)```\n", text, re.DOTALL)
    assert found, f"README has no cell <!-- run: {name} -->"
    return found[1]


def shown(code: str) -> str:
    """A fenced block: what this code prints when it stands alone, as a reader pastes it; times masked."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(code, {"__name__": "__main__"})  # noqa: S102 # our own README
    lines = (_TIME.sub("...", line.rstrip()) for line in stream.getvalue().splitlines())
    return "\n".join(["```text", *lines, "```\n"])


def output(what: str) -> str:
    """A fenced block: the command, and what it prints into a pipe."""
    from sglang_probe.cli import main

    line, _, tail = what.partition(" | head -n ")
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        status = main(shlex.split(line))
    assert status == 0, line
    shown = stream.getvalue().splitlines()
    shown = shown[: int(tail)] if tail else shown
    return "\n".join(["```console", f"$ sglang-probe {what}", *(text.rstrip() for text in shown), "```\n"])


def table(what: str) -> str:
    """A table of one of the core's lists."""
    from sglang_probe import _core

    rows: dict[str, tuple[tuple[str, str], list[tuple[str, str]]]] = {
        "paths": (("path", "what executes"), [(f"`{name}`", text) for name, text in _core.PATHS]),
        "rules": (("rule", "fires when"), [(f"`{name}`", text) for name, text in _core.RULES if name]),
    }
    head, body = rows[what]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---", "---"), *body))


def rewritten(text: str) -> str:
    """README with every block written anew."""

    def replace(found: re.Match[str]) -> str:
        return f"<!-- {found[1]}: {found['what']} -->\n{expected(found[1], found['what'], text)}"

    return _BLOCK.sub(replace, text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
