"""Meeting: the ranks of one launch on one machine find one another, and rank 0 hands each the descriptors that all of them share.

They meet at a socket in Linux's abstract namespace, which is no file and goes with rank 0; the connections stay, and are how a rank's end
is seen. Called by joining.py. Invariant: nobody is talked to who is not a process of the same user, of the same launch and version;
every wait ends, and what goes wrong is told to all who have come.
"""

from __future__ import annotations

import array
import contextlib
import errno
import hashlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .. import __version__
from .._types import ProbeError, ProbeUnavailable
from .launchers import Launched
from .messages import Channel

_GREETING = "sglang_probe meeting 1"
_KINDS: dict[str, type[Exception]] = {"error": ProbeError, "unavailable": ProbeUnavailable, "timeout": TimeoutError}
_CREDENTIALS = struct.Struct("3i")
_YES, _NO = b"+", b"-"
_NAME_S = 2.0
"""How long rank 0 waits for its name where another has it: an earlier run of the same launch may be ending."""
_MARGIN_S = 1.0
"""Rank 0's limit comes first: it knows who is absent."""
_APART = "ranks in different containers meet only in one network namespace (docker run --network host)"


@dataclass
class Peer:
    """Another rank, as this one is connected to it."""

    rank: int
    pid: int
    channel: Channel
    wish: Mapping[str, Any] = field(default_factory=dict)
    """What it said of itself."""

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"


@dataclass(frozen=True)
class Met:
    """All ranks are there: what rank 0 decided, its descriptors, and the connections (rank 0's to all others; theirs to rank 0)."""

    decision: Mapping[str, Any]
    fds: tuple[int, ...]
    peers: tuple[Peer, ...]

    def close(self) -> None:
        for peer in self.peers:
            peer.channel.close()
        for fd in self.fds:
            os.close(fd)


Decide = Callable[[Sequence[Mapping[str, Any]]], tuple[Mapping[str, Any], tuple[int, ...]]]
"""In rank 0, of every rank's wish: the decision that is told to all, and the descriptors that they get. Raises what all shall raise."""


def meet(launched: Launched, wish: Mapping[str, Any], decide: Decide, timeout_s: float) -> Met:
    """Collective, among ranks of one machine. Raises TimeoutError naming who is absent, ProbeError for who does not belong here."""
    if launched.rank == 0:
        return _Host(launched, wish, timeout_s).run(decide)
    return _Guest(launched, timeout_s).run(wish)


def name_of(launched: Launched) -> str:
    """Of the socket: this user's, this launch's. Its first byte, 0, makes it abstract."""
    what = hashlib.blake2b(f"{launched.launcher}|{launched.job}".encode(), digest_size=12).hexdigest()
    return f"\0sglang_probe/{os.getuid()}/{what}"


def credentials(end: socket.socket) -> tuple[int, int]:
    """(pid, user id) of the process at the other end, as the kernel knows it."""
    pid, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


def _hello(launched: Launched, wish: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "greeting": _GREETING,
        "version": __version__,
        "rank": launched.rank,
        "world_size": launched.world_size,
        "job": launched.job,
        "wish": dict(wish),
    }


def _raise(kind: str, text: str) -> NoReturn:
    raise _KINDS.get(kind, ProbeError)(text)


class _Host:
    """Rank 0's part."""

    def __init__(self, launched: Launched, wish: Mapping[str, Any], timeout_s: float) -> None:
        self._launched, self._wish, self._timeout_s = launched, wish, timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._hello = _hello(launched, wish)
        self._strangers: list[Peer] = []
        self._seated: dict[int, Peer] = {}
        self._foreign = ""

    def run(self, decide: Decide) -> Met:
        listener = self._listen()
        try:
            try:
                self._gather(listener)
                wishes = [self._wish, *(self._seated[rank].wish for rank in sorted(self._seated))]
                decision, fds = decide(wishes)
            finally:
                listener.close()  # before anybody is answered: a rank that meets again finds the next meeting, not this one
            peers = tuple(self._seated[rank] for rank in sorted(self._seated))
            try:
                for peer in peers:
                    self._answer(peer, _YES, dict(decision), fds)
            except BaseException:
                for fd in fds:
                    os.close(fd)
                raise
            return Met(decision, fds, peers)
        except BaseException as error:
            kind = next((name for name, made in _KINDS.items() if type(error) is made), "error")
            for peer in (*self._seated.values(), *self._strangers):
                with contextlib.suppress(EOFError, TimeoutError, OSError):
                    self._answer(peer, _NO, {"kind": kind, "text": str(error) or type(error).__name__}, ())
                peer.channel.close()
            raise
        finally:
            for peer in self._strangers:
                peer.channel.close()

    def _listen(self) -> socket.socket:
        name, limit = name_of(self._launched), time.monotonic() + min(_NAME_S, self._timeout_s)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            try:
                listener.bind(name)
                listener.listen(4 * self._launched.world_size)
                return listener
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    listener.close()
                    raise ProbeError(f"{self._launched}: no socket for its ranks to meet at: {error.strerror}") from error
            if time.monotonic() > limit:
                listener.close()
                raise ProbeError(
                    f"{self._launched}: {_holder(name)} is where its ranks were to meet: is another rank 0 of it alive?"
                )
            time.sleep(0.02)

    def _gather(self, listener: socket.socket) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        came: dict[int, Peer] = {}
        while len(self._seated) < self._launched.world_size - 1:
            ready = poll.poll(max(0.0, self._deadline - time.monotonic()) * 1e3)
            if not ready:
                raise TimeoutError(self._absent())
            for fd, _ in ready:
                if fd == listener.fileno():
                    peer = self._accept(listener)
                    if peer is not None:
                        came[peer.channel.fileno()] = peer
                        poll.register(peer.channel, select.POLLIN)
                elif not self._hear(came[fd]):
                    poll.unregister(fd)
                    came.pop(fd).channel.close()

    def _accept(self, listener: socket.socket) -> Peer | None:
        end, _ = listener.accept()
        pid, user = credentials(end)
        if user != os.getuid():  # whoever it is, it is not one of these ranks: it is told nothing
            self._foreign = f"; a process of another user ({user}, pid {pid}) tried to come"
            end.close()
            return None
        peer = Peer(-1, pid, Channel(end))
        self._strangers.append(peer)
        return peer

    def _hear(self, peer: Peer) -> bool:
        """What it says; False where it is to be forgotten."""
        try:
            messages = peer.channel.arrived()
        except EOFError:
            if peer.rank > 0:
                raise ProbeError(f"{self._launched}: {peer} came, and ended before all ranks were together") from None
            self._strangers.remove(peer)
            return False
        for message in messages:
            self._seat(peer, message)
        return True

    def _seat(self, peer: Peer, message: bytes) -> None:
        try:
            said = json.loads(message)
        except ValueError:
            said = None
        if not isinstance(said, dict) or said.get("greeting") != _GREETING:
            raise ProbeError(f"{self._launched}: process {peer.pid} came, and is no rank of this version of sglang_probe")
        for name in ("version", "world_size", "job"):
            if said.get(name) != self._hello[name]:
                raise ProbeError(
                    f"{self._launched}: process {peer.pid} has {name} {said.get(name)!r} and rank 0 {self._hello[name]!r}: "
                    "start all ranks by one launcher, with one sglang_probe"
                )
        rank = said.get("rank")
        if not isinstance(rank, int) or not 1 <= rank < self._launched.world_size or not isinstance(said.get("wish"), dict):
            raise ProbeError(
                f"{self._launched}: process {peer.pid} says it is rank {rank!r}: there are 1 to {self._launched.world_size - 1}"
            )
        if rank in self._seated:
            raise ProbeError(
                f"{self._launched}: processes {self._seated[rank].pid} and {peer.pid} both say that they are rank {rank}; "
                "two launches with one id? Give each its own"
            )
        peer.rank, peer.wish = rank, said["wish"]
        self._seated[rank] = peer
        self._strangers.remove(peer)

    def _absent(self) -> str:
        absent = sorted(set(range(1, self._launched.world_size)) - set(self._seated))
        here = ", ".join(["rank 0", *(str(self._seated[rank]) for rank in sorted(self._seated))])
        names = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
        return (
            f"{names} of {self._launched.world_size} never came: {here} waited {self._timeout_s:g} s on this machine "
            f"({self._launched.launcher}, {self._launched.job}){self._foreign}; {_APART}"
        )

    def _answer(self, peer: Peer, word: bytes, said: Mapping[str, Any], fds: tuple[int, ...]) -> None:
        """One byte, with which descriptors travel, then the rest."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            with socket.socket(fileno=os.dup(peer.channel.fileno())) as end:
                end.sendmsg([word], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            peer.channel.send(json.dumps(said).encode(), time.monotonic() + _MARGIN_S)
        except (EOFError, TimeoutError, OSError) as error:
            raise ProbeError(f"{self._launched}: {peer} came, and ended before all ranks were together ({error})") from None


class _Guest:
    """Every other rank's."""

    def __init__(self, launched: Launched, timeout_s: float) -> None:
        self._launched, self._timeout_s = launched, timeout_s

    def run(self, wish: Mapping[str, Any]) -> Met:
        end = self._connect()
        fds: tuple[int, ...] = ()
        try:
            host = Peer(0, credentials(end)[0], Channel(end))
            deadline = time.monotonic() + self._timeout_s + _MARGIN_S
            try:
                host.channel.send(json.dumps(_hello(self._launched, wish)).encode(), deadline)
                word, fds = self._word(end, deadline)
                said = json.loads(host.channel.receive(deadline))  # and no more: what follows is for whoever drives the ranks
            except EOFError:
                raise ProbeError(f"{self._launched}: {host} ended before all ranks were together") from None
            except TimeoutError:
                waited = f"waited {self._timeout_s + _MARGIN_S:g} s: is it stopped?"
                raise TimeoutError(f"{self._launched}: {host} does not answer; {waited}") from None
            if word != _YES:
                _raise(str(said.get("kind")), str(said.get("text")))
            return Met(said, fds, (host,))
        except BaseException:
            for fd in fds:
                os.close(fd)
            end.close()
            raise

    def _connect(self) -> socket.socket:
        name, limit = name_of(self._launched), time.monotonic() + self._timeout_s
        while True:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                end.settimeout(max(0.001, limit - time.monotonic()))
                end.connect(name)
                end.settimeout(None)
                pid, user = credentials(end)
            except OSError as error:
                end.close()
                if error.errno not in (errno.ECONNREFUSED, errno.EAGAIN) and not isinstance(error, TimeoutError):
                    raise ProbeError(f"{self._launched}: rank 0 cannot be reached: {error.strerror}") from error
            else:
                if user == os.getuid():
                    return end
                end.close()
                raise ProbeError(
                    f"{self._launched}: where its ranks meet, process {pid} of another user ({user}) listens: nothing was told to it"
                )
            if time.monotonic() > limit:
                raise TimeoutError(
                    f"rank 0 of {self._launched.world_size} never came: rank {self._launched.rank} (pid {os.getpid()}) waited "
                    f"{self._timeout_s:g} s on this machine ({self._launched.launcher}, {self._launched.job}); {_APART}"
                )
            time.sleep(0.02)

    def _word(self, end: socket.socket, deadline: float) -> tuple[bytes, tuple[int, ...]]:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise TimeoutError
        rights = array.array("i")
        try:
            word, ancillary, _, _ = end.recvmsg(1, socket.CMSG_SPACE(8 * rights.itemsize), socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise EOFError(str(error)) from None
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
        if not word:
            raise EOFError
        return word, tuple(rights)


def _holder(name: str) -> str:
    """Who has it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(1.0)
        end.connect(name)
        pid, user = credentials(end)
        return f"process {pid}" + (f" of another user ({user})" if user != os.getuid() else "")
    return "another process"
