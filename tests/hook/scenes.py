"""What is played with one release of SGLang in two processes over gloo: `python scenes.py RANK WORLD STORE OUT`, for test_real_sglang.py.

Each scene is a function with the name under which its result stands in OUT, a JSON file.
Invariant: a scene that fails says so in its own place; SGLang, where it can run here, is its own code, imported.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import resource
import sys
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import scene_group as own
import torch
import torch._dynamo.testing

import sglang_probe
from sglang_probe import _core, hook
from sglang_probe._bench import engine_watch
from sglang_probe._record.ring import Ring
from sglang_probe.hook import session as hook_session
from sglang_probe.hook.targets import TARGETS

PHASES = ["eager", "in place", "warmup", "captured"]
PHASES += ["piecewise", "piecewise captured"] if own.piecewise() else []
PHASES += ["auto"] if hasattr(own.state().GroupCoordinator, "_resolve_outplace_all_reduce_method") else []
PATHS = [name for name, _ in _core.PATHS]
SIZES = ((1, 7168), (16, 7168), (512, 7168), (700, 7168), (2048, 7168), (3, 5))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def path(index: int) -> str:
    return PATHS[index] if index < len(PATHS) else ""


FAILURES: list[int] = []


def switch(on: bool) -> None:
    """The hook on or off; what failed in a recording is kept."""
    if session() is not None:
        FAILURES.append(session().recorder.counts()["failures"])
    (hook.install if on else hook.uninstall)()


def session() -> Any:
    return hook_session.current()


def records(since: int = 0) -> list[dict[str, Any]]:
    """What the ring of this process holds, in words."""
    with Ring(hook.installed()) as ring:
        found, names = ring.records(since).records, ring.tables().names
    words = []
    for one in found:
        row = {name: int(one[name]) for name in found.dtype.names}
        row |= {name: names[name].get(row[name], "") for name in ("group", "entry", "kernel", "site")}
        row |= {name: path(row[name]) for name in ("path", "expected")}
        row["phase"] = _core.PHASES[row["phase"]][0]
        row["flags"] = [name for i, (name, _) in enumerate(_core.RING_FLAGS) if row["flags"] >> i & 1]
        words.append(row)
    return words


def places() -> dict[str, int]:
    """Everything that the hook may change, by identity."""
    found: dict[str, int] = {}
    for target in TARGETS:
        module = sys.modules.get(target.module)
        owner: Any = module
        for part in target.attributes[:-1]:
            owner = getattr(owner, part, None)
        if owner is not None:
            found[str(target)] = id(vars(owner).get(target.attributes[-1]))
            if target.body and module is not None:
                body = own.function_of(module, target.attributes[-1])
                found[f"{target} code"] = id(getattr(body, "__code__", None))
                found[f"{target} names"] = len(vars(module))
    coordinator = own.state().GroupCoordinator
    for kind in (coordinator, torch.cuda.CUDAGraph):
        found |= {f"{kind.__name__}.{name}": id(value) for name, value in vars(kind).items() if callable(value)}
    pynccl = own.module_of("pynccl").PyNcclCommunicator
    found["pynccl"] = len(vars(pynccl))
    found["finders"] = len(sys.meta_path)
    return found


# ------------------------------------------------------------------------------------------------------------------------------ scenes


def modules(rank: int, world: int) -> Any:
    """Every module of SGLang that was imported, with its file below the release's folder; and whatever is no real package."""
    root = str(Path(sys.modules["sglang"].__file__ or "").parents[1])
    sglang = {n: getattr(m, "__file__", None) for n, m in sorted(sys.modules.items()) if n.split(".")[0] == "sglang"}
    stubs = sorted({n.split(".")[0] for n, m in sys.modules.items() if "/stubs/" in str(getattr(m, "__file__", ""))})
    elsewhere = [name for name, file in sglang.items() if file and not str(file).startswith(root)]
    return {"version": sglang_probe.hook.session.sglang_version(), "names": list(sglang), "elsewhere": elsewhere, "stubs": stubs}


def wrapped(rank: int, world: int) -> Any:
    return {
        "done": [str(target) for target in session().wrapping.done],
        "findings": [f.text for f in hook.findings() if f.kind in ("target", "aside")],
    }


def again(rank: int, world: int) -> Any:
    """install() from many threads at once, then uninstall(): what was there before is there again."""
    hook.uninstall()
    before, seen = places(), []
    threads = [threading.Thread(target=lambda: seen.append(hook.install())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    during = places()
    hook.uninstall()
    after = places()
    hook.install()
    changed = [name for name in before if before[name] != during[name]]
    return {
        "paths": len(set(seen)),
        "changed": changed,
        "left": [n for n in before if after.get(n) != before[n]] + sorted(set(after) - set(before)),
    }


def sums(rank: int, world: int) -> Any:
    """SGLang's own all-reduce of a CPU group, through the operator and directly: the sums are right, and recorded."""
    group = own.make_group(world)
    since = session().recorder.counts()["head"]
    tensor, direct = own.on_gpu(4, 64, torch.float32) * (rank + 1), torch.ones(8) * (rank + 1)
    result = group.all_reduce(tensor)
    group._all_reduce_in_place(direct)
    right = float(world * (world + 1) // 2)
    return {
        "right": bool((result == right).all()) and result is tensor and bool((direct == right).all()),
        "records": records(since),
        "group": group.unique_name,
    }


def routes(rank: int, world: int) -> Any:
    """SGLang's dispatch over its communicators, sizes, types and phases: what ran, seen by the interpreter's profile hook and by ours."""
    found = []
    for kind in ("none", "v1", "v2"):
        group, capturing = own.make_group(world), [False]
        with own.on_a_gpu(group, capturing):
            group.pynccl_comm = own.pynccl(world, rank)
            group.ca_comm = {"none": lambda *_: None, "v1": own.v1, "v2": own.v2}[kind](world, rank)
            if kind == "v2" and group.ca_comm is None:
                continue
            session().groups.made(group)
            for rows, columns in SIZES:
                for dtype in DTYPES:
                    for phase in PHASES:
                        seen, record = one_call(group, own.on_gpu(rows, columns, dtype), phase, capturing)
                        found.append({"custom": kind, "asked": phase, "seen": seen.path, "chosen": seen.kernel, **record})
            group.ca_comm = group.pynccl_comm = None
    return found


def one_call(group: Any, tensor: Any, phase: str, capturing: list[bool]) -> Any:
    since = session().recorder.counts()["head"]
    with contextlib.ExitStack() as stack:
        if "piecewise" in phase:
            stack.enter_context(own.piecewise()())
        if phase in ("warmup", "captured", "piecewise captured"):
            stack.enter_context(group.graph_capture())
        made = own.graph(capturing) if "captured" in phase else None
        if made is not None:
            made.capture_begin()
        if phase == "auto":  # as code that Dynamo has traced calls it
            call = partial(own.state().outplace_all_reduce, tensor, group.unique_name, "auto")
        elif phase == "in place":  # as SGLang's own gathers of DP attention do
            call = partial(in_place, tensor, group.unique_name)
        else:
            call = partial(group.all_reduce, tensor)
        with torch.no_grad():
            seen = engine_watch.watch(call)
        if made is not None:
            made.capture_end()
    (record,) = records(since)
    return seen, record


def in_place(tensor: Any, name: str) -> None:
    torch.ops.sglang.inplace_all_reduce(tensor, group_name=name)


def bypass(rank: int, world: int) -> Any:
    """NCCL's symmetric memory goes past the operators; a pynccl call inside of an operator is not a record of its own."""
    group, capturing = own.make_group(world), [False]
    with own.on_a_gpu(group, capturing):
        group.pynccl_comm = own.pynccl(world, rank)
        session().groups.made(group)
        since = session().recorder.counts()["head"]
        group.is_symmetric_memory_enabled = lambda: True
        group.debug_check_symmetric_mempool = lambda *_: None
        group.all_reduce(own.on_gpu(4, 64))
        found = records(since)
        group.pynccl_comm = None
    return found


def fused(rank: int, world: int) -> Any:
    """The fused operator without FlashInfer: chosen, and it reduces nothing. As the norm calls it, and by torch's own name."""
    module, groups = own.module_of_fusion(), [own.make_group(world), own.make_group(world)]
    since = session().recorder.counts()["head"]
    x = torch.ones(4, 64)
    results = [
        module.flashinfer_allreduce_residual_rmsnorm(input_tensor=x, residual=x.clone(), weight=torch.ones(64)),
        torch.ops.sglang.flashinfer_allreduce_residual_rmsnorm(x, x.clone(), torch.ones(64)),
    ]
    told, found = [finding.text for finding in hook.findings() if finding.kind == "fused"], records(since)
    since, call = session().recorder.counts()["head"], module.flashinfer_allreduce_residual_rmsnorm
    body = own.function_of(module, "flashinfer_allreduce_residual_rmsnorm")
    chooses = "use_attn_tp_group" in inspect.signature(body).parameters
    with own.serving(*groups):
        session().groups.made(groups[0])  # what was not known before is asked for again
        for attention in (True, False, False, True):
            call(x, x.clone(), torch.ones(64), **({"use_attn_tp_group": attention} if chooses else {}))
        if chooses:
            call(x, x.clone(), torch.ones(64), 1e-6, 2048, None, False, True, False)
    return {
        "nothing": all(one[0] is None for one in results),
        "records": found,
        "told": told,
        "chooses": chooses,
        "groups": [group.unique_name for group in groups],
        "reducing": [record["group"] for record in records(since)],
    }


def compiled(rank: int, world: int) -> Any:
    """fullgraph=True over SGLang's operators and group, with the hook and without it: the same graph, the same sums."""
    group, counter = own.make_group(world), []
    norm = own.module_of_fusion().flashinfer_allreduce_residual_rmsnorm

    def backend(module: Any, _inputs: Any) -> Any:
        counter.append(sorted(str(node.target) for node in module.graph.nodes if node.op == "call_function"))
        return module.forward

    def body(x: Any) -> Any:
        y = x * 2
        own_operator(y, group_name=group.unique_name)
        with_norm = norm(input_tensor=y, residual=x, weight=x[0], eps=1e-6)
        return y + 1, len(with_norm)

    own_operator = (
        own.state().inplace_all_reduce if hasattr(own.state(), "inplace_all_reduce") else torch.ops.sglang.inplace_all_reduce
    )
    answers = []
    for on in (True, False):
        switch(on)
        torch._dynamo.reset()
        since = session().recorder.counts()["head"] if on else 0
        with torch.no_grad():
            result, count = torch.compile(body, fullgraph=True, backend=backend)(torch.ones(4, 64))
        answers.append(
            {
                "value": float(result[0, 0]),
                "count": count,
                "graphs": counter[:],
                "entries": [r["entry"] for r in records(since)] if on else [],
            }
        )
        counter.clear()
    switch(True)
    return answers


def traced(rank: int, world: int) -> Any:
    """GroupCoordinator.all_reduce itself, of a tensor that is not on the CPU, under fullgraph=True: Dynamo goes through it."""
    group, capturing, answers, ops = own.make_group(world), [False], [], []

    def backend(module: Any, _inputs: Any) -> Any:
        ops.extend(str(node.target) for node in module.graph.nodes if "sglang" in str(node.target))
        return module.forward

    with own.on_a_gpu(group, capturing):
        for kind in ("none", "v1", "v2"):
            group.pynccl_comm = own.pynccl(world, rank)
            group.ca_comm = {"none": lambda *_: None, "v1": own.v1, "v2": own.v2}[kind](world, rank)
            for on in (True, False):
                switch(on)
                torch._dynamo.reset()
                with torch.no_grad():
                    call = torch.compile(lambda x: group.all_reduce(x * 1) + 1, fullgraph=True, backend=backend)
                    shape = list(call(torch.ones(4, 64, device="meta")).shape)
                answers.append([kind, on, shape, ops[:]])
                ops.clear()
        switch(True)
        group.ca_comm = group.pynccl_comm = None
    return answers


def broken(rank: int, world: int) -> Any:
    """Where Dynamo cannot trace a call without the hook (NCCL's symmetric memory: ctypes), the graph breaks as often with it."""
    group, capturing, answers = own.make_group(world), [False], []
    with own.on_a_gpu(group, capturing):
        group.pynccl_comm = own.pynccl(world, rank)
        group.is_symmetric_memory_enabled = lambda: True
        group.debug_check_symmetric_mempool = lambda *_: None

        def body(x: Any) -> Any:
            with group.pynccl_comm.change_state(enable=True, **stream):
                group.pynccl_comm.all_reduce(x)
            return x + 1

        known = inspect.signature(group.pynccl_comm.change_state).parameters
        stream = {"stream": own.STREAM} if "stream" in known else {}
        for on in (True, False):
            switch(on)
            if on:
                session().groups.made(group)
            torch._dynamo.reset()
            counter = torch._dynamo.testing.CompileCounter()
            with torch.no_grad():
                result = torch.compile(body, backend=counter)(torch.ones(4, 64))
            answers.append([float(result[0, 0]), counter.frame_count])
        switch(True)
        group.pynccl_comm = None
    return answers


def graphs(rank: int, world: int) -> Any:
    """Captured calls belong to their graph, which counts its replays; a capture whose addresses get lost is told."""
    group, capturing, before = own.make_group(world), [False], [finding.text for finding in hook.findings()]
    with own.on_a_gpu(group, capturing):
        group.pynccl_comm, group.ca_comm = own.pynccl(world, rank), own.v1(world, rank)
        session().groups.made(group)
        made = []
        for lost in (False, True):
            with group.graph_capture():
                group.all_reduce(own.on_gpu(4, 64))
                made.append(own.graph(capturing))
                made[-1].capture_begin()
                for _ in range(3):
                    group.all_reduce(own.on_gpu(4, 64))
                made[-1].capture_end()
                if lost:
                    group.ca_comm.kept.clear()
        for _ in range(5):
            made[0].replay()
        own.launch_deduplicated(made[0])
        group.all_reduce(own.on_gpu(4, 64))
        told = [finding.text for finding in hook.findings() if finding.kind == "graph" and finding.text not in before]
        with Ring(hook.installed()) as ring:
            rows = ring.tables().graphs[-2:]
        group.ca_comm = group.pynccl_comm = None
    table = [{name: int(row[name]) for name in ("state", "captured", "replays", "registered")} for row in rows]
    return {"graphs": table, "told": told, "before": before, "last": records()[-1]["graph"]}


def promised(rank: int, world: int) -> Any:
    """Custom all-reduce is on by flag, its constructor fails on a machine without a GPU, and SGLang goes on without it."""
    group = own.make_group(world, use_custom_allreduce=True)
    for _ in range(1001):
        group._all_reduce_in_place(torch.ones(8))
    return {
        "there": group.ca_comm is not None,
        "told": [f.text for f in hook.findings() if f.kind == "promise" and group.unique_name in f.text],
    }


def differs(rank: int, world: int) -> Any:
    """Somebody changed the dispatch: what runs is not what the release's rules say."""
    group, capturing = own.make_group(world), [False]
    with own.on_a_gpu(group, capturing):
        group.pynccl_comm, group.ca_comm = own.pynccl(world, rank), own.v1(world, rank)
        session().groups.made(group)
        group.ca_comm.should_custom_ar = lambda _: False
        for _ in range(3):
            group.all_reduce(own.on_gpu(4, 64))
        told = [f.text for f in hook.findings() if f.kind == "difference" and group.unique_name in f.text]
        group.ca_comm = group.pynccl_comm = None
    return {"told": told, "again": [f.text for f in hook.findings() if f.kind == "difference" and group.unique_name in f.text]}


def toggled(rank: int, world: int) -> Any:
    """Communicators that are switched on and off in one process, as SGLang does it: what is expected follows, in calls of one kind."""
    group, capturing, found = own.make_group(world), [False], []
    with own.on_a_gpu(group, capturing):
        group.pynccl_comm, group.ca_comm = own.pynccl(world, rank), own.v1(world, rank)
        session().groups.made(group)
        stream = {"stream": own.STREAM} if "stream" in inspect.signature(group.pynccl_comm.change_state).parameters else {}
        since, asked = session().recorder.counts()["head"], session().recorder.counts()["asked"]
        states = [(on, enabled) for on in (True, False) for enabled in (True, False)]
        for on, enabled in states * 3:
            group.ca_comm.disabled = not on
            with group.pynccl_comm.change_state(enable=enabled, **stream):
                group.all_reduce(own.on_gpu(4, 64))
                group._all_reduce_in_place(own.on_gpu(4, 64))
            found.append([on, enabled])
        asked = session().recorder.counts()["asked"] - asked
        rows, told = records(since), [f.text for f in hook.findings() if f.kind == "difference" and group.unique_name in f.text]
        group.ca_comm.disabled = False
        group.ca_comm.should_custom_ar = lambda _: False  # somebody's patch: with the communicator on it is an alarm
        group.all_reduce(own.on_gpu(4, 64))
        group.ca_comm.disabled = True
        group.all_reduce(own.on_gpu(4, 64))
        patched = records()[-2:]
        group.ca_comm = group.pynccl_comm = None
    return {"states": found, "rows": rows, "told": told, "patched": patched, "asked": asked}


def aside(rank: int, world: int) -> Any:
    """What keeps the hook from recording keeps nothing from running: no folder, a full disk, an SGLang that nobody knows."""
    group, version, coordinator = own.make_group(world), sys.modules["sglang.version"], own.state().GroupCoordinator
    folder, limit, out_place = (
        os.environ["SGLANG_PROBE_DIR"],
        resource.getrlimit(resource.RLIMIT_FSIZE),
        coordinator._all_reduce_out_place,
    )
    known, answers = version.__version__, {}
    steps = {
        "no folder": (
            lambda: os.environ.update(SGLANG_PROBE_DIR="/proc/none"),
            lambda: os.environ.update(SGLANG_PROBE_DIR=folder),
        ),
        "full disk": (
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limit[1])),
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        ),
        "no such method": (
            lambda: delattr(coordinator, "_all_reduce_out_place"),
            lambda: setattr(coordinator, "_all_reduce_out_place", out_place),
        ),
        "unknown release": (lambda: setattr(version, "__version__", "99.0"), lambda: setattr(version, "__version__", known)),
    }
    for name, (spoil, mend) in steps.items():
        switch(False)
        out_place, hook_session._TOLD = coordinator._all_reduce_out_place, hook_session.Findings()
        spoil()
        began = hook.install()
        tensor = torch.ones(8) * (rank + 1)
        group._all_reduce_in_place(tensor)
        mend()
        expected = [record["expected"] for record in records()] if began else []
        told = [finding.text for finding in hook.findings() if finding.kind == "aside"]
        answers[name] = {"began": bool(began), "sum": float(tensor[0]), "told": told, "expected": expected}
    switch(False)
    switch(True)
    return answers


def counts(rank: int, world: int) -> Any:
    """What failed of ours on the way, in each of the recordings."""
    switch(True)
    return {"failures": FAILURES, "findings": [f.text for f in hook.findings() if f.kind in ("target", "aside")]}


SCENES = (
    sums,
    routes,
    bypass,
    fused,
    compiled,
    traced,
    broken,
    graphs,
    promised,
    differs,
    toggled,
    wrapped,
    counts,
    again,
    aside,
    modules,
)


def main(rank: int, world: int, store: str, out: str) -> None:
    own.state()
    hook.install()
    own.join(rank, world, store)
    library = own.operators_on_cpu()
    played = {}
    for scene in SCENES:
        try:
            played[scene.__name__] = scene(rank, world)
        except Exception:
            played[scene.__name__] = {"error": traceback.format_exc()}
    Path(out).write_text(json.dumps(played))
    del library
    os._exit(0)  # groups whose communicators were never built are not to be taken down


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
