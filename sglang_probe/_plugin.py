"""SGLang's entry point into this package (group ``sglang.srt.plugins``): called in every process of a server beside which it is installed.

Invariant: until it is asked for (SGLANG_PROBE, or SGLANG_PLUGINS naming it) nothing is imported but this file and the package's
near-empty ``__init__``; asked or not, nothing is raised.
"""

from __future__ import annotations

import os

NAME = "sglang_probe"
VARIABLE = "SGLANG_PROBE"


def asked() -> bool:
    """SGLANG_PROBE=1 asks, any other text of it refuses; without it SGLANG_PLUGINS asks where it names this plug-in."""
    own = os.environ.get(VARIABLE, "").strip()
    if own:
        return own == "1"
    return NAME in [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]


def load() -> None:
    """Waits, if asked, for this process's first process group; a process that makes none is left as it is."""
    if not asked():
        return
    try:
        from .hook.arming import arm

        arm()
    except Exception as error:  # a plug-in never takes a worker down
        aside(error)


def aside(why: object) -> None:
    """Says in the worker's log what keeps calls from being recorded."""
    import logging

    logging.getLogger(NAME).warning("stands aside: %s", why)
