"""JSON of a trace, plain or gzip, read one event at a time. Called by chrome.py.

The standard library's own scanner, which is C, reads one value at a time out of a window. So nothing is installed for it, a file of
any length takes the memory of its longest event, and where it breaks is known to the byte (read as Latin-1: one character each).
Invariant: an event is handed on whole or not at all; what is not JSON from its first byte to its last ends in Broken.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

CHUNK = 1 << 20
BESIDE = ("distributedInfo", "schemaVersion")
"""What is kept of the values beside the events."""
LONGEST = 16 << 20
"""Bytes of one event, or of one value beside the events: more is no trace."""
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBERS_END = re.compile(r"[\d.eE+-]*[^\d.eE+-]")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_GZIP = b"\x1f\x8b"
_decode = json.JSONDecoder(strict=False).raw_decode
"""Not strict: profilers write control characters into names."""


class Broken(Exception):
    """The file breaks here."""

    def __init__(self, reason: str, events: int) -> None:
        super().__init__(reason)
        self.reason, self.events = reason, events


class Source:
    """Bytes of a file, unpacked where it is gzip. Damage does not raise here: the bytes end, and ``damage`` says why."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.damage = ""
        start = file.read(2)
        file.seek(0)
        self._unpack = zlib.decompressobj(wbits=31) if start == _GZIP else None
        self._packed = b""

    @property
    def done(self) -> int:
        """Bytes of the file that were read."""
        return self._file.tell()

    def read(self) -> bytes:
        """The next bytes; none at the end."""
        if self._unpack is None:
            return self._file.read(CHUNK)
        while not self.damage:
            if not self._packed:
                self._packed = self._file.read(CHUNK)
            if not self._packed:
                if self._unpack.eof:
                    return b""
                found = self._unpack.decompress(b"", CHUNK)  # what it still holds
                if not found:
                    self.damage = f"the gzip stream is cut off at byte {self.size:,} of the file, its end is missing"
                return found
            if self._unpack.eof:
                if not self._packed.strip(b"\0"):
                    return b""  # padding
                self._unpack = zlib.decompressobj(wbits=31)  # another member
            try:
                found = self._unpack.decompress(self._packed, CHUNK)
            except zlib.error as error:
                self.damage = f"the gzip stream is damaged near byte {self.done:,} of {self.size:,} ({error})"
                return b""
            self._packed = self._unpack.unused_data if self._unpack.eof else self._unpack.unconsumed_tail
            if found:
                return found
        return b""


class Events:
    """``for event in Events(source)``: the objects of ``traceEvents``. Of what stands beside them, BESIDE is in ``beside``."""

    def __init__(self, source: Source, tell: Callable[[], object] | None = None) -> None:
        self.source = source
        self.beside: dict[str, Any] = {}
        self.events = 0
        self.open_ended = False
        """A bare array without its closing bracket: the format allows it, and nothing says whether it is whole."""
        self._tell = tell or (lambda: None)
        self._text, self._pos, self._base, self._end = "", 0, 0, False

    def __iter__(self) -> Iterator[Any]:
        if self._more() and self._text.startswith("\xef\xbb\xbf"):
            self._pos = 3
        first = self._next()
        if first == "[":
            self._pos += 1
            yield from self._array(bare=True)
        elif first == "{":
            self._pos += 1
            yield from self._object()
        else:
            raise self._broken("is no JSON object" if first else "ends before anything is in it")
        if self._next():
            raise self._broken("has something after its end")
        if self.source.damage:
            raise self._broken("")

    # ------------------------------------------------------------------------------------------------------------------- the window

    def _more(self, want: int = 1) -> bool:
        """Reads on; False at the end."""
        parts = [self._text[self._pos :]]
        self._base, self._pos = self._base + self._pos, 0
        while want > 0 and not self._end:
            found = self.source.read()
            self._end = not found
            parts.append(found.decode("latin-1"))
            want -= len(found)
        self._text = "".join(parts)
        self._tell()
        return not self._end

    def _next(self) -> str:
        """The next character that is no space, not taken; "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._pos)
            self._pos = found.end() if found else self._pos
            if self._pos < len(self._text):
                return self._text[self._pos]
            if not self._more():
                return self._text[self._pos : self._pos + 1]

    def _value(self) -> Any:
        """The value that begins here."""
        if not self._next():
            raise self._broken("ends where a value should be")
        while True:
            error: Exception | None = None
            try:
                value, end = _decode(self._text, self._pos)
                if self._end or _NUMBERS_END.match(self._text, end):  # a number at the edge of the window may go on
                    self._pos = end
                    return value
            except RecursionError:
                raise self._broken("is nested too deeply to be a trace") from None
            except ValueError as found:  # also a number of thousands of digits
                error = found
            have = len(self._text) - self._pos
            if have > LONGEST:
                raise self._broken(f"holds one value of over {LONGEST >> 20} MiB, or is no JSON") from None
            if self._end and error is not None:
                raise self._broken(self._reason(error)) from None
            self._more(max(have, CHUNK))

    def _reason(self, error: Exception) -> str:
        """What is wrong with the value that begins here, of which all is there."""
        at = getattr(error, "pos", self._pos)
        if at >= len(self._text.rstrip()) or "Unterminated" in str(error):
            return "ends within a value"
        self._pos = at
        return f"is no JSON ({getattr(error, 'msg', str(error)[:80])})"

    def _broken(self, what: str) -> Broken:
        at = f"byte {self._base + self._pos:,}" + (" of what is unpacked" if self.source.damage or self.source._unpack else "")
        told = "; ".join(filter(None, [self.source.damage, f"{at}: it {what}" if what else ""]))
        return Broken(told, self.events)

    # ---------------------------------------------------------------------------------------------------------------- the two shapes

    def _object(self) -> Iterator[Any]:
        seen = False
        if self._next() == "}":
            self._pos += 1
            raise self._broken("holds no traceEvents")
        while True:
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._broken("is no JSON object" if self._next() else "ends within an object")
            self._pos += 1
            if key == "traceEvents" and self._next() == "[":
                seen = True
                self._pos += 1
                yield from self._array(bare=False)
            else:
                value = self._value()
                if key in BESIDE:
                    self.beside[key] = value
            letter = self._next()
            if letter not in (",", "}"):
                raise self._broken("is no JSON object" if letter else "ends within an object")
            self._pos += 1
            if letter == "}":
                break
        if not seen:
            raise self._broken("holds no traceEvents")

    def _run(self) -> Iterator[Any]:
        """The same as the loop of ``_array``, for events that are whole in the window: the way that nearly all of them take."""
        self._next()
        text, pos = self._text, self._pos
        try:
            while True:
                value, end = _decode(text, pos)
                comma = _COMMA.match(text, end)
                if comma is None:
                    return
                self.events += 1
                yield value
                pos = self._pos = comma.end()
        except (ValueError, RecursionError, IndexError):
            return  # the loop says what is wrong with it

    def _array(self, bare: bool) -> Iterator[Any]:
        if self._next() == "]":
            self._pos += 1
            return
        while True:
            yield from self._run()
            if bare and not self._next():
                self.open_ended = True
                return
            value = self._value()
            self.events += 1
            yield value
            letter = self._next()
            if not letter and bare:
                self.open_ended = True
                return
            if letter not in (",", "]"):
                raise self._broken("is no JSON array" if letter else "ends within its events")
            self._pos += 1
            if letter == "]":
                return
