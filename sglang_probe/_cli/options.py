"""Options that several commands share, and what they become: a server's description, one group, facts. Called by the commands.

Invariant: what nobody gave is in the list of assumptions that comes back with the group, and is printed with the answer.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._facts import DEFAULTS
from .._types import Group, InputError, Server

if TYPE_CHECKING:
    from .._server.hardware import Gpu


_SOURCES = {
    "launch": ("LINE", 'its own command line, quoted: "python -m sglang.launch_server ..."'),
    "log": ("FILE", "its log: the resolved ServerArgs are read, contradictions are told"),
    "url": ("URL", "where it listens: http://127.0.0.1:30000"),
}


def add_server_options(
    parser: argparse.ArgumentParser, sources: Iterable[str] = tuple(_SOURCES), revision: bool = True, api_key: bool = False
) -> None:
    """Where the server is described, and the machine that it runs on. ``revision``: with ``--sglang``; ``api_key``: with its own."""
    told = [f"--{name}" for name in sources]
    group = parser.add_argument_group("the server" + (f" (one of {', '.join(told)})" if len(told) > 1 else ""))
    for name in sources:
        metavar, text = _SOURCES[name]
        group.add_argument(f"--{name}", metavar=metavar, help=text)
    if api_key:
        group.add_argument("--api-key", metavar="KEY", help="with --url: the server's own --api-key; by default $SGLANG_API_KEY")
    group.add_argument("--model", help="a preset (Kimi-K2.5, DeepSeek-V3, ...), or a config.json or its folder")
    group.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the server's environment; repeat it"
    )
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--gpu", help="h200, b200, rtx-pro-6000, mi300x, ..., or auto to look at this machine")
    machine.add_argument("--link", help="nvlink, pcie or xgmi; by default the GPU's usual one")
    machine.add_argument("--nodes", type=_count, metavar="N", help="nodes that the server spans")
    if revision:
        parser.add_argument("--sglang", metavar="REVISION", help="0.5.9, 0be30d4, E10, installed, or path/to/checkout@revision")


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 1 or more")
    return number


count = _count
"""A positive whole number as an option."""


def ordinals(text: str) -> list[int]:
    """Numbers of GPUs, one a rank."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give the number of each rank's GPU, from 0, as 0,1")
    return numbers


def pairs(name: str, texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` of a repeated option."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(name, text, "give NAME=VALUE")
        found[key.strip()] = value
    return found


def server_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords that step and the readers share."""
    return {
        "gpu": args.gpu,
        "link": args.link,
        "nodes": args.nodes,
        "env": pairs("env", args.env) or None,
        "model": args.model,
        "sglang": args.sglang,
    }


def read_server(args: argparse.Namespace) -> Server | None:
    """The server that ``--launch``, ``--log`` or ``--url`` describes; None where none of them is given."""
    given = [name for name in ("launch", "log", "url") if getattr(args, name) is not None]
    if len(given) > 1:
        raise InputError(given[1], getattr(args, given[1]), f"give either --{given[0]} or --{given[1]}")
    if not given:
        return None
    from .. import launch
    from ..models import load_model

    keywords = server_arguments(args) | {"gpus": None, "model": None if args.model is None else load_model(args.model)}
    # A revision on disk has the flags of the nearest release; which rules it has is the router's business.
    keywords["sglang"] = _version(args.sglang) if args.sglang is not None or given[0] == "launch" else None
    if given[0] == "url":
        keywords["api_key"] = getattr(args, "api_key", None)
    readers: dict[str, Callable[..., Server]] = {"launch": launch.read_launch, "log": launch.read_log, "url": launch.read_url}
    return readers[given[0]](getattr(args, given[0]), **keywords)


def _version(sglang: str | None) -> str:
    from .._releases import RELEASES, resolve

    release = resolve(default_revision()[0] if sglang is None else sglang)
    return release.name if release.name in RELEASES else RELEASES[release.index]


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None] | None]:
    """What is being done, on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def default_revision() -> tuple[str, str]:
    """The revision where none is named, and the sentence that says so: the installed one, as step takes it, else the newest known."""
    from .._releases import newest, resolve

    try:
        return "installed", f"SGLang {resolve('installed').name}, which is installed here: no --sglang is given"
    except InputError:
        return newest(), f"SGLang {newest()}, the newest that is tabulated: no --sglang is given and none is installed"


# ------------------------------------------------------------------------------------------------------------------- one group


@dataclass(frozen=True)
class Asked:
    """A group, the revision to ask, and what was taken for granted."""

    group: Group
    sglang: str
    assumed: tuple[str, ...]


def add_group_options(parser: argparse.ArgumentParser) -> None:
    add_server_options(parser, api_key=True)
    group = parser.add_argument_group("the group")
    group.add_argument("--world-size", type=_count, metavar="N", help="ranks of the group (8)")
    group.add_argument("--group", default="tp", help="which group of the server (tp)")
    text = "a fact of the group, such as symm_mem=1; repeat it. A wrong name prints all of them"
    group.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=text)
    parser.add_argument("--context", default="eager", help="eager, capture, warmup, piecewise_replay, ... (eager)")
    parser.add_argument("--dtype", default="bf16", help="bf16, fp16, fp32, ... (bf16)")


def read_group(args: argparse.Namespace) -> Asked:
    """The group that the options describe: a server's, or one that is put together from GPU, link and facts."""
    facts = facts_of(args.fact)
    server = read_server(args)
    if server is None:
        return _plain_group(args, facts)
    if args.group not in server.groups:
        raise InputError("group", args.group, f"give one of {', '.join(server.groups)}")
    group = server.groups[args.group].with_facts("given", "--fact", **facts)
    if args.world_size is not None:
        group = group.with_facts("given", "--world-size", world_size=args.world_size)
    sglang, assumed = args.sglang, server.assumed
    if sglang is None and args.launch is not None:
        sglang, said = default_revision()
        assumed = (*assumed, said)
    return Asked(group, sglang or server.sglang, (*_notes(server), *assumed))


def _notes(server: Server) -> tuple[str, ...]:
    return (*(f"the log says otherwise: {text}" for text in server.contradictions), *server.notes)


def facts_of(texts: Iterable[str]) -> dict[str, int]:
    words = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}
    facts = {}
    for name, value in pairs("fact", texts).items():
        if name not in DEFAULTS:
            near = difflib.get_close_matches(name, DEFAULTS, n=1)
            raise InputError("fact", name, f"{f'did you mean {near[0]}? ' if near else ''}the facts are {', '.join(DEFAULTS)}")
        try:
            facts[name] = words[value.lower()] if value.lower() in words else int(value)
        except ValueError:
            raise InputError(name, value, "facts are whole numbers, or true and false") from None
    return facts


def _plain_group(args: argparse.Namespace, facts: dict[str, int]) -> Asked:
    for name in ("env", "model", "api_key"):
        if getattr(args, name, None) not in (None, []):
            shown, source = ("(not shown)", "--url") if name == "api_key" else (getattr(args, name), "--launch")
            raise InputError(name, shown, f"goes with {source}; without a server give facts: --fact NAME=VALUE")
    if args.group != "tp":
        raise InputError("group", args.group, "goes with --launch, --log or --url: a group put together from options is tp")
    assumed: list[str] = []
    gpu, link = _machine(args, assumed)
    world_size = args.world_size or facts.get("world_size")
    if world_size is None:
        world_size = 8
        assumed.append("8 ranks: no --world-size is given")
    nodes = args.nodes or facts.get("nodes", 1)
    linked = link in ("nvlink", "xgmi")
    device = _device(gpu)
    group = Group().with_facts("given", "options", world_size=world_size, nodes=nodes)
    group = group.with_facts("given" if args.gpu else "assumed", gpu.name, device=device, arch=gpu.arch)
    group = group.with_facts(
        "given" if args.link or args.gpu and nodes == 1 else "assumed", link, full_nvlink=linked and (nodes == 1 or gpu.fabric)
    )
    group = group.with_facts(
        "assumed",
        f"{gpu.name}, {link}",
        multicast=gpu.multicast and link == "nvlink",
        p2p=linked or gpu.peer,
        fabric_clique=gpu.fabric and nodes > 1,
        has_aiter=gpu.device == "hip",
    )
    group = group.with_facts("given", "--fact", **facts)
    sglang = args.sglang
    if sglang is None:
        sglang, said = default_revision()
        assumed.append(said)
    return Asked(group, sglang, tuple(assumed))


def _device(gpu: Gpu) -> int:
    from .. import _core

    return _core.DEVICES.index(gpu.device)


def _machine(args: argparse.Namespace, assumed: list[str]) -> tuple[Gpu, str]:
    from .._server.hardware import DEFAULT_GPU, check_link, find_gpus, gpu_by_name

    link = None if args.link is None else check_link(args.link)
    if args.gpu == "auto":
        found = find_gpus()
        return found.gpu, link or found.link
    gpu = gpu_by_name(DEFAULT_GPU if args.gpu is None else args.gpu)
    if args.gpu is None:
        assumed.append(f"GPU {gpu.name}: no --gpu is given")
    if link is None:
        assumed.append(f"{gpu.link} links, as {gpu.name} usually has: no --link is given")
    return gpu, link or gpu.link
