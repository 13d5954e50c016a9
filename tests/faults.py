"""The one table of injected faults, for the host device (test_faults.py, in CI) and for GPUs (gpu/test_faults_gpu.py).

Each is done by ordinary means: signals, limits of the operating system, files, the user's own functions; nothing in the package knows it.
Invariant: a row passes only if it ended within its limit with the right error, in words that name rank and phase, and left nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sglang_probe as probe
from sglang_probe._run.arrays import arrays_of

TIMEOUT_S = 2.0
"""Limit of each wait in these groups."""
START_S = {"host": 20.0, "gpu": 120.0}
HOST, GPU, BOTH = ("host",), ("gpu",), ("host", "gpu")


@dataclass
class Scene:
    """One fault on one device: makes groups, and remembers them."""

    device: str
    folder: Path
    groups: list[probe.LocalGroup] = field(default_factory=list)

    def group(self, world_size: int = 2, **options: Any) -> probe.LocalGroup:
        settings = {"device": self.device, "timeout_s": TIMEOUT_S, "start_timeout_s": START_S[self.device], **options}
        self.groups.append(probe.LocalGroup(world_size, **settings))
        return self.groups[-1]


@dataclass(frozen=True)
class Fault:
    """What happens, and what must be said of it."""

    name: str
    happens: Callable[[Scene], object]
    error: type[BaseException] | None
    """None: nothing is raised here; the row looks for itself."""
    words: tuple[str, ...] = ()
    """Regular expressions that the error's text holds."""
    limit_s: float = 10.0
    devices: tuple[str, ...] = BOTH
    usable: bool = False
    """All ranks failed alike: the group goes on."""

    def __str__(self) -> str:
        return self.name


# ------------------------------------------------------------------------------------------------------ functions of the ranks' users


def tensor(c: Any, count: int = 1024, dtype: str = "bf16") -> Any:
    return arrays_of(c.device).empty((count,), dtype)


def buffers(c: Any, count: int) -> Any:
    return len(c.empty(count, "bf16"))


def calls_until(c: Any, rank: int, number: int, does: Callable[[], object]) -> int:
    """All-reduces without end; in the middle, one rank does something else."""
    mine = tensor(c)
    for i in range(1_000_000):
        if c.rank == rank and i == number:
            does()
        c.all_reduce(mine)
        c.wait()
    return c.seq


def dies(c: Any, number: int) -> None:
    calls_until(c, 1, 100, lambda: os.kill(os.getpid(), number))


def leaves(c: Any) -> None:
    calls_until(c, 1, 20, lambda: sys.exit(3))


def reads_nothing(c: Any) -> None:
    calls_until(c, 1, 20, lambda: ctypes.string_at(0))


def does_not_come(c: Any) -> None:
    calls_until(c, 1, 0, lambda: threading.Event().wait(600))


def raises(c: Any) -> None:
    def boom() -> None:
        raise ValueError("boom of the user")

    calls_until(c, 1, 10, boom)


def raises_everywhere(c: Any) -> None:
    raise LookupError("nowhere to be found")


def other_size(c: Any) -> None:
    mine = tensor(c, 1024 + 512 * c.rank)
    for _ in range(3):
        c.all_reduce(mine)
        c.wait()


def other_dtype(c: Any) -> None:
    mine = tensor(c, 1024, "fp16" if c.rank else "bf16")
    for _ in range(3):
        c.all_reduce(mine)
        c.wait()


def fills_disk(c: Any, folder: str) -> None:
    """A full disk is a limit on files here: of rank 1 alone, under its own arena and under a file of the user's."""
    if c.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        if c.device == "host":
            c.empty(8 << 20, "bf16")
        with open(os.path.join(folder, "results"), "wb", buffering=0) as file:
            file.write(b"x")
    calls_until(c, 0, -1, lambda: None)


# ----------------------------------------------------------------------------------------------------------------------- the scenes


def never_joins(scene: Scene) -> None:
    """Rank 1's Python reads a sitecustomize that never ends: what a hanging file system does to an import."""
    (scene.folder / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if 'sglang_probe._run.worker' in ' '.join(sys.orig_argv[1:3]) and sys.orig_argv[3] == '1':\n"
        "    threading.Event().wait(600)\n"
    )
    scene.group(env={"PYTHONPATH": str(scene.folder)}, start_timeout_s=3.0 if scene.device == "host" else 30.0)


def wrong_nccl(scene: Scene) -> None:
    text = scene.folder / "libnccl.so.2"
    text.write_text("this is no library\n")
    _nccl(scene, text)


def missing_nccl(scene: Scene) -> None:
    _nccl(scene, scene.folder / "nowhere" / "libnccl.so.2")


def _nccl(scene: Scene, path: Path) -> None:
    """A release that wants pynccl, in place."""
    group = scene.group(nccl=path).set(sglang="0.5.9", custom=False, pynccl=True)
    try:
        group.all_reduce(64 << 10)
    finally:
        group.set(custom=True, pynccl=False)  # everything but NCCL goes on


@contextlib.contextmanager
def file_limit(nbytes: int) -> Iterator[None]:
    """No file of this process may grow beyond it: what a full disk is to a program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full_disk(scene: Scene) -> None:
    with file_limit(4096):
        scene.group()


def interrupted(scene: Scene) -> None:
    """Ctrl-C in the middle of a call."""
    group = scene.group()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    group.run(calls_until, 0, -1, None, timeout_s=60)


PARENT = """
import sys, threading, sglang_probe as probe, faults

def run():  # in a thread: what the kernel does at the death of a thread helps nobody here
    group = probe.LocalGroup(int(sys.argv[2]), device=sys.argv[1])
    print(*group.pids, flush=True)
    group.run(faults.waits, timeout_s=600)

threading.Thread(target=run).start()
"""


def waits(c: Any) -> None:
    """Alone: no board and no peer can end it."""
    threading.Event().wait(600)


def parent_killed(scene: Scene) -> None:
    """Nothing outlives the process that started the group, whatever ends it."""
    size = 3 if scene.device == "host" else 2
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, scene.device, str(size)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.3)
        parent.kill()
        parent.wait()
    if len(pids) != size:
        raise AssertionError("the group did not start")
    limit = time.monotonic() + 5
    while alive := [pid for pid in pids if _runs(pid)]:
        if time.monotonic() > limit:
            raise AssertionError(f"ranks {alive} outlive their parent")
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process is there and is no zombie (of an init that does not reap)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


_RANK_1 = r"rank 1 \(pid \d+\)"
FAULTS = (
    Fault(
        "rank_killed_in_the_middle",
        lambda s: s.group().run(dies, signal.SIGKILL),
        probe.ProbeError,
        (_RANK_1 + r" was killed by signal 9 \(SIGKILL\)", r"run\(dies\)", "rank 0"),
    ),
    Fault(
        "rank_of_four_killed",
        lambda s: s.group(4).run(dies, signal.SIGKILL),
        probe.ProbeError,
        (_RANK_1 + r" was killed by signal 9 \(SIGKILL\)", "group of 4"),
        devices=HOST,
    ),
    Fault(
        "rank_leaves",
        lambda s: s.group().run(leaves),
        probe.ProbeError,
        (_RANK_1 + " ended with exit status 3", r"run\(leaves\)"),
    ),
    Fault(
        "rank_crashes",
        lambda s: s.group().run(reads_nothing),
        probe.ProbeError,
        (_RANK_1 + r" was killed by signal 11 \(SIGSEGV\)", "last lines of rank 1", "in reads_nothing"),
    ),
    Fault(
        "rank_stopped",
        lambda s: s.group().run(dies, signal.SIGSTOP),
        TimeoutError,
        (_RANK_1 + " did not answer, it is stopped", r"run\(dies\)", "rank 0"),
        limit_s=12,
    ),
    Fault(
        "rank_does_not_call",
        lambda s: s.group().run(does_not_come),
        TimeoutError,
        ("rank 1", r"run\(does_not_come\)", r"stands in wait \(threading.py:\d+\), called by <lambda> \(faults.py:\d+\)"),
        limit_s=12,
    ),
    Fault(
        "rank_never_joins",
        never_joins,
        TimeoutError,
        (_RANK_1 + ".* is starting Python", "starting the group"),
        limit_s=12,
        devices=HOST,
    ),
    Fault(
        "rank_never_joins",
        never_joins,
        TimeoutError,
        (_RANK_1 + ".* is starting Python", "starting the group"),
        limit_s=45,
        devices=GPU,
    ),
    Fault(
        "rank_raises",
        lambda s: s.group().run(raises),
        ValueError,
        (_RANK_1 + " of 2: boom of the user", r"run\(raises\)"),
    ),
    Fault(
        "all_ranks_raise",
        lambda s: s.group().run(raises_everywhere),
        LookupError,
        ("all 2 ranks: nowhere to be found", r"run\(raises_everywhere\)"),
        usable=True,
    ),
    Fault("wrong_nccl", wrong_nccl, probe.InputError, ("nccl=", "CPU ranks have no NCCL"), devices=HOST),
    Fault("wrong_nccl", wrong_nccl, probe.ProbeError, ("libnccl", "rank"), limit_s=130, devices=GPU, usable=True),
    Fault("missing_nccl", missing_nccl, probe.ProbeError, ("libnccl", "rank"), limit_s=130, devices=GPU, usable=True),
    Fault(
        "no_memory_for_buffers",
        lambda s: s.group().run(buffers, 1 << 40),
        MemoryError,
        ("all 2 ranks|rank 0", "its arena|cudaMalloc", r"run\(buffers\)"),
        usable=True,
    ),
    Fault(
        "no_memory_for_a_tensor",
        lambda s: s.group().all_reduce(1 << 50),
        MemoryError,
        ("all 2 ranks", "all_reduce of 1125899906842624 bytes"),
        usable=True,
        devices=HOST,
    ),
    Fault(
        "no_memory_for_a_tensor",
        lambda s: s.group().run(tensor, 1 << 45),
        Exception,
        ("rank", "memory"),
        limit_s=130,
        usable=True,
        devices=GPU,
    ),
    Fault(
        "mismatched_sizes",
        lambda s: s.group().run(other_size),
        probe.ProbeError,
        ("ranks disagree", "rank 1", "2,?048", "3,?072", r"run\(other_size\)"),
    ),
    Fault(
        "mismatched_dtypes",
        lambda s: s.group().run(other_dtype),
        probe.ProbeError,
        ("ranks disagree", "rank 1", "bf16", "fp16", r"run\(other_dtype\)"),
    ),
    Fault("full_disk", full_disk, MemoryError, ("starting a group of 2 ranks", "board", "file size limit")),
    Fault(
        "full_disk_of_a_rank",
        lambda s: s.group().run(fills_disk, str(s.folder)),
        Exception,
        (_RANK_1 + " of 2", r"run\(fills_disk\)", "file size limit|File too large"),
    ),
    Fault("interrupted", interrupted, KeyboardInterrupt),
    Fault("parent_killed", parent_killed, None, limit_s=30, devices=HOST),
    Fault("parent_killed", parent_killed, None, limit_s=130, devices=GPU),
)


def faults_of(device: str) -> list[Fault]:
    return [fault for fault in FAULTS if device in fault.devices]


# ------------------------------------------------------------------------------------------------------------------- what must hold


@dataclass(frozen=True)
class Left:
    """What a group could leave behind."""

    children: frozenset[str]
    shared: frozenset[str]
    descriptors: int
    files: frozenset[str]

    @classmethod
    def now(cls, folder: Path) -> Left:
        gc.collect()
        mine = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    mine.append(f"{stat.parent.name} in state {fields[0]}")
        return cls(
            frozenset(mine),
            frozenset(os.listdir("/dev/shm")),
            len(os.listdir("/proc/self/fd")),
            frozenset(str(path) for path in folder.rglob("*")),
        )


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Ends with AssertionError where what is inside does not end; in the main thread."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"{what} did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def suffer(fault: Fault, device: str, folder: Path) -> None:
    """Lets it happen, and looks at everything that must hold afterwards."""
    temporary = folder / "temporary"
    temporary.mkdir()
    usual, tempfile.tempdir = tempfile.tempdir, str(temporary)
    scene = Scene(device, folder)
    before = Left.now(temporary)
    try:
        error = _raised(fault, scene)
        if fault.error is not None and not isinstance(error, fault.error):
            raise AssertionError(f"{fault}: {type(error).__name__} and not {fault.error.__name__}: {error}") from error
        missing = [word for word in fault.words if not re.search(word, str(error))]
        if missing:
            raise AssertionError(f"{fault}: not a word of {missing} in\n{textwrap.indent(str(error), '  ')}") from error
        for group in scene.groups:
            _look_at(group, fault)
    finally:
        for group in scene.groups:
            group.close()
        tempfile.tempdir = usual
    after = Left.now(temporary)
    if after != before:
        raise AssertionError(f"{fault} left something: {before} before, {after} after")


def _raised(fault: Fault, scene: Scene) -> BaseException | None:
    start = START_S[scene.device] if scene.device == "gpu" else 0.0
    try:
        with within(fault.limit_s + start, str(fault)):
            fault.happens(scene)
    except AssertionError:
        raise
    except BaseException as error:  # KeyboardInterrupt is one of them
        return error
    if fault.error is None:
        return None
    raise AssertionError(f"{fault}: nothing was raised")


def _look_at(group: probe.LocalGroup, fault: Fault) -> None:
    if fault.usable:
        if group.closed or not group.all_reduce(1024).correct:
            raise AssertionError(f"{fault}: the group cannot go on ({group.closed})")
        return
    if not group.closed:
        raise AssertionError(f"{fault}: the group is not closed")
    try:
        group.all_reduce(1024)
    except probe.ProbeError as error:
        if "is closed" in str(error) and group.closed in str(error):
            return
        raise AssertionError(f"{fault}: a closed group does not say what closed it: {error}") from error
    raise AssertionError(f"{fault}: a closed group was used")
