"""Agreement of ranks: the first call that differs, who is behind and stands still, late starts, groups of one name, graphs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_rings import Fill, Live, live_workers, ring_folder, server  # noqa: F401 # two fixtures
from ring_writer import RingWriter, gone

from sglang_probe._live.agree import Agreement, GroupAgreement
from sglang_probe._live.asked import agree
from sglang_probe._live.top import Watch, top

SECOND = 10**9
BEGAN = time.monotonic_ns() - 600 * SECOND


def agreement(folder: Path, ranks: int, fill: Fill, **more: Any) -> Agreement:
    server(folder, ranks, fill, **more)
    return top(seconds=0).agreement


def only(found: Agreement) -> GroupAgreement:
    (group,) = found.groups
    return group


def test_ranks_that_make_the_same_calls_agree(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        for step in range(10):
            ring.put(3, nbytes=1024 * (1 + step), time_ns=ring.now + rank * 1000)

    found = agreement(folder, 4, fill)
    assert found.agrees and found.answer == "all ranks agree: 30 calls of 1 group"
    assert only(found).to_dict()["calls"] == [1, 30]


def test_the_first_call_that_differs_is_named_with_its_ranks(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(1203, nbytes=1024)
        ring.put(1, path="pynccl_in_place" if rank == 3 else "custom")
        ring.put(100, nbytes=2048, path="quick" if rank == 1 else "custom")

    found = agreement(folder, 4, fill, slots=2048)
    assert not found.agrees
    group = only(found)
    assert group.call == 1204
    assert group.text == (
        "tp:0: call 1,204: ranks 0-2 custom 42 KiB of bf16, eager; rank 3 pynccl_in_place 42 KiB of bf16, eager "
        "(its members are assumed: all that have a group of this name)"
    )
    assert found.answer == f"ranks DIFFER: {group.text}"
    assert json.loads(json.dumps(found.to_dict()))["groups"][0]["differs_at"] == 1204


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nbytes": 512}, "rank 1 custom 512 B of bf16, eager"),
        ({"dtype": "fp16"}, "rank 1 custom 42 KiB of fp16, eager"),
        ({"path": "quick"}, "rank 1 quick 42 KiB of bf16, eager"),
        ({"phase": "captured"}, "rank 1 custom 42 KiB of bf16, captured"),
    ],
)
def test_a_difference_in_bytes_dtype_path_or_capture_is_found(folder: Path, change: dict[str, Any], said: str) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(5)
        ring.put(1, **(change if rank == 1 else {}))
        ring.put(5)

    group = only(agreement(folder, 2, fill))
    assert group.call == 6 and str(group.differ[1]) == said


@pytest.mark.parametrize("change", [{"path": ""}, {"dtype": ""}, {"nbytes": 0, "flags": ("no_tensor",)}])
def test_what_was_not_seen_differs_from_nothing(folder: Path, change: dict[str, Any]) -> None:
    found = agreement(folder, 2, lambda ring, rank: ring.put(20, **(change if rank == 1 else {})))
    assert found.agrees and only(found).compared == 20


def test_a_difference_between_two_ranks_is_found_where_the_first_has_not_seen_it(folder: Path) -> None:
    paths = ("", "custom", "quick")
    group = only(agreement(folder, 3, lambda ring, rank: ring.put(3, path=paths[rank])))
    assert group.call == 1


def test_a_record_that_is_missing_or_overwritten_differs_from_nothing(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        for step in range(200):
            ring.put(1, nbytes=1024 * (1 + step % 7))
        if rank == 1:
            ring.tear(150)

    found = agreement(folder, 2, fill, slots=128)
    assert found.agrees and only(found).to_dict()["calls"] == [73, 200] and only(found).compared == 127


# ------------------------------------------------------------------------------------------------------------------------ behind


def test_a_rank_that_is_behind_and_stands_still_is_named(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.now -= 8 * SECOND
        ring.put(9 if rank == 3 else 10)
        ring.put(1, nbytes=1 << 20, site="models/x.py:7 forward")

    server(folder, 4, fill)
    found = agree()
    (late,) = only(found).behind
    assert not found.agrees and (late.rank, late.calls, late.is_stalled) == (3, 1, True)
    assert (
        "rank 3 is 1 call behind and has not moved for 8 s (last: custom 1 MiB of bf16, eager at models/x.py:7 forward)"
        in found.answer
    )


def test_a_rank_that_is_behind_for_a_moment_is_no_difference(folder: Path) -> None:
    found = agreement(folder, 2, lambda ring, rank: ring.put(100 - 2 * rank))
    assert found.agrees and only(found).behind[0].calls == 2 and "behind" not in found.answer


def test_the_group_in_which_a_stuck_rank_is_instead_is_told(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.now -= 8 * SECOND
        ring.put(5)
        ring.put(1, group="moe_ep:0" if rank == 1 else "tp:0", nbytes=2048)

    found = agreement(folder, 2, fill)
    assert "rank 1 is 1 call behind and has not moved for 8 s (last: custom 2 KiB of bf16, eager in moe_ep:0)" in found.answer


def test_ranks_that_were_all_killed_together_are_not_called_stuck(folder: Path) -> None:
    pid, start = gone()
    found = agreement(folder, 2, lambda ring, rank: ring.put(100 - 2 * rank), pid=pid, started=start)
    assert found.agrees


def test_where_all_are_gone_the_one_that_stopped_first_is_told(folder: Path) -> None:
    pid, start = gone()

    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(50)
        ring.now += 6 * SECOND
        if rank == 0:
            ring.put(3)

    found = agreement(folder, 2, fill, pid=pid, started=start)
    assert not found.agrees and "rank 1 is 3 calls behind and has not moved for 6 s" in found.answer


def test_a_deadlock_of_live_processes_is_seen_from_outside(live: Callable[..., Live]) -> None:
    workers = [live(rank, 3) for rank in range(3)]
    for worker in workers:
        worker.call(50)
    for worker in workers[:2]:
        worker.call(1)
    found = agree()  # it looks again until the one that is behind has stood still for long enough
    assert not found.agrees and "rank 2 is 1 call behind and has not moved for 2 s" in found.answer


def test_live_processes_that_go_on_agree(live: Callable[..., Live]) -> None:
    workers = [live(rank, 2) for rank in range(2)]
    for worker in workers:
        worker.call(500)
    found = agree()
    assert found.agrees and only(found).compared >= 100


def test_a_path_that_one_live_process_takes_alone_is_seen(live: Callable[..., Live]) -> None:
    for rank, path in enumerate((8, 8, 6)):
        live(rank, 3, path).call(20)
    found = agree()
    assert "call 1: ranks 0-1 torch_distributed" in found.answer and "rank 2 pynccl_in_place" in found.answer


def test_a_difference_is_still_told_when_its_calls_were_overwritten(folder: Path) -> None:
    writers = server(folder, 2, lambda ring, rank: ring.put(3, path="quick" if rank else "custom"))
    with Watch() as watch:
        assert not watch.look().agreement.agrees
        for ring in writers:
            ring.put(200)
            ring.write()
        found = watch.look().agreement
    assert only(found).call == 1


# -------------------------------------------------------------------------------------------------------------------- late starts


def cycle(ring: RingWriter, first: int, last: int) -> None:
    """Calls of a model whose step has five sizes, from one number on; 40 us between calls and 5 ms between steps."""
    for number in range(first, last):
        step, place = divmod(number, 5)
        ring.put(1, nbytes=1024 * (1 + place % 3), time_ns=BEGAN + step * 5_000_000 + place * 40_000)


def test_ranks_that_were_told_to_record_one_after_the_other_are_compared_call_by_call(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.control["control"] = 3  # its second recording
        cycle(ring, 100 + 7 * rank, 400)

    found = agreement(folder, 3, fill, slots=1024)
    group = only(found)
    assert found.agrees and dict(group.shifts) == {1: 7, 2: 14} and group.compared == 293
    assert not group.behind and "rank 1 counts 7 fewer than the others" in group.text


def test_a_late_start_does_not_hide_a_difference(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.control["control"] = 3
        cycle(ring, 100 + 7 * rank, 300)
        ring.put(1, path="quick" if rank else "custom")
        cycle(ring, 301, 330)

    group = only(agreement(folder, 2, fill, slots=1024))
    assert dict(group.shifts) == {1: 7} and group.call == 201


def test_a_shift_is_not_made_up_where_calls_are_simply_different(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.control["control"] = 3
        for number in range(200):
            ring.put(1, nbytes=1024 * (1 + (number * number + rank * 3 * number) % 11))

    group = only(agreement(folder, 2, fill, slots=1024))
    assert group.call == 2 and not group.shifts


def test_ranks_that_recorded_from_the_start_are_never_shifted(folder: Path) -> None:
    """A call that one rank left out moves all later ones: that is the difference, and no late start."""

    def fill(ring: RingWriter, rank: int) -> None:
        cycle(ring, 0, 100)
        cycle(ring, 101 if rank else 100, 300)

    group = only(agreement(folder, 2, fill, slots=1024))
    assert group.call == 101 and not group.shifts


def test_only_the_newest_recording_is_compared(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.control["control"] = 3
        ring.put(30 + rank, nbytes=1 << 20 if rank else 1 << 10)
        ring.calls.clear()
        cycle(ring, 0, 50)

    found = agreement(folder, 2, fill, slots=256)
    assert found.agrees and only(found).compared == 50


# ------------------------------------------------------------------------------------------------------------------------- groups


def test_groups_of_one_name_are_apart_where_the_hook_says_who_is_in_them(folder: Path) -> None:
    """Two pipeline stages: each has a group tp:0 of its own."""

    def fill(ring: RingWriter, rank: int) -> None:
        ring.name("note", f"ranks of tp:0: {'0,1' if rank < 2 else '2,3'}")
        ring.put(10 + rank // 2, nbytes=1024 * (1 + rank // 2))

    found = agreement(folder, 4, fill)
    assert found.agrees and [group.ranks for group in found.groups] == [(0, 1), (2, 3)]
    assert not any(group.assumed for group in found.groups)


def test_every_group_is_compared_by_its_own_numbers(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(5)
        ring.put(3, group="moe_ep:0", nbytes=512 if rank else 1024)
        ring.put(5)

    found = agreement(folder, 2, fill)
    assert [(group.group, group.call) for group in found.groups] == [("moe_ep:0", 1), ("tp:0", 0)]


def test_two_servers_are_never_compared(folder: Path) -> None:
    for number in range(2):
        for rank in range(2):
            ring = RingWriter(folder, rank=rank, world_size=2, other=10 * number + rank, now=10**9)
            ring.header["wall_ns"] += number * 3600 * SECOND
            ring.put(5, nbytes=1024 * (number + 1))
            ring.write()
    found = top(seconds=0, dead=True).agreement
    assert found.agrees and len(found.groups) == 2


def test_nothing_to_compare_says_so(folder: Path) -> None:
    found = agreement(folder, 1, lambda ring, rank: ring.put(5))
    assert found.agrees and found.answer.startswith("nothing to compare")


# ------------------------------------------------------------------------------------------------------------------------- graphs


def test_a_graph_that_one_rank_captured_differently_is_named(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(4, phase="captured", graph=ring.graph("bs 1"))
        graph = ring.graph("bs 2")
        ring.put(4, phase="captured", graph=graph)
        ring.graphs[graph - 1]["captured"] -= rank == 2

    found = agreement(folder, 3, fill)
    assert not found.agrees
    assert found.graphs == ("graph 2: ranks 0-1 4 calls of 168 KiB together; rank 2 3 calls of 168 KiB together",)


def test_a_rank_that_replays_no_more_is_named_once_it_was_watched_for_long_enough(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.now -= 60 * SECOND  # no record for a minute, as in any server that replays
        ring.put(4, phase="captured", graph=ring.graph("bs 1", replays=100 - 2 * rank))

    assert agreement(folder, 2, fill).agrees  # one look cannot tell slow from stuck
    found = agree()
    assert found.graphs == ("rank 1 has replayed 2 graphs fewer, and it has not moved for 2 s",)


def test_ranks_that_go_on_replaying_are_not_called_stuck(folder: Path) -> None:
    writers = server(
        folder, 2, lambda ring, rank: ring.put(4, phase="captured", graph=ring.graph("bs 1", replays=100 - 2 * rank))
    )
    with Watch() as watch:
        for _ in range(3):
            assert watch.look().agreement.agrees
            for ring in writers:
                ring.graphs[0]["replays"] += 10
                ring.write()
