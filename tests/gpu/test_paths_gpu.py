"""Every path that runs on GPUs, right from 16 bytes to its own ceiling before anybody asks what it costs; what it returns; and which
captured inputs peers can read where they lie. Where ranks are more than GPUs they share them, without NCCL; CUDA's MPS saves minutes.

Expectations stand here or are float64 sums. Invariant: a row counts only where the path and the kernel that were asked for are those
that ran; the GPU counts custom's launches itself.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from gpu import ranks  # noqa: E402 # imports torch
from gpu.sharing import need, ordinals  # noqa: E402 # pytest.importorskip comes first
from run_fixtures import Groups, group_of  # noqa: E402 # pytest.importorskip comes first

from sglang_probe import Coordinator, LocalGroup, ProbeUnavailable  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
SMALL = [16, 48, KIB, 16 * KIB + 16, 64 * KIB]
SIZES: dict[str, list[int]] = {
    **{name: [*SMALL, 256 * KIB, 512 * KIB - 16, 512 * KIB, MIB, 8 * MIB] for name in ranks.V1_KERNELS},
    **{name: [*SMALL, 256 * KIB, 512 * KIB - 16, MIB, 8 * MIB, 16 * MIB] for name in ranks.V2_KERNELS},
    "limit": [*SMALL, 64 * KIB + 16, 256 * KIB, MIB, 8 * MIB],
    "pynccl_in_place": [*SMALL, MIB, 16 * MIB],
    "pynccl_out_of_place": [*SMALL, MIB, 16 * MIB],
    "torch_distributed": [*SMALL, MIB, 16 * MIB],
    "torch_symm_mem": [*SMALL, MIB, 16 * MIB],
}
RUN_S = 120.0


@pytest.fixture(scope="session")
def device() -> Literal["host", "gpu"]:
    return "gpu"


@pytest.fixture(scope="session")
def ranks_max() -> int:
    """As many as a kernel has."""
    return 8


# ------------------------------------------------------------------------------------------------------------------------ right sums


def faults_of(row: dict[str, Any], name: str) -> list[str]:
    """What is wrong with one size and dtype on one rank."""
    found = [f"{row['wrong']} of {row['checked']} elements are wrong, by up to {row['worst']:g}"] if row["wrong"] else []
    if (row["path"], row["kernel"]) != ranks.expected(name):
        found.append(f"it ran {row['path']} {row['kernel']}")
    real = row["calls"] + row["warm"]
    if row["path"].startswith("pynccl") and row["captured"]:
        real = row["warm"]  # NCCL counts nothing on the GPU: its calls are those that were enqueued outside of a capture
    if not row["path"].startswith("torch") and row["ran"] != real:  # torch's are nobody's to count
        found.append(f"{row['ran']} runs were counted, not {real}")
    return found


def judge(by_rank: list[list[dict[str, Any]]], name: str) -> list[str]:
    """All faults of all ranks; prints what was checked."""
    rows = [row for one in by_rank for row in one]
    found = [
        f"{name}: rank {rank}, {row['nbytes']} bytes of {row['dtype']}: {text}"
        for rank, one in enumerate(by_rank)
        for row in one
        for text in faults_of(row, name)
    ]
    same = [all(row["sums"] == first["sums"] for row in rest) for first, *rest in zip(*by_rank, strict=True)]
    print(
        f"{name} {'captured' if rows[0]['captured'] else 'eager'}: {sum(row['checked'] for row in rows):,} elements, "
        f"{sum(row['wrong'] for row in rows)} wrong, worst {max(row['worst'] for row in rows):.2g}; "
        f"ranks bit-equal in {sum(same)} of {len(same)} sizes"
    )
    if name in ranks.CUSTOM:  # they promise it; NCCL's and torch's are told above
        differ = [f"{row['nbytes']} bytes of {row['dtype']}" for row, good in zip(by_rank[0], same, strict=True) if not good]
        found += [f"{name}: ranks have different bits: {text}" for text in differ]
    return found


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ranks.PATHS)
def test_every_path_sums_right_up_to_its_ceiling_and_is_the_one_that_ran(name: str, captured: bool, group_of: Groups) -> None:
    dtypes = ["bf16"] if name == "torch_symm_mem" else list(ranks.DTYPES)
    need(name)
    try:
        by_rank = group_of(2).run(checked, ranks.options_of(name), SIZES[name], dtypes, captured, timeout_s=RUN_S)
    except ProbeUnavailable as error:
        if name == "torch_symm_mem":
            pytest.skip(str(error).splitlines()[0])
        raise
    assert all(len(one) == len(SIZES[name]) * len(dtypes) for one in by_rank)
    assert judge(by_rank, name) == []


MORE = [
    *((world_size, name) for world_size in (4, 6, 8) for name in (*ranks.V1_KERNELS, "limit")),
    *((world_size, name) for world_size in range(3, 9) for name in ranks.V2_KERNELS),
]
"""More ranks than two, in processes: v1's rules have even numbers."""


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(("world_size", "name"), MORE)
def test_custom_sums_right_among_more_ranks(world_size: int, name: str, captured: bool, group_of: Groups) -> None:
    sizes = [16, 48, 16 * KIB + 16, 256 * KIB, MIB]
    by_rank = group_of(world_size).run(checked, ranks.options_of(name), sizes, ["bf16"], captured, 2, timeout_s=RUN_S)
    assert judge(by_rank, name) == []


def checked(c: Coordinator, options: dict[str, Any], *args: Any) -> list[dict[str, Any]]:
    with ranks.as_before(c):
        return ranks.check(c, options, *args)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ["pynccl_in_place", "pynccl_out_of_place"])
def test_nccl_sums_256_mib_right(name: str, captured: bool, group_of: Groups) -> None:
    need(name)
    args = (ranks.options_of(name), [256 * MIB], ["bf16"], captured, 1)
    assert judge(group_of(2).run(checked, *args, timeout_s=RUN_S), name) == []


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(
    ("sglang", "name"),
    [("0.5.12", name) for name in ranks.V2_KERNELS if name != "two_shot_push"] + [("0.5.23", name) for name in ranks.V2_KERNELS],
)
def test_kernels_are_right_as_older_and_newer_releases_launch_them(
    sglang: str, name: str, captured: bool, group_of: Groups
) -> None:
    sizes = [*SMALL, 512 * KIB - 16, 16 * MIB]
    args = (ranks.options_of(name, sglang), sizes, ["bf16"], captured)
    assert judge(group_of(2).run(checked, *args, timeout_s=RUN_S), name) == []


# ------------------------------------------------------------------------------------------------------------------- what comes back

# release, name, and what an eager call, a warm-up and a captured call give back: the input itself, or a new tensor
RETURNED = [
    ("0.5.9", "one_shot", "new", "new", "new"),
    ("0.5.9", "two_shot", "new", "new", "new"),
    ("0.5.12", "one_shot_push", "input", "input", "input"),
    ("0.5.12", "one_shot_pull", "input", "new", "new"),
    ("0.5.12", "two_shot_pull", "input", "input", "input"),
    ("0.5.16", "one_shot_push", "new", "new", "new"),
    ("0.5.16", "one_shot_pull", "new", "new", "new"),
    ("0.5.16", "two_shot_pull", "new", "new", "input"),
    ("0.5.23", "two_shot_push", "new", "new", "new"),
    ("0.5.9", "pynccl_in_place", "input", "input", "input"),
    ("0.5.9", "pynccl_out_of_place", "new", "new", "new"),
    ("0.5.9", "torch_distributed", "input", "input", "input"),
]


def returned(c: Coordinator, options: dict[str, Any], nbytes: int) -> list[tuple[str, str, bool]]:
    """(what came back, what it holds, whether the input was left alone where it must be) of an eager, a warm-up and a captured call."""
    count = nbytes // 2
    seen = []

    def look(reduced: Any, x: Any, mine: Any, total: Any) -> None:
        torch.cuda.current_stream().synchronize()
        new = reduced.tensor is not x
        holds = "sum" if bool((reduced.tensor.double() == total).all()) else "zeros" if not reduced.tensor.any() else "neither"
        apart = reduced.tensor.data_ptr() != x.data_ptr() and bool((x == mine).all())
        seen.append(("new" if new else "input", holds, apart if new else reduced.tensor.data_ptr() == x.data_ptr()))

    with ranks.as_before(c):
        ranks.configure(c, options)
        mine, total = ranks.exact_input(c, count, "bf16", 1)
        x = mine.clone()
        look(c.all_reduce(x), x, mine, total)
        with c.graph_capture():
            x = mine.clone()
            look(c.all_reduce(x), x, mine, total)
            with c.graph() as graph:
                reduced = c.all_reduce(x)
        mine, total = ranks.exact_input(c, count, "bf16", 2)
        x.copy_(mine)
        graph.replay()
        look(reduced, x, mine, total)
    return seen


@pytest.mark.parametrize(("sglang", "name", "eager", "warm_up", "captured"), RETURNED)
def test_the_returned_tensor_is_the_one_that_this_release_returns(
    sglang: str, name: str, eager: str, warm_up: str, captured: str, group_of: Groups
) -> None:
    need(name)
    dry = name in ranks.V1_KERNELS  # v1's warm-up communicates nothing
    wanted = [(eager, "sum", True), (warm_up, "zeros" if dry else "sum", True), (captured, "sum", True)]
    for seen in group_of(2).run(returned, ranks.options_of(name, sglang), 16 * KIB, timeout_s=RUN_S):
        assert seen == wanted


# ----------------------------------------------------------------------------------------------------------------- registered inputs

PULLS = ["one_shot", "two_shot", "one_shot_pull", "two_shot_pull"]
"""Peers read their inputs where they lie. The other kernels send theirs, and register nothing."""


def views(c: Coordinator, options: dict[str, Any], sizes: list[int]) -> dict[str, Any]:
    """Captured inputs at 16-byte offsets inside of one large tensor, each rank's at other offsets."""
    whole = torch.full((sum(sizes) + 256 * len(sizes) + 4096,), 0x5A, dtype=torch.uint8, device="cuda")
    between = torch.ones_like(whole, dtype=torch.bool)
    inputs, at = [], 16 * (1 + 5 * c.rank)
    for nbytes in sizes:
        inputs.append(whole[at : at + nbytes].view(torch.bfloat16))
        between[at : at + nbytes] = False
        at += nbytes + 16 * (1 + c.rank)
    wrong = 0
    with ranks.as_before(c):
        ranks.configure(c, options)
        with c.graph_capture():
            c.all_reduce(inputs[0].clone())
            with c.graph() as graph:
                reduced = [c.all_reduce(x) for x in inputs]
        for turn in range(3):
            totals = []
            for i, x in enumerate(inputs):
                mine, total = ranks.exact_input(c, x.numel(), "bf16", turn + i)
                x.copy_(mine)
                totals.append(total)
            graph.replay()
            torch.cuda.current_stream().synchronize()
            wrong += sum(int((one.tensor.double() != total).sum()) for one, total in zip(reduced, totals, strict=True))
    return {"wrong": wrong, "addresses": c.captured_addresses, "beside": int((whole[between] != 0x5A).sum())}


@pytest.mark.parametrize("name", [*PULLS, "one_shot_push", "limit"])
def test_captured_inputs_inside_of_a_larger_allocation_are_read_where_they_lie(name: str, group_of: Groups) -> None:
    sizes = [16, 48, KIB, 64 * KIB + 16, MIB]
    for seen in group_of(2).run(views, ranks.options_of(name), sizes, timeout_s=RUN_S):
        assert seen == {"wrong": 0, "addresses": len(sizes) if name in PULLS else 0, "beside": 0}


def graphs(c: Coordinator, options: dict[str, Any]) -> dict[str, Any]:
    """Three graphs: one, then two in one graph_capture() that share an input with it; replayed in turn, inputs changed before each."""
    a, b = (torch.zeros(n, dtype=torch.bfloat16, device="cuda") for n in (2048, 40 * 1024))
    wrong, addresses, made = [], [], []
    replays = 0

    def replay(graph: Any, calls: list[tuple[Any, Any]]) -> None:
        nonlocal replays
        replays += 1
        totals = {}
        for x, _ in calls:
            mine, totals[x.data_ptr()] = ranks.exact_input(c, x.numel(), "bf16", replays)
            x.copy_(mine)
        graph.replay()
        torch.cuda.current_stream().synchronize()
        wrong.append(sum(int((reduced.tensor.double() != totals[x.data_ptr()]).sum()) for x, reduced in calls))

    def capture(*inputs: Any) -> None:
        with c.graph() as graph:
            made.append((graph, [(x, c.all_reduce(x)) for x in inputs]))

    with ranks.as_before(c):
        ranks.configure(c, options)
        with c.graph_capture():
            c.all_reduce(a.clone())
            capture(a)
        addresses.append(c.captured_addresses)
        replay(*made[0])
        with c.graph_capture():
            capture(b)
            capture(a, b)
        addresses.append(c.captured_addresses)
        for which in (1, 0, 2, 2, 0, 1, 0):
            replay(*made[which])
    return {"wrong": wrong, "addresses": addresses}


@pytest.mark.parametrize("name", [name for name in ranks.PATHS if name != "torch_symm_mem"])
def test_graphs_that_are_captured_one_after_another_all_stay_right(name: str, group_of: Groups) -> None:
    need(name)
    for seen in group_of(2).run(graphs, ranks.options_of(name), timeout_s=RUN_S):
        assert seen == {"wrong": [0] * 8, "addresses": [1, 3] if name in PULLS else [0, 0]}


def addresses(c: Coordinator, options: dict[str, Any], of_torch: int, of_ours: int) -> dict[str, Any]:
    """Many captured inputs in one graph: rows of one tensor, and allocations of their own."""
    count = 512
    rows = torch.zeros((of_torch, count + 8), dtype=torch.bfloat16, device="cuda")
    inputs = [row[:count] for row in rows] + [c.empty(count, "bf16") for _ in range(of_ours)]
    wrong = 0
    with ranks.as_before(c):
        ranks.configure(c, options)
        with c.graph_capture():
            c.all_reduce(inputs[0].clone())
            with c.graph() as graph:
                reduced = [c.all_reduce(x) for x in inputs]
        for turn in range(2):
            mine, total = ranks.exact_input(c, count * len(inputs), "bf16", turn)
            for x, values in zip(inputs, mine.view(len(inputs), count), strict=True):
                x.copy_(values)
            graph.replay()
            torch.cuda.current_stream().synchronize()
            wrong += int((torch.stack([one.tensor for one in reduced]).view(-1).double() != total).sum())
    return {"wrong": wrong, "addresses": c.captured_addresses}


@pytest.mark.parametrize("name", PULLS)
def test_three_hundred_captured_addresses_reach_every_peer(name: str, group_of: Groups) -> None:
    for seen in group_of(2).run(addresses, ranks.options_of(name), 280, 20, timeout_s=RUN_S):
        assert seen == {"wrong": 0, "addresses": 300}


# ---------------------------------------------------------------------------------------------------------------- what cannot be shared


def expandable(c: Coordinator, pushing: dict[str, Any], pulling: dict[str, Any]) -> tuple[str, list[int]]:
    """(why registered inputs are refused, wrong elements of what works all the same): torch maps its memory piece by piece here."""
    wrong = []
    mine, total = ranks.exact_input(c, 4096, "bf16", 3)

    def compare(reduced: Any) -> None:
        torch.cuda.current_stream().synchronize()
        wrong.append(int((reduced.tensor.double() != total).sum()))

    ranks.configure(c, pushing)
    with c.graph_capture():
        c.all_reduce(mine.clone())
        with c.graph() as graph:
            reduced = c.all_reduce(mine)
    graph.replay()
    compare(reduced)
    ranks.configure(c, pulling)
    said = "nothing"
    try:
        with c.graph_capture():
            c.all_reduce(mine.clone())
            with c.graph():
                c.all_reduce(mine)
    except ProbeUnavailable as error:
        said = str(error)
    for options in (pulling, pushing):
        ranks.configure(c, options)
        compare(c.all_reduce(mine))
    return said, wrong


def test_captured_inputs_that_cuda_ipc_cannot_share_are_refused_by_the_name_of_their_setting() -> None:
    args = ranks.options_of("one_shot_push"), ranks.options_of("one_shot")
    with LocalGroup(2, device="gpu", ordinals=ordinals(), env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}) as group:
        for text, wrong in group.run(expandable, *args, timeout_s=RUN_S):
            assert "PYTORCH_CUDA_ALLOC_CONF" in text and "expandable_segments" in text and "captured input 0" in text, text
            assert wrong == [0, 0, 0]
