"""What the rank processes of test_hook_gpu.py run: SGLang's groups with the hook in them, and their own count of what they ask for.

Functions of (coordinator, ...) for LocalGroup.run; what a rank has made so far is kept beside its coordinator (Scene).
Invariant: a rank counts by itself what it asks for, and never reads that from the ring.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu.sharing import share

import sglang_probe as probe
from sglang_probe import ProbeUnavailable
from sglang_probe._bench.engine_ranks import agree
from sglang_probe._bench.engine_state import Built, _enabled, engine_of
from sglang_probe._bench.engine_watch import watch
from sglang_probe._bench.native import stream_of
from sglang_probe._live.counts import kinds_of
from sglang_probe._record.ring import Ring
from sglang_probe.hook import session as hook_session

GROUPS = {
    "none": Built(),
    "pynccl": Built(pynccl=True),
    "v1": Built(pynccl=True, custom=True, v2=0),
    "v2": Built(pynccl=True, custom=True, v2=1),
}
"""Custom all-reduce is off in the first two."""
NCCL = {"torch_distributed", "pynccl_in_place", "pynccl_out_of_place"}
PATHS = {"none": {"torch_distributed"}, "pynccl": NCCL, "v1": {*NCCL, "custom"}, "v2": {*NCCL, "custom"}}
"""What runs in each, over all phases."""
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
CUSTOM_DTYPES = ("bf16", "fp16", "fp32")
DTYPES = {"none": (*TORCH,), "pynccl": (*TORCH,), "v1": CUSTOM_DTYPES, "v2": ("bf16",)}
"""V2 is compiled anew for each type, which takes longer than all the rest of this file."""
KIB, MIB = 1 << 10, 1 << 20
SIZES: tuple[int, ...] = (16, 18, 48, 1000, 4 * KIB, 4098, 14336, 64 * KIB, 256 * KIB, 512 * KIB, 512 * KIB + 16, MIB, 1000002)
SIZES += (2 * MIB, 8 * MIB, 8 * MIB + 16, 16 * MIB)
PROFILED = (4 * KIB, MIB)
TRIED = (4 * KIB, 8 * MIB)
TIMED, TIMED_CALLS = 64 * KIB, 100
EAGER, REPLAYS = 40, 30
Reduce = Callable[[Any], Any]


class Cell:
    """Tensors of one size and type. A step changes the input, reduces it, and compares on the GPU: small integers, whose sums are exact."""

    def __init__(self, rank: int, world: int, count: int, dtype: str) -> None:
        shape = (-1, KIB) if count % KIB == 0 else (-1,)
        index = torch.arange(count, dtype=torch.int32, device="cuda")
        parts = [((index * (2 * of + 3) + of).remainder(17) - 8).to(TORCH[dtype]).reshape(shape) for of in range(world)]
        self.base, self.total, self._world = parts[rank], sum(parts), world
        self.x, self.want = torch.empty_like(self.base), torch.empty_like(self.base)
        self.turn = torch.zeros((), dtype=TORCH[dtype], device="cuda")
        self.wrong, self.checked = torch.zeros((2,), dtype=torch.int64, device="cuda")

    @property
    def nbytes(self) -> int:
        return int(self.x.numel() * self.x.element_size())

    def step(self, reduce: Reduce) -> None:
        self.turn.add_(1).remainder_(3)
        torch.add(self.base, self.turn, out=self.x)
        result = reduce(self.x)
        torch.add(self.total, self.turn, alpha=self._world, out=self.want)
        self.wrong.add_((result != self.want).any())
        self.checked.add_(1)


@dataclass
class Captured:
    """A graph, and what it should count."""

    kind: str
    dtype: str
    graph: Any
    calls: int
    replays: int = 0


@dataclass
class Scene:
    """What one rank has made so far; kept beside its coordinator from one order to the next."""

    made: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    """Calls by group, phase, type and bytes."""
    cells: dict[tuple[int, str], Cell] = field(default_factory=dict)
    graphs: list[Captured] = field(default_factory=list)
    seen: dict[int, str] = field(default_factory=dict)
    """By number of the record: the path that the interpreter's profile hook saw."""
    groups: dict[str, Any] = field(default_factory=dict)


def scene_of(c: Any) -> Scene:
    scene: Scene = vars(c)["hook_scene"]
    return scene


def recorder() -> Any:
    session = hook_session.current()
    if session is None:
        raise RuntimeError(f"the hook stands aside: {[finding.text for finding in probe.hook.findings()]}")
    return session.recorder


def begin(c: Any) -> str:
    """SGLang comes up in this rank, with the hook before its first group."""
    vars(c)["hook_scene"] = Scene()
    share(c)
    engine_of(c)

    def install() -> str:
        path = probe.hook.install()
        recorder()
        return path

    return str(agree(c, "the hook", install))


def cell_of(c: Any, nbytes: int, dtype: str) -> Cell:
    count = max(1, nbytes // torch.empty((), dtype=TORCH[dtype]).element_size())
    cells = scene_of(c).cells
    if (count, dtype) not in cells:
        cells[count, dtype] = Cell(c.rank, c.world_size, count, dtype)
    return cells[count, dtype]


def direct(group: Any) -> Reduce:
    """The in-place operator by torch's own name, past all_reduce."""

    def reduce(x: Any) -> Any:
        torch.ops.sglang.inplace_all_reduce(x, group_name=group.unique_name)
        return x

    return reduce


def play(c: Any, kind: str) -> str:
    """All calls of one kind of group; "" or, on all ranks alike, why this SGLang cannot build it here."""
    scene = scene_of(c)
    try:
        group = engine_of(c).group(GROUPS[kind])
        if GROUPS[kind].custom:  # its kernels may be compiled now: each of its ways is tried
            tried = [torch.zeros(nbytes // 2, dtype=TORCH["bf16"], device="cuda") for nbytes in TRIED]
            agree(c, f"a call of {kind}", lambda: [group.all_reduce(x) for x in tried])
            scene.made.update({(str(group.unique_name), "eager", "bf16", nbytes): 1 for nbytes in TRIED})
    except ProbeUnavailable as error:
        return str(error)
    scene.groups[kind] = group
    with torch.no_grad():
        eager(c, kind, "eager", group.all_reduce)
        eager(c, kind, "eager", direct(group))
        with engine_of(c)._piecewise():
            eager(c, kind, "piecewise", group.all_reduce)
        if group.pynccl_comm is not None:
            with enabled(group):
                eager(c, kind, "eager", group.all_reduce)
        for piecewise in (False, True):
            captured(c, kind, piecewise)
    return ""


@contextlib.contextmanager
def enabled(group: Any) -> Iterator[None]:
    """pynccl in eager calls."""
    with _enabled(group.pynccl_comm, torch.cuda.current_stream):
        yield


def eager(c: Any, kind: str, phase: str, reduce: Reduce, times: int = EAGER, sizes: tuple[int, ...] = SIZES) -> None:
    scene, name = scene_of(c), str(scene_of(c).groups[kind].unique_name)

    def watched(x: Any) -> Any:
        number = recorder().counts()["head"] + 1
        seen = watch(lambda: reduce(x))
        scene.seen[number] = seen.path
        return seen.result

    for dtype in DTYPES[kind]:
        for nbytes in sizes:
            cell = cell_of(c, nbytes, dtype)
            cell.step(watched)
            for _ in range(times - 1):
                cell.step(reduce)
            scene.made[name, phase, dtype, cell.nbytes] += times
    c.wait(stream_of(c))


def captured(c: Any, kind: str, piecewise: bool) -> None:
    """As a server's runner: graph_capture() around the graphs, a warm-up of each in it, then replays of each, as many as no other has."""
    scene, made = scene_of(c), []
    group = scene.groups[kind]
    name, warm = str(group.unique_name), "piecewise" if piecewise else "warmup"
    with contextlib.ExitStack() as stack:
        if piecewise:
            stack.enter_context(engine_of(c)._piecewise())
        context = stack.enter_context(group.graph_capture())
        for dtype in DTYPES[kind]:
            cells = [cell_of(c, nbytes, dtype) for nbytes in SIZES]
            for cell in cells:
                group.all_reduce(cell.x.clone())
                scene.made[name, warm, dtype, cell.nbytes] += 1
            context.stream.synchronize()
            graph, calls = torch.cuda.CUDAGraph(), [*((cell, group.all_reduce) for cell in cells)]
            calls += [(cell, direct(group)) for cell in cells[::3]]
            with torch.cuda.graph(graph, stream=context.stream):
                for cell, reduce in calls:
                    cell.step(reduce)
                    scene.made[name, "captured", dtype, cell.nbytes] += 1
            made.append(Captured(kind, dtype, graph, len(calls)))
    torch.cuda.current_stream().wait_stream(context.stream)
    for one in made:
        scene.graphs.append(one)
        replay(one, REPLAYS + len(scene.graphs))
    c.wait(stream_of(c))


def replay(one: Captured, times: int) -> None:
    for _ in range(times):
        one.graph.replay()
    one.replays += times


def timed(c: Any) -> dict[str, tuple[int, int, float]]:
    """Calls of every group of which the hook times each second one: by name, the first and the last record's number, and the median by
    events of our own around the others' like, in microseconds."""
    scene, found = scene_of(c), {}
    with torch.no_grad():
        for kind, group in scene.groups.items():
            cell = cell_of(c, TIMED, "bf16")
            for _ in range(4):
                group.all_reduce(cell.x)
            torch.cuda.synchronize()
            first, pairs = recorder().counts()["head"] + 1, []
            recorder().timer_every = 2
            for _ in range(TIMED_CALLS):
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                group.all_reduce(cell.x)
                pair[1].record()
                pair[1].synchronize()
                pairs.append(pair)
            recorder().timer_every = 0
            scene.made[str(group.unique_name), "eager", "bf16", TIMED] += TIMED_CALLS + 4
            median = statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in pairs)
            found[kind] = (first, recorder().counts()["head"], median)
    c.wait(stream_of(c))
    return found


def executed(path: str) -> Counter[tuple[str, str]]:
    """What ran so far by the ring's own counts: by what a trace can tell of a path, and whether a graph launched it."""
    with Ring(path) as ring:
        kinds = kinds_of(ring.tables())
    counts: Counter[tuple[str, str]] = Counter()
    for kind in kinds:
        replayed = kind.phase == "captured"
        way = f"custom {kind.kernel}".rstrip() if kind.path == "custom" else kind.path
        if kind.path in NCCL:
            way = "nccl" if replayed else kind.path.removesuffix("_in_place").removesuffix("_out_of_place")
        counts[way, "replayed" if replayed else "eager"] += kind.executed
    return counts


def profiled(c: Any, folder: str) -> Counter[tuple[str, str]]:
    """A few more calls and replays of every group under torch's profiler; what the hook counted meanwhile."""
    from torch.profiler import ProfilerActivity, profile

    activities, scene = [ProfilerActivity.CPU, ProfilerActivity.CUDA], scene_of(c)
    with profile(activities=activities):  # the first one takes long to begin, and may lose what comes at once
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    before = executed(probe.hook.installed())
    agree(c, "the profiler", lambda: None)
    with torch.no_grad(), profile(activities=activities) as made:
        for kind, group in scene.groups.items():
            eager(c, kind, "eager", group.all_reduce, 3, PROFILED)
            eager(c, kind, "eager", direct(group), 2, PROFILED)
            with engine_of(c)._piecewise():
                eager(c, kind, "piecewise", group.all_reduce, 2, PROFILED)
        for one in scene.graphs:
            if one.dtype == "bf16":
                replay(one, 2)
        torch.cuda.synchronize()
    made.export_chrome_trace(os.path.join(folder, f"rank{c.rank}.json"))
    return executed(probe.hook.installed()) - before


def finish(c: Any) -> dict[str, Any]:
    """What this rank made and found; then the hook goes, and SGLang reduces as before."""
    scene = scene_of(c)
    c.wait(stream_of(c))
    counts, told = recorder().counts(), [(finding.kind, finding.text) for finding in probe.hook.findings()]
    probe.hook.uninstall()
    after = [group.all_reduce(torch.full((64,), c.rank + 1.0, device="cuda")) for group in scene.groups.values()]
    report = {
        "made": dict(scene.made),
        "names": {kind: str(group.unique_name) for kind, group in scene.groups.items()},
        "graphs": [(one.calls, one.replays) for one in scene.graphs],
        "seen": dict(scene.seen),
        "sums": {
            f"{cell.nbytes} bytes {dtype}": (int(cell.checked), int(cell.wrong)) for (_, dtype), cell in scene.cells.items()
        },
        "counts": counts,
        "told": told,
        "after": [sorted(set(one.tolist())) for one in after],
    }
    for one in scene.graphs:
        one.graph.reset()
    return report
