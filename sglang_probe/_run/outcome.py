"""Outcome: what one call of a LocalGroup did on every rank: path, result, times. Made by local_group.py; shown in terminals and notebooks.

Invariant: ``correct`` is False as soon as one rank's numbers, returned buffer or path are not what that release has; a wrong result has
no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._decision import Decision
from .._show.page import Block, Line, Table, items, to_html, to_text
from .._show.sizes import human_bytes
from .._types import Path
from .rows import Row, Samples, by_kernel


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """One call on every rank. ``print(outcome)`` is the table over ranks."""

    decision: Decision
    """Rank 0's, with its reasons."""
    device: Literal["host", "gpu"]
    context: str
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[Row, ...]

    # What ran: rank 0 speaks for all, and ``agree`` says whether it may.

    @property
    def path(self) -> Path:
        return self.rows[0].path

    @property
    def rule(self) -> str:
        return self.rows[0].rule

    @property
    def kernel(self) -> str:
        return self.rows[0].kernel

    @property
    def returned(self) -> Literal["input", "new"]:
        return self.rows[0].returned

    @property
    def sglang(self) -> str:
        return self.decision.sglang

    @property
    def world_size(self) -> int:
        return len(self.rows)

    @property
    def agree(self) -> bool:
        """Every rank took the same path by the same rule and kernel, and got the same buffer back."""
        return len({(row.path, row.rule, row.kernel, row.returned) for row in self.rows}) == 1

    @property
    def reduced(self) -> bool:
        """Whether this call sums at all: not in a dry warm-up, not where the release loses the result, not in a group of one."""
        return self.decision.reduces

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """Everything that is not as it must be; empty where all is."""
        found = [] if self.agree else [f"RANKS DISAGREE: {self._disagreement()}"]
        for row in self.rows:
            where = f"rank {row.rank}"
            if not row.verdict.correct:
                found.append(f"{where}: {row.verdict}")
            if self.decision.returns not in (None, row.returned):
                found.append(
                    f"{where}: the {row.returned} tensor came back, and {self.sglang} gives the {self.decision.returns} one"
                )
            if not row.kept:
                found.append(f"{where}: a new tensor came back, and yet the input was changed")
        return tuple(found)

    def _disagreement(self) -> str:
        return "; ".join(
            f"rank {r.rank} took {r.path}{by_kernel(r.kernel)} by rule {r.rule}, {r.returned} tensor" for r in self.rows
        )

    @property
    def correct(self) -> bool:
        """Every rank has what this release leaves there: the sum; without one (``reduced`` is False) its zeros, or the input untouched."""
        return not self.wrong

    @property
    def bit_equal(self) -> bool:
        """All ranks have the same bits, in every checked call."""
        return len({row.digest for row in self.rows}) == 1

    @property
    def checked(self) -> int:
        """Results that were compared with the reference, a rank."""
        return min(row.checked for row in self.rows)

    @property
    def max_error(self) -> float:
        """Largest difference from the float64 reference, over ranks."""
        return max(row.verdict.max_error for row in self.rows)

    @property
    def tolerance(self) -> float:
        """What the element nearest to its limit was allowed; 0 where only exact sums were checked."""
        return max(row.verdict.tolerance for row in self.rows)

    # Times: medians by rank, NaN where nothing was timed.

    @property
    def host_us(self) -> NDArray[np.float64]:
        """Host time of a call on each rank, median."""
        return np.array([_median(row.host_us) for row in self.rows])

    @property
    def device_us(self) -> NDArray[np.float64]:
        """Device time of a call (captured: of a replay) on each rank, median."""
        return np.array([_median(row.device_us) for row in self.rows])

    @property
    def host_us_max(self) -> float:
        return float(self.host_us.max())

    @property
    def device_us_max(self) -> float:
        return float(self.device_us.max())

    def with_times(self, samples: Sequence[tuple[Samples, Samples]]) -> Outcome:
        """This outcome with (host, device) microseconds of each rank's timed calls."""
        rows = (replace(row, host_us=host, device_us=device) for row, (host, device) in zip(self.rows, samples, strict=True))
        return replace(self, rows=tuple(rows))

    # ------------------------------------------------------------------------------------------------------------------- shown

    @property
    def _ranks(self) -> str:
        return f"{self.world_size} {'GPU' if self.device == 'gpu' else 'CPU'} rank{'s' if self.world_size > 1 else ''}"

    @property
    def _times(self) -> str:
        told = [
            f"{_us(value)} us {name}"
            for name, value in (("device", self.device_us_max), ("host", self.host_us_max))
            if not np.isnan(value)
        ]
        return f"{' / '.join(told)} (max of {self._ranks})" if told else self._ranks

    @property
    def _result(self) -> str:
        if not self.correct:
            return "WRONG"
        return "correct" if self.reduced else "NOT REDUCED, as that release has it" if self.path != "none" else "untouched"

    def _answer(self) -> str:
        buffer = "in place" if self.returned == "input" else "new tensor"
        return f"{self.path}{by_kernel(self.kernel)} by rule {self.rule}, {buffer}, {self._result}, {self._times}"

    def _asked(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"SGLang {self.sglang}, {self.context}, {human_bytes(self.nbytes)} of {self.dtype} ({shape})"

    def page(self) -> list[Block]:
        """What people see: the answer, what is wrong, a row for each rank."""
        blocks: list[Block] = [Line(self._answer(), "answer"), Line(self._asked(), "dim")]
        blocks += items("WRONG, and therefore not timed", self.wrong, "warn")
        rows = tuple(
            (
                str(r.rank),
                f"{r.path}{by_kernel(r.kernel)}",
                r.returned,
                str(r.verdict) if not r.verdict.correct else "correct",
                f"{r.verdict.max_error:.3g}",
                _time(r.host_us),
                _time(r.device_us),
            )
            for r in self.rows
        )
        columns = ("rank", "path", "returned", "result", "largest error", "host us", "device us")
        blocks.append(Table("", columns, rows, frozenset({"rank", "largest error", "host us", "device us"}), "path"))
        blocks.append(Line(self._evidence(), "dim"))
        return blocks

    def _evidence(self) -> str:
        kinds = " and ".join(self.rows[0].kinds)
        bits = "same" if self.bit_equal else "different"
        against = f"{self.checked} results a rank checked ({kinds} inputs, float64 reference), {bits} bits on all ranks"
        timed = len(self.rows[0].device_us) or len(self.rows[0].host_us)
        clock = "of this machine's CPU" if self.device == "host" else "of these GPUs"
        return f"{against}; times {clock}, medians of {timed} calls on zeros" if timed else against

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Outcome: {self._answer()} [{self._asked()}]>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times in microseconds, None where nothing was timed."""
        return {
            "path": str(self.path),
            "rule": self.rule,
            "kernel": self.kernel,
            "returned": self.returned,
            "reduced": self.reduced,
            "correct": self.correct,
            "wrong": list(self.wrong),
            "agree": self.agree,
            "bit_equal": self.bit_equal,
            "max_error": self.max_error,
            "tolerance": self.tolerance,
            "checked": self.checked,
            "device": self.device,
            "sglang": self.sglang,
            "context": self.context,
            "nbytes": self.nbytes,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "world_size": self.world_size,
            "host_us": [_plain(x) for x in self.host_us],
            "device_us": [_plain(x) for x in self.device_us],
            "ranks": [
                {
                    "rank": r.rank,
                    "path": str(r.path),
                    "returned": r.returned,
                    "correct": r.verdict.correct,
                    "max_error": _plain(r.verdict.max_error),
                    "host_us": r.host_us.tolist(),
                    "device_us": r.device_us.tolist(),
                }
                for r in self.rows
            ],
            "decision": self.decision.to_dict(),
        }


def _median(samples: Samples) -> float:
    return float(np.median(samples)) if len(samples) else float("nan")


def _time(samples: Samples) -> str:
    return _us(_median(samples)) if len(samples) else "-"


def _us(value: float) -> str:
    """Three digits that count: 0.451, 3.23, 879, 21,800."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
