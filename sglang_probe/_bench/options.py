"""What people write for a bench, checked: sizes, names out of lists, how many and how long. Called by bench.py and the command line.

Invariant: what comes out can be planned; what cannot is refused with the field, the value and the remedy, before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any

from .._facts import DEFAULTS, DTYPE_BYTES, check_dtype
from .._run.inputs import element
from .._show.sizes import human_bytes, parse_bytes
from .._types import InputError

FACTOR = 4
SIZES = {"gpu": "1K:256M", "host": "1K:4M"}
QUICK_SIZES = {"gpu": "1K:4M:16", "host": "1K:256K:16"}
HIDDEN = 7168
SAMPLES, QUICK_SAMPLES = (5, 9), (3, 5)
CELL_MS, QUICK_CELL_MS = 60.0, 15.0
PROCESSES, QUICK_PROCESSES = 5, 2
COLUMNS_MAX = 2**31 - 1
"""What the dispatch takes as a tensor's columns; a size is one row."""
SPLIT_MAX = 100_000

Texts = str | Sequence[str]
Sizes = str | Sequence[int | str]


def parts(field: str, given: object, remedy: str) -> list[Any]:
    """``"a,b"`` cut at its commas; or a list as it is."""
    if isinstance(given, str):
        return [part.strip() for part in given.split(",")]
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise InputError(field, given, remedy)
    return list(given)


def names(field: str, given: Texts, known: Sequence[str], groups: Mapping[str, Sequence[str]] | None = None) -> tuple[str, ...]:
    """``"a,b"`` or a list, each once, in the order of ``known``; a name of ``groups`` stands for all of that group."""
    groups = groups or {}
    every = [*known, *groups]
    remedy = f"give some of {', '.join(known)}"
    remedy += "".join(f"; or {name}, which is {', '.join(members)}" for name, members in groups.items())
    clean = parts(field, given, remedy)
    for name in clean:
        if name not in every:
            near = get_close_matches(str(name), every, 1)
            raise InputError(field, name, f"{f'did you mean {near[0]}? ' if near else ''}{remedy}")
    if not clean:
        raise InputError(field, given, remedy)
    wanted = {one for name in clean for one in groups.get(name, (name,))}
    return tuple(name for name in known if name in wanted)


_SIZES_TEXT = "give bytes, as 1K:256M or 1K,42KiB"
_RANGE_TEXT = "give FROM:TO or FROM:TO:FACTOR, as 1K:256M:4"


def sizes_of(given: Sizes, dtype: str) -> tuple[int, ...]:
    """``1K:256M`` (by a factor of 4), ``1K:256M:2``, ``1K,42KiB``, or a list of bytes: smallest first, each once."""
    if isinstance(given, str) and ":" in given:
        found = _range(given)
    else:
        texts = parts("sizes", given, _SIZES_TEXT)
        if not texts or not all(text != "" for text in texts):
            raise InputError("sizes", given, _SIZES_TEXT)
        found = [parse_bytes(text, "sizes") if isinstance(text, str) else whole("sizes", text) for text in texts]
    most = COLUMNS_MAX * DTYPE_BYTES[dtype]
    for size in found:
        if size > most:
            raise InputError("sizes", given, f"{human_bytes(size)} is too large: give at most {most:,} bytes, a row of {dtype}")
        if size % DTYPE_BYTES[dtype]:
            raise InputError("sizes", size, f"give multiples of {DTYPE_BYTES[dtype]}: that is one element of {dtype}")
    return tuple(sorted(set(found)))


def _range(given: str) -> list[int]:
    texts = [text.strip() for text in given.split(":")]
    if len(texts) not in (2, 3) or "" in texts:
        raise InputError("sizes", given, _RANGE_TEXT)
    try:
        low, high = (parse_bytes(text, "sizes") for text in texts[:2])
        factor = number("sizes", texts[2]) if len(texts) == 3 else FACTOR
    except InputError as error:  # of a part; what was typed is the whole
        raise InputError("sizes", given, f"{error.value!r} in it: {error.remedy}") from None
    if factor < 2 or low > high:
        raise InputError("sizes", given, f"{_RANGE_TEXT}, with FROM the smaller and a factor of 2 or more")
    found = [low]
    while found[-1] * factor <= high:
        found.append(found[-1] * factor)
    return found


def tokens_of(given: str | Sequence[int]) -> tuple[int, ...]:
    """Rows: smallest first, each once."""
    remedy = "give rows of the tensor, as 1,4,64,512"
    texts = parts("tokens", given, remedy)
    if not texts or not all(text != "" for text in texts):
        raise InputError("tokens", given, remedy)
    found = [number("tokens", text) if isinstance(text, str) else whole("tokens", text, most=COLUMNS_MAX) for text in texts]
    return tuple(sorted(set(found)))


def number(field: str, text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        raise InputError(field, text, "give whole numbers, 1 or more") from None
    return whole(field, found, most=COLUMNS_MAX)


def whole(field: str, value: object, least: int = 1, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        text = f"{least} or more" if most is None else f"{least} to {most:,}"
        raise InputError(field, value, f"give a whole number, {text}")
    return value


def check_facts_of(function: Any, facts: Mapping[str, object]) -> None:
    """A keyword that was mistyped is taken for a fact: the one that was meant, which a fact is less often, is told first."""
    keywords = [name for name, one in signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name, value in facts.items():
        if name not in DEFAULTS and (near := get_close_matches(name, keywords, 1) or get_close_matches(name, DEFAULTS, 1)):
            raise InputError(name, value, f"did you mean {near[0]}? there is no keyword and no fact of this name")


def free_name(name: str, partial: str) -> str:
    """``bench-2.jsonl`` for ``bench.jsonl``: no file of this name, nor an unfinished one."""
    stem, kind = os.path.splitext(name)
    number = 2
    while any(os.path.lexists(f"{stem}-{number}{kind}{end}") for end in ("", partial)):
        number += 1
    return f"{stem}-{number}{kind}"


def file_name(out: Any, partial: str) -> str:
    """Of the file that is to be; whether it can be there is asked later, where it is written."""
    try:
        name = os.fspath(out)
    except TypeError:
        name = None
    if not isinstance(name, str) or not os.path.basename(name) or "\0" in name:
        raise InputError("out", out, "give a file name")
    if name.endswith(partial):
        raise InputError("out", name, f"give the name that the finished file will have, without {partial}")
    return name


def check_free(name: str, partial: str) -> None:
    """Before anything is started; who writes it asks again."""
    if os.path.lexists(name):
        free = free_name(name, partial)
        raise InputError("out", name, f"it exists already, and is never overwritten: give another name, as {free}")
    folder = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(folder):
        raise InputError("out", name, f"there is no folder {folder}: make it, or give another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("out", name, f"nothing can be written to {folder}: give a name in another folder")


def dtype_of(given: str) -> str:
    """A dtype whose sum can be checked."""
    name = check_dtype(given)
    element(name)
    return name


def compute_of(given: object) -> float:
    most = 10_000.0
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= most:
        raise InputError("compute_us", given, f"give microseconds above 0, at most {most:g}: the kernel between two calls")
    return float(given)
