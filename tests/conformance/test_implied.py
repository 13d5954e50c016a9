"""What SGLang makes of its arguments, against its own functions, lifted out of the released packages and run on stand-ins.

Speculative defaults, captured batch sizes, fusion by default and the prefill graph, for the last release of every era. Any state of the
arguments will do, so states are drawn with a fixed seed. An index that does not answer fails these tests; it never skips them.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_probe._releases import COMMITS, RELEASES, known_release
from sglang_probe._server.defaults import defaults
from sglang_probe._server.hardware import GPUS, Gpu
from sglang_probe._server.implied import apply_rules, speculative_defaults
from sglang_probe._server.implied_fusion import _automatic
from sglang_probe._server.implied_graphs import captured_batches, pool_size, tokens_of_request
from sglang_probe._server.implied_prefill import prefill_attention, prefill_graph
from sglang_probe._server.state import State
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree
from sglang_probe._types import Model, Setting

LAST = {known_release(n).ruleset: n for n in RELEASES if n not in COMMITS}
RELEASED = pytest.mark.parametrize("release", LAST.values())
pytestmark = [pytest.mark.network, pytest.mark.slow]

ARCHS = (
    "LlamaForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM DeepseekV4ForCausalLM GptOssForCausalLM Qwen3MoeForCausalLM "
    "KimiK25ForConditionalGeneration Glm4MoeForCausalLM Glm4MoeLiteForCausalLM MistralLarge3ForCausalLM Grok1ForCausalLM "
    "PixtralForConditionalGeneration Qwen3NextForCausalLM GlmMoeDsaForCausalLM Qwen3_5MoeForConditionalGeneration NemotronHForCausalLM "
    "Qwen3VLMoeForConditionalGeneration MiniMaxM3SparseForConditionalGeneration Cohere2VisionForConditionalGeneration "
    "BailingMoeForCausalLM MiMoV2FlashForCausalLM KimiLinearForCausalLM SomethingElseForCausalLM"
).split()
ARGS, HOOKS = "srt/server_args.py", "srt/arg_groups/"
GRAPH_HOOK, MEMORY_HOOK = HOOKS + "cuda_graph_hook.py", HOOKS + "memory_hook.py"


class Mute:
    """A stand-in for what the lifted code only talks to: loggers, variables of the environment."""

    def __getattr__(self, _name: str) -> Mute:
        return Mute()

    def __call__(self, *_: object, **__: object) -> Mute:
        return Mute()

    def __bool__(self) -> bool:
        return False


@functools.cache
def tree(release: str) -> Tree:
    return Tree(_fetch.fetch(release))


@functools.cache
def module(release: str, relpath: str) -> ast.Module | None:
    return ast.parse(tree(release).source(relpath)) if tree(release).exists(relpath) else None


@functools.cache
def definition(release: str, places: tuple[tuple[str, str], ...]) -> ast.FunctionDef | None:
    """The first of (file, function or method) that the release has, without its imports, decorators and types."""
    for relpath, name in places:
        nodes = ast.walk(module(release, relpath) or ast.Module([], []))
        found = next((node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name), None)
        if found is not None:
            return _stripped(found)
    return None


def _stripped(function: ast.FunctionDef) -> ast.FunctionDef:
    function.decorator_list, function.returns = [], None
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    for node in ast.walk(function):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                kept = [item for item in value if not isinstance(item, (ast.Import, ast.ImportFrom))]
                setattr(node, field, kept or ([ast.Pass()] if field == "body" else []))
    return ast.fix_missing_locations(function)


def lift(release: str, namespace: dict[str, Any], *places: tuple[str, str]) -> Any:
    """A released function that sees only this namespace; None where the release has it not."""
    found = definition(release, places)
    return None if found is None else run(found, namespace)


def run(function: ast.FunctionDef, namespace: dict[str, Any]) -> Any:
    exec(compile(ast.Module([function], []), "<released>", "exec"), namespace)
    return namespace[function.name]


def state(release: str, gpu: Gpu = GPUS["h200"], arch: str = "", config: dict[str, Any] | None = None, **given: Any) -> State:
    args = {name: Setting(value, "default") for name, value in defaults(release).items()}
    args |= {name: Setting(value, "given") for name, value in given.items() if name in args}
    model = Model("m", arch, 2, 8, 8, config=config or {"x": 1}) if arch else None
    made = State(release, args, {}, model, gpu, gpu.link)
    apply_rules(made)
    return made


# ------------------------------------------------------------------------------------------------------------- speculative defaults


@RELEASED
def test_speculative_defaults_are_what_the_release_picks(release: str) -> None:
    places = ((ARGS, "auto_choose_speculative_params"), (HOOKS + "speculative_hook.py", "_auto_choose_speculative_params"))
    function = definition(release, places)
    assert function is not None
    for arch, algorithm in itertools.product(ARCHS, ("EAGLE", "STANDALONE")):
        config = SimpleNamespace(architectures=[arch])
        server = SimpleNamespace(
            speculative_algorithm=algorithm, get_hf_config=lambda config=config: config, model_path="m", trust_remote_code=False,
            get_model_config=lambda config=config: SimpleNamespace(hf_config=config), revision=None, json_model_override_args="{}",
        )  # fmt: skip
        namespace = {"get_config": lambda *_, config=config, **__: config, "json": SimpleNamespace(loads=lambda _: {})}
        choose = run(function, {**namespace, "resolving_view": lambda view: view, "ServerArgs": None})
        parameters = [argument.arg for argument in function.args.args]
        theirs = choose(arch) if parameters == ["arch"] else choose(server, arch) if len(parameters) > 1 else choose(server)
        assert theirs == speculative_defaults(release, arch, algorithm), (arch, algorithm)


# ------------------------------------------------------------------------------------------------------------------ captured batches


def _their_batches(release: str, made: State, asked: dict[str, Any]) -> tuple[int, ...]:
    """The sizes that the released code captures for these arguments, on this GPU."""
    memory, width = made.gpu.memory_mib, made.attn_tp_size if made.attn_dp_size > 1 else 1
    decode, prefill = (
        SimpleNamespace(max_bs=asked["most"], bs=None, backend="full"),
        SimpleNamespace(max_bs=1, bs=[1], backend="x"),
    )
    server = SimpleNamespace(
        **{name: setting.value for name, setting in made.args.items() if not name.startswith("cuda_graph")},
        cuda_graph_bs=None, cuda_graph_max_bs=asked["most"], mem_fraction_static=0.5, max_total_tokens=None, model_path="m",
        context_length=None, cuda_graph_config=SimpleNamespace(decode=decode, prefill=prefill), use_mla_backend=lambda: False,
    )  # fmt: skip
    server.device, server.chunked_prefill_size, server.max_running_requests = "cuda", 1, asked["requests"]
    server.piecewise_cuda_graph_max_tokens, server.piecewise_cuda_graph_tokens = 1, [1]
    namespace: dict[str, Any] = {
        "resolving_view": lambda view: view, "copy": SimpleNamespace(deepcopy=lambda value: value), "is_npu": lambda: False,
        "declare_resolution": lambda *_, **__: None, "get_device_memory_capacity": lambda *_: memory, "envs": Mute(), "logger": Mute(),
        "Backend": Mute(), "Phase": Mute(), "use_mla_backend": lambda _: False, "generate_prefill_cuda_graph_batch_sizes": lambda _: [1],
        "expand_multimodal_decode_graph_to_running_limit": lambda *_: None, "generate_cpu_graph_batch_sizes": lambda _: [1],
        "is_hip_": False, "_is_hip": False, "require_gathered_buffer": lambda *_, **__: made.attn_dp_size > 1, "List": list, "Tuple": tuple,
        "get_attention_tp_size": lambda: made.attn_tp_size, "get_attention_cp_size": lambda: 1,
        "get_parallel": lambda: SimpleNamespace(attn_tp_size=made.attn_tp_size, attn_cp_size=1),
        "get_flags": lambda: SimpleNamespace(capture=SimpleNamespace(enable_torch_compile=False)),
        "get_exec": lambda: SimpleNamespace(graph=server, overlap=server), "DllmConfig": SimpleNamespace(from_server_args=lambda _: None),
        "get_cuda_graph_batch_size_alignment": lambda *_, **__: width, "ceil_align": lambda value, to: -(-value // to) * to,
        "get_cuda_graph_max_batch_size": lambda *values: -(-values[-1] // width) * width,
    }  # fmt: skip
    for place in ((ARGS, "_generate_cuda_graph_batch_sizes"), (ARGS, "_generate_decode_cuda_graph_batch_sizes"),
                  (GRAPH_HOOK, "generate_decode_cuda_graph_batch_sizes")):  # fmt: skip
        if (generate := lift(release, namespace, place)) is not None:
            setattr(server, place[1], functools.partial(generate, server))
    settings = definition(release, ((ARGS, "_handle_gpu_memory_settings"), (MEMORY_HOOK, "handle_gpu_memory_settings")))
    if settings is not None:
        run(settings, namespace)(*(server, memory)[: len(settings.args.args)])
    elif asked["most"] is None and memory < ((35 << 10) if made.within("0.4.7.post1") else 25000):
        server.cuda_graph_max_bs = (
            8 if made.number("tp_size") < 4 else 80
        )  # set amid __post_init__, which does too much to be run
    name = "get_batch_sizes_to_capture"
    places = (("srt/model_executor/cuda_graph_runner.py", name), ("srt/model_executor/runner/base_cuda_graph_runner.py", name))
    function = definition(release, places)
    assert function is not None
    runner = SimpleNamespace(server_args=server, req_to_token_pool=SimpleNamespace(size=pool_size(made) or 4096))
    several = len(function.args.args) > 1
    sizes, _ = run(function, {**namespace, "ModelRunner": None})(*((runner, tokens_of_request(made)) if several else (runner,)))
    return tuple(sorted(set(sizes)))


@RELEASED
def test_captured_batches_are_what_the_release_captures(release: str) -> None:
    limit = "cuda_graph_max_bs" if "cuda_graph_max_bs" in defaults(release) else "cuda_graph_max_bs_decode"
    gpus = ("rtx4090", "rtx5090", "l40s", "h100", "h200", "b200")
    for gpu, tp, algorithm, exact, requests, most, groups in itertools.product(
        gpus, (2, 8), (None, "EAGLE"), (False, True), (None, 20, 100), (None, 100), (1, 2)
    ):
        asked = {"tp_size": tp, "speculative_algorithm": algorithm, "disable_cuda_graph_padding": exact}
        asked |= {"max_running_requests": requests, limit: most}
        asked |= {"enable_dp_attention": True, "dp_size": groups} if groups > 1 and tp > 2 else {}
        made = state(release, GPUS[gpu], "DeepseekV3ForCausalLM", **asked)
        assert captured_batches(made) == _their_batches(release, made, {"requests": requests, "most": most}), (gpu, asked)


# ------------------------------------------------------------------------------------------------------------------ fusion by default

_FLAGS = ("self.enable_flashinfer_allreduce_fusion", "self.flashinfer_allreduce_fusion_backend")


@functools.cache
def _conditions(release: str) -> tuple[tuple[Any, ...], ...]:
    """Before v0.5.15: the nested ifs under which the release turns fusion on."""
    places = [(ARGS, name) for name in ("_handle_model_specific_adjustments", "model_specific_adjustments", "__post_init__")]
    host = definition(release, tuple(places))
    assert host is not None

    def walk(node: ast.AST, tests: tuple[ast.expr, ...]) -> Iterator[tuple[ast.expr, ...]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If):
                yield from walk(ast.Module(child.body, []), (*tests, child.test))
                yield from walk(ast.Module(child.orelse, []), (*tests, ast.UnaryOp(ast.Not(), child.test)))
            elif (
                isinstance(child, ast.Assign)
                and ast.unparse(child.targets[0]) in _FLAGS
                and ast.unparse(child.value) in ("True", "'auto'")
            ):
                yield tests
            else:
                yield from walk(child, tests)

    found = list(walk(host, ()))
    return tuple(
        tuple(compile(ast.fix_missing_locations(ast.Expression(test)), "<released>", "eval") for test in tests) for tests in found
    )


@functools.cache
def _constant(release: str, relpath: str, name: str) -> frozenset[str]:
    for node in ast.walk(module(release, relpath) or ast.Module([], [])):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            return frozenset(ast.literal_eval(value))
    return frozenset()


def _their_fusion(release: str, gpu: Gpu, view: SimpleNamespace, arch: str, sparse: bool) -> bool:
    config = SimpleNamespace(architectures=[arch], model_type="x", hidden_size=1)
    model = SimpleNamespace(hf_config=config, dtype="bf16")
    view.get_model_config = lambda: model
    platform = SimpleNamespace(is_sm90=gpu.sm90, is_sm100=gpu.sm100, is_blackwell=gpu.sm100 or gpu.sm120)
    namespace: dict[str, Any] = {
        "self": view, "model_arch": arch, "hf_config": config, "is_h20_device": gpu.name == "h20", "is_cuda": lambda: True,
        "is_sm90_supported": lambda: gpu.sm90, "is_sm100_supported": lambda: gpu.sm100, "is_hip": lambda: False, "is_npu": lambda: False,
        "is_blackwell_supported": lambda: gpu.sm100 or gpu.sm120, "is_deepseek_nsa": lambda _: sparse and "Deepseek" in arch,
        "_FLASHINFER_ALLREDUCE_FUSION_ARCHS": _constant(release, HOOKS + "overrides.py", "_FLASHINFER_ALLREDUCE_FUSION_ARCHS"),
        "get_platform": lambda: platform, "model_config_of": lambda _: model, "envs": Mute(), "logger": Mute(),
        "attn_dp_enabled_of": lambda _: view.enable_dp_attention, "SUPPORTED_TP_SIZES": (2, 4, 8, 16),
        "torch": SimpleNamespace(bfloat16="bf16"),
    }  # fmt: skip
    automatic = lift(release, namespace, (HOOKS + "overrides.py", "_flashinfer_allreduce_fusion_auto_enable"))
    if automatic is not None:
        return bool(automatic(view).get("flashinfer_allreduce_fusion_backend"))
    return any(all(eval(test, namespace) for test in tests) for tests in _conditions(release))


@RELEASED
def test_fusion_is_on_by_default_exactly_where_the_release_turns_it_on(release: str) -> None:
    if not state(release).within("0.4.9"):
        return  # no fused all-reduce yet: _automatic is not asked
    names = ("h100", "h20", "h200", "b200", "gb200", "rtx-pro-6000", "a100")
    for arch, name, tp, groups, nodes, a2a, sparse in itertools.product(
        ARCHS, names, (1, 8), (1, 2), (1, 2), ("none", "deepep"), (False, True)
    ):
        if (tp == 1 and groups > 1) or (a2a != "none" and "moe_a2a_backend" not in defaults(release)):
            continue
        asked: dict[str, Any] = {"tp_size": tp, "nnodes": nodes, "moe_a2a_backend": a2a}
        asked |= {"enable_dp_attention": True, "dp_size": groups} if groups > 1 else {}
        made = state(release, GPUS[name], arch, {"index_topk": 1} if sparse else None, **asked)
        view = SimpleNamespace(
            enable_flashinfer_allreduce_fusion=False, flashinfer_allreduce_fusion_backend=None, tp_size=tp, nnodes=nodes, attn_cp_size=1,
            enforce_disable_flashinfer_allreduce_fusion=False, enable_dp_attention=groups > 1, moe_a2a_backend=a2a, enable_pdmux=False,
            disable_custom_all_reduce=False, encoder_only=False,
        )  # fmt: skip
        ours = _automatic(made).backend is not None
        assert ours == _their_fusion(release, GPUS[name], view, arch, sparse), (arch, name, asked, sparse)


# --------------------------------------------------------------------------------------------------------------------- prefill graph

_MODEL = "srt/configs/model_config.py"
_BACKENDS = SimpleNamespace(FULL="full", BREAKABLE="breakable", TC_PIECEWISE="tc_piecewise", DISABLED="disabled")
_PHASES = SimpleNamespace(DECODE="decode", PREFILL="prefill", ALL=("decode", "prefill"))
_ORDER = ("parse_cuda_graph_config", "apply_cuda_graph_compatibility", "apply_cuda_graph_disaggregation_roles",
          "disable_prefill_cuda_graph_for_deepseek_trtllm_mla")  # fmt: skip
_STOPPERS = tuple(f"disable_{kind}_cudagraph_if_incompatible" for kind in ("tc_piecewise", "breakable", "full_prefill"))


def _some_arguments(made: State, dice: random.Random) -> dict[str, Any]:
    """Arguments that can stop a prefill graph, each with a chance of one in eight."""
    backends = ["breakable", "disabled", "full"] if made.within("0.5.22") else ["breakable", "disabled", "tc_piecewise"]
    choices: dict[str, Any] = {
        "speculative_algorithm": "EAGLE3", "enable_torch_compile": True, "pp_size": 2,
        "moe_a2a_backend": dice.choice(["deepep", "mooncake"]),
        "enable_lora": True, "load_format": "gguf", "dllm_algorithm": "x", "cpu_offload_gb": 1, "enable_hierarchical_cache": True,
        "enable_deterministic_inference": True, "disaggregation_mode": dice.choice(["prefill", "decode"]), "enable_symm_mem": True,
        "enable_eplb": True, "attn_cp_size": 2, "debug_cuda_graph": True, "dcp_size": 2, "enable_two_batch_overlap": True,
        "disable_piecewise_cuda_graph": True, "enforce_piecewise_cuda_graph": True, "enable_breakable_cuda_graph": True,
        "disable_prefill_cuda_graph": True, "disable_cuda_graph": True, "cuda_graph_backend_prefill": dice.choice(backends),
        "attention_backend": dice.choice(["trtllm_mla", "fa3"]), "cuda_graph_config": {"prefill": {"backend": dice.choice(backends[:2])}},
    }  # fmt: skip
    asked = {name: value for name, value in choices.items() if dice.random() < 1 / 8}
    return {"tp_size": 8, **asked, **({"enable_dp_attention": True, "dp_size": 2} if dice.random() < 1 / 8 else {})}


def _server_of(release: str, made: State, latent: bool) -> SimpleNamespace:
    arch, multimodal = made.arch, made.arch.endswith("ForConditionalGeneration")
    names = "piecewise_cuda_graph_disabled multimodal_piecewise_cuda_graph_supported multimodal_breakable_cuda_graph_supported".split()
    listed = {name: arch in _constant(release, _MODEL, f"{name}_model_archs") for name in names}
    sparse = made.model is not None and made.model.config.get("index_topk") is not None
    model = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=[arch]), is_multimodal=multimodal,
        is_multimodal_piecewise_cuda_graph_supported=multimodal and listed["multimodal_piecewise_cuda_graph_supported"],
        is_multimodal_breakable_cuda_graph_supported=multimodal and listed["multimodal_breakable_cuda_graph_supported"],
        is_piecewise_cuda_graph_disabled_model=listed["piecewise_cuda_graph_disabled"] or (sparse and not made.within("0.5.13")),
    )  # fmt: skip
    values = {name: setting.value for name, setting in made.args.items()} | {"enable_dp_attention": made.attn_dp_size > 1}
    unread = ("cuda_graph_tc_compiler", "cuda_graph_max_seq_len_prefill", "cuda_graph_prefill_max_context")
    missing = dict.fromkeys(unread) | {
        "enable_dsa_prefill_context_parallel": False,
        "enable_breakable_cuda_graph": False,
    }
    server = SimpleNamespace(
        **{**missing, **values}, model_path="m", get_model_config=lambda: model, use_mla_backend=lambda: latent
    )
    attention = prefill_attention(made)
    server._resolved, server._resolved_attention_backends = lambda: server, lambda: (attention, attention)
    return server


def _their_prefill(release: str, made: State, latent: bool, sparse: bool) -> str:
    server, cuda = _server_of(release, made, latent), made.gpu.device == "cuda"
    attention = prefill_attention(made)

    def with_phase(config: Any, phase: str, **changes: Any) -> Any:
        changed = copy.deepcopy(config)
        vars(getattr(changed, phase)).update(changes)
        return changed

    def default_config() -> SimpleNamespace:
        kind = (
            ("breakable" if cuda else "disabled" if made.within("0.5.22") else "tc_piecewise")
            if made.within("0.5.15")
            else "tc_piecewise"
        )
        return SimpleNamespace(decode=SimpleNamespace(backend="full"), prefill=SimpleNamespace(backend=kind))

    platform = SimpleNamespace(is_hip=not cuda, is_npu=False, is_xpu=False, is_cuda=cuda)
    no = dict.fromkeys(("is_npu", "is_cpu", "is_mps", "is_xpu", "check_gguf_file", "supports_prefill_cp_bcg"), lambda *_: False)
    namespace: dict[str, Any] = no | {
        "is_hip": lambda: not cuda, "current_platform": SimpleNamespace(is_out_of_tree=lambda: False), "Backend": _BACKENDS,
        "Phase": _PHASES,
        "logger": Mute(), "is_deepseek_v4": lambda _: made.arch.startswith("DeepseekV4"), "is_deepseek_dsa": lambda _: sparse,
        "is_nemotron_h": lambda _: made.arch.startswith("NemotronH"), "uses_kda_attention": lambda _: made.arch.startswith("KimiLinear"),
        "resolved_view": lambda view: view, "_resolved_view": lambda view: view, "resolving_view": lambda view: view,
        "model_config_of": lambda view: view.get_model_config(), "attention_backends_of": lambda _: (attention, attention),
        "get_platform": lambda: platform, "declare_resolution": lambda view, _, **changes: vars(view).update(changes),
        "with_phase": with_phase, "CudaGraphConfig": type("Never", (), {}), "default_cuda_graph_config": default_config, "Any": Any,
    }  # fmt: skip
    if not made.within("0.5.14"):
        lift(release, namespace, (ARGS, "_handle_piecewise_cuda_graph"))(server)
        return (
            "none"
            if server.disable_piecewise_cuda_graph
            else "breakable"
            if server.enable_breakable_cuda_graph
            else "tc_piecewise"
        )
    for name in (*_STOPPERS, *_ORDER):
        function = lift(release, namespace, (ARGS, "_" + name), (GRAPH_HOOK, name))
        if name in _STOPPERS and function is not None:
            setattr(server, "_" + name, functools.partial(function, server))
        elif function is not None:
            function(server)
    kind = server.cuda_graph_config.prefill.backend
    return "none" if kind == "disabled" else str(kind)


@RELEASED
def test_the_prefill_graph_is_the_one_that_the_release_would_start(release: str) -> None:
    if not state(release).within("0.5.10rc0"):
        return  # off by default and without a list of its own: the runner decides
    dice = random.Random(release)
    for _ in range(400):
        arch, gpu = dice.choice(ARCHS), GPUS[dice.choice(["h200", "b200", "mi300x", "rtx-pro-6000"])]
        latent, sparse = (
            arch.startswith(("Deepseek", "Kimi", "GlmMoeDsa")),
            arch in ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
        )
        config = {"x": 1} | ({"kv_lora_rank": 1} if latent else {}) | ({"index_topk": 1} if sparse else {})
        asked = _some_arguments(state(release), dice)
        made = state(release, gpu, arch, config, **asked)
        assert prefill_graph(made)[0] == _their_prefill(release, made, latent, sparse), (arch, gpu.name, asked)
