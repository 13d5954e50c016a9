"""Rulesets against SGLang's own dispatch: every state of the space, and the conditions beside it. Called by conform.py.

Invariant: the compared answer is the whole one (path, rule, op, new tensor, clone, lost result, exception), not the path alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from .._source.lift import Tree
from .dispatch import DEVICES, DOMAIN, STATE_COUNT, Dispatch, Outcome, Walk, describe, state
from .types import Result, group_cases

PCIE_STATES = ("absent", "disabled", "declines", "accepts")
Codes = npt.NDArray[np.uint8]

_PATH = {row[0]: i for i, row in enumerate(_core.PATHS)}
_RULE = {row[0]: i for i, row in enumerate(_core.RULES)}
_ERROR = {row[0]: i for i, row in enumerate(_core.EXCEPTIONS)}
_BIT = {row[0]: 1 << i for i, row in enumerate(_core.CONDITIONS)}
_OPS: tuple[str | None, ...] = (None, "in_place", "out_of_place")
_NEW, _CLONE, _LOST = 2, 4, 8


def encode(outcome: Outcome) -> tuple[int, int, int, int, int]:
    """Codes of one outcome, as the core writes them: path, rule, op, flags, exception."""
    flags = _NEW * outcome.new | _CLONE * outcome.cloned | _LOST * outcome.lost
    return (_PATH[outcome.path], _RULE[outcome.rule], _OPS.index(outcome.op), flags, _ERROR[outcome.error])


def decode(codes: Iterable[int]) -> Outcome:
    path, rule, op, flags, error = codes
    return Outcome(
        _core.PATHS[path][0],
        _core.RULES[rule][0],
        _OPS[op],
        bool(flags & _NEW),
        bool(flags & _CLONE),
        bool(flags & _LOST),
        _core.EXCEPTIONS[error][0],
    )


def codes_of(walk: Walk) -> Codes:
    """A walk as codes, [states, 5]."""
    table = np.array([encode(o) for o in walk.outcomes], dtype=np.uint8)
    return table[walk.ids]


def derive_codes(dispatch: Dispatch) -> Codes:
    """Every state of one tree's dispatch in the core's order; times four where it knows the PCIe-IPC communicator."""
    states = PCIE_STATES if dispatch.reads_pcie_ipc else PCIE_STATES[:1]
    walks = [codes_of(dispatch.walk(pcie_ipc=s)) for s in states]
    return np.concatenate([walks[0], *(w[1:] for w in walks[1:])])  # the group of one rank stands once


def compare_rules(tree: Tree, ruleset: str) -> list[Result]:
    """This tree's dispatch against one ruleset: the space, the multi-node variable, and the kinds of device."""
    index = {row[0]: i for i, row in enumerate(_core.rulesets())}[ruleset]
    dispatch = Dispatch(tree)
    ours: Codes = np.asarray(_core.walk(index), dtype=np.uint8)
    theirs = derive_codes(dispatch)
    space = Result(f"dispatch, ruleset {ruleset}")
    if len(ours) != len(theirs):
        knows, not_ = ("SGLang", "here") if len(theirs) > len(ours) else ("here", "SGLang")
        space.differences.append(f"{knows} the PCIe-IPC communicator is asked, {not_} it is not")
    shared = min(len(ours), len(theirs))
    _compare(space, theirs[:shared], ours[:shared])
    space.differences += [f"SGLang asks self.{name}, which is unknown here" for name in sorted(dispatch.unknown)]
    return [space, *compare_beside(dispatch, index)]


def compare_beside(dispatch: Dispatch, index: int) -> list[Result]:
    """What the space leaves out: the multi-node variable where it is read, and the kinds of device."""
    multinode = [_compare_multinode(dispatch, index)] if dispatch.reads_multinode else []
    return [*multinode, _compare_devices(dispatch, index)]


def _compare(result: Result, theirs: Codes, ours: Codes) -> None:
    result.compared += len(theirs)
    differing = np.flatnonzero((theirs != ours).any(axis=1)).tolist()
    texts = {i: f"SGLang {describe(decode(theirs[i]))}, here {describe(decode(ours[i]))}" for i in differing}
    if 0 in texts:
        result.differences.append(f"1 case: {texts.pop(0)} where world_size=1")
    domain = {**({"pcie_ipc": PCIE_STATES} if len(theirs) > STATE_COUNT else {}), **DOMAIN}
    result.differences += group_cases([(_conditions(i), text) for i, text in texts.items()], domain)


def _conditions(i: int) -> Mapping[str, Any]:
    """The conditions of a state above world size 1, each named."""
    pcie, base = divmod(i - 1, STATE_COUNT - 1)
    return {"pcie_ipc": PCIE_STATES[pcie], **state(base + 1)}


def _compare_multinode(dispatch: Dispatch, index: int) -> Result:
    result = Result("dispatch with SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE")
    theirs, bit = codes_of(dispatch.walk(custom_multinode=True)), _BIT["custom_multinode"]
    ours = np.array([_core.decide(index, _core.state_word(i) | (bit if i else 0)) for i in range(len(theirs))], dtype=np.uint8)
    _compare(result, theirs, ours)
    return result


def _compare_devices(dispatch: Dispatch, index: int) -> Result:
    """Groups that are not plain CUDA, each with and without communicators that would take the tensor."""
    result = Result("dispatch on CPU, HPU, XPU, NPU, and AMD deterministic")
    bits = {"cpu": _BIT["cpu"], "cpu_shm": _BIT["cpu"] | _BIT["cpu_shm"]} | {
        d: _BIT[d] for d in DEVICES if not d.startswith("cpu")
    }
    custom = _BIT["custom_present"] | _BIT["custom_enabled"] | _BIT["custom_accepts"]
    pynccl = _BIT["pynccl_present"] | _BIT["pynccl_enabled"]
    groups: dict[str, tuple[dict[str, Any], int]] = {
        "nothing else": ({}, 0),
        "custom": ({"custom": "accepts"}, custom),
        "pynccl": ({"pynccl": "enabled"}, pynccl),
        "custom, compiling": ({"custom": "accepts", "compiling": True}, custom | _BIT["compiling"]),
    }
    for device, bit in bits.items():
        for name, (conditions, word) in groups.items():
            ours = decode(_core.decide(index, _BIT["ranks"] | bit | word))
            result.check(f"{device} with {name}", describe(dispatch.device(device, **conditions)), describe(ours))
    return result
