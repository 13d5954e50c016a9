"""Which known release a tree's gates equal, by hashes of their code. Called by derived.py and conform.py.

`fingerprints.json` holds the hashes of every known release: gate -> [[hash, first release, last release], ...]. A new release is
added by ``python -m sglang_probe._conform.fingerprints 0.5.24``; conform checks the file against each package that it reads.
Invariant: a gate whose hash is not in the file is unknown; likeness is never enough.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from .._releases import RELEASES
from .._source.lift import Tree

_TABLE = Path(__file__).with_name("fingerprints.json")
_COMMUNICATORS = "srt/distributed/device_communicators/"
_GROUPS = "srt/distributed/parallel_state.py"
_FLASHINFER = "srt/layers/flashinfer_comm_fusion.py"
# What decides for each gate: files as a whole, or names in one. Files that a release lacks do not count.
GATE_CODE: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "custom": tuple(
        (_COMMUNICATORS + f, ())
        for f in (
            "custom_all_reduce.py",
            "custom_all_reduce_v2.py",
            "custom_all_reduce_utils.py",
            "configs/custom_all_reduce_v2.py",
        )
    ),
    "quick": ((_COMMUNICATORS + "quick_all_reduce.py", ()),),
    "mscclpp": ((_COMMUNICATORS + "pymscclpp.py", ()),),
    "torch_symm_mem": ((_COMMUNICATORS + "torch_symm_mem.py", ()), (_COMMUNICATORS + "all_reduce_utils.py", ())),
    "pcie_ipc": ((_COMMUNICATORS + "pcie_ipc_ar.py", ()),),
    "pynccl": ((_COMMUNICATORS + "pynccl.py", ()),),
    "flashinfer": (
        (_GROUPS, ("GroupCoordinator._can_use_flashinfer_allreduce",)),
        (_FLASHINFER, ("can_use_flashinfer_allreduce",)),
    ),
    "cpu": (("srt/utils.py", ("is_shm_available",)), ("srt/utils/common.py", ("is_shm_available",))),
    "group": (
        (
            _GROUPS,
            (
                "GroupCoordinator.__init__",
                "GroupCoordinator.graph_capture",
                "init_model_parallel_group",
                "initialize_model_parallel",
            ),
        ),
    ),
}


def gate_fingerprints(tree: Tree) -> dict[str, str]:
    """Hash of each gate's code in this tree; "" where the tree has none."""
    return {gate: "+".join(filter(None, (tree.fingerprint(f, n) for f, n in code))) for gate, code in GATE_CODE.items()}


@functools.lru_cache(maxsize=1)
def known() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """gate -> hash -> the releases that have it."""
    table: dict[str, dict[str, tuple[str, ...]]] = {}
    for gate, rows in json.loads(_TABLE.read_text()).items():
        table[gate] = {}
        for digest, first, last in rows:
            span = RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]
            table[gate][digest] = table[gate].get(digest, ()) + span
    return table


def equal_releases(tree: Tree) -> dict[str, tuple[str, ...]]:
    """For each gate, the known releases whose code is the same; () where there is none."""
    table = known()
    return {gate: table.get(gate, {}).get(digest, ()) for gate, digest in gate_fingerprints(tree).items()}


def as_rows(found: Mapping[str, Mapping[str, str]]) -> dict[str, list[list[str]]]:
    """{release: {gate: hash}} as the file's rows: runs of releases that follow one another and are equal."""
    table: dict[str, list[list[str]]] = {}
    for gate in GATE_CODE:
        rows: list[list[str]] = []
        for release in (r for r in RELEASES if r in found):
            digest = found[release][gate]
            if rows and rows[-1][0] == digest:
                rows[-1][2] = release
            else:
                rows.append([digest, release, release])
        table[gate] = rows
    return table


def write(found: Mapping[str, Mapping[str, str]]) -> None:
    """Write the file, one run a line."""
    gates = []
    for gate, rows in as_rows(found).items():
        gates.append(f'  "{gate}": [\n' + ",\n".join(f"    {json.dumps(row)}" for row in rows) + "\n  ]")
    _TABLE.write_text("{\n" + ",\n".join(gates) + "\n}\n")


def main(sources: list[str]) -> None:
    """Add releases (fetched) or checkouts ("0be30d4=path@0be30d4") to the file."""
    from .._source.checkout import open_checkout
    from .._source.fetch import fetch

    held = (
        {r: {g: h for g, rows in known().items() for h, span in rows.items() if r in span} for r in RELEASES}
        if _TABLE.exists()
        else {}
    )
    for source in sources:
        name, _, place = source.partition("=")
        held[name] = gate_fingerprints(open_checkout(place) if place else Tree(fetch(name)))
    write({name: gates for name, gates in held.items() if set(gates) == set(GATE_CODE)})


if __name__ == "__main__":
    main(sys.argv[1:])
