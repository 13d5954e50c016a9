"""Who looks at what is printed: a terminal, a notebook, or nobody. Called by everything that shows progress.

Invariant: a notebook is one only where its shell runs in this process: that a library imported Jupyter's kernel makes none.
"""

from __future__ import annotations

import sys


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    return "ipykernel" in sys.modules and ipython is not None and ipython.get_ipython() is not None


def is_watched() -> bool:
    """Whether somebody sees a bar that is drawn again and again on stderr."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
