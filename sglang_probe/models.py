"""What of a model decides its all-reduces: presets, and any Hugging Face config.json on disk. Called by step and the launch reader.

Invariant: a number that all-reduces need and the file does not hold is an error that names the key; nothing is guessed from a
model's name but a preset.
"""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from ._types import FrozenMap, InputError, Model

_SOURCE = "config.json of "
_PRESETS: tuple[Model, ...] = (
    Model("Kimi-K2.5", "KimiK25ForConditionalGeneration", 61, 7168, 163840, "bf16", 1, 384, 8, _SOURCE + "moonshotai/Kimi-K2.5"),
    Model("Kimi-K2", "DeepseekV3ForCausalLM", 61, 7168, 163840, "bf16", 1, 384, 8, _SOURCE + "moonshotai/Kimi-K2-Instruct"),
    Model("DeepSeek-V3", "DeepseekV3ForCausalLM", 61, 7168, 129280, "bf16", 3, 256, 8, _SOURCE + "deepseek-ai/DeepSeek-V3"),
    Model("Llama-3-70B", "LlamaForCausalLM", 80, 8192, 128256, "bf16", 80, 0, 0, _SOURCE + "meta-llama/Meta-Llama-3-70B"),
    Model("Llama-3-8B", "LlamaForCausalLM", 32, 4096, 128256, "bf16", 32, 0, 0, _SOURCE + "meta-llama/Meta-Llama-3-8B"),
    Model("Qwen3-235B-A22B", "Qwen3MoeForCausalLM", 94, 4096, 151936, "bf16", 0, 128, 8, _SOURCE + "Qwen/Qwen3-235B-A22B"),
    Model("GPT-OSS-120B", "GptOssForCausalLM", 36, 2880, 201088, "bf16", 0, 128, 4, _SOURCE + "openai/gpt-oss-120b"),
)

# The last part of a hub id, lower case, without a quantisation's suffix: these have the preset's geometry.
_ALIASES = {
    "Kimi-K2.5": r"kimi-k2\.5(-instruct|-thinking)?",
    "Kimi-K2": r"kimi-k2(-base|-instruct|-thinking)?(-0905)?",
    "DeepSeek-V3": r"deepseek-(v3(-base|-0324|\.1(-base|-terminus)?)?|r1(-zero|-0528)?)",
    "Llama-3-70B": r"(meta-)?llama-3(\.[13])?-70b(-instruct)?",
    "Llama-3-8B": r"(meta-)?llama-3(\.1)?-8b(-instruct)?",
    "Qwen3-235B-A22B": r"qwen3-235b-a22b(-(instruct|thinking)-2507)?",
    "GPT-OSS-120B": r"gpt-oss-120b",
}
_QUANTISED = re.compile(r"(-(fp8|fp4|nvfp4|mxfp4|awq|gptq|int4|int8|w4a8|w8a8|w4a16|bf16|block|dynamic|v2))+$")

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_VOCAB = ("vocab_size", "padded_vocab_size")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k")
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "text_model_config")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_LARGEST = {"layers": 10_000, "hidden": 1 << 24, "vocab": 1 << 31, "experts": 1 << 20}
_LARGEST_FILE_BYTES = 16 << 20


def presets() -> tuple[Model, ...]:
    """The models whose numbers we know."""
    return _PRESETS


def find_preset(name: str) -> Model | None:
    """The preset that a name or a hub id means, whatever its case; None where it means none."""
    base = name.strip().rstrip("/").rsplit("/", 1)[-1].lower()
    plain = _QUANTISED.sub("", base)
    for model in _PRESETS:
        if base == model.name.lower() or re.fullmatch(_ALIASES[model.name], plain):
            return model
    return None


def load_model(name_or_path: str | os.PathLike[str] | Model) -> Model:
    """A preset by name or hub id, or a Hugging Face ``config.json`` (the file, or the folder that holds it); a Model is given back.

    What is on disk wins over a name. Raises ``InputError`` that names the key, its value and the remedy.
    """
    if isinstance(name_or_path, Model):
        return name_or_path
    text = str(name_or_path)
    if not text.strip():
        raise InputError("model", name_or_path, "give a preset's name, or the path of a config.json")
    try:
        path = pathlib.Path(text).expanduser()
    except RuntimeError as error:  # a home directory that nobody has
        raise InputError("model", text, f"{error}; give the path without ~") from None
    try:
        if path.is_dir():
            return _read_config(path / "config.json")
        if path.is_file():
            return _read_config(path)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        # A name that no file system takes (too long, a null byte) is no path, and may not be a preset either.
    preset = find_preset(text)
    if preset is None:
        names = [model.name for model in _PRESETS]
        near = difflib.get_close_matches(text.rsplit("/", 1)[-1], names, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError("model", text, f"{hint}neither a file nor a preset ({', '.join(names)}): give its config.json")
    return preset


def _read_config(path: pathlib.Path) -> Model:
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE_BYTES:
            raise InputError("model", str(path), f"{size} bytes are no config.json; give the model's config.json")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("model", str(path), f"{error.strerror or error}; give a readable config.json or its folder") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("model", str(path), f"not JSON ({error}); give the model's config.json") from None
    if not isinstance(config, dict):
        raise InputError("model", str(path), "the top of a config.json is an object; give the model's config.json")
    return model_from_config(config, str(path))


def model_from_config(config: Mapping[str, Any], source: str) -> Model:
    """A model from the parsed content of a Hugging Face config.json; a language model may be nested in a multimodal one."""
    arch = config.get("architectures")
    if not (isinstance(arch, list) and arch and isinstance(arch[0], str)):
        raise InputError("architectures", arch, f"{source} names no architecture, so it is no language model's config.json")
    text = _language_part(config)
    layers = _positive(text, _LAYERS, "layers", source)
    experts = _count(text, _EXPERTS, "experts", source)
    return Model(
        name=_name(config, source, arch[0]),
        arch=arch[0],
        layers=layers,
        hidden=_positive(text, _HIDDEN, "hidden", source),
        vocab=_vocabulary(text, config, source),
        dtype=_dtype(text, config, source),
        dense_layers=_dense_layers(text, layers, experts, source),
        experts=experts,
        experts_per_token=_count(text, _TOP_K, "experts", source) if experts else 0,
        source=source,
        config=FrozenMap(dict(text)),
    )


def _language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: the config itself, or one nested up to three deep."""
    part = config
    for _ in range(3):
        if any(key in part for key in _LAYERS) and any(key in part for key in _HIDDEN):
            return part
        nested = next((part[key] for key in _NESTED if isinstance(part.get(key), dict)), None)
        if nested is None:
            return part
        part = nested
    return part


def _positive(part: Mapping[str, Any], keys: tuple[str, ...], what: str, source: str) -> int:
    key = next((k for k in keys if part.get(k) is not None), None)
    if key is None:
        raise InputError(
            keys[0], None, f"{source} has no {keys[0]} (nor {', '.join(keys[1:])}): add it, or give another config.json"
        )
    return _integer(part[key], key, 1, _LARGEST[what], source)


def _vocabulary(text: Mapping[str, Any], config: Mapping[str, Any], source: str) -> int:
    """Size of the vocabulary; 0 where the file does not say it, because no all-reduce depends on it."""
    part = next((part for part in (text, config) if any(part.get(key) is not None for key in _VOCAB)), None)
    return 0 if part is None else _positive(part, _VOCAB, "vocab", source)


def _count(part: Mapping[str, Any], keys: tuple[str, ...], what: str, source: str) -> int:
    key = next((k for k in keys if part.get(k) is not None), None)
    return 0 if key is None else _integer(part[key], key, 0, _LARGEST[what], source)


def _integer(value: object, key: str, least: int, most: int, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(key, value, f"{source}: must be a whole number from {least} to {most}; correct the file")
    return value


def _dtype(text: Mapping[str, Any], config: Mapping[str, Any], source: str) -> str:
    for part in (text, config):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key)
            if value is None:
                continue
            name = str(value).removeprefix("torch.")
            if name not in _DTYPES:
                raise InputError(key, value, f"{source}: must be one of {', '.join(_DTYPES)}; correct the file")
            return _DTYPES[name]
    return "bf16"


def _dense_layers(text: Mapping[str, Any], layers: int, experts: int, source: str) -> int:
    """Layers without experts: they make the same all-reduce, under another name."""
    if not experts:
        return layers
    if text.get("first_k_dense_replace") is not None:
        return min(layers, _integer(text["first_k_dense_replace"], "first_k_dense_replace", 0, _LARGEST["layers"], source))
    only = text.get("mlp_only_layers")
    return min(layers, len(only)) if isinstance(only, list) else 0


def _name(config: Mapping[str, Any], source: str, arch: str) -> str:
    given = config.get("_name_or_path")
    if isinstance(given, str) and given.strip():
        return given.rstrip("/").rsplit("/", 1)[-1]
    folder = pathlib.Path(source).resolve().parent.name
    return folder or arch
