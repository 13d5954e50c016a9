"""What a noun or a result has by being one: it shows itself in a notebook (Shown), it becomes one HTML file (Reported). Their bases.

Invariant: nothing is imported here but what is asked for, so that the nouns, which import this, cost next to nothing.
"""

from __future__ import annotations

import os


class Shown:
    """Shows itself in a notebook: what it is, and its fields with their values; see _show/nouns.py."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from ._show.nouns import noun_html

        return noun_html(self)


class Reported:
    """Becomes a report; see _report/."""

    __slots__ = ()

    def write(self, path: str | os.PathLike[str]) -> str:
        """One HTML file that holds everything, the picture too; its name comes back. A report of that name is replaced.

        Raises InputError where the name does not end in .html, or is that of something else than a report; ReportError where it cannot
        be written.
        """
        from ._report import write

        return write(self, path)
