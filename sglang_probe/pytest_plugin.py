"""The pytest plug-in: the fixture ``probe``, bound to the release under test, and the option that says which. Loaded by pytest itself.

Invariant: it costs a test suite nothing when unused: this module imports pytest alone, and all else waits for the fixture or the option.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._decision import Decision
    from ._proof.diff import Diff
    from ._releases import Release

_OPTION = "--sglang-probe-release"
_INI = "sglang_probe_release"
_HELP = "SGLang revision that the fixture probe asks: a release, a commit, 'installed', or a checkout path@revision"
_BOUND = frozenset(
    {
        "assert_constant_over",
        "assert_route",
        "assert_unreachable",
        "bands",
        "reach",
        "read_launch",
        "route",
        "router",
        "step",
    }
)
"""Functions of sglang_probe whose ``sglang`` is the release under test, unless the test gives another."""


class Probe:
    """``sglang_probe`` bound to the release under test: its functions without ``sglang=``, and every other of its names as it is."""

    def __init__(self, release: Release) -> None:
        self.release = release

    def __repr__(self) -> str:
        return f"<probe of SGLang {self.release.name} ({self.release.ruleset})>"

    def __getattr__(self, name: str) -> Any:
        import sglang_probe

        if name not in sglang_probe.__all__:
            raise AttributeError(f"the fixture probe has no {name!r}; it has what sglang_probe has")
        value = getattr(sglang_probe, name)
        return partial(value, sglang=self.release) if name in _BOUND else value

    def __dir__(self) -> list[str]:
        import sglang_probe

        return sorted({*super().__dir__(), *sglang_probe.__all__})

    def dispatch(self, sglang: str | Release | None = None, **conditions: Any) -> Decision:
        """``sglang_probe.dispatch`` of the release under test."""
        from ._route import dispatch

        return dispatch(self.release if sglang is None else sglang, **conditions)

    def diff(self, a: str | Release, b: str | Release | None = None, **question: Any) -> Diff:
        """``sglang_probe.diff`` from ``a`` to the release under test, or to ``b``."""
        from ._proof.diff import diff

        return diff(a, self.release if b is None else b, **question)

    def assert_same_routing(self, a: str | Release, b: str | Release | None = None, **question: Any) -> Diff:
        """``sglang_probe.assert_same_routing`` of ``a`` and the release under test, or ``b``."""
        __tracebackhide__ = True
        from ._proof.asserting import assert_same_routing

        return assert_same_routing(a, self.release if b is None else b, **question)


def _asked(config: pytest.Config) -> str | None:
    """The option, else the ini file's line; None where neither is given."""
    return config.getoption(_OPTION) or config.getini(_INI) or None


def _release(config: pytest.Config) -> Release:
    """The release under test: what was asked for, else the installed SGLang, else the newest known."""
    from ._releases import newest, resolve
    from ._types import InputError

    asked = _asked(config)
    if asked:
        return resolve(asked)
    try:
        return resolve("installed")
    except InputError:
        return resolve(newest())


def _describe(config: pytest.Config) -> str:
    release = _release(config)
    whence = {"installed": ", installed"}.get(release.kind, "") or (", asked for" if _asked(config) else ", the newest known")
    return f"sglang_probe: release under test {release.name} ({release.ruleset}{whence})"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sglang_probe", "all-reduce routing of SGLang (fixture: probe)")
    group.addoption(_OPTION, metavar="REVISION", help=f"{_HELP}. Default: the installed SGLang, else the newest known")
    parser.addini(_INI, _HELP, default="")


def pytest_configure(config: pytest.Config) -> None:
    """A revision that nobody knows ends the run at once, not at the first test that asks for it."""
    if config.getoption(_OPTION):
        from ._types import ProbeError

        try:
            _release(config)
        except ProbeError as error:
            raise pytest.UsageError(f"{_OPTION}: {error}") from None


def pytest_report_header(config: pytest.Config) -> str | None:
    return _describe(config) if config.getoption(_OPTION) else None


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> str | None:
    """Without the option the header stays as it was, and the release is named where tests that use the fixture were collected."""
    if config.getoption(_OPTION) or not any(_uses_probe(item) for item in items):
        return None
    from ._types import ProbeError

    try:
        return _describe(config)
    except ProbeError as error:  # each test that uses the fixture says so itself
        return f"sglang_probe: {error}"


def _uses_probe(item: pytest.Item) -> bool:
    """Whether a test uses this fixture, not one of its own of the same name."""
    if "probe" not in getattr(item, "fixturenames", ()):
        return False
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("probe", ())
    return any(getattr(one.func, "__module__", None) == __name__ for one in found[-1:])


@pytest.fixture(scope="session")
def probe(pytestconfig: pytest.Config) -> Probe:
    """sglang_probe, bound to the release under test (--sglang-probe-release): probe.reach, probe.assert_unreachable, ..."""
    return Probe(_release(pytestconfig))
