"""A matplotlib Figure as an inline SVG element: it takes the page's colours, refers to nothing outside, and can be read aloud.

Called by picture.py.
Invariant: only elements and attributes that draw are left; every identity in it begins with the caller's word, so that two pictures in one
page never meet.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from .elements import Element, el
from .theme import PAGE

INKS = {PAGE.ink: "currentColor", PAGE.faint: f"var(--sp-faint,{PAGE.faint})"}
VARIABLES = INKS | {
    PAGE.a: f"var(--sp-a,{PAGE.a})",
    PAGE.b: f"var(--sp-b,{PAGE.b})",
    PAGE.margin: f"var(--sp-margin,{PAGE.margin})",
    PAGE.waiting: f"var(--sp-waiting,{PAGE.waiting})",
}
"""Outside of our own page, as in a notebook, no variable is set, and these colours read on light and on dark grounds."""
_DRAWS = frozenset({"svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect", "pattern"})
_LINK = re.compile(r"url\(#([^)]*)\)")
_FONT = re.compile(r"'DejaVu Sans'[^;]*sans-serif")


def to_element(figure: Any, alt: str, identity: str, variables: Mapping[str, str] = VARIABLES) -> Element:
    """The figure drawn; `alt` is what one hears in place of it, `variables` the colours that are the page's."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = _clean(ET.fromstring(drawn.getvalue()), identity, variables)
    used = {*_references(root, identity)}
    for element in root.iter():
        if element.get("id") and element.get("id") not in used:
            del element.attrib["id"]
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    # Joins and caps are what matplotlib sets for all of its SVG in a style sheet, which would be the whole page's here.
    root.attrib |= {"role": "img", "aria-labelledby": f"{identity}-title {identity}-desc", "class": "sp-picture"}
    root.set("style", "max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt")
    title, _, rest = alt.partition(". ")
    root[:0] = [el("title", title, id=f"{identity}-title"), el("desc", rest or title, id=f"{identity}-desc")]
    return root


def _clean(element: Element, identity: str, variables: Mapping[str, str]) -> Element:
    """The element with those of its children that draw, without name spaces."""
    found = Element(element.tag.rpartition("}")[2])
    found.text, found.tail = element.text, element.tail
    for name, value in element.attrib.items():
        name = name.rpartition("}")[2]
        if name == "id":
            value = f"{identity}-{value}"
        elif name == "href":
            if not value.startswith("#"):
                continue
            value = f"#{identity}-{value[1:]}"
        value = _LINK.sub(rf"url(#{identity}-\1)", value)
        value = re.sub("|".join(variables), lambda colour: variables[colour[0]], value)
        found.set(name, _FONT.sub("sans-serif", value))
    found[:] = [_clean(child, identity, variables) for child in element if child.tag.rpartition("}")[2] in _DRAWS]
    return found


def _references(root: Element, identity: str) -> list[str]:
    """The identities that something in the picture points to."""
    found = []
    for element in root.iter():
        for value in element.attrib.values():
            found += _LINK.findall(value)
            if value.startswith(f"#{identity}-"):
                found.append(value[1:])
    return found
