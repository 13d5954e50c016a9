"""Coordinator: SGLang's dispatch over real communicators, one rank of it. The C type calls; this names, checks and toggles.

Made by LocalGroup's rank processes, and by anybody who starts ranks otherwise. Invariant: nothing is decided here; every toggle goes
through one ``configure``, so that no call sees half of a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from .. import _core
from .._decision import Decision
from .._facts import DTYPES, pack_facts
from .._releases import Release, newest, resolve
from .._route import PATHS, check_group, context_bits, decide
from .._shown import Shown
from .._types import Call, FrozenMap, Group, InputError, Path, ProbeUnavailable
from .switches import KERNELS, Capture, Communicator, Custom, PythonPath, Settings

if TYPE_CHECKING:
    from .joining import Joined

_DTYPE_NAMES = tuple(DTYPES)
_DEVICES = ("host", "gpu")
_ATTRIBUTES = (
    "settings",
    "custom",
    "quick",
    "mscclpp",
    "torch_symm_mem",
    "pcie_ipc",
    "pynccl",
    "flashinfer",
    "captured_addresses",
)


class Coordinator(_core.Coordinator, Shown):
    """The dispatch over real communicators: toggle conditions, ``all_reduce(tensor)``, read the path and its cost.

    ``group`` holds the facts that gates read; by default a CUDA group of ``world_size`` ranks with full NVLink (assumed). ``board`` is
    the descriptor of the shared memory on which the ranks meet (``_core.board_create``; LocalGroup does it). ``device`` is ``host`` (CPU
    ranks over shared memory) or ``gpu`` (``ordinal`` says which). Joining is collective: every rank makes its Coordinator within
    ``timeout_s`` seconds, which is also the limit of each later wait. ``max_bytes`` sizes the buffers of the custom paths. ``exchange`` is
    how GPU ranks on several machines meet (``_gpu.exchange``); ``board`` is then of one rank, this process's own.

    Raises InputError for bad values, ProbeUnavailable where the device is not there, TimeoutError and ProbeError with rank and phase.
    """

    def __init__(
        self,
        group: Group | None = None,
        *,
        board: int,
        rank: int,
        world_size: int,
        device: str = "host",
        sglang: str | Release | None = None,
        ordinal: int = 0,
        timeout_s: float = 30.0,
        max_bytes: int = 16 << 20,
        nccl: str | None = None,
        exchange: Any = None,
    ) -> None:
        if device not in _DEVICES:
            raise InputError("device", device, f"give one of {', '.join(_DEVICES)}")
        if group is not None and not isinstance(group, Group):
            raise InputError("group", group, "give a Group, as Group.make(world_size=2, full_nvlink=True)")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= 86_400:
            raise InputError("timeout_s", timeout_s, "give seconds above 0, at most a day: every wait ends")
        for name, value in (
            ("board", board),
            ("rank", rank),
            ("world_size", world_size),
            ("ordinal", ordinal),
            ("max_bytes", max_bytes),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(name, value, "give a whole number")
        if not 0 <= rank < world_size:
            raise InputError("rank", rank, f"give 0 to {world_size - 1}")
        seam = _seam(device)
        group = group or Group.make(world_size=world_size, origin="assumed", full_nvlink=1)
        if group.world_size != world_size:
            raise InputError("group", group.world_size, f"its world_size differs from the {world_size} ranks that join")
        self.settings = Settings(resolve(newest() if sglang is None else sglang), group)
        self._capture_depth = 0
        self._inside: list[Capture] = []
        self._torch_captures: WeakSet[Capture] = WeakSet()
        # `with c.graph() as g` in a loop drops the graph before while the stream captures, which CUDA forbids: it lives until the end
        self._last_capture: Capture | None = None
        far = {} if exchange is None else {"exchange": exchange, "world_size": world_size}
        super().__init__(seam, board, rank, ordinal, timeout_s, max_bytes, _nccl_path(device, nccl), **far)
        self.apply(self.settings)
        self.custom = Custom(self, "custom")
        self.quick = Communicator(self, "quick")
        self.mscclpp = Communicator(self, "mscclpp")
        self.torch_symm_mem = Communicator(self, "torch_symm_mem")
        self.pcie_ipc = Communicator(self, "pcie_ipc")
        self.pynccl = Communicator(self, "pynccl")
        self.flashinfer = Communicator(self, "flashinfer")

    @classmethod
    def join(
        cls,
        group: Group | None = None,
        *,
        device: Literal["auto", "host", "gpu"] = "auto",
        sglang: str | Release | None = None,
        timeout_s: float = 30.0,
        start_timeout_s: float = 60.0,
        max_bytes: int = 16 << 20,
        nccl: str | None = None,
    ) -> Joined:
        """In a script that torchrun, mpirun or srun started: the Coordinator of this process's rank. Collective, with the same arguments.

        On one machine the ranks meet in shared memory, as LocalGroup's do (``auto``: on GPUs where each rank has one, else as CPU ranks);
        on several they are GPU ranks, and meet over NCCL. Raises InputError for variables of the launcher that are missing or wrong,
        ProbeUnavailable where no launcher started it, TimeoutError naming ranks that did not come within ``start_timeout_s``.
        """
        from .joining import join

        return join(
            group,
            device=device,
            sglang=sglang,
            timeout_s=timeout_s,
            start_timeout_s=start_timeout_s,
            max_bytes=max_bytes,
            nccl=nccl,
        )

    def __repr__(self) -> str:
        if self.device == "closed":
            return f"<Coordinator: rank {self.rank} of {self.world_size}, closed>"
        where = "CPU ranks" if self.device == "host" else "GPUs"
        return f"<Coordinator: rank {self.rank} of {self.world_size} on {where}, SGLang {self.sglang}, {self.seq} calls>"

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name) and name not in _ATTRIBUTES:
            near = get_close_matches(name, [*_ATTRIBUTES, "piecewise", "compiling", "symmetric_memory", "sglang", "timing"], 1)
            raise InputError(name, value, f"not a toggle{f'; did you mean {near[0]}?' if near else ''}")
        super().__setattr__(name, value)

    # ------------------------------------------------------------------------------------------------------------------ toggles

    def apply(self, settings: Settings) -> None:
        """Sets everything that a route depends on, at once; the next call sees it."""
        check_group(settings.group)
        if settings.group.world_size != self.world_size:
            raise InputError("world_size", settings.group.world_size, f"{self.world_size} ranks have joined; make another group")
        if self.device == "gpu" and settings.group.value("device") != 0:
            raise InputError(
                "device", settings.group.value("device"), "these ranks are on CUDA GPUs; take CPU ranks for other kinds"
            )
        self.configure(
            settings,
            settings.release.index,
            pack_facts(settings.group),
            settings.bits,
            settings.off,
            settings.on,
            KERNELS[settings.kernel],
            settings.release.derived,
        )
        self.settings = settings

    @property
    def sglang(self) -> str:
        """The release whose dispatch runs; set it to another at any time."""
        return self.settings.release.name

    @sglang.setter
    def sglang(self, value: str | Release) -> None:
        self.apply(replace(self.settings, release=resolve(value)))

    def _bit(self, name: str) -> bool:
        return bool(self.settings.bits & context_bits(name))

    def _set_bit(self, name: str, value: bool) -> None:
        if not isinstance(value, bool):
            raise InputError(name, value, "give True or False")
        bit = context_bits(name)
        self.apply(replace(self.settings, bits=self.settings.bits | bit if value else self.settings.bits & ~bit))

    @property
    def piecewise(self) -> bool:
        """The piecewise CUDA graph flag."""
        return self._bit("piecewise")

    @piecewise.setter
    def piecewise(self, value: bool) -> None:
        self._set_bit("piecewise", value)

    @property
    def compiling(self) -> bool:
        """Dynamo is tracing."""
        return self._bit("compiling")

    @compiling.setter
    def compiling(self, value: bool) -> None:
        self._set_bit("compiling", value)

    @property
    def symmetric_memory(self) -> bool:
        """NCCL symmetric memory: the server's flag; before v0.5.4.post3 every tensor then counts as tagged."""
        return bool(self.settings.group.value("symm_mem"))

    @symmetric_memory.setter
    def symmetric_memory(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise InputError("symmetric_memory", value, "give True or False")
        self.set_facts(symm_mem=value)

    def set_facts(self, **facts: int | bool) -> None:
        """Facts of the group, by their names in ``Group.make``: ``set_facts(full_nvlink=False)``."""
        self.apply(replace(self.settings, group=self.settings.group.with_facts("given", "", **facts)))

    def set_context(self, context: str) -> None:
        """Bits that surround the next calls, as ``route`` takes them; graph_capture() and a capturing stream add theirs by themselves."""
        self.apply(replace(self.settings, bits=context_bits(context)))

    # ------------------------------------------------------------------------------------------------------------------ decisions

    def decide(self, tensor: Any) -> Decision:
        """Where ``all_reduce(tensor)`` would go now, without a call."""
        return self._decide(self.settings, self.plan(tensor))

    def _decide(self, settings: Settings, key: tuple[int, int, int, int, int, int, int]) -> Decision:
        nbytes, columns, dims, context, dtype, layout, registered = key
        call = Call(
            nbytes=nbytes,
            dtype=_DTYPE_NAMES[dtype],
            hidden=columns,
            dims=dims,
            contiguous=bool(layout & 1),
            weak_contiguous=bool(layout & 3),
            aligned=bool(layout & 4),
            registered=bool(registered),
        )
        return decide(
            settings.release, settings.group, call, context, switches=(settings.off, settings.on, KERNELS[settings.kernel])
        )

    @property
    def paths(self) -> Mapping[Path, str]:
        """What runs each path here, or ``not here: why``."""
        texts: dict[Path, str] = {}
        for i, (path, (text, in_python)) in enumerate(zip(PATHS, self.runs(), strict=True)):
            if path in (Path.NONE, Path.RAISES):
                continue
            why = "" if in_python else self.supports(i, 0, DTYPES["bf16"], 1 << 10)
            texts[path] = f"not here: {why}" if why else "Python, in this process" if in_python else text
        return FrozenMap(texts)

    def register(self, path: Path, implementation: PythonPath | None) -> None:
        """A path that stands in Python (see PythonPath); None takes it away."""
        runnable = [str(p) for p in PATHS if p not in (Path.NONE, Path.RAISES)]
        if path not in runnable:
            raise InputError("path", path, f"give one of {', '.join(runnable)}")
        lacking = (
            [] if implementation is None else [n for n in ("supports", "enqueue", "finish") if not hasattr(implementation, n)]
        )
        if lacking:
            raise InputError(
                "implementation", implementation, f"it needs supports, enqueue and finish, and lacks {', '.join(lacking)}"
            )
        self.register_path(PATHS.index(Path(path)), implementation)

    # ------------------------------------------------------------------------------------------------------------------- captures

    @contextmanager
    def graph_capture(self) -> Iterator[Coordinator]:
        """SGLang's ``graph_capture()``: pynccl and MSCCL++ are on, calls before the stream really captures are warm-up.

        Leaving it is collective: addresses that were captured are exchanged, and graphs may be replayed from then on.
        """
        self.enter_capture()
        self._capture_depth += 1
        try:
            yield self
        finally:
            self._capture_depth -= 1
            inside, self._inside = self._inside, []
            try:
                self.captured_addresses = self.exit_capture()
            except Exception as error:
                for capture in inside:  # peers never heard of their addresses
                    capture.refused = str(error)
                raise

    captured_addresses = 0
    """Addresses that the last graph_capture() exchanged."""

    @contextmanager
    def graph(self) -> Iterator[Capture]:
        """Within: the stream really captures, calls are recorded and do not run. After: ``replay()`` of what it gave."""
        capture, before = Capture(self), self._last_capture
        self._inside.append(capture)
        if self.device == "host":
            self.begin_graph()
            try:
                yield capture
            finally:
                capture.graph = self.end_graph()
            return
        torch = import_module("torch")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield capture
        capture.torch_graph = graph
        self._last_capture = capture
        self._torch_captures.add(capture)
        del before

    @contextmanager
    def change_state(self, enable: bool) -> Iterator[None]:
        """SGLang's ``pynccl_comm.change_state(enable=...)``: within, pynccl is enabled, or is not."""
        before = self.settings
        self.pynccl.disabled = not enable
        try:
            yield
        finally:
            self.apply(replace(self.settings, off=before.off, on=before.on))

    def close(self) -> None:
        """Leaves the group; a closed Coordinator is refused from then on. Graphs that hold its calls cannot be replayed any more."""
        for capture in list(self._torch_captures):  # NCCL's end waits for every graph that holds a call of it
            capture.torch_graph.reset()
            capture.torch_graph, capture.refused = None, "its Coordinator is closed"
        self._last_capture = None
        super().close()

    def empty(self, count: int, dtype: str = "bf16", *, window: bool = False) -> Any:
        """``count`` elements in memory of the device that peers can map (``window``: that NCCL knows as a window; collective).

        A NumPy array on CPU ranks (bf16 as ml_dtypes.bfloat16, else as its bits), a torch tensor on GPUs.
        """
        if dtype not in DTYPES or dtype == "fp8":
            raise InputError("dtype", dtype, f"give one of {', '.join(name for name in DTYPES if name != 'fp8')}")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 2**59:
            raise InputError("count", count, "give a whole number of elements, from 1 to 2^59 - 1")
        nbytes = count * dict(_core.DTYPES)[dtype]
        buffer = self.buffer(nbytes, window)
        if self.device == "gpu":
            torch = import_module("torch")  # untyped here, so that its presence changes no type check
            names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
            return torch.from_dlpack(buffer).view(getattr(torch, names.get(dtype, dtype)))
        import numpy as np

        return np.frombuffer(memoryview(buffer), dtype=numpy_dtype(dtype))


def numpy_dtype(dtype: str) -> Any:
    """NumPy's dtype of that name; bf16 is ml_dtypes' where it is installed, else its bits as uint16."""
    import numpy as np

    if dtype == "bf16":
        try:
            import ml_dtypes
        except ImportError:
            return np.dtype(np.uint16)
        return np.dtype(ml_dtypes.bfloat16)
    names = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
    return np.dtype(names.get(dtype, dtype))


def _seam(device: str) -> Any:
    if device == "host":
        return None
    from .. import gpu

    reason = gpu.available()
    if not reason:
        raise ProbeUnavailable(str(reason))
    return gpu.seam()


def _nccl_path(device: str, nccl: str | None) -> str | None:
    if device == "host":
        if nccl is not None:
            raise InputError("nccl", nccl, "CPU ranks have no NCCL; leave it out, or take device='gpu'")
        return None
    from .. import gpu

    return nccl if nccl is not None else gpu.find_nccl()
