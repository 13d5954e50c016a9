"""What a ring's header says of its process. The base of Ring, which looks at a file, and of _live's Worker, which is what one look found.

Invariant: whatever a damaged file says, an answer is a number or a text, and a clock can be added to 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping


class OfHeader:
    """Whose process it is, in words; ``header`` is all that the file's header has."""

    header: Mapping[str, int | str]

    @property
    def pid(self) -> int:
        return int(self.header["pid"])

    @property
    def rank(self) -> int:
        """-1: the process has not said."""
        return int(self.header["rank"])

    @property
    def world_size(self) -> int:
        """0: the process has not said."""
        return int(self.header["world_size"])

    @property
    def release(self) -> str:
        """Of SGLang, "" where it was not known."""
        return str(self.header["release"])

    @property
    def clock_ns(self) -> int:
        """What is added to CLOCK_MONOTONIC for nanoseconds since 1970, by the clocks' difference when the file was made."""
        clock = int(self.header["wall_ns"]) - int(self.header["mono_ns"])
        return clock if abs(clock) < 1 << 62 else 0

    def wall_ns(self, time_ns: int) -> int:
        """A time of a record (CLOCK_MONOTONIC) as nanoseconds since 1970."""
        return int(time_ns) + self.clock_ns
