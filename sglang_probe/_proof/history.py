"""history: one launch or group over releases; where the path of its verify step and of a prefill chunk changed, and what did it. Public.

    every release: launch -> Server -> looks -> (changed?) -> causes

Invariant: every release between the first and the last is asked; a row without a change is left out only where it equals the one before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .._releases import COMMITS, RELEASES, Release, resolve
from .._report.text import without_secrets
from .._shown import Reported
from .._types import Group, InputError, Model, Server
from .causes import Cause, Side, causes_of
from .looks import CHUNK_TOKENS, Look, group_look, prefill_look, refused_look, verify_look
from .reach import releases_between


@dataclass(frozen=True)
class Change:
    """What changed at a release: the verify step or the prefill chunk, and why."""

    what: str
    """``verify`` or ``prefill`` (of a group by itself: its captured and its eager calls)."""
    before: Look
    after: Look
    causes: tuple[Cause, ...]

    @property
    def because(self) -> str:
        either = len(self.causes) > 1 and any(cause.either for cause in self.causes)
        return ("either of " if either else "") + "; ".join(map(str, self.causes))


@dataclass(frozen=True)
class Row:
    """One release."""

    release: str
    ruleset: str
    verify: Look
    prefill: Look
    change: tuple[Change, ...] = ()
    """Against the release before; () where nothing changed."""
    server: Server | None = field(default=None, repr=False, compare=False)

    @property
    def because(self) -> str:
        return "; ".join(change.because for change in self.change)

    def to_dict(self) -> dict[str, Any]:
        return {
            "release": self.release,
            "ruleset": self.ruleset,
            "verify": self.verify.to_dict(),
            "prefill": self.prefill.to_dict(),
            "change": [
                {
                    "what": change.what,
                    "causes": [{"kind": cause.kind, "text": cause.text, "either": cause.either} for cause in change.causes],
                }
                for change in self.change
            ],
            "because": self.because,
        }


@dataclass(frozen=True)
class History(Reported):
    """One launch, or one group, over releases."""

    subject: str
    level: str
    """``launch`` or ``group``."""
    every: tuple[Row, ...]
    """All releases that were asked, oldest first."""
    names: tuple[str, str]
    """What the two looks are called."""
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    group: Group | None = field(default=None, repr=False)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The first release, and those at which something changed."""
        return tuple(row for i, row in enumerate(self.every) if not i or row.change)

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return any(row.change for row in self.every)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def columns(self, what: str = "verify") -> list[tuple[str, Row, Look]]:
        """For a picture: (label, first row, the path of every size) for each run of releases that route alike at every size.

        The sizes are those of the tensor-parallel group in the context of the verify step (``"verify"``) or of the prefill chunk.
        """
        if what not in ("verify", "prefill"):
            raise InputError("what", what, "give 'verify' or 'prefill'")
        runs: list[tuple[list[str], Row, Look]] = []
        for row in self.every:
            look = row.verify if what == "verify" else row.prefill
            if row.server is not None:
                hidden = row.server.model.hidden if row.server.model else 0
                look = group_look(row.server.groups["tp"], resolve(row.release), look.context, hidden)
            if runs and runs[-1][2].key == look.key:
                runs[-1][0].append(row.release)
            else:
                runs.append(([row.release], row, look))
        return [(names[0] if len(names) == 1 else f"{names[0]}\nto {names[-1]}", row, look) for names, row, look in runs]

    def picture(self, what: str | None = None, *, dark: bool = False) -> Any:
        """A matplotlib Figure: releases across, bytes up, colour = path; the verify step above, a prefill chunk below, or ``what`` of them
        alone. Raises InputError for another ``what``, ProbeUnavailable without matplotlib."""
        from .._show.figures import history_figure

        return history_figure(self, what, dark=dark)

    def __str__(self) -> str:
        from .._show.history import history_text

        return history_text(self)

    def __repr__(self) -> str:
        return f"<History: {len(self.rows) - 1} changes over {len(self.every)} releases>"

    def _repr_html_(self) -> str:
        from .._show.history import history_html

        return history_html(self)

    def to_dict(self, every: bool = False) -> dict[str, Any]:
        """Plain data for JSON; ``every``: all releases, not the changes alone."""
        return {
            "subject": self.subject,
            "level": self.level,
            "names": list(self.names),
            "releases": [row.release for row in self.every],
            "rows": [row.to_dict() for row in (self.every if every else self.rows)],
            "notes": list(self.notes),
            "assumed": list(self.assumed),
        }


def history(
    launch: str | None = None,
    *,
    group: Group | None = None,
    model: str | Model | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    releases: str | Iterable[str | Release] | None = None,
    batch: int = 1,
    prefill_tokens: int | None = None,
) -> History:
    """One launch line over all releases: the path of its verify step and of a prefill chunk, and at every change what did it.

    ``releases`` is a range (``"0.5.9..0.5.23"``) or names, oldest first; by default all. ``batch`` counts the requests of the verify
    step; ``prefill_tokens`` is by default the server's chunk (--chunked-prefill-size, else 8,192). A ``group`` by itself is asked at
    every size, captured and eager. Raises InputError as ``step`` does.
    """
    chosen = _releases(releases)
    if (launch is None) == (group is None):
        raise InputError("launch", launch, "give a launch line or a group" + (", not both" if group is not None else ""))
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= 1 << 20:
        raise InputError("batch", batch, "give a whole number from 1 to 1,048,576")
    if prefill_tokens is not None and (isinstance(prefill_tokens, bool) or not 1 <= prefill_tokens <= 1 << 30):
        raise InputError("prefill_tokens", prefill_tokens, "give a whole number from 1")
    if group is not None:
        given = {"model": model, "gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env}
        stray = next((name for name, value in given.items() if value is not None), None)
        if stray:
            raise InputError(stray, given[stray], "a group holds its own facts; this belongs to a launch line")
        return _group_history(group, chosen)
    assert launch is not None
    return _launch_history(
        launch,
        chosen,
        {"model": model, "gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env},
        batch,
        prefill_tokens,
    )


def _releases(releases: str | Iterable[str | Release] | None) -> tuple[Release, ...]:
    if releases is None:
        names: Iterable[str | Release] = (name for name in RELEASES if name not in COMMITS)
    elif isinstance(releases, str):
        names = releases_between(releases) if ".." in releases else (releases,)
    else:
        names = releases
    found = tuple(resolve(name) for name in names)
    if not found:
        raise InputError("releases", releases, "give at least one release")
    return found


def _launch_history(
    launch: str, releases: tuple[Release, ...], machine: Mapping[str, Any], batch: int, tokens: int | None
) -> History:
    read = _reader(launch, releases, machine)
    sides: list[tuple[Side, Side]] = []
    servers: list[Server] = []
    error: InputError | None = None
    for release in releases:
        try:
            server = read(RELEASES[release.index])
        except InputError as refused:  # a line that this release does not start with; another one may
            error = refused
            side = Side(release, refused_look(str(refused)), None)
            sides.append((side, side))
            continue
        if server.model is None:
            raise InputError("model", None, "the server's model is not known here: name a preset, or give its config.json")
        servers.append(server)
        looks = verify_look(server, release, batch), prefill_look(server, release, tokens)
        sides.append((Side(release, looks[0], server), Side(release, looks[1], server)))
    if not servers:
        assert error is not None
        raise error
    assumed = list(servers[-1].assumed)
    if tokens is None and not servers[-1].args["chunked_prefill_size"].value:
        assumed.append(f"a prefill chunk is {CHUNK_TOKENS:,} tokens: the size that SGLang picks depends on the GPU's memory")
    names = ("verify step" if any(server.draft_tokens > 1 for server in servers) else "decode step", "prefill chunk")
    told = without_secrets(launch)  # a history is shown and given away
    return History(told, "launch", _rows(sides), names, _unknown(servers), tuple(dict.fromkeys(assumed)))


def _reader(launch: str, releases: tuple[Release, ...], machine: Mapping[str, Any]) -> Callable[[str], Server]:
    """Reads the launch in a release. What was read is kept, unless it rests on something beside the line that may change."""
    from ..launch import read_launch
    from ..models import load_model

    if isinstance(machine["model"], str):
        machine = {**machine, "model": load_model(machine["model"])}
    if machine["gpu"] == "auto" or "--config" in launch:
        return lambda name: read_launch(launch, sglang=name, **machine)
    model = machine["model"]
    if model is None:  # its config.json may be another one than at the last reading
        with contextlib.suppress(InputError):
            model = read_launch(launch, sglang=RELEASES[releases[-1].index], **machine).model
    try:
        hash(model)  # a config.json may hold lists
    except TypeError:
        model = None
    if model is None:
        return lambda name: read_launch(launch, sglang=name, **machine)
    env = tuple(sorted((machine["env"] or {}).items()))
    rest = tuple(machine[key] for key in ("gpu", "link", "nodes", "gpus"))
    return lambda name: _read_once(launch, name, model, env, *rest)


@lru_cache(maxsize=1024)
def _read_once(
    launch: str,
    release: str,
    model: Model,
    env: tuple[tuple[str, str], ...],
    gpu: str | None,
    link: str | None,
    nodes: int | None,
    gpus: int | None,
) -> Server:
    from ..launch import read_launch

    return read_launch(launch, sglang=release, model=model, env=dict(env), gpu=gpu, link=link, nodes=nodes, gpus=gpus)


def _group_history(group: Group, releases: tuple[Release, ...]) -> History:
    from .._route import check_group

    check_group(group)
    sides = [(Side(r, group_look(group, r, "capture"), None), Side(r, group_look(group, r, "eager"), None)) for r in releases]
    facts = ", ".join(f"{name}={fact.value}" for name, fact in group.facts.items())
    return History(f"Group.make({facts})", "group", _rows(sides), ("captured", "eager"), group=group)


def _rows(sides: list[tuple[Side, Side]]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for i, (verify, prefill) in enumerate(sides):
        changes = []
        for k, what in enumerate(("verify", "prefill")):
            old, new = sides[i - 1][k], sides[i][k]
            causes = causes_of(old, new) if i else ()
            if causes:
                changes.append(Change(what, old.look, new.look, causes))
        release = verify.release
        rows.append(Row(release.name, release.ruleset, verify.look, prefill.look, tuple(changes), verify.server))
    return tuple(rows)


def _unknown(servers: list[Server]) -> tuple[str, ...]:
    """Flags that some releases do not have: there the launch is another one."""
    found: dict[str, list[str]] = {}
    for server in servers:
        for note in server.notes:
            flag, _, rest = note.partition(": ")
            if rest.startswith("unknown to SGLang"):
                found.setdefault(flag, []).append(server.sglang)
    return tuple(
        f"{flag}: unknown to {names[0]} to {names[-1]} ({len(names)} releases), ignored there" for flag, names in found.items()
    )


__all__ = ["Cause", "Change", "History", "Look", "Row", "history"]
