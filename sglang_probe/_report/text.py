"""Text and numbers as a report shows them, and its data as JSON holds them. Called by all of this package.

Invariant: what leaves here can be shown anywhere: no control character, no lone surrogate, no number that JSON does not have, no value that
looks like a secret, and no folder of the files that figures are from, since reports are made to be given away.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from .._show.page import printable

WITHHELD = "(withheld)"
_WORDS = r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|COOKIE|AUTH"
_NAME = re.compile(rf"(?:[A-Z0-9_]*_)?(?:API)?(?:{_WORDS})")
"""A variable that holds one: HF_TOKEN, OPENAI_API_KEY; not NCCL_SHM_DISABLE, nor MAX_TOKENS."""
_OPTION = re.compile(rf"--?(?:[a-z0-9_-]*[-_])?(?:api)?(?:{_WORDS})", re.I)
"""An option that takes one: --api-key, --hf-token; not --tokens, nor --tokenizer-path."""
_INSIDE = (
    (re.compile(r"(?<=://)[^/@\s'\"]+(?=@)"), WITHHELD),  # user:password@ of a URL
    (re.compile(rf"((?<![\w-]){_OPTION.pattern}(?:=|\s+))(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)", re.I), rf"\1{WITHHELD}"),
    (re.compile(rf"(\b{_NAME.pattern}=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)"), rf"\1{WITHHELD}"),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"), rf"\1{WITHHELD}"),
    (re.compile(r"\b(?:hf|ghp|gho|github_pat|sk|xox[a-z])[-_][\w-]{16,}"), WITHHELD),
)


_KIND = r"\.(?:jsonl?|csv|tsv|txt|html?|log)(?:\.gz)?(?![\w.])"
_NAMED_FILE = (
    re.compile(
        rf"\A(?:~[^/]*|\.\.?)?/(?:[^/,;:'\"\n]+/)*([^/,;:'\"\n]+{_KIND})"
    ),  # a text that begins with it: blanks may be in it
    re.compile(rf"(?<![\w:/.~-])(?:~[\w.-]*|\.\.?)?/(?:[^/\s,;:'\"]+/)*([^/\s,;:'\"]+{_KIND})"),
)
"""A file of figures behind folders, which say whose machine it is, and nothing of the figures. No URL, and no library's path."""


def names_secret(name: str) -> bool:
    """Whether a variable or an option of this name holds one: HF_TOKEN, --api-key."""
    return bool(_NAME.fullmatch(name) or _OPTION.fullmatch(name))


def is_secret(name: str, value: object) -> bool:
    """Whether a value is one by the name that it has: that of a variable, an argument (api_key) or an option."""
    return isinstance(value, str) and bool(value) and names_secret(name.upper())


def without_secrets(text: str) -> str:
    """A text that may be a command line, with its secrets withheld."""
    for pattern, instead in _INSIDE:
        text = pattern.sub(instead, text)
    return text


def words_without_secrets(words: Sequence[Any]) -> list[Any]:
    """A command is a list of words, where a secret may be the word after its option."""
    found = list(words)
    for i, word in enumerate(found[:-1]):
        if isinstance(word, str) and isinstance(found[i + 1], str) and _OPTION.fullmatch(word):
            found[i + 1] = WITHHELD
    return found


def shown(text: object) -> str:
    """A text as it may stand anywhere: control characters spelt out, bytes that are no text too, no secret, no folder of a file."""
    return printable(_given_away(_utf8(str(text))))


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _given_away(text: str) -> str:
    text = without_secrets(text)
    for pattern in _NAMED_FILE:
        text = pattern.sub(r"\1", text)
    return text


# ------------------------------------------------------------------------------------------------------------------- data for JSON


def plain(value: Any) -> Any:
    """The same as JSON holds it, given away: see the top. Tuples and arrays are lists; "inf", "-inf", "nan" stand for what is no number."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _given_away(_utf8(value))
    if isinstance(value, Mapping):
        return {_utf8(str(key)): WITHHELD if is_secret(str(key), item) else plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return words_without_secrets([plain(item) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    return _given_away(_utf8(str(value)))


# -------------------------------------------------------------------------------------------------------------------------- numbers


def digits(value: float | None, unit: str = "", count: int = 4) -> str:
    """So many digits that count, and the unit: ``89.2 tok/s``, ``4,024 tok/s``; ``-`` where there is none."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        text = "inf" if value > 0 else "-inf"
    else:
        text = f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.{count}g}"
    return f"{text} {unit}" if unit else text


def percent(share: float | None, sign: bool = True) -> str:
    """``+11.2 %``, ``-0.42 %``: at least two digits that count."""
    if share is None or math.isnan(share):
        return "-"
    value = 100 * share
    if math.isinf(value):
        return f"{'+' if value > 0 else '-'}inf %"
    places = 2 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    return f"{value:{'+' if sign else ''}.{places}f} %"


def named(key: str, label: str) -> str:
    """``a: before``; ``a`` of an arm that has no other name."""
    return key if label == key else f"{key}: {label}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 process``, ``5 processes``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
