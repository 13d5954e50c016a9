"""Paths -> the traces in them, each read by what its first bytes say that it is. Called by check.py.

A folder stands for the traces that lie in it; SGLang's merged file is left out where the files that it was merged from are there too.
Invariant: a file that is refused says what it is, and what to give instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

from .._types import InputError
from .chrome import read_chrome
from .events import Trace, Track
from .nsys import MAGIC, read_nsys
from .stream import Source

TraceFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_ENDINGS = (".json", ".json.gz", ".sqlite", ".trace.gz")
_MERGED = "merged-"
# SGLang: ID-TP-3[-DP-0][-PP-1][-EP-3][-DECODE].trace.json.gz; others say rank3, rank_3 or rank-3.
_SGLANG = re.compile(r"(?:^|[-_.])TP-(\d{1,6})(?=[-_.]|$)")
_OTHERS = re.compile(r"(?:^|[^a-zA-Z])rank[-_]?(\d{1,6})(?=[^0-9]|$)", re.I)
_MORE = re.compile(r"(?<=[-_.])(DP|PP)-(\d{1,6})(?=[-_.]|$)")
_STAGE = re.compile(r"[-_](DECODE|EXTEND|PREFILL)(?=\.)", re.I)

_REFUSED = {
    b"PK\x03\x04": "it is a ZIP archive: unpack it, and give the .json or .sqlite file in it",
    b"\x28\xb5\x2f\xfd": "it is packed by zstd: unpack it first (unzstd FILE)",
    b"BZh": "it is packed by bzip2: unpack it first (bunzip2 FILE)",
    b"\xfd7zXZ": "it is packed by xz: unpack it first (unxz FILE)",
}
_REPORTS = {
    ".nsys-rep": "it is a report of Nsight Systems: give what `nsys export --type sqlite REPORT.nsys-rep` makes of it",
    ".qdrep": "it is an old report of Nsight Systems: give what `nsys export --type sqlite REPORT.qdrep` makes of it",
    ".ncu-rep": "it is a report of Nsight Compute, which holds no time line: give a trace of PyTorch's profiler or of Nsight Systems",
}


def find_files(given: TraceFiles) -> tuple[FilePath, ...]:
    """The files that the paths stand for, in order, each once."""
    paths = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    if not paths:
        raise InputError("trace", (), "give a trace: a .json or .json.gz of PyTorch's profiler, or an .sqlite of Nsight Systems")
    found: list[FilePath] = []
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise InputError("trace", path, "give the path of a file or of a folder")
        found += _files(FilePath(path).expanduser())
    return tuple(dict.fromkeys(found))


def _files(path: FilePath) -> list[FilePath]:
    try:
        if not path.is_dir():
            return [path]
        inside = sorted(p for p in path.iterdir() if p.name.endswith(_ENDINGS) and p.is_file())
    except OSError as error:
        raise InputError("trace", str(path), f"cannot be read ({error.strerror})") from None
    parts = [p for p in inside if not p.name.startswith(_MERGED)]
    if not inside:
        raise InputError("trace", str(path), f"no trace lies in this folder (files that end in {', '.join(_ENDINGS)})")
    return parts or inside


def read_trace(
    path: FilePath, *, mark: re.Pattern[str] | None = None, partial: bool = False, tell: Callable[[str], object] | None = None
) -> Trace:
    """One file. A damaged one is refused with the place where it breaks; ``partial`` takes what is whole before that."""
    say = tell or (lambda _text: None)
    if path.suffix in _REPORTS:
        raise InputError("trace", str(path), _REPORTS[path.suffix])
    try:
        with path.open("rb") as file:
            start = file.read(16)
            file.seek(0)
            _check_kind(path, start)
            if start.startswith(MAGIC):
                trace = read_nsys(path, mark=mark, tell=lambda: say(f"reading {path.name}"))
            else:
                source = Source(file)
                trace = read_chrome(path, source, mark=mark, tell=lambda: say(_progress(path, source)))
    except OSError as error:
        raise InputError("trace", str(path), f"cannot be read ({error.strerror or error})") from None
    if trace.damage and (not partial or not trace.events):
        told = f"{trace.damage}; {trace.events:,} whole events stand before that"
        remedy = "record or copy it again" + ("" if not trace.events else ", or give --partial to use what is whole")
        raise InputError("trace", str(path), f"{told}: {remedy}")
    return replace(trace, tracks=tuple(_named(track, path) for track in trace.tracks))


def _check_kind(path: FilePath, start: bytes) -> None:
    if not start:
        raise InputError("trace", str(path), "it is empty")
    for magic, told in _REFUSED.items():
        if start.startswith(magic):
            raise InputError("trace", str(path), told)
    packed, plain = start.startswith(b"\x1f\x8b"), start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not packed and not start.startswith(MAGIC) and plain not in (b"{", b"[", b""):
        told = "it is neither JSON nor SQLite: give a .json or .json.gz of PyTorch's profiler, or `nsys export --type sqlite` of a report"
        raise InputError("trace", str(path), told)


def _progress(path: FilePath, source: Source) -> str:
    return f"reading {path.name}: {100 * source.done // max(source.size, 1)} %"


def _named(track: Track, path: FilePath) -> Track:
    """The track with what the file's name says: its rank, where nothing in the file does, and its stage."""
    stage = _STAGE.search(path.name)
    track = replace(track, stage=stage[1].upper() if stage else "")
    more = "".join(f" {kind}{number}" for kind, number in _MORE.findall(path.name))
    if track.rank is not None:
        return replace(track, label=track.label + more)
    found = _SGLANG.search(path.name) or _OTHERS.search(path.name)
    if found is None or not track.label.startswith("GPU ") or " of " in track.label:
        return track
    rank = int(found[1])
    return replace(track, rank=rank, label=f"rank {rank}{more}", told_by="the file's name")


def name_apart(tracks: Iterable[Track]) -> list[Track]:
    """Tracks of several files may have one label: then the file's name tells them apart."""
    found = list(tracks)
    labels = [track.label for track in found]
    return [
        replace(track, label=f"{track.label} ({FilePath(track.file).name})") if labels.count(track.label) > 1 else track
        for track in found
    ]
