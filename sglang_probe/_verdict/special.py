"""scipy's distribution functions, by their names there: ``special.ndtri(0.975)``. Called by the modules that reckon.

Invariant: scipy is imported when the first of them is asked for, and not before: who imports the package to route loads no statistics.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import scipy.special  # type: ignore[import-untyped, unused-ignore] # it ships no types

    value = getattr(scipy.special, name)
    globals()[name] = value
    return value
