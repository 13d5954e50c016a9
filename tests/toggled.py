"""A box of toggles as tests see it: its controls by their labels, the code that it shows, and what it shows under that."""

from __future__ import annotations

import html
import re
from typing import Any

import sglang_probe as probe
from sglang_probe.notebook import machine

_CODE = re.compile(r'<div style="margin-bottom:.6em">.*?white-space:pre-wrap">(.*?)</div></div></div>')


def controls_of(box: Any) -> dict[str, Any]:
    return {control.description: control for row in box.children[:-1] for control in row.children[1].children}


def code_of(box: Any) -> str:
    """The question that a box shows; "" where it could not be put."""
    found = _CODE.match(box.children[-1].value)
    return html.unescape(found[1]) if found else ""


def answer_of(box: Any) -> str:
    """What stands under the question."""
    return _CODE.sub("", box.children[-1].value, count=1)


def pasted(code: str) -> str:
    """What a reader gets who runs the code in a cell of its own."""
    try:
        return str(eval(code, {"probe": probe, "machine": machine})._repr_html_())  # noqa: S307 # code of ours
    except probe.InputError as error:
        return f"refused: {error}"
