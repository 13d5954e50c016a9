"""HTML as a tree of the standard library's elements: the one place where text becomes markup. Called by hypertext.py and svg.py.

Invariant: no text is ever put into markup by hand. Whatever a caller gives as text is text in the page: ElementTree writes `<`, `>` and `&`
of texts and `"` of attributes as entities, and what could steer a reader is spelt out before.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

from .text import shown

Element = ET.Element
Child = ET.Element | str | None


def el(tag: str, *children: Child, **attributes: str | None) -> Element:
    """An element. Children are elements and texts, None is nothing; attributes: ``class_`` is class, ``aria_label`` is aria-label."""
    found = {name.rstrip("_").replace("_", "-"): shown(value) for name, value in attributes.items() if value is not None}
    element = Element(tag, found)
    for child in children:
        if child is not None:
            add(element, child)
    return element


def add(parent: Element, child: Element | str) -> None:
    """One more child, at the end."""
    if not isinstance(child, str):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + shown(child)
    else:
        parent.text = (parent.text or "") + shown(child)


def style_sheet(css: str) -> Element:
    """Our own style: written as it is, so it must not hold what would end it."""
    if "<" in css:
        raise ValueError("a style sheet holds '<'")
    element = Element("style")
    element.text = css
    return element


def data_block(identity: str, data: Any) -> Element:
    """JSON that a browser neither runs nor shows: plain ASCII without `<`, `>` and `&`, so that no text can end it, or open a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\x7f":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    element = Element("script", {"type": "application/json", "id": identity})
    element.text = text
    return element


def markup(element: Element) -> str:
    """The HTML of an element and all in it."""
    return ET.tostring(element, encoding="unicode", method="html")
