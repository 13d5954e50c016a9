"""Colours of the pictures, and a matplotlib Figure under settings of our own. Called by whatever draws, here and in _show/.

matplotlib is loaded where it is used. Neither pyplot nor a figure of the caller's is touched; its settings, which are global, are put back.
Invariant: no meaning stands in a colour alone: arms have marks of their own, and lines have words.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .._types import ProbeUnavailable
from .text import shown

HOW_TO_INSTALL = "pip install 'sglang_probe[report]'"


@dataclass(frozen=True)
class Theme:
    """Colours of Okabe and Ito, told apart with every kind of colour vision; each has 3:1 or more against its ground."""

    ground: str
    ink: str
    faint: str
    a: str
    b: str
    margin: str
    waiting: str

    def arm(self, place: int) -> str:
        return (self.a, self.b)[place % 2]


LIGHT = Theme(ground="#ffffff", ink="#222222", faint="#8a8a8a", a="#0072b2", b="#d55e00", margin="#009e73", waiting="#cc79a7")
DARK = Theme(ground="#15181c", ink="#e6e6e6", faint="#8b8f94", a="#56b4e9", b="#e69f00", margin="#00b386", waiting="#dd9cc0")
PAGE = Theme(ground="none", ink=LIGHT.ink, faint=LIGHT.faint, a=LIGHT.a, b=LIGHT.b, margin=LIGHT.margin, waiting=LIGHT.waiting)
"""What becomes SVG, where each colour is a variable of the page's (see svg.py)."""
MARKS = ("o", "D")
LEAST_CONTRAST = 3.0
"""Of what is drawn, against its ground: WCAG 2.1, 1.4.11."""

_SETTINGS: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "legend.fontsize": 8.0,
    "legend.title_fontsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "sglang_probe",
}


def contrast(one: str, other: str) -> float:
    """Of two colours ("#rrggbb") by WCAG 2: from 1, the same, to 21, black on white."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@contextlib.contextmanager
def settings(theme: Theme) -> Iterator[None]:
    """Within: matplotlib as it comes, with our fonts and the theme's ink, whatever this process or its user has set. Then as it was."""
    try:
        import matplotlib
    except ImportError:
        raise ProbeUnavailable(f"no matplotlib here: {HOW_TO_INSTALL}") from None
    inks = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color")
    grounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A label may have signs that the font lacks: a browser has another font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update(_SETTINGS | dict.fromkeys(inks, theme.ink) | dict.fromkeys(grounds, theme.ground))
        yield


def themed(draw: Callable[[Theme], Any], dark: bool) -> Any:
    """What `draw` makes of a theme, under its settings. Raises ProbeUnavailable without matplotlib."""
    theme = DARK if dark else LIGHT
    with settings(theme):
        return draw(theme)


def new_figure(width_in: float, height_in: float) -> Any:
    """A Figure that no pyplot knows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), dpi=100, layout="constrained")


def label(text: str, most: int = 60) -> str:
    """A caller's text as matplotlib shows it: short, and no formula; what it leaves out is in the middle, since both ends tell."""
    text = shown(text)
    if len(text) > most:
        head = (most - 5) * 2 // 3
        text = f"{text[:head].rstrip()} ... {text[len(text) - (most - 5 - head) :].lstrip()}"
    return text.replace("$", r"\$")
