"""What workers count, for Prometheus: as text, and as a collector that looks anew at each scrape. Called by recording.py and `top --serve`.

Names follow Prometheus's rules: one prefix, base units, ``_total`` of what only grows. A worker is told apart by ``rank`` and ``pid``.
Invariant: every number is a counter of the ring's own tables, which nothing overwrites, or a state; nothing here is made of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._types import ProbeUnavailable
from .counts import Kind
from .top import Top
from .worker import Worker

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "sglang_probe_"
_WORKER = ("rank", "pid")
_CALL = ("group", "entry", "path", "kernel", "expected", "phase", "dtype", "op")
# (name, what it is, how it is read of a kind)
_KINDS: tuple[tuple[str, str, Callable[[Kind], float]], ...] = (
    ("calls", "All-reduces that were entered; captured ones once, when they were captured", lambda kind: kind.calls),
    (
        "executed_calls",
        "All-reduces that ran: eager ones, and captured ones as often as their graph was replayed",
        lambda kind: kind.executed,
    ),
    ("tensor_bytes", "Bytes of the tensors of all-reduces that ran", lambda kind: kind.executed_bytes),
    ("host_seconds", "Time on the host of the calls where it was taken", lambda kind: kind.host_ns / 1e9),
    ("device_seconds", "Time on the device of the sampled calls", lambda kind: kind.device_ns / 1e9),
    ("device_timed_calls", "Calls in device_seconds", lambda kind: kind.timed),
)
_COUNTS: tuple[tuple[str, str, Callable[[Worker], int]], ...] = (
    ("records", "Records that were written to the ring", lambda worker: worker.records),
    ("alarms", "Calls whose path was not the expected one", lambda worker: worker.alarms),
    ("hook_failures", "Times that the hook itself failed and stood aside", lambda worker: int(worker.header["failures"])),
    (
        "lost_calls",
        "Calls that found no room in the table of kinds: the counters above lack them",
        lambda worker: int(worker.header["kinds_lost"]),
    ),
)


def text(top: Top) -> bytes:
    """The text exposition format. Raises ProbeUnavailable without prometheus_client."""
    from_registry = _client("exposition").generate_latest
    found: bytes = from_registry(_registry(lambda: top))
    return found


def serve(look: Callable[[], Top], port: int, address: str = "127.0.0.1") -> Callable[[], None]:
    """Answers scrapes on that port by a look at each; call what comes back to end it. Raises ProbeUnavailable, OSError."""
    server, thread = _client("exposition").start_http_server(port, address, _registry(look))

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return end


def _client(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"prometheus_client.{module}")
    except ImportError:
        raise ProbeUnavailable("prometheus_client is not installed: pip install prometheus_client") from None


def _registry(look: Callable[[], Top]) -> Any:
    registry = _client("registry").CollectorRegistry()
    registry.register(_Collector(look))
    return registry


class _Collector:
    def __init__(self, look: Callable[[], Top]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would look once more only to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        top, core = self._look(), _client("core")
        yield from _states(top, core)
        for name, about, read in _KINDS:
            metric = core.CounterMetricFamily(PREFIX + name, about, labels=(*_WORKER, *_CALL, "result"))
            for labels, value in _sums(top, read).items():
                metric.add_metric(labels, value)
            yield metric
        for name, about, count in _COUNTS:
            metric = core.CounterMetricFamily(PREFIX + name, about, labels=_WORKER)
            for worker in top.workers:
                metric.add_metric(_of(worker), count(worker))
            yield metric
        yield from _graphs(top, core)


def _of(worker: Worker) -> list[str]:
    return [str(worker.rank) if worker.rank >= 0 else "unknown", str(worker.pid)]


def _sums(top: Top, read: Callable[[Kind], float]) -> dict[tuple[str, ...], float]:
    """By all labels: kinds that differ in what is no label are one series."""
    found: dict[tuple[str, ...], float] = {}
    for worker in top.workers:
        for kind in worker.kinds:
            labels = (*_of(worker), *(getattr(kind, label) or "unknown" for label in _CALL), _result(kind.flags))
            found[labels] = found.get(labels, 0) + read(kind)
    return found


def _result(flags: Iterable[str]) -> str:
    """What became of a call: several flags are one label."""
    told = [flag for flag in flags if flag in ("dry", "nothing", "raised")]
    return "_".join(told) or "done"


def _states(top: Top, core: Any) -> Iterator[Metric]:
    info = core.InfoMetricFamily(PREFIX + "worker", "A process that records", labels=_WORKER)
    up = core.GaugeMetricFamily(PREFIX + "worker_up", "1: the process lives", labels=_WORKER)
    recording = core.GaugeMetricFamily(PREFIX + "recording", "1: its next call is recorded", labels=_WORKER)
    last = core.GaugeMetricFamily(
        PREFIX + "last_call_timestamp_seconds", "When its last recorded call began, seconds since 1970", labels=_WORKER
    )
    for worker in top.workers:
        info.add_metric(
            _of(worker), {"sglang": worker.release or "unknown", "world_size": str(worker.world_size), "state": worker.state}
        )
        up.add_metric(_of(worker), worker.is_alive)
        recording.add_metric(_of(worker), worker.state == "recording")
        if len(worker.recent):
            last.add_metric(_of(worker), worker.wall_ns(int(worker.recent["time_ns"].max())) / 1e9)
    agree = core.GaugeMetricFamily(
        PREFIX + "ranks_agree", "1: all ranks make the same calls in the same order", labels=("group",)
    )
    groups: dict[str, bool] = {}
    for group in top.agreement.groups:
        groups[group.group] = groups.get(group.group, True) and group.agrees
    for name, agrees in groups.items():
        agree.add_metric([name], agrees)
    yield from (info, up, recording, last, agree)


def _graphs(top: Top, core: Any) -> Iterator[Metric]:
    labels = (*_WORKER, "graph", "label")
    replays = core.CounterMetricFamily(PREFIX + "graph_replays", "Replays of a CUDA graph", labels=labels)
    captured = core.GaugeMetricFamily(
        PREFIX + "graph_captured_calls", "All-reduces that were captured into a CUDA graph", labels=labels
    )
    for worker in top.workers:
        for graph in worker.graphs:
            own = [*_of(worker), str(graph.number), graph.label]
            replays.add_metric(own, graph.replays)
            captured.add_metric(own, graph.captured)
    yield from (replays, captured)
