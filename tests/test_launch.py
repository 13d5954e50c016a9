"""From a command line to a server: quoting, wrappers, variables, argparse's abbreviations, the machine, what is assumed."""

from __future__ import annotations

import json
import pathlib
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_probe import InputError
from sglang_probe._releases import RELEASES
from sglang_probe._server.command import parse_flags, split_command
from sglang_probe._server.defaults import flags
from sglang_probe._server.refused import CHOICES
from sglang_probe._types import Server
from sglang_probe.launch import find_running, find_server, read_launch

KIMI = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8"
DEEPSEEK = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
H200 = {"gpu": "h200", "link": "nvlink"}


def read(line: str, sglang: str = "0.5.9", **machine: object) -> Server:
    return read_launch(line, sglang=sglang, **{**H200, **machine})  # type: ignore[arg-type] # one keyword each


def fact(server: Server, name: str, group: str = "tp") -> int:
    return server.groups[group].value(name)


# ---------------------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "line",
    [
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8",
        "python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --tp-size=8",
        "sglang serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8",
        "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 8",
        "env A=1 nohup python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 > log 2>&1 &",
        "cd /srv && A=1 python \\\n  -m sglang.launch_server \\\n --model-path 'deepseek-ai/DeepSeek-V3' --tp 8",
        "docker run --rm -e A=1 lmsysorg/sglang python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8",
        "--model-path deepseek-ai/DeepSeek-V3 --tp 8",
    ],
)
def test_every_way_to_write_the_command_gives_the_same_server(line: str) -> None:
    server = read(line)
    assert server.groups["tp"].world_size == 8
    assert server.model is not None and server.model.name == "DeepSeek-V3"


@pytest.mark.parametrize(
    "prefix",
    [
        "A=1 B=two",
        "export A=1 B=two;",
        "env A=1 B=two",
        "export A=1 && B=two",
        "docker run -e A=1 --env=B=two img",
        "A=1 nohup env B='two'",
    ],
)
def test_variables_are_read_from_the_command_itself(prefix: str) -> None:
    server = read(f"{prefix} {KIMI}")
    assert server.env["A"] == "1" and server.env["B"] == "two"


def test_given_env_wins_over_the_line_and_reaches_the_facts() -> None:
    server = read_launch(f"SGLANG_USE_JIT_ALL_REDUCE=0 {KIMI}", sglang="0.5.11", env={"SGLANG_USE_JIT_ALL_REDUCE": "1"}, **H200)
    assert fact(server, "custom_v2") == 1


def test_an_abbreviation_is_taken_as_argparse_takes_it() -> None:
    assert read(DEEPSEEK.replace("--tp 8", "--tensor-par 8")).groups["tp"].world_size == 8
    assert read(f"{DEEPSEEK} --disable-custom").args["disable_custom_all_reduce"].value is True


def test_an_ambiguous_abbreviation_is_refused_with_the_flag() -> None:
    # Up to v0.5.19 this is a flag of its own; in v0.5.20 it abbreviates two.
    assert read(f"{DEEPSEEK} --cuda-graph-max-bs 4", "0.5.19").captured_batches[-1] == 4
    with pytest.raises(InputError, match=r"--cuda-graph-max-bs.*ambiguous.*0\.5\.20"):
        read(f"{DEEPSEEK} --cuda-graph-max-bs 4", "0.5.20")


def test_unknown_flags_are_named_with_the_nearest_and_ignored() -> None:
    server = read(f"{KIMI} --no-such-flag 3 --disable-custom-all-redcue")
    ignored = "unknown to SGLang 0.5.9, which does not start with it; ignored here"
    assert [note for note in server.notes if "unknown" in note] == [
        f"--no-such-flag: {ignored}",
        f"--disable-custom-all-redcue: {ignored} (did you mean --disable-custom-all-reduce?)",
    ]


def test_a_flag_of_another_release_is_unknown_there() -> None:
    assert not any("unknown" in note for note in read(f"{DEEPSEEK} --enable-mscclpp", "0.4.7").notes)
    assert any("--enable-mscclpp: unknown" in note for note in read(f"{DEEPSEEK} --enable-mscclpp", "0.4.6").notes)


def test_irrelevant_flags_of_a_release_are_not_reported() -> None:
    line = f"{KIMI} --trust-remote-code --host 0.0.0.0 --port 1 --mem-fraction-static 0.8 --tool-call-parser kimi_k2 --log-level info"
    assert not any("unknown" in note for note in read(line).notes)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("python -m sglang.launch_server --model 'x --tp 8", "launch"),
        ("", "launch"),
        ("ls -l", "launch"),
        ("python -m sglang.bench_serving --tp 8", "launch"),
        (f"{DEEPSEEK}x", "--tp-size"),
        ("python -m sglang.launch_server --tp 0", "--tp-size"),
        ("python -m sglang.launch_server --tp 99999999999", "--tp-size"),
        ("python -m sglang.launch_server --tp", "--tp-size"),
        (f"{DEEPSEEK} --dp 3 --enable-dp-attention", "--tp-size"),
        (f"{DEEPSEEK} --ep 3", "--ep-size"),
        (f"{DEEPSEEK} --cuda-graph-max-bs 99999999999", "--cuda-graph-max-bs"),
        (f"{DEEPSEEK} --cuda-graph-bs 1 0", "--cuda-graph-bs"),
        (f"SGLANG_CUSTOM_ALLREDUCE_ALGO=fast {DEEPSEEK}", "SGLANG_CUSTOM_ALLREDUCE_ALGO"),
        (f"{DEEPSEEK} --config", "--config"),
    ],
)
def test_a_line_that_no_server_starts_with_is_refused_by_field(line: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        read(line)
    assert caught.value.field == field and caught.value.remedy


@pytest.mark.parametrize(
    ("flags", "sglang", "field", "choice"),
    [
        ("--dtype foo", "0.5.9", "--dtype", "bfloat16"),
        ("--moe-a2a-backend foo", "0.5.9", "--moe-a2a-backend", "deepep"),
        ("--moe-a2a-backend nixl", "0.5.9", "--moe-a2a-backend", "mori"),
        ("--speculative-algorithm FOO", "0.5.9", "--speculative-algorithm", "EAGLE3"),
        ("--speculative-algorithm eagle3", "0.5.9", "--speculative-algorithm", "EAGLE3"),
        ("--speculative-algorithm DFLASH", "0.5.10", "--speculative-algorithm", "NGRAM"),
        ("--cuda-graph-backend-prefill tc_piecewise", "0.5.22", "--cuda-graph-backend-prefill", "breakable"),
        ("--cuda-graph-backend-prefill full", "0.5.14", "--cuda-graph-backend-prefill", "tc_piecewise"),
        (
            '--cuda-graph-config \'{"prefill":{"backend":"tc_piecewise"}}\'',
            "0.5.23",
            "--cuda-graph-config prefill.backend",
            "full",
        ),
        ("--attention-backend fa5", "0.5.9", "--attention-backend", "fa3"),
        ("--deepep-mode fast", "0.5.9", "--deepep-mode", "low_latency"),
        ("--flashinfer-allreduce-fusion-backend cutedsl", "0.5.20", "--flashinfer-allreduce-fusion-backend", "mnnvl"),
    ],
)
def test_a_value_that_the_release_refuses_is_refused_with_its_choices(flags: str, sglang: str, field: str, choice: str) -> None:
    with pytest.raises(InputError) as caught:
        read(f"{DEEPSEEK} {flags}", sglang)
    assert caught.value.field == field and choice in caught.value.remedy and sglang in caught.value.remedy


def test_every_choice_of_a_release_is_taken_and_has_a_flag() -> None:
    for sglang in RELEASES:
        known = {flag.dest for flag in flags(sglang)}
        assert all(name in known for name, changes in CHOICES.items() if changes[0][0] == sglang)
    assert read(f"{DEEPSEEK} --cuda-graph-backend-prefill tc_piecewise", "0.5.21").prefill_graph == "tc_piecewise"
    assert read(f"{DEEPSEEK} --speculative-algorithm eagle", "0.5.12").speculative_algorithm == "EAGLE"


@pytest.mark.parametrize(
    ("numbers", "sglang", "field"),
    [
        ("--speculative-num-steps 3", "0.5.9", "--speculative-eagle-topk"),
        ("--speculative-eagle-topk 4", "0.5.9", "--speculative-eagle-topk"),
        ("--speculative-num-draft-tokens 4", "0.4.4.post4", "--speculative-num-draft-tokens"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 4", "0.5.23", "--speculative-num-draft-tokens"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1", "0.4.5", "--speculative-num-draft-tokens"),
    ],
)
def test_speculation_given_by_halves_is_refused_and_not_taken_for_none(numbers: str, sglang: str, field: str) -> None:
    with pytest.raises(InputError, match="does not start") as caught:
        read(f"{DEEPSEEK} --speculative-algorithm EAGLE {numbers}", sglang)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("numbers", "sglang", "tokens"),
    [
        ("", "0.5.9", 4),
        ("--speculative-num-steps 3", "0.4.3.post3", 8),  # each has a default of its own
        ("--speculative-num-steps 3 --speculative-eagle-topk 1", "0.5.9", 4),
        ("--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6", "0.5.9", 6),
    ],
)
def test_speculation_that_a_release_starts_with_is_taken(numbers: str, sglang: str, tokens: int) -> None:
    assert read(f"{DEEPSEEK} --speculative-algorithm EAGLE {numbers}", sglang).draft_tokens == tokens


LLAMA = "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-70B --tp 2"


@pytest.mark.parametrize(
    ("devices", "custom"), [("GPU-8f,GPU-1", 0), ("MIG-1,MIG-2", 0), ("0,1,", 0), ("3, 1", 1), ("0,1,2,3", 1)]
)
def test_visible_devices_that_are_no_numbers_leave_the_group_without_custom_all_reduce(devices: str, custom: int) -> None:
    server = read(f"CUDA_VISIBLE_DEVICES='{devices}' {LLAMA}")
    assert fact(server, "device_ids_ok") == custom
    assert any("CUDA_VISIBLE_DEVICES" in note for note in server.notes) is not custom
    assert fact(read(f"CUDA_VISIBLE_DEVICES='{devices}' {LLAMA}", "0.5.23"), "device_ids_ok") == custom


def test_a_constructor_that_stops_before_it_reads_the_devices_does_not_fail() -> None:
    names = ",".join(f"GPU-{number}" for number in range(8))
    line = f"CUDA_VISIBLE_DEVICES={names} {LLAMA.replace('--tp 2', '--tp 16')} --nnodes 2"
    assert fact(read(line), "own_custom") == 1  # across nodes: disabled, not absent


@pytest.mark.parametrize(
    ("devices", "line", "sglang"),
    [
        ("0,1,2,3", DEEPSEEK, "0.5.9"),
        ("", LLAMA, "0.5.9"),
        ("0,-1,1", LLAMA, "0.5.9"),
        ("0", f"{LLAMA.replace('--tp 2', '--tp 4')} --nnodes 2", "0.5.9"),
        ("GPU-8f,GPU-1", LLAMA, "0.4.4.post2"),
    ],
)
def test_visible_devices_that_the_server_does_not_start_with_are_refused(devices: str, line: str, sglang: str) -> None:
    with pytest.raises(InputError) as caught:
        read(f"CUDA_VISIBLE_DEVICES={devices} {line}", sglang)
    assert caught.value.field == "CUDA_VISIBLE_DEVICES" and caught.value.remedy


def test_a_variable_that_is_misspelt_or_not_read_is_noted() -> None:
    def noted(name: str, sglang: str = "0.5.12") -> str:
        return "\n".join(note for note in read(f"{name}=0 {DEEPSEEK}", sglang).notes if note.startswith(name))

    assert "did you mean SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2?" in noted("SGLANG_OPT_USE_CUSTOM_ALLREDUCE_V2")
    assert "not read by SGLang 0.5.9" in noted("SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "0.5.9")
    for name in (
        "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2",
        "SGLANG_USE_AITER",
        "SGLANG_HOST_IP",
        "HF_HOME",
        "CUDA_VISIBLE_DEVICE_ORDER",
    ):
        assert noted(name) == "", name


@pytest.mark.parametrize(
    ("machine", "field"),
    [
        ({"gpu": "h300"}, "gpu"),
        ({"gpu": ""}, "gpu"),
        ({"link": ""}, "link"),
        ({"link": "token-ring"}, "link"),
        ({"gpu": "mi300x", "link": "nvlink"}, "link"),
        ({"gpus": 4}, "gpus"),
        ({"gpus": 0}, "gpus"),
        ({"nodes": 0}, "nodes"),
    ],
)
def test_a_machine_that_cannot_run_it_is_refused_by_field(machine: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        read(DEEPSEEK, **machine)
    assert caught.value.field == field


def test_a_server_on_another_device_is_told_apart() -> None:
    server = read(f"{DEEPSEEK} --device cpu")
    assert fact(server, "device") == 3 and any("--device cpu" in note for note in server.notes)
    with pytest.raises(InputError) as caught:
        read(f"{DEEPSEEK} --device abacus")
    assert caught.value.field == "--device"


def test_nodes_that_contradict_the_line_are_refused() -> None:
    with pytest.raises(InputError, match="nnodes 2"):
        read(f"{DEEPSEEK} --nnodes 2", nodes=4)
    assert fact(read(f"{DEEPSEEK} --nnodes 2", nodes=2), "nodes") == 2


def test_a_config_file_is_read_below_the_command_line(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is optional: without it the file is named as not read")
    path = tmp_path / "server.yaml"
    path.write_text("tp-size: 4\nenable-symm-mem: true\ncuda-graph-bs: [1, 2]\ndisable-cuda-graph: false\n", encoding="utf-8")
    line = f"python -m sglang.launch_server --config {path} --model-path meta-llama/Llama-3.1-8B-Instruct"
    server = read(line)
    assert (server.groups["tp"].world_size, fact(server, "symm_mem"), server.captured_batches) == (4, 1, (1, 2))
    assert read(f"{line} --tp 2").groups["tp"].world_size == 2
    path.write_text("- a list\n", encoding="utf-8")
    with pytest.raises(InputError, match="mapping"):
        read(line)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_server_or_an_input_error(text: str) -> None:
    for line in (text, f"python -m sglang.launch_server {text}", f"{text} sglang serve {text}"):
        try:
            read(line)
        except InputError as error:
            assert error.field and error.remedy


_WORDS = st.sampled_from(
    [flag.name for flag in flags("0.5.18")]
    + ["--tp", "8", "0", "-1", "1e9", "none", "=", "{}", '{"decode":{"bs":[1]}}', "'", "x" * 50]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_WORDS, max_size=12), st.sampled_from(["0.4.1.post7", "0.5.9", "0.5.18", "0.5.23"]))
def test_any_flags_are_a_server_or_an_input_error(words: list[str], sglang: str) -> None:
    try:
        server = read("sglang serve " + " ".join(words), sglang)
    except InputError as error:
        assert error.field and error.remedy
    else:
        assert server.draft_tokens >= 1 and all(size >= 1 for size in server.captured_batches)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(string.ascii_uppercase, min_size=1, max_size=8), st.text(string.printable, max_size=12), max_size=4)
)
def test_quoting_a_variable_never_changes_it(env: dict[str, str]) -> None:
    import shlex

    prefix = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    if any("\\\n" in value for value in env.values()):
        return  # a continued line, which the shell would keep inside of quotes
    assert dict(split_command(f"{prefix} sglang serve m").env) == env


# ------------------------------------------------------------------------------------------------------------------- what is assumed


def test_what_nobody_said_about_the_machine_is_listed_as_assumed() -> None:
    server = read_launch("python -m sglang.launch_server --model-path some/unknown-model --tp 8", sglang="0.5.9")
    text = "\n".join(server.assumed)
    for word in ("GPU: h200", "link: nvlink", "multicast:", "peer access:", "model: some/unknown-model"):
        assert word in text
    assert server.model is None and "not known" in server.fusion.reason
    origins = {name: server.groups["tp"].facts[name].origin for name in ("world_size", "full_nvlink", "multicast")}
    assert origins == {"world_size": "given", "full_nvlink": "assumed", "multicast": "assumed"}
    said = read_launch("sglang serve some/unknown-model --tp 8", sglang="0.5.9", gpu="h200", link="nvlink")
    assert said.groups["tp"].facts["full_nvlink"].origin == "given"
    assert not any(text.startswith(("GPU", "link")) for text in said.assumed)


def test_a_models_config_on_disk_is_read_and_a_broken_one_is_an_error(tmp_path: pathlib.Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    line = f"python -m sglang.launch_server --model-path {tmp_path} --tp 2"
    model = read(line).model
    assert model is not None and model.layers == 2
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="model"):
        read(line)


def test_every_setting_has_an_origin_and_every_implied_one_a_reason() -> None:
    for sglang in ("0.4.4", "0.5.9", "0.5.18", "0.5.23"):
        server = read(f"{DEEPSEEK} --speculative-algorithm NEXTN --dp 8 --enable-dp-attention", sglang)
        for name, setting in server.args.items():
            assert setting.origin in ("given", "default", "implied"), name
            assert setting.reason or setting.origin != "implied", name


# -------------------------------------------------------------------------------------------------------------- a server on this machine


def _process(root: pathlib.Path, pid: int, words: list[str], env: dict[str, str]) -> None:
    folder = root / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (folder / "environ").write_bytes(b"".join(f"{name}={value}".encode() + b"\0" for name, value in env.items()))


def test_a_running_server_is_found_by_its_command_line(tmp_path: pathlib.Path) -> None:
    assert find_server(tmp_path) is None
    _process(tmp_path, 7, ["python", "notes about sglang.txt"], {})
    _process(tmp_path, 9, ["vim", "--sglang"], {})
    _process(tmp_path, 8, ["/usr/bin/python3", "-m", "sglang.launch_server", "--port=81", "--host", "0.0.0.0", "--tp", "4"],
             {"SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7", "API_TOKEN": "x"})  # fmt: skip
    found = find_running(tmp_path)
    assert found is not None
    assert (found.pid, found.url) == (8, "http://127.0.0.1:81")
    assert dict(found.env) == {"SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert find_server(tmp_path) == "http://127.0.0.1:81"
    assert read(found.launch).groups["tp"].world_size == 4


def test_flags_are_parsed_once_for_a_release_and_stay_apart() -> None:
    assert parse_flags(["--tp", "2"], "0.5.9").args == {"tp_size": 2}
    assert parse_flags([], "0.5.9").args == {}
