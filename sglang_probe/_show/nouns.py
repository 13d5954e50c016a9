"""What a notebook shows of the nouns: a group's facts, a server's settings, what runs each path of a Coordinator; of any other its fields.

Called by Shown (_shown.py). Invariant: what looks like a secret is withheld, as in reports; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._report.text import WITHHELD, is_secret, shown, words_without_secrets
from .._types import Group, Server
from .page import Block, Line, Table, items, to_html

if TYPE_CHECKING:
    from .._live.worker import Worker
    from .._run.coordinator import Coordinator

_ROWS, _PARTS, _LETTERS = 40, 8, 400
"""Rows of one mapping, parts of one list, letters of one cell."""


def noun_html(noun: Any) -> str:
    """Of a noun's own page, or of its fields."""
    return to_html(noun_page(noun))


def noun_page(noun: Any) -> list[Block]:
    from .._live.worker import Worker
    from .._run.coordinator import Coordinator

    pages: tuple[tuple[type, Callable[[Any], list[Block]]], ...] = (
        (Group, group_page),
        (Server, server_page),
        (Coordinator, coordinator_page),
        (Worker, worker_page),
    )
    return next((page for one, page in pages if isinstance(noun, one)), fields_page)(noun)


# -------------------------------------------------------------------------------------------------------------------------- a page each


def group_page(group: Group) -> list[Block]:
    """Its facts, each with its origin and what it means."""
    from .._facts import TEXTS

    rows = tuple(
        (name, str(fact.value), f"{fact.origin}{f': {shown(fact.source)}' if fact.source else ''}", TEXTS.get(name, ""))
        for name, fact in group.facts.items()
    )
    told = f"{group.name}: {group.world_size} rank{'s' * (group.world_size != 1)}"
    rest = Line("every other fact is its default, and printed as assumed where an answer rests on it", "dim")
    return [Line(told, "answer"), Table("", ("fact", "value", "origin", "what it says"), rows, frozenset({"value"})), rest]


def server_page(server: Server) -> list[Block]:
    """Whose it is, what the log contradicts, its groups, what is not a default, what was assumed."""
    from .step import settings_table

    model = server.model.name if server.model else "an unknown model"
    page: list[Block] = [Line(f"the log says otherwise: {shown(text)}", "warn") for text in server.contradictions]
    page.append(Line(shown(f"{model}, SGLang {server.sglang}; read from {server.source}"), "answer"))
    graphs = "decode graphs" if server.decode_graph else "no decode graph"
    tokens = "1 token" if server.draft_tokens == 1 else f"{server.draft_tokens} tokens"
    fusion = server.fusion
    page.append(Line(f"{graphs}; prefill graph: {server.prefill_graph}; {tokens} of a request in a verify step"))
    page.append(Line(shown(f"fusion is {'on' if fusion.enabled else 'off'}: {fusion.reason}"), "dim"))
    rows = tuple((name, str(group.world_size), f"{len(group.facts)} facts are known") for name, group in server.groups.items())
    page.append(Table("Groups", ("group", "ranks", "facts"), rows, frozenset({"ranks"})))
    page += settings_table(server)
    page += items("Environment", (f"{name}={_kept(name, value)}" for name, value in server.env.items()))
    page += items("Notes", map(shown, server.notes))
    return [*page, *items("Assumed", map(shown, server.assumed), "dim")]


def coordinator_page(coordinator: Coordinator) -> list[Block]:
    """What it is, and what runs each path on its device."""
    page: list[Block] = [Line(repr(coordinator).strip("<>"), "answer")]
    if coordinator.device == "closed":
        return page
    rows = tuple((str(path), text) for path, text in coordinator.paths.items())
    return [*page, Table("", ("path", "what runs it here"), rows, strong="path")]


def worker_page(worker: Worker) -> list[Block]:
    """What it is, its calls by kind with what was expected, its graphs with their replays."""
    kinds = tuple(
        (
            kind.group,
            kind.phase,
            f"{kind.path or 'not seen'}{f' ({kind.kernel})' if kind.kernel else ''}",
            kind.expected or "-",
            f"{kind.calls:,}",
            f"{kind.executed:,}",
        )
        for kind in worker.kinds
    )
    graphs = tuple((one.label or str(one.number), f"{one.captured:,}", f"{one.replays:,}") for one in worker.graphs)
    page: list[Block] = [
        Line(repr(worker).strip("<>"), "answer"),
        Line(f"SGLang {worker.release}; {worker.alarms:,} alarms", "dim"),
    ]
    calls = ("group", "phase", "path", "expected", "calls", "executed")
    page += [Table("Calls", calls, kinds, frozenset({"calls", "executed"}), "path")] if kinds else []
    columns = ("graph", "calls captured", "replays")
    page += [Table("Graphs", columns, graphs, frozenset(columns[1:]))] if graphs else []
    return [*page, *items("Notes", map(shown, worker.notes), "dim")]


# --------------------------------------------------------------------------------------------------------------------------- any other


def fields_page(noun: Any) -> list[Block]:
    """Its text where it has one, and a row a field; a mapping has a row a member."""
    rows = [row for one in fields(noun) if one.repr for row in _rows(one.name, getattr(noun, one.name))]
    head = type(noun).__name__
    if _has_text(noun):
        head = f"{head}: {_cut(shown(noun))}"
    elif not type(noun).__dataclass_params__.repr:  # it tells of itself
        head = _cut(shown(repr(noun).strip("<>")))
    return [Line(head, "answer"), Table("", ("field", "value"), tuple(rows), strong="field")]


def _has_text(noun: Any) -> bool:
    """Whether its class says what its text is."""
    return any("__str__" in vars(one) for one in type(noun).__mro__[:-1])


def _rows(name: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping) or not value:
        return [(name, _kept(name, value))]
    rows = [(shown(f"{name}: {key}"), _kept(str(key), item)) for key, item in [*value.items()][:_ROWS]]
    return [*rows, (name, f"and {len(value) - _ROWS:,} more")] if len(value) > _ROWS else rows


def _kept(name: str, value: Any) -> str:
    """The value, unless its name says that nobody else should read it."""
    return WITHHELD if is_secret(name, value) else shown(_text(value))


def _text(value: Any) -> str:
    """In one line: a record by its own text or its values, a long list by its first parts and their number."""
    if value is None or isinstance(value, str | list | tuple | Mapping) and not value:
        return "-"
    if isinstance(value, np.ndarray):
        return f"{value.size:,} numbers"
    if isinstance(value, Mapping):
        return _joined([f"{key}: {_kept(str(key), item)}" for key, item in [*value.items()][:_PARTS]], len(value))
    if isinstance(value, list | tuple):
        nested = any(isinstance(item, Mapping | list | tuple) for item in value)
        return _joined([_text(item) for item in words_without_secrets(value)[:_PARTS]], len(value), "; " if nested else ", ")
    if is_dataclass(value) and not isinstance(value, type) and not _has_text(value):
        return _joined([_text(getattr(value, one.name)) for one in fields(value) if one.repr], 0)
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} ... ({len(text):,} letters)"


def _joined(parts: list[str], whole: int, between: str = ", ") -> str:
    told = between.join(part for part in parts if part != "-")
    return f"{told}{between}and {whole - _PARTS:,} more" if whole > _PARTS else told or "-"
