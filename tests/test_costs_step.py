"""What a step and a band cost: sums with their intervals, what is missing from them, and how both are shown.

Without these a step would show one number for two things, a sum that leaves calls out without saying so, or a figure without its origin.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cost_files import NCCL_TESTS, cells, published, write
from scipy import stats

from sglang_probe import Group, bands, cli, step
from sglang_probe._costs.bands import BandCost
from sglang_probe._costs.costs import load_costs
from sglang_probe._measure.format import MeasurementError
from sglang_probe._measure.measurement import Measurement
from sglang_probe._show.costs import cost_line, total_text
from sglang_probe._show.page import to_html, to_text
from sglang_probe._show.step import step_page
from sglang_probe._step.costs import Total, cost_calls
from sglang_probe._step.step import Step

LAUNCH = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 2 --disable-custom-all-reduce"
TOKENS = (1, 4, 64, 512)
ROW = 7168 * 2
EAGER: dict[str, Any] = {"phase": "eager"}
# By path, phase: device and host of five processes at one token; larger sizes cost more.
TIMES = {
    ("torch_distributed", "eager"): ([8.0, 8.1, 7.9, 8.2, 7.8], [41.0, 43.0, 42.0, 40.0, 44.0]),
    ("pynccl_out_of_place", "eager"): ([7.9, 8.0, 8.1, 8.0, 8.0], [31.0, 33.0, 32.0, 30.0, 34.0]),
    ("pynccl_in_place", "captured"): ([7.4, 7.6, 7.5, 7.5, 7.5], [0.5, 0.5, 0.6, 0.4, 0.5]),
    ("pynccl_out_of_place", "captured"): ([7.6, 7.4, 7.5, 7.6, 7.5], [0.5, 0.6, 0.5, 0.5, 0.5]),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The motivating step's sizes on two NVLinked GPUs."""
    groups = []
    for (path, phase), (device, host) in TIMES.items():
        for i, tokens in enumerate(TOKENS):
            more = [us * (1 + i) for us in device]
            groups.append(cells(tokens * ROW, more, host, [us + 1 for us in host], path=path, phase=phase))
    return write(tmp_path_factory.mktemp("costs") / "2x_h200.jsonl", *groups)


def costed(file: Any, batch: int = 1, context: str = "eager", **keywords: Any) -> Step:
    keywords = {"gpu": "h200", "sglang": "0.5.6", **keywords}
    return step(keywords.pop("launch", LAUNCH), batch=batch, context=context, costs=file, **keywords)


def t_interval(values: list[float]) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    return float(low), float(high)


# -------------------------------------------------------------------------------------------------------------------- the sums


@pytest.mark.parametrize("batch", TOKENS)
@pytest.mark.parametrize(
    ("context", "path", "phase"), [("eager", "torch_distributed", "eager"), ("capture", "pynccl_in_place", "captured")]
)
def test_a_step_is_the_sum_of_its_calls_with_an_interval(file: Path, batch: int, context: str, path: str, phase: str) -> None:
    answer = costed(file, batch, context)
    assert answer.paths == {path: 123} and answer.tokens == batch
    device, host = TIMES[path, phase]
    device = [us * (1 + TOKENS.index(batch)) for us in device]
    assert answer.costs is not None
    for total, values in ((answer.costs.device, device), (answer.costs.host, host)):
        low, high = t_interval(values)
        assert total.us == pytest.approx(123 * np.mean(values))
        assert (total.low_us, total.high_us) == pytest.approx((123 * low, 123 * high))
        assert (total.calls, total.of, total.origins) == (123, 123, ("measured elsewhere",))


def test_the_same_calls_by_another_path_stand_beside_them(file: Path) -> None:
    eager, captured = costed(file), costed(file, context="capture")
    assert eager.costs is not None and captured.costs is not None
    assert set(eager.costs.instead) == {"pynccl_out_of_place"} == set(captured.costs.instead)
    other = eager.costs.instead["pynccl_out_of_place"]["host_us"]
    assert eager.costs.host.us - other.us == pytest.approx(123 * 10.0), "as much as the branch would have gained here"
    page = to_text(step_page(eager))
    assert "The same calls by another path" in page and "torch_distributed (taken)" in page


def test_calls_of_two_kinds_add_up_and_one_without_a_cost_makes_it_a_least(tmp_path: Path) -> None:
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 2 --enable-symm-mem"
    both = [cells(ROW, [7.0, 7.2]), cells(ROW, [4.0, 4.4], path="custom", kernel="one_shot")]
    full = costed(write(tmp_path / "both.jsonl", *both), launch=launch, sglang="0.5.2", context="capture")
    assert len(full.paths) == 2 and full.costs is not None
    n = full.paths
    assert full.costs.device.us == pytest.approx(7.1 * n["pynccl_in_place"] + 4.2 * n["custom"])
    part = costed(write(tmp_path / "one.jsonl", both[0]), launch=launch, sglang="0.5.2", context="capture")
    assert part.costs is not None and part.costs.device.calls == n["pynccl_in_place"] and part.costs.device.of == sum(n.values())
    line = to_text(step_page(part)).splitlines()[1]
    assert f"at least {total_text(part.costs.device).removeprefix('at least ')}" in line and "calls not measured" in line
    assert any("no custom" in text for text in part.costs.not_measured)


def test_one_process_gives_no_interval_and_says_so(tmp_path: Path) -> None:
    answer = costed(write(tmp_path / "m.jsonl", cells(ROW, [7.5], [0.5])), context="capture")
    assert answer.costs is not None and answer.costs.device.low_us is None
    assert "0.922 ms (no interval; measured elsewhere)" in to_text(step_page(answer))
    assert any("one process: no interval" in note for note in answer.costs.notes)


def test_a_captured_step_is_costed_by_captured_calls_and_an_eager_one_by_eager_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(ROW, [7.5, 7.5]))
    captured, eager = costed(path, context="capture"), costed(path)
    assert captured.costs is not None and captured.costs.device.calls == 123
    assert eager.costs is not None and eager.costs.device.calls == 0 and eager.costs.not_measured


def test_calls_between_the_pieces_of_a_replayed_graph_are_eager(tmp_path: Path) -> None:
    flags = "--speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    launch = f"{LAUNCH} {flags} --disable-cuda-graph --enable-piecewise-cuda-graph".replace(
        "moonshotai/Kimi-K2.5", "meta-llama/Meta-Llama-3-70B"
    )
    size = 4 * 8192 * 2
    groups = [cells(size, [9.0, 9.0], path="torch_distributed", **EAGER), cells(size, [7.0, 7.0], path="torch_distributed")]
    answer = step(launch, gpu="rtx-pro-6000", link="pcie", sglang="0.5.7", costs=write(
        tmp_path / "m.jsonl", *groups, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", link="PCIe, system"))  # fmt: skip
    assert answer.context == "piecewise_capture" and answer.paths == {"torch_distributed": 161}
    assert answer.costs is not None and answer.costs.device.us == pytest.approx(161 * 9.0)


def test_a_server_of_another_machine_is_not_costed(file: Path) -> None:
    for machine in ({"gpu": "h100"}, {"link": "pcie"}, {"launch": LAUNCH.replace("--tp 2", "--tp 8")}):
        answer = costed(file, context="capture", **machine)
        assert answer.costs is not None and not answer.costs.device.calls
        assert "no table is of" in answer.costs.not_measured[0]
        assert "cost not measured: `sglang-probe bench` on that machine measures it" in to_text(step_page(answer))


def test_fused_calls_and_calls_that_are_not_modelled_are_in_no_sum(file: Path) -> None:
    fused = costed(file, sglang="0.5.9", context="capture")
    assert fused.fused == 121 and fused.costs is not None and fused.costs.device.of == 2
    assert "The fused calls are in none of them." in to_text(step_page(fused))
    blank = costed(file, launch=f"{LAUNCH} --enable-dp-attention --dp 2")
    assert blank.calls == () and blank.costs is not None and blank.costs.device.of == 0
    assert "cost" not in to_text(step_page(blank)).lower()


def test_one_gpu_costs_nothing_and_says_nothing() -> None:
    answer = step("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct", sglang="0.5.9", gpu="h200")
    assert answer.costs is not None and answer.costs.device.of == 0 and "cost" not in to_text(step_page(answer)).lower()


# ---------------------------------------------------------------------------------------------------------- the motivating step


def test_the_example_says_what_is_published_and_what_is_not_measured() -> None:
    answer = step(example=True)
    seen = {(s.sglang, s.context): s.costs for s in (answer, *answer.alternatives)}
    for (_, context), costs in seen.items():
        assert costs is not None
        if context == "eager":
            assert costs.device.calls == costs.host.calls == 0
            assert any("no torch_distributed" in text for text in costs.not_measured)
        else:
            assert costs.device.calls == 123 and costs.device.origins == ("published",) and costs.device.low_us is None
            assert costs.host.calls == 0 and any("time of the host" in text for text in costs.not_measured)
            assert any("between 32 KiB and 64 KiB" in note for note in costs.notes)
    page = to_text(step_page(answer))
    assert "https://github.com/" in page and "not measured" in page and "(no interval; published)" in page
    data = json.loads(json.dumps(answer.to_dict()))
    assert data["costs"]["device_us"]["us"] is None and data["costs"]["device_us"]["of"] == 123
    captured = next(s for s in data["alternatives"] if s["context"] == "capture")["costs"]["device_us"]
    assert captured["calls"] == 123 and captured["origins"] == ["published"] and captured["low_us"] is None


def test_without_costs_nothing_of_them_is_shown() -> None:
    answer = step(example=True, costs="none")
    assert answer.costs is None and all(item.cost is None for item in answer.calls)
    data = answer.to_dict()
    assert data["costs"] is None and data["calls"][0]["cost"] is None
    assert "cost" not in to_text(step_page(answer)).lower()


def test_nccl_tests_cost_a_step_under_their_own_word(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TESTS)
    launch = LAUNCH.replace("moonshotai/Kimi-K2.5", "meta-llama/Meta-Llama-3-8B") + " --enable-symm-mem"
    answer = step(launch, gpu="h200", sglang="0.5.9", context="eager", costs=path)
    assert answer.paths == {"pynccl_in_place": 65} and answer.costs is not None
    assert answer.costs.elapsed.calls == 0, "its one right size is 1 KiB"
    path.write_text(NCCL_TESTS.replace("1.64       3", "1.64       0"))
    answer = step(launch, gpu="h200", sglang="0.5.9", context="eager", costs=path)
    assert answer.costs is not None and answer.costs.elapsed.origins == ("nccl-tests",) and answer.costs.device.calls == 0
    assert "from the first call to the end" in to_text(step_page(answer)).splitlines()[1]


def test_what_bench_gave_back_costs_a_step_as_its_file_does(file: Path) -> None:
    of_file, of_object = costed(file, context="capture"), costed(Measurement.read(file), context="capture")
    assert of_file.costs is not None and of_file.costs == of_object.costs and of_object.costs.device.calls == 123
    both = costed([Measurement.read(file), "shipped"], context="capture")
    assert both.costs is not None and both.costs.totals == of_file.costs.totals
    assert bands(TWO, context="capture", sglang="0.5.9", costs=Measurement.read(file)).bands


def test_a_time_from_the_first_call_to_the_end_is_shown_where_it_is_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TESTS.replace("1.64       3", "1.64       0"))
    launch = LAUNCH.replace("moonshotai/Kimi-K2.5", "meta-llama/Meta-Llama-3-8B") + " --enable-symm-mem"
    answer = step(launch, gpu="h200", sglang="0.5.9", context="eager", costs=path)
    told = to_text(step_page(replace(answer, alternatives=(answer,))))
    assert "first call to end" in told and told.count("ms (no interval; nccl-tests)") >= 1
    assert answer.costs is not None and "not time on the device" in answer.costs.not_measured[0]


# ------------------------------------------------------------------------------------------------------------- the environment


def differing(file: Path, env: dict[str, str], context: str = "capture") -> tuple[str, ...]:
    """What a step says of the environment of its costs, at a server of this one."""
    answer = costed(file, context=context)
    assert answer.server is not None
    tables = load_costs(file)
    _, sums = cost_calls(answer.calls, answer.server.groups, lambda call: answer.context, tables, env)
    shown = "\n".join(str(block) for block in cost_line(replace(answer, costs=sums)))
    assert all(f"OTHER ENVIRONMENT: {text}" in shown for text in sums.warnings)
    assert json.loads(json.dumps(sums.to_dict()))["warnings"] == list(sums.warnings)
    assert cost_calls(answer.calls, answer.server.groups, lambda call: answer.context, tables)[1].warnings == ()
    return sums.warnings


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        ({"NCCL_ALGO": "Ring"}, {}, "NCCL_ALGO is Ring where the costs of pynccl_in_place were taken"),
        ({}, {"NCCL_ALGO": "Ring"}, "NCCL_ALGO was not set where"),
        ({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}, "and is Simple at this server"),
        ({}, {"NCCL_GRAPH_MIXING_SUPPORT": "0"}, "captured calls need not wait"),
        ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "0"}, "and is 0 at this server"),
        ({"NCCL_NVLS_ENABLE": "0"}, {"NCCL_NVLS_ENABLE": "1"}, "NCCL_NVLS_ENABLE is 0 where"),
        ({}, {"NCCL_NVLS_ENABLE": "0"}, "NCCL_NVLS_ENABLE was not set where"),
        ({"NCCL_NVLS_ENABLE": "0"}, {}, ""),  # SGLang sets it itself
        ({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Ring"}, ""),
        ({"NCCL_GRAPH_MIXING_SUPPORT": "1"}, {}, ""),
        ({"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"}, {"NCCL_DEBUG": "WARN", "SGLANG_X": "1"}, ""),
    ],
)
def test_another_nccl_environment_than_the_servers_is_said_loudly(
    tmp_path: Path, there: dict[str, str], here: dict[str, str], words: str
) -> None:
    path = write(tmp_path / "m.jsonl", cells(ROW, [7.5, 7.6]), env=there)
    found = differing(path, here)
    assert (len(found) == 1 and words in found[0] and str(path) in found[0]) if words else found == ()


def test_a_table_that_does_not_tell_its_environment_says_so_where_the_server_has_one(tmp_path: Path) -> None:
    launch = LAUNCH.replace("--tp 2", "--tp 8")
    path = published(tmp_path / "p.json")
    answer = costed(path, launch=launch, context="capture", gpu="rtx-pro-6000", link="pcie")
    assert answer.server is not None
    for env, count in (({"NCCL_P2P_LEVEL": "SYS"}, 1), ({}, 0)):
        sums = cost_calls(answer.calls, answer.server.groups, lambda call: "capture", load_costs(path), env)[1]
        assert sums.device.calls and len(sums.warnings) == count
        assert all("NCCL_P2P_LEVEL is not told where" in text for text in sums.warnings)


def test_paths_without_nccl_have_no_nccl_environment(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(ROW, [4.0], path="custom", kernel="one_shot"), env={"NCCL_ALGO": "Ring"})
    answer = costed(path, launch=LAUNCH.replace(" --disable-custom-all-reduce", ""), context="capture")
    assert answer.server is not None and answer.costs is not None and answer.costs.device.calls
    sums = cost_calls(answer.calls, answer.server.groups, lambda call: "capture", load_costs(path), {})[1]
    assert sums.device.calls and sums.warnings == ()


# ------------------------------------------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (Total(of=5), "not measured"),
        (Total(802.0, 790.0, 815.0, 5, 5, ("shipped",)), "0.802 ms (0.79 to 0.815; shipped)"),
        (Total(50.0, 49.0, 51.0, 5, 5, ("measured",)), "50 us (49 to 51; measured)"),
        (Total(3780.0, None, None, 5, 5, ("published",)), "3.78 ms (no interval; published)"),
        (Total(400.0, 300.0, 500.0, 2, 5, ("shipped",)), "at least 0.4 ms (0.3 to 0.5; shipped; 3 of 5 calls not measured)"),
    ],
)  # fmt: skip
def test_a_sum_in_words(total: Total, text: str) -> None:
    assert total_text(total) == text


def test_the_answer_comes_first_and_the_cost_second(file: Path) -> None:
    answer = costed(file, context="capture")
    first, second = to_text(step_page(answer)).splitlines()[:2]
    assert first.startswith("123 x pynccl_in_place")
    assert second.startswith("cost of these 123 calls: device 0.922 ms (") and "host launching the graph 61.5 us (" in second
    html = to_html(step_page(answer))
    assert "cost of these 123 calls" in html and "measured elsewhere" in answer._repr_html_()


def test_every_call_shows_its_own_cost(file: Path) -> None:
    answer = costed(file, context="capture")
    call = json.loads(json.dumps(answer.to_dict()))["calls"][0]
    low, high = t_interval(TIMES["pynccl_in_place", "captured"][0])
    assert call["cost"]["device_us"]["us"] == pytest.approx(7.5)
    assert (call["cost"]["device_us"]["low_us"], call["cost"]["device_us"]["high_us"]) == pytest.approx((low, high))
    assert call["cost"]["device_us"]["origin"] == "measured elsewhere" and call["cost"]["not_measured"] == {}
    assert f"7.5 ({low:.3g} to {high:.3g})" in to_text(step_page(answer))


# ---------------------------------------------------------------------------------------------------------------- command line


Run = Any


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        status = cli.main(list(argv))
        out, err = capsys.readouterr()
        return status, out, err

    return call


STEP = ("step", "--launch", LAUNCH, "--gpu", "h200", "--sglang", "0.5.6", "--context", "capture")


def test_the_command_reads_files_of_costs(run: Run, file: Path) -> None:
    status, out, err = run(*STEP, "--costs", str(file))
    assert (status, err) == (0, "") and "measured elsewhere: 2x NVIDIA H200 over NVLink" in out and str(file) in out
    status, out, _ = run(*STEP, "--costs", str(file), "--json")
    assert status == 0 and json.loads(out)["costs"]["device_us"]["calls"] == 123
    status, out, _ = run(*STEP, "--costs", "none", "--json")
    assert status == 0 and json.loads(out)["costs"] is None


def test_the_first_file_that_fits_wins_on_the_command_line_too(run: Run, file: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", cells(ROW, [70.0, 70.0]))
    for order, us in (((other, file), 70.0), ((file, other), 7.5)):
        status, out, _ = run(*STEP, *(word for path in order for word in ("--costs", str(path))), "--json")
        assert status == 0 and json.loads(out)["costs"]["device_us"]["us"] == pytest.approx(123 * us)


def test_a_file_that_cannot_be_used_ends_the_command_with_its_name(run: Run, tmp_path: Path) -> None:
    status, out, err = run(*STEP, "--costs", str(tmp_path / "nowhere.jsonl"))
    assert (status, out) == (2, "") and "nowhere.jsonl" in err and "there is no such file" in err
    (tmp_path / "bad.jsonl").write_text("hello\n")
    for command in (STEP, ("bands", "--gpu", "h200", "--sglang", "0.5.9")):
        status, out, err = run(*command, "--costs", str(tmp_path / "bad.jsonl"))
        assert (status, out) == (1, "") and "bad.jsonl" in err and "no file of costs" in err


# ----------------------------------------------------------------------------------------------------------------------- bands


TWO = Group.make(world_size=2, full_nvlink=True).with_facts("given", "h200", arch=90)


def test_bands_are_costed_at_their_ends(tmp_path: Path) -> None:
    sizes = {1 << 10: 4.0, 8 << 20: 40.0}
    custom = [cells(n, [us, us + 0.2], path="custom", kernel="one_shot") for n, us in sizes.items()]
    nccl = [cells(n, [us, us]) for n, us in {1 << 20: 16.0, 16 << 20: 80.0}.items()]
    path = write(tmp_path / "m.jsonl", *custom, *nccl)
    found = bands(TWO, context="capture", sglang="0.5.9", costs=path)
    one, other = found.bands
    assert (str(one.path), str(other.path)) == ("custom", "pynccl_in_place") and one.cost is not None and other.cost is not None
    assert (
        one.cost.first is not None and one.cost.last is not None and other.cost.first is not None and other.cost.last is not None
    )
    assert (one.cost.first[0], one.cost.first[1].us) == (1 << 10, pytest.approx(4.1)), "the smallest that was measured"
    assert (one.cost.last[0], one.cost.last[1].us) == (8 << 20, pytest.approx(40.1))
    assert other.cost.first[0] == (8 << 20) + 16 and other.cost.first[1].between == (1 << 20, 16 << 20), (
        "the crossover's other side"
    )
    assert other.cost.last[0] == 16 << 20
    text = str(found)
    assert "1 KiB: 4.1 (" in text and "16 MiB: 80 (80 to 80)" in text and "measured elsewhere: 2x NVIDIA H200 over NVLink" in text
    data = json.loads(json.dumps(found.to_dict()))["bands"][0]["device_us"]
    assert data["first"]["bytes"] == 1024 and data["first"]["origin"] == "measured elsewhere" and data["not_measured"] == ""


def test_a_band_without_a_cost_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(1 << 10, [4.0, 4.0], path="custom", kernel="one_shot"))
    found = bands(TWO, context="capture", sglang="0.5.9", costs=path)
    assert found.bands[1].cost is not None and "no pynccl_in_place" in found.bands[1].cost.why
    assert "No device time" in str(found)
    elsewhere = bands(Group.make(world_size=8).with_facts("given", "h20", arch=90), sglang="0.5.9")
    assert all(isinstance(band.cost, BandCost) and "no table is of 8x h20" in band.cost.why for band in elsewhere.bands)


def test_bands_without_costs_are_as_they_were(tmp_path: Path) -> None:
    found = bands(TWO, context="capture", sglang="0.5.9", costs="none")
    assert all(band.cost is None for band in found.bands) and "device us" not in str(found)
    assert found.to_dict()["bands"][0]["device_us"] is None
    assert "device us" in str(bands(TWO, context="capture", sglang="0.5.9"))
    with pytest.raises(MeasurementError, match=r"p\.json"):
        bands(TWO, sglang="0.5.9", costs=published(tmp_path / "p.json", version=3))


def test_the_environment_of_a_launch_is_held_against_that_of_the_costs(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(ROW, [7.5, 7.6]), env={"NCCL_ALGO": "Ring"})
    for env, launch in ((None, f"NCCL_ALGO=Tree {LAUNCH}"), ({"NCCL_ALGO": "Tree"}, LAUNCH)):
        answer = costed(path, context="capture", launch=launch, env=env)
        assert "OTHER ENVIRONMENT: NCCL_ALGO is Ring where" in to_text(step_page(answer)).splitlines()[2]
        assert "and is Tree at this server" in answer.to_dict()["costs"]["warnings"][0]
    same = costed(path, context="capture", launch=f"NCCL_ALGO=Ring {LAUNCH}")
    assert same.costs is not None and same.costs.warnings == ()
