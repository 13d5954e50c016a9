"""`sglang-probe releases`: what can be asked for, and what changed from era to era. Called by cli.py.

Invariant: every row comes from the core's tables of releases and rulesets.
"""

from __future__ import annotations

import argparse
from typing import Any

from .._show.page import Block, Line, Table

GATE_COLUMNS = ("custom v1", "custom V2", "quick", "mscclpp", "torch_symm_mem", "flashinfer", "pcie_ipc", "cpu")


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("releases", help="releases and commits that are known, by era")
    parser.set_defaults(run=run_releases)


def releases_data() -> list[dict[str, Any]]:
    """Eras, oldest first."""
    from .. import _core

    rows = _core.releases()
    return [
        {
            "era": name,
            "changed": text,
            "releases": [
                {"sglang": row[0], "gates": dict(zip(GATE_COLUMNS, row[2:], strict=True))} for row in rows if row[1] == name
            ],
        }
        for name, text, _, _ in _core.rulesets()
    ]


def run_releases(args: argparse.Namespace) -> int:
    from .._releases import COMMITS, RELEASES
    from ..cli import show

    eras = releases_data()
    rows = tuple((era["era"], *_span([r["sglang"] for r in era["releases"]]), era["changed"]) for era in eras)
    count = len(RELEASES) - len(COMMITS)
    page: list[Block] = [
        Line(f"{count} releases and {len(COMMITS)} commits in {len(eras)} eras of the dispatch", "answer"),
        Line("an era is a set of rules; gates change on their own: -v shows the generation of each (0: not there)", "dim"),
        Table("", ("era", "first", "last", "what changed"), rows, strong="era"),
    ]
    if args.verbose:
        gates = tuple((r["sglang"], era["era"], *map(str, r["gates"].values())) for era in eras for r in era["releases"])
        page.append(Table("Generations of the gates", ("release", "era", *GATE_COLUMNS), gates, frozenset(GATE_COLUMNS)))
    show(args, eras, page)
    return 0


def _span(names: list[str]) -> tuple[str, str]:
    return (names[0], names[-1] if len(names) > 1 else "") if names else ("", "")
