"""How code reaches the ranks: this package by its path; a user's function by its code where they could not import it, else by its name.

Called by ranks.py and LocalGroup.run. Invariant: a function of a test module, a notebook or a script works without being installed.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def by_value(function: Any) -> Iterator[None]:
    """Within: cloudpickle packs the code of the function's module where that module is not to be found on sys.path."""
    import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _found_by_others(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _found_by_others(module: ModuleType) -> bool:
    """Whether a process with this sys.path would import the very same file."""
    file = getattr(module, "__file__", None)
    if file is None:
        return True  # built in
    path: list[str] | None = None
    spec = None
    for part in module.__name__.split("."):
        name = part if spec is None else f"{spec.name}.{part}"
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)


def start_path() -> list[str]:
    """The path on which a rank finds this very package: sys.path, with its folder in front where that leads elsewhere."""
    package = sys.modules[__package__.split(".")[0]]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(str(package.__file__))))
    return [*([] if _found_by_others(package) else [folder]), *sys.path]
