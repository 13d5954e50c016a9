"""Which ring files are looked at: named ones, those of named processes, or all of this user. Called by top, dump, record.

Invariant: what was named and cannot be read is an error; what was found by looking around and cannot be read is named with its reason
and left out.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from .._record.folder import VARIABLE, candidates, folders, refusal
from .._record.ring import Refusal, Ring
from .._types import InputError

Source: TypeAlias = "int | str | os.PathLike[str]"
Sources: TypeAlias = "Source | Iterable[Source] | None"
"""Process numbers, ring files, folders of them; None: all of this user."""
SUFFIX = ".ring"


@dataclass
class Found:
    """Open rings, and what was refused."""

    rings: list[Ring] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    def close(self) -> None:
        for ring in self.rings:
            ring.close()


def find(sources: Sources = None, *, dead: bool = True) -> Found:
    """Opens them. `dead`: of those that were not named, also the ones whose process has ended. Raises InputError."""
    found = Found()
    try:
        for path, named in paths(sources, found.refused):
            _open(path, named, dead, found)
    except BaseException:
        found.close()
        raise
    return found


def _open(path: Path, named: bool, dead: bool, found: Found) -> None:
    try:
        ring = open_ring(path)
    except InputError as error:
        if named:
            raise
        if path.exists():  # else it was removed while we looked
            found.refused.append(Refusal(path, error.remedy))
        return
    if named or dead or ring.alive:
        found.rings.append(ring)
    else:
        ring.close()


def open_ring(path: Path) -> Ring:
    """A ring file; one that gzip has packed, as people send them, is unpacked into a file of our own that has no name. Raises
    InputError."""
    if path.suffix != ".gz":
        return Ring(path)
    with tempfile.TemporaryDirectory(prefix="sglang_probe-") as folder:
        own = Path(folder) / path.stem
        try:
            with gzip.open(path) as packed, open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for part in iter(lambda: packed.read(1 << 20), b""):
                    if file.write(part) and file.tell() > _LARGEST:
                        raise InputError(
                            "ring", os.fspath(path), f"more than {_LARGEST >> 20} MiB unpacked: no hook writes such a file"
                        )
        except (OSError, EOFError, zlib.error) as error:
            raise InputError("ring", os.fspath(path), f"cannot be unpacked: {error}") from None
        ring = Ring(own)
    ring.path = path
    return ring


_LARGEST = 1 << 28


def paths(sources: Sources, refused: list[Refusal]) -> Iterator[tuple[Path, bool]]:
    """(file, whether it was named), each once; folders that cannot be used go to `refused`."""
    seen: set[Path] = set()
    for path, named in _listed(sources, refused):
        if path not in seen:
            seen.add(path)
            yield path, named


def _listed(sources: Sources, refused: list[Refusal]) -> Iterator[tuple[Path, bool]]:
    if sources is None:
        yield from ((path, False) for path in _around(refused))
        return
    given = [sources] if isinstance(sources, int | str | os.PathLike) else list(sources)
    if not given:
        raise InputError("sources", given, "give process numbers or ring files, or nothing for all of this user")
    for source in given:
        if isinstance(source, bool) or not isinstance(source, int | str | os.PathLike):
            raise InputError("sources", source, "give a process's number or a ring file")
        if isinstance(source, int) or isinstance(source, str) and source.isdigit():
            yield from ((path, True) for path in _of_process(int(source)))
        elif os.path.isdir(source):
            yield from ((path, False) for place in folders(source) for path in _files(place))
        else:
            yield Path(source), True


def _files(folder: Path) -> Sequence[Path]:
    return sorted([*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}.gz")])


def _around(refused: list[Refusal]) -> Iterator[Path]:
    for folder in candidates():
        reason = refusal(folder)
        if not reason:
            yield from _files(folder)
        elif os.path.lexists(folder):
            refused.append(Refusal(folder, reason))
    refused += _of_others()


def _of_others() -> list[Refusal]:
    """Folders of other users beside ours: somebody looks for workers that another user runs."""
    if os.environ.get(VARIABLE):
        return []
    ours, found = set(candidates()), []
    for place in {folder.parent for folder in ours if folder.name.endswith(f"-{os.geteuid()}")}:
        for other in sorted(place.glob(f"{_stem()}-*")):
            if other in ours or not other.name.rpartition("-")[2].isdigit():
                continue
            found.append(Refusal(other, refusal(other)))
    return [one for one in found if one.reason]


def _stem() -> str:
    from .._record.folder import NAME

    return NAME


def _of_process(pid: int) -> Sequence[Path]:
    looked = folders()
    found = [path for folder in looked for path in sorted(folder.glob(f"{pid}.*{SUFFIX}"))]
    if not found:
        where = ", ".join(map(str, looked)) or "no folder of this user's"
        there = sorted(
            {path.name.partition(".")[0] for folder in looked for path in _files(folder)}, key=lambda text: (len(text), text)
        )
        known = f"; there are {', '.join(there)}" if there else ""
        raise InputError(
            "pid", pid, f"this process has no ring file in {where}{known}: it runs without the hook, or as another user"
        )
    return found


def example() -> list[Path]:
    """The recording that comes with the package: what it is stands in data/README.txt beside it."""
    return sorted((Path(__file__).parent / "data").glob(f"*{SUFFIX}.gz"))


def nothing_text(refused: Sequence[Refusal]) -> str:
    """What to do where there is no ring at all."""
    looked = ", ".join(map(str, candidates()))
    beside = "; " + "; ".join(one.reason for one in refused) if refused else ""
    return (
        f"no worker of this user records: looked in {looked}{beside}. Start the server with SGLANG_PROBE=1 "
        "(from SGLang 0.5.11), or by: sglang-probe record -- python -m sglang.launch_server ..."
    )
