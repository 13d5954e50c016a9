"""From a server to its groups: by its command line, its log, its URL, or by looking for it on this machine. Public.

    read_launch, read_log, read_url -> Server; find_server -> the address of a server that runs here

Invariant: each gives a whole Server or an InputError that says what to do; nothing is executed or sent but one GET.
"""

from __future__ import annotations

import os
import pathlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ._server.command import parse_flags, split_command, unknown_flag
from ._server.environment import OTHERS, VARIABLES
from ._server.log import scan_log
from ._server.log_effects import apply_log
from ._server.server import Machine, Sources, build_server, kept
from ._types import InputError, Model, Server


def _release(sglang: object) -> str:
    """The release's name; for a checkout, the nearest release, whose arguments are assumed to be its own."""
    from ._releases import RELEASES, Release, resolve

    release = sglang if isinstance(sglang, Release) else resolve(str(sglang))
    return release.name if release.name in RELEASES else RELEASES[release.index]


def read_launch(
    line: str,
    *,
    sglang: str,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
) -> Server:
    """The server that a command line starts: ``python -m sglang.launch_server ...`` or ``sglang serve ...``.

    ``gpu`` is a name such as h200 or "auto", ``link`` nvlink, pcie or xgmi, ``gpus`` the GPUs of one node. ``env`` adds to the variables
    that the line itself sets; ``model`` (a preset or a config.json) stands in for --model-path.
    """
    release = _release(sglang)
    command = split_command(line)
    parsed = parse_flags(command.argv, release)
    if command.model is not None:
        parsed.args.setdefault("model_path", command.model)
    notes = [unknown_flag(flag, release) for flag in dict.fromkeys(parsed.unknown)]
    notes += parsed.notes
    notes += [f"{word}: a shell variable, not expanded here" for word in command.argv if word.startswith("$")]
    sources = Sources(parsed.args, "launch line", env={**command.env, **(env or {})}, model=model, notes=notes)
    return build_server(release, sources, Machine(gpu, link, nodes, gpus))


def read_log(
    path: str | os.PathLike[str],
    *,
    sglang: str | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
) -> Server:
    """The server that wrote a log: SGLang prints its resolved arguments, and what became of its communicators.

    ``sglang`` is needed where the log does not say its version. Lines that say something else than the arguments are contradictions.
    """
    if not str(path).strip():
        raise InputError("log", path, "empty: give the file that the server wrote")
    log = scan_log(pathlib.Path(path))
    version = log.version or sglang
    if version is None:
        raise InputError("sglang", None, f"{path} does not say its version: give it, for example sglang='0.5.9'")
    release = _release(version)
    notes = list(log.notes)
    notes += _overruled("the log", log.version, sglang)
    sources = Sources(kept(log.args), f"log {path}", "found", dict(env or {}), model, notes, resolved=True)
    return apply_log(build_server(release, sources, Machine(gpu, link, nodes, gpus)), log)


def read_url(
    url: str,
    *,
    sglang: str | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
    timeout_s: float = 5.0,
    api_key: str | None = None,
) -> Server:
    """A running server, by its own /server_info (/get_server_info before). Its version wins over ``sglang``.

    ``api_key`` is what it was started with, by default the SGLANG_API_KEY of the environment.
    """
    from ._server.url import fetch_info  # here: the HTTP client weighs more than all the rest

    info = fetch_info(url, timeout_s, api_key)
    version = info.version or sglang
    if version is None:
        raise InputError("sglang", None, f"{url} does not say its version: give it, for example sglang='0.5.9'")
    notes = _overruled("the server", info.version, sglang)
    sources = Sources(kept(info.args), info.source, "found", dict(env or {}), model, notes, resolved=True)
    return build_server(_release(version), sources, Machine(gpu, link, nodes, gpus))


def _overruled(who: str, version: str | None, sglang: str | None) -> list[str]:
    """What a server says of itself wins; not in silence."""
    if version is None or sglang is None or _release(version) == _release(sglang):
        return []
    return [f"{who} says {version}: taken, though {sglang} was given"]


@dataclass(frozen=True)
class Running:
    """A server that runs on this machine."""

    pid: int
    launch: str
    """Its command line."""
    url: str
    env: Mapping[str, str]
    """Those of its variables that can change a route, as far as we may read them."""


def find_server(proc: str | os.PathLike[str] = "/proc") -> str | None:
    """The address of the first SGLang server among this machine's processes; None where there is none."""
    found = find_running(proc)
    return found.url if found else None


def find_running(proc: str | os.PathLike[str] = "/proc") -> Running | None:
    """The first SGLang server among this machine's processes, by their command lines; None where there is none."""
    root = pathlib.Path(proc)
    for folder in sorted(root.glob("[0-9]*"), key=lambda path: int(path.name) if path.name.isdigit() else 0):
        words = _null_separated(folder / "cmdline")
        line = shlex.join(words)
        if "sglang" not in line:
            continue
        try:
            command = split_command(line)
        except InputError:
            continue
        if command.argv == tuple(words):
            continue  # flags alone: some other program's
        named = {variable.name for variable in VARIABLES} | set(OTHERS)
        pairs = (word.split("=", 1) for word in _null_separated(folder / "environ") if "=" in word)
        env = {name: value for name, value in pairs if name in named}
        return Running(int(folder.name), line, _address(command.argv), env)
    return None


def _null_separated(path: pathlib.Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return []
    return [word for word in text.split("\0") if word]


def _address(argv: tuple[str, ...]) -> str:
    """Where it listens, by its own flags."""
    found = {"--host": "127.0.0.1", "--port": "30000"}
    for word, after in zip(argv, (*argv[1:], ""), strict=True):
        name, _, inline = word.partition("=")
        if name in found:
            found[name] = inline or after
    host = "127.0.0.1" if found["--host"] in ("0.0.0.0", "::", "") else found["--host"]
    return f"http://{host}:{found['--port']}"
