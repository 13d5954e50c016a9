"""A result's own page as something that rich prints. Called by __init__.py.

Invariant: the same words as the command of the result prints, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._show.page import Block, Line, to_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass(frozen=True)
class Printed:
    """For ``console.print``, which wraps it to its width; ``str`` is plain text, unwrapped, for whatever is no terminal."""

    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return to_text(self.blocks)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        from .._show.page import _rich_parts as rich_parts

        for i, block in enumerate(self.blocks):
            if i and not (isinstance(block, Line) and isinstance(self.blocks[i - 1], Line)):
                yield Text("")
            yield from rich_parts(block, options.max_width)
