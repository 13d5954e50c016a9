"""The Coordinator on every release: the path taken is route's, the numbers are right, and the buffer that comes back is that release's.

On CPU ranks here; gpu/test_coordinator_gpu.py runs the same tests on GPUs. Each group is started once and toggled from case to case.
Invariant: nothing is expected of a call but what the router says of it, what NumPy sums in float64, and what stands in a table below.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import run_ranks
from run_cases import COMPILE, ERAS, GRID, REPRESENTATIVES, WORLD_SIZES, Case, Setting, cases_of, releases_from_to, unreached
from run_fixtures import Groups, device, group_of, judge_all, not_here, package, ranks_max

from sglang_probe import Coordinator, InputError, ProbeError, reach
from sglang_probe._proof.reach import rules_of
from sglang_probe._releases import resolve

# ------------------------------------------------------------------------------------------------------------------------- every case


@pytest.mark.parametrize("sglang", REPRESENTATIVES, ids=lambda name: f"{REPRESENTATIVES[name]}-{name}")
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_call_takes_the_path_that_route_says_and_sums_right(
    world_size: int, sglang: str, group_of: Groups, package: str, device: str, not_here: Counter[str]
) -> None:
    cases = [case for case in cases_of(sglang, world_size) if device == "host" or case.on_cuda]
    cases += run_ranks.once_more(cases)
    by_rank = group_of(world_size).run(run_ranks.run_all, cases, package, timeout_s=120)
    assert judge_all(cases, by_rank, not_here) == []


def test_what_does_not_run_on_this_device_says_so(
    not_here: Counter[str], device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if device == "host":
        assert not not_here  # CPU ranks have every path
    with capsys.disabled():
        for text, count in not_here.most_common():
            print(f"\n  {count} calls refused: {text}", end="")


def test_cases_are_of_every_era_and_dtype_and_both_eager_and_captured() -> None:
    cases = [case for world_size in WORLD_SIZES for name in REPRESENTATIVES for case in cases_of(name, world_size)]
    assert set(REPRESENTATIVES.values()) == set(ERAS)
    assert {case.dtype for case in cases} == {"bf16", "fp16", "fp32", "fp64"}
    assert {case.layout for case in cases} == {"plain", "dense", "odd"}
    for name in REPRESENTATIVES:
        assert {case.captured for case in cases_of(name, 2)} == {False, True}


# ------------------------------------------------------------------------------------------------------- rules that no call of 2 to 4 takes

_FIRST, _LAST = next(iter(REPRESENTATIVES)), list(REPRESENTATIVES)[-1]
Table = dict[tuple[str, int], tuple[str, str, str]]
"""(rule, world size): first and last release, and why."""
IMPOSSIBLE: Table = {  # no state of the conditions takes them, whatever the gates say
    **{("world_of_one", n): (_FIRST, _LAST, "there are more ranks") for n in WORLD_SIZES},
    **{
        ("in_place_torch_symm_mem", n): ("0.5.14", _LAST, "it asks, and where it accepts rule torch_symm_mem was first")
        for n in WORLD_SIZES
    },
}
UNREACHED: Table = {  # some state takes them, and no communicator accepts there with so many ranks
    ("custom", 3): (_FIRST, "0.5.9", "v1 has no kernel for 3 ranks, and there is no V2 yet"),
    ("quick", 3): ("0.4.10.post1", _LAST, "2, 4 or 8 ranks"),
    ("torch_symm_mem", 3): ("0.5.3.post1", _LAST, "2, 4, 6 or 8 ranks"),
    ("in_place_torch_symm_mem", 3): ("0.5.3.post3", "0.5.13.post1", "2, 4, 6 or 8 ranks"),
    ("mscclpp", 2): ("0.5.22", _LAST, "4 ranks and more, and a constructor that knows it"),
    ("mscclpp", 3): ("0.5.22", _LAST, "4, 8, 16, 32 or 64 ranks"),
    ("pcie_ipc", 3): ("0.5.22", _LAST, "2, 4 or 8 ranks"),
}
ONLY_RAISE: Table = {  # reached, but every way to it ends in an exception
    **{("mscclpp", n): ("0.4.8.post1", "0.5.20", "8 ranks and more; graph_capture() enables it half built") for n in WORLD_SIZES},
    ("amd_deterministic", 3): ("0.5.7", "0.5.10rc0", "v1 has no kernel for 3 ranks, and is called half built"),
}


def _in(table: Table, sglang: str, world_size: int) -> set[str]:
    return {
        rule for (rule, size), (first, last, _) in table.items() if size == world_size and sglang in releases_from_to(first, last)
    }


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rules_without_a_call_are_those_that_cannot_have_one(world_size: int) -> None:
    for sglang in REPRESENTATIVES:
        none, raising = unreached(sglang, world_size)
        impossible = {rule for rule in none if not reach(rule, sglang=sglang, world_size=world_size).reachable}
        assert impossible == _in(IMPOSSIBLE, sglang, world_size), sglang
        assert none - impossible == _in(UNREACHED, sglang, world_size), sglang
        assert raising == _in(ONLY_RAISE, sglang, world_size), sglang


@pytest.mark.parametrize(("rule", "world_size"), UNREACHED)
def test_no_size_dtype_or_context_of_these_groups_takes_such_a_rule_either(rule: str, world_size: int) -> None:
    first, last, _ = UNREACHED[rule, world_size]
    for sglang in {first, last}:
        for setting in GRID:
            if setting.off or setting.on:
                continue
            proof = reach(rule, sglang=sglang, group=setting.group(world_size))
            assert not proof.reachable and proof.walked and proof.reason, f"{sglang}, {setting}: {proof}"


@pytest.mark.parametrize("sglang", sorted({name for name in REPRESENTATIVES if REPRESENTATIVES[name] in ("E1", "E10", "E20")}))
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rule_that_reach_finds_in_these_groups_has_a_call(world_size: int, sglang: str) -> None:
    called = {case.decision().rule for case in cases_of(sglang, world_size)}
    for rule in set(rules_of(resolve(sglang))) - called:
        found = [s for s in GRID if not s.off and not s.on and reach(rule, sglang=sglang, group=s.group(world_size)).reachable]
        assert not found, f"{rule}: {found}"


# ----------------------------------------------------------------------------------------------------------------------------- toggles


def _each_toggle(c: Coordinator, package: str) -> list[Any]:
    tensors = run_ranks.tensors_of(c, package)
    tensor = tensors.make((4, 512), "bf16")

    def path() -> str:
        tensors.write(tensor, run_ranks.stored(run_ranks.numbers(1, c.rank), "bf16", 2048))
        reduced = c.all_reduce(tensor)
        c.wait()
        assert reduced.decision.path == reduced.path
        return str(reduced.path)

    with run_ranks.as_before(c):
        c.sglang = "0.5.9"
        took = {"built": path()}
        c.custom.disabled = True
        took["custom off"] = path()
        c.piecewise = True
        took["piecewise"] = path()
        c.sglang = "0.5.8"
        took["before the branch"] = path()
        c.sglang, c.piecewise = "0.5.9", False
        c.pynccl.disabled = False
        took["pynccl on"] = path()
        c.pynccl.disabled = True
        took["pynccl off"] = path()
        c.symmetric_memory = True
        took["symmetric memory"] = path()
        c.symmetric_memory, c.custom.disabled = False, False
        took["custom on"] = path()
        c.custom.disabled, c.sglang, c.compiling = True, "0.5.16", True
        took["traced"] = path()
        c.set_facts(own_pynccl=False)
        took["traced, no pynccl"] = path()
    return [took, path()]


def test_a_toggle_takes_effect_on_the_next_call(group_of: Groups, package: str) -> None:
    for took, after in group_of(2).run(_each_toggle, package):
        assert took == {
            "built": "custom",
            "custom off": "torch_distributed",
            "piecewise": "pynccl_out_of_place",
            "before the branch": "torch_distributed",
            "pynccl on": "pynccl_in_place",
            "pynccl off": "torch_distributed",
            "symmetric memory": "pynccl_in_place",
            "custom on": "custom",
            "traced": "pynccl_out_of_place",
            "traced, no pynccl": "torch_distributed",
        }
        assert after == "custom"


def _disable(c: Coordinator, name: str, case: Case, package: str) -> list[str]:
    tensor = run_ranks.tensors_of(c, package).make(case.shape, case.dtype)
    communicator = getattr(c, name)
    paths = []
    with run_ranks.as_before(c):
        run_ranks.set_up(c, case)
        for off in (False, True, False) if not case.setting.on else (True, False):
            communicator.disabled = off
            assert communicator.disabled is off
            paths.append(str(c.decide(tensor).path))
            if c.device == "host":
                assert c.all_reduce(tensor).path == paths[-1]
    return paths


@pytest.mark.parametrize("name", ["custom", "quick", "mscclpp", "torch_symm_mem", "pcie_ipc", "flashinfer"])
def test_each_communicator_can_be_switched_off_and_on_again(name: str, group_of: Groups, package: str, device: str) -> None:
    if name == "quick" and device == "gpu":
        pytest.skip("QuickReduce is ROCm's, and these are CUDA GPUs")
    world_size = 4 if name == "mscclpp" else 2  # MSCCL++ has no kernel for fewer ranks
    case = next(
        case
        for case in cases_of("0.5.23", world_size)
        if case.decision().path == name and name not in case.setting.off and case.context in (0, COMPILE)
    )
    for paths in group_of(world_size).run(_disable, name, case, package):
        assert len(set(paths)) == 2 and paths.count(name) == len(paths) - 1, paths


def _refusals(c: Coordinator) -> list[str]:
    texts = []
    changes: list[tuple[str, Callable[[], object]]] = [
        ("piecewise", lambda: setattr(c, "piecewise", 1)),
        ("custom.disabled", lambda: setattr(c.custom, "disabled", "yes")),
        ("custom.kernel", lambda: setattr(c.custom, "kernel", "fastest")),
        ("symmetric_memory", lambda: setattr(c, "symmetric_memory", None)),
        ("world_size", lambda: c.set_facts(world_size=c.world_size + 1)),
        ("nodes", lambda: c.set_facts(nodes=99)),
        ("warp", lambda: c.set_facts(warp=9)),
        ("sglang", lambda: setattr(c, "sglang", "0.9.9")),
        ("context", lambda: c.set_context("replay")),
        ("dtype", lambda: c.empty(4, "fp4")),
    ]
    for name, change in changes:
        before = c.settings
        try:
            change()
        except InputError as error:
            texts.append(f"{name}={error.field}")
        assert c.settings == before
    return texts


def test_a_bad_toggle_names_itself_and_changes_nothing(group_of: Groups) -> None:
    for texts in group_of(2).run(_refusals):
        names = [text.partition("=")[0] for text in texts]
        assert len(names) == 10 and [f"{name}={name}" for name in names] == texts


def _decision_of_the_call(c: Coordinator, package: str) -> tuple[bool, str, str]:
    tensor = run_ranks.tensors_of(c, package).make((4, 512), "bf16")
    with run_ranks.as_before(c):
        c.sglang = "0.5.9"
        reduced = c.all_reduce(tensor)
        decision = reduced.decision
        c.sglang, c.piecewise, c.custom.disabled = "0.5.23", True, True
        return reduced.decision == decision, str(reduced.decision.path), reduced.decision.sglang


def test_a_result_keeps_the_decision_of_its_call_whatever_is_toggled_later(group_of: Groups, package: str) -> None:
    assert group_of(2).run(_decision_of_the_call, package) == [(True, "custom", "0.5.9")] * 2


def _one(c: Coordinator) -> str:
    raise ValueError(f"rank {c.rank}")


def test_what_a_rank_raises_comes_back_and_the_group_lives_on(group_of: Groups, package: str) -> None:
    group = group_of(2)
    with pytest.raises((ValueError, ProbeError), match="rank"):
        group.run(_one)
    assert not group.closed
    case = Case("0.5.9", 2, Setting(), 0, 4096)
    assert judge_all([case], group.run(run_ranks.run_all, (case,), package), Counter()) == []
