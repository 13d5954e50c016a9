"""Correctness, then speed, of every path on the GPUs of this machine: a short table, and all figures as JSON with `--out FILE`.

    python tests/bench/bench_gpu.py                   everything, about six minutes on two GPUs
    python tests/bench/bench_gpu.py correct speed     some parts; names are those of PARTS below

Every part checks before it times, in the same processes. Nothing here asserts a time: targets stand beside the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

import sglang_probe as probe
from sglang_probe import gpu

if gpu.available():  # these two lie beside the GPU tests, which use them too, and need torch
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
    import floor
    import ranks

KIB, MIB = 1 << 10, 1 << 20
NCCL_SIZES = [16, 64, 1 * KIB, 16 * KIB, 256 * KIB, 1 * MIB, 16 * MIB, 256 * MIB]
V1_SIZES = [16, 64, 1 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB - 16, 512 * KIB, 1 * MIB, 4 * MIB, 8 * MIB]
V2_SIZES = [*V1_SIZES, 16 * MIB]
LIMIT_SIZES = [16, 48, 1 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 16 * MIB]
SPEED_SIZES = [1 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB]
V1, V2 = {"sglang": "0.5.9"}, {"sglang": "0.5.16"}
NCCL_IN = {"sglang": "0.5.9", "custom.disabled": True, "pynccl.disabled": False}
NCCL_OUT = {"sglang": "0.5.9", "custom.disabled": True, "piecewise": True}
RESET = {"sglang": "0.5.9", "custom.disabled": False, "pynccl.disabled": True, "piecewise": False, "kernel": ""}
V2_KERNELS = ["one_shot_push", "one_shot_pull", "two_shot_pull", "two_shot_push"]


def options_of(name: str) -> dict[str, Any]:
    base = dict(RESET)
    if name in ("one_shot", "two_shot", "limit"):
        return {**base, **V1, "kernel": name}
    if name in V2_KERNELS:
        return {**base, **V2, "kernel": name}
    return {**base, **(NCCL_IN if name == "pynccl_in_place" else NCCL_OUT)}


def sizes_of(name: str) -> list[int]:
    table = {"limit": LIMIT_SIZES, "one_shot": V1_SIZES, "two_shot": V1_SIZES}
    return NCCL_SIZES if name.startswith("pynccl") else table.get(name, V2_SIZES)


PATHS = ["pynccl_in_place", "pynccl_out_of_place", "one_shot", "two_shot", *V2_KERNELS, "limit"]


def attempt(what: str, call: Callable[[], Any], failures: list[str]) -> Any:
    """One path that fails must not hide the others."""
    try:
        return call()
    except Exception as error:  # every kind is a finding, and is printed
        failures.append(f"{what}: {type(error).__name__}: {error}")
        print(f"FAILED {failures[-1]}", flush=True)
        return None


class Bench:
    def __init__(self, world_size: int, max_bytes: int, quick: bool) -> None:
        self.world_size, self.max_bytes, self.quick = world_size, max_bytes, quick
        self.failures: list[str] = []
        self.figures: dict[str, Any] = {}
        self._group: Any = None

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120) -> list[Any]:
        if self._group is None or self._group.closed:
            self._group = probe.LocalGroup(self.world_size, device="gpu", max_bytes=self.max_bytes, timeout_s=30)
        result: list[Any] = self._group.run(function, *args, timeout_s=timeout_s)
        return result

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    def correct(self) -> None:
        for name in PATHS:
            for captured in (False, True):
                sizes = [s for s in sizes_of(name) if not self.quick or s in (16, KIB, 64 * KIB, MIB)]
                args = (options_of(name), sizes, ["bf16"] if self.quick else ["bf16", "fp16", "fp32"], captured)
                rows = attempt(f"{name} captured={captured}", lambda args=args: self.run(ranks.check, *args), self.failures)
                if rows is None:
                    continue
                wrong = sum(r["wrong"] for rank in rows for r in rank)
                checked = sum(r["checked"] for rank in rows for r in rank)
                equal = all(a["sums"] == b["sums"] for other in rows[1:] for a, b in zip(rows[0], other, strict=True))
                seen = sorted({f"{r['path']} {r['kernel']}".strip() for rank in rows for r in rank})
                worst = max(r["worst"] for rank in rows for r in rank)
                self.figures[f"correct {name} {'captured' if captured else 'eager'}"] = {
                    "checked": checked,
                    "wrong": wrong,
                    "bit_equal": equal,
                    "ran": seen,
                    "worst": worst,
                }
                print(
                    f"{name:20} {'captured' if captured else 'eager':9} {checked:>12,} elements, {wrong} wrong, "
                    f"ranks {'bit-equal' if equal else 'DIFFER'}, worst {worst:.2g}; ran {', '.join(seen)}",
                    flush=True,
                )
                for r in (r for rank in rows for r in rank if r["wrong"]):
                    print(f"    WRONG {r['dtype']} {r['nbytes']} bytes: {r['wrong']} of {r['checked']}", flush=True)

    def speed(self) -> None:
        names = ["one_shot", "two_shot", *V2_KERNELS, "limit", "pynccl_in_place", "pynccl_out_of_place"]
        for kind, sleep in (("captured", 0), ("interleaved", 3000)):
            for name in names:
                sizes = [s for s in SPEED_SIZES if name != "limit" or s <= max(LIMIT_SIZES)]
                args = (options_of(name), sizes, "bf16", 100, 9, sleep)
                rows = attempt(f"{kind} {name}", lambda args=args: self.run(ranks.captured_latency, *args), self.failures)
                self._table(kind, name, rows)
        for name in names:
            sizes = [s for s in SPEED_SIZES if name != "limit" or s <= max(LIMIT_SIZES)]
            args2 = (options_of(name), sizes)
            self._table(
                "eager", name, attempt(f"eager {name}", lambda args=args2: self.run(ranks.eager_latency, *args), self.failures)
            )

    def _table(self, kind: str, name: str, rows: list[Any] | None) -> None:
        if rows is None:
            return
        worst = [max((rank[i] for rank in rows), key=lambda r: r["us"]) for i in range(len(rows[0]))]
        self.figures[f"{kind} {name}"] = worst
        host = " host " + " ".join(f"{r['host_us']:.1f}" for r in worst) if "host_us" in worst[0] else ""
        flaws = " WRONG" if any(r.get("right") is False for rank in rows for r in rank) else ""
        print(
            f"{kind:11} {name:20} " + " ".join(f"{r['nbytes'] // KIB}K:{r['us']:.2f}" for r in worst) + host + flaws, flush=True
        )

    def floor(self) -> None:
        """How far `limit` and v1 are from what nothing can undercut."""
        for name in ("one_shot", "limit"):
            sizes = [s for s in SPEED_SIZES if name != "limit" or s <= max(LIMIT_SIZES)]
            args = (options_of(name), sizes)
            rows = attempt(f"floor {name}", lambda args=args: self.run(ranks.captured_latency, *args), self.failures)
            below = attempt(f"floor {name}", lambda name=name, sizes=sizes: self.run(floor.floor, name, sizes), self.failures)
            if rows is None or below is None:
                continue
            self.figures[f"floor {name}"] = {"measured": below, "calls": rows}
            trip = max(b["round_trip_us"] for b in below)
            for i, nbytes in enumerate(sizes):
                empty = max(b["empty_us"][nbytes] for b in below)
                wire = nbytes / floor.LINK_GB_S / 1000
                took = max(rank[i]["us"] for rank in rows)
                least = empty + trip + wire
                print(
                    f"floor {name:10} {nbytes // KIB:>5} KiB: {took:.2f} us; empty kernel {empty:.2f} + round trip {trip:.2f} + "
                    f"bytes {wire:.2f} = {least:.2f}, distance {took - least:+.2f}",
                    flush=True,
                )

    def host(self) -> None:
        """Host time of a call: through the Coordinator, by its path alone, by the library alone."""
        for name in PATHS:
            rows = attempt(f"host {name}", lambda name=name: self.run(ranks.host_cost, options_of(name), KIB), self.failures)
            if rows is not None:
                self.figures[f"host {name}"] = rows
                whole, path, bare = (max((r[k] for r in rows if r[k] is not None), default=None) for k in range(3))
                alone = "" if bare is None else f", ncclAllReduce alone {bare:.2f}"
                print(f"host {name:20} {whole:.2f} us a call, its path alone {path:.2f}{alone}", flush=True)

    def stress(self) -> None:
        for name in ["one_shot", "two_shot", *V2_KERNELS, "limit"]:
            for nbytes, launches in ((1 * KIB, 2_000 if self.quick else 150_000), (64 * KIB, 1_000 if self.quick else 20_000)):
                args = (options_of(name), nbytes, launches, 4000)
                rows = attempt(f"stress {name} {nbytes}", lambda args=args: self.run(ranks.stress, *args), self.failures)
                if rows is None:
                    continue
                self.figures[f"stress {name} {nbytes}"] = rows
                wrong, done = sum(r["wrong"] for r in rows), rows[0]["launches"]
                print(
                    f"stress {name:16} {nbytes // KIB:>3} KiB {done:,} launches, {wrong} wrong (rate under {3 / done:.1e} at 95 %), "
                    f"counted by the GPUs {[r['counted_by_the_gpu'] for r in rows]}, {rows[0]['seconds']:.1f} s",
                    flush=True,
                )

    def backtoback(self) -> None:
        for name in PATHS:
            rows = attempt(
                f"10,000 {name}",
                lambda name=name: self.run(ranks.many_launches, options_of(name), 16 * KIB, 10_000),
                self.failures,
            )
            if rows is not None:
                self.figures[f"back to back {name}"] = rows
                print(
                    f"10,000 back to back {name:20} {sum(r['wrong'] for r in rows)} wrong, {rows[0]['seconds']:.2f} s", flush=True
                )


PARTS = ("correct", "speed", "floor", "host", "stress", "backtoback")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few sizes, one dtype, few launches")
    parser.add_argument("--out")
    given = parser.parse_args()
    for part in given.parts:
        if part not in PARTS:
            parser.error(f"no part {part!r}; there are {', '.join(PARTS)}")
    if not gpu.available():
        print(f"no GPU: {gpu.available()}", file=sys.stderr)
        return 2
    for module in (floor, ranks):
        cloudpickle.register_pickle_by_value(module)  # the rank processes do not have that folder on their path
    bench = Bench(given.world_size, 16 * MIB, given.quick)
    start = time.monotonic()
    for part in given.parts or PARTS:
        print(f"-- {part}", flush=True)
        getattr(bench, part)()
    bench.close()
    print(f"{len(bench.failures)} failures, {time.monotonic() - start:.0f} s, {os.cpu_count()} cores")
    if given.out:
        Path(given.out).write_text(json.dumps({"figures": bench.figures, "failures": bench.failures}, indent=1, default=str))
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
