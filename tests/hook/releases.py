"""Where the releases of the hook's own environment are (environment.py makes it), and how a test runs something with one of them.

Invariant: without SGLANG_PROBE_RELEASES the tests that need them are skipped, which says so; with it a missing release is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sglang_probe

HERE = Path(__file__).parent
FOLDER = os.environ.get("SGLANG_PROBE_RELEASES", "")
RELEASES = ("0.5.9", "0.5.11", "0.5.23")
needed = pytest.mark.skipif(not FOLDER, reason="SGLANG_PROBE_RELEASES is not set: tests/hook/environment.py makes what it names")


def environment(release: str, rings: Path, **more: str) -> dict[str, str]:
    """Of a process in which this release is the sglang."""
    package = Path(FOLDER) / release
    assert (package / "sglang").is_dir(), f"{package} has no sglang: make the environment with tests/hook/environment.py"
    paths = (
        package,
        HERE / "stubs",
        HERE,
        Path(sglang_probe.__file__).parents[1],
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    return {
        **own,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if str(path)),
        "SGLANG_PROBE_DIR": str(rings),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        **more,
    }


def together(script: str, release: str, folder: Path, world: int = 2) -> list[Path]:
    """The files that the ranks of a script wrote; what they printed is shown where one fails."""
    rings, store = folder / "rings", Path(tempfile.mkdtemp(dir=folder)) / "store"
    outs = [folder / f"out{rank}.json" for rank in range(world)]
    started = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(HERE / script), str(rank), str(world), str(store), str(out)],
            env=environment(release, rings, RANK=str(rank), WORLD_SIZE=str(world)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    said = []
    try:
        said = [process.communicate(timeout=600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * world, "\n".join(said)[-6000:]
    return outs
