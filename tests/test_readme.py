"""README against the code: outputs are real, tables are whole, names and files exist, commands can be copied."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import measured
import pytest
import readme_blocks

import sglang_probe
from sglang_probe import Measurement, _core, cli
from sglang_probe._show.page import Table

TEXT = readme_blocks.README.read_text(encoding="utf-8")
BLOCKS = list(readme_blocks.blocks(TEXT))
OFFLINE = [block for block in BLOCKS if not block.what.startswith("conform")]


@pytest.mark.parametrize("block", OFFLINE, ids=lambda block: f"{block.kind}: {block.what}")
def test_what_readme_shows_is_what_a_reader_gets(block: readme_blocks.Block) -> None:
    assert block.body == readme_blocks.expected(block.kind, block.what), "python tests/readme_blocks.py writes it anew"


@pytest.mark.network
def test_the_numbers_of_conform_are_those_of_the_command() -> None:
    found = [block for block in BLOCKS if block.what.startswith("conform")]
    assert found
    for block in found:
        assert block.body == readme_blocks.expected(block.kind, block.what), "python tests/readme_blocks.py writes it anew"


def test_every_marked_block_is_found_so_that_none_goes_unchecked() -> None:
    assert len(BLOCKS) == len(re.findall(r"<!-- (?:output|shows|table): ", TEXT)) >= 5
    assert {block.what for block in BLOCKS if block.kind == "table"} == {"paths", "rules"}
    assert any(block.what.startswith("step --example") for block in BLOCKS)


def test_every_cell_that_readme_runs_shows_what_it_prints_and_no_time_of_one_run() -> None:
    shows = [block for block in BLOCKS if block.kind == "shows"]
    assert sorted(block.what for block in shows) == sorted(readme_blocks.cells(TEXT)) and shows
    assert any("... us" in block.body for block in shows)  # the mask masks
    assert not any(re.search(r"\d us\b", block.body) for block in shows)
    assert readme_blocks.shown("print('took 1,234.5 us, 12 us and 7 uses')") == "```text\ntook ... us, ... us and 7 uses\n```\n"


def test_every_path_and_rule_is_explained() -> None:
    for name in [*(n for n, _ in _core.PATHS), *(n for n, _ in _core.RULES if n)]:
        assert f"| `{name}` |" in TEXT, name


def test_the_two_commands_are_fenced_blocks_of_one_line() -> None:
    for name in ("example", "tests"):
        found = re.search(rf"<!-- command: {name} -->\n```bash\n(.*?)\n```\n", TEXT, re.DOTALL)
        assert found and "\n" not in found[1], name
    assert "sglang-probe step --example" in TEXT


def test_names_that_readme_promises_exist() -> None:
    section = TEXT[TEXT.index("## Public names") : TEXT.index("\n`sglang` is a release")]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)", row[0])}
    commands = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert names <= set(sglang_probe.__all__), names - set(sglang_probe.__all__)
    parser = cli.build_parser()
    known = next(action for action in parser._actions if action.dest == "command").choices
    assert known is not None and commands == set(known)


def test_files_that_readme_names_exist(root: Path) -> None:
    table = TEXT[TEXT.index("## Where things live") : TEXT.index("## Paths")]
    for name in re.findall(r"`([\w./*]+)`", table):
        if "/" not in name and "." not in name:
            continue
        folders = (root, root / "csrc" / "core", root / "sglang_probe")
        assert any(any(folder.glob(name.rstrip("/"))) for folder in folders), name
    diagram = TEXT[TEXT.index("## The path of one call") : TEXT.index("## Where things live")]
    for name in re.findall(r"[\w/*]+\.(?:py|c)\b", diagram):
        assert any(any(folder.glob(name)) for folder in (root, root / "csrc" / "core", root / "sglang_probe")), name


def test_the_python_example_runs_and_says_what_its_comments_say() -> None:
    found = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert found
    names: dict[str, object] = {}
    exec(found[1], names)  # noqa: S102 # our own README
    decision = names["decision"]
    assert isinstance(decision, sglang_probe.Decision)
    assert str(decision.path) == "torch_distributed"
    assert [stop.when for stop in decision.blocked_by["custom"].stops] == ["setup", "call"]


def test_the_section_on_measuring_leads_from_a_sound_machine_to_a_cost() -> None:
    section = TEXT[TEXT.index("## Measure it") : TEXT.index("### Under torchrun")]
    fence = section[section.index("```console") :].split("```")[1]
    steps = re.findall(r"^\$ sglang-probe (preflight|bench --quick|bench --out \S+|step .*--costs \S+)", fence, re.MULTILINE)
    assert [step.split()[0] for step in steps] == ["preflight", "bench", "bench", "step"] and "--quick" in steps[1]
    assert steps[2].split()[-1] == steps[3].split()[-1]  # the file that was written is the one that is used


def test_the_example_of_a_bench_has_the_form_that_a_bench_prints_and_names_its_machine() -> None:
    found = re.search(r"\n\n([^`]*)\n\n<!-- example: bench -->\n```console\n(.*?)```\n", TEXT, re.DOTALL)
    assert found
    for words in ("an example", "two cores of an AMD EPYC", "a CPU's times", "differ at every run"):
        assert words in " ".join(found[1].replace("*", "").split())
    command, *lines = found[2].splitlines()
    parser = cli.build_parser()
    args = parser.parse_args(shlex.split(command.removeprefix("$ sglang-probe ").partition(" | ")[0]))
    sizes, targets = args.sizes.split(","), args.targets.split(",")
    assert lines[0].startswith(f"{2 * 5 * len(sizes) * len(targets)} cells on 2 CPU ranks, 5 process sets, ")
    assert lines[0].endswith(f"written to {args.out}") and lines[1].startswith("AMD EPYC; sglang_probe ")
    times: dict[str, Any] = {"device_us": [[0.5]] * 2, "host_us": [[0.5]] * 2, "elapsed_us": [[0.5]] * 2}
    (table,) = (b for b in Measurement((measured.cell(**times),), None).page() if isinstance(b, Table))
    assert re.split(r"\s{2,}", lines[3].strip()) == list(table.columns)
    assert len(lines[4:]) == 2 * len(sizes) * len(targets)
