"""A report in a real browser without a network: it opens, nothing is asked for, and it reads in both themes, on paper too.

Skipped where there is no Chromium. Invariant: what the browser painted is looked at, not what the file promises.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
import zlib
from collections import Counter
from pathlib import Path

import pytest
from browser.lab import ALONE
from test_report import check_harmless
from test_report_pages import LAUNCH

import sglang_probe as probe
from sglang_probe import cli
from sglang_probe._report.theme import DARK, LIGHT, Theme
from sglang_probe._show.paths import STYLES

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), "")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (Debian: apt install chromium)")
_LIMIT_S = 120
_FILL = re.compile(rb"([\d.]+) ([\d.]+) ([\d.]+) rg\b")
"""A fill's colour in a page of PDF."""
_ITS_OWN = re.compile(r"https?://(?!fonts\.|ajax\.|storage\.)[\w.-]*\.(?:google|googleapis|gvt1|gstatic|chromium)\.(?:com|org)/")
"""What Chromium asks for by itself, whatever page is open; not what pages load from the same owner."""


def chromium(profile: Path, page: Path, *options: str) -> str:
    """What it prints. Every name is refused before it is resolved, so that a network that is there is none."""
    own = ("--headless", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}")
    command = [CHROMIUM, *ALONE, *own, *options, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LIMIT_S).stdout


def asked(profile: Path, page: Path) -> set[str]:
    """Addresses that were asked for on account of this page."""
    log = profile.with_suffix(".net")
    chromium(profile, page, f"--log-net-log={log}", "--dump-dom")
    text = log.read_text(encoding="utf-8", errors="replace")
    urls = set(re.findall(r'"url":"((?:https?|ftp|wss?)://[^"]+)"', text))
    assert '"events"' in text
    return {url for url in urls if not _ITS_OWN.match(url)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert cli.main(["step", "--launch", LAUNCH, "--gpu", "h200", "--sglang", "0.5.9", "--report", str(path)]) == 0
    return path


def test_it_opens_and_says_the_answer_without_a_network(report: Path, tmp_path: Path) -> None:
    found = check_harmless(chromium(tmp_path / "profile", report, "--dump-dom"))
    assert "2 x custom, 14,336 bytes (14 KiB) each; 121 more are fused away" in found.text
    assert len(found.all("svg")) == 1 and "2 calls of 14 KiB (121 more fused)" in found.text
    assert json.loads(found.scripts[0])["result"]["paths"] == {"custom": 2}


def test_nothing_is_asked_for_and_the_browser_s_log_would_show_it(report: Path, tmp_path: Path) -> None:
    assert "https://" in report.read_text(), "it names a source, which is text"
    assert asked(tmp_path / "one", report) == set()
    page = re.sub(r"<meta http-equiv[^>]*>", "", report.read_text())
    leaking = tmp_path / "leaking.html"
    loaded = {"https://pictures.invalid/x.png", "https://fonts.googleapis.com/css?family=X"}
    picture, font = sorted(loaded, reverse=True)
    leaking.write_text(page.replace("<main>", f'<main><img src="{picture}"><link rel="stylesheet" href="{font}">'))
    assert asked(tmp_path / "two", leaking) == loaded


@pytest.mark.parametrize(("theme", "scheme"), [(LIGHT, 1), (DARK, 0)], ids=["light", "dark"])
def test_it_is_painted_in_the_reader_s_theme_with_words_and_picture(
    report: Path, tmp_path: Path, theme: Theme, scheme: int
) -> None:
    from PIL import Image

    shot = tmp_path / "shot.png"
    options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1000,900", f"--screenshot={shot}")
    chromium(tmp_path / "profile", report, *options)
    image = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    found = image.getcolors(1 << 22) or []
    colours: Counter[tuple[int, ...]] = Counter({tuple(colour): n for n, colour in found if isinstance(colour, tuple)})
    whole = image.width * image.height
    assert colours.most_common(1)[0][0] == rgb(theme.ground) and colours[rgb(theme.ground)] > whole / 2
    assert colours[rgb(theme.ink)] > 500, "letters"
    for path in (probe.Path.CUSTOM, probe.Path.PYNCCL_IN_PLACE, probe.Path.TORCH_DISTRIBUTED):
        assert colours[rgb(STYLES[path][0])] > whole / 200, path
    assert colours[rgb((DARK if theme is LIGHT else LIGHT).ink)] < 5_000, "no letter has the other theme's ink"


def test_on_paper_it_is_light_whatever_the_reader_s_theme(report: Path, tmp_path: Path) -> None:
    paper = tmp_path / "report.pdf"
    chromium(tmp_path / "profile", report, "--blink-settings=preferredColorScheme=0", f"--print-to-pdf={paper}")
    fills: Counter[tuple[int, ...]] = Counter()
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", paper.read_bytes(), re.S):
        with contextlib.suppress(zlib.error):  # a font, or what else is not text
            fills.update(tuple(round(255 * float(v)) for v in found) for found in _FILL.findall(zlib.decompress(stream)))
    assert fills[rgb(LIGHT.ink)] > 20 and fills[rgb(STYLES[probe.Path.CUSTOM][0])] >= 4
    assert not fills[rgb(DARK.ground)] and not fills[rgb(DARK.ink)]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))
