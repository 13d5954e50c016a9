"""What a LocalGroup checks results with: inputs whose sums are exact, tolerances for any order, and nothing that passes for a sum.

The oracle is NumPy's float64, and ml_dtypes' bfloat16 where it is installed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe._run import inputs
from sglang_probe._run.inputs import ELEMENTS, KINDS, Kind, Verdict, check, decode, encode, make, poison, worse
from sglang_probe._types import InputError

CASES = [(dtype, kind, ranks) for dtype in ELEMENTS for kind in KINDS for ranks in (1, 2, 16)]
COUNT, SEED = 3001, 7


def of_ranks(dtype: str, kind: Kind, ranks: int, count: int = COUNT) -> list[Any]:
    return [make(dtype, kind, SEED, rank, count) for rank in range(ranks)]


@pytest.mark.parametrize(("dtype", "kind", "ranks"), CASES)
def test_a_sum_is_right_in_whatever_order_and_with_whatever_rounding(dtype: str, kind: Kind, ranks: int) -> None:
    mine = of_ranks(dtype, kind, ranks)
    once = encode(np.sum([decode(one, dtype) for one in mine], axis=0), dtype)
    forth, back = mine[0], mine[-1]
    for one, other in zip(mine[1:], mine[-2::-1], strict=True):
        forth = encode(decode(forth, dtype) + decode(one, dtype), dtype)
        back = encode(decode(back, dtype) + decode(other, dtype), dtype)
    for result in (once, forth, back):
        verdict = check(result, dtype, kind, SEED, ranks)
        assert verdict.correct, verdict
        assert verdict.tolerance == 0 or kind == "random"


@pytest.mark.parametrize(("dtype", "kind", "ranks"), CASES)
def test_one_wrong_element_is_found_and_named(dtype: str, kind: Kind, ranks: int) -> None:
    right = encode(np.sum([decode(one, dtype) for one in of_ranks(dtype, kind, ranks)], axis=0), dtype)
    wrong = right.copy()
    wrong[1234] = poison(dtype, 1)[0]
    verdict = check(wrong, dtype, kind, SEED, ranks)
    assert not verdict.correct and verdict.first_wrong == 1234 and verdict.wrong == 1 and "[1,234] is" in str(verdict)
    if ranks > 1:
        for near in (of_ranks(dtype, kind, ranks)[0], np.roll(right, 1), np.roll(right, 512), np.zeros_like(right)):
            assert not check(near, dtype, kind, SEED, ranks).correct
        assert not check(right, dtype, kind, SEED + 1, ranks).correct, "a result of the call before passes"


def test_a_chunk_in_the_wrong_place_of_a_large_tensor_is_found() -> None:
    count = 2 * inputs.PERIOD + 4096
    right = encode(np.sum([decode(one, "bf16") for one in of_ranks("bf16", "exact", 2, count)], axis=0), "bf16")
    assert check(right, "bf16", "exact", SEED, 2).correct
    wrong = right.copy()
    wrong[1 << 20 : 2 << 20] = right[: 1 << 20]
    assert check(wrong, "bf16", "exact", SEED, 2).wrong > 1 << 19


def test_ranks_seeds_and_kinds_have_inputs_of_their_own() -> None:
    seen = [make("fp32", kind, seed, rank, 4096) for kind in KINDS for seed in range(4) for rank in range(16)]
    values = np.array(seen)
    close = np.abs(np.corrcoef(values)) - np.eye(len(values))
    close[: len(values) // 2, len(values) // 2 :] = 0  # the two kinds are made of one noise
    close[len(values) // 2 :, : len(values) // 2] = 0
    assert close.max() < 0.1
    assert all((make("fp32", "random", 1, 2, 100) == make("fp32", "random", 1, 2, 5000)[:100]) & True)


@given(st.floats(width=32, allow_nan=True))
def test_bf16_is_rounded_as_ml_dtypes_rounds_it(value: float) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with np.errstate(over="ignore"):
        theirs = np.array([value], np.float32).astype(ml_dtypes.bfloat16)
    ours = encode(np.array([value]), "bf16")
    if math.isnan(value):
        assert math.isnan(decode(ours, "bf16")[0])
    else:
        assert ours[0] == theirs.view(np.uint16)[0] and decode(ours, "bf16")[0] == float(theirs[0])


def test_the_worse_of_two_verdicts_is_the_wrong_one() -> None:
    good, better, bad = Verdict(True, 0.5, 1.0), Verdict(True, 0.1, 0.2), Verdict(False, 0.3, 0.0, 5, 1.0, 2.0, 3)
    assert worse(good, better) == worse(better, good) == Verdict(True, 0.5, 1.0)
    for other in (good, better):
        assert not worse(bad, other).correct and not worse(other, bad).correct
    assert worse(bad, bad).wrong == 6


def test_a_dtype_without_a_checkable_sum_is_refused() -> None:
    with pytest.raises(InputError, match="bf16"):
        make("fp8", "exact", 0, 0, 1)
