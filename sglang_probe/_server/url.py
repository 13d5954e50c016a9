"""What a running server says of itself: one GET of /server_info, or of /get_server_info before it. Called by launch.py.

Invariant: http and https only, one time limit, one size limit; an answer that is no server's is an error that says what came instead.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .._types import InputError

_PATHS = ("/server_info", "/get_server_info")
_LARGEST_BYTES = 32 << 20


@dataclass(frozen=True)
class Info:
    """A server's own words."""

    args: dict[str, Any]
    version: str | None
    source: str


_KEY: ContextVar[str | None] = ContextVar("api_key", default=None)


@contextmanager
def using_key(api_key: str | None) -> Iterator[None]:
    """Requests inside send this key, where none is given with them."""
    token = _KEY.set(api_key)
    try:
        yield
    finally:
        _KEY.reset(token)


def _headers(api_key: str | None) -> dict[str, str]:
    key = api_key or _KEY.get() or os.environ.get("SGLANG_API_KEY")
    headers = {"Accept": "application/json"}
    if key and not (key.isascii() and key.isprintable()):
        raise InputError("api_key", "(not shown)", "holds what no HTTP header may: give the key that the server was started with")
    return {**headers, "Authorization": f"Bearer {key}"} if key else headers


def fetch_info(url: str, timeout_s: float = 5.0, api_key: str | None = None) -> Info:
    """Ask a server for its arguments and its version. Raises InputError for a bad URL, where nobody answers, and for no server's answer.

    The key is ``api_key``, else the SGLANG_API_KEY of the environment; it goes to this address alone, redirects are not followed.
    """
    base = _base(url)
    if not isinstance(timeout_s, (int, float)) or not math.isfinite(timeout_s) or timeout_s <= 0:
        raise InputError("timeout_s", timeout_s, "give seconds above 0")
    missing, headers = "", _headers(api_key)
    for path in _PATHS:
        try:
            return read_info(_get(base + path, timeout_s, headers), base + path)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise InputError(
                    "url", url, f"{path} answers {error.code}: it asks for its API key; give --api-key, or set SGLANG_API_KEY"
                ) from None
            missing = f"{path} answers {error.code}"
            if error.code not in (404, 405, 410):
                break
    raise InputError("url", url, f"{missing}; is this an SGLang server? give the address that it prints, or its log with --log")


def _base(url: str) -> str:
    if not isinstance(url, str) or not url.strip():
        raise InputError("url", url, "give an address such as http://127.0.0.1:30000")
    text = url.strip()
    if "://" not in text:
        text = "http://" + text
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError("url", url, f"{error}; give an address such as http://127.0.0.1:30000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError("url", url, "http and https only; give an address such as http://127.0.0.1:30000")
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in text):
        raise InputError("url", url, "holds a blank or a control character; give an address such as http://127.0.0.1:30000")
    text = text.rstrip("/")
    for path in _PATHS:
        text = text.removesuffix(path)
    return text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _get(address: str, timeout_s: float, headers: dict[str, str]) -> bytes:
    try:
        request = urllib.request.Request(address, headers=headers)
        opener = urllib.request.build_opener(_NoRedirect())
        with opener.open(request, timeout=timeout_s) as answer:
            content: bytes = answer.read(_LARGEST_BYTES + 1)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise InputError(
            "url", address, f"no server answers ({reason}); start it, correct the address, or give its log with --log"
        ) from None
    except ValueError as error:
        raise InputError("url", address, f"{error}; give an address such as http://127.0.0.1:30000") from None
    if len(content) > _LARGEST_BYTES:
        raise InputError("url", address, f"answers more than {_LARGEST_BYTES >> 20} MiB, which no SGLang server does")
    return content


def read_info(content: bytes, address: str) -> Info:
    """A server's answer, taken apart."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError("url", address, "answers no JSON; is this an SGLang server?") from None
    if isinstance(answer, dict) and isinstance(answer.get("server_args"), dict):
        answer = {**answer, **answer["server_args"]}
    if not isinstance(answer, dict) or "tp_size" not in answer:
        raise InputError("url", address, "its JSON has no tp_size, so it is no SGLang server's arguments")
    version = answer.get("version") or answer.get("sglang_version")
    return Info(answer, str(version) if isinstance(version, str) and version else None, f"url {address}")
