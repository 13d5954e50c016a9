"""Whatever the public API gives shows itself in a notebook: escaped, without a colour of its own, legible on light and on dark pages.

Invariant: the public names are walked, so that a class which is new is missing here until it has a row in MADE.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import measured
import pytest
from test_report import HOSTILE, Reader, check_harmless, experiment, noisy, numbers
from test_report_picture import contrast

import sglang_probe as probe
from sglang_probe import _report
from sglang_probe._conform.conform import Report
from sglang_probe._live.control import Recorders
from sglang_probe._live.worker import Worker
from sglang_probe._preflight.result import Preflight
from sglang_probe._report.theme import DARK, LIGHT
from sglang_probe._run.outcome import Outcome
from sglang_probe._show.against_result import Against

EVIL = HOSTILE[:4]
LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"


def server(evil: str) -> probe.Server:
    found = probe.read_launch(LAUNCH, gpu="h200", sglang="0.5.9")
    args = {**found.args, "served_model_name": probe.Setting(evil, "given", evil), "api_key": probe.Setting("hush", "given")}
    return replace(
        found,
        source=evil,
        notes=(evil,),
        assumed=(evil,),
        contradictions=(evil,),
        args=args,
        env={"NCCL_ALGO": evil, "HF_TOKEN": "hush"},
    )


def group(evil: str) -> probe.Group:
    return probe.Group.make(world_size=8, arch=90, full_nvlink=True).with_facts("given", evil, multicast=True)


def decision(evil: str) -> probe.Decision:
    return replace(probe.route(43008, group(""), sglang="0.5.9"), not_conformed=(evil,), kernel=evil)


def bands(evil: str) -> probe.Bands:
    found = probe.bands(group(""), sglang="0.5.9")
    return replace(found, sglang=evil, bands=tuple(replace(band, decision=decision(evil)) for band in found.bands))


def recording(evil: str) -> probe.Recording:
    found = probe.read_recording(example=True)
    top = replace(found.top, findings=tuple(replace(one, text=evil) for one in found.findings))
    return replace(found, top=top)


def worker(evil: str) -> Worker:
    found = probe.read_recording(example=True).workers[0]
    return replace(found, header={**found.header, "release": evil})


def agreement(evil: str) -> probe.Agreement:
    found = probe.read_recording(example=True).agreement
    return replace(found, graphs=(evil,))


def measurement(evil: str) -> probe.Measurement:
    return probe.Measurement((measured.cell(note=evil, kernel=evil, release=evil),), provenance(evil), notes=(evil,))


def provenance(evil: str) -> probe.Provenance:
    return replace(measured.PROVENANCE, host=evil, env={"NCCL_ALGO": evil, "HF_TOKEN": "hush"})


def explanation(evil: str) -> probe.Explanation:
    return replace(probe.explain(example=True), sentence=evil, reason=evil, findings=(evil,))


def checked(evil: str) -> probe.Checked:
    from sglang_probe._trace.types import Seen

    return probe.Checked(Seen.SEEN, evil, (evil,), (evil,), (), findings=(evil,), notes=(evil,), warnings=(evil,))


def local_group(evil: str) -> probe.LocalGroup:
    """Not started: a group that ended shows why, which may be any error's text."""
    found = object.__new__(probe.LocalGroup)
    found.__dict__.update(
        _ranks=_Ended(evil), _toggles={}, _group=group(evil), why=evil, device="host", world_size=2, sglang="0.5.9"
    )
    return found


class _Ended:
    def __init__(self, why: str) -> None:
        self.closed, self.pids = why, ()

    def close(self) -> None:
        pass


MADE: dict[str, Callable[[str], Any]] = {
    "AbResult": lambda evil: experiment(evil, evil),
    "Agreement": agreement,
    "Arm": lambda evil: probe.Arm(evil, ((1.0,), (2.0,)), "us", evil),
    "Band": lambda evil: bands(evil).bands[0],
    "Bands": bands,
    "Bisect": lambda evil: probe.Bisect(evil, evil, 3, (), "0.5.9", (evil,), (evil,)),
    "Blocked": lambda evil: probe.Blocked(evil, (evil,), (), (probe.Stop(evil, "call", evil),)),
    "Call": lambda evil: probe.Call(43008, site=evil),
    "Cell": lambda evil: measured.cell(note=evil, kernel=evil),
    "Checked": checked,
    "Command": lambda evil: probe.Command(
        ["echo", evil, "--api-key", "hush"], env={"NCCL_ALGO": evil, "HF_TOKEN": "hush"}, label=evil
    ),
    "Decision": decision,
    "Diff": lambda evil: replace(probe.diff("bba2fc4", "0be30d4"), a=evil, notes=(evil,), assumed=(evil,)),
    "Explanation": explanation,
    "Fact": lambda evil: probe.Fact(1, "given", evil),
    "Finding": lambda evil: probe.Finding("outlier", evil, evil),
    "Fusion": lambda evil: probe.Fusion(True, evil, assumed=(evil,)),
    "Gate": lambda evil: probe.Gate(evil, "declines", (probe.Stop("size", "call", evil),), kernel=evil),
    "Group": group,
    "History": lambda evil: replace(probe.history(group=group(""), releases="0.5.8..0.5.10"), subject=evil, notes=(evil,)),
    "LocalGroup": local_group,
    "Matrix": lambda evil: probe.Matrix(evil, evil, (), (evil,)),
    "Measurement": measurement,
    "Model": lambda evil: replace(probe.load_model("DeepSeek-V3"), name=evil, source=evil),
    "NoiseResult": lambda evil: replace(noisy(), sentence=evil, reason=evil),
    "Provenance": provenance,
    "Reach": lambda evil: replace(probe.reach("quick", sglang="0.5.9"), target=evil, assumed=(evil,)),
    "Recording": recording,
    "Release": lambda evil: replace(probe.resolve("0.5.9"), name=evil, root=evil),
    "Server": server,
    "Setting": lambda evil: probe.Setting(evil, "given", evil),
    "Step": lambda evil: replace(probe.step(LAUNCH, gpu="h200", sglang="0.5.9"), model=evil, notes=(evil,), source=evil),
    "Stop": lambda evil: probe.Stop(evil, "call", evil),
    "Summary": lambda evil: measurement(evil).summary()[0],
    "Target": lambda evil: probe.Target("one_shot", size="42KiB", label=evil, env={"NCCL_ALGO": evil}),
    "Top": lambda evil: recording(evil).top,
    "Verdict": lambda evil: numbers(evil, f"b {evil}", evil),
    "Witness": lambda evil: probe.Witness(evil, decision(evil)),
    # What public functions give, or a result holds, and no public name has.
    "Against": lambda evil: Against("buffers", ("a", evil), (), (evil,), evil),
    "Preflight": lambda evil: Preflight(()),
    "Recorders": lambda evil: Recorders(probe.read_recording(example=True).workers, (), evil),
    "Report": lambda evil: Report(evil, None, None, notes=[evil]),
    "Worker": worker,
}
WITHOUT_WORDS = {"Preflight"}
"""Nothing of a user's stands in it."""


def public_classes() -> dict[str, type]:
    found = {name: getattr(probe, name) for name in probe.__all__}
    return {name: one for name, one in found.items() if inspect.isclass(one) and not issubclass(one, BaseException | enum.Enum)}


def test_every_public_class_shows_itself_and_is_tried_here() -> None:
    classes = public_classes()
    assert len(classes) > 35
    without = {name for name, one in classes.items() if not hasattr(one, "_repr_html_")}
    assert not without, "a class that inherits Shown (_shown.py) shows itself"
    assert set(classes) - {"Coordinator"} <= set(MADE), "give it a row in MADE"


def test_whatever_a_public_function_gives_shows_itself() -> None:
    given: set[str] = set()
    for function in (getattr(probe, name) for name in probe.__all__):
        if inspect.isfunction(function):
            given |= {*re.findall(r"\b[A-Z]\w+", str(inspect.signature(function).return_annotation))}
    assert {"Step", "Verdict", "Preflight", "Recorders", "Report", "Router"} <= given
    # one object of C, whose text is one line: it is asked millions of times and shown never
    assert given - {"None", "Any", "Router"} <= set(MADE), "give it a row in MADE"
    assert "\n" not in repr(probe.router(group(""), sglang="0.5.9"))


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
@pytest.mark.parametrize("name", MADE)
def test_it_is_escaped_and_says_what_it_was_given(name: str, evil: str) -> None:
    made = MADE[name](evil)
    shown = made._repr_html_()
    found = check_harmless(shown)
    assert not found.all("style") and not found.all("script") and not found.comments
    assert name in WITHOUT_WORDS or _report.text.shown(evil) in found.text
    assert "hush" not in shown, "a key is withheld"
    check_legible(shown)


def test_the_text_that_a_notebook_keeps_beside_a_servers_page_holds_no_key() -> None:
    made = server("")
    assert made.args["api_key"].value == made.env["HF_TOKEN"] == "hush"
    assert repr(made) == str(made) == "<Server: DeepSeek-V3, 4 groups, SGLang 0.5.9; read from >"


def test_a_coordinator_shows_what_runs_each_path() -> None:
    with probe.LocalGroup(1, device="host", sglang="0.5.9") as ranks:
        (shown,) = ranks.run(lambda c: c._repr_html_())
    found = check_harmless(shown)
    assert "Coordinator: rank 0 of 1 on CPU ranks, SGLang 0.5.9" in found.text and "torch_distributed" in found.text
    check_legible(shown)


def test_an_outcome_and_its_group_show_themselves_as_they_run() -> None:
    with probe.LocalGroup(1, device="host", sglang="0.5.9") as ranks:
        outcome = ranks.all_reduce(1024, timed=0)
        assert isinstance(outcome, Outcome)
        for shown in (ranks._repr_html_(), outcome._repr_html_()):
            assert "0.5.9" in check_harmless(shown).text
            check_legible(shown)


# ----------------------------------------------------------------------------------------------------------------------------- colours

_NEUTRAL = {"transparent", "none", "inherit", "currentColor", "currentcolor"}
_GREY = re.compile(r"rgba\(128,\s*128,\s*128,\s*[\d.]+\)")
_COLOURED = ("color", "background", "background-color", "fill", "stroke", "border-color")


def check_legible(html: str) -> None:
    """That every colour is the page's own, or reads on a light and on a dark page; and that nothing is too faint."""
    for tag, attributes in Reader(html).elements:
        styles = [part.partition(":")[::2] for part in attributes.get("style", "").split(";") if part.strip()]
        styles += [(name, attributes[name]) for name in ("fill", "stroke", "color", "bgcolor") if name in attributes]
        for name, value in ((name.strip().lower(), value.strip()) for name, value in styles):
            if name == "opacity":
                assert float(value) >= 0.7 or tag in ("path", "g", "rect", "use"), (tag, value)
            elif name in _COLOURED:
                assert value in _NEUTRAL or _GREY.fullmatch(value) or reads_on_both(value), (tag, name, value)
            elif name.startswith("border"):
                assert _GREY.search(value) or not re.search(r"#|rgb|\b(black|white|gr[ae]y)\b", value), (tag, value)


def reads_on_both(value: str) -> bool:
    """A colour, or the one that a variable of no page falls back to: 3:1 on either ground."""
    found = re.fullmatch(r"(?:var\(--sp-[a-z]+,\s*)?(#[0-9a-f]{6})\)?|url\(#[\w-]+\)", value)
    if found is None:
        return False
    return found[1] is None or all(contrast(found[1], theme.ground) >= 3 for theme in (LIGHT, DARK))


@pytest.mark.parametrize(
    "bad",
    [
        '<div style="color:#222222">x</div>',
        '<td style="background:white">x</td>',
        '<p style="opacity:.3">x</p>',
        '<text fill="#000000">x</text>',
        '<th style="border-bottom:1px solid #eee">x</th>',
    ],
)
def test_the_check_of_colours_sees_what_does_not_read_on_every_page(bad: str) -> None:
    with pytest.raises(AssertionError):
        check_legible(bad)
    check_legible('<div style="opacity:.7;border-bottom:1px solid rgba(128,128,128,.45)">x</div>')
