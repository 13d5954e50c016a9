"""The picture of a recording: every call that is on record is in it or counted, alarms always, replays as counted at the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_rings import ring_folder, server  # noqa: F401 # the fixture
from ring_writer import RingWriter
from test_report_picture import contrast

import sglang_probe as probe
from sglang_probe import InputError
from sglang_probe._live.recording import read_recording
from sglang_probe._report.theme import DARK, LIGHT
from sglang_probe._show.recorded import _MARKS

pytest.importorskip("matplotlib", reason="the pictures' tests need what draws them: the extra notebook")


def points(axes: Any) -> list[tuple[float, float]]:
    from matplotlib.collections import PathCollection

    return [tuple(point) for one in axes.collections if isinstance(one, PathCollection) for point in one.get_offsets().data]


def legend(figure: Any) -> str:
    found = figure.legends[0]
    return "\n".join([found.get_title().get_text(), *(text.get_text() for text in found.get_texts())])


@pytest.mark.parametrize("dark", [False, True])
def test_the_recording_that_ships_is_drawn_whole_with_units_words_and_replays(dark: bool) -> None:
    recording = probe.read_recording(example=True)
    figure = recording.picture(dark=dark)
    *ranks, graphs = figure.axes
    for axes, worker in zip(ranks, recording.workers, strict=True):
        drawn = points(axes)
        assert len(drawn) == 261 and {size for _, size in drawn} == {int(size) for size in worker.recent["nbytes"]}
        assert axes.get_ylabel() == "bytes of a call" and f"rank {worker.rank}" in axes.get_title(loc="left")
        assert min(second for second, _ in drawn) >= 0
    assert "seconds since the first record" in ranks[-1].get_xlabel()
    assert [round(bar.get_width()) for bar in graphs.patches] == [2040, 697, 153, 0]
    assert [text.get_text() for text in graphs.texts][-1] == "17 calls, NEVER REPLAYED"
    for words in ("522 records", "custom, eager", "custom, captured", "custom, warmup", "torch_distributed, eager"):
        assert words in legend(figure)
    assert "ALARM" not in legend(figure).replace("0 alarms", "")
    data, meta = figure._repr_png_()
    assert data.startswith(b"\x89PNG") and len(data) < 60_000 and "57 x torch_distributed, eager" in meta["alt"]
    ground = (DARK if dark else LIGHT).ground
    assert figure.get_facecolor()[:3] == pytest.approx([int(ground[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def test_every_alarm_is_ringed_however_many_calls_there_are_and_what_is_left_out_is_counted(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        for i in range(2_000):
            ring.put(1, nbytes=4096, path="custom", expected="quick" if i % 701 == 5 else "custom")

    server(folder, 1, fill, slots=4096)
    recording = read_recording()
    figure = recording.picture()
    words = legend(figure)
    (axes, *_) = figure.axes
    rings = [one for one in axes.collections if one.get_label().startswith("ALARM")]
    alarms = sum("alarm" in row["flags"] for row in recording.named(recording.workers[0]))
    assert alarms == 3 and [len(one.get_offsets()) for one in rings] == [alarms]
    drawn = len(points(axes)) - alarms
    assert drawn < 700 and f"{2_000 - drawn:,} calls are not drawn" in words


def test_ranks_beyond_four_are_counted_and_a_path_that_nobody_saw_has_a_mark(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(3, nbytes=64, path="custom")
        ring.put(1, nbytes=0, path="", expected="custom")

    server(folder, 6, fill)
    figure = read_recording().picture()
    assert len(figure.axes) == 4 and "not drawn: 2 more ranks" in legend(figure) and "path not seen, eager" in legend(figure)


@pytest.mark.parametrize("dark", [False, True])
def test_every_mark_can_be_seen_on_its_ground(folder: Path, dark: bool) -> None:
    from matplotlib.colors import to_hex

    def fill(ring: RingWriter, rank: int) -> None:
        graph = ring.graph("bs 4", replays=1)
        for i, path in enumerate(probe.Path):
            ring.put(1, nbytes=1024 << i, path=path.value)
            ring.put(1, nbytes=1024 << i, path=path.value, phase="captured", graph=graph)

    server(folder, 1, fill)
    ground = (DARK if dark else LIGHT).ground
    marks = read_recording().picture(dark=dark).axes[0].collections
    assert len(marks) == 2 * len(probe.Path)
    for mark in marks:
        assert contrast(to_hex(mark.get_edgecolor()[0]), ground) >= 3, mark.get_label()


def test_every_path_has_a_mark_of_its_own() -> None:
    assert set(_MARKS) == set(probe.Path) and len(set(_MARKS.values())) == len(_MARKS)


def test_a_recording_of_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="holds no record"):
        read_recording().picture()
