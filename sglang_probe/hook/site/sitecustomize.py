"""First on PYTHONPATH of a command under `sglang-probe record`: every Python process that it starts runs this before anything else.

It runs the sitecustomize that would have been found without it, and then, with SGLANG_PROBE=1, has the hook wait for SGLang's first group.
Invariant: what the other sitecustomize does, raises or leaves in sys.modules is as it would be without this one.
"""

import os
import sys


def _chain() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _wait() -> None:
    if os.environ.get("SGLANG_PROBE", "").strip() != "1":
        return
    try:
        from sglang_probe._plugin import load

        load()
    except (
        Exception
    ) as error:  # another Python than the one that has this package, or one that is broken: said once, not in each process
        if os.environ.setdefault("SGLANG_PROBE_SAID", str(os.getpid())) == str(os.getpid()):
            print(f"sglang_probe stands aside, nothing is recorded: {type(error).__name__}: {error}", file=sys.stderr)


try:
    _chain()
finally:
    _wait()
