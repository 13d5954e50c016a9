"""The parts of README.md that a program writes: outputs of commands, and tables of the core's lists. Called by test_readme.py.

``python tests/readme_blocks.py`` writes them anew. A block is what follows ``<!-- output: ARGUMENTS -->`` (fenced; ``| head -n N`` may
end the arguments) or ``<!-- table: NAME -->``. Invariant: README never shows an output that the command does not give.
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
_BLOCK = re.compile(r"<!-- (output|table): (?P<what>[^\n]*?) -->\n(?P<body>(?:```.*?\n```|\|.*?)\n)(?=\n)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    what: str
    body: str


def blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        yield Block(found[1], found["what"], found["body"])


def expected(kind: str, what: str) -> str:
    return output(what) if kind == "output" else table(what)


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
        return f"<!-- {found[1]}: {found['what']} -->\n{expected(found[1], found['what'])}"

    return _BLOCK.sub(replace, text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
