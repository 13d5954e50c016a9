"""Messages between the parent and a rank: whole byte strings over one end of a socket pair. Used by process (parent) and worker (rank).

Invariant: every wait of the parent ends at its deadline; a peer that is gone is an EOFError and never a wait.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from typing import Any

_HEAD = struct.Struct("<Q")
_CHUNK = 1 << 16


class Channel:
    """One end. The parent's never blocks beyond a deadline; the rank's waits for its next order as long as the parent lives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._come = bytearray()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        """All of it. ``deadline`` is a point of time.monotonic(); without one it waits until the other end reads.

        Raises EOFError where the other end is gone, TimeoutError where it does not read.
        """
        for part in (memoryview(_HEAD.pack(len(payload))), memoryview(payload)):
            while part:
                try:
                    part = part[self._socket.send(part, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
                except (BlockingIOError, InterruptedError):
                    if not self._wait(select.POLLOUT, deadline):
                        raise TimeoutError("it does not read what it is sent") from None
                except OSError as error:
                    raise EOFError(f"the other end is gone ({error.strerror})") from None

    def receive(self, deadline: float | None = None) -> bytes:
        """The next message; without a deadline however long that takes. Raises EOFError where the other end is gone, TimeoutError."""
        while True:
            message = self._next()
            if message is not None:
                return message
            if not self._wait(select.POLLIN, deadline):
                raise TimeoutError("it sends nothing")
            self._read()

    def arrived(self) -> list[bytes]:
        """Every whole message that has come; never waits. Raises EOFError where the other end is gone and nothing is left to read."""
        messages = []
        try:
            self._read()
        except EOFError:
            messages = self._all()
            if messages:
                return messages
            raise
        return self._all()

    def _all(self) -> list[bytes]:
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> bytes | None:
        if len(self._come) < _HEAD.size:
            return None
        end = _HEAD.size + int(_HEAD.unpack_from(self._come)[0])
        if len(self._come) < end:
            return None
        message = bytes(memoryview(self._come)[_HEAD.size : end])
        del self._come[:end]
        return message

    def _read(self) -> None:
        """What there is, at most what keeps the other ranks' answers waiting for a moment."""
        for _ in range(64):
            try:
                part = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise EOFError(f"the other end is gone ({error.strerror})") from None
            if not part:
                raise EOFError("the other end is gone")
            self._come += part
            if len(part) < _CHUNK:
                return

    def _wait(self, event: int, deadline: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
        return bool(poll.poll(left))


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends; neither is inherited unless it is passed on by number."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def dump(value: Any) -> bytes:
    """A message of our own nouns."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def dump_anything(value: Any) -> bytes:
    """A message with something of the user's: functions and classes of a notebook travel by their code."""
    import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data


def load(data: bytes) -> Any:
    return pickle.loads(data)
