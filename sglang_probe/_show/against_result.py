"""Against: what a comparison of two ways of a call gives: rows of figures, a sentence a line, a page.

Made by against.py, drawn by against_figure.py.
Invariant: a ratio stands with its interval or with the word that it has none; a sentence says how many sizes chance alone would tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .._measure.summary import Spread
from .page import Block, Line, Table, items, to_html, to_text
from .sized import CLOCKS
from .sizes import human_bytes

What = Literal["buffers", "patterns", "drivers"]


@dataclass(frozen=True)
class Ratio:
    """b / a over process sets."""

    times: float
    """The geometric mean."""
    low: float | None
    high: float | None
    """Its 95 % t interval, taken of logarithms; None of a single process set."""
    by_process: tuple[float, ...]

    @property
    def side(self) -> int:
        """1 where the interval lies above 1, -1 where below, 0 where it holds 1 or there is none."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > 1) - (self.high < 1)


@dataclass(frozen=True)
class Row:
    """One size of one call on one clock."""

    target: str
    phase: str
    clock: str
    nbytes: int
    a: Spread
    b: Spread
    ratio: Ratio | None
    """None where no process set has a time above 0 of both."""


@dataclass(frozen=True, repr=False)
class Against:
    """What `against` gives: rows of figures, and what they come to in a sentence each for eager and captured calls."""

    what: What
    names: tuple[str, str]
    """The two ways."""
    rows: tuple[Row, ...]
    told: tuple[str, ...]
    """Whose numbers these are, and what to beware of."""
    conditions: str
    others: tuple[str, ...] = ()
    """Targets that were measured both ways too; ``targets`` chooses them."""

    @property
    def lines(self) -> dict[tuple[str, str, str], list[Row]]:
        """(target, clock, phase) -> rows by size."""
        found: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            found.setdefault((row.target, row.clock, row.phase), []).append(row)
        return found

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each line of the picture."""
        return tuple(_sentence(self.names, key, rows) for key, rows in self.lines.items())

    def picture(self, *, dark: bool = False) -> Any:
        """A matplotlib Figure. Raises ProbeUnavailable without matplotlib."""
        from .against_figure import draw

        return draw(self, dark)

    def page(self) -> list[Block]:
        """What people see."""
        a, b = self.names
        rows = tuple(_cells(row) for row in self.rows)
        columns = ("path", "clock", "phase", "size", f"{a}, us", f"{b}, us", "ratio", "95 %")
        blocks: list[Block] = [Line(f"{b} against {a}", "answer"), *(Line(text, "dim") for text in self.told)]
        blocks += items("", self.sentences)
        blocks += [Line(f"measured both ways too: {', '.join(self.others)}", "dim")] if self.others else []
        blocks.append(Table("", columns, rows, frozenset({"size", columns[4], columns[5], "ratio", "95 %"}), "ratio"))
        return [*blocks, Line(f"{self.conditions}; us a call: median [least, most] over process sets; {_RATIO}", "dim")]

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Against: {'; '.join(self.sentences)}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [
            {name: getattr(row, name) for name in ("target", "phase", "clock", "nbytes")}
            | {name: getattr(row, name)._asdict() for name in ("a", "b")}
            | {"ratio": _plain(row.ratio)}
            for row in self.rows
        ]
        return {
            "what": self.what,
            "a": self.names[0],
            "b": self.names[1],
            "told": [*self.told],
            "conditions": self.conditions,
            "rows": rows,
        }


_RATIO = "ratio: the second by the first within each process set, its geometric mean and 95 % t interval, each size by itself"


# --------------------------------------------------------------------------------------------------------------------- words


def _sentence(names: tuple[str, str], key: tuple[str, str, str], rows: Sequence[Row]) -> str:
    """``pynccl, device, captured: out of place takes 0.98 (64 KiB) to 1.06 (16 MiB) times as long as in place``, and how sure that is."""
    target, clock, phase = key
    known = [(row.ratio, row.nbytes) for row in rows if row.ratio is not None]
    head = f"{target}, {CLOCKS[clock]}, {phase}: {names[1]} "
    if not known:
        return f"{head}and {names[0]} have no times to compare"
    least, most = min(known, key=lambda one: one[0].times), max(known, key=lambda one: one[0].times)
    span = f"{_times(least[0].times)} ({human_bytes(least[1])})"
    if least is not most:
        span += f" to {_times(most[0].times)} ({human_bytes(most[1])})"
    return f"{head}takes {span} times as long as {names[0]}; {_sureness([ratio for ratio, _ in known])}"


def _sureness(ratios: Sequence[Ratio]) -> str:
    judged = [ratio for ratio in ratios if ratio.low is not None]
    if not judged:
        return "one process set, so nothing tells this from chance"
    above, below = sum(ratio.side > 0 for ratio in judged), sum(ratio.side < 0 for ratio in judged)
    chance = 0.05 * len(judged)
    return (
        f"of {len(judged)} size{'s' * (len(judged) > 1)}, {above} longer and {below} shorter by 95 % intervals, "
        f"where chance alone would give about {chance:.2g}"
    )


def _cells(row: Row) -> tuple[str, ...]:
    figures = (_spread(row.a), _spread(row.b))
    return (row.target, CLOCKS[row.clock], row.phase, human_bytes(row.nbytes), *figures, *_ratio_cells(row.ratio))


def _ratio_cells(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return "-", "-"
    known = ratio.low is not None and ratio.high is not None
    return _times(ratio.times), f"[{_times(ratio.low)}, {_times(ratio.high)}]" if known else "one set"


def _times(value: float | None) -> str:
    """Three decimals about 1, where they tell a gain from a loss."""
    if value is None:
        return "-"
    if not 1e-3 <= value <= 1e3:
        return "under 0.001" if value < 1 else "over 1,000"
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def _spread(spread: Spread) -> str:
    if not spread.processes:
        return "-"
    ends = f" [{_us(spread.low)}, {_us(spread.high)}]" if spread.processes > 1 else ""
    return f"{_us(spread.median)}{ends}"


def _us(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _plain(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    ends = {name: None if (end := getattr(ratio, name)) is None or math.isinf(end) else end for name in ("low", "high")}
    return {"times": ratio.times, **ends, "by_process": [*ratio.by_process]}
