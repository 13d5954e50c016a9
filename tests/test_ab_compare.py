"""Whether the arms ran alike: what is found between them, what is left to chance, and what a verdict is refused for.

Invariant: runs and states are invented; those of this machine are in test_ab_commands.py and test_ab_targets.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_probe._ab import states
from sglang_probe._ab.compare import Difference, differences
from sglang_probe._ab.runs import Run
from sglang_probe._ab.seen import Seen, content, merged, stem
from sglang_probe._ab.sides import Declared, declared_of
from sglang_probe._ab.table import state_rows

NOTHING = Declared()


def seen(libraries: dict[str, str] | None = None, cores: str = "0-3", looks: int = 1, **env: str) -> Seen:
    return Seen(looks, {name: (value,) for name, value in env.items()}, libraries or {}, (cores,))


def gpu(sm: int = 1980, throttle: tuple[str, ...] = (), memory: int = 3201, power: float = 300.0) -> dict[str, Any]:
    return {"sm_mhz": sm, "memory_mhz": memory, "power_w": power, "temperature_c": 40, "throttle": list(throttle)}


def state(*gpus: dict[str, Any], governor: str = "performance", throttled: int = 0, quota: int = 0) -> dict[str, Any]:
    cpu = {"cores": "0-3", "governors": [governor], "throttled": throttled, "quota_throttled_us": quota}
    return {"at": "2026-01-01T00:00:00", "load": [0.5, 0.5, 0.5], "gpus": list(gpus), "cpu": cpu}


def runs(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[Run]:
    """Interleaved; each is what a Run has besides its number."""
    found = []
    for block, pair in enumerate(zip(a, b, strict=True)):
        for arm, one in zip("ab", pair, strict=True):
            found.append(Run(number=len(found), arm=arm, block=block, figures=(1.0,), **one))  # type: ignore[arg-type]
    return found


def found(a: Any, b: Any, count: int = 5, declared: Declared = NOTHING, allow: tuple[str, ...] = ()) -> tuple[Difference, ...]:
    """``a`` and ``b``: what each run of an arm has, or a function of the run's number in its arm."""
    of = [[one(i) if callable(one) else one for i in range(count)] for one in (a, b)]
    return differences(runs(of[0], of[1]), declared, allow)


# ----------------------------------------------------------------------------------------------------------- variables and libraries


def test_a_variable_of_one_arm_refuses_a_verdict_and_the_remedy_declares_it() -> None:
    (one,) = found({"seen": seen()}, {"seen": seen(NCCL_ALGO="Ring")})
    assert (
        one.refuses and one.kind == "variables" and one.text == "NCCL_ALGO is not set in a, and Ring in b, and was not declared"
    )
    assert "--b-env NCCL_ALGO=Ring" in one.remedy


def test_a_variable_with_two_values_refuses_and_declaring_it_ends_that() -> None:
    arms = {"seen": seen(NCCL_ALGO="Tree")}, {"seen": seen(NCCL_ALGO="Ring")}
    (one,) = found(*arms)
    assert "Tree in a, and Ring in b" in one.text
    assert not found(*arms, declared=declared_of({"NCCL_ALGO": "Ring"}, None))
    assert not found(*arms, allow=("NCCL_ALGO",)) and not found(*arms, allow=("variables",))
    assert found(*arms, allow=("NCCL_PROTO",))


def test_variables_that_differ_from_run_to_run_are_no_difference_of_the_arms() -> None:
    assert not found(lambda i: {"seen": seen(TORCH_PORT=str(i % 3))}, lambda i: {"seen": seen(TORCH_PORT=str((i + 1) % 3))})


def test_a_variable_that_was_seen_once_by_chance_is_no_difference() -> None:
    """A run's children may not be there yet when somebody looks."""
    assert not found(lambda i: {"seen": seen(**({"NCCL_ALGO": "Ring"} if i == 0 else {}))}, {"seen": seen()})


def test_runs_that_nobody_looked_at_say_nothing() -> None:
    assert not found({"seen": seen(looks=0)}, {"seen": seen(NCCL_ALGO="Ring")})


def test_another_content_of_one_library_refuses_and_one_content_in_two_places_does_not() -> None:
    a, b = {"seen": seen({"/x/libnccl.so.2": "11"})}, {"seen": seen({"/y/libnccl.so.2.28": "22"})}
    (one,) = found(a, b)
    assert (
        one.kind == "libraries"
        and one.name == "libnccl"
        and "/x/libnccl.so.2 in a" in one.text
        and "--allow libnccl" in one.remedy
    )
    assert not found(a, {"seen": seen({"/y/libnccl.so.2.28": "11"})})
    assert not found(a, b, declared=declared_of({}, "/y/libnccl.so.2.28")) and not found(a, b, allow=("libnccl",))
    assert not found(a, b, declared=declared_of({"LD_LIBRARY_PATH": "/y"}, None))
    assert found(a, b, declared=declared_of({"PYTHONPATH": "/y"}, None))


def test_an_arm_that_did_not_load_its_nccl_or_another_besides_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"\x7fELF of b")
    declared = declared_of({}, str(path), "b")
    ((_, _, told),) = declared.nccl
    other, own = {"/usr/lib/libnccl.so.2": "11"}, {str(path): told}
    assert not found({"seen": seen(other)}, {"seen": seen(own)}, declared=declared)
    (one,) = found({"seen": seen(other)}, {"seen": seen(other)}, declared=declared)
    assert one.refuses and one.text == f"b was to load {path}, and loaded /usr/lib/libnccl.so.2"
    (one,) = found({"seen": seen(other)}, {"seen": seen(other | own)}, declared=declared)
    assert "and loaded /usr/lib/libnccl.so.2 besides" in one.text
    (one,) = found({"seen": seen(other)}, {"seen": seen()}, declared=declared)
    assert "was never seen to load it" in one.text
    assert not found({"seen": seen(other)}, {"seen": seen(looks=0)}, declared=declared)


def test_a_library_that_one_arm_alone_loads_is_what_it_does() -> None:
    assert not found({"seen": seen({"/x/libnccl.so.2": "11"})}, {"seen": seen()})


@pytest.mark.parametrize(
    ("path", "name"),
    [("/x/libnccl.so.2.28.9", "libnccl"), ("/x/libgomp-a34b3233.so.1", "libgomp"), ("/x/libc10_cuda.so", "libc10_cuda")],
)
def test_a_library_is_called_by_its_stem(path: str, name: str) -> None:
    assert stem(path) == name


def test_the_content_of_a_library_is_told_by_its_ends(tmp_path: Path) -> None:
    def told(data: bytes) -> str:
        path = tmp_path / "libx.so"
        path.write_bytes(data)
        return content(str(path), (len(data), hash(data) & 0xFFFF, 1))

    body = bytes(range(256)) * 4096
    assert told(body) == told(body) != told(body[:-1] + b"\1") != told(b"\1" + body[1:]) and len(told(body)) == 16
    assert content(str(tmp_path / "none.so"), (1, 1, 1)) == "" == content(str(tmp_path / "libx.so"), (0, 0, 0))


def test_ranks_of_one_run_are_put_together() -> None:
    one = merged([seen({"/x/liba.so": "1"}, cores="0", RANK_X="0"), seen({"/x/libb.so": "2"}, cores="1", RANK_X="1")])
    assert dict(one.env) == {"RANK_X": ("0", "1")} and len(one.libraries) == 2 and one.cores == ("0", "1")


# ------------------------------------------------------------------------------------------------------------------------------ CPU


def test_other_cores_and_another_governor_refuse() -> None:
    (cores,) = found({"seen": seen(cores="0-3")}, {"seen": seen(cores="0")})
    assert cores.kind == "cores" and "a may run on cores 0-3, b on 0" in cores.text
    (governor,) = found({"before": state()}, {"before": state(governor="powersave")})
    assert governor.kind == "governor" and governor.refuses
    assert not found({"before": state()}, lambda i: {"before": state(governor="powersave" if i % 2 else "performance")})


def test_heat_of_cores_and_a_used_up_share_refuse_where_they_came_over_one_arm() -> None:
    for more in ({"throttled": 3}, {"quota": 9}):
        (one,) = found({"before": state(), "after": state()}, {"before": state(), "after": state(**more)})
        assert one.kind == "throttle" and one.refuses and "in 0 of 5 runs of a, and in 5 of 5 of b" in one.text
        (both,) = found(*[{"before": state(), "after": state(**more)}] * 2)
        assert not both.refuses


# ----------------------------------------------------------------------------------------------------------------------------- GPUs


def test_throttling_of_one_arm_refuses_and_of_both_is_told() -> None:
    hot = {"after": state(gpu(), gpu(throttle=("software_thermal",)))}
    (one,) = found({"after": state(gpu(), gpu())}, hot)
    assert (
        one.refuses
        and one.kind == "throttle"
        and "GPUs were held down by software_thermal" in one.text
        and "--allow throttle" in one.remedy
    )
    (both,) = found(hot, hot)
    assert not both.refuses and "5 of 5 runs of a" in both.text


def test_throttling_now_and_then_is_told_and_does_not_refuse() -> None:
    some = lambda i: {"after": state(gpu(throttle=("software_power_cap",) if i == 2 else ()))}  # noqa: E731
    (one,) = found({"after": state(gpu())}, some)
    assert not one.refuses and "0 of 5 runs of a, and in 1 of 5 of b" in one.text


def test_idle_gpus_and_clocks_that_somebody_set_are_no_throttling() -> None:
    assert not found({"after": state(gpu())}, {"after": state(gpu(throttle=("idle", "applications_clocks")))})


def test_clocks_that_differ_beyond_noise_refuse() -> None:
    (one,) = found(lambda i: {"after": state(gpu(1980 - i))}, lambda i: {"after": state(gpu(1755 + i))}, count=8)
    assert one.kind == "clocks" and one.refuses and "SM clock of busy GPUs was 1,977 MHz in a, and 1,759 MHz in b" in one.text


def test_clocks_that_differ_within_noise_or_by_little_do_not() -> None:
    clocks = (1980, 1755, 1900, 1830, 1980, 1770, 1800, 1950)
    assert not found(lambda i: {"after": state(gpu(clocks[i]))}, lambda i: {"after": state(gpu(clocks[-i]))}, count=8)
    assert not found({"after": state(gpu(1980))}, {"after": state(gpu(1965))}, count=12)  # under 1 %
    assert not found({"after": state(gpu(1980))}, {"after": state(gpu(1755))}, count=3)  # so few show nothing


def test_clocks_are_those_of_the_slowest_gpu_that_works() -> None:
    idle = gpu(345, throttle=("idle",))
    (one,) = found({"after": state(gpu(1980), idle)}, {"after": state(gpu(1980), gpu(1500))}, count=6)
    assert "1,980 MHz in a, and 1,500 MHz in b" in one.text


def test_states_while_a_run_went_on_count_as_well_as_its_end() -> None:
    busy, idle = state(gpu(1500)), state(gpu(345, throttle=("idle",)))
    (one,) = found({"during": (state(gpu(1980)),), "after": idle}, {"during": (busy,), "after": idle}, count=6)
    assert one.kind == "clocks"


def test_arms_that_ran_alike_have_no_difference() -> None:
    same = {"seen": seen({"/x/libnccl.so.2": "11"}, NCCL_ALGO="Ring"), "before": state(gpu()), "after": state(gpu())}
    assert not found(same, same)


# ---------------------------------------------------------------------------------------------------------------------------- shown


def test_both_arms_stand_side_by_side_for_people() -> None:
    one = {"before": state(gpu()), "after": state(gpu(1980)), "seen": seen()}
    other = {"before": state(gpu()), "after": state(gpu(1900, throttle=("software_thermal",))), "seen": seen(), "wall_s": 2.0}
    rows = {row.name: (row.a, row.b) for row in state_rows(runs([one, one], [other, other]))}
    assert rows["SM clock of busy GPUs, MHz"] == ("1,980", "1,900")
    assert rows["throttle reasons, runs"] == ("none in 2", "software_thermal in 2 of 2")
    assert rows["frequency governor"] == ("performance", "performance") and rows["seconds of a run"] == ("0", "2")


def test_a_state_of_this_machine_is_plain_and_a_file_can_hold_it() -> None:
    with states.Machine() as machine:
        one = machine.state()
    assert one["cpu"]["cores"] and set(one) == {"at", "load", "gpus", "cpu"}
    assert Run(number=0, arm="a", block=0, figures=(1.0,), before=one, after=one).to_dict()["before"] == one


def test_what_the_kernel_tells_of_a_container_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_throttled 3\nthrottled_usec 1234\n")
    monkeypatch.setattr(states, "_QUOTA", (tmp_path / "none", tmp_path / "cpu.stat"))
    folder = tmp_path / "cpu0"
    for name, text in {"cpufreq/scaling_governor": "powersave\n", "thermal_throttle/core_throttle_count": "7\n"}.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(states, "_CPUS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert states._cpu() == {"cores": "0-1", "governors": ["powersave"], "throttled": 7, "quota_throttled_us": 1234}
    (tmp_path / "cpu.stat").write_text("nr_throttled 3\nthrottled_time 5000\n")
    assert states._quota() == 5
