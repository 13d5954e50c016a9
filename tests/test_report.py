"""Reports: what a result says reaches the page, the bug report and the file whole, and nothing that stands in a label becomes markup.

Invariant: results are made by the library's own functions, or hold what users may write into them.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe import InputError, Provenance, _report
from sglang_probe._ab.compare import Difference
from sglang_probe._ab.noise import NoiseResult
from sglang_probe._ab.result import AbResult
from sglang_probe._ab.runs import Run
from sglang_probe._explain.explain import explain
from sglang_probe._explain.types import Explanation
from sglang_probe._report import bug_report, text
from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.verdict import Verdict, verdict

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><svg onload=alert(1)>",
    "</style></title><b>--><!-- ]]> &lt;i&gt;",
    "' onmouseover='alert(1)",
    "$\\frac{1}{0$ $x_1$ \\$",
    "_hidden |pipe| `code` **bold** [link](https://example.org/x) @somebody #12 GH-7",
    "\x1b[31mred\x00\u202etxt.exe\r\nsecond line",
    "\ud800 lone, \u4f60\u597d \U0001f600",
)


def numbers(label: str = "a", other: str = "b", origin: str = "given") -> Verdict:
    """The case with an outlier."""
    a = Arm(label, tuple((value,) for value in (4023.5, 4019.9, 3380.1, 4002.0, 4090.0)), "tok/s", origin)
    return verdict(a, Arm(other, ((4384.6,), (4466.1,), (4471.0,)), "tok/s", origin))


def _utf8(words: str) -> str:
    """As provenance and runs keep it."""
    return words.encode("utf-8", "backslashreplace").decode()


def experiment(text: str = "python bench.py", label: str = "a", value: str = "INFO", **changes: Any) -> AbResult:
    """An AbResult as a file's reader would make it."""
    found = numbers(label)
    provenance = Provenance(
        version="0.1.0",
        driver="580.1",
        gpus=({"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}),
        links=(("self", "NV18"), ("NV18", "self")),
        nccl={"version": "2.28.9", "path": "/lib/libnccl.so.2"},
        env={"NCCL_DEBUG": value},
        missing={"torch": "it was not imported"},
    )
    runs = tuple(
        Run(i, arm, i // 2, process)  # type: ignore[arg-type]
        for i, (arm, process) in enumerate([*(("a", p) for p in found.a.processes), *(("b", p) for p in found.b.processes)])
    )
    made = AbResult(
        verdict=found,
        sentence=found.sentence,
        reason=found.reason,
        stopped_by="runs",
        stopped="all runs are done",
        labels=(label, "b"),
        texts=(text, "python other.py"),
        runs=(*runs, Run(len(runs), "b", 9, (), failed="it ended with status 1", output=_utf8(text))),
        blocks=3,
        differences=(Difference("variables", "NCCL_DEBUG", f"NCCL_DEBUG is {value} in a", "set it alike", refuses=False),),
        unit="tok/s",
        provenance=provenance,
    )
    return replace(made, **changes)


def noisy() -> NoiseResult:
    return NoiseResult(experiment(), "5 runs an arm resolve 9 %", "because they differ", 5, 0.08, 0.07, 0.1, 0.09)


@pytest.fixture(scope="module")
def explained() -> Explanation:
    return explain(example=True)


@pytest.fixture(params=["verdict", "ab", "noise", "explanation"])
def result(request: pytest.FixtureRequest, explained: Explanation) -> Any:
    """One of each kind."""
    make: dict[str, Callable[[], Any]] = {
        "verdict": numbers,
        "ab": experiment,
        "noise": noisy,
        "explanation": lambda: explained,
    }
    return make[request.param]()


class Reader(HTMLParser):
    """What a browser would make of a page: elements, attributes, texts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.comments: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.texts).append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


_HTML = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "section",
    "h1",
    "h2",
    "p",
    "div",
    "span",
    "ul",
    "li",
    "figure",
}
_HTML |= {
    "figcaption",
    "details",
    "summary",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "pre",
    "code",
    "footer",
    "script",
}
_SVG = {"svg", "g", "defs", "path", "use", "text", "tspan", "clippath", "rect", "pattern", "desc"}
_NAMES = {"href", "src", "action", "data", "poster", "srcset", "formaction", "ping", "background", "cite", "manifest"}


def check_harmless(page: str) -> Reader:
    """That there is nothing in it that loads, runs or leaves."""
    found = Reader(page)
    assert {tag for tag, _ in found.elements} <= _HTML | _SVG
    for tag, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name.rpartition(":")[2] in _NAMES:
                assert value.startswith("#"), (tag, name, value)
            assert not re.search(r"url\((?!#)|@import|expression\(|javascript:", value), (tag, name, value)
    for style in re.findall(r"<style>(.*?)</style>", page, re.S):
        assert not re.search(r"url\(|@import|http", style)
    assert all(attributes.get("type") == "application/json" for attributes in found.all("script"))
    return found


# ------------------------------------------------------------------------------------------------------------------- every kind


def test_every_kind_of_result_gives_a_page_that_loads_nothing_and_reads_back_as_it_was(result: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert result.write(str(path)) == str(path)
    found = check_harmless(path.read_text(encoding="utf-8"))
    assert result.sentence.partition(": ")[2] in found.text and result.reason in found.text
    read = _report.read(path)
    assert read == _report.document(result)
    assert read["result"] == json.loads(json.dumps(result.to_dict())) and read["format"] == "sglang_probe report"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_notebook_shows_sentence_reason_picture_and_the_figures_on_request(result: Any) -> None:
    shown = result._repr_html_()
    found = check_harmless(shown)
    assert result.sentence in found.text and result.reason in found.text
    assert len(found.all("svg")) == 1 and found.all("details") and "open" not in found.all("details")[0]
    assert not found.all("style") and not found.all("script"), "a fragment must not change the notebook around it"


def test_the_same_result_gives_the_same_page(result: Any) -> None:
    assert _report.page(result) == _report.page(result)


def test_the_terminal_shows_what_the_command_prints(result: Any) -> None:
    from rich.console import Console

    for why in (False, True):
        plain = str(_report.terminal(result, why=why))
        assert plain.splitlines()[0] == result.sentence
        out = io.StringIO()
        Console(file=out, width=70).print(_report.terminal(result, why=why))
        assert re.sub(r"\W", "", result.reason) in re.sub(r"\W", "", out.getvalue())
        assert max(map(len, out.getvalue().splitlines())) <= 70
    assert len(str(_report.terminal(result, why=True))) > len(str(_report.terminal(result)))


def test_what_is_no_result_is_refused_by_name() -> None:
    for function in (_report.html, _report.page, _report.markdown, _report.figure, _report.terminal):
        with pytest.raises(InputError, match="result='dict'"):
            function({})


# ------------------------------------------------------------------------------------------------------------------------ escaping


def hostile_results(evil: str) -> Iterator[Any]:
    """Wherever a user's own words can stand."""
    yield numbers(evil, f"b {evil}", evil)
    yield experiment(evil, evil, _utf8(evil), notes=(evil,), stopped=evil, sentence=f"UNDECIDED: {evil}")


@pytest.mark.parametrize("evil", HOSTILE, ids=range(len(HOSTILE)))
def test_no_word_of_a_user_becomes_markup_anywhere(evil: str) -> None:
    for result in hostile_results(evil):
        for page in (_report.page(result, command=f"sglang-probe verdict {evil}"), _report.html(result)):
            found = check_harmless(page)
            assert text.shown(evil) in found.text
            assert not found.comments and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", page)


def test_what_an_explanation_says_is_escaped_too(explained: Explanation) -> None:
    evil = HOSTILE[0]
    changed = replace(explained, sentence=evil, reason=evil, launch=evil, findings=(evil,), missing=(evil,), warnings=(evil,))
    changed = replace(changed, bounds=tuple(replace(one, what=evil, machine=evil, why=evil) for one in explained.bounds))
    found = check_harmless(_report.page(changed))
    assert found.text.count(evil) >= 6


def test_the_policy_of_the_page_forbids_scripts_and_loading() -> None:
    page = _report.page(numbers())
    metas = Reader(page).all("meta")
    policy = next(one["content"] for one in metas if one.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert page.index("Content-Security-Policy") < page.index("<style") < page.index("<script")


@given(st.text(max_size=40))
def test_markdown_reads_as_the_text_that_it_was(words: str) -> None:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse("before\n\n" + bug_report.line(f"x{words}"))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"] * 2
    read = "".join(child.content for child in tokens[4].children or ())
    assert {child.type for child in tokens[4].children or ()} <= {"text", "text_special"}
    assert read.replace("\u2060", "").rstrip() == text.shown(f"x{words}").replace("\u2060", "").rstrip()


# ------------------------------------------------------------------------------------------------------------------------ Markdown


def test_a_bug_report_is_short_and_its_tables_parse(result: Any) -> None:
    from markdown_it import MarkdownIt

    told = _report.markdown(result, command="sglang-probe ab ...")
    tokens = MarkdownIt("commonmark").enable("table").parse(told)
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") >= 2 and "html_block" not in kinds and "heading_open" not in kinds
    assert not any(child.type == "html_inline" for token in tokens for child in token.children or ())
    rows = [i for i, kind in enumerate(kinds) if kind == "tr_open"]
    cells = [sum(kind in ("td_open", "th_open") for kind in kinds[i : kinds.index("tr_close", i)]) for i in rows]
    assert min(cells) >= 2
    assert kinds[:3] == ["paragraph_open", "inline", "paragraph_close"] and told.startswith("**")
    assert any(token.type == "fence" and token.content == "sglang-probe ab ...\n" for token in tokens)
    assert len(told) < 8_000 and "sglang_probe | 0." in told


@pytest.mark.parametrize("evil", HOSTILE, ids=range(len(HOSTILE)))
def test_no_word_of_a_user_breaks_a_bug_report(evil: str) -> None:
    from markdown_it import MarkdownIt

    plain = MarkdownIt("commonmark").enable("table").parse(_report.markdown(experiment("x", "x", "x")))
    for command in (evil, f"````\n{evil}"):
        told = _report.markdown(experiment(command, evil, "x"))
        tokens = MarkdownIt("commonmark").enable("table").parse(told)
        assert [token.type for token in tokens] == [token.type for token in plain]
        inline = {child.type for token in tokens for child in token.children or ()}
        assert inline <= {"text", "text_special", "strong_open", "strong_close"}
        assert not re.search(r"(?<!\w)@\w|(?<!\w)#\d", re.sub(r"(`{3,})\n.*?\n\1", "", told, flags=re.S))


# -------------------------------------------------------------------------------------------------------------------------- secrets


# -------------------------------------------------------------------------------------------------------------- for all who read


def test_a_page_can_be_read_aloud_and_in_the_dark(result: Any) -> None:
    page = _report.page(result)
    found = Reader(page)
    assert found.all("html") == [{"lang": "en"}] and len(found.all("h1")) == 1 and len(found.all("title")) == 2
    assert all(head.get("scope") in ("col", "row") for head in found.all("th")) and found.all("th")
    picture = found.all("svg")[0]
    told = {attributes.get("id") for tag in ("title", "desc") for attributes in found.all(tag)} - {None}
    assert picture["role"] == "img" and set(picture["aria-labelledby"].split()) == told
    assert "@media (prefers-color-scheme: dark)" in page and {"name": "color-scheme", "content": "light dark"} in found.all(
        "meta"
    )
    assert found.all("figcaption")


def test_the_page_names_machine_versions_and_commands() -> None:
    page = Reader(_report.page(experiment("python bench.py --size 42KiB"), command="sglang-probe ab x")).text
    for words in (
        "2x NVIDIA H200",
        "580.1",
        "2.28.9",
        "NV18",
        "NCCL_DEBUG=INFO",
        "it was not imported",
        "measured with sglang_probe",
    ):
        assert words in page
    assert "python bench.py --size 42KiB" in page and "sglang-probe ab x" in page and "it ended with status 1" in page


def test_figures_that_came_without_a_machine_say_so() -> None:
    assert "given without the machine" in Reader(_report.page(numbers())).text


def test_without_matplotlib_everything_but_the_picture_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name == "matplotlib" or name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = numbers()
    for page in (_report.html(result), _report.page(result)):
        found = check_harmless(page)
        assert "pip install 'sglang_probe[report]'" in found.text and not found.all("svg")
        assert result.reason in found.text and found.all("table")
    assert "| 4,020 tok/s |" in _report.markdown(result)
    result.write(str(tmp_path / "x.html"))
    assert _report.read(tmp_path / "x.html")["result"]["a"]["processes"][2] == [3380.1]
    with pytest.raises(Exception, match="no matplotlib here: pip install"):
        _report.figure(result)
