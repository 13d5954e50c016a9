"""Drawn: a matplotlib Figure that a notebook shows by itself, with words for who cannot see it. Made by what draws in this folder.

The one module here that loads matplotlib at its top: it is imported only where something is drawn.
Invariant: no pyplot, so that neither the caller's figures nor his settings are touched, and nothing has to be closed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from .._report.theme import Theme

_STEPS = 8
"""From the ground to an ink, as the edges of letters and lines have them."""


class Drawn(Figure):  # type: ignore[misc, unused-ignore] # matplotlib need not be there for the type checker
    """A matplotlib Figure: `savefig` and all else as ever."""

    alt: str = ""
    """What one hears in place of the picture."""
    palette: tuple[int, ...] = ()

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        """A PNG of few colours, so that a notebook stays small, and its words beside it."""
        from PIL import Image  # matplotlib depends on it

        drawn, small = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png")
        image, colours = Image.open(drawn).convert("RGB"), Image.new("P", (1, 1))
        colours.putpalette(self.palette)
        image.quantize(palette=colours, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        return small.getvalue(), {"alt": self.alt}


def new_drawn(width_in: float, height_in: float, alt: str, theme: Theme, colours: Sequence[str] = ()) -> Drawn:
    """Under the `settings` of the theme. ``colours``: those that are drawn beside the theme's; 20 at most."""
    figure = Drawn(figsize=(width_in, height_in), dpi=90, layout="constrained")
    figure.alt, figure.palette = alt, _palette(theme, colours)
    return figure


def _palette(theme: Theme, more: Sequence[str]) -> tuple[int, ...]:
    """Each ink as it is: a palette that is found by counting would give a thin line its neighbour's colour."""
    if theme.ground == "none":  # what becomes SVG is no PNG
        return ()
    ground = to_rgb(theme.ground)
    inks = [to_rgb(ink) for ink in (theme.ink, theme.faint, theme.a, theme.b, theme.margin, theme.waiting, *more)]
    shares = [step / _STEPS for step in range(1, _STEPS + 1)]
    colours = [
        ground,
        *(tuple(g + (i - g) * share for g, i in zip(ground, ink, strict=True)) for ink in inks for share in shares),
    ]
    return tuple(round(255 * part) for colour in colours for part in colour)
