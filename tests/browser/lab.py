"""A real JupyterLab on localhost and Debian's Chromium that looks at it: started, asked, and ended with all that they started.

Called by test_lab.py. Nothing of the user's is read or written: settings, profiles and the notebook's copy lie in one temporary folder.
Invariant: every wait has a limit, and no process outlives its ``with`` block, nor the tests' own process, should that be killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # before there is a child, which must not load anything
CHROMIUM, DRIVER = "chromium", "chromedriver"
ALONE = (
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have 64 MiB of it
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)
"""Options of every Chromium that a test starts; test_report_browser.py starts some too."""
_THEMES = "@jupyterlab/apputils-extension/themes.jupyterlab-settings"
_NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
_WINDOW = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
_SETTINGS: dict[str, dict[str, object]] = {
    _THEMES: {"theme": "JupyterLab Light", "adaptive-theme": False},
    _NEWS: {"fetchNews": "false", "checkForUpdates": False},
    _WINDOW: {"windowingMode": "none"},  # every cell is in the page, seen or not
}


def lacking() -> str:
    """What is missing here; "" where nothing is."""
    modules = [name for name in ("jupyterlab", "selenium") if find_spec(name) is None]
    tools = [name for name in (CHROMIUM, DRIVER) if shutil.which(name) is None]
    if not (modules or tools):
        return ""
    remedy = [f"pip install {' '.join(modules)}"] * bool(modules) + ["apt-get install chromium chromium-driver"] * bool(tools)
    return f"no {', '.join([*modules, *tools])} here: {'; '.join(remedy)}"


def until(found: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """What ``found`` gives, as soon as it is true."""
    end = time.monotonic() + limit_s
    while not (value := found()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(0.05)
    return value


def left_running(folder: Path) -> dict[int, str]:
    """Processes that were started with this folder: in their environment or on their command line."""
    mark, found = os.fsencode(folder), {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
            if int(process.name) != os.getpid() and line and mark in (process / "environ").read_bytes() + line:
                found[int(process.name)] = line.replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:
            continue
    return found


def _with_parent() -> None:
    """In a child: end when the tests' process does, even where that is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(folder: Path) -> None:
    """Whatever is left: asked to go, then made to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left_running(folder):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        end = time.monotonic() + 10
        while left_running(folder) and time.monotonic() < end:
            time.sleep(0.1)


_CHILD: dict[str, Any] = {"start_new_session": True, "preexec_fn": _with_parent}


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[str]:
    """A server that shows ``folder``/shown; gives its address, with the token."""
    import sglang_probe

    for name, content in _SETTINGS.items():
        path = folder / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
    places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    package = str(Path(sglang_probe.__file__).parents[1])
    python_path = os.pathsep.join(filter(None, [package, kept.get("PYTHONPATH")]))
    env = {**kept, **places, "HOME": str(folder), "IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": python_path}
    options = (
        "--no-browser --allow-root --expose-app-in-browser --ServerApp.ip=127.0.0.1 --LabApp.news_url=None "
        "--LabApp.extension_manager=readonly"
    ).split()
    named = [f"--LabApp.user_settings_dir={folder / 'settings'}", f"--LabApp.workspaces_dir={folder / 'workspaces'}"]
    with (folder / "server.log").open("wb") as log:
        command = [sys.executable, "-m", "jupyterlab", *options, *named, f"--ServerApp.root_dir={folder / 'shown'}"]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder, **_CHILD)
    try:
        yield until(lambda: _address(folder, server), "JupyterLab starts")
    finally:
        server.terminate()
        try:
            server.wait(15)  # it ends its kernels
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        _end(folder)


def _address(folder: Path, server: subprocess.Popen[bytes]) -> str:
    if server.poll() is not None:
        raise RuntimeError(f"JupyterLab ended with {server.returncode}: {(folder / 'server.log').read_text()[-2000:]}")
    for path in (folder / "runtime").glob("jpserver-*.json"):
        try:
            told = json.loads(path.read_text())
        except ValueError:  # half written
            continue
        return f"{told['url']}lab/tree/{{name}}?token={told['token']}"
    return ""


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A Selenium driver of Debian's own pair; nothing but localhost can be reached from it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(CHROMIUM) or CHROMIUM
    for argument in (
        *ALONE,
        "--headless=new",
        "--window-size=1500,1400",
        "--force-color-profile=srgb",
        "--remote-debugging-pipe",  # it ends when chromedriver does
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
        f"--user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(argument)
    env = {**os.environ, "HOME": str(folder)}
    service = Service(shutil.which(DRIVER), env=env, popen_kw=_CHILD)
    driver = None
    try:
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(LIMIT_S)
        driver.set_script_timeout(LIMIT_S)
        yield driver
    finally:
        try:
            if driver is not None:
                driver.quit()
        finally:
            _end(folder)
