"""The pictures of README.md, made by the code: a launch line's in both themes, and a terminal's screen. See test_readme_pictures.py.

``python tests/readme_pictures.py`` draws them anew into notebooks/images, and writes their words into README.
Invariant: a picture refers to nothing outside of itself, and says what the command in README prints, or draws for its report.
"""

from __future__ import annotations

import io
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README, IMAGES = ROOT / "README.md", ROOT / "notebooks" / "images"
_COMMAND = re.compile(
    r"<!-- command: report -->\n```bash\n.*?\n\.venv/bin/sglang-probe (step [^\n]*?) --report report\.html\n```\n", re.DOTALL
)
_BLOCK = re.compile(r"<!-- picture: (?P<what>[a-z]+) -->\n(?P<body>.*?)\n(?=\n)", re.DOTALL)
SCREEN = "dump --example"
_COLUMNS, _LINES = 124, 26


def report_command(text: str) -> list[str]:
    """What README's two commands ask, as arguments."""
    found = _COMMAND.search(text)
    assert found, "README has no <!-- command: report --> that ends in --report report.html"
    return shlex.split(found[1])


# ------------------------------------------------------------------------------------------------------------------- the launch line


def asked_step(text: str) -> Any:
    """The step that README's command asks for."""
    from sglang_probe._cli.options import server_arguments
    from sglang_probe._step.step import step
    from sglang_probe.cli import build_parser

    args = build_parser().parse_args(report_command(text))
    return step(args.launch, **server_arguments(args))


def launch_svg(found: Any, dark: bool) -> bytes:
    """The picture of `step --report`, on the theme's own ground."""
    from sglang_probe._report.theme import DARK, LIGHT, settings
    from sglang_probe._show import strips

    theme, drawn = DARK if dark else LIGHT, io.BytesIO()
    with settings(theme):
        figure = strips.strips_figure(*strips.strips_of(found), theme)
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return drawn.getvalue()


def launch_alt(found: Any) -> str:
    from sglang_probe._show import strips

    return strips.alt_of(*strips.strips_of(found))


# -------------------------------------------------------------------------------------------------------------------- the terminal


def screen_lines() -> str:
    """The first lines of the command on a terminal of so many columns, with its escape sequences."""
    from rich.console import Console

    from sglang_probe import read_recording
    from sglang_probe._show.page import print_rich

    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="truecolor", width=_COLUMNS, highlight=False, legacy_windows=False
    )
    print_rich(read_recording(example=True).page(), console)
    return "\n".join([f"$ sglang-probe {SCREEN}", *stream.getvalue().splitlines()[: _LINES - 1]])


def screen_svg() -> bytes:
    """That as rich draws a terminal, without the fonts that rich would load from the web."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), record=True, width=_COLUMNS, force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(screen_lines()), no_wrap=True, crop=True)
    console.print()  # rich cuts the foot of a screen's last line
    alone = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    alone = alone.replace(
        "font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
    )
    return console.export_svg(title="sglang-probe", code_format=alone, unique_id="screen").encode()


def screen_alt() -> str:
    from rich.text import Text

    return f"A terminal: {'. '.join(Text.from_ansi(screen_lines()).plain.splitlines()[:2])}, and the tables below it"


# ----------------------------------------------------------------------------------------------------------------------------- both

NAMES = ("launch-light", "launch-dark", "screen")


def pictures(text: str) -> dict[str, bytes]:
    """All of them, by name."""
    found = asked_step(text)
    make: tuple[Callable[[], bytes], ...] = (lambda: launch_svg(found, False), lambda: launch_svg(found, True), screen_svg)
    return {name: one() for name, one in zip(NAMES, make, strict=True)}


def block(what: str, text: str) -> str:
    """What stands under ``<!-- picture: NAME -->``: the image and its words."""
    folder = IMAGES.relative_to(ROOT).as_posix()
    if what == "screen":
        return f'<img alt="{escape(screen_alt())}" src="{folder}/screen.svg" width="100%">'
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{folder}/launch-dark.svg">'
    image = f'<img alt="{escape(launch_alt(asked_step(text)))}" src="{folder}/launch-light.svg" width="100%">'
    return f"<picture>\n{dark}\n{image}\n</picture>"


def blocks(text: str) -> dict[str, str]:
    """Those that README has."""
    return {found["what"]: found["body"] for found in _BLOCK.finditer(text)}


def facts(svg: bytes) -> tuple[list[str], set[str]]:
    """What a picture says, in its order, and its colours: the same with any version of what draws it."""
    root = ET.fromstring(svg)
    lines: dict[str, list[str]] = {}
    for number, element in enumerate(root.iter()):
        if element.tag.rpartition("}")[2] == "text":
            said = "".join(element.itertext()).replace("\xa0", " ")
            # rich cuts a line into a text a style, all of them at one height; of a figure every text is one of its own
            lines.setdefault(element.get("y", "") if element.get("clip-path") else str(number), []).append(said)
    drawn = svg.decode()
    colours = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}\b", drawn)}
    return [" ".join(" ".join(parts).split()) for parts in lines.values()], colours


if __name__ == "__main__":
    readme = README.read_text(encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    for name, svg in pictures(readme).items():
        (IMAGES / f"{name}.svg").write_bytes(svg)
    new = _BLOCK.sub(lambda found: f"<!-- picture: {found['what']} -->\n{block(found['what'], readme)}\n", readme)
    README.write_text(new, encoding="utf-8")
