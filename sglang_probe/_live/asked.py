"""agree(): do all ranks make the same calls? Asked once, with the patience that telling slow from stuck takes. Called by `dump --agree`.

Invariant: a rank is called stuck only after it was watched, or its last record is old enough; a busy server is not waited for longer
than that.
"""

from __future__ import annotations

import contextlib
import time

from .agree import STALLED_S, Agreement
from .find import Sources
from .top import Top, Watch

_ALL = 1 << 24
_LOOK_S = 0.25


def agree(sources: Sources = None, *, dead: bool = False, patience_s: float = STALLED_S + 0.5) -> Agreement:
    """Whether all ranks of a group make the same calls in the same order; the first call that differs; who is behind and stands still.

    Parameters
    ----------
    sources
        Numbers of processes, or ring files; None: all workers of this user.
    dead
        All processes that have ended too.
    patience_s
        For so long it looks again where a rank is behind: ranks of a busy server always are, for a moment.

    Raises InputError where a source that was named cannot be read. Reads from outside: it works while workers hang.
    """
    end = time.monotonic() + patience_s
    with contextlib.closing(Watch(sources, dead=dead, keep=_ALL)) as watch:
        found = watch.look()
        while found.agreement.agrees and _unsettled(found) and time.monotonic() < end:
            time.sleep(_LOOK_S)
            found = watch.look()
        return found.agreement


def _unsettled(found: Top) -> bool:
    """Somebody that lives is behind, and may be about to come along."""
    if any(group.behind for group in found.agreement.groups):
        return any(worker.is_alive for worker in found.workers)
    return any(
        world.is_alive and len({worker.replays for worker in world.workers if worker.graphs}) > 1 for world in found.worlds
    )
