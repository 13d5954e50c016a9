"""What else one speculative cycle communicates: the draft's passes, the gathers of logits, what ranks tell each other. Called by step.

One cycle of EAGLE: the draft runs steps - 1 passes of batch x top-k tokens, the target verifies (that is the step itself), the draft
then extends over the accepted tokens. Read from speculative/eagle_worker*.py, models/llama_eagle3.py and deepseek_nextn.py.
Invariant: an all-reduce carries a ``Call`` for the router; other collectives never do, and have no path.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace

from .._facts import DTYPE_BYTES
from .._types import Call, InputError, Model, Server
from .._versions import at_least
from ..models import load_model
from .calls import dtype_of, is_deepseek_family, setting
from .fusion import token_limits
from .tags import tags_experts, tags_outputs

_DRAFTED = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
_DRAFTLESS = frozenset({"NGRAM", "LOOKAHEAD"})
_VOCABULARY_PAD = 64


@dataclass(frozen=True)
class Traffic:
    """One kind of collective of the cycle, before routing."""

    name: str
    collective: str
    group: str
    count: int
    tokens: int
    nbytes: int
    """Of one collective's result."""
    call: Call | None = None
    note: str = ""


@dataclass(frozen=True)
class Cycle:
    parts: tuple[Traffic, ...]
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Head:
    """The draft model, as far as it is known."""

    layers: int
    hidden: int
    vocab: int
    fuses: bool
    assumed: tuple[str, ...] = ()
    experts: bool = False
    """Its layer is one of the target's own kind, with experts."""
    tagged: bool = False
    """Its outputs are tagged as symmetric memory."""


def plan_cycle(model: Model, server: Server, batch: int, width: int, sglang: str, *, context: str) -> Cycle:
    """The traffic of a cycle beside the target's own all-reduces; ``batch`` is padded, ``width`` is the draft tokens of a request.

    ``context`` is that of the draft's passes.
    """
    if server.groups["tp"].world_size == 1:
        return Cycle(())
    server, tokens = replace(server, draft_tokens=width), batch * width
    dtype = dtype_of(model, server)
    logits = [_logits("target logits", model.vocab, tokens, 1, server, dtype)]
    algorithm = (server.speculative_algorithm or "").upper()
    if not algorithm or server.speculative_steps == 0 and algorithm in _DRAFTED:
        return Cycle(tuple(logits))
    if algorithm not in _DRAFTED:
        text = () if algorithm in _DRAFTLESS else (f"not modelled: the draft passes of {algorithm}",)
        return Cycle((*logits, *_decisions(server, batch, sglang)), text)
    head = _head(model, server, algorithm)
    if tags_outputs(server, sglang):
        head = replace(head, tagged=not head.experts or tags_experts(model, server, sglang))
    parts = [*_passes(head, server, batch, dtype, sglang), *_extend(head, server, batch, dtype, sglang, context == "capture")]
    parts += [*logits, *_decisions(server, batch, sglang)]
    assumed = (*head.assumed, f"the draft's passes are routed in the context {context}")
    return Cycle(tuple(part for part in parts if part.count > 0), _notes(server, sglang), assumed)


def _passes(head: _Head, server: Server, batch: int, dtype: str, sglang: str) -> list[Traffic]:
    # To v0.4.2.post4 the last of the passes ran as well, for nothing.
    count = server.speculative_steps - 1 if at_least(sglang, "0.4.3") else server.speculative_steps
    tokens = batch * max(server.speculative_topk, 1)
    return [
        *_forward("draft pass", head, server, tokens, count, dtype, sglang),
        _logits("draft pass logits", head.vocab, tokens, count, server, dtype),
    ]


def _extend(head: _Head, server: Server, batch: int, dtype: str, sglang: str, captured: bool) -> list[Traffic]:
    wide = at_least(sglang, "0.5.13")
    width = server.draft_tokens if wide else server.speculative_steps + 1
    tokens = batch * width
    second = at_least(sglang, "0.5.14") or (at_least(sglang, "0.5.11") and server.speculative_topk <= 1)
    note = "" if captured or second else "at most: an eager draft extend runs over the accepted tokens alone"
    name = "draft extend"
    return [
        *_forward(name, head, server, tokens, 1, dtype, sglang, note),
        _logits(f"{name} logits", head.vocab, tokens if second else batch, 1, server, dtype),
    ]


def _forward(
    name: str, head: _Head, server: Server, tokens: int, passes: int, dtype: str, sglang: str, note: str = ""
) -> list[Traffic]:
    """The all-reduces of the draft: embedding, then attention and MLP of each layer; its first projection is replicated."""
    nbytes = tokens * head.hidden * DTYPE_BYTES[dtype]
    calls = 2 * head.layers + 1
    if head.fuses and tokens <= (server.fusion.max_tokens or token_limits(sglang)[0]):
        # One layer is the last one too: its attention is fused, its MLP is not.
        calls -= 1
        note = "; ".join(filter(None, (note, "its attention output is fused and not counted")))
    call = Call(nbytes, dtype, site=name, tokens=tokens, hidden=head.hidden, count=calls * passes, registered=head.tagged)
    return [Traffic(name, "all_reduce", "tp", calls * passes, tokens, nbytes, call, note)]


def _logits(name: str, vocab: int, tokens: int, count: int, server: Server, dtype: str) -> Traffic:
    if not vocab:
        return Traffic(name, "all_gather", "tp", count, tokens, 0, note="bytes unknown: its config.json has no vocab_size")
    element = 4 if setting(server, "enable_fp32_lm_head", default=False) else DTYPE_BYTES[dtype]
    padded = -(-vocab // _VOCABULARY_PAD) * _VOCABULARY_PAD
    return Traffic(name, "all_gather", "tp", count, tokens, tokens * padded * element)


def _decisions(server: Server, batch: int, sglang: str) -> list[Traffic]:
    """Rank 0 tells the others what was sampled (v0.5.11 on)."""
    if not at_least(sglang, "0.5.11"):
        return []
    nbytes = 4 * batch * (server.draft_tokens + server.speculative_steps + 2)
    note = "three tensors; only where not every request is greedy"
    return [Traffic("sampled tokens", "broadcast", "tp", 3, batch * server.draft_tokens, nbytes, note=note)]


def _notes(server: Server, sglang: str) -> tuple[str, ...]:
    notes = []
    if setting(server, "enable_multi_layer_eagle", default=False):
        notes.append("not modelled: --enable-multi-layer-eagle runs one draft layer for each step")
    if at_least(sglang, "0.4.7"):
        notes.append("the draft extend is captured only with attention backends that support it; it is eager with others")
    return tuple(notes)


def _head(model: Model, server: Server, algorithm: str) -> _Head:
    path = setting(server, "speculative_draft_model_path", "speculative_draft_model")
    target = setting(server, "model_path", "model")
    if algorithm != "EAGLE3" and (path is None or path == target) and is_deepseek_family(model):
        # Multi-token prediction: one layer of the target's own kind, with the target's embedding and head.
        return _Head(1, model.hidden, model.vocab, server.fusion.enabled and server.fusion.backend != "aiter", experts=True)
    known = _draft_config(path)
    if known is not None:
        vocab = known.config.get("draft_vocab_size")
        vocab = vocab if isinstance(vocab, int) and not isinstance(vocab, bool) and vocab > 0 else known.vocab
        return _Head(known.layers, known.hidden, vocab, fuses=False)
    text = (
        f"draft model{f' {path}' if path else ''}: its config.json is not here, so it counts as one layer of the target's width and "
        "vocabulary"
        + ("" if algorithm == "STANDALONE" else " (the bytes of its logits are at most these: a hot token map cuts them)")
    )
    return _Head(1, model.hidden, model.vocab, fuses=False, assumed=(text,))


def _draft_config(path: object) -> Model | None:
    if not isinstance(path, str) or not pathlib.Path(path).expanduser().exists():
        return None
    try:
        return load_model(path)
    except InputError:
        return None
