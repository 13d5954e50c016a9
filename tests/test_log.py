"""A server's log: arguments as SGLang prints them in each era, and lines that contradict them."""

from __future__ import annotations

import pathlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_probe import InputError
from sglang_probe._server.log import scan_log
from sglang_probe._types import Server
from sglang_probe.launch import read_launch, read_log

OLD = (
    "[2025-10-01 10:00:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=8, pp_size=1, dp_size=1, "
    "ep_size=1, nnodes=1, disable_custom_all_reduce=False, enable_mscclpp=False, enable_symm_mem=False, "
    "enable_flashinfer_allreduce_fusion=True, speculative_algorithm='EAGLE', speculative_num_steps=3, speculative_eagle_topk=1, "
    "speculative_num_draft_tokens=4, max_running_requests=48, cuda_graph_max_bs=512, cuda_graph_bs=[1, 2, 4, 8, 16, 48, 64], "
    "disable_cuda_graph=False, enable_piecewise_cuda_graph=False, lora_paths=None, chat_template='a, b) {x', "
    "mode=<Mode.A: 'a'>, log_requests_format=None)"
)
NEW = (
    "[2026-11-01 10:00:00] server_args={'model_path': 'deepseek-ai/DeepSeek-V3', 'tp_size': 8, 'dp_size': 1, 'ep_size': 1, 'nnodes': 1, "
    "'disable_custom_all_reduce': False, 'flashinfer_allreduce_fusion_backend': 'auto', 'enable_dp_attention': False, "
    "'speculative_algorithm': None, 'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 24, 'bs': [1, 2, 4, 24]}, "
    "'prefill': {'backend': 'breakable', 'max_bs': 2048, 'bs': [4, 8]}}, 'kv_events': {'a': [1, {'b': ()}]}}"
)


def write(tmp_path: pathlib.Path, *lines: str, encoding: str = "utf-8") -> pathlib.Path:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def read(
    path: pathlib.Path, sglang: str = "0.5.9", gpu: str = "h200", link: str = "nvlink", env: dict[str, str] | None = None
) -> Server:
    return read_log(path, sglang=sglang, gpu=gpu, link=link, env=env)


def test_the_arguments_of_an_old_log_are_taken_as_the_server_resolved_them(tmp_path: pathlib.Path) -> None:
    server = read(write(tmp_path, "INFO start", OLD))
    assert (server.draft_tokens, server.speculative_steps, server.speculative_topk) == (4, 3, 1)
    assert server.captured_batches == (1, 2, 4, 8, 16, 48) and server.decode_graph and server.prefill_graph == "none"
    assert server.fusion.enabled and "server's own" in server.fusion.reason
    assert server.args["tp_size"].origin == "found" and server.model is not None and server.model.name == "DeepSeek-V3"
    assert "chat_template" not in server.args and server.contradictions == ()


def test_the_arguments_of_a_new_log_are_a_dictionary(tmp_path: pathlib.Path) -> None:
    server = read(write(tmp_path, NEW), "0.5.19")
    assert server.captured_batches == (1, 2, 4, 24) and server.prefill_graph == "breakable" and server.fusion.enabled
    assert server.groups["tp"].value("decode_rows") == 24


def test_records_inside_of_the_arguments_are_read(tmp_path: pathlib.Path) -> None:
    decode, prefill = "PhaseConfig(backend='disabled', max_bs=8, bs=[1, 8])", "PhaseConfig(backend='tc_piecewise')"
    record = f"cuda_graph_config=CudaGraphConfig(decode={decode}, prefill={prefill})"
    server = read(
        write(tmp_path, f"server_args=ServerArgs(tp_size=4, {record}, flashinfer_allreduce_fusion_backend=None)"), "0.5.17"
    )
    assert (
        not server.decode_graph and server.prefill_graph == "tc_piecewise" and server.groups["tp"].value("piecewise_server") == 1
    )
    assert not server.fusion.enabled


def test_a_log_agrees_with_the_line_that_started_the_server(tmp_path: pathlib.Path) -> None:
    line = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --speculative-algorithm EAGLE"
    launched = read_launch(line, sglang="0.5.9", gpu="h200", link="nvlink")
    printed = ", ".join(f"{name}={setting.value!r}" for name, setting in launched.args.items())
    whole = read_launch(f"{line} --max-running-requests 4096", sglang="0.5.9", gpu="h200", link="nvlink").captured_batches
    printed = printed.replace("cuda_graph_bs=None", f"cuda_graph_bs={list(whole)}")
    printed = printed.replace("enable_flashinfer_allreduce_fusion=False", "enable_flashinfer_allreduce_fusion=True")
    logged = read(write(tmp_path, f"server_args=ServerArgs({printed})"))
    for name in ("draft_tokens", "captured_batches", "prefill_graph", "decode_graph", "speculative_algorithm", "model"):
        assert getattr(logged, name) == getattr(launched, name), name
    for name, fact in launched.groups["tp"].facts.items():
        assert logged.groups["tp"].value(name) == fact.value, name
    assert logged.fusion.enabled == launched.fusion.enabled


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_a_log_of_any_encoding_is_read(tmp_path: pathlib.Path, encoding: str) -> None:
    assert read(write(tmp_path, "größe", OLD, encoding=encoding)).groups["tp"].world_size == 8


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"\x00\xff\xfe\x80\n" + OLD.encode() + b"\r\n\xc3\x28\n")
    assert read(path).groups["tp"].world_size == 8


def test_arguments_that_a_collector_broke_into_lines_are_joined(tmp_path: pathlib.Path) -> None:
    assert read(write(tmp_path, OLD[:300], OLD[300:500], OLD[500:])).captured_batches[-1] == 48


def test_the_version_comes_from_the_log_where_it_is_printed(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "sglang is using nccl==2.27.5", "sglang version: 0.5.7", OLD)
    server = read_log(path, gpu="h200", link="nvlink")
    assert server.sglang == "0.5.7" and any("NCCL 2.27.5" in note for note in server.notes)
    assert any("0.5.7: taken, though 0.5.9" in note for note in read(path).notes)
    with pytest.raises(InputError, match="does not say its version") as caught:
        read_log(write(tmp_path, OLD))
    assert caught.value.field == "sglang"


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ("[TP0] Registering 0 cuda graph addresses", "no captured call went to custom all-reduce"),
        ("[TP0] Setup Custom allreduce failed with libfoo. To silence this warning", "the group has none"),
        ("[TP0] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs", "switched itself off"),
        ("[TP0] All Reduce config: symmetric_memory = 1.00 MB, local_buffer = 1.00 MB, multicast = False", "assumed"),
    ],
)
def test_a_line_that_contradicts_the_arguments_is_reported_with_its_number(
    tmp_path: pathlib.Path, line: str, because: str
) -> None:
    server = read(write(tmp_path, "start", OLD, line, line.replace("TP0", "TP1")))
    assert len(server.contradictions) == 1
    assert server.contradictions[0].startswith(f"line 3: {line[:30]}") and because in server.contradictions[0]


NONE_REGISTERED = "[TP0] Registering 0 cuda graph addresses"


@pytest.mark.parametrize(
    ("sglang", "change", "batches", "contradicted"),
    [
        ("0.5.9", "", "1, 2, 48", True),
        ("0.5.12", "", "1, 2", False),  # V2 pushes what is small: it copies, and registers nothing
        ("0.5.12", "", "1, 2, 48", True),  # 2.6 MiB are pulled
        ("0.5.9", "enable_symm_mem", "1, 2, 48", False),
        ("0.5.14", "enable_mscclpp", "1, 2", False),
        ("0.5.9", "disable_custom_all_reduce", "1, 2, 48", False),
    ],
)
def test_no_registered_address_is_a_contradiction_only_where_the_route_says_otherwise(
    tmp_path: pathlib.Path, sglang: str, change: str, batches: str, contradicted: bool
) -> None:
    args = OLD.replace("cuda_graph_bs=[1, 2, 4, 8, 16, 48, 64]", f"cuda_graph_bs=[{batches}]")
    args = args.replace(f"{change}=False", f"{change}=True") if change else args
    server = read(write(tmp_path, args, NONE_REGISTERED), sglang)
    assert any("no captured call" in text for text in server.contradictions) is contradicted


def test_an_unknown_model_does_not_hide_that_nothing_was_registered(tmp_path: pathlib.Path) -> None:
    args = OLD.replace("deepseek-ai/DeepSeek-V3", "some/unknown")
    assert len(read(write(tmp_path, args, NONE_REGISTERED)).contradictions) == 1
    saver = {"SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1"}  # copies every input, and registers none
    assert read(write(tmp_path, args, NONE_REGISTERED), env=saver).contradictions == ()


def test_another_groups_empty_capture_is_no_contradiction(tmp_path: pathlib.Path) -> None:
    server = read(write(tmp_path, OLD, NONE_REGISTERED, "[TP0] Registering 6222 cuda graph addresses"))
    assert server.contradictions == ()


def test_a_log_with_a_restart_answers_for_the_server_that_started_last(tmp_path: pathlib.Path) -> None:
    first = OLD.replace("deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2.5")
    failed = "[TP0] Setup Custom allreduce failed with no peer access"
    second = OLD.replace("tp_size=8", "tp_size=4").replace("deepseek-ai/DeepSeek-V3", "meta-llama/Meta-Llama-3-70B")
    path = write(
        tmp_path, "sglang version: 0.5.8", first, failed, "sglang version: 0.5.9", second, "Capture cuda graph bs [1, 2]"
    )
    server = read_log(path, gpu="h200", link="nvlink")
    assert server.sglang == "0.5.9" and server.model is not None and server.model.name == "Llama-3-70B"
    assert (server.groups["tp"].world_size, server.captured_batches) == (4, (1, 2))
    assert server.groups["tp"].value("own_custom") == 1 and server.contradictions == ()
    note = next(note for note in server.notes if "2 starts" in note)
    assert "line 5" in note and "line 2: moonshotai/Kimi-K2.5, tp_size 8" in note


def test_the_nodes_of_one_server_in_one_log_are_one_start(tmp_path: pathlib.Path) -> None:
    nodes = [OLD.replace("nnodes=1", f"nnodes=2, node_rank={rank}") for rank in (0, 1)]
    server = read(write(tmp_path, nodes[0], "All Reduce config: multicast = False", nodes[1]))
    assert server.groups["tp"].value("multicast") == 0 and not any("starts" in note for note in server.notes)
    again = read(write(tmp_path, OLD, OLD.replace("chat_template='a, b) {x'", "random_seed=7"), NONE_REGISTERED))
    assert not any("starts" in note for note in again.notes) and len(again.contradictions) == 1


def test_what_a_log_found_replaces_what_was_assumed(tmp_path: pathlib.Path) -> None:
    lines = (
        "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.",
        "All Reduce config: symmetric_memory = 1.00 MB, local_buffer = 1.00 MB, multicast = False",
    )
    server = read(write(tmp_path, OLD, *lines))
    tp = server.groups["tp"]
    assert {name: (tp.value(name), tp.facts[name].origin) for name in ("full_nvlink", "multicast")} == {
        "full_nvlink": (0, "found"),
        "multicast": (0, "found"),
    }
    assert server.groups["moe_tp"] is tp
    assert not any(text.startswith(("links:", "multicast:")) for text in server.assumed)
    assert read(write(tmp_path, OLD, "Setup Custom allreduce failed with x")).groups["tp"].value("own_custom") == 0


@pytest.mark.parametrize(
    ("line", "batches"),
    [
        ("[TP0] Capture cuda graph bs [1, 2, 4, 8]", (1, 2, 4, 8)),
        (
            "[TP0] Capture target verify CUDA graph begin. backend=full, num_tokens_per_bs=4, bs=[1, 2, 3], avail mem=9.90 GB",
            (1, 2, 3),
        ),
    ],
)
def test_captured_batches_are_those_that_the_log_names(tmp_path: pathlib.Path, line: str, batches: tuple[int, ...]) -> None:
    draft = "[TP0] Capture draft decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[7], avail mem=9.90 GB"
    server = read(write(tmp_path, OLD, draft, line, "Capture cuda graph bs [1]"))
    assert server.captured_batches == batches and server.contradictions == ()


def test_a_prefill_graph_and_fusion_that_the_arguments_deny_are_contradictions(tmp_path: pathlib.Path) -> None:
    line = OLD.replace("enable_flashinfer_allreduce_fusion=True", "enable_flashinfer_allreduce_fusion=False")
    server = read(
        write(
            tmp_path,
            line,
            "Capture cuda graph num tokens [4, 8]",
            "Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for X",
        )
    )
    assert [text[:7] for text in server.contradictions] == ["line 2:", "line 3:"]


def test_a_workspace_that_flashinfer_did_not_get_turns_fusion_off(tmp_path: pathlib.Path) -> None:
    failed = "Failed to initialize FlashInfer workspace (backend=trtllm): x. Disabling flashinfer allreduce fusion permanently."
    off = read(write(tmp_path, NEW, failed, failed), "0.5.19")
    assert not off.fusion.enabled and "line 2" in off.fusion.reason and off.groups["tp"].value("fi_workspace") == 0
    assert len(off.contradictions) == 1
    there = "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=mnnvl, rank=0, world_size=8"
    on = read(write(tmp_path, NEW, there), "0.5.19")
    assert on.fusion.enabled and on.fusion.backend == "mnnvl" and on.groups["tp"].value("fi_backend") == 1
    assert on.fusion.assumed == () and on.contradictions == ()


def test_pcie_ipc_that_was_built_or_missing_is_found(tmp_path: pathlib.Path) -> None:
    on = read(
        write(tmp_path, NEW, "FlashInfer PCIe-IPC all-reduce enabled (world=8, workspace sized on first reduction)"), "0.5.21"
    )
    assert (on.groups["tp"].value("own_pcie_ipc"), on.groups["tp"].value("has_flashinfer_pcie")) == (1, 1)
    missing = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is set but this FlashInfer build has no pcie_ipc_comm"
    off = read(write(tmp_path, NEW, missing), "0.5.21")
    assert (off.groups["tp"].value("own_pcie_ipc"), off.groups["tp"].value("has_flashinfer_pcie")) == (1, 0)


@pytest.mark.parametrize(
    "text", ["", "INFO nothing here\n", "server_args=ServerArgs(\n", "server_args={}\n", "server_args=ServerArgs(a=1)\n"]
)
def test_a_log_without_a_servers_arguments_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path, text))
    assert caught.value.field == "log" and "give" in caught.value.remedy


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "none.log", tmp_path, pathlib.Path("\0"), "", " "):
        with pytest.raises(InputError) as caught:
            read_log(path, sglang="0.5.9")
        assert caught.value.field == "log"


def test_nothing_in_a_log_is_evaluated(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "touched"
    log = scan_log(write(tmp_path, f"server_args=ServerArgs(tp_size=2, x=__import__('os').mkdir({str(target)!r}), y=open('z'))"))
    assert log.args["tp_size"] == 2 and not target.exists()


def test_a_huge_log_is_never_held_in_memory(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "server.log"
    line = b"[2025-10-01 10:00:00 TP0] Decode batch. #running-req: 1, #token: 100, token usage: 0.00, gen throughput (token/s): 100.0\n"
    with path.open("wb") as file:
        file.write(OLD.encode() + b"\n" + b"x" * (24 << 20) + b"\n")
        for _ in range(60):
            file.write(line * 10_000)
    assert path.stat().st_size > 90 << 20
    tracemalloc.start()
    try:
        scan_log(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 40 << 20


_PIECES = "server_args=ServerArgs( server_args={ tp_size=8 'tp_size':8 , ) } ' \" [ \\ = cuda_graph_bs=[1]".split() + [
    "\n",
    "Registering 0 cuda graph addresses",
    "Capture cuda graph bs [1, 2]",
    "All Reduce config: multicast = True",
]
_PIECE = st.sampled_from(_PIECES)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(_PIECE, st.text(max_size=8)), max_size=30))
def test_any_text_is_a_server_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes("".join(pieces).encode("utf-8", "surrogatepass"))
    try:
        server = read(path)
    except InputError as error:
        assert error.field and error.remedy
    else:
        assert server.groups["tp"].world_size >= 1
