"""What `explain` prices by: this machine's figures alone in the answer, others as an illustration, waiting apart, each with its origin.

Without these another machine's number would decide, or a figure without a spread would be taken for one with.
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cost_files import cells, published, write
from test_explain import CUSTOM_US, EIGHT, MIB, NCCL_US, R18, SERVER, by_process, runs

from sglang_probe import InputError, Measurement, cli
from sglang_probe._costs import files
from sglang_probe._explain.bounds import ASSUMED
from sglang_probe._explain.explain import explain
from sglang_probe._explain.types import Bound, Explanation, Word
from sglang_probe._verdict.runs import runs_for

# By path, phase: device, host and first to last of five processes, in us a call. Invented.
TIMES: dict[tuple[str, str], tuple[list[float], ...]] = {
    ("torch_distributed", "eager"): (
        [12.0, 12.1, 12.2, 12.0, 11.9],
        [40.0, 44.0, 41.0, 42.0, 43.0],
        [41.0, 45.0, 42.0, 43.0, 44.0],
    ),
    ("pynccl_out_of_place", "eager"): (
        [12.0, 12.1, 12.2, 12.0, 11.9],
        [31.0, 33.0, 32.0, 32.0, 32.0],
        [32.0, 34.0, 33.0, 33.0, 33.0],
    ),
    ("pynccl_in_place", "captured"): ([7.5, 7.6, 7.7, 7.5, 7.4], [0.1] * 5, [7.6, 7.7, 7.8, 7.6, 7.5]),
    ("pynccl_out_of_place", "captured"): ([7.6, 7.6, 7.7, 7.5, 7.5], [0.1] * 5, [7.7, 7.7, 7.8, 7.6, 7.6]),
}


def two_gpus(path: Path, sizes: tuple[int, ...] = (14336, 57344)) -> Path:
    groups = [cells(size, *us, path=name, phase=phase) for (name, phase), us in TIMES.items() for size in sizes]
    return write(path, *groups)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that brings the motivating GPU's published table, and two NVLinked H200 that this code measured."""
    folder = tmp_path / "data"
    folder.mkdir()
    published(folder / "published_rtx.json")
    (folder / "2x_h200.jsonl.gz").write_bytes(gzip.compress(two_gpus(tmp_path / "2x_h200.jsonl").read_bytes()))
    monkeypatch.setattr(files, "_SHIPPED", folder)
    files.shipped_tables.cache_clear()
    yield
    files.shipped_tables.cache_clear()


def own(found: Explanation) -> list[Bound]:
    return [bound for bound in found.bounds if not bound.illustration]


def shown(found: Explanation, kind: str) -> list[Bound]:
    return [bound for bound in found.bounds if bound.illustration and bound.kind == kind]


# ------------------------------------------------------------------------------------------------------------------- another machine


def test_what_ships_is_an_illustration_and_the_branch_is_a_gain_there(shipped: None) -> None:
    found = explain(example=True)
    eager, captured = shown(found, "not_taken")
    assert (eager.before, eager.after) == ("torch_distributed, eager", "pynccl_out_of_place, eager")
    assert eager.origins == ("shipped",) and eager.machine == "2x NVIDIA H200 over NVLink"
    assert eager.ms is not None and eager.ms.value == pytest.approx(123 * (33 - 43) / 1e3) and (eager.ms.high or 0) < 0
    assert captured.ms is not None and captured.ms.low is not None and captured.ms.low < 0 < (captured.ms.high or 0)
    (graph,) = shown(found, "eager")
    assert graph.ms is not None and graph.ms.value == pytest.approx(123 * (43 - 7.64) / 1e3)
    text = str(found)
    assert text.index("as an illustration: no part of the answer") > text.index("not measured on 8x rtx-pro-6000 over PCIe")
    origins = {number.origin for number in found.numbers if "(illustration)" in number.what and number.unit == "us a call"}
    assert origins == {"shipped"}


def test_what_ships_changes_neither_the_word_nor_a_bound_of_the_answer(shipped: None) -> None:
    for question in ({"launch": R18 + " --enable-piecewise-cuda-graph --disable-cuda-graph"}, {"launch": R18}):
        with_it, without = (explain(runs(19), runs(29), costs=costs, **question, **SERVER) for costs in (None, "none"))
        assert (with_it.word, with_it.sentence) == (without.word, without.sentence)
        routes = [[bound.ms for bound in own(found) if bound.kind == "routes"] for found in (with_it, without)]
        assert routes[0] == routes[1]
        assert not any(bound.illustration for bound in without.bounds), "no costs at all were asked for"


@pytest.mark.parametrize("speculates", [False, True])
def test_of_plain_decoding_no_other_machine_answers_either(tmp_path: Path, speculates: bool) -> None:
    # The illustration of a plain step stands last among the bounds of routes.
    other = write(
        tmp_path / "h200.jsonl",
        cells(8 * MIB, device_us=(200.0,) * 5, elapsed_us=(200.0,) * 5, world_size=8),
        cells(8 * MIB, path="custom", kernel="two_shot", device_us=(150.0,) * 5, elapsed_us=(150.0,) * 5, world_size=8),
        gpus=8,
    )
    seen = {"plain_before": runs(90, "tok/s"), "plain_after": runs(80, "tok/s")}
    more = {"before": "20ms", "after": "21ms"} if speculates else {}
    found = explain(**more, **seen, costs=other, **{**EIGHT, "gpu": "h100"})
    shown = found.bound("routes", illustration=True)
    assert shown is not None and shown.ms is not None and "H200" in shown.machine
    assert found.bound("routes").ms is None  # type: ignore[union-attr]
    assert found.word is Word.COULD and "H200" not in found.sentence + found.reason and "not measured" in found.sentence


def test_on_the_machine_that_ships_its_figures_are_the_answer(shipped: None) -> None:
    launch = R18.replace("--tp 8", "--tp 2 --disable-custom-all-reduce") + " --enable-piecewise-cuda-graph --disable-cuda-graph"
    found = explain(runs(19), runs(29), **{**SERVER, "launch": launch, "gpu": "h200", "link": "nvlink"})
    assert found.word is Word.CANNOT_TOO_SMALL and not any(bound.illustration for bound in found.bounds)
    bound = found.bound("routes")
    assert bound is not None and bound.ms is not None and bound.origins == ("shipped",)
    assert "shipped on 2x NVIDIA H200 over NVLink" in found.reason


def test_cpu_ranks_illustrate_nothing(tmp_path: Path) -> None:
    group = cells(43008, [12.0] * 3, [40.0] * 3, path="torch_distributed", phase="eager", device="host")
    other = cells(43008, [12.0] * 3, [30.0] * 3, path="pynccl_out_of_place", phase="eager", device="host")
    found = explain(example=True, costs=write(tmp_path / "cpu.jsonl", group, other))
    assert {origin for bound in found.bounds if bound.illustration for origin in bound.origins} == {"shipped"}, (
        "GPUs, of the package"
    )


# ----------------------------------------------------------------------------------------------------------------------- which figures


def test_a_figure_without_an_interval_stands_for_a_factor_of_two_and_says_so(tmp_path: Path) -> None:
    group = cells(8 * MIB, [200.0], [1.0], [200.0], world_size=8)
    other = cells(8 * MIB, [150.0], [1.0], [150.0], world_size=8, path="custom", kernel="two_shot")
    found = explain(runs(20), runs(16.7), costs=write(tmp_path / "one.jsonl", group, other, gpus=8), **EIGHT)
    bound = found.bound("routes")
    assert bound is not None and bound.ms is not None and bound.assumed == ASSUMED
    assert (bound.ms.value, bound.ms.low, bound.ms.high) == pytest.approx((65 * -0.05, 65 * (0.075 - 0.4), 65 * (0.3 - 0.1)))
    assert ASSUMED in str(found) and ASSUMED in found.reason


def test_eager_calls_cost_the_longer_of_host_and_device_where_no_whole_was_timed(tmp_path: Path) -> None:
    times = {
        "pynccl_out_of_place": ([12.0, 12.2, 12.1], [32.0, 33.0, 31.0]),
        "torch_distributed": ([12.0, 12.2, 12.1], [42.0, 43.0, 41.0]),
    }
    groups = [cells(43008, *us, path=path, phase="eager") for path, us in times.items()]
    found = explain(example=True, costs=write(tmp_path / "a.jsonl", *groups))
    (bound,) = (bound for bound in shown(found, "not_taken") if bound.origins != ("shipped",))
    assert bound.ms is not None and bound.ms.value == pytest.approx(123 * -10 / 1e3)
    assert bound.quantity == "device; where eager, the longer of host and device"


def test_the_pattern_that_is_asked_for_is_the_only_one_that_counts(tmp_path: Path) -> None:
    groups = [
        cells(8 * MIB, **by_process([us + more for us in times]), **way, pattern=pattern, compute_us=compute)
        for pattern, compute, more in (("interleaved", 2.0, 0.0), ("back_to_back", 0.0, 50.0))
        for times, way in ((NCCL_US, {}), (CUSTOM_US, {"path": "custom", "kernel": "two_shot"}))
    ]
    file = write(tmp_path / "both.jsonl", *groups, gpus=8)
    ceilings = {}
    for pattern in (None, "interleaved", "back_to_back"):
        ceiling = explain(runs(20), runs(16.7), costs=file, pattern=pattern, **EIGHT).bound("ceiling")
        assert ceiling is not None and ceiling.ms is not None
        ceilings[pattern] = ceiling.ms.value
    assert ceilings == pytest.approx({None: 13.0, "interleaved": 13.0, "back_to_back": 16.25})


def test_another_nccl_environment_stands_above_the_answer(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", cells(8 * MIB, **by_process(NCCL_US)), gpus=8, env={"NCCL_ALGO": "Ring"})
    found = explain(runs(20), runs(16.7), costs=file, **EIGHT)
    assert any(text.startswith("NCCL_ALGO is Ring where the costs of pynccl_in_place were taken") for text in found.warnings)
    assert str(found).startswith("! NCCL_ALGO")


# ----------------------------------------------------------------------------------------------------------------------------- waiting


def split(cell_list: list[Any], wait: float, transfer: float) -> list[Any]:
    return [replace(cell, wait_us=[[wait]] * cell.world_size, transfer_us=[[transfer]] * cell.world_size) for cell in cell_list]


def test_waiting_for_the_last_rank_is_told_apart_and_is_in_no_bound(tmp_path: Path) -> None:
    before = write(tmp_path / "before.jsonl", split(cells(8 * MIB, **by_process(NCCL_US)), 3.0, 190.0), gpus=8)
    custom = cells(8 * MIB, path="custom", kernel="two_shot", **by_process(CUSTOM_US))
    after = write(tmp_path / "after.jsonl", split(custom, 9.0, 140.0), gpus=8)
    found = explain(before, after, costs=[before, after], **EIGHT)
    assert [(w.where, w.wait_us.value, w.transfer_us.value) for w in found.waiting] == [
        ("before the change", 3.0, 190.0),
        ("after the change", 9.0, 140.0),
        ("custom, captured, 8 MiB", 9.0, 140.0),
    ]
    assert "of one call, waiting for the last rank changed by +6 us, which no change of path causes" in found.findings
    without = explain(before, after, costs=[Measurement.read(before), write(tmp_path / "plain.jsonl", custom, gpus=8)], **EIGHT)
    assert without.bound("routes") == found.bound("routes") and without.word is found.word


def test_waits_of_another_machine_are_not_this_ones(tmp_path: Path) -> None:
    group = split(cells(8 * MIB, **by_process(NCCL_US)), 3.0, 190.0)
    other = write(tmp_path / "pcie.jsonl", group, gpus=8, link="PCIe (same root)")
    found = explain(runs(20), runs(16.7), costs=other, **EIGHT)
    assert not found.waiting and "not measured here: `sglang-probe bench --split CALLS` measures it" in str(found)


# ------------------------------------------------------------------------------------------------------------------------- experiments


def test_single_runs_are_told_how_many_runs_would_tell_by_the_spread_of_such_calls(shipped: None) -> None:
    found = explain(example=True)
    told = next(text for text in found.findings if text.startswith("plain decoding: about "))
    spread = float(next(iter(re.findall(r"differ by ([0-9.]+) %", told)))) / 100
    values = TIMES["pynccl_in_place", "captured"][2]
    mean = sum(values) / 5
    assert spread == pytest.approx((sum((v - mean) ** 2 for v in values) / 4) ** 0.5 / mean, rel=0.02)
    assert f"about {runs_for(82 / 89 - 1, spread)} runs" in told and "2x NVIDIA H200 over NVLink (shipped)" in told


@pytest.fixture
def ab_accepts() -> Any:
    """What `sglang-probe ab` makes of a line: it must know every option."""

    def arms(line: str) -> list[Any]:
        from sglang_probe._cli.ab import add_parsers, arm_of

        parser = cli.Parser(prog="sglang-probe")
        commands = parser.add_subparsers(dest="command", parser_class=cli.Parser)
        add_parsers(commands)
        words = shlex.split(line)
        assert words[:2] == ["sglang-probe", "ab"]
        args = parser.parse_args(words[1:])
        return [arm_of(args, name) for name in "ab"]

    return arms


def test_every_experiment_is_a_line_that_ab_understands(ab_accepts: Any) -> None:
    asked = [
        explain(example=True),
        explain(runs(20), runs(16.7), costs="none", **EIGHT),
        explain("20ms", "16.7ms", costs="none", **EIGHT),
        explain("20ms", "16ms", **{**EIGHT, "launch": None, "batch": 1, "context": None}),
        explain(plain_before="89tok/s", plain_after="82tok/s", launch=R18, **SERVER),
    ]
    lines = [one.line for found in asked for one in found.experiments]
    assert len(lines) >= 7
    for line in lines:
        a, b = ab_accepts(line)
        assert str(a) != str(b), line


def test_the_experiment_on_a_graph_is_the_same_call_both_ways(ab_accepts: Any) -> None:
    a, b = ab_accepts(explain(example=True).experiment)
    assert (a.name, a.phase, b.name, b.phase) == ("pynccl_in_place", "captured", "torch_distributed", "eager")
    assert a.shape() == b.shape() == (3, 7168) and a.world_size == b.world_size == 8


def test_lines_can_be_run_one_after_the_other_and_arms_of_one_path_have_names(ab_accepts: Any) -> None:
    lines = [one.line for one in explain(example=True).experiments]
    outs = [line.split(" --out ")[1] for line in lines]
    assert len(lines) == len(set(outs)) == 2 and all(out.endswith(".jsonl") and " " not in out for out in outs)
    found = explain("19ms", "29ms", costs="none", **{**EIGHT, "batch": 8})
    a, b = ab_accepts(found.experiment)
    assert (a.name, b.name) == ("one_shot", "one_shot") and (a.label, b.label) == ("captured", "eager")


def test_no_experiment_shows_a_key_and_what_is_established_is_tried_again_as_such(ab_accepts: Any) -> None:
    launch = f"HF_TOKEN=x1 NCCL_ALGO=Ring {R18} --api-key k2 --admin-api-key=k3 --port 3000"
    for figures in (("19ms", "29ms"), (runs(19), runs(29))):
        found = explain(*figures, launch=launch, **SERVER)
        one = next(one for one in found.experiments if "BEFORE" in one.line)
        assert not any(word in one.line for word in ("x1", "k2", "k3", "api-key", "HF_TOKEN"))
        assert "--port 3000" in one.line and "NCCL_ALGO=Ring" in one.line
        ab_accepts(one.line)
        settled = found.seen[0].settled
        asks = "whether it is there again, interleaved on one machine" if settled else "whether there is a difference at all"
        assert one.why.startswith(asks)


def test_plain_decoding_is_tried_again_without_speculation(ab_accepts: Any) -> None:
    found = explain(plain_before="89tok/s", plain_after="82tok/s", launch=f"NCCL_ALGO=Ring {R18}", **SERVER)
    line = next(one.line for one in found.experiments if "BEFORE" in one.line)
    a, b = ab_accepts(line)
    assert a.argv[0] == "BEFORE/bin/python" and b.argv[0] == "AFTER/bin/python" and a.argv[1:] == b.argv[1:]
    assert dict(a.env) == {"NCCL_ALGO": "Ring"} and not any(word.startswith("--speculative") for word in a.argv)
    assert {"--model-path", "moonshotai/Kimi-K2.5", "--tp", "8"} <= set(a.argv)
    assert a.figure.read("Output token throughput (tok/s):         2235.33   \n", 1.0) == (2235.33,)


def test_a_costs_file_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="no such file"):
        explain(example=True, costs="nowhere.jsonl")
