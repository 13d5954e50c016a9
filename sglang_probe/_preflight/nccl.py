"""Phase `nccl`: every libnccl on this machine, and the one that each user would load: torch, SGLang's pynccl, our communicators.

Which one a user loads is not worked out but done: torch is imported in this very process, and then it is asked what SGLang's pynccl would
open (nccl_users.py). Invariant: no library is opened in this process that its users would not open; versions are asked in processes apart,
so that a broken one costs its own answer alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from .inside import Known, Report
from .nccl_files import Library, find, wheels
from .nccl_users import User, users

_VERSION_S = 5.0
_ASK = """
import ctypes, sys
number = ctypes.c_int()
result = ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number))
sys.exit(f"ncclGetVersion answers {result}") if result else print(number.value)
"""


def ask(report: Report, known: Known) -> str:
    report.doing("looking for libnccl")
    libraries = find(known["caller"].get("libraries", ()))
    by_file: dict[tuple[int, int], tuple[str, str]] = {}
    for library in libraries:
        report.doing(f"opening {library.path}")
        version, why = version_of(library.path)
        by_file[library.identity] = version, why
        row = {"path": library.path, "found_by": list(library.found_by), "version": version, "why": why}
        report.item("libraries", row)
    _wheels(report, libraries, by_file)
    told = []
    for user in users(report):
        report.item("users", user.to_dict())
        told.append(user)
    _agree(report, told)
    versions = sorted({version for version, _ in by_file.values() if version})
    for library in libraries:
        why = by_file[library.identity][1]
        if why:
            report.note(f"{library.path} ({library.found_by[0]}) is no libnccl that can be used: {why}")
    return _answer(told, versions, len(libraries))


def version_of(path: str) -> tuple[str, str]:
    """(its version, "") or ("", why there is none); in a process of its own."""
    command = [sys.executable, "-I", "-S", "-c", _ASK, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_VERSION_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"it does not open within {_VERSION_S:g} s"
    if done.returncode < 0:
        return "", f"opening it ends the process by signal {-done.returncode}"
    if done.returncode or not done.stdout.strip().isdigit():
        lines = done.stderr.strip().splitlines()
        return "", lines[-1] if lines else f"exit status {done.returncode}"
    return version_text(int(done.stdout)), ""


def version_text(number: int) -> str:
    """22809 is 2.28.9; before 2.9 it was 2804 for 2.8.4."""
    major, rest = divmod(number, 1000 if number < 10_000 else 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _wheels(report: Report, libraries: Iterable[Library], by_file: dict[tuple[int, int], tuple[str, str]]) -> None:
    """Packages that own a libnccl: two of one file, or one whose file says another version, is an install that went wrong."""
    files = {library.identity: library.path for library in libraries}
    owners: dict[tuple[int, int], list[str]] = {}
    for wheel in wheels():
        report.item("packages", {"name": wheel.name, "version": wheel.version, "path": wheel.path})
        owners.setdefault(wheel.identity, []).append(f"{wheel.name} {wheel.version}")
        version = by_file.get(wheel.identity, ("", ""))[0]
        if version and not _same(version, wheel.version):
            report.finding(f"{wheel.path} is NCCL {version}, and its package {wheel.name} says {wheel.version}: install it again")
    for identity, names in owners.items():
        if len(names) > 1:
            path, version = files.get(identity, ""), by_file.get(identity, ("", ""))[0]
            report.finding(
                f"{' and '.join(names)} both own {path}, which is {version}: uninstall both, and install the one that torch needs"
            )


def _same(library: str, package: str) -> bool:
    """2.28.9 is the library of package 2.28.9, and of 2.28.9.post1."""
    return package.split(".")[:3] == library.split(".")


def _agree(report: Report, told: Iterable[User]) -> None:
    """One library for all is as it should be; two versions in one process are measured for each other, and use twice the memory."""
    loaded = [user for user in told if user.path]
    versions = {user.version for user in loaded}
    if len(versions) > 1:
        each = ", ".join(f"{user.name} loads {user.version} ({user.path})" for user in loaded)
        report.finding(f"not one NCCL for all: {each}; a figure of one says nothing of another")
    elif len({user.path for user in loaded}) > 1:
        each = ", ".join(f"{user.name}: {user.path}" for user in loaded)
        report.note(f"NCCL {loaded[0].version} is loaded from several files: {each}")
    for user in told:
        if user.wrong:
            report.finding(f"{user.name} cannot load NCCL: {user.why}")


def _answer(told: list[User], versions: list[str], count: int) -> str:
    loaded: dict[str, list[str]] = {}
    for user in told:
        if user.path:
            loaded.setdefault(user.version, []).append(user.name)
    here = f"{count} libnccl on this machine" + (f" ({', '.join(versions)})" if versions else "") if count else "no libnccl here"
    if not loaded:
        return f"{here}, and nobody loads one"
    return "; ".join(f"NCCL {version} for {', '.join(names)}" for version, names in loaded.items()) + f"; {here}"
