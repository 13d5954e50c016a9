"""Cost files and what is looked up in them: only what was measured on such a machine, in such a way; else the reason that came nearest.

Without these a table of two GPUs on NVLink would be told for eight on PCIe, an eager figure for a captured one, a WRONG one for a right.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cost_files
import pytest
from cost_files import cells, published, write

from sglang_probe import Group, InputError
from sglang_probe._costs import machine as machines
from sglang_probe._costs.costs import CallCost, Costs, Wanted, load_costs
from sglang_probe._costs.files import read_tables, shipped_tables
from sglang_probe._costs.machine import Target, target_of
from sglang_probe._costs.table import ORIGINS, Figure
from sglang_probe._measure import provenance
from sglang_probe._measure.format import MeasurementError
from sglang_probe._measure.measurement import Measurement
from sglang_probe._measure.nccl_tests import parse_nccl_tests
from sglang_probe._measure.provenance import stamp

TWO_H200 = Target("cuda", 90, "h200", "nvlink", 2, 1)
CALL = Wanted(TWO_H200, "pynccl_in_place", "", "captured", "bf16", 4096, "0.5.9")


def ask(path: Path, /, **changes: Any) -> CallCost:
    return load_costs(path).call(replace(CALL, **changes))


def why(path: Path, /, **changes: Any) -> str:
    cost = ask(path, **changes)
    assert cost.device is None
    return cost.missing["device_us"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """1 KiB, 4 KiB and 16 KiB, three processes each."""
    sizes = {1024: 6.0, 4096: 7.0, 16384: 9.0}
    groups = [cells(n, [us, us + 0.1, us - 0.1], [us / 10] * 3) for n, us in sizes.items()]
    return write(tmp_path / "h200.jsonl", *groups)


# ------------------------------------------------------------------------------------------------------------------ what is told


def test_a_measured_size_is_told_with_its_interval_and_all_it_rests_on(file: Path) -> None:
    cost = ask(file)
    figure = cost.device
    assert figure is not None and figure.us == pytest.approx(7.0)
    assert figure.estimate.low_us == pytest.approx(7.0 - 4.303 * 0.1 / 3**0.5, rel=1e-3)
    assert (figure.origin, str(figure.machine)) == ("measured elsewhere", "2x NVIDIA H200 over NVLink")
    told = json.loads(json.dumps(cost.to_dict()))["device_us"]
    expected = {"origin": "measured elsewhere", "source": str(file), "pattern": "interleaved", "compute_us": 2.0, "driver": "native",
                "processes": 3, "between_bytes": [], "phase": "captured"}  # fmt: skip
    assert {key: told[key] for key in expected} == expected and "2031-05-06" in told["stamp"]
    assert cost.host is not None and cost.host.us == pytest.approx(0.7) and cost.elapsed is None


def test_the_slower_rank_and_not_the_samples_decide(tmp_path: Path) -> None:
    cell = replace(cells(4096, [7.0])[0], device_us=([1.0, 3.0, 99.0], [2.0, 2.0, 5.0, 5.0, 5.0]))
    figure = ask(write(tmp_path / "m.jsonl", [cell])).device
    assert figure is not None and figure.us == 5.0 and figure.estimate.low_us is None


def test_a_figure_of_this_very_machine_is_called_measured(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(4096, [7.0, 7.2]), host=stamp().host)
    figure = ask(path).device
    assert figure is not None and figure.origin == "measured"
    assert machines.this_host() == stamp().host


def test_a_users_file_of_another_machine_is_neither_shipped_nor_of_this_one(tmp_path: Path) -> None:
    """ "shipped" says that this package vouches for it."""
    for i, host in enumerate(("gpus:0123456789abcdef", "")):
        figure = ask(write(tmp_path / f"{i}.jsonl", cells(4096, [7.0, 7.2]), host=host)).device
        assert figure is not None and figure.origin == "measured elsewhere" and figure.to_dict()["origin"] == "measured elsewhere"
        assert str(figure.table).startswith("measured elsewhere: 2x NVIDIA H200 over NVLink, ")
    assert "measured elsewhere" in ORIGINS


def test_where_nothing_tells_this_machine_from_others_no_file_is_called_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "host_identity", lambda: "")
    figure = ask(write(tmp_path / "m.jsonl", cells(4096, [7.0, 7.2]), host="")).device
    assert figure is not None and figure.origin == "measured elsewhere"


def test_what_was_read_is_taken_as_the_file_is(file: Path, tmp_path: Path) -> None:
    """A Measurement object, also a rescued one, as step(costs=...) and bands(costs=...) get it."""
    whole = Measurement.read(file)
    figure, same = ask(file).device, load_costs(whole).call(CALL).device
    assert figure is not None and same is not None and same.estimate == figure.estimate and same.table.source == str(file)
    first = write(tmp_path / "first.jsonl", cells(4096, [70.0, 70.0]))
    for order, us in (([whole, first], 7.0), ([first, whole, "shipped"], 70.0), ((Measurement.read(first), str(file)), 70.0)):
        found = load_costs(order).call(CALL).device
        assert found is not None and found.us == pytest.approx(us)
    perf = load_costs([parse_nccl_tests(cost_files.NCCL_TESTS)]).call(replace(CALL, phase="eager", nbytes=1024)).elapsed
    assert perf is not None and perf.us == 10.0
    assert load_costs(replace(whole, path="")).tables[0].name == "a Measurement in memory"
    with pytest.raises(InputError, match="give it alone"):
        load_costs(["none", whole])
    with pytest.raises(InputError, match="a Measurement"):
        load_costs(5)  # type: ignore[arg-type]


def test_a_rescued_measurement_costs_what_is_left_of_it(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:4], lines[4][:50] + b"?" + lines[4][51:], *lines[5:]]))
    rescued = Measurement.read(file, rescue=True)
    figure = load_costs(rescued).call(CALL).device
    assert rescued.partial and figure is not None and figure.estimate.processes == 2
    assert any("PARTIAL" in note for note in figure.notes) and any("line 5 is damaged" in note for note in figure.notes)
    file.write_bytes(b"".join([lines[0][:50] + b"?" + lines[0][51:], *lines[1:]]))
    nowhere = load_costs(Measurement.read(file, rescue=True)).call(CALL)
    assert nowhere.device is None and "its header is damaged" in nowhere.missing["device_us"]


def test_interleaved_comes_before_back_to_back_and_the_engine_before_ours(tmp_path: Path) -> None:
    plain = {"pattern": "back_to_back", "compute_us": 0.0}
    groups = {
        "bare": cells(4096, [16.0], **plain),
        "native": cells(4096, [7.6]),
        "engine": cells(4096, [7.7], driver="engine"),
        "bare engine": cells(4096, [17.0], driver="engine", **plain),
    }
    found = ask(write(tmp_path / "m.jsonl", *groups.values()))
    assert found.device is not None and found.device.us == 7.7
    assert "interleaved with 2 us, engine" in str(found.device.series)
    rest = ask(write(tmp_path / "n.jsonl", groups["bare"], groups["bare engine"]))
    assert rest.device is not None and rest.device.us == 17.0 and "back to back" in str(rest.device.series)


def test_a_kernel_of_another_release_is_told_as_such(tmp_path: Path) -> None:
    old = cells(4096, [4.0], path="custom", kernel="one_shot_push", release="0.5.12")
    path = write(tmp_path / "m.jsonl", old, cells(4096, [3.0], path="custom", kernel="one_shot_push", release="0.5.16"))
    asked = {"path": "custom", "kernel": "one_shot_push"}
    same, other = ask(path, **asked, release="0.5.12").device, ask(path, **asked, release="0.5.14").device
    assert same is not None and same.us == 4.0 and not any("as of" in note for note in same.notes)
    assert other is not None and any("one_shot_push as of SGLang" in note for note in other.notes)


def test_a_kernel_of_the_very_release_comes_before_another_driver(tmp_path: Path) -> None:
    asked = {"path": "custom", "kernel": "one_shot_push"}
    ours = cells(4096, [4.0], **asked, release="0.5.12")
    path = write(tmp_path / "m.jsonl", ours, cells(4096, [3.0], **asked, release="0.5.16", driver="engine"))
    same, other = ask(path, **asked, release="0.5.12").device, ask(path, **asked, release="0.5.14").device
    assert same is not None and same.us == 4.0 and other is not None and other.us == 3.0


def test_the_nccl_environment_of_a_measurement_stands_beside_its_figures(tmp_path: Path) -> None:
    env = {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}
    figure = ask(write(tmp_path / "m.jsonl", cells(4096, [7.0]), env=env)).device
    assert figure is not None and figure.notes == ("measured with NCCL_NVLS_ENABLE=0",)


# ------------------------------------------------------------------------------------------------------------- what is not measured


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nbytes": 512}, "512 B is outside of what was measured, 1 KiB to 16 KiB"),
        ({"nbytes": 16388}, "outside of what was measured"),
        ({"dtype": "fp16"}, "no captured pynccl_in_place of fp16"),
        ({"phase": "eager"}, "no eager pynccl_in_place"),
        ({"path": "custom", "kernel": "one_shot"}, "no custom"),
        ({"path": "pynccl_out_of_place"}, "no pynccl_out_of_place"),
        ({"kernel": "one_shot"}, "no pynccl_in_place with kernel one_shot"),
        ({"target": replace(TWO_H200, gpu="h100")}, "no table is of 2x h100 over NVLink; there are 2x NVIDIA H200 over NVLink"),
        ({"target": replace(TWO_H200, link="pcie")}, "no table is of 2x h200 over PCIe"),
        ({"target": replace(TWO_H200, world_size=8)}, "no table is of 8x h200 over NVLink"),
        ({"target": replace(TWO_H200, nodes=2)}, "on 2 nodes"),
        ({"target": replace(TWO_H200, device="hip", gpu="mi300x")}, "no table is of 2x mi300x"),
        ({"target": replace(TWO_H200, gpu="", arch=120)}, "no table is of 2x SM120 GPU"),
        ({"target": Target("cuda", 120, "rtx-pro-6000", "pcie", 8, 1)}, "no table is of 8x rtx-pro-6000 over PCIe"),
        ({"target": Target("host", 90, "", "", 2, 1)}, "no table is of 2 CPU ranks"),
    ],
)
def test_what_was_not_measured_says_why(file: Path, changes: dict[str, Any], reason: str) -> None:
    text = why(file, **changes)
    assert text.startswith("not measured: ") and reason in text


def test_cpu_ranks_are_no_gpus_and_gpus_are_no_cpu_ranks(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(4096, [70.0], device="host"), gpus=0, cpu={"model": "a CPU"})
    assert "CPU ranks on a CPU" in why(path)
    figure = ask(path, target=Target("host", 90, "", "", 2, 1)).device
    assert figure is not None and figure.us == 70.0
    both = write(tmp_path / "n.jsonl", cells(4096, [70.0], device="host"), cells(4096, [7.0]))
    gpus, host = ask(both).device, ask(both, target=Target("host", 90, "", "", 2, 1)).device
    assert gpus is not None and gpus.us == 7.0 and host is not None and host.us == 70.0


def test_a_group_that_names_no_gpu_is_matched_by_its_architecture_and_says_so(file: Path) -> None:
    group = Group.make(world_size=2, arch=90, full_nvlink=True)
    figure = ask(file, target=target_of(group)).device
    assert figure is not None and any("no GPU is named: taken for NVIDIA H200" in note for note in figure.notes)
    named = group.with_facts("given", "h100", arch=90)
    assert target_of(named).gpu == "h100" and "no table is of 2x h100" in why(file, target=target_of(named))


def test_a_gpu_that_is_in_no_list_is_known_by_the_name_that_its_driver_gives(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(4096, [7.0]), name="NVIDIA Imaginary 9000")
    named = Group.make(world_size=2, full_nvlink=True).with_facts("given", "nvidia imaginary 9000", arch=90)
    figure = ask(path, target=target_of(named)).device
    assert figure is not None and figure.notes == ()
    for source in ("h200", "options", ""):
        assert "no table is of 2x" in why(path, target=target_of(named.with_facts("given", source, arch=90)))


def test_a_wrong_result_is_never_a_cost_nor_is_a_line_over_it(tmp_path: Path) -> None:
    groups = [cells(n, [us, us]) for n, us in ((1024, 6.0), (16384, 9.0))]
    wrong = cells(4096, [1.0, 1.0])
    wrong[0] = replace(wrong[0], wrong=1)  # found in one process set: in none is it used
    path = write(tmp_path / "m.jsonl", *groups, wrong)
    for nbytes in (4096, 2048, 8192):
        assert "WRONG" in why(path, nbytes=nbytes)
    right = ask(path, nbytes=1024).device
    assert right is not None and right.us == 6.0
    alone = write(tmp_path / "n.jsonl", [replace(cell, wrong=2) for cell in cells(4096, [1.0])])
    assert "WRONG" in why(alone)


def test_a_measurement_of_two_of_eight_gpus_is_of_two(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(4096, [7.0]), gpus=8)
    figure = ask(path).device
    assert figure is not None and str(figure.machine) == "2x NVIDIA H200 over NVLink"
    assert "no group of 8 ranks" in why(path, target=replace(TWO_H200, world_size=8))


def test_a_reason_names_the_ranks_that_were_looked_at(tmp_path: Path) -> None:
    eight = write(tmp_path / "m.jsonl", cells(4096, [7.0]), gpus=8)
    cost = ask(eight)
    assert cost.device is not None and "no time of the host (measured elsewhere: 2x NVIDIA H200 over" in cost.missing["host_us"]
    for changes in ({"dtype": "fp16"}, {"nbytes": 512}, {"path": "custom"}):
        assert "2x NVIDIA H200" in why(eight, **changes) and "8x" not in why(eight, **changes)
    assert "8x NVIDIA H200" in why(eight, target=replace(TWO_H200, world_size=4)), "which groups it has is asked of the whole"
    shipped = load_costs().call(replace(CALL, nbytes=512)).missing["host_us"]  # below all that was measured
    assert "2x NVIDIA H200" in shipped and "8x" not in shipped


def test_a_measurement_that_names_no_gpus_says_what_it_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(4096, [7.0]), gpus=0, missing={"gpus": "nvidia-ml-py is not installed"})
    assert "it does not name its GPUs (nvidia-ml-py is not installed)" in why(path) and "measure again" in why(path)
    hidden = write(tmp_path / "n.jsonl", cells(4096, [7.0]), env={"CUDA_VISIBLE_DEVICES": "7"})
    assert "none of its GPUs was visible (CUDA_VISIBLE_DEVICES=7)" in why(hidden)


def test_ranks_that_shared_a_gpu_are_no_machine(tmp_path: Path) -> None:
    apart = write(tmp_path / "apart.jsonl", cells(4096, [7.0]), plan={"ordinals": [0, 1]})
    assert ask(apart).device is not None
    shared = write(tmp_path / "shared.jsonl", cells(4096, [7.0]), gpus=1, plan={"ordinals": [0, 0]})
    assert "its ranks shared GPUs (those of ranks 0 to 1: 0, 0)" in why(shared)


@pytest.mark.parametrize("wish", ["1,2", "2,1", "GPU-1,GPU-2", "1, 2, 7, 0"])
def test_only_gpus_that_were_visible_are_the_machine(tmp_path: Path, wish: str) -> None:
    linked = [
        ["self", "PCIe, system", "PCIe, system"],
        ["PCIe, system", "self", "NVLink x18"],
        ["PCIe, system", "NVLink x18", "self"],
    ]
    mixed = {"names": ["NVIDIA L40S", "NVIDIA H200", "NVIDIA H200"], "links": linked}
    figure = ask(write(tmp_path / "m.jsonl", cells(4096, [7.0]), **mixed, env={"CUDA_VISIBLE_DEVICES": wish})).device
    assert figure is not None and str(figure.machine) == "2x NVIDIA H200 over NVLink"
    assert "1x NVIDIA L40S, 2x NVIDIA H200 linked in several ways" in why(
        write(tmp_path / "all.jsonl", cells(4096, [7.0]), **mixed)
    )


def test_without_tables_nothing_is_measured() -> None:
    assert Costs().call(CALL).missing["device_us"] == "not measured: no table of costs is used"


# ------------------------------------------------------------------------------------------------------------------------ files


def test_a_file_that_is_gzipped_whole_is_read_as_it_is(file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "h200.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    one, other = ask(file).device, ask(packed).device
    assert one is not None and other is not None and one.estimate == other.estimate
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(MeasurementError, match="damaged: it begins as gzip") as error:
        load_costs(packed)
    assert error.value.path == str(packed)


def test_an_unfinished_file_is_used_and_says_that_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", cells(4096, [7.0]), finish=False)
    figure = ask(path).device
    assert figure is not None and any("PARTIAL" in note for note in figure.notes)
    with pytest.raises(InputError, match="unfinished: give that"):
        load_costs(tmp_path / "m.jsonl")


def _damaged(data: bytes) -> bytes:
    return data.replace(b'"dtype":"bf16"', b'"dtype":"fp16"', 1)


def _newer(data: bytes) -> bytes:
    import zlib

    line, _, rest = data.partition(b"\n")
    body = line[:-20].replace(b'"version":1', b'"version":9') + b"}"
    return body[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(body) + rest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_damaged, "damaged"),
        (_newer, "install a newer sglang_probe"),
        (lambda data: data[:-40], "damaged|cut"),
        (lambda data: data[5:], "line 1"),
        (lambda data: b"", "empty"),
        (lambda data: b"hello\n", "no file of costs"),
        (lambda data: b"\xff\xfe\x00", "no file of costs"),
        (lambda data: b'{"format": "sglang_probe published costs"}', "version"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(file: Path, change: Any, reason: str) -> None:
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(MeasurementError, match=reason) as error:
        load_costs(file)
    assert error.value.path == str(file) and str(file) in str(error.value)


@pytest.mark.parametrize("costs", [5, b"x", [5], [None, 5], "", ["none", "shipped"], ["none", "none"], {"a": 1}])
def test_bad_costs_are_named(costs: Any) -> None:
    with pytest.raises(InputError) as error:
        load_costs(costs)
    assert error.value.field == "costs" and error.value.remedy


def test_files_are_asked_in_their_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{us}.jsonl", cells(4096, [us, us])) for us in (7.0, 8.0)]
    for order in (paths, paths[::-1]):
        figure = load_costs(order).call(CALL).device
        assert figure is not None and f"{figure.us}" in order[0].name
    assert load_costs(["shipped"]).tables == load_costs().tables == load_costs("shipped").tables
    assert load_costs("none").tables == () and load_costs([]).tables == ()


# ------------------------------------------------------------------------------------------------------------------- nccl-tests


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(cost_files.NCCL_TESTS)
    return path


def test_what_nccl_tests_printed_is_a_table_with_its_own_word(printed: Path) -> None:
    cost = ask(printed, phase="eager", path="pynccl_out_of_place", nbytes=1024)
    assert cost.device is None and cost.host is None, "its times are neither ours"
    figure = cost.elapsed
    assert figure is not None and (figure.us, figure.origin, figure.estimate.low_us) == (20.0, "nccl-tests", None)
    assert figure.series.driver == "nccl-tests" and "NCCL 2.28.9" in figure.table.stamp
    assert any("does not say how the GPUs are linked" in note for note in figure.notes)
    assert "no captured pynccl_in_place" in why(printed)


def test_a_row_of_nccl_tests_with_a_wrong_result_is_not_used(printed: Path) -> None:
    right = ask(printed, phase="eager", path="pynccl_out_of_place", nbytes=65536).elapsed
    assert right is not None and right.us == 40.0
    cost = ask(printed, phase="eager", nbytes=65536)
    assert cost.elapsed is None and "WRONG" in cost.missing["elapsed_us"]


def test_a_wrong_row_of_nccl_tests_is_called_wrong_whatever_is_asked(printed: Path) -> None:
    cost = ask(printed, phase="eager", nbytes=65536)
    assert all("WRONG" in cost.missing[name] for name in ("device_us", "host_us", "elapsed_us")), cost.missing
    beside = ask(printed, phase="eager", nbytes=1024)
    assert beside.elapsed is not None and "results of 1 of its 2 sizes are WRONG: those are not used" in beside.elapsed.notes
    printed.write_text(printed.read_text().replace("0.10       0", "0.10       7"))
    for nbytes in (512, 1024, 65536, 1 << 20):  # no size of this half is right
        assert all("WRONG" in text for text in ask(printed, phase="eager", nbytes=nbytes).missing.values())


def test_what_nccl_tests_does_not_time_is_said(printed: Path) -> None:
    text = ask(printed, phase="eager", path="pynccl_out_of_place", nbytes=1024).missing["device_us"]
    assert "nccl-tests gives the time from the first call to the end, not time on the device (nccl-tests: 2x NVIDIA H200" in text


def test_without_the_lines_of_its_ranks_nccl_tests_output_says_what_is_missing(printed: Path) -> None:
    printed.write_text("".join(line for line in printed.read_text().splitlines(keepends=True) if "Rank" not in line))
    for quantity in ask(printed, phase="eager", nbytes=1024).missing.values():
        assert str(printed) in quantity and "`#  Rank  0" in quantity and "are missing: keep all that" in quantity


def test_launch_times_of_nccl_tests_are_the_hosts(printed: Path) -> None:
    printed.write_text(printed.read_text().replace("    time ", " cputime ").replace("    20.00 ", "     4.10 "))
    cost = ask(printed, phase="eager", path="pynccl_out_of_place", nbytes=1024)
    assert cost.host is not None and cost.host.us == 4.1 and cost.elapsed is None


def test_ranks_of_nccl_tests_on_several_hosts_are_several_nodes(printed: Path) -> None:
    printed.write_text(printed.read_text().replace("some-host device  1", "other-host device  1"))
    (table,) = read_tables(printed)
    assert table.machine.nodes == 2
    assert ask(printed, phase="eager", nbytes=1024).elapsed is None


# -------------------------------------------------------------------------------------------------------------------- published


PCIE = Wanted(Target("cuda", 120, "rtx-pro-6000", "pcie", 8, 1), "pynccl_in_place", "", "captured", "bf16", 1024, "0.5.9")


def test_published_figures_carry_their_citation(tmp_path: Path) -> None:
    figure = load_costs(published(tmp_path / "p.json")).call(PCIE).device
    assert figure is not None and (figure.us, figure.origin) == (10.0, "published")
    assert "https://example.org/1" in figure.table.source and figure.notes == ("invented", "invented too")
    assert figure.estimate.low_us is None and figure.estimate.processes == 0
    spread = published(tmp_path / "q.json", series={"rows": [[1024, 10.0, 9.0, 12.0]]})
    figure = load_costs(spread).call(PCIE).device
    assert figure is not None and (figure.estimate.low_us, figure.estimate.high_us) == (9.0, 12.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "reads version 1"),
        ({"format": "else", "what": "sglang_probe published costs"}, "format"),
        ({"source": {"title": "x"}}, "source"),
        ({"machine": {"gpu": "x", "count": 8, "link": "thread", "nodes": 1}}, "machine.link"),
        ({"more": 1}, "no such member"),
        ({"cautions": "x"}, "cautions"),
        ({"what": ""}, "what"),
        ({"series": {"rows": [[1024, -1.0]]}}, "a time is a number above 0"),
        ({"series": {"rows": [[1024, True]]}}, "a time is a number above 0"),
        ({"series": {"rows": [[0, 1.0]]}}, "whole number"),
        ({"series": {"rows": [[2048, 1.0], [1024, 1.0]]}}, "sizes must grow"),
        ({"series": {"rows": [[1024, 1.0, 2.0, 3.0]]}}, "within its interval"),
        ({"series": {"phase": "sometimes"}}, "eager, captured"),
        ({"series": {"pattern": "interleaved"}}, "no place in this format"),
        ({"series": {"quantity": "luck_us"}}, "device_us"),
        ({"series": {"dtype": "bf17"}}, "dtype"),
    ],
)
def test_published_figures_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = published(tmp_path / "p.json", **changes)
    with pytest.raises(MeasurementError, match=reason) as error:
        load_costs(path)
    assert error.value.path == str(path)


def test_the_same_series_twice_is_refused(tmp_path: Path) -> None:
    path = published(tmp_path / "p.json")
    plain = json.loads(path.read_text())
    plain["series"] *= 2
    path.write_text(json.dumps(plain))
    with pytest.raises(MeasurementError, match="twice"):
        load_costs(path)


# ------------------------------------------------------------------------------------------------------- what this package ships


def test_every_file_that_is_shipped_is_read_and_cites_its_source() -> None:
    tables = shipped_tables()
    folder = Path(machines.__file__).parent / "data"
    assert tables and len({table.name if table.origin != "published" else table.source for table in tables}) == len(
        [path for path in folder.iterdir() if path.is_file()]
    )
    for table in tables:
        assert table.origin in ("shipped", "published") and table.series
        if table.origin == "published":
            assert "https://github.com/" in table.source and table.stamp and table.notes
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2 << 20, "the wheel stays small"


def test_published_paths_are_those_that_their_release_takes_there() -> None:
    """The source calls SGLang's all-reduce and does not say what it took: this package's routing does."""
    from sglang_probe import Call, route

    compared = 0
    for table in shipped_tables():
        if table.origin != "published":
            continue
        for series in table.series:
            gpu = machines.GPUS[machines.short_name(table.machine.gpus[0])]
            linked = table.machine.part(series.world_size).link == "nvlink"
            group = Group.make(
                world_size=series.world_size, arch=gpu.arch, full_nvlink=linked, multicast=gpu.multicast and linked
            )
            for point in series.points["device_us"]:
                context = "capture" if series.phase == "captured" else "eager"
                decision = route(Call(point.nbytes, series.dtype), group, context=context, sglang=series.release)
                assert (str(decision.path), decision.kernel) == (series.path, series.kernel), (str(table), point)
                compared += 1
    assert compared > 100


def test_eight_pcie_cards_are_told_published_figures_and_never_those_of_nvlink() -> None:
    figure = load_costs().call(replace(PCIE, nbytes=43008)).device
    assert figure is not None and figure.origin == "published" and figure.between == (32768, 65536)
    left, right = (load_costs().call(replace(PCIE, nbytes=n)).device for n in figure.between)
    assert left is not None and right is not None and left.us < figure.us < right.us
    assert {f.machine.gpus[0] for f in (left, figure, right)} == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}


def test_a_figure_is_a_figure_of_a_table() -> None:
    cost = load_costs().call(replace(PCIE, nbytes=43008))
    assert isinstance(cost.device, Figure) and "time of the host" in cost.missing["host_us"]
