"""The hook on GPUs, in SGLang's real GroupCoordinator: every call of four kinds of groups is recorded as it ran, and ran as expected.

What the ranks do, and count themselves, is played once (fixture `played`); each test holds a part of their ring files against it: paths
against the router's and against the interpreter's own view, counts, graphs and replays, sums, and a profiler trace of the last part.
Two ranks, one a GPU; on one GPU alone both share it, and NCCL moves data over sockets (CUDA's MPS saves minutes there). Skipped with
the reason where there is no SGLang; a group that this SGLang cannot build here is skipped, and it says why.
Invariant: the ranks count what they ask for, and never read it from the ring.
"""

# ruff: noqa: E402 -- what imports torch comes after pytest.importorskip
from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from gpu import hook_ranks
from gpu.hook_ranks import DTYPES, GROUPS, PATHS, SIZES, TIMED_CALLS
from gpu.sharing import ordinals

import sglang_probe as probe
from sglang_probe import LocalGroup, ProbeUnavailable
from sglang_probe._bench import engine
from sglang_probe._live.recording import Recording, read_recording

LEAST = 20_000
_RUN_S = 240.0
"""For one order to the ranks; the longest compiles V2."""


@dataclass(frozen=True)
class Played:
    """What was played once."""

    refused: dict[str, str]
    recording: Recording
    rows: list[list[dict[str, Any]]]
    """Records of the groups that were built, by rank."""
    reports: list[dict[str, Any]]
    timed: list[dict[str, tuple[int, int, float]]]
    profiled: list[Counter[tuple[str, str]]]
    folder: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    try:
        release = engine.release()
    except ProbeUnavailable as error:
        pytest.skip(str(error))
    rings, folder, start = tmp_path_factory.mktemp("rings"), tmp_path_factory.mktemp("trace"), time.monotonic()
    refused: dict[str, str] = {}
    env = {"SGLANG_PROBE_DIR": str(rings)}
    with LocalGroup(2, device="gpu", ordinals=ordinals(), timeout_s=_RUN_S, env=env) as ranks:
        paths = ranks.run(hook_ranks.begin, timeout_s=_RUN_S)
        for kind in GROUPS:
            try:
                why = ranks.run(hook_ranks.play, kind, timeout_s=_RUN_S)[0]
            except Exception as error:  # of a rank, of any kind
                raise AssertionError(f"SGLang {release}, {GROUPS[kind]} ({kind}): {error}") from error
            if why:
                refused[kind] = why
            print(f"{kind}: {why or 'played'}, {time.monotonic() - start:.1f} s")
        timed = ranks.run(hook_ranks.timed, timeout_s=_RUN_S)
        counted = ranks.run(hook_ranks.profiled, str(folder), timeout_s=_RUN_S)
        recording = read_recording(paths)
        reports = ranks.run(hook_ranks.finish, timeout_s=_RUN_S)
    workers = sorted(recording.workers, key=lambda worker: worker.rank)
    names = {*reports[0]["names"].values()}
    rows = [[row for row in recording.named(worker) if row["group"] in names] for worker in workers]
    print(
        f"SGLang {release}: {len(rows[0]):,} records a rank, {workers[0].executed:,} calls ran, {time.monotonic() - start:.1f} s"
    )
    return Played(refused, recording, rows, reports, timed, counted, folder)


def of_kind(played: Played, kind: str) -> list[list[dict[str, Any]]]:
    if kind in played.refused:
        assert GROUPS[kind].custom, played.refused[kind]  # the others need nothing that SGLang does not bring
        pytest.skip(played.refused[kind])
    name = played.reports[0]["names"][kind]
    return [[row for row in rows if row["group"] == name] for rows in played.rows]


def alarms(rows: list[dict[str, Any]]) -> str:
    """Every kind of difference with its sizes, as text; "" where there is none."""
    found: dict[tuple[str, ...], Counter[int]] = {}
    for row in rows:
        if row["path"] != row["expected"] or not row["path"]:
            context = " ".join([*row["context"], *row["flags"]])
            key = (row["entry"], row["phase"], row["dtype"], row["path"] or "nothing", row["expected"] or "nothing", context)
            found.setdefault(key, Counter())[row["bytes"]] += 1
    return "\n".join(
        f"{entry}, {phase}, {dtype}: ran {ran}, expected {expected} [{context}], calls by bytes {dict(sizes)}"
        for (entry, phase, dtype, ran, expected, context), sizes in found.items()
    )


@pytest.mark.parametrize("kind", GROUPS)
def test_every_call_ran_as_expected_and_as_the_interpreter_saw_it(played: Played, kind: str) -> None:
    for rank, rows in enumerate(of_kind(played, kind)):
        differing = alarms(rows)
        print(f"rank {rank}, {kind}: {len(rows):,} records\n{differing}")
        assert not differing, f"rank {rank}, {kind}:\n{differing}"
        assert {row["path"] for row in rows} == PATHS[kind]
        odd = Counter(flag for row in rows for flag in row["flags"] if flag not in ("direct", "through", "dry", "derived"))
        assert not odd, odd
        derived = {row["path"] for row in rows if "derived" in row["flags"]}
        assert derived == ({"custom"} if kind == "v1" else set()), (
            derived
        )  # nobody tells which of v1's kernels ran; the trace below does
        dry = {(row["phase"], row["path"]) for row in rows if "dry" in row["flags"]}
        assert dry <= ({("warmup", "custom")} if kind == "v1" else set()), dry
        seen = {row["seq"]: row["path"] for row in rows if row["seq"] in played.reports[rank]["seen"]}
        assert len(seen) >= 3 * len(SIZES) * len(DTYPES[kind])
        wrong = {number: (path, played.reports[rank]["seen"][number]) for number, path in seen.items()}
        assert not {number: pair for number, pair in wrong.items() if pair[0] != pair[1]}


@pytest.mark.parametrize("kind", GROUPS)
def test_the_ring_has_each_call_that_was_made_and_no_other(played: Played, kind: str) -> None:
    for rank, rows in enumerate(of_kind(played, kind)):
        made = {
            key: calls for key, calls in played.reports[rank]["made"].items() if key[0] == played.reports[rank]["names"][kind]
        }
        recorded = Counter((row["group"], row["phase"], row["dtype"], row["bytes"]) for row in rows)
        assert recorded == made, {
            key: (recorded[key], made.get(key)) for key in {*recorded, *made} if recorded[key] != made.get(key)
        }
        worker = next(one for one in played.recording.workers if one.rank == rank)
        counted: Counter[tuple[str, str]] = Counter()
        for one in worker.kinds:
            if one.group == played.reports[rank]["names"][kind]:
                counted[one.phase, one.dtype] += one.calls
        assert counted == Counter((phase, dtype) for (_, phase, dtype, _), calls in made.items() for _ in range(calls))


def test_graphs_have_the_calls_that_they_captured_and_each_replay(played: Played) -> None:
    for worker in played.recording.workers:
        report = played.reports[worker.rank]
        table = [(int(row["captured"]), int(row["replays"])) for row in worker.tables.graphs]
        assert table == report["graphs"]
        replayed = sum(calls * replays for calls, replays in report["graphs"])
        assert sum(kind.executed for kind in worker.kinds if kind.phase == "captured") == replayed


def test_there_were_enough_calls_none_got_lost_and_nothing_failed(played: Played) -> None:
    for worker in played.recording.workers:
        report = played.reports[worker.rank]
        assert worker.executed >= LEAST, f"{worker.executed} calls ran"
        assert len(worker.recent) >= len(played.rows[worker.rank]) >= LEAST / 2
        assert worker.overwritten == worker.torn == 0 and report["counts"]["failures"] == 0, report["counts"]
        told = [text for kind, text in report["told"] if kind in ("difference", "target", "aside", "graph", "fused")]
        print(f"rank {worker.rank}: {report['counts']}\n" + "\n".join(f"{kind}: {text}" for kind, text in report["told"]))
        assert not told, told


def test_each_second_call_was_timed_on_the_gpu(played: Played) -> None:
    for rank, by_kind in enumerate(played.timed):
        for kind, (first, last, ours_us) in by_kind.items():
            rows = [row for row in played.rows[rank] if first <= row["seq"] <= last]
            times = [row["device_us"] for row in rows if row["device_us"]]
            print(
                f"rank {rank}, {kind}: {len(times)} of {len(rows)} timed, median {statistics.median(times):.2f} us, ours {ours_us:.2f}"
            )
            assert len(rows) == TIMED_CALLS and TIMED_CALLS // 2 - 1 <= len(times) <= TIMED_CALLS // 2
            assert 1 < statistics.median(times) <= ours_us  # by events of its own inside of ours


def test_all_sums_are_right_with_the_hook_and_after_it(played: Played) -> None:
    for rank, report in enumerate(played.reports):
        wrong = {cell: bad for cell, (_, bad) in report["sums"].items() if bad}
        assert not wrong, f"rank {rank}: results that were wrong: {wrong}"
        assert sum(checked for checked, _ in report["sums"].values()) >= LEAST
        assert all(values == [3.0] for values in report["after"]), report["after"]


def test_ranks_agree(played: Played) -> None:
    agreement = played.recording.agreement
    compared = {one.group: one.compared for one in agreement.groups}
    assert agreement.agrees, agreement.answer
    for kind, name in played.reports[0]["names"].items():
        assert compared.get(name) == len(of_kind(played, kind)[0]), (name, compared)


def way_of(text: str) -> str:
    """Of check's text, what the hook's counts are told apart by too."""
    if text.startswith("custom"):
        return f"custom {text.rstrip(')').rpartition(', ')[2]}"
    if "torch_distributed" in text:
        return "nccl" if "pynccl" in text else "torch_distributed"
    return "pynccl" if "pynccl" in text else text


def test_check_finds_the_same_calls_in_a_profiler_trace(played: Played) -> None:
    checked = probe.check([played.folder / f"rank{rank}.json" for rank in range(2)])
    if not any(rank.kernels for rank in checked.ranks):
        pytest.skip("torch's profiler sees no kernel on this machine")
    print(checked.why())
    by_way: Counter[tuple[str, str]] = Counter()
    for row in checked.times:
        if row.kind in ("all_reduce", "fused", "unknown"):
            by_way[way_of(row.way), row.phase] += row.calls
    together = played.profiled[0] + played.profiled[1]
    print(f"hook: {dict(together)}\ntrace: {dict(by_way)}")
    assert len(checked.ranks) == 2 and sum(together.values()) > 100
    for seen, counted in zip(sorted(checked.ranks, key=lambda rank: rank.label), played.profiled, strict=True):
        replayed = sum(calls for (_, phase), calls in counted.items() if phase == "replayed")
        assert (seen.calls, seen.replayed) == (sum(counted.values()), replayed), (seen.label, counted)
    assert by_way == together
