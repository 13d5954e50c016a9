"""What one rank's process runs: ``main`` with RANK CONTROL LIFELINE PARENT thread|process as arguments; process.py starts it.

It joins, then does what comes over its end of the socket pair (a function on its Coordinator), and answers with what that returned or
raised. Invariant: it ends with its parent, whatever ends that: the kernel signals it when the lifeline's other end closes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .messages import Channel, dump, load


@dataclass(frozen=True)
class Setup:
    """The first message: who this rank is."""

    sys_path: tuple[str, ...]
    """The parent's."""
    coordinator: Mapping[str, Any]
    """Arguments of Coordinator, group and release among them."""
    toggles: Mapping[str, Any]
    store: int = -1
    """A memfd on which torch's process group meets, where there is one."""


@dataclass(frozen=True)
class Order:
    """One call: what to toggle first, and the function as cloudpickle packed it."""

    number: int
    toggles: Mapping[str, Any]
    call: bytes


@dataclass(frozen=True)
class Answer:
    """What a rank says: where it is, or what became of an order."""

    kind: Literal["phase", "ready", "done", "raised"]
    number: int = 0
    value: bytes = b""
    text: str = ""
    type_name: str = ""
    trace: str = ""
    error: bytes = field(default=b"", repr=False)
    """The exception itself, where it can be packed."""
    seq: int = 0
    """Calls that this rank has made."""


def main() -> None:
    rank, control, lifeline, parent = map(int, sys.argv[1:5])
    _die_with(parent, lifeline, sys.argv[5] == "thread")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    channel = Channel(socket.socket(fileno=control))
    with contextlib.suppress(EOFError):  # the parent is gone, and with it whoever would read more
        _serve(rank, channel)


def _die_with(parent: int, lifeline: int, of_thread: bool) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the parent may have blocked what it started us with
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # ends the process; nothing else here asks for it
    # SIGIO goes to the one owner of an open file description, and all ranks inherited the same: this rank opens its own
    lifeline = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if of_thread:
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(1)


def _serve(rank: int, channel: Channel) -> None:
    try:
        setup = load(channel.receive())
        coordinator = _join(setup, channel)
    except Exception as error:
        channel.send(dump(raised(0, error, 0)))
        raise SystemExit(1) from None
    channel.send(dump(Answer("ready")))
    while True:
        order = load(channel.receive())
        if order is None:
            break
        channel.send(answer_of(coordinator, order))
    if setup.coordinator["device"] == "gpu":
        from .torch_paths import leave

        leave(coordinator)
    coordinator.close()


def _join(setup: Setup, channel: Channel) -> Any:
    """The Coordinator of this rank, set as the parent has it."""
    sys.path[:] = setup.sys_path
    channel.send(dump(Answer("phase", text="importing")))
    from .coordinator import Coordinator
    from .toggles import apply

    on_gpu = setup.coordinator["device"] == "gpu"
    if on_gpu:
        from .arrays import need_torch
        from .torch_paths import register

        need_torch().cuda.set_device(setup.coordinator["ordinal"])
    channel.send(dump(Answer("phase", text="joining")))
    coordinator = Coordinator(**setup.coordinator)
    if on_gpu:
        register(coordinator, setup.store)
    apply(coordinator, setup.toggles)
    return coordinator


def answer_of(coordinator: Any, order: Order) -> bytes:
    """Never raises but for the end of the parent, or of this process: what the function raised is the answer."""
    from .toggles import apply

    try:
        apply(coordinator, order.toggles)
        function, args = load(order.call)
        value = function(coordinator, *args)
        answer = Answer("done", order.number, _pack(value), seq=coordinator.seq)
    except Exception as error:
        answer = raised(order.number, error, coordinator.seq)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, a closed stream: the answer is not lost with it
            stream.flush()
    return dump(answer)


def _pack(value: Any) -> bytes:
    """By pickle, unless it holds what only cloudpickle can pack: things of a notebook, which it has then unpacked here too."""
    if "cloudpickle" not in sys.modules:
        with contextlib.suppress(Exception):  # cloudpickle's own error is the one to tell
            return dump(value)
    from .messages import dump_anything

    return dump_anything(value)


def raised(number: int, error: BaseException, seq: int) -> Answer:
    packed = b""
    with contextlib.suppress(Exception):  # its text and trace are told all the same
        packed = _pack(error)
    kind: type[BaseException] = type(error)
    if isinstance(error, MemoryError) or kind.__name__ == "OutOfMemoryError":  # NumPy's and torch's own
        kind, packed = MemoryError, b""
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    trace = "".join(traceback.format_exception(error))
    return Answer("raised", number, text=str(error), type_name=name, trace=trace, error=packed, seq=seq)
