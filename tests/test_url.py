"""A running server's own words, from a small HTTP server that answers as SGLang does, and from ones that do not."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_probe import InputError
from sglang_probe._server.url import fetch_info, read_info, using_key
from sglang_probe.launch import read_url

INFO: dict[str, Any] = {
    "model_path": "deepseek-ai/DeepSeek-V3",
    "tp_size": 8,
    "dp_size": 1,
    "ep_size": 1,
    "nnodes": 1,
    "disable_custom_all_reduce": False,
    "enable_flashinfer_allreduce_fusion": True,
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "max_running_requests": 48,
    "cuda_graph_bs": [1, 2, 48],
    "cuda_graph_max_bs": 48,
    "disable_cuda_graph": False,
    "version": "0.5.9",
    "internal_states": [{"memory_usage": {}}],
}
Answer = Callable[[str], tuple[int, bytes]]
KEY = "s3cret"


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """A server on a free port of this machine; answer(path) is (status, body)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            if status == 401 and self.headers.get("Authorization") == f"Bearer {KEY}":
                status, body = 200, json.dumps(INFO).encode()
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", "file:///etc/hostname")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def only(path: str, info: object) -> Answer:
    return lambda asked: (200, json.dumps(info).encode()) if asked == path else (404, b"{}")


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_a_server_of_either_age_is_read(path: str) -> None:
    with serving(only(path, INFO)) as url:
        server = read_url(url, gpu="h200", link="nvlink")
        assert read_url(f"{url}/", gpu="h200", link="nvlink").args == server.args
        assert read_url(url.removeprefix("http://") + path, gpu="h200", link="nvlink").args == server.args
    assert (server.sglang, server.draft_tokens, server.captured_batches) == ("0.5.9", 4, (1, 2, 48))
    assert server.args["tp_size"].origin == "found" and "internal_states" not in server.args
    assert server.fusion.enabled and path in server.source


def test_the_servers_own_version_wins() -> None:
    with serving(only("/server_info", INFO)) as url:
        server = read_url(url, sglang="0.5.12", gpu="h200")
        assert server.sglang == "0.5.9" and "the server says 0.5.9: taken, though 0.5.12 was given" in server.notes
        assert not any("taken" in note for note in read_url(url, sglang="v0.5.9", gpu="h200").notes)
    with serving(only("/server_info", {**INFO, "version": None})) as url:
        assert read_url(url, sglang="0.5.12", gpu="h200").sglang == "0.5.12"
        with pytest.raises(InputError) as caught:
            read_url(url)
        assert caught.value.field == "sglang"


def test_a_version_that_nobody_knows_is_refused_not_guessed() -> None:
    with serving(only("/server_info", {**INFO, "version": "9.9.9"})) as url, pytest.raises(InputError) as caught:
        read_url(url)
    assert caught.value.field == "sglang"


def test_nobody_listening_says_what_to_do() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port}.*--log") as caught:
        read_url(f"http://127.0.0.1:{port}")
    assert caught.value.field == "url" and caught.value.remedy


def test_a_server_that_never_answers_is_given_up_after_the_time_limit() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(InputError, match="no server answers"):
            fetch_info(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.2)


def test_a_server_that_speaks_no_http_is_named() -> None:
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen()

        def answer() -> None:
            connection, _ = odd.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="no server answers.*SSH"):
            fetch_info(f"http://127.0.0.1:{odd.getsockname()[1]}", 2.0)
        thread.join()


def test_a_server_with_an_api_key_is_read_with_it_and_says_so_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_API_KEY", raising=False)
    with serving(lambda _: (401, b"{}")) as url:
        for wrong in (None, "other"):
            with pytest.raises(InputError, match=r"401.*--api-key.*SGLANG_API_KEY") as caught:
                read_url(url, gpu="h200", api_key=wrong)
            assert caught.value.field == "url"
        assert read_url(url, gpu="h200", api_key=KEY).sglang == "0.5.9"
        with using_key(KEY):
            assert read_url(url, gpu="h200").sglang == "0.5.9"
        monkeypatch.setenv("SGLANG_API_KEY", KEY)
        assert read_url(url, gpu="h200").sglang == "0.5.9"
        with pytest.raises(InputError) as caught:
            read_url(url, api_key="two\r\nHost: lines")
        assert caught.value.field == "api_key" and "lines" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 404, 500, 503])
def test_an_answer_that_is_no_servers_is_refused(status: int) -> None:
    with serving(lambda _: (status, b"{}")) as url, pytest.raises(InputError) as caught:
        read_url(url)
    assert caught.value.field == "url" and str(status) in caught.value.remedy


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "ftp://host",
        "file:///etc/passwd",
        "http://",
        "http://host:99999999",
        "http://host:0",
        "http://a b",
        "http://h\n/x",
        "x://y",
    ],
)
def test_an_address_that_is_none_is_refused_without_asking(url: str) -> None:
    with pytest.raises(InputError) as caught:
        read_url(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InputError) as caught:
        fetch_info("http://127.0.0.1:1", seconds)
    assert caught.value.field == "timeout_s"


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5).map(
            lambda x: json.dumps(x).encode()
        ),
    )
)
def test_any_answer_is_arguments_or_an_input_error(content: bytes) -> None:
    try:
        info = read_info(content, "http://h")
    except InputError as error:
        assert error.field == "url" and error.remedy
    else:
        assert "tp_size" in info.args


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*INFO, "attn_dp_size", "cuda_graph_config", "enable_dp_attention", "nnodes"]),
        st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3),
    )
)
def test_values_of_any_kind_are_a_server_or_an_input_error(values: dict[str, Any]) -> None:
    from sglang_probe._server.server import Machine, Sources, build_server, kept

    args = kept({**INFO, **values})
    try:
        server = build_server("0.5.9", Sources(args, "url", "found", resolved=True), Machine("h200", "nvlink"))
    except InputError as error:
        assert error.field and error.remedy
    else:
        assert server.draft_tokens >= 1
