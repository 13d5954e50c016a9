"""step: every all-reduce of one verify step, from a launch line, a log, a URL or a model to its path. Called by people and by `step`.

    launch / log / URL -> Server, Model -> context -> calls, tags -> fusion -> route (each distinct call once) -> costs -> Step, with
    cycle beside it

Invariant: nothing is decided here; what was assumed on the way, by whom ever, is in ``Step.assumed``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from .._costs.costs import CostFiles, Costs, load_costs
from .._facts import DTYPE_BYTES
from .._releases import RELEASES, Release, newest, resolve
from .._server.server import unknown_model
from .._types import Group, InputError, Model, Server
from ..models import load_model
from .calls import Plan, dtype_of, is_multimodal, plan_calls
from .context import find_context
from .costs import cost_calls
from .cycle import Traffic, plan_cycle
from .fusion import fuse_calls
from .notes import assumed_facts, call_notes, fusion_elsewhere, may_fuse_elsewhere, model_notes
from .route import StepRouter
from .tags import tag_calls
from .types import CyclePart, Step, StepCall

__all__ = ["EXAMPLE_COMMITS", "CyclePart", "Step", "StepCall", "step"]

Progress = Callable[[str], None]
_LARGEST_BATCH = 1 << 20
_LARGEST_DRAFT = 1 << 16

EXAMPLE_COMMITS = ("bba2fc4", "0be30d4")
_EXAMPLE_HARDWARE = {"gpu": "rtx-pro-6000", "link": "pcie", "nodes": 1, "gpus": 8}
_EXAMPLE_LAUNCH = (
    "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code --speculative-algorithm EAGLE3 "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
)
_PLAIN_GPUS = 8
"""Of one node, where a model alone is asked about."""
_GPU_OF_ARCH = {80: "a100", 86: "a10", 89: "l40s", 90: "h100", 100: "b200", 103: "b300", 120: "rtx-pro-6000", 942: "mi300x"}


def step(
    launch: str | None = None,
    *,
    log: str | FilePath | None = None,
    url: str | None = None,
    model: str | FilePath | Model | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    batch: int = 1,
    draft_tokens: int | None = None,
    context: str | None = None,
    sglang: str | Release | None = None,
    example: bool = False,
    group: Group | None = None,
    costs: CostFiles = None,
    progress: Progress | None = None,
) -> Step:
    """Every all-reduce of one verify step, each routed as the release would.

    From one of: ``launch`` (the server's own command line), ``log`` (a file that holds its resolved ServerArgs), ``url`` (a running
    server), or ``model`` alone (plain tensor parallelism over ``gpus`` GPUs). ``group`` gives or overrides facts of the TP group.
    ``batch`` counts requests; a captured batch is padded up to the next captured size. ``context`` is by default what the server
    does with this batch: ``capture`` (with the bit ``compiling`` under torch.compile) where its decode graphs hold it,
    ``piecewise_capture`` where the release lets a verify into the piecewise graph, else ``eager``. ``example`` is the motivating
    case: Kimi-K2.5 with EAGLE-3 on eight PCIe cards, at two commits, as reported (eager) and as a stock server runs it (captured).
    ``costs`` says by which tables its calls are costed: None or "shipped" (those of the package), a file or several (a Measurement, what
    nccl-tests printed, published figures), "none".

    Raises InputError that names the argument, its value and the remedy; MeasurementError for a file of costs that cannot be read.
    """
    report = progress or (lambda _text: None)
    _check_counts(batch, draft_tokens)
    _check_texts({"launch": launch, "url": url, "gpu": gpu, "link": link, "context": context}, log, env)
    if group is not None and not isinstance(group, Group):
        raise InputError("group", group, "give a Group, for example Group.make(world_size=8)")
    found_costs = load_costs(costs)
    tables = found_costs if found_costs.tables else None
    if example:
        return _example(context, sglang, batch, draft_tokens, tables, report)
    known = None if model is None else load_model(model)
    source = _Source(launch, log, url, known, group, {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env})
    report("reading the server")
    found = _read(source, sglang)
    report("routing its calls")
    return _step(source, found, batch, draft_tokens, context, tables)


@dataclass(frozen=True)
class _Source:
    """Where the server is described, as given."""

    launch: str | None
    log: str | FilePath | None
    url: str | None
    model: Model | None
    group: Group | None
    hardware: Mapping[str, Any]


@dataclass(frozen=True)
class _Found:
    """The server, and the release to answer for."""

    server: Server
    release: Release
    line: str | None
    """The launch line that was read; it can be read again for other GPUs."""
    assumed: tuple[str, ...] = ()


def _check_counts(batch: int, draft_tokens: int | None) -> None:
    for name, value, most in (("batch", batch, _LARGEST_BATCH), ("draft_tokens", draft_tokens, _LARGEST_DRAFT)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InputError(name, value, f"give a whole number from 1 to {most:,}")


def _check_texts(texts: Mapping[str, object], log: object, env: object) -> None:
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise InputError(name, value, "give a text")
    if log is not None and not isinstance(log, (str, os.PathLike)):
        raise InputError("log", log, "give the path of a log file")
    pairs = env.items() if isinstance(env, Mapping) else () if env is None else [(env, None)]
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in pairs):
        raise InputError("env", env, "give a mapping of variables to their values, both texts")


def _revision(sglang: str | Release | None) -> tuple[Release, tuple[str, ...]]:
    """The release to answer for; where none is named, the installed one, else the newest known."""
    if sglang is not None:
        return resolve(sglang), ()
    try:
        return resolve("installed"), ()
    except InputError:
        return resolve(newest()), (f"no release is named and none is installed: {newest()}, the newest known",)


def _version(release: Release) -> str:
    """The release whose models and layers count: the nearest known one for a checkout."""
    return release.name if release.name in RELEASES else RELEASES[release.index]


def _read(source: _Source, sglang: str | Release | None) -> _Found:
    from ..launch import read_launch, read_log, read_url

    given = {name: value for name in ("launch", "log", "url") if (value := getattr(source, name)) is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise InputError(second, given[second], f"give either {first} or {second}")
    keep = {**source.hardware, "model": source.model}
    line: str | None = None
    assumed: tuple[str, ...] = ()
    if source.log is not None or source.url is not None:
        release = None if sglang is None else resolve(sglang)
        version = _version(release) if release else None
        if source.log is not None:
            server = read_log(source.log, sglang=version, **keep)
        else:
            server = read_url(str(source.url), sglang=version, **keep)
        if release is None or version != server.sglang:  # what the server says of itself wins
            release = resolve(server.sglang)
    else:
        release, assumed = _revision(sglang)
        line = source.launch if source.launch is not None else _plain_line(source)
        if source.launch is None:
            assumed += _plain_assumed(source)
        hardware = _hardware(source)
        if hardware["gpu"] != source.hardware["gpu"]:
            assumed += (f"GPU: {hardware['gpu']} stands for the architecture of the group that was given",)
        server = read_launch(line, sglang=_version(release), **hardware, model=source.model)
        if source.launch is None:
            server = replace(server, source="the model alone: plain tensor parallelism, all else by default")
    if source.group is not None:
        tp = server.groups["tp"]
        server = replace(server, groups={**server.groups, "tp": replace(tp, facts={**tp.facts, **source.group.facts})})
    return _Found(server, release, line, assumed)


def _plain_line(source: _Source) -> str:
    """A launch line for a model alone: plain tensor parallelism, everything else at its default."""
    if source.model is None:
        raise InputError("launch", None, "give a launch line, a log, a URL or a model, or ask for the example")
    world = _plain_world(source)
    return shlex.join(["python", "-m", "sglang.launch_server", "--model-path", source.model.name, "--tp", str(world)])


def _plain_world(source: _Source) -> int:
    if source.group is not None and "world_size" in source.group.facts:
        return source.group.world_size
    return (source.hardware["gpus"] or _PLAIN_GPUS) * (source.hardware["nodes"] or 1)


def _plain_assumed(source: _Source) -> tuple[str, ...]:
    if source.hardware["gpus"] is not None or (source.group is not None and "world_size" in source.group.facts):
        return ()
    return (
        f"{_PLAIN_GPUS} GPUs a node, all of them one tensor-parallel group: no launch line, log or number of GPUs says another",
    )


def _hardware(source: _Source) -> dict[str, Any]:
    """The hardware as given; where none is, that of a group that was given."""
    hardware, group = dict(source.hardware), source.group
    if group is None:
        return hardware
    if hardware["gpu"] is None and "arch" in group.facts:
        hardware["gpu"] = _GPU_OF_ARCH.get(group.value("arch"))
    if hardware["link"] is None and "full_nvlink" in group.facts:
        hardware["link"] = "nvlink" if group.value("full_nvlink") else "pcie"
    return hardware


def step_of(server: Server, *, sglang: str | Release, batch: int = 1, context: str | None = None) -> Step:
    """The same from a server that was already read, without costs."""
    _check_counts(batch, None)
    return _step(_Source(None, None, None, None, None, {}), _Found(server, resolve(sglang), None), batch, None, context)


def _step(
    source: _Source, found: _Found, batch: int, draft_tokens: int | None, context: str | None, costs: Costs | None = None
) -> Step:
    server, release, version = found.server, found.release, _version(found.release)
    model = server.model
    if model is None:
        raise unknown_model(server)
    width = draft_tokens or server.draft_tokens
    how = find_context(server, model, context, batch, width, version)
    plan = plan_calls(model, server, how.tokens, version)
    planned, untagged = tag_calls(plan.calls, model, server, version)
    parted = fuse_calls(planned, model, server, version)
    router = StepRouter(server.groups, release, how.name, replayed=how.replayed, multimodal=is_multimodal(model))
    lost = tuple(call for call in parted.left if call.group not in router.groups)
    calls = tuple(StepCall(call, router(call)) for call in parted.left if call not in lost)
    priced, sums = (calls, None) if costs is None else cost_calls(calls, router.groups, router.context_of, costs, server.env)
    cycle = plan_cycle(model, server, how.batch, width, version, context=how.draft)
    draft = StepRouter(server.groups, release, how.draft)
    notes = (*how.notes, *router.notes, *untagged, *_own_notes(server, width, release, version))
    notes += tuple(f"not modelled: {c.count} calls over {c.group} ({c.site}): nothing is known of that group" for c in lost)
    notes += _elsewhere(source, found, plan, version)
    return Step(
        sglang=release.name,
        ruleset=release.ruleset,
        model=model.name,
        source=server.source,
        world_size=server.groups["tp"].world_size,
        batch=batch,
        padded_batch=how.batch,
        draft_tokens=width,
        tokens=how.tokens,
        nbytes=how.tokens * model.hidden * DTYPE_BYTES[dtype_of(model, server)],
        context=how.name,
        all_reduces=plan.count,
        fused=parted.count,
        calls=priced,
        fused_calls=parted.taken,
        cycle=tuple(_cycle_part(part, draft) for part in cycle.parts),
        not_modelled=plan.unmodelled + sum(call.count for call in lost),
        assumed=_unique(
            found.assumed, server.assumed, how.assumed, plan.assumed, parted.assumed, assumed_facts(calls), cycle.assumed
        ),
        notes=_unique(
            plan.notes, server.contradictions, notes, model_notes(model, server, version), parted.notes, call_notes(calls),
            cycle.notes, server.notes,
        ),
        server=server,
        costs=sums,
    )  # fmt: skip


def _cycle_part(part: Traffic, router: StepRouter) -> CyclePart:
    decision = router(part.call) if part.call is not None else None
    return CyclePart(part.name, part.collective, part.group, part.count, part.tokens, part.nbytes, decision, part.note)


def _own_notes(server: Server, width: int, release: Release, version: str) -> tuple[str, ...]:
    notes = []
    if width != server.draft_tokens:
        notes.append(f"{width} draft tokens asked for; the server's own number is {server.draft_tokens}")
    elif width == 1:
        notes.append("no speculation: this is a decode step, one token a request")
    if version != release.name:
        notes.append(f"outside of the dispatch {release.name} counts as v{version}, the nearest known release")
    return tuple(notes)


def _elsewhere(source: _Source, found: _Found, plan: Plan, version: str) -> tuple[str, ...]:
    """What this launch would fuse on Hopper, where it is the GPU that keeps it from fusing."""
    if found.line is None or found.server.model is None or not may_fuse_elsewhere(plan, found.server):
        return ()
    from ..launch import read_launch

    nvlink = found.server.groups["tp"].value("full_nvlink")
    other = {**_hardware(source), "gpu": "h100" if nvlink else "h100-pcie", "link": "nvlink" if nvlink else "pcie"}
    server = read_launch(found.line, sglang=version, model=found.server.model, **other)
    return fusion_elsewhere(plan, found.server.model, server, version, f"SM90 {'NVLink' if nvlink else 'PCIe'} cards")


def _unique(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))


def _example(
    context: str | None,
    sglang: str | Release | None,
    batch: int,
    draft_tokens: int | None,
    costs: Costs | None,
    report: Progress,
) -> Step:
    """The motivating case. First the newer commit, eager, as the report says; beside it the other commit and the captured step."""
    chosen: tuple[str | Release, ...] = EXAMPLE_COMMITS[::-1] if sglang is None else (sglang,)
    contexts = ("eager", "capture") if context is None else (context,)
    source = _Source(_EXAMPLE_LAUNCH, None, None, load_model("Kimi-K2.5"), None, {**_EXAMPLE_HARDWARE, "env": None})
    steps = []
    for name in contexts:
        for commit in chosen:
            report(f"{commit}, {name}")
            steps.append(_step(source, _read(source, commit), batch, draft_tokens, name, costs))
    return replace(steps[0], alternatives=tuple(steps[1:]))
