"""What a bench plans, and what its figures are: targets by the dispatch, sizes, orders, what a sample is made of, what is aggregated.

Nothing is timed here, and no process is started.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from measured import cell

from sglang_probe import Group, InputError, resolve
from sglang_probe._bench import options, sample
from sglang_probe._bench.checking import Reference
from sglang_probe._bench.plan import Plan, Task, key_of, make_plan
from sglang_probe._bench.targets import TARGETS, routed, why_not
from sglang_probe._measure.cell import Cell
from sglang_probe._measure.summary import over_ranks, summaries
from sglang_probe._run import inputs
from sglang_probe._run.arrays import HostArrays
from sglang_probe._types import FrozenMap

GROUP = Group.make(world_size=2, device=0, arch=90, full_nvlink=True)
MIB = 1 << 20


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "device": "gpu",
        "world_size": 2,
        "group": GROUP,
        "targets": tuple(TARGETS),
        "shapes": tuple((1, size // 2) for size in options.sizes_of("1K:256M", "bf16")),
        "dtype": "bf16",
        "phases": ("eager", "captured"),
        "patterns": ("back_to_back", "interleaved"),
        "compute_us": 5.0,
        "drivers": FrozenMap({"native": ""}),
        "processes": 5,
        "seed": 0,
        "samples": (5, 15),
        "cell_ms": 60.0,
    }
    return make_plan(Plan(**(values | changes)))


# -------------------------------------------------------------------------------------------------------------------------- targets


def test_no_two_targets_would_be_one_cell_of_a_file() -> None:
    seen = {(target.path, target.kernel, target.sglang) for target in TARGETS.values()}
    assert len(seen) == len(TARGETS) == 11


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("captured", [False, True])
def test_every_target_is_reached_by_its_own_switches(name: str, captured: bool) -> None:
    target = TARGETS[name]
    decision = routed(target.settings(GROUP), 64 << 10, 32 << 10, "bf16", captured)
    assert (str(decision.path), decision.kernel) == (target.path, target.kernel) and decision.reduces
    assert not why_not(target, decision)


def test_a_size_that_a_gate_declines_is_left_out_with_the_gates_own_reason() -> None:
    made = plan(targets=("one_shot",))
    assert {task.wanted.nbytes for task in made.cells} == {1 << k for k in range(10, 24, 2)}
    assert made.left_out_texts() == [
        "one_shot (native), 16 MiB to 256 MiB (3 sizes): 16,777,216 bytes is over its limit of 8,388,608"
    ]


def test_sizes_that_are_left_out_for_different_reasons_have_each_their_own() -> None:
    made = plan(targets=("one_shot",), shapes=((1, 500), (1, 516), (1, 512), (1, 8 * MIB), (1, 32 * MIB)), phases=("eager",))
    assert made.left_out_texts() == [
        "one_shot (native, eager), 1000 B and 1 KiB + 8 B: 1,000 bytes is not a multiple of 16",
        "one_shot (native, eager), 16 MiB and 64 MiB: 16,777,216 bytes is over its limit of 8,388,608",
    ]


def test_where_the_dtype_stops_a_target_those_that_it_takes_are_told() -> None:
    made = plan(targets=("one_shot", "pynccl_in_place"), dtype="int32", shapes=((1, 512), (1, 8 * MIB)), phases=("eager",))
    told = made.left_out_texts()
    assert any(text.endswith("; one_shot takes bf16, fp16, fp32, and this is int32") for text in told)
    assert not any("32 MiB" in text and "takes bf16" in text for text in told)  # too large in any dtype


def test_a_kernel_that_a_release_would_not_take_itself_is_not_asked_of_that_release() -> None:
    made = plan(drivers=FrozenMap({"engine": "0.5.9"}), phases=("eager",))
    assert {task.wanted.target for task in made.cells} == {
        *("pynccl_in_place", "pynccl_out_of_place", "one_shot", "torch_distributed", "torch_symm_mem")
    }
    assert all(task.wanted.settings.release == resolve("0.5.9") and not task.wanted.settings.kernel for task in made.cells)
    assert any(text.startswith("limit (engine") and "no release" in text for text in made.left_out_texts())


def test_where_nothing_is_left_the_reasons_are_told() -> None:
    with pytest.raises(InputError, match="nothing is left to measure.*limit of 8,388,608"):
        plan(targets=("two_shot",), shapes=((1, 64 * MIB),))


# ----------------------------------------------------------------------------------------------------------------------------- plan


def test_each_process_set_measures_all_of_it_in_an_order_of_its_own_that_does_not_change() -> None:
    made, again = plan(), plan()
    orders = [[task.key for task in made.tasks(process)] for process in range(3)]
    assert [[task.key for task in again.tasks(process)] for process in range(3)] == orders
    assert len({tuple(task[:-1] for task in order) for order in orders}) == 3
    assert len({frozenset(task[:-1] for task in order) for order in orders}) == 1
    assert len(set(orders[0])) == len(orders[0]) == len(made.cells)
    assert [task.key for task in plan(seed=1).tasks(0)] != orders[0]


def test_neighbours_in_a_process_set_are_of_many_targets() -> None:
    first = [task.wanted.target for task in plan().tasks(0)]
    assert sum(a == b for a, b in zip(first, first[1:], strict=False)) < len(first) / 3


def test_the_plan_is_plain_data_and_says_what_differs() -> None:
    plain = plan().to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["cells"] == 5 * len(plan().cells) and plain["facts"]["full_nvlink"] == 1
    for changes in ({"seed": 1}, {"compute_us": 6.0}, {"phases": ("eager",)}, {"processes": 4}, {"shapes": ((1, 512),)}):
        assert plan(**changes).to_dict() != plain


def test_fewer_calls_make_a_sample_of_a_large_tensor() -> None:
    made = plan(targets=("pynccl_in_place",))
    for phase, most in (("eager", 20), ("captured", 60)):
        calls = {task.wanted.nbytes: task.calls for task in made.cells if task.phase == phase}
        assert list(calls.values()) == sorted(calls.values(), reverse=True)
        assert calls[1024] == most and calls[256 * MIB] < 10


def test_a_task_and_its_cell_have_one_key() -> None:
    task = plan(targets=("one_shot",)).tasks(3)[0]
    wanted = task.wanted
    made = cell(
        path=wanted.path,
        kernel=wanted.kernel,
        release=wanted.settings.release.name,
        phase=task.phase,
        pattern=task.pattern,
        compute_us=task.compute_us,
        nbytes=wanted.nbytes,
        process=3,
    )
    assert key_of(made) == task.key and task.identity == task.key[:-1]


# -------------------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ("1K:16K", (1024, 4096, 16384)),
        ("1K:8K:2", (1024, 2048, 4096, 8192)),
        ("1K:5K", (1024, 4096)),
        ("42KiB, 1K", (1024, 43008)),
        ([64, "1K", 64], (64, 1024)),
    ],
)
def test_sizes_as_people_write_them(given: Any, sizes: tuple[int, ...]) -> None:
    assert options.sizes_of(given, "bf16") == sizes


@pytest.mark.parametrize(
    "given",
    [
        "",
        "1K:",
        "2K:1K",
        "1K:8K:1",
        "1K:8K:x",
        "1K:2K:3:4",
        "3",
        [0],
        [True],
        [2.5],
        [],
        "1K,abc",
        "1K,",
        1024,
        None,
        "100G",
        {"1K": 1},
        b"1K",
    ],
)
def test_sizes_that_cannot_be_are_refused(given: Any) -> None:
    with pytest.raises(InputError) as caught:
        options.sizes_of(given, "bf16")
    assert caught.value.field == "sizes"


def test_a_mistyped_target_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InputError, match="did you mean one_shot_push"):
        options.names("targets", "one_shot_psh", tuple(TARGETS))
    assert options.names("targets", "two_shot, one_shot,one_shot", tuple(TARGETS)) == ("one_shot", "two_shot")
    with pytest.raises(InputError, match="tokens"):
        options.tokens_of("1,two")
    assert options.tokens_of("64,1,4") == options.tokens_of([4, 64, 1]) == (1, 4, 64)


# -------------------------------------------------------------------------------------------------------------- what a sample is


class Clock:
    """A Coordinator and a driver whose times are given: device 1,000 us a batch of calls, 300 of compute kernels alone."""

    device, rank, world_size, timeout_s = "host", 0, 1, 1.0

    def __init__(self) -> None:
        self.log: list[str] = []
        self._between = 0.0

    def _note(self, text: str) -> None:
        self.log.append(text)

    def barrier(self) -> None:
        self._note("barrier")

    def hold(self, stream: int) -> None:
        self._note("hold")

    def release(self) -> None:
        self._note("release")

    def mark(self, which: int, stream: int) -> None:
        self._note(f"mark {which}")

    def spin(self, us: float, stream: int) -> None:
        self._between = 300.0
        self._note("spin")

    def wait(self, stream: int) -> None:
        self._note("wait")

    def elapsed(self) -> float:
        return self._between

    def surroundings(self) -> Any:
        return contextlib.nullcontext()

    def enqueue(self, calls: int, compute_us: float) -> float:
        self._between = 1000.0
        self._note(f"enqueue {calls} {compute_us:g}")
        return 7.0


def _task(pattern: str) -> Task:
    (task,) = plan(targets=("one_shot",), shapes=((1, 512),), phases=("eager",), patterns=(pattern,)).tasks(0)
    return replace(task, calls=10)


@pytest.mark.parametrize(("pattern", "device_us"), [("back_to_back", 100.0), ("interleaved", 70.0)])
def test_a_sample_is_a_batch_divided_by_its_calls_without_what_compute_kernels_take_alone(
    monkeypatch: pytest.MonkeyPatch, pattern: str, device_us: float
) -> None:
    clock: Any = Clock()
    clock.prepare = lambda coordinator, wanted: clock
    clock.tensor, clock.backend = np.ones(512, np.uint16), "v1"
    monkeypatch.setattr(sample, "driver_of", lambda name: clock)
    taken = sample._measure(clock, _task(pattern), 4)
    assert taken.device_us.tolist() == [device_us] * 4
    assert taken.host_us.tolist() == [7.0] * 4  # the driver tells it by call already
    assert taken.elapsed_us.tolist() == [7.0] * 4 and taken.backend == "v1"  # no less than the host's own
    assert not clock.tensor.any()  # in place, zeros stay zeros
    held = clock.log[clock.log.index("hold") - 1 :]
    calls = f"enqueue 10 {0 if pattern == 'back_to_back' else 5}"
    # released when every rank has enqueued its own
    assert held[:8] == ["barrier", "hold", "enqueue 1 0", "mark 0", calls, "mark 1", "barrier", "release"]  # one call to meet in
    assert held[8:11] == ["barrier", calls, "wait"]
    assert clock.log.count("hold") == 4 * (1 if pattern == "back_to_back" else 2)


def test_a_held_stream_is_released_whatever_the_calls_raise() -> None:
    clock: Any = Clock()

    def fails() -> float:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sample._held(clock, fails)
    assert clock.log[-1] == "release"


# ------------------------------------------------------------------------------------------------------------------------- checking


def _torch_tensor(count: int, dtype: str) -> Any:
    torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors; here they lie on the CPU")
    return torch.empty(count, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype])


def _numpy_tensor(count: int, dtype: str) -> Any:
    return np.empty((1, count), inputs.element(dtype).storage)


class _TorchOnCpu(HostArrays):
    def read(self, tensor: Any) -> Any:
        bits = tensor.view(-1).view({2: __import__("torch").int16, 4: __import__("torch").int32}[tensor.element_size()])
        return bits.numpy().view(np.uint16 if tensor.element_size() == 2 else np.float32)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("count", [3, inputs.PERIOD + 5])
@pytest.mark.parametrize(
    ("make", "arrays"), [(_numpy_tensor, HostArrays()), (_torch_tensor, _TorchOnCpu())], ids=["numpy", "torch"]
)
def test_one_wrong_element_is_seen_wherever_it_is(make: Any, arrays: Any, count: int, dtype: str) -> None:
    tensor, result = make(count, dtype), make(count, dtype)
    reference = Reference(arrays, dtype, count, 1, 3)
    reference.fill(tensor, 1)
    flat = arrays.read(tensor)
    assert inputs.same_bits(flat, inputs.make(dtype, "exact", 1, 1, count))
    total = sum(inputs.decode(inputs.make(dtype, "exact", 1, rank, count), dtype) for rank in range(3))
    stored = arrays.read(result)
    stored[:] = inputs.encode(total, dtype)
    assert not reference.wrong(result, 1) and "elements wrong" in reference.wrong(result, 2)
    for index in (0, count // 2, count - 1):
        stored[:] = inputs.encode(total, dtype)
        stored[index : index + 1] = inputs.encode(total[index : index + 1] + 1, dtype)
        assert f"1 elements wrong: [{index:,}] is" in reference.wrong(result, 1)
    reference.poison(result)
    assert np.isnan(inputs.decode(stored, dtype)).all() and f"{count:,} elements wrong" in reference.wrong(result, 1)
    reference.zero(result)
    assert not inputs.decode(stored, dtype).any()


def test_a_zero_of_the_other_sign_is_a_zero() -> None:
    zeros = np.full(4, -0.0, np.float32)
    reference = Reference(HostArrays(), "fp32", 4, 0, 1)
    reference.fill(zeros, 1)
    told = zeros.copy()
    told[zeros == 0] = -0.0
    assert not reference.wrong(told, 1)


# -------------------------------------------------------------------------------------------------------------------------- summary


def _measured(process: int, ranks: list[list[float]], **changes: Any) -> Cell:
    return cell(process=process, device_us=ranks, host_us=[[1.0], [2.0]], checked=0 if process else 4, **changes)


def test_a_figure_is_the_median_of_process_sets_of_the_slowest_ranks_median() -> None:
    cells = [
        _measured(2, [[9.0, 1.0, 2.0], [1.0, 1.0, 1.0]]),
        _measured(0, [[1.0, 1.0, 1.0], [5.0, 4.0, 3.0]]),
        _measured(1, [[3.0, 3.0], [1.0, 100.0]]),
    ]
    (one,) = summaries(cells)
    assert one.processes == (0, 1, 2) and one.n_processes == 3
    assert one.device_us.tolist() == [4.0, 50.5, 2.0]
    assert one.spread("device_us") == (4.0, 2.0, 50.5, 3)
    assert one.host_us.tolist() == [2.0] * 3
    assert (one.checked, one.wrong, one.correct, one.samples) == (4, 0, True, 1)
    assert one.to_dict()["device_us"]["by_process"] == [4.0, 50.5, 2.0]
    assert one.to_dict()["wait_us"] is None and json.dumps(one.to_dict())


def test_what_was_wrong_once_has_no_figure_at_all() -> None:
    cells = [_measured(0, [[1.0], [1.0]], wrong=1), _measured(1, [[1.0], [1.0]])]
    (one,) = summaries(cells)
    assert one.correct is False and not len(one.device_us) and np.isnan(one.spread("device_us").median)


def test_a_rank_without_samples_leaves_a_cell_without_a_figure() -> None:
    assert over_ranks((np.array([1.0]), np.array([]))) is None and over_ranks(()) is None
    assert over_ranks((np.array([1.0]), np.array([3.0, 2.0, 9.0]))) == 3.0


def test_what_differs_in_anything_but_the_process_is_not_thrown_together() -> None:
    cells = [cell(0), cell(1), cell(0, driver="engine"), cell(0, phase="eager"), cell(0, backend="v1"), cell(0, process=1)]
    assert [one.n_processes for one in summaries(cells)] == [2, 1, 1, 1, 1]
