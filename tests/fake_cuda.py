"""A GPU that is none: what asks for CUDA is done by the processor, so that the code for a GPU runs
to its end here.

Tensors on it lie in this process's memory and say that they are on ``cuda:0``; its kernels are
those of the library, compiled for it by NVRTC, and what they compute is computed in NumPy from the
addresses that they are launched with. Its times are a processor's and mean nothing. It lives in a
process of its own: ``python -m tests.fake_cuda FOLDER`` records it there as a reader records a GPU,
and ``python -m tests.fake_cuda FOLDER 02`` for lesson 02 alone. :func:`walk` runs the cells of a
lesson.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

GPU = "cuda:0"
PROPERTIES = SimpleNamespace(
    name="Tesla T4",
    major=7,
    minor=5,
    multi_processor_count=40,
    total_memory=15 * 2**30,
    L2_cache_size=4 * 2**20,
    clock_rate=1_590_000,
)
FREE_BYTES = 2**28

_MARK = "_lies_on_the_fake"
_DEVICE, _IS_CUDA, _DATA = (
    torch.Tensor.device.__get__,
    torch.Tensor.is_cuda.__get__,
    torch.Tensor.data.__set__,
)


def _is_gpu(value: Any) -> bool:
    try:
        return isinstance(value, str | torch.device) and torch.device(value).type == "cuda"
    except RuntimeError:
        return False


def _is_cpu(value: Any) -> bool:
    return value == "cpu" or (isinstance(value, torch.device) and value.type == "cpu")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Placement(TorchFunctionMode):
    """Marks the tensors that are on the fake, and what is computed from them."""

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        marked = any(getattr(one, _MARK, False) for one in _tensors(args))
        name = getattr(func, "__name__", "")
        if func is torch.device or name == "_parse_to":  # they read a name, and make no tensor
            return func(*args, **kwargs)
        if func == _DEVICE:
            return torch.device(GPU) if marked else func(*args)
        if func == _IS_CUDA:
            return marked
        if func == _DATA:
            setattr(args[0], _MARK, getattr(args[1], _MARK, False))
            return func(*args)
        if name == "is_pinned":
            return not marked
        if name == "pin_memory":
            return args[0]
        if name == "cudnn_convolution_relu":
            x, weight, bias, stride, padding, dilation, groups = args
            made = torch.relu(torch.conv2d(x, weight, bias, stride, padding, dilation, groups))
        else:
            asked = [value for value in (*args[1:], kwargs.get("device")) if _is_gpu(value)]
            left = name == "cpu" or any(
                _is_cpu(value) for value in (*args[1:], kwargs.get("device"))
            )
            marked = bool(asked) or name == "cuda" or (marked and not left)
            args = tuple("cpu" if _is_gpu(value) else value for value in args)
            if kwargs.get("device") is not None:
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            made = args[0] if name == "cuda" else func(*args, **kwargs)
            if (
                (asked or left)
                and args
                and made is args[0]
                and getattr(made, _MARK, False) != marked
            ):
                # on the other side it is another
                made = made.detach().clone().requires_grad_(made.requires_grad)
        for tensor in _tensors(made):
            if name.endswith("_") or not left_alone(name):
                setattr(tensor, _MARK, marked)
        return made


def left_alone(name: str) -> bool:
    """Return whether a function answers about a tensor, and makes none."""
    return name in ("numpy", "tolist", "item")


class Event:
    """A mark of time; what was queued before it has been done, for nothing waits on a processor."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self.at_s = 0.0

    def record(self, _stream: Any = None) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at_s - self.at_s)

    def query(self) -> bool:
        return True

    def wait(self, _stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class Stream(Event):
    """The one queue, in which nothing waits."""

    cuda_stream = 7

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_event(self, _event: Event) -> None: ...

    def wait_stream(self, _stream: Stream) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


class Generator(torch.Generator):
    """Random numbers of the processor, whichever device they are asked for."""

    def __new__(cls, _device: Any = "cpu") -> torch.Generator:
        return super().__new__(cls)

    def __init__(self, _device: Any = "cpu") -> None: ...


class NoGraph:
    """A CUDA graph that cannot be recorded: the library is to say so and go on."""

    def __init__(self) -> None:
        raise RuntimeError("the fake has no graphs")


class Driver:
    """CUDA's driver: modules and kernels by their numbers; a launch is looked up in ``KERNELS`` by
    its name.
    """

    def __init__(self) -> None:
        self.images: list[bytes] = []
        self.kernels: list[tuple[str, bytes]] = []
        for name in (
            "cuGetErrorString",
            "cuFuncSetAttribute",
            "cuCtxPushCurrent_v2",
            "cuCtxPopCurrent_v2",
        ):
            setattr(self, name, _function(lambda *_: 0))
        self.cuCtxGetCurrent = _function(lambda place: _set(place, 1))
        self.cuModuleLoadData = _function(self._load)
        self.cuModuleGetFunction = _function(self._kernel)
        self.cuModuleGetGlobal_v2 = _function(lambda *_: 1)
        self.cuMemcpyAsync = _function(lambda *_: 1)
        self.cuLaunchKernel = _function(self._launch)

    def _load(self, place: Any, image: bytes) -> int:
        self.images.append(image)
        return _set(place, len(self.images))

    def _kernel(self, place: Any, module: int, name: bytes) -> int:
        self.kernels.append((name.decode(), self.images[module - 1]))
        return _set(place, len(self.kernels))

    def _launch(self, kernel: int, *given: Any) -> int:
        places = given[8]
        name, image = self.kernels[kernel - 1]
        compute, kinds = KERNELS[name]
        values = [
            ctypes.cast(place, ctypes.POINTER(kind)).contents.value
            for place, kind in zip(places, kinds, strict=False)
        ]
        compute(image, *values)
        return 0


def _function(call: Any) -> Any:
    return functools.partial(call)  # the library writes the types of its arguments on it


def _set(place: Any, value: int) -> int:
    place._obj.value = value
    return 0


def _floats(address: int, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32).reshape(shape)


def _product(_image: bytes, a: int, b: int, c: int, m: int, n: int, k: int) -> None:
    _floats(c, m, n)[:] = _floats(a, m, k) @ _floats(b, k, n)


def _transpose(_image: bytes, source: int, target: int, n: int) -> None:
    _floats(target, n, n)[:] = _floats(source, n, n).T


def _chase(_image: bytes, buffer: int, state: int, steps: int) -> None:
    following = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint64))
    place = ctypes.cast(state, ctypes.POINTER(ctypes.c_uint64))
    for _ in range(min(steps, 50)):
        place[0] = following[place[0]]


NETWORKS: dict[bytes, tuple[Any, str, str]] = {}  # of a program: its network, precision and layout


def _evaluate(image: bytes, inputs: int, outputs: int, candidates: int) -> None:
    from helpers.studies.constant_weights._network import exact_outputs

    network, layout = NETWORKS[image]
    width, out = network.inputs, network.outputs
    rows = (
        _floats(inputs, candidates, width)
        if layout == "rows"
        else _floats(inputs, width, candidates).T
    )
    found = exact_outputs(network, torch.from_numpy(np.ascontiguousarray(rows))).numpy()
    target = (
        _floats(outputs, candidates, out)
        if layout == "rows"
        else _floats(outputs, out, candidates).T
    )
    target[:] = found


_ADDRESS, _INT = ctypes.c_uint64, ctypes.c_int
KERNELS = {
    "naive_product": (_product, (*[_ADDRESS] * 3, *[_INT] * 3)),
    "tiled_product": (_product, (*[_ADDRESS] * 3, *[_INT] * 3)),
    **dict.fromkeys(
        ("one_line", "tiled", "padded", "four_values"), (_transpose, (*[_ADDRESS] * 2, _INT))
    ),
    "chase": (_chase, (*[_ADDRESS] * 2, ctypes.c_uint64)),
    "evaluate": (_evaluate, (*[_ADDRESS] * 2, ctypes.c_longlong)),
}


_new_parameter = torch.nn.Parameter.__new__


def _parameter(kind: type, data: Any = None, requires_grad: bool = True) -> torch.Tensor:
    """Make a parameter of a tensor, which no mode is told of."""
    made = _new_parameter(kind, data, requires_grad)
    setattr(made, _MARK, getattr(data, _MARK, False))
    return made


def install() -> None:
    """Make this process see the fake, for good."""
    from helpers.native import _driver as driver
    from helpers.profiling import _kernels as kernels
    from helpers.studies.constant_weights import _cuda_timing as cuda_timing, _programs as programs

    cuda = torch.cuda
    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": PROPERTIES,
        "get_device_name": PROPERTIES.name,
        "get_device_capability": (7, 5),
        "mem_get_info": (FREE_BYTES, PROPERTIES.total_memory),
        "synchronize": None,
        "empty_cache": None,
        "current_stream": Stream(),
        "manual_seed_all": None,
        "_lazy_init": None,
        "set_device": None,
    }
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_, _answer=answer, **__: _answer)
    cuda.Event, cuda.Stream, cuda.CUDAGraph = Event, Stream, NoGraph
    cuda.device = cuda.stream = lambda _: contextlib.nullcontext()
    torch.Generator = Generator  # type: ignore[misc]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    torch.nn.Parameter.__new__ = staticmethod(_parameter)  # type: ignore[method-assign]
    driver._driver_library = functools.lru_cache(maxsize=1)(Driver)
    kernels.DeviceType = SimpleNamespace(CPU=kernels.DeviceType.CPU, CUDA=kernels.DeviceType.CPU)
    profile = kernels.profile
    kernels.profile = lambda activities, **how: profile(activities=activities[:1], **how)
    torch.accelerator.is_available = lambda: False  # to the loader's thread that pins memory

    made = programs.cuda_function

    def known(model: Any, *, layout: str = "rows", **how: Any) -> Any:
        function = made(model, layout=layout, **how)
        NETWORKS[function.program.cubin.image] = function.network, layout
        return function

    programs.cuda_function = cuda_timing.cuda_function = known
    started = threading.Thread.run

    def placed(thread: threading.Thread) -> None:  # a mode is of one thread
        with Placement():
            started(thread)

    threading.Thread.run = placed  # type: ignore[method-assign]
    Placement().__enter__()


def shorten_probe(*types: str) -> None:
    """Let the probe of a GPU take little: small buffers, no time to spend, products of these types
    alone.
    """
    from helpers.hardware.limits import _cuda as limits, _library as library

    plan = replace(
        limits.cuda_plan(),
        latency_s=0.2,
        whole_s=0.4,
        kernel_s=1e-4,
        most_bytes=2**22,
        types=types,
        products=library.Budget(),
    )
    limits.cuda_plan = lambda: plan


def shorten() -> None:
    """Let the recorders take the same path on little: few candidates, small matrices, no time to
    spend.
    """
    from helpers import hardware, recorded
    from helpers.studies import (
        constant_weights,
        data_movement,
        fused_bias,
        input_pipeline,
        matrix_product,
    )
    from helpers.studies.constant_weights import _cuda_timing as cuda_timing
    from helpers.studies.input_pipeline import _starvation as starvation

    shorten_probe("float32")
    small = constant_weights.random_network((23, 4, 1), ("relu", "sigmoid"))
    cuda_timing.standard_network, cuda_timing.GROWING_WIDTHS = (lambda: small), (4, 8)
    recorded._SIDE, recorded._BUDGET_S = 64, 0.01
    starvation._RECORDED_STEPS = 6
    short = {
        "probe": lambda: hardware.probe(refresh=True),
        "links": lambda: data_movement.measure_links(file_bytes=2**20, budget_s=0.01),
        "products": lambda: matrix_product.measure_products(32, budget_s=0.01),
        "copying": input_pipeline.measure_copying,
        "story": lambda: fused_bias.measure_story(batches=(2, 4), budget_s=0.01),
        "placements": lambda: constant_weights.measure_cuda(candidates=256, budget_s=0.01),
        "growth": lambda: constant_weights.measure_growth(candidates=256, budget_s=0.01),
    }
    sys.modules["fake_recorders"] = SimpleNamespace(**short)  # type: ignore[assignment]
    recorded.RECORDERS |= {
        "01": {"limits": "fake_recorders:probe", "links": "fake_recorders:links"},
        "02": {"matrix products": "fake_recorders:products"},
        "10": {"copying": "fake_recorders:copying"},
        "18": {"story": "fake_recorders:story"},
        "17": {
            "placements on CUDA": "fake_recorders:placements",
            "growing networks on CUDA": "fake_recorders:growth",
        },
    }


def walk(notebook: Path) -> None:
    """Run the cells of a lesson in this process as on a machine with a GPU, and stop at the first
    that fails.

    What the processor did counts as what the GPU ran, because the fake has no kernels in a trace.
    While a compiled function runs no GPU is seen, because the compiler asks CUDA itself for random
    numbers.
    """
    import nbformat
    from IPython.core.interactiveshell import InteractiveShell

    from helpers.studies import constant_weights
    from helpers.studies.constant_weights import _cuda_timing as cuda_timing
    from helpers.studies.gpu_execution import _measuring as transposes
    from helpers.studies.layer_roofline import _measuring as layer
    from helpers.studies.traces import _programs, _tracing

    install()
    shorten_probe("float32", "float16")
    layer._GPU_SIDE, layer._GPU_TOKENS = 64, (1, 4)
    transposes._SIDE = 64
    small = constant_weights.random_network((23, 4, 1), ("relu", "sigmoid"))
    cuda_timing.standard_network = lambda: small
    measure_placements = constant_weights.measure_cuda
    constant_weights.measure_cuda = lambda **_: measure_placements(candidates=256, budget_s=0.01)
    _tracing._ON_GPU = ("cpu_op",)
    lacks, compiled = _programs.missing_compiler, torch.compile
    from helpers.studies import traces

    traces.missing_compiler = lambda device="cpu": (
        lacks() if _is_cpu(torch.device(device)) else "none for the fake"
    )

    def compile_on_cpu(*given: Any, **how: Any) -> Any:
        function = compiled(*given, **how)

        def call(*arguments: Any) -> Any:
            available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
            try:
                with _pop_mode_temporarily():  # under a mode nothing is compiled
                    return function(*arguments)
            finally:
                torch.cuda.is_available = available

        return call

    torch.compile = compile_on_cpu
    os.chdir(notebook.parent)
    shell = InteractiveShell.instance()
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    install()
    shorten()
    from helpers.studies import sending

    if sys.argv[2:]:
        sending.save(sending.record_gpu(sys.argv[2:]), Path.cwd())
    else:
        sys.exit(sending.main([]))
