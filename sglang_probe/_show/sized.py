"""What pictures over size have in common: how a path looks, axes of bytes and of microseconds, whiskers, and where the numbers are from.

Called by latency.py, against.py and against_figure.py.
Invariant: no path is told by its colour alone; what lies outside of an axis is an arrow at its edge, never left out in silence.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .._types import FrozenMap, InputError
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._measure.measurement import Measurement
    from .._measure.summary import Summary
    from .._report.theme import Theme

Clock = Literal["device_us", "host_us", "elapsed_us"]
CLOCKS: Mapping[str, str] = FrozenMap({"device_us": "device", "host_us": "host", "elapsed_us": "elapsed"})
"""Figures of a Summary that are drawn, and their word."""
PHASES = ("eager", "captured")
WORDS: Mapping[str, str] = FrozenMap(
    {
        "back_to_back": "back to back",
        "interleaved": "interleaved with compute",
        "native": "our C",
        "engine": "SGLang's own GroupCoordinator",
    }
)
"""Of patterns and drivers."""
DASHED, DOTTED, MIXED = (0, (5, 2)), (0, (1.4, 1.4)), (0, (5, 1.5, 1.4, 1.5))


class Look(NamedTuple):
    """Colour by path, as a member of Theme; marker, dashes and filling by kernel."""

    colour: str
    marker: str
    dashes: Any = "-"
    filled: bool = True


_LOOKS: Mapping[tuple[str, str], Look] = FrozenMap(
    {
        ("pynccl_in_place", ""): Look("a", "o"),
        ("pynccl_out_of_place", ""): Look("b", "s", DASHED),
        ("torch_distributed", ""): Look("waiting", "D", DOTTED),
        ("torch_symm_mem", "torch_two_shot"): Look("ink", "X", MIXED),
        ("custom", "one_shot"): Look("margin", "^"),
        ("custom", "two_shot"): Look("margin", "v", DASHED),
        ("custom", "one_shot_push"): Look("margin", ">", DOTTED, False),
        ("custom", "one_shot_pull"): Look("margin", "<", MIXED, False),
        ("custom", "two_shot_push"): Look("margin", "P", DASHED, False),
        ("custom", "two_shot_pull"): Look("margin", "p", "-", False),
        ("custom", "limit"): Look("ink", "*", DOTTED, False),
    }
)
_OTHERS = ("h", "8", "d", "H", "1", "2", "3", "4")
"""Of paths that came later, and of lines that would look the same as one before."""


def look_of(path: str, kernel: str, taken: Iterable[Look]) -> Look:
    """One that no other line of the picture has, as long as there are any."""
    taken = set(taken)
    own = _LOOKS.get((path, kernel), Look("ink", "h", DASHED))
    others = [own, *(Look(own.colour, marker, own.dashes, own.filled) for marker in _OTHERS)]
    return next((look for look in others if look not in taken), others[-1])


# --------------------------------------------------------------------------------------------------------------------- words


def named(one: Summary) -> str:
    """``custom (one_shot)``."""
    return f"{one.path} ({one.kernel})" if one.kernel else one.path


def chosen(found: Sequence[Summary], targets: str | Iterable[str] | None) -> list[Summary]:
    """Those of these paths or kernels; all for None. Raises InputError for a name that nothing here has."""
    if targets is None:
        return list(found)
    names = [part.strip() for part in targets.split(",")] if isinstance(targets, str) else list(targets)
    there = dict.fromkeys(name for one in found for name in (one.kernel, one.path) if name)
    for name in names:
        if name not in there:
            raise InputError("targets", name, f"it was not measured: give paths or kernels of {', '.join(there)}")
    return [one for one in found if {one.path, one.kernel} & {*names}]


_DIFFER = ("dtype", "ranks", "release", "backend", "compute")


def distinct_names(found: Sequence[Summary]) -> dict[tuple[object, ...], str]:
    """For each `line_key` its name: path and kernel, and what else tells it from others of the same path."""
    keys = {line_key(one): one for one in found}
    told = {key: {**_details(one)} for key, one in keys.items()}
    names: dict[tuple[object, ...], str] = {}
    for key, one in keys.items():
        same = [told[other] for other, two in keys.items() if named(two) == named(one)]
        parts = [told[key][name] for name in _DIFFER if len({each[name] for each in same}) > 1]
        names[key] = ", ".join([named(one), *filter(None, parts)])
    return names


def line_key(one: Summary) -> tuple[object, ...]:
    """What a line of a picture has in common."""
    return (one.path, one.kernel, one.backend, one.release, one.compute_us, one.dtype, one.world_size, one.device)


def _details(one: Summary) -> dict[str, str]:
    return {
        "dtype": one.dtype,
        "ranks": ranks_text(one),
        "release": one.release,
        "backend": one.backend,
        "compute": f"beside {one.compute_us:g} us" if one.compute_us else "",
    }


def ranks_text(one: Summary) -> str:
    return f"{one.world_size} {'GPU' if one.device == 'gpu' else 'CPU'} rank{'s' * (one.world_size > 1)}"


def origin_of(measurement: Measurement, found: Sequence[Summary]) -> list[str]:
    """Whose numbers these are, in sentences: shipped, of this machine or of another; on what, when; what to beware of."""
    origin = measurement.origin
    told = [f"{origin}: {measurement.provenance or 'on what is not known'}"]
    if any(one.device == "host" for one in found):
        told.append("CPU ranks: a CPU's times, which say nothing of a GPU")
    if measurement.partial:
        told.append("PARTIAL: not all of the plan is there")
    wrong = dict.fromkeys(f"{named(one)}, {one.phase}, {human_bytes(one.nbytes)}" for one in found if one.wrong)
    if wrong:
        told.append(f"WRONG results, and therefore no time: {'; '.join(wrong)}")
    return told


def once(found: Sequence[Summary], *names: str) -> str:
    """``bf16, 2 GPU ranks, 5 process sets``: what is the same in all, or its range."""
    told = []
    for name in names:
        values = dict.fromkeys(_details(one)[name] for one in found)
        told += [" and ".join(values)] if len(values) <= 2 else [f"{len(values)} kinds of {name}"]
    sets = sorted({one.n_processes for one in found})
    count = f"{sets[0]}" if len(sets) == 1 else f"{sets[0]} to {sets[-1]}"
    return ", ".join([*told, f"{count} process set{'s' * (sets != [1])}"])


# ---------------------------------------------------------------------------------------------------------------------- axes


def draw_line(axes: Any, points: Sequence[tuple[float, float]], look: Look, colour: str, theme: Theme, size: float = 5.4) -> Any:
    """Through the points, in order; what stands for it in a legend."""
    ground = theme.ground if theme.ground != "none" else colour
    face = colour if look.filled else theme.ground
    edge = ground if look.filled else colour
    (line,) = axes.plot(
        *(zip(*points, strict=True) if points else ((), ())),
        color=colour, linestyle=look.dashes, linewidth=1.3, marker=look.marker, markersize=size,
        markerfacecolor=face, markeredgecolor=edge, markeredgewidth=0.4 if look.filled else 1.0, zorder=3,
    )  # fmt: skip
    return line


def draw_whiskers(axes: Any, ends: Sequence[tuple[float, float, float]], colour: str, limits: tuple[float, float]) -> None:
    """(x, low, high) each; an arrow where one goes on beyond the axis."""
    bottom, top = limits
    axes.vlines(
        [x for x, _, _ in ends],
        [max(low, bottom) for _, low, _ in ends],
        [min(high, top) for _, _, high in ends],
        colors=colour,
        linewidth=1.1,
        zorder=2,
    )
    caps = [(x, end) for x, low, high in ends for end in (low, high) if low < high and bottom <= end <= top]
    below, above = [(x, bottom) for x, low, _ in ends if low < bottom], [(x, top) for x, _, high in ends if high > top]
    for points, mark, size in ((caps, "_", 22), (below, "v", 16), (above, "^", 16)):
        if points:
            line = {"linewidths": 1.1} if mark == "_" else {"linewidths": 0}
            axes.scatter(*zip(*points, strict=True), marker=mark, s=size, color=colour, zorder=2, clip_on=mark == "_", **line)


def size_axis(axes: Any, sizes: Iterable[int], label: str) -> None:
    """Bytes, logarithmic, with ticks at measured sizes."""
    known = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    low, high = known[0] / 1.7, known[-1] * 1.7
    axes.set_xlim(low, high)
    least = (high / low) ** (1 / 11)
    ticks: list[int] = []
    for size in known:
        if not ticks or size / ticks[-1] >= least:
            ticks.append(size)
    axes.set_xticks(ticks, [human_bytes(tick) for tick in ticks], rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)


def us_axis(axes: Any, limits: tuple[float, float], label: str) -> None:
    """Microseconds, logarithmic."""
    low, high = limits
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    steps = (1,) if high / low > 300 else (1, 3) if high / low > 30 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
    axes.set_yticks(ticks, [f"{tick:,.0f}" if tick >= 1 else f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylabel(label)


def us_limits(middles: Iterable[float], ends: Iterable[float]) -> tuple[float, float]:
    """Every figure, and the ends of intervals as far as a factor of 3 beyond the figures: one wild end must not flatten all others."""
    known = [value for value in middles if 0 < value < math.inf]
    if not known:
        return 1.0, 10.0
    low, high = min(known), max(known)
    near = [value for value in ends if low / 3 <= value <= high * 3]
    return min([low, *near]) / 1.25, max([high, *near]) * 1.25


def calm(axes: Any, theme: Theme) -> None:
    """Grid and ticks in the theme's colours, also when they are made later, outside of `settings`."""
    axes.grid(color=theme.faint, alpha=0.28, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=theme.ink)


def caption(figure: Any, handles: Sequence[Any], told: Iterable[str], ncols: int, width: int = 118) -> None:
    """The legend below the picture, with what a reader must know above its entries."""
    title = "\n".join(line for text in told for line in textwrap.wrap(text.replace("$", r"\$"), width))
    legend = figure.legend(handles=handles, loc="outside lower left", ncols=ncols, frameon=False, title=title or None)
    legend._legend_box.align = "left"
