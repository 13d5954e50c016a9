"""Servers for the tests of what is read from outside: ring files of several ranks as NumPy writes them, and live processes.

Invariant: every figure in them is invented; nothing here was measured.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ring_writer import RingWriter

import sglang_probe

Fill = Callable[[RingWriter, int], object]
LIVE = """
import os, sys
from sglang_probe import _core
from sglang_probe._record.folder import make_folder, ring_name, started
rank, world, path = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
recorder = _core.Recorder(str(make_folder() / ring_name(os.getpid(), started(os.getpid()))), slots=256, release="0.5.9")
recorder.set_rank(rank, world)
recorder.start()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        recorder.put("tp:0", "in_place", path, 43008, 0, expected=path)
    print("done", flush=True)
if len(sys.argv) > 4:
    recorder.close()
"""
"""A worker without SGLang: so many calls for each line that it is told; and a goodbye, where a fourth word asks for it."""


def server(folder: Path, ranks: int, fill: Fill, **more: object) -> list[RingWriter]:
    """One ring a rank, written; all of this process, which lives. `fill` puts what a rank did."""
    writers = [RingWriter(folder, rank=rank, world_size=ranks, other=rank, **more) for rank in range(ranks)]
    for rank, writer in enumerate(writers):
        fill(writer, rank)
        writer.write()
    return writers


@pytest.fixture(name="folder")
def ring_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ring files of this user, as every reader finds it."""
    found = tmp_path / "rings"
    found.mkdir(0o700)
    monkeypatch.setenv("SGLANG_PROBE_DIR", str(found))
    return found


class Live:
    """A process that writes a ring with the package's own Recorder."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, path: int = 8, goodbye: bool = False) -> None:
        env = {**os.environ, "SGLANG_PROBE_DIR": str(folder), "PYTHONPATH": str(Path(sglang_probe.__file__).parents[1])}
        command = [sys.executable, "-c", LIVE, str(rank), str(world_size), str(path), *(["goodbye"] if goodbye else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        self._heard("ready")

    def _heard(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def start(self, count: int) -> None:
        """It makes so many calls, and goes on by itself."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def call(self, count: int) -> None:
        """It has made so many calls when this returns."""
        self.start(count)
        self._heard("done")

    def end(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        """As ``kill -9``."""
        self.process.kill()
        self.end()


@pytest.fixture(name="live")
def live_workers(folder: Path) -> Iterator[Callable[..., Live]]:
    """Makes live workers; whatever is left of them at the end is killed."""
    made: list[Live] = []

    def make(*args: int, **more: bool) -> Live:
        made.append(Live(folder, *args, **more))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.kill()
