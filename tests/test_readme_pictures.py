"""README's pictures say what the code says today, refer to nothing outside, and are those of the command that stands above them.

Invariant: words and colours are compared, not bytes: another version of what draws them may place a line elsewhere.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import readme_pictures as pictures

from sglang_probe import cli, read_report

pytest.importorskip("matplotlib", reason="the pictures' tests need what draws them: the extra report")

TEXT = pictures.README.read_text(encoding="utf-8")
_STALE = "python tests/readme_pictures.py draws them anew"


@pytest.fixture(scope="module")
def drawn() -> dict[str, bytes]:
    return pictures.pictures(TEXT)


@pytest.mark.parametrize("name", pictures.NAMES)
def test_a_committed_picture_says_what_the_code_draws(name: str, drawn: dict[str, bytes]) -> None:
    said, colours = pictures.facts((pictures.IMAGES / f"{name}.svg").read_bytes())
    assert (said, colours) == pictures.facts(drawn[name]), _STALE
    assert len(said) >= 20 and len(colours) >= 4


@pytest.mark.parametrize("name", pictures.NAMES)
def test_a_committed_picture_is_small_and_refers_to_nothing_outside(name: str) -> None:
    path = pictures.IMAGES / f"{name}.svg"
    root = ET.fromstring(path.read_bytes())
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "image", "foreignObject", "a", "feImage"} and path.stat().st_size < 40_000
    for element in root.iter():
        for attribute, value in element.attrib.items():
            assert not attribute.rpartition("}")[2].startswith("on")
            if attribute.rpartition("}")[2] in ("href", "src"):
                assert value.startswith("#"), value
    # what is left of addresses are names of name spaces, which nobody loads
    assert {found.split("/")[2] for found in re.findall(r"\w+://[^\s\"'<>]+", path.read_text())} == {"www.w3.org"}
    assert not re.search(r"@font-face|@import|url\((?!#)", path.read_text())


def test_readme_shows_both_with_words_for_who_cannot_see_them() -> None:
    found = pictures.blocks(TEXT)
    assert set(found) == {"launch", "screen"} and TEXT.count("<!-- picture: ") == 2
    for what, body in found.items():
        assert body == pictures.block(what, TEXT), _STALE
    assert TEXT.index("<!-- picture: launch -->") < TEXT.index("## Install"), "it stands where people look first"
    shown = set(re.findall(r"notebooks/images/([\w.-]+)", TEXT))
    assert shown == {path.name for path in pictures.IMAGES.iterdir()} == {f"{name}.svg" for name in pictures.NAMES}
    assert "asked for: 2 calls of 14 KiB (121 more fused)" in found["launch"] and "522 records" in found["screen"]


def test_the_command_above_the_picture_writes_a_report_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drawn: dict[str, bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*pictures.report_command(TEXT), "--report", "report.html"]) == 0
    capsys.readouterr()
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    svg = re.search(r"<svg.*</svg>", page, re.S)
    assert svg is not None and read_report("report.html")["kind"] == "step"
    said = [element.text for element in ET.fromstring(svg[0]).iter() if element.tag == "text"]
    assert [text for text in said if text] == pictures.facts(drawn["launch-light"])[0]


def test_the_screen_shows_what_the_command_prints_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(pictures.SCREEN.split()) == 0
    printed = {" ".join(line.replace("! ", "").split()) for line in capsys.readouterr().out.splitlines()}
    said, _ = pictures.facts((pictures.IMAGES / "screen.svg").read_bytes())
    title, command, *lines = said
    assert (title, command) == ("sglang-probe", f"$ sglang-probe {pictures.SCREEN}") and len(lines) > 18
    for line in lines:
        assert " ".join(line.split()) in printed, line
