"""Released SGLang packages from the package index, kept as sources only. Called by conform, the derived tables and `installed`.

pip downloads the wheel (nothing is installed or built); of up to 39 MB only the Python sources that anything here reads are kept.
Invariant: a file under its final name is whole: it is written aside, tested, then renamed, and tested again before each use.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .._types import InputError, ProbeUnavailable

Progress = Callable[[str], None]

_KEPT = re.compile(
    r"sglang/((srt|jit_kernel|kernels/jit|kernels/ops/communication)/.*|[^/]+)\.py$|sglang-[^/]+\.dist-info/METADATA$"
)
_LAYOUT = 1  # one more whenever _KEPT grows, so that no older file is taken for one that holds all
_VERSION = re.compile(r"v?(\d[0-9A-Za-z.]*)$")
_TARGETS = ("3.11", "3.12", "3.13", "3.10")  # wheels are read, never run: they need not fit this Python or machine
_GLIBC = range(40, 16, -1)
_TIMEOUT_S = 900


def cache_dir() -> Path:
    """Where packages and derived tables are kept: SGLANG_PROBE_CACHE, else XDG_CACHE_HOME or ~/.cache, then sglang_probe."""
    given = os.environ.get("SGLANG_PROBE_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sglang_probe"


def cached(version: str) -> Path:
    """Where the sources of a release are kept."""
    return cache_dir() / f"sglang-{version}-sources{_LAYOUT}.zip"


def fetch(version: str, progress: Progress | None = None) -> Path:
    """The sources of one release as a zip, downloaded once.

    Raises InputError for a version that the index does not have (the nearest is named), ProbeUnavailable where the index cannot
    be reached or pip is missing.
    """
    found = _VERSION.match(version)
    if found is None:
        raise InputError("sglang", version, 'not a released version; versions look like "0.5.9"')
    version = found[1]
    path = cached(version)
    if _is_whole(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not _is_whole(path):  # another process may have been faster
                _download(version, path, progress or (lambda _text: None))
    except OSError as error:
        raise ProbeUnavailable(f"cannot use the cache {path.parent} ({error.strerror}); set SGLANG_PROBE_CACHE") from None
    return path


def installed() -> Path:
    """The sglang package that this Python would import, found without importing it."""
    spec = importlib.util.find_spec("sglang")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "srt").is_dir():
            return Path(place)
    raise InputError("sglang", "installed", f'no sglang is installed for {sys.executable}; name a release such as "0.5.9"')


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError):
        return False


def _download(version: str, path: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as scratch:
        progress(f"fetching sglang {version}")
        heard: list[str] = []
        for target in _TARGETS:
            done, said = _pip(version, target, scratch)
            heard.append(said)
            wheels = list(Path(scratch).glob("sglang-*.whl"))
            if done and wheels:
                part = Path(scratch) / "sources.zip"
                _keep_sources(wheels[0], part)
                os.replace(part, path)
                return
            if "from versions:" not in said:
                break  # not a question of which Python the wheel is for
        raise _failure(version, "\n".join(heard))


def _pip(version: str, target: str, scratch: str) -> tuple[bool, str]:
    """One attempt; what pip said comes back for the error text."""
    platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in _GLIBC]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--quiet",
        "--disable-pip-version-check",
        "--retries=2",
        "--timeout=20",
        f"--python-version={target}",
        "--implementation=cp",
        *platforms,
        "--dest",
        scratch,
        f"sglang=={version}",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False, f"no answer in {_TIMEOUT_S} s"
    return run.returncode == 0, run.stdout + run.stderr


def _keep_sources(wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as full, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as kept:
            for name in full.namelist():
                if _KEPT.match(name):
                    kept.writestr(name, full.read(name))  # read() checks the wheel's own checksum
    except zipfile.BadZipFile as error:
        raise ProbeUnavailable(f"the download of {wheel.name} is damaged ({error}); try again") from None


def _failure(version: str, said: str) -> Exception:
    listed = re.findall(r"from versions: ([^)]*)\)", said)  # of each Python that was asked about: they differ
    versions = sorted({v for line in listed for v in line.split(", ")} - {"none"})
    if versions:
        return InputError(
            "sglang", version, f"the package index has no such release; the nearest is {_nearest(version, versions)}"
        )
    if "No module named pip" in said:
        return ProbeUnavailable(f"pip is missing; run {sys.executable} -m ensurepip, or give a checkout instead of a release")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "error" in line] or lines or ["pip said nothing"]
    return ProbeUnavailable(
        f"cannot fetch sglang {version}: the package index did not answer ({errors[0][:200]}); check the network "
        "and pip's index settings, or give an unpacked package or a checkout instead"
    )


def _nearest(version: str, versions: list[str]) -> str:
    """The last listed version that is not newer, else the first; as ``route`` names the nearest known one."""
    from packaging.version import InvalidVersion, Version

    def key(name: str) -> Version:
        try:
            return Version(name)
        except InvalidVersion:
            return Version("0")

    ordered = sorted(versions, key=key)
    older = [name for name in ordered if key(name) <= key(version)]
    return older[-1] if older else ordered[0]
