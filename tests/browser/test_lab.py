"""Notebook 01 in a real browser: JupyterLab serves it, Chromium shows it, a toggle is clicked, and the page tells the right path.

    SP_BROWSER=1 pytest -s tests/browser       # what is missing here is then a failure; CI does this
    SP_SCREENSHOTS=FOLDER pytest tests/browser # keeps pictures of what was seen, in both themes

What is right is asked of the public function. Times are printed, and none is asserted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import lab
from notebook_outputs import NOTEBOOK

import sglang_probe as probe

_LACKING = lab.lacking()
if _LACKING and os.environ.get("SP_BROWSER") != "1":
    pytest.skip(_LACKING, allow_module_level=True)

LAUNCH = (
    "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --speculative-algorithm EAGLE3 "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
)
THEMES = ("JupyterLab Light", "JupyterLab Dark")
_CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
_LEAST = 4.5
"""WCAG 2, level AA."""


_WAITED = """
const [answer] = arguments;
document.addEventListener('pointerdown', (event) => { window.clicked = event.timeStamp; }, { capture: true, once: true });
new MutationObserver((_, seen) => { window.changed = performance.now(); seen.disconnect(); }).observe(answer, { childList: true });
"""


class Page:
    """The notebook in the browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **arguments: Any) -> None:
        script = "const [name, named, done] = arguments; jupyterapp.commands.execute(name, named).then(() => done(''), e => done(`${e}`))"
        assert self.driver.execute_async_script(script, name, arguments) == ""

    def open(self, address: str) -> None:
        self.driver.get(address.format(name=NOTEBOOK.name))
        ready = (
            "const shown = window.jupyterapp?.shell?.currentWidget;"
            "return !!shown?.context?.isReady && shown.sessionContext?.session?.kernel?.status === 'idle'"
        )
        lab.until(lambda: self.run(ready), "the notebook and its kernel are there")
        self.command("notebook:run-all-cells")

    def run_cell(self, words: str) -> Any:
        """Run the code cell that holds these words; the element of what it gave."""
        script = (
            "const notebook = jupyterapp.shell.currentWidget.content;"
            "const i = notebook.widgets.findIndex(c => c.model.type === 'code' && c.model.sharedModel.source.includes(arguments[0]));"
            "notebook.activeCellIndex = i; return notebook.widgets[i].outputArea.node"
        )
        node = self.run(script, words)
        self.command("notebook:run-cell")
        return node

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", theme=name)
        wanted = "true" if name == THEMES[0] else "false"
        looks = "return [document.body.dataset.jpThemeLight, getComputedStyle(document.body).backgroundColor].join()"
        seen: list[str] = []

        def settled() -> bool:
            seen.append(self.run(looks))
            return seen[-1].startswith(wanted) and seen[-3:] == [seen[-1]] * 3

        lab.until(settled, f"{name} is on")


class Toggles:
    """One box of toggles, fresh, with the answer under it."""

    def __init__(self, page: Page, words: str) -> None:
        self.page, self.words = page, words
        area = page.run_cell(words)
        last = "const all = arguments[0].querySelectorAll('.widget-vbox > .widget-html .widget-html-content');"
        self.answer = lab.until(lambda: page.run(f"{last} return all.length === 1 ? all[0] : null", area), f"the box of {words}")
        self.box = page.run("return arguments[0].closest('.widget-vbox')", self.answer)

    def control(self, label: str) -> Any:
        """The field itself, by the words beside it."""
        script = (
            "for (const one of arguments[0].querySelectorAll('.widget-inline-hbox')) {"
            "  const field = one.querySelector('select, input');"
            "  const words = [...one.querySelectorAll('label, span')].map(w => w.textContent.trim());"
            "  if (field && words.includes(arguments[1])) return field; }"
        )
        found = self.page.run(script, self.box, label)
        assert found is not None, f"no toggle {label!r} in the box of {self.words}"
        return found

    def choose(self, label: str, text: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.control(label)).select_by_visible_text(text)

    def told(self) -> str:
        return str(self.answer.text)

    def shows(self, result: Any) -> bool:
        """Whether the answer ends with this result, to the letter."""
        script = (
            "const wanted = document.createElement('div'); wanted.innerHTML = arguments[1];"
            "return arguments[0].innerHTML.endsWith(wanted.innerHTML)"
        )
        return bool(self.page.run(script, self.answer, result._repr_html_()))

    def wait_for(self, result: Any) -> None:
        try:
            lab.until(lambda: self.shows(result), f"{result!r} on the page", 20)
        except TimeoutError as error:
            raise AssertionError(f"{error}; there stands:\n{self.told()[:600]}") from None


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert not _LACKING, _LACKING
    folder = tmp_path_factory.mktemp("lab")
    (folder / "shown").mkdir()
    shutil.copy(NOTEBOOK, folder / "shown")
    with lab.jupyter_lab(folder) as address, lab.chromium(folder) as driver:
        page = Page(driver)
        page.open(address)
        yield page
    assert lab.left_running(folder) == {}


def keep(page: Page, name: str) -> None:
    """A picture, where pictures are asked for."""
    folder = os.environ.get("SP_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.driver.save_screenshot(str(Path(folder) / f"{name.replace(' ', '_')}.png"))


def step(launch: str = LAUNCH, **asked: Any) -> probe.Step:
    return probe.step(launch, **{"gpu": "rtx-pro-6000", "sglang": "0be30d4", **asked})


def test_the_notebook_ran_in_the_browser_without_an_error_and_left_no_cell_out(page: Page) -> None:
    script = (
        "return jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').map(c =>"
        " [c.model.executionCount, c.outputArea.model.toJSON().filter(o => ['error', 'stream'].includes(o.output_type))])"
    )
    cells = page.run(script)
    assert len(cells) >= 10 and all(count for count, _ in cells)
    assert [told for _, told in cells if told] == []


def test_a_click_on_the_piecewise_flag_shows_the_path_that_the_public_function_gives(page: Page) -> None:
    toggles = Toggles(page, "which_step(launch")
    start, flagged = step(), step(context="capture+piecewise")
    assert start.paths == {"pynccl_in_place": 123} and flagged.paths == {"pynccl_out_of_place": 123}
    toggles.wait_for(start)
    page.run(_WAITED, toggles.answer)
    toggles.control("piecewise flag").click()
    toggles.wait_for(flagged)
    assert "123 x pynccl_out_of_place" in toggles.told() and "rule piecewise_pynccl" in toggles.told()
    print(f"\nfrom the click to the answer on the page: {page.run('return window.changed - window.clicked'):.0f} ms")
    before = step(sglang="bba2fc4", context="capture+piecewise")
    assert before.paths == start.paths, "the commit before had no such rule"
    toggles.choose("SGLang", "bba2fc4")
    toggles.wait_for(before)
    toggles.choose("SGLang", "0be30d4")
    toggles.control("piecewise flag").click()
    toggles.wait_for(start)


def test_another_machine_shows_another_path_and_the_cost_that_was_measured_on_it(page: Page) -> None:
    toggles = Toggles(page, "which_step(launch")
    toggles.choose("GPU", "h200")
    toggles.choose("ranks", "2")
    wanted = step(f"{LAUNCH} --tp 2", gpu="h200")
    assert "custom" in wanted.paths and wanted.costs is not None and wanted.costs.device.origins == ("shipped",)
    toggles.wait_for(wanted)
    assert "shipped: 2x NVIDIA H200 over NVLink" in toggles.told()


def test_what_cannot_be_is_told_in_words_where_the_answer_stood(page: Page) -> None:
    toggles = Toggles(page, "which_step(launch")
    toggles.choose("link", "xgmi")
    with pytest.raises(probe.InputError) as refused:
        step(link="xgmi")
    lab.until(lambda: str(refused.value) in toggles.told(), "the reason", 20)
    assert "Traceback" not in page.run("return arguments[0].closest('.jp-Cell').innerText", toggles.box)
    toggles.choose("link", "pcie")
    toggles.wait_for(step(link="pcie"))


def test_a_proof_and_a_call_are_toggled_as_well(page: Page) -> None:
    proof = Toggles(page, "can_be_reached(")
    proof.wait_for(probe.reach("piecewise_pynccl", sglang="0be30d4", piecewise=False))
    proof.choose("piecewise", "any")
    proof.wait_for(probe.reach("piecewise_pynccl", sglang="0be30d4"))
    call = Toggles(page, "which_path(")
    assert "torch_distributed:" in call.told()
    call.choose("context", "piecewise_replay")
    lab.until(lambda: "rule piecewise_pynccl" in call.told(), "the rule", 20)


# ------------------------------------------------------------------------------------------------------------------------ legible


@pytest.mark.parametrize("theme", THEMES)
def test_every_word_of_the_toggles_and_their_answers_is_legible(page: Page, theme: str) -> None:
    page.theme(theme)
    for words in ("which_step(launch", "can_be_reached(", "which_path("):
        toggles = Toggles(page, words)
        page.run("arguments[0].scrollIntoView()", toggles.box)
        keep(page, f"{theme} {words.partition('(')[0]}")
        arrows = page.run(
            "return [...arguments[0].querySelectorAll('select')].map(s => getComputedStyle(s).backgroundImage)", toggles.box
        )
        assert arrows and all("stroke='%23888'" in arrow for arrow in arrows), "ipywidgets' own arrow is black in both themes"
        found = page.run(_CONTRAST, toggles.box)
        assert len(found) > 20
        assert [f"{one['contrast']:.2f}: {one['text']}" for one in found if one["contrast"] < _LEAST] == []
        assert [one["text"] for one in found if one["cut"]] == []
        print(f"\n{theme}, {words}): {len(found)} texts, least contrast {min(one['contrast'] for one in found):.1f}")


@pytest.mark.parametrize("theme", THEMES)
def test_every_word_of_the_other_cells_is_legible(page: Page, theme: str) -> None:
    page.theme(theme)
    script = (
        "return [...document.querySelectorAll('.jp-OutputArea-output .jp-RenderedHTML, .jp-OutputArea-output.jp-RenderedHTML')]"
    )
    areas = page.run(script)
    assert len(areas) >= 5
    faint = [one for area in areas for one in page.run(_CONTRAST, area) if one["contrast"] < _LEAST]
    assert faint == []
    pictures = page.run("return [...document.querySelectorAll('.jp-OutputArea-output img')]")
    assert len(pictures) >= 2
    for i, picture in enumerate(pictures):
        page.run("arguments[0].scrollIntoView()", picture)
        keep(page, f"{theme} picture {i}")


def test_contrast_is_reckoned_as_wcag_does(page: Page) -> None:
    """Pairs whose ratio is known; one is faint by its opacity alone, one is cut."""
    made = (
        "const box = document.createElement('div'); box.style.background = '#fff'; box.innerHTML = arguments[0];"
        "document.body.append(box); return box"
    )
    rows = (
        ("color:#777", 4.48),
        ("color:#767676", 4.54),
        ("color:#000", 21.0),
        ("color:#000;opacity:.5", 3.98),
        ("color:#fff;background:#000", 21.0),
        ("color:#fff;background:rgba(0,0,0,.5)", 3.98),
        ("color:#000;width:9px;overflow:hidden", 21.0),
    )
    box = page.run(made, "".join(f'<p style="{style}">several words</p>' for style, _ in rows))
    found = page.run(_CONTRAST, box)
    page.run("arguments[0].remove()", box)
    assert [one["contrast"] for one in found] == pytest.approx([ratio for _, ratio in rows], abs=0.03)
    assert [one["cut"] for one in found] == [False] * 6 + [True]


# ------------------------------------------------------------------------------------------------------------------------- the end


def test_a_failure_leaves_no_process_behind(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    with pytest.raises(ZeroDivisionError), lab.jupyter_lab(tmp_path), lab.chromium(tmp_path):
        there = " ".join(lab.left_running(tmp_path).values())
        assert "jupyterlab" in there and "chromedriver" in there and "user-data-dir" in there
        raise ZeroDivisionError
    assert lab.left_running(tmp_path) == {}
