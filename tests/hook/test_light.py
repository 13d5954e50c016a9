"""What the package costs a server that has it installed and did not ask for it, and one that did: modules, files, environment.

Invariant: each question is asked of a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_probe
from sglang_probe._plugin import asked

PARENT = str(Path(sglang_probe.__file__).parents[1])
HEAVY = ("numpy", "torch", "sglang", "rich", "scipy", "packaging", "sglang_probe._core")


def loaded(code: str, **env: str) -> list[str]:
    """The modules of ours, and the heavy ones, after this code in a fresh interpreter."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    ask = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env={**own, "PYTHONPATH": PARENT, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def ours(modules: list[str]) -> list[str]:
    return [name for name in modules if name.split(".")[0] == "sglang_probe"]


def test_the_entry_point_of_a_server_that_did_not_ask_is_two_small_modules() -> None:
    modules = loaded("import sglang_probe._plugin as plugin; plugin.load()")
    assert ours(modules) == ["sglang_probe", "sglang_probe._plugin"]
    assert not set(modules) & set(HEAVY)


def test_a_server_that_asked_waits_with_two_more() -> None:
    modules = loaded("import sglang_probe._plugin as plugin; plugin.load(); plugin.load()", SGLANG_PROBE="1")
    assert ours(modules) == ["sglang_probe", "sglang_probe._plugin", "sglang_probe.hook", "sglang_probe.hook.arming"]
    assert not set(modules) & set(HEAVY)


def test_the_hooks_module_itself_imports_nothing() -> None:
    modules = loaded("from sglang_probe import hook; assert hook.__all__")
    assert ours(modules) == ["sglang_probe", "sglang_probe.hook"]
    assert not set(modules) & set(HEAVY)


def test_without_an_sglang_install_stands_aside_and_says_so() -> None:
    code = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
sys.modules["sglang"] = None
from sglang_probe import hook
assert hook.install() == "" and hook.installed() == ""
(finding,) = hook.findings()
assert finding.kind == "aside" and "nothing is recorded" in finding.text, finding
hook.uninstall()
"""
    loaded(code)


@pytest.mark.parametrize(
    ("env", "answer"),
    [
        ({}, False),
        ({"SGLANG_PROBE": "1"}, True),
        ({"SGLANG_PROBE": " 1 "}, True),
        ({"SGLANG_PROBE": "0"}, False),
        ({"SGLANG_PROBE": "yes"}, False),
        ({"SGLANG_PROBE": ""}, False),
        ({"SGLANG_PLUGINS": ""}, False),
        ({"SGLANG_PLUGINS": "sglang_probe"}, True),
        ({"SGLANG_PLUGINS": "a, sglang_probe ,b"}, True),
        ({"SGLANG_PLUGINS": "sglang_probe_other"}, False),
        ({"SGLANG_PLUGINS": "sglang_probe", "SGLANG_PROBE": "0"}, False),
    ],
)
def test_who_asks(env: dict[str, str], answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGLANG_PROBE", "SGLANG_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert asked() is answer


def test_a_plugin_that_breaks_takes_nothing_down(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from sglang_probe import _plugin
    from sglang_probe.hook import arming

    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setenv("SGLANG_PROBE", "1")
    monkeypatch.setattr(arming, "arm", broken)
    _plugin.load()
    assert "stands aside: broken" in caplog.text
