"""What a report says, and what it must not: secrets and folders stay here, the headline has the sentence's own words.

Without these a report that is attached to an issue would say whose machine it was, or another word than the terminal did.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_report import experiment, explained, numbers

from sglang_probe import _report
from sglang_probe._explain.types import Explanation, Word
from sglang_probe._report import text
from sglang_probe._verdict.verdict import verdict

__all__ = ["explained"]  # a fixture


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("serve --api-key sesame --tp 8", "serve --api-key (withheld) --tp 8"),
        ("serve --api-key='open sesame' x", "serve --api-key=(withheld) x"),
        ("HF_TOKEN=hush OPENAI_API_KEY=hush run", "HF_TOKEN=(withheld) OPENAI_API_KEY=(withheld) run"),
        ("curl https://me:hush@host/x", "curl https://(withheld)@host/x"),
        ("-H 'Authorization: Bearer abcdefghijk'", "-H 'Authorization: Bearer (withheld)'"),
        ("use hf_abcdefghijklmnopqrst now", "use (withheld) now"),
        ("--tokens 1,4,64 --tokenizer-path m --max-total-tokens 9", "--tokens 1,4,64 --tokenizer-path m --max-total-tokens 9"),
        ("MAX_TOKENS=9 NCCL_SHM_DISABLE=1", "MAX_TOKENS=9 NCCL_SHM_DISABLE=1"),
    ],
)
def test_what_looks_like_a_secret_is_withheld_and_nothing_else(given: str, kept: str) -> None:
    result = experiment(given, value=given)
    assert text.shown(given) == kept
    for told in (_report.page(result), _report.html(result), _report.markdown(result)):
        assert "hush" not in told and "sesame" not in told
    assert _report.document(result)["result"]["texts"][0] == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/alice/runs/old.jsonl: custom, captured", "old.jsonl: custom, captured"),
        ("/home/alice/my runs/old.csv, column tok_s", "old.csv, column tok_s"),
        ("shipped, ~/runs/2x_h200.jsonl.gz (2026)", "shipped, 2x_h200.jsonl.gz (2026)"),
        ("../runs/old.csv", "old.csv"),
        ("sglang-probe verdict /home/alice/a.csv '/home/alice/b.csv'", "sglang-probe verdict a.csv 'b.csv'"),
        ("runs/old.csv", "runs/old.csv"),
        ("https://example.org/alice/old.csv", "https://example.org/alice/old.csv"),
        ("/opt/nccl/lib/libnccl.so.2", "/opt/nccl/lib/libnccl.so.2"),
        ("tok/s, GB/s", "tok/s, GB/s"),
    ],
)
def test_a_report_names_files_and_no_folders(given: str, kept: str) -> None:
    assert text.shown(given) == text.plain(given) == kept


def test_the_origin_of_an_arm_is_a_files_name_in_all_that_is_given_away() -> None:
    result = numbers(origin="/home/alice/runs/old.csv")
    for page in (_report.page(result), _report.html(result), _report.markdown(result)):
        assert "old.csv" in page and "alice" not in page
    assert result.to_dict()["a"]["origin"] == "/home/alice/runs/old.csv"


def test_spread_and_the_runs_that_would_settle_it_stand_in_the_table() -> None:
    undecided = verdict([78.4, 83.2, 89.2, 94.1], [80.0, 86.0, 92.0, 98.5], unit="tok/s")
    assert undecided.runs_needed and undecided.runs_as_seen and undecided.spread
    page = _report.markdown(replace(undecided, runs_needed=38, runs_as_seen=12, spread=0.1))
    assert "| 10.5 % | 38 in all; 12 if it is as large as it looks |" in page
    assert "| 38 in all |" in _report.markdown(replace(undecided, runs_needed=38, runs_as_seen=38))
    assert "| - |" in _report.markdown(numbers())


def test_the_headline_has_the_words_of_the_sentence(explained: Explanation) -> None:
    for sentence in ("CANNOT (the other way): these routes make a step shorter", "NOTHING TO EXPLAIN yet: one run an arm"):
        word, head = ("CANNOT_TOO_SMALL", "CANNOT (the other way)") if "CANNOT" in sentence else ("NOTHING_TO_EXPLAIN", "")
        head = head or "NOTHING TO EXPLAIN yet"
        page = _report.page(replace(explained, word=Word(word), sentence=sentence))
        assert f'<span class="word">{head}</span>' in page and "CANNOT TOO SMALL" not in page


def test_a_bug_report_tells_waiting_apart(explained: Explanation) -> None:
    assert "Waiting for the last rank is in none of these figures, and no change of path causes it: " in _report.markdown(
        explained
    )
