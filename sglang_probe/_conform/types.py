"""What a comparison with SGLang's own code gives: counts, differences, what could not be compared. For every module beside it.

Invariant: a comparison that compared nothing is not a success; `ok` needs at least one answer and no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Result:
    """One comparison: `compared` answers of SGLang against ours, every difference in words (grouped), and what was left out."""

    name: str
    compared: int = 0
    differences: list[str] = field(default_factory=list)
    not_conformed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.compared > 0 and not self.differences

    def check(self, what: str, theirs: object, ours: object) -> None:
        """Compare one answer and keep the difference, if there is one."""
        self.compared += 1
        if theirs != ours:
            self.differences.append(f"{what}: SGLang {theirs!r}, here {ours!r}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "compared": self.compared,
            "differences": list(self.differences),
            "not_conformed": list(self.not_conformed),
        }


def merge(name: str, results: Iterable[Result]) -> Result:
    """Several comparisons as one."""
    total = Result(name)
    for part in results:
        total.compared += part.compared
        total.differences += part.differences
        total.not_conformed += [n for n in part.not_conformed if n not in total.not_conformed]
    return total


_TEXTS, _VALUES = 6, 4  # kinds of difference that one line tells, and values that it lists
_Row = tuple[Mapping[str, object], Mapping[str, object], str]
"""Set-up, point, what differs."""


class Grouping:
    """Differences of many cases of a gate, told once for each cause: the fact that the differing cases share, then what differs.

    A case is a set-up (facts) and a point in it (size, dtype, context). The fact that is named is the one whose cases differ most often,
    then the one that covers most of them; sizes and contexts come behind it.
    """

    def __init__(self, result: Result, defaults: Mapping[str, object]) -> None:
        self._result, self._defaults = result, defaults
        self._setups: set[tuple[tuple[str, object], ...]] = set()
        self._points: dict[str, set[object]] = {}
        self._rows: list[_Row] = []

    def check(self, kind: str, setup: Mapping[str, object], point: Mapping[str, object], theirs: object, ours: object) -> None:
        """Compare one answer and keep the difference, if there is one."""
        self._result.compared += 1
        self._setups.add(tuple(setup.items()))
        for name, value in point.items():
            self._points.setdefault(name, set()).add(value)
        if theirs != ours:
            self._rows.append((setup, point, f"{kind}: SGLang {theirs!r}, here {ours!r}"))

    def close(self) -> None:
        """Put the differences, grouped, into the result."""
        rows = self._rows
        while rows:
            cause = self._cause(rows)
            inside: list[_Row] = []
            outside: list[_Row] = []
            for row in rows:
                (inside if cause is None or self._value(row[0], cause[0]) == cause[1] else outside).append(row)
            self._result.differences.append(self._line(cause, inside))
            rows = outside

    def _value(self, setup: Mapping[str, object], name: str) -> object:
        return setup.get(name, self._defaults.get(name))

    def _cause(self, rows: Sequence[_Row]) -> tuple[str, object] | None:
        """The fact and value whose set-ups differ most often, and among those the one that covers most."""
        names = {name for setup in self._setups for name, _ in setup}
        asked = Counter((name, self._value(dict(setup), name)) for setup in self._setups for name in names)
        setups = {tuple(setup.items()) for setup, _, _ in rows}
        differing = Counter((name, self._value(dict(setup), name)) for setup in setups for name in names)
        telling = [pair for pair in differing if asked[pair] < len(self._setups)]
        return max(telling, key=lambda p: (differing[p] / asked[p], differing[p], p[1] != self._defaults.get(p[0])), default=None)

    def _line(self, cause: tuple[str, object] | None, rows: Sequence[_Row]) -> str:
        terms = [] if cause is None else [f"{cause[0]}={cause[1]}"]
        for name in dict.fromkeys(name for setup, _, _ in rows for name in setup):
            values = {self._value(setup, name) for setup, _, _ in rows}
            if len(values) == 1 and values != {self._defaults.get(name)} and (cause is None or name != cause[0]):
                terms.append(f"{name}={values.pop()}")
        texts: dict[str, list[Mapping[str, object]]] = {}
        for _, point, text in rows:
            texts.setdefault(text, []).append(point)
        told = "; ".join(f"{text}{self._where(points)}" for text, points in list(texts.items())[:_TEXTS])
        more = f"; and {len(texts) - _TEXTS} more kinds" if len(texts) > _TEXTS else ""
        where = f" where {' and '.join(terms)}" if terms else ""
        return f"{len(rows)} case{'s' * (len(rows) > 1)}{where}: {told}{more}"

    def _where(self, points: Sequence[Mapping[str, object]]) -> str:
        terms = []
        for name, every in self._points.items():
            values = {point[name] for point in points if name in point}
            if not values or values == every:
                continue
            if len(values) > _VALUES and all(isinstance(value, int) for value in values):
                terms.append(f"{name} {min(values, key=_number)} to {max(values, key=_number)}")
            else:
                terms.append(_term(name, sorted(values, key=str)))
        return f" ({', '.join(terms)})" if terms else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def group_cases(cases: Sequence[tuple[Mapping[str, object], str]], domain: Mapping[str, Sequence[object]]) -> list[str]:
    """Differences as conjunctions: cases are (conditions, "SGLang x, here y"); `domain` holds every value of each condition.

    Cases of the same text become one line that names each condition which does not take all its values there:
    ``648 cases: SGLang ..., here ... where custom in (absent, disabled) and piecewise=True``.
    """
    texts: dict[str, list[Mapping[str, object]]] = {}
    for conditions, text in cases:
        texts.setdefault(text, []).append(conditions)
    return [line for text, rows in texts.items() for line in _conjunctions(text, rows, domain)]


def _conjunctions(text: str, rows: list[Mapping[str, object]], domain: Mapping[str, Sequence[object]]) -> list[str]:
    """Exact boxes that cover the rows: split on the condition that divides them best until a box is full."""
    seen = {name: sorted({row[name] for row in rows}, key=list(values).index) for name, values in domain.items()}
    box = 1
    for values in seen.values():
        box *= len(values)
    if box == len(rows):
        where = " and ".join(_term(n, v) for n, v in seen.items() if len(v) < len(domain[n]))
        return [f"{len(rows)} case{'s' * (len(rows) > 1)}: {text}" + (f" where {where}" if where else "")]
    # The most uneven condition is the one that the difference depends on.
    counts = {n: Counter(row[n] for row in rows) for n, v in seen.items() if len(v) > 1}
    name = max(counts, key=lambda n: max(counts[n].values()) / min(counts[n].values()))
    sizes: dict[int, list[object]] = {}
    for value, count in counts[name].items():
        sizes.setdefault(count, []).append(value)
    parts = list(sizes.values()) if len(sizes) > 1 else [[v] for v in counts[name]]
    lines: list[str] = []
    for part in parts:
        lines += _conjunctions(text, [row for row in rows if row[name] in part], domain)
    return lines


def _term(name: str, values: Sequence[object]) -> str:
    return f"{name}={values[0]}" if len(values) == 1 else f"{name} in ({', '.join(map(str, values))})"
