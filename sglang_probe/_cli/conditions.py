"""What reach and diff may be asked about: fixed conditions, a group, or a server. Called by reach.py, diff.py and history.py.

Invariant: an option that was not given fixes nothing, so that a proof covers all of its values.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .._types import FrozenMap, Group, InputError, Server
from .options import add_server_options, count, facts_of, pairs, read_group, read_server

_PROOF = "Leave a condition out, and all of its values are walked; repeat its option to allow several."
_MACHINE = ("gpu", "link", "nodes", "fact", "hidden")
"""Options that describe a group where no server is named."""


def add_condition_options(parser: argparse.ArgumentParser) -> None:
    """The conditions that the rules read, as ``dispatch`` names them."""
    from .._proof.space import CONDITIONS, VALUES
    from .._route import DEVICES

    group = parser.add_argument_group("conditions (the rules alone)", _PROOF)
    for name in CONDITIONS:
        option = _option(name)
        if name == "world_size":
            group.add_argument(option, type=count, action="append", metavar="N", help="ranks of the group")
        elif name == "device":
            group.add_argument(option, choices=DEVICES, metavar="NAME", help=f"{', '.join(DEVICES)} (cuda)")
        elif VALUES[name] == (False, True):
            group.add_argument(
                option, dest=name, action="append_const", const=True, help=f"only with it; --no-{option[2:]}: without"
            )
            group.add_argument(f"--no-{option[2:]}", dest=name, action="append_const", const=False, help=argparse.SUPPRESS)
        else:
            words = [str(value) for value in VALUES[name]]
            group.add_argument(
                option, action="append", choices=words, metavar="STATE", help=f"{', '.join(words[:-1])} or {words[-1]}"
            )


def add_machine_options(parser: argparse.ArgumentParser, sources: Iterable[str], revision: bool = True) -> None:
    """A server, or a group that is put together from a machine and facts."""
    sources = tuple(sources)
    add_server_options(parser, sources, revision, api_key="url" in sources)
    group = parser.add_argument_group("a group (--gpu, --link, --nodes or --fact, and no server)")
    text = "a fact, such as multicast=0, of this group or of each group of the server; repeat it. A wrong name prints all of them"
    group.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=text)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def fixed_conditions(args: argparse.Namespace) -> dict[str, Any]:
    """The conditions that options fix: a value, or all values of a repeated option."""
    from .._proof.space import CONDITIONS

    found = {name: value for name in CONDITIONS if (value := getattr(args, name, None)) is not None}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in found.items()}


def has_server(args: argparse.Namespace) -> bool:
    return any(getattr(args, name, None) is not None for name in ("launch", "log", "url"))


def has_group(args: argparse.Namespace) -> bool:
    return not has_server(args) and any(getattr(args, name, None) for name in _MACHINE)


def server_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """The server that the options name, and its machine, as reach, diff and history take them; only what was given."""
    names = ("launch", "log", "url", "gpu", "link", "nodes", "model")
    found = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    return found | ({"env": pairs("env", args.env)} if args.env else {})


def asked_group(args: argparse.Namespace, sglang: str) -> tuple[Group, tuple[str, ...]]:
    """The group of the options, and what was taken for granted."""
    fixed = fixed_conditions(args)
    sizes = fixed.pop("world_size", None)
    if fixed:
        name = next(iter(fixed))
        raise InputError(
            name, fixed[name], "conditions follow from the group; leave them out, or --gpu, --link, --nodes and --fact"
        )
    if isinstance(sizes, list):
        raise InputError("world_size", sizes, "a group has one size")
    plain = argparse.Namespace(**{**vars(args), "sglang": sglang, "group": "tp", "world_size": sizes, "launch": None})
    plain.log = plain.url = None
    asked = read_group(plain)
    facts = (f"{name} = {fact.value}" for name, fact in asked.group.facts.items() if fact.origin == "assumed")
    return asked.group, (*asked.assumed, *facts)


def all_assumed(*lists: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(text for texts in lists for text in texts))


_SHAPE = ("world_size", "nodes", "device", "consecutive", "tp_group", "captured")
"""Facts that follow from the server's arguments alone."""


def server_with_facts(args: argparse.Namespace, sglang: str) -> Server:
    """The server of the options with ``--fact`` in each of its groups."""
    server = read_server(argparse.Namespace(**{"log": None, "url": None, **vars(args), "sglang": sglang}))
    assert server is not None
    facts = facts_of(args.fact)
    instead = []
    for name, value in facts.items():
        own = server.groups["tp"].facts.get(name)
        if own is None or own.value == value or own.origin != "given":
            continue
        if name in _SHAPE:
            raise InputError(name, value, f"the server's own arguments say {own.value}: change them, or leave the fact out")
        instead.append(f"--fact {name}={value} stands in for what the server's own arguments say: {own.value}")
    groups = {
        name: group.with_facts("given", "--fact", **facts) if group.world_size > 1 else group
        for name, group in server.groups.items()
    }
    return replace(server, groups=FrozenMap(groups), assumed=(*instead, *server.assumed))
