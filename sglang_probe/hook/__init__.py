"""Inside a worker: SGLang's own functions wrapped by C callables, their calls recorded, what ran held against what was expected.

    import sglang_probe as probe
    probe.hook.install()      # in the process that has SGLang's groups, or will have them
    probe.hook.uninstall()    # every attribute is what it was

As a SGLang plug-in it installs itself (_plugin.py), in older releases through bootstrap.py. targets.py says what is wrapped.
Invariant: importing this costs nothing; nothing that Dynamo traces is wrapped; nothing of ours is raised into a call of SGLang's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .telling import Finding

__all__ = ["findings", "install", "installed", "uninstall"]


def install() -> str:
    """Wraps SGLang in this process and begins to record; again, it does nothing.

    Returns
    -------
    str
        The ring file's path; ``""`` where the hook stands aside (the log says why: an unknown SGLang, no room for the file).

    Source: the functions in targets.py, as the installed release has them; modules that come later are wrapped when they come.
    """
    from .session import begin

    return begin()


def uninstall() -> None:
    """Gives SGLang back its own functions and closes the ring file, which stays for readers."""
    from .session import end

    end()


def installed() -> str:
    """The ring file that this process writes; ``""`` where it writes none."""
    from .session import path

    return path()


def findings() -> tuple[Finding, ...]:
    """What was told so far, as it stands in the log: differences, promises that no call kept, graphs that never ran."""
    from .session import told

    return told()
