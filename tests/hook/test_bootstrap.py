"""`record`'s way into processes: an environment, and a sitecustomize that runs the one that it hides.

Invariant: with the variable unset, or in a Python that has not this package, a process is what it would be without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_probe
from sglang_probe._types import InputError
from sglang_probe.hook import bootstrap

PARENT = str(Path(sglang_probe.__file__).parents[1])
ASK = """
import json, multiprocessing, os, sys
def child(queue):
    queue.put([name for name in sorted(sys.modules) if name.startswith("sglang_probe")])
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    found = queue.get(timeout=60)
    process.join()
    custom = sys.modules.get("sitecustomize")
    print(json.dumps({
        "here": [name for name in sorted(sys.modules) if name.startswith("sglang_probe")],
        "spawned": found,
        "user": getattr(custom, "WHO", ""),
        "file": getattr(custom, "__file__", ""),
        "path": sys.path[1],
        "argv": sys.argv[1:],
    }))
"""


def run(tmp_path: Path, env: dict[str, str], *words: str) -> tuple[dict[str, object], str]:
    script = tmp_path / "asks.py"
    script.write_text(ASK)
    done = subprocess.run(
        [sys.executable, str(script), *words], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def base(tmp_path: Path, *paths: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "PYTHON"))}
    return {**own, "PYTHONPATH": os.pathsep.join([PARENT, *paths]), "SGLANG_PROBE_DIR": str(tmp_path)}


def test_it_reaches_spawned_processes_and_loses_no_argument(tmp_path: Path) -> None:
    said, _ = run(tmp_path, bootstrap.environment(base(tmp_path)), "--tp", "8", "--", "-x")
    armed = ["sglang_probe", "sglang_probe._plugin", "sglang_probe.hook", "sglang_probe.hook.arming"]
    assert said["here"] == said["spawned"] == armed
    assert said["path"] == str(bootstrap.SITE) and said["argv"] == ["--tp", "8", "--", "-x"]


def test_the_users_own_sitecustomize_runs_and_is_the_one_that_stays(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("WHO = 'the user'\n")
    said, _ = run(tmp_path, bootstrap.environment(base(tmp_path, str(own))))
    assert said["user"] == "the user" and said["file"] == str(own / "sitecustomize.py") and said["spawned"]


def test_an_error_in_the_users_own_is_said_as_python_says_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise OSError('the user')\n")
    said, log = run(tmp_path, bootstrap.environment(base(tmp_path, str(own))))
    assert "Error in sitecustomize" in log and "OSError: the user" in log
    assert said["spawned"]  # the hook waits all the same


@pytest.mark.parametrize("value", ["0", ""])
def test_it_does_nothing_unless_it_was_asked(tmp_path: Path, value: str) -> None:
    said, log = run(tmp_path, {**bootstrap.environment(base(tmp_path)), "SGLANG_PROBE": value})
    assert said["here"] == said["spawned"] == [] and log == ""


def test_a_python_without_this_package_says_so_once(tmp_path: Path) -> None:
    env = bootstrap.environment({**base(tmp_path), "PYTHONPATH": ""})
    env["PYTHONPATH"] = str(bootstrap.SITE)
    blocker = tmp_path / "blocker"
    (blocker / "sglang_probe").mkdir(parents=True)
    (blocker / "sglang_probe" / "__init__.py").write_text("raise ImportError('not for this Python')\n")
    env["PYTHONPATH"] += os.pathsep + str(blocker)
    said, log = run(tmp_path, env)
    assert said["here"] == [] and log.count("stands aside") == 1 and "not for this Python" in log


def test_an_environment_is_added_to_once_and_otherwise_kept() -> None:
    made = bootstrap.environment({"PYTHONPATH": f"a{os.pathsep}", "SGLANG_PLUGINS": "other", "X": "1"})
    assert made["PYTHONPATH"] == os.pathsep.join([str(bootstrap.SITE), "a", ""])
    assert made["X"] == "1" and made["SGLANG_PLUGINS"] == "other" and made["SGLANG_PROBE"] == "1"
    assert bootstrap.environment(made) == made
    assert bootstrap.environment({})["PYTHONPATH"] == str(bootstrap.SITE)


def test_the_command_becomes_the_process(tmp_path: Path) -> None:
    becomes = "[sys.executable, '-c', 'import os, sys; print(os.getpid()); sys.exit(7)']"
    code = f"import sys; from sglang_probe.hook import bootstrap; bootstrap.launch({becomes})"
    with subprocess.Popen([sys.executable, "-c", code], env=base(tmp_path), stdout=subprocess.PIPE, text=True) as started:
        out, _ = started.communicate(timeout=60)
    assert started.returncode == 7 and int(out) == started.pid


@pytest.mark.parametrize(("command", "said"), [([], "give the server's own"), (["/nowhere/python"], "cannot be run")])
def test_what_cannot_be_run_is_refused(command: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        bootstrap.launch(command)
