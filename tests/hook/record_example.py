"""Records the example that `dump --example` and notebooks/04_inside_a_worker.ipynb read: `python record_example.py RANK WORLD STORE` in
each rank.

A toy of a mixture-of-experts model calls SGLang's own GroupCoordinator at the places of a server: attention, experts, logits, eager
prefill and captured decode batches; and at one place more, that is left from debugging. As in the scenes of this folder, the dispatch,
the communicators and the hook are real, the ranks are CPU ranks, and kernels stand in and move nothing: so there is no time in it, but
that of the host. Invariant: what is in it was recorded by the hook; the model's own file names are those of no machine.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import scene_group as own
import torch

from sglang_probe import hook

MODEL = """
def attention(group, x):
    return group.all_reduce(x)


def count_dropped_tokens(group, dropped):
    return group.all_reduce(dropped)


def experts(group, x, dropped=None):
    if dropped is not None:
        count_dropped_tokens(group, dropped)
    return group.all_reduce(x)


def logits(group, x):
    return group.all_reduce(x)


def forward(group, tokens, layers, make, debug):
    for layer in range(layers):
        x = make(tokens, 7168)
        attention(group, x)
        experts(group, x, make(1, 3) if debug else None)
    logits(group, make(tokens, 7168))
"""
LAYERS = 8
PREFILL = (512, 300, 128, 64, 700)
BATCHES = (1, 2, 4, 8)
REPLAYED = {1: 120, 2: 41, 4: 9}
"""No request ever fills a batch of 8."""


def main(rank: int, world: int, store: str) -> None:
    own.join(rank, world, store)
    library = own.operators_on_cpu()  # kept: it unregisters where it is dropped
    hook.install()
    group, capturing = own.make_group(world), [False]
    model: dict[str, Any] = {}
    exec(compile(MODEL, "sglang/srt/models/toy_moe.py", "exec"), model)
    forward = SimpleNamespace(**model).forward
    with own.on_a_gpu(group, capturing), torch.no_grad():
        group.pynccl_comm, group.ca_comm = own.pynccl(world, rank), own.v1(world, rank)
        from sglang_probe.hook import session

        recorder = session.current().recorder
        session.current().groups.made(group)
        recorder.site_every, recorder.host_time = 1, True
        graphs = {batch: capture(group, forward, batch, capturing) for batch in BATCHES}
        for tokens in PREFILL:
            forward(group, tokens, LAYERS, own.on_gpu, debug=True)
        for batch, times in REPLAYED.items():
            for _ in range(times):
                graphs[batch].replay()
        group.ca_comm = group.pynccl_comm = None
    del library
    hook.uninstall()


def capture(group: Any, forward: Any, batch: int, capturing: list[bool]) -> Any:
    """As SGLang's runner: once to warm up, then into a graph, both inside of graph_capture()."""
    with group.graph_capture():
        forward(group, batch, LAYERS, own.on_gpu, debug=False)
        made = own.graph(capturing)
        made.capture_begin()
        forward(group, batch, LAYERS, own.on_gpu, debug=False)
        made.capture_end()
    return made


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
