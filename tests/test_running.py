"""`sglang-probe step` with nothing given: the server that runs here, with its own environment, even while it does not answer yet."""

from __future__ import annotations

import json

import pytest

from sglang_probe import cli, launch
from sglang_probe._server.url import Info

LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"


def test_with_nothing_given_a_server_that_runs_here_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = launch.Running(7, LAUNCH, "http://127.0.0.1:9", {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"})
    monkeypatch.setattr(launch, "find_running", lambda: running)
    args = {"model_path": "meta-llama/Meta-Llama-3-70B", "tp_size": 8, "disable_cuda_graph": False}
    monkeypatch.setattr("sglang_probe._server.url.fetch_info", lambda url, *_: Info(args, "0.5.12", f"url {url}"))
    for env, backend in ((), "v1"), (("--env", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=1"), "V2"):
        status = cli.main(["step", "--gpu", "h100", "--json", *env])
        step = json.loads(capsys.readouterr().out)
        assert status == 0 and {call["backend"] for call in step["calls"]} == {backend}
        assert any("process 7" in note and "127.0.0.1:9" in note for note in step["notes"])


def test_a_server_that_does_not_answer_yet_is_read_from_its_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = launch.Running(7, LAUNCH, "http://127.0.0.1:9", {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"})
    monkeypatch.setattr(launch, "find_running", lambda: running)
    status = cli.main(["step", "--gpu", "a100", "--sglang", "0.5.12", "--json"])
    out, err = capsys.readouterr()
    step = json.loads(out)
    assert (status, err, step["model"]) == (0, "", "DeepSeek-V3")
    assert {call["backend"] for call in step["calls"]} == {"v1"}
    assert any("by its command line" in note and "no server answers" in note for note in step["notes"])
