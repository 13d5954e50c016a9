"""The custom kernels for world sizes that this machine has no GPUs for: several ranks a GPU, in a child process that can be killed.

The child asks sglang_probe._gpu for one case after another and prints a line for each. Invariant: the environment that makes ranks of one
GPU safe is set for the child alone, and a child that stands still is killed at its limit and tells by its lines how far it came.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from sglang_probe import _core, gpu

KIB, MIB = 1 << 10, 1 << 20
WORLDS = range(3, 9)
V1, V2 = ("one_shot", "two_shot"), ("one_shot_push", "one_shot_pull", "two_shot_pull", "two_shot_push")
KERNELS = {name: i for i, (name, _, _) in enumerate(_core.KERNELS) if name}
RUNGS = {"rung 1, plain": 64, "rung 2, relaxed": 65, "rung 3, push": 66, "rung 4, mark": 67, "rung 5, flag": 68}
"""The ladder of csrc/gpu/kernels.cu; numbers behind those of SGLang's kernels."""
DTYPES = {name: i for i, (name, _) in enumerate(_core.DTYPES)}
BYTES = dict(_core.DTYPES)
CHILD_S, CASE_S = 100.0, 20.0
CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from sglang_probe import ProbeUnavailable, _gpu
for what, options in json.load(sys.stdin):
    try:
        answer = _gpu.many_check(*what, **options)
    except (ProbeUnavailable, ValueError) as error:  # refused before anything ran: the next one can be asked
        answer = {"refused": str(error)}
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Many:
    """One case: a kernel, at one size, on all ranks."""

    world: int
    kernel: str
    dtype: str
    nbytes: int
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.kernel} x{self.world}, {self.nbytes} bytes of {self.dtype}, {options}"

    @property
    def asked(self) -> tuple[tuple[int, int, int, int], dict[str, Any]]:
        kernel = {**KERNELS, **RUNGS}[self.kernel]
        return (self.world, kernel, DTYPES[self.dtype], self.nbytes), {"seconds": CASE_S, **self.options}

    def faults(self, answer: dict[str, Any]) -> list[str]:
        if "refused" in answer:
            return [f"{self}: refused: {answer['refused']}"]
        bursts = 2 * self.options.get("iterations", 1)
        found = {
            "elements checked": (answer["checked"], bursts * self.world * (self.nbytes // BYTES[self.dtype])),
            "wrong elements": (answer["wrong"], 0),
            "ranks bit-equal": (answer["bit_equal"], True),
            "launches": (answer["launched"], bursts),
            "launches that the GPU counted": (answer["ran"], bursts),
            "GPUs": (answer["gpus"], min(self.world, len(gpu.devices()))),
        }
        return [f"{self}: {what}: {is_}, not {must}" for what, (is_, must) in found.items() if is_ != must]


def cases_of(world: int) -> list[Many]:
    """Sizes of one vector, of odd numbers of vectors, and the ceilings; eager, and captured with registered inputs."""
    kernels = [*(V1 if world % 2 == 0 else ()), *V2, "limit"]
    cases = []
    for kernel in kernels:
        eager = {"iterations": 2}
        # V2's two-shot pull sums a registered input where it lies; the others write another buffer
        captured = {"iterations": 2, "captured": True, "registered": True, "in_place": kernel == "two_shot_pull"}
        small = [(16, dtype) for dtype in ("bf16", "fp16", "fp32")]
        odd = [(size, dtype) for size in (37 * 16, 64 * KIB + 16) for dtype in ("bf16", "fp16", "fp32")]
        for nbytes, dtype in [*small, *odd, (512 * KIB - 16, "bf16")]:
            cases += [Many(world, kernel, dtype, nbytes, options) for options in (eager, captured)]
        ceiling = (8 if kernel in V1 else 16) * MIB
        cases.append(Many(world, kernel, "fp32", ceiling, {**captured, "iterations": 1}))
    for kernel in V2:  # as other releases launch them; before v0.5.16 mostly in place, and without two-shot push
        for nbytes in (37 * 16, 64 * KIB + 16):
            cases.append(Many(world, kernel, "bf16", nbytes, {"style": 1}))
            if kernel != "two_shot_push":
                cases.append(Many(world, kernel, "bf16", nbytes, {"style": 0, "in_place": True}))
    rungs = [rung for rung in RUNGS if world % 2 == 0 or rung != "rung 2, relaxed"]
    return cases + [Many(world, rung, "bf16", 4 * KIB + 16) for rung in rungs]


def run_child(cases: list[Many], connections: str | None = "32") -> list[dict[str, Any]]:
    """One answer a case. Fails where the child ended early, or did not end."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    if connections is not None:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    command = [sys.executable, "-c", CHILD, json.dumps(sys.path)]
    how = "it ended"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True
    ) as child:
        try:
            out, err = child.communicate(json.dumps([case.asked for case in cases]), timeout=CHILD_S)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            how = f"it was killed after {CHILD_S:g} s"
    answers = [json.loads(line) for line in out.splitlines()]
    if len(answers) < len(cases):
        pytest.fail(f"{how} with status {child.returncode} in case {len(answers)} of {len(cases)}, {cases[len(answers)]}:\n{err}")
    return answers


# ------------------------------------------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("world", WORLDS)
def test_every_custom_kernel_is_right_for_world_sizes_beyond_the_gpus_that_are_here(world: int) -> None:
    cases = cases_of(world)
    answers = run_child(cases)
    found = [text for case, answer in zip(cases, answers, strict=True) for text in case.faults(answer)]
    assert not found, "\n".join(found)
    checked, worst = sum(answer["checked"] for answer in answers), max(answer["max_error"] for answer in answers)
    print(f"{world} ranks on {answers[0]['gpus']} GPUs: {len(cases)} cases, {checked:,} elements, largest error {worst:.2g}")


# ----------------------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(("connections", "told"), [("1", "it is 1"), (None, "it is not set")])
def test_ranks_that_share_a_gpu_without_enough_hardware_queues_are_refused(connections: str | None, told: str) -> None:
    (answer,) = run_child([Many(4, "one_shot", "bf16", KIB, {"gpus": 1})], connections)
    text = answer.get("refused", f"it ran: {answer}")
    assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in text and told in text and "4 ranks" in text, text


def test_cases_that_no_kernel_takes_are_refused_by_name_and_harm_nothing() -> None:
    plain, in_place = {"captured": True, "registered": True}, {"captured": True, "registered": True, "in_place": True}
    refused = [
        (Many(3, "one_shot", "bf16", KIB), "no kernel for 3 ranks"),
        (Many(9, "one_shot_push", "bf16", KIB), "9 ranks"),
        (Many(4, "one_shot", "fp64", KIB), "bf16, fp16 or fp32"),
        (Many(4, "one_shot", "bf16", KIB + 2), "multiple of 16"),
        (Many(4, "one_shot", "bf16", 16 * MIB), "its buffers hold"),
        (Many(4, "two_shot_multicast", "bf16", KIB), "multicast"),
        (Many(4, "one_shot", "bf16", KIB, {"registered": True}), "registered"),
        (Many(4, "one_shot_pull", "bf16", KIB, in_place), "must differ"),
        (Many(4, "two_shot_pull", "bf16", KIB, plain), "summed in place"),
    ]
    fine = Many(4, "one_shot", "bf16", KIB)
    *answers, last = run_child([*(case for case, _ in refused), fine])
    for (case, words), answer in zip(refused, answers, strict=True):
        assert words in answer.get("refused", f"it ran: {answer}"), f"{case}: {answer}"
    assert fine.faults(last) == []
