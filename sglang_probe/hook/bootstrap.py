"""SGLang before plug-ins (to v0.5.10.post1): a command whose Python processes get the hook through their environment. Called by `record`.

Workers are started anew (spawn) and import everything themselves; what reaches them is the environment. site/ is put first on
PYTHONPATH: its sitecustomize runs the one that it hides. With later releases the plug-in finds the hook waiting already.
Invariant: the command, its arguments and the rest of its environment are passed on as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .._plugin import VARIABLE
from .._types import InputError

SITE = Path(__file__).parent / "site"


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment (by default this process's) in which SGLang's workers record their calls."""
    env = dict(os.environ if base is None else base)
    before = env.get("PYTHONPATH", "")
    if before.split(os.pathsep)[0] != str(SITE):
        env["PYTHONPATH"] = f"{SITE}{os.pathsep}{before}" if before else str(SITE)
    env[VARIABLE] = "1"
    return env


def launch(command: Sequence[str], base: Mapping[str, str] | None = None) -> NoReturn:
    """Becomes the command: same process, so that signals, exit status and terminal are its own.

    Raises InputError where there is no such program.
    """
    if not command:
        raise InputError("command", "", "give the server's own: sglang-probe record -- python -m sglang.launch_server ...")
    if not (SITE / "sitecustomize.py").is_file():
        raise InputError("command", command[0], f"{SITE} is not installed: nothing would reach the workers")
    try:
        os.execvpe(command[0], list(command), environment(base))
    except OSError as error:
        raise InputError("command", command[0], f"cannot be run: {error.strerror}") from None
