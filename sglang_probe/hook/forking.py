"""Locks of the hook. A worker may fork at any moment, and a thread that held one is not there in the child. Used by the hook's parts.

Invariant: a child of a fork finds every lock open; what a lock keeps whole is Python's own, a dictionary or a list.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class Lock:
    """As threading.Lock, for a ``with``; ``again``: as threading.RLock."""

    def __init__(self, again: bool = False) -> None:
        self._make = threading.RLock if again else threading.Lock
        self._lock = self._make()
        _LOCKS.add(self)

    def renew(self) -> None:
        self._lock = self._make()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew() -> None:
    for lock in list(_LOCKS):
        lock.renew()


os.register_at_fork(after_in_child=_renew)
