"""How a path looks in a picture of sizes: its colour, hatch and ink; ranges of sizes, painted; the legend.

Called by figures.py, strips.py and recorded.py.

matplotlib is loaded where it is used. Invariant: a path's colour is the same in every picture and theme, and what stands on it reads on
it; no path is told by colour alone: its name is in the legend, its kernel on it, and the fallbacks are hatched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._types import FrozenMap, Path
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._bands import Band
    from .._proof.looks import Route
    from .._report.theme import Theme

# Colours of Okabe and Ito, told apart with every kind of colour vision; fallbacks are greys and vermilion, and hatches help in print.
STYLES: Mapping[Path, tuple[str, str]] = FrozenMap(
    {
        Path.CUSTOM: ("#0072B2", ""),
        Path.QUICK: ("#E69F00", ""),
        Path.MSCCLPP: ("#CC79A7", ""),
        Path.TORCH_SYMM_MEM: ("#009E73", ""),
        Path.FLASHINFER: ("#56B4E9", ""),
        Path.PCIE_IPC: ("#F0E442", ""),
        Path.CPU_SHM: ("#332288", ""),
        Path.PYNCCL_IN_PLACE: ("#BBBBBB", ""),
        Path.PYNCCL_OUT_OF_PLACE: ("#777777", "//"),
        Path.TORCH_DISTRIBUTED: ("#D55E00", "\\\\"),
        Path.RAISES: ("#000000", "xx"),
        Path.NONE: ("#FFFFFF", ""),
    }
)
CAPTION = "routing of SGLang's code as modelled, no measurement"
LOWEST, HIGHEST = 1 << 10, 1 << 30
"""Bytes that an axis shows."""
_DARK = frozenset({Path.CUSTOM, Path.CPU_SHM, Path.RAISES})
_LOST = ("lost", "not reduced")


class Span(NamedTuple):
    """Sizes that go one way."""

    first_bytes: int
    last_bytes: int
    path: Path
    name: str
    """The kernel, or the backend of a custom one."""
    lost: bool
    """Nothing is reduced."""


def spans_of_bands(bands: Iterable[Band]) -> list[Span]:
    """Of a group's bands; neighbours that look alike are one."""
    return _merged(
        Span(
            band.first_bytes,
            band.last_bytes,
            band.path,
            _name(band.path, band.decision.kernel, band.decision.backend),
            not band.decision.reduces and band.path not in (Path.RAISES, Path.NONE),
        )
        for band in bands
    )


def spans_of_routes(routes: Iterable[Route]) -> list[Span]:
    """Of a look at every size."""
    return _merged(
        Span(
            route.first_bytes,
            route.last_bytes,
            Path(route.outcome.path),
            _name(Path(route.outcome.path), route.outcome.kernel, route.outcome.backend),
            route.outcome.result in _LOST,
        )
        for route in routes
    )


def _name(path: Path, kernel: str, backend: str) -> str:
    return kernel or (backend if path is Path.CUSTOM else "")


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1][2:] == span[2:] and merged[-1].last_bytes + 1 == span.first_bytes:
            merged[-1] = span._replace(first_bytes=merged[-1].first_bytes)
        else:
            merged.append(span)
    return merged


def ink_on(path: Path) -> str:
    """What reads on its colour."""
    return "white" if path in _DARK else "black"


# ----------------------------------------------------------------------------------------------------------------------- painting


def paint(axes: Any, spans: Sequence[Span], at: float, theme: Theme, *, across: bool, marked: int = 0) -> set[Path]:
    """The ranges as one bar of width 0.92 at `at`: bytes go up, or ``across``. Gives the paths that are there.

    ``marked``: a size at which the caller writes something; names make room for it.
    """
    seen: set[Path] = set()
    for i, span in enumerate(spans):
        low, high = max(span.first_bytes - 1, LOWEST), min(span.last_bytes, HIGHEST)
        if low >= high:
            continue
        seen.add(span.path)
        _fill(axes, span, at, (low, high), theme, across)
        _write_name(axes, span, at, (low, high), across, marked)
        after = spans[i + 1] if i + 1 < len(spans) else None
        narrow = high / low < 8 if across else after and after.path is span.path
        if after and not narrow and span.last_bytes < HIGHEST:
            _write_limit(axes, span, at, across)
    return seen


def _fill(axes: Any, span: Span, at: float, ends: tuple[int, int], theme: Theme, across: bool) -> None:
    colour, hatch = STYLES[span.path]
    low, high = ends
    bar = axes.barh if across else axes.bar
    place = {"height": 0.92, "left": low} if across else {"width": 0.92, "bottom": low}
    outline = theme.faint if colour in ("#FFFFFF", "#000000") else "none"
    bar(at, high - low, **place, color=colour, edgecolor=outline, linewidth=0.7)
    if hatch or span.lost:
        bar(at, high - low, **place, color="none", edgecolor=ink_on(span.path), hatch="xx" if span.lost else hatch, linewidth=0)
    if low > LOWEST:  # what parts two kernels of one path, on every ground
        (axes.vlines if across else axes.hlines)(low, at - 0.46, at + 0.46, colors="white", linewidth=1.0)


def _write_name(axes: Any, span: Span, at: float, ends: tuple[int, int], across: bool, marked: int) -> None:
    """The kernel (along a strip the path too), in the larger part of the range that the marked size leaves."""
    low, high = ends
    beside = _BESIDE[across]
    if low < marked < high:
        low, high = (low, int(marked / beside)) if marked / low > high / marked else (int(marked * beside), high)
    kernel = span.name.replace("_shot", "-shot").replace("_", "\n")
    both = "\n".join(filter(None, (str(span.path), kernel.replace("\n", " "))))
    text = next((text for text in ((both, kernel) if across else (kernel,)) if text and _fits(text, low, high, across)), "")
    if not text:
        return
    middle = (low * high) ** 0.5
    where = (middle, at + 0.1) if across else (at, middle)
    size = 7.5 if across else 7
    axes.text(*where, text, ha="center", va="center", fontsize=size, color=ink_on(span.path), linespacing=1.2, **_behind(span))


def _fits(text: str, low: int, high: int, across: bool) -> bool:
    """Along a strip a doubling of the size has room for some five letters."""
    return low < high and high / low >= 2 and (not across or math.log2(high / low) >= max(map(len, text.split("\n"))) / 5.4)


_BESIDE = {False: 2.4, True: 1.25}
"""As ratios of sizes: what a mark takes to each side."""


def _write_limit(axes: Any, span: Span, at: float, across: bool) -> None:
    """The last size, exact, at its edge: two limits that differ in one tensor look the same otherwise."""
    last = span.last_bytes // 16 * 16
    where, side, level = ((last / 1.06, at - 0.43), "right", "bottom") if across else ((at, last / 1.1), "center", "top")
    look = {"ha": side, "va": level, "fontsize": 6.5, "fontweight": "bold", "color": ink_on(span.path)}
    axes.text(*where, human_bytes(last), **look, **_behind(span))


def _behind(span: Span) -> dict[str, Any]:
    """On a hatch letters need a ground of their own."""
    colour, hatch = STYLES[span.path]
    return {"bbox": {"boxstyle": "square,pad=0.3", "facecolor": colour, "edgecolor": "none"}} if hatch or span.lost else {}


def legend(figure: Any, seen: Iterable[Path], theme: Theme, more: Sequence[Any] = (), ncols: int = 4) -> None:
    """The paths that are there, and that nothing was measured."""
    from matplotlib.patches import Patch

    there = set(seen)
    handles = []
    for path in (path for path in STYLES if path in there):
        colour, hatch = STYLES[path]
        handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor=ink_on(path) if hatch else theme.faint, label=str(path)))
    drawn = figure.legend(handles=[*handles, *more], loc="outside lower left", ncols=ncols, frameon=False, title=CAPTION)
    drawn._legend_box.align = "left"


def palette() -> tuple[str, ...]:
    """Colours beside the theme's, for a PNG of few colours."""
    return (*(colour for colour, _ in STYLES.values()), "#FFFFFF", "#000000")
