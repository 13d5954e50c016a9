"""How the hook comes into a worker: as a plug-in that SGLang loads, where the release has them, and by the environment elsewhere.

Invariant: the plug-in is the installed package's entry point, found and called by SGLang's own loader.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hook.releases import HERE, environment, needed

from sglang_probe.hook import bootstrap

pytestmark = [needed, pytest.mark.network, pytest.mark.slow]

QUIET = ["sglang_probe", "sglang_probe._plugin"]
ARMED = [*QUIET, "sglang_probe.hook", "sglang_probe.hook.arming"]


def worker(env: dict[str, str], *words: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(HERE / "worker.py"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    (tmp_path / "rings").mkdir(mode=0o700)
    return tmp_path / "rings"


def env_of(release: str, rings: Path, **more: str) -> dict[str, str]:
    return environment(release, rings, RANK="0", WORLD_SIZE="1", **more)


def test_the_package_declares_the_plugin() -> None:
    (found,) = importlib.metadata.entry_points(group="sglang.srt.plugins", name="sglang_probe")
    assert found.value == "sglang_probe._plugin:load"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
@pytest.mark.parametrize(
    ("asked", "loaded"),
    [
        ({}, QUIET),
        ({"SGLANG_PROBE": "1"}, ARMED),
        ({"SGLANG_PLUGINS": "sglang_probe"}, ARMED),
        ({"SGLANG_PLUGINS": "another, sglang_probe"}, ARMED),
        ({"SGLANG_PLUGINS": "sglang_probe", "SGLANG_PROBE": "0"}, QUIET),
        ({"SGLANG_PLUGINS": "another", "SGLANG_PROBE": "1"}, []),
    ],
    ids=["not asked", "asked", "named", "among others", "refused", "not allowed"],
)
def test_sglangs_loader_gets_what_was_asked_for_and_nothing_else(
    release: str, asked: dict[str, str], loaded: list[str], rings: Path
) -> None:
    said, log = worker(env_of(release, rings, **asked), "load")
    assert said["after plug-ins"] == said["before the group"] == loaded
    assert said["hooks"] == 0  # SGLang's registry would put Python around each C callable
    assert said["heavy"] == []
    assert bool(said["recording"]) == (loaded == ARMED) == bool(list(rings.glob("*.ring")))
    if loaded == ARMED:
        assert said["records"] == 1 and said["header"] == {"rank": 0, "world_size": 1, "release": release}
    assert "Failed" not in log


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_a_worker_under_record_has_the_hook_by_its_environment(release: str, rings: Path) -> None:
    said, _ = worker(bootstrap.environment(env_of(release, rings)))
    assert said["at start"] == said["before the group"] == ARMED
    assert said["records"] == 1 and said["header"]["release"] == release


def test_both_ways_at_once_are_one_hook(rings: Path) -> None:
    said, _ = worker(bootstrap.environment(env_of("0.5.23", rings)), "load")
    assert said["records"] == 1 and len(list(rings.glob("*.ring"))) == 1


@pytest.mark.parametrize("release", ["0.5.9"])
def test_without_it_a_worker_has_nothing_of_ours(release: str, rings: Path) -> None:
    said, _ = worker(env_of(release, rings))
    assert said["at start"] == said["before the group"] == [] and said["recording"] == ""
