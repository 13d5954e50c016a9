"""A result's picture as a matplotlib Figure, and as SVG for a page. Called by __init__.py and hypertext.py.

Invariant: nothing global of matplotlib is left changed; the same result gives the same picture.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .._types import InputError
from .elements import Element
from .nouns import Picture, Sheet
from .theme import PAGE, Theme, settings, themed


def figure_of(sheet: Sheet, dark: bool) -> Any:
    """A Figure for the caller to show or save. Raises ProbeUnavailable without matplotlib, InputError where nothing can be drawn."""
    if sheet.picture is None:
        raise InputError("result", sheet.kind, "it has neither samples nor bounds to draw")
    return themed(partial(_draw, sheet.picture), dark)


def svg_of(picture: Picture, identity: str) -> Element:
    """The picture as an element of a page, in the page's own colours. `identity`: a word that tells it from other pictures there."""
    from .svg import INKS, VARIABLES, to_element

    # A path has its own colour on every ground: only what lies on the page's is the page's.
    variables = VARIABLES if picture.draw is None else INKS
    with settings(PAGE):
        return to_element(_draw(picture, PAGE), picture.alt, identity, variables)


def _draw(picture: Picture, theme: Theme) -> Any:
    from .arms import arms_figure
    from .bars import bars_figure

    if picture.draw is not None:
        return picture.draw(theme)
    return arms_figure(picture, theme) if picture.arms else bars_figure(picture, theme)
