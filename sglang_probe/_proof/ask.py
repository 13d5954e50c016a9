"""The public questions: reach and assert_unreachable. Called by people, the command line and the pytest plug-in.

Invariant: a question that cannot be answered is refused by name; a proof is never returned for an empty space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._releases import RELEASES, Release, resolve
from .._types import Group, InputError, Model, Server
from .reach import Kind, Reach, reach_conditions, reach_releases, releases_between, target_kind
from .reach_launch import reach_worker
from .worker import Worker, worker_of_group, worker_of_server

_MACHINE = ("gpu", "link", "nodes", "gpus", "env", "model")


class Reached(AssertionError):
    """Something that a test says cannot be reached is reached; ``reach`` holds the witness."""

    def __init__(self, reach: Reach) -> None:
        from .failing import reached_text

        super().__init__(reached_text(reach))
        self.reach = reach


def reach(
    target: str,
    *,
    sglang: str | Release,
    kind: Kind | None = None,
    group: Group | None = None,
    launch: str | None = None,
    log: str | None = None,
    url: str | None = None,
    server: Server | None = None,
    described: str | None = None,
    dtype: str = "bf16",
    hidden: int = 0,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
    **fixed: object,
) -> Reach:
    """Can this rule fire, or this path be taken? A proof that it cannot, or the most ordinary witness that it can.

    Three levels: conditions (``dispatch``'s keywords, each fixed to a value or to a collection of values); a ``group``, ``launch`` line,
    ``log``, ``url`` or ``server``: all sizes, dtypes, layouts and contexts of a worker started so; a range of releases
    (``sglang="0.5.9..0.5.23"``) on either. ``described`` is how a witness is to name a group of ``server`` (with ``{group}``).
    A name that is both a rule and a path means the rule; ``kind="path"`` says otherwise.

    Raises InputError for an unknown target or condition, a contradiction, or an empty range.
    """
    wanted, name = target_kind(target, kind), str(target)
    machine = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env, "model": model}
    asked: dict[str, Any] = {"group": group, "launch": launch, "log": log, "url": url, "server": server}
    given = [key for key, value in asked.items() if value is not None]
    if len(given) > 1:
        raise InputError(given[1], asked[given[1]], f"give either {given[0]} or {given[1]}")
    if given and fixed:
        condition = next(iter(fixed))
        raise InputError(
            condition, fixed[condition], f"conditions follow from the {given[0]}; leave them out, or leave out {given[0]}"
        )
    if not given and any(value is not None for value in machine.values()):
        key = next(key for key, value in machine.items() if value is not None)
        raise InputError(key, machine[key], "the machine matters for a launch line or a log; give one of them, or conditions")
    asked["described"] = described  # beside what was asked, not one of it
    if isinstance(sglang, str) and ".." in sglang:
        parts = [
            _one(name, wanted, resolve(one), asked, given, machine, dtype, hidden, fixed) for one in releases_between(sglang)
        ]
        return reach_releases(parts, sglang)
    return _one(name, wanted, resolve(sglang), asked, given, machine, dtype, hidden, fixed)


def _one(
    target: str,
    kind: Kind,
    release: Release,
    asked: Mapping[str, Any],
    given: list[str],
    machine: Mapping[str, Any],
    dtype: str,
    hidden: int,
    fixed: Mapping[str, object],
) -> Reach:
    if not given:
        return reach_conditions(target, kind, release, fixed)
    worker, describe = worker_of(asked, given[0], release, machine, dtype, hidden)
    return reach_worker(target, kind, worker, given[0], describe)


def worker_of(
    asked: Mapping[str, Any], key: str, release: Release, machine: Mapping[str, Any], dtype: str = "bf16", hidden: int = 0
) -> tuple[Worker, str]:
    """The worker behind a group, launch line, log, URL or server, and how code names its groups ({group} is the name)."""
    value, described = asked[key], asked.get("described")
    if key == "group":
        facts = ", ".join(f"{name}={fact.value}" for name, fact in value.facts.items())
        return worker_of_group(value, release, dtype=dtype, hidden=hidden), f"probe.Group.make({facts})"
    if key == "server":
        return worker_of_server(value, release), described or 'server.groups["{group}"]'
    from ..launch import read_launch, read_log, read_url

    settings = "".join(f", {name}={setting!r}" for name, setting in machine.items() if setting is not None)
    if key == "launch":
        name = RELEASES[release.index]  # of a checkout: the nearest release, whose arguments are taken to be its own
        server = read_launch(value, sglang=name, **machine)
        text = f"probe.read_launch({value!r}, sglang={release.name!r}{settings})"
        return worker_of_server(server, release), _literal(text) + '.groups["{group}"]'
    reader = read_log if key == "log" else read_url
    server = reader(value, sglang=release.name, **machine)
    return worker_of_server(server, release), _literal(
        f"probe.read_{key}({value!r}, sglang={release.name!r}{settings})"
    ) + '.groups["{group}"]'


def _literal(text: str) -> str:
    """Braces of a launch line are no placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def assert_unreachable(target: str, **question: Any) -> Reach:
    """``reach`` as an assertion: returns the proof, or raises Reached with the witness as code that reproduces it."""
    __tracebackhide__ = True
    answer = reach(target, **question)
    if answer.reachable:
        raise Reached(answer)
    return answer
