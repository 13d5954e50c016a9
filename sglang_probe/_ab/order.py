"""The order of runs: blocks of one run an arm, balanced and drawn at random. Read by experiment.py.

Of every four blocks two begin with a and two with b; which ones is drawn. So what comes first in a block is as often a as b, and what goes
up and down with the time of day, or with the run before, falls on both. Invariant: the order of a block depends on the seed and on its
number alone, so that a continued experiment has the order that it would have had.
"""

from __future__ import annotations

import random
from typing import Literal

Arm = Literal["a", "b"]
_GROUP = 4


def order_of(block: int, seed: int) -> tuple[Arm, Arm]:
    """Which arm of this block, from 0, comes first and second."""
    first = ["a", "b"] * (_GROUP // 2)
    random.Random(f"sglang_probe ab {seed} {block // _GROUP}").shuffle(first)
    return ("a", "b") if first[block % _GROUP] == "a" else ("b", "a")
