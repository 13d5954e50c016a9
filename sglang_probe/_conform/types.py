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
