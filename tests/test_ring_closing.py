"""What Python may do while _core is in the middle of something: close the recorder, or change it, from an argument, a hash, a finalizer.

Invariant: each question is asked of a fresh interpreter, because what it is about ends in a crash and not in an exception.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_probe import _core

ELSEWHERE = Path(_core.__file__).parents[1]  # so that a new process finds the package that is tested
START = """
import gc, sys
from sglang_probe import ProbeError, _core
folder = sys.argv[1]

def made(n=0, **more):
    return _core.Recorder(f"{folder}/{n}.ring", **{"slots": 64, "graphs": 4, "kinds": 256, **more})

class Closes:
    def __init__(self, recorder):
        self.recorder = recorder
    def __index__(self):
        self.recorder.close()
        return 1

class Hashes(str):
    def __hash__(self):
        r.close()
        return str.__hash__(self)

class Later:
    "Does something in the n-th collection of garbage from now on."
    def __init__(self, n, what):
        self.n, self.what, self.me = n, what, self
    def __del__(self):
        if self.n > 1:
            Later(self.n - 1, self.what)
        else:
            self.what()

def collecting(n, what, call):
    "Calls, and collects whenever an object is made that is not at hand."
    held = [[(i, i, i, i) for i in range(2500)], [(i, i) for i in range(2500)], [{} for _ in range(200)], [[] for _ in range(200)]]
    gc.collect()
    gc.disable()
    Later(n, what)
    gc.set_threshold(1, 1, 1)
    gc.enable()
    try:
        return call()
    except ProbeError:
        return None  # closed before it began
    finally:
        gc.set_threshold(700, 10, 10)
        del held
"""
SCENES = {
    "an argument": """
for n, call in enumerate((
    lambda r: r.set_rank(Closes(r), 8),
    lambda r: r.graph_end(Closes(r)),
    lambda r: r.graph_replayed(Closes(r)),
    lambda r: r.registered(Closes(r)),
    lambda r: r.timed(1, Closes(r)),
    lambda r: r.put("tp:0", "by hand", 1, 64, Closes(r)),
)):
    r = made(n)
    try:
        call(r)
    except (ProbeError, TypeError) as error:  # some take no such number
        print(type(error).__name__)
    else:
        assert n == 99, n
    r.close()
""",
    "an answer": """
def at_once(answer, r):
    r.close()
    return answer

for n, (more, expect, source) in enumerate((
    ({"group": lambda which: at_once("tp:0", r)}, None, None),
    ({"group": "tp:0"}, lambda *key: at_once((8, "one_shot"), r), None),
    ({"group": "tp:0"}, None, type("Of", (list,), {"on": property(lambda self: at_once(True, r))})),
)):
    r = made(n)
    call = _core.Wrapper(len, r, "len", argument=0, which=1, **more)
    r.set_expect(expect)
    r.set_sources(((1 << 16, None, "on", 0),) if source else ())
    r.start()
    assert call((source or list)([1])) == 1
    assert not r.recording and call([1, 2]) == 2
""",
    "a hash": """
for n, call in enumerate((
    lambda: r.intern("group", Hashes("tp:0")),
    lambda: r.graph_begin(Hashes("decode 8")),
    lambda: r.put(Hashes("tp:0"), Hashes("by hand"), 1, 64),
    lambda: setattr(r, "label", Hashes("decode 8")),
    lambda: _core.Wrapper(len, r, Hashes("all_reduce")),
)):
    r = made(n)
    call()
    assert r.counts()["names_used"]  # it was not asked for its hash
    r.close()
""",
    "a finalizer while alarms are told": """
for n in range(1, 60):
    r = made()
    for group in range(40):
        r.put(f"tp:{group}", "by hand", 1, 64, expected=8)
    for told in collecting(n, r.close, r.alarms) or ():
        assert told[1:5] == ("by hand", 1, 8, 1), told
    r.close()
""",
    "a finalizer while counts are made": """
for n in range(1, 4):
    r = made()
    r.put("tp:0", "by hand", 1, 64)
    counts = collecting(n, r.close, r.counts)
    assert counts is None or (counts["head"], counts["kinds_used"], counts["overwritten"]) == (1, 1, 0), counts
    r.close()
""",
    "a finalizer while a call site is looked for": """
def deep(n, call):
    return call([1]) if not n else deep(n - 1, call)

for n in range(1, 40):
    r = made()
    call = _core.Wrapper(len, r, "len", argument=0, group="tp:0")
    r.set_skipped(("<string>",))
    r.site_every = 1
    r.start()
    deep(0, call)  # the first one looks at the whole stack before
    assert collecting(n, lambda: r.set_skipped(("<other>",)), lambda: deep(30, call)) == 1
    assert deep(30, call) == 1
    r.close()
""",
}


@pytest.mark.parametrize("scene", SCENES)
def test_python_that_runs_in_the_middle_may_close_and_change_the_recorder(scene: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", START + SCENES[scene], str(tmp_path)],
        cwd=ELSEWHERE,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
