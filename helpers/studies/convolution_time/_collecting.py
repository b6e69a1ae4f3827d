"""Times of the eight programs, measured in fresh processes on one thread, twice; and as a recording
keeps them.

Lesson 20.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
import torch

from helpers import console, isolation, native, timing
from helpers.checks import choice, members, named, number
from helpers.hardware.limits import _multiply_adds as multiply_adds
from helpers.results import Record
from helpers.studies import stack
from helpers.studies.convolution_time._algorithms import ALGORITHMS, why_not
from helpers.studies.convolution_time._judging import PredictionErrors, errors
from helpers.studies.convolution_time._models import own_program_of
from helpers.studies.convolution_time._shapes import (
    NETWORKS,
    ConvolutionShape,
    network_shapes,
    random_shapes,
    shapes_of,
)

if TYPE_CHECKING:
    import pandas as pd

LOGGED = ("direct", "channels_last")  # of these oneDNN's log tells which program ran

_SIDE = 224
_RECORDED_SHAPES = 336
_RECORDED_LIMIT_S = 900.0
# shapes a process: their log stays below what an Outcome keeps, and a process starts in seconds
_CHUNK = 24
_PASSES = ("first", "second")
_LEAST_CALLS, _MOST_CALLS, _ENOUGH_S = 2, 50, 0.03
# of the largest output: float32 and Winograd's F(4,3) stay far below, a wrong program does not
_FARTHEST = 1e-3
_MARK = re.compile(r"^convolution_time (\d+) (\w+)$", re.M)
_NOT_TIMED = "-"
_UNKNOWN = "unknown"


class NetworkPlaces(Record):
    """A network's convolutions in the order of their calls, each as the place of its shape in the
    data.

    Lesson 20.
    """

    name: str
    places: tuple[int, ...]


class ConvolutionTimes(Record):
    """Processor seconds of one call on one thread, of every algorithm on every shape, measured in
    two passes.

    ``noise`` takes the first pass as a prediction of the second; both are noisy.
    ``instruction_set`` is oneDNN's word for what it uses. ``rows`` keeps the data as text, one line
    a shape: the eight sizes; for each algorithm the times of both passes, or "-" where it does not
    serve; the programs of :data:`LOGGED`. ``peak_flops_per_s`` is the core's peak in the same run,
    by its own float32 multiply-adds; None where nobody measured it. Lesson 20.
    """

    algorithms: tuple[str, ...]
    timed: int
    elapsed_s: float
    instruction_set: str
    noise: PredictionErrors
    networks: tuple[NetworkPlaces, ...] = field(repr=False)
    rows: tuple[str, ...] = field(repr=False)
    peak_flops_per_s: float | None = None

    @functools.cached_property
    def shapes(self) -> list[ConvolutionShape]:
        """The shapes, in the order of the times."""
        return [ConvolutionShape(*map(int, cells[0].split())) for cells in self._cells]

    @functools.cached_property
    def network_shapes(self) -> dict[str, list[ConvolutionShape]]:
        """The convolutions of each network, in the order of their calls."""
        return {
            network.name: [self.shapes[index] for index in network.places]
            for network in self.networks
        }

    def times_s(self, algorithm: str, *, of: str = "both") -> np.ndarray:
        """Return the seconds of ``algorithm`` on each shape, NaN where it does not serve it.

        ``of`` is "first" or "second", one pass, or "both": the shorter of the two. Choose by one
        pass and judge by the other. Raises ValueError for another name. Lesson 20.
        """
        column = 1 + self.algorithms.index(choice("algorithm", algorithm, self.algorithms))
        choice("of", of, (*_PASSES, "both"))
        pairs = np.array([_numbers(cells[column]) for cells in self._cells])
        return pairs.min(axis=1) if of == "both" else pairs[:, _PASSES.index(of)]

    def programs(self, algorithm: str) -> list[str]:
        """Return the program that ran for each shape: of :data:`LOGGED` by oneDNN's log, else the
        algorithm's name.

        Such as "jit:avx512_core + 3 reorders"; where oneDNN was not called PyTorch's own, as
        :func:`program_of` names them. Lesson 20.
        """
        choice("algorithm", algorithm, self.algorithms)
        if algorithm not in LOGGED:
            return [algorithm] * len(self.rows)
        return [cells[len(self.algorithms) + 1 + LOGGED.index(algorithm)] for cells in self._cells]

    def table(self) -> pd.DataFrame:
        """Return a DataFrame with one row a shape: its sizes, and each algorithm's seconds, the
        shorter of two.
        """
        import pandas as pd

        sizes = pd.DataFrame([shape.to_dict() for shape in self.shapes])
        return sizes.assign(
            **{f"{algorithm}_s": self.times_s(algorithm) for algorithm in self.algorithms}
        )

    @functools.cached_property
    def _cells(self) -> list[list[str]]:
        return [row.split("|") for row in self.rows]


def collect(
    shapes: Sequence[ConvolutionShape],
    *,
    algorithms: Sequence[str] = tuple(ALGORITHMS),
    networks: Mapping[str, Sequence[ConvolutionShape]] | None = None,
    limit_s: float = 600.0,
) -> ConvolutionTimes:
    """Time ``algorithms`` on distinct ``shapes``, in fresh processes of one thread, and return the
    times.

    A time is the least processor time of several calls after one to warm up, with freed memory kept
    (as by :func:`helpers.timing.steady_allocator`). All is timed twice, the second time after all
    of the first and in the opposite order of algorithms. In the first pass each result is compared
    with the direct call's. ``networks`` names networks whose convolutions are among ``shapes``.

    Raises TypeError or ValueError for a bad argument, TimeoutError after ``limit_s`` in all,
    RuntimeError for a program that gives another result. Lesson 20.
    """
    shape_list = shapes_of(shapes)
    if len(set(shape_list)) < len(shape_list):
        raise ValueError(
            f"of the {len(shape_list)} shapes {len(shape_list) - len(set(shape_list))} stand there "
            "twice; give each once"
        )
    algorithm_names = members("algorithms", algorithms, "names")
    names = tuple(dict.fromkeys(choice("algorithms", name, ALGORITHMS) for name in algorithm_names))
    if all(why_not(name, shape) for name in names for shape in shape_list):
        raise ValueError(
            f"algorithms={list(names)} serve none of the shapes; give some of "
            f"{', '.join(ALGORITHMS)}"
        )
    places = _locate_networks(
        shape_list, {} if networks is None else named("networks", networks, "their shapes")
    )
    number("limit_s", limit_s, above=0)
    chunks = [shape_list[start : start + _CHUNK] for start in range(0, len(shape_list), _CHUNK)]
    tasks = [(is_first, chunk) for is_first in (True, False) for chunk in chunks]
    begin_s = time.monotonic()
    times: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    logs = []
    for part, (is_first, chunk) in enumerate(
        console.track(tasks, "timing convolutions", unit="part")
    ):
        remaining_s = max(limit_s - (time.monotonic() - begin_s), 1e-3)
        outcome = isolation.run_limited(_time_shapes, chunk, names, is_first, timeout_s=remaining_s)
        if outcome.status == "timed_out":
            raise TimeoutError(
                f"after limit_s={limit_s:g} {part} of {len(tasks)} parts were timed; give fewer "
                "shapes or algorithms, or a larger limit_s"
            )
        times[is_first] += outcome.unwrap()
        logs.append(outcome.output)
    programs, instruction_set = _read_programs(logs[: len(chunks)], shape_list)
    pairs = [
        [(first[name], second[name]) if name in first else None for name in names]
        for first, second in zip(times[True], times[False], strict=True)
    ]
    timed = [pair for row in pairs for pair in row if pair]
    return ConvolutionTimes(
        algorithms=names,
        timed=len(timed),
        elapsed_s=time.monotonic() - begin_s,
        instruction_set=instruction_set,
        noise=errors(*zip(*timed, strict=True)),
        networks=places,
        rows=tuple(map(_row, shape_list, pairs, programs)),
    )


def measure_networks() -> ConvolutionTimes:
    """Time all programs on 336 shapes: those of the networks in :data:`NETWORKS` at batch 1, and
    random ones.

    Up to 15 minutes; for ``python -m helpers.recorded 20-cpu``. The peak is the faster of one
    before the times and one after them; without a C++ compiler it is None. Raises
    ModuleNotFoundError without torchvision, and as :func:`collect`.
    """
    shapes, networks = recorded_shapes()
    before = _peak_flops_per_s()
    times = collect(shapes, networks=networks, limit_s=_RECORDED_LIMIT_S)
    after = _peak_flops_per_s()
    peak_flops_per_s = None if before is None or after is None else max(before, after)
    return dataclasses.replace(times, peak_flops_per_s=peak_flops_per_s)


def _peak_flops_per_s() -> float | None:
    try:
        forms = multiply_adds.compile_forms()
    except native.NativeError:
        return None
    return multiply_adds.core_flops(forms, "float32", threads=1)


def recorded_shapes() -> tuple[list[ConvolutionShape], dict[str, list[ConvolutionShape]]]:
    """Return the 336 shapes that are recorded, 186 of networks and 150 random, and the networks'
    own in their order.
    """
    try:
        from torchvision import models
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the networks are torchvision's; install torchvision") from None
    networks = {}
    for name in NETWORKS:
        options = {"init_weights": False} if name == "googlenet" else {}
        with torch.device("meta"):
            model = models.get_model(name, weights=None, **options).eval()
        networks[name] = network_shapes(model, (1, 3, _SIDE, _SIDE)).shapes
    drawn = (
        *(shape for shapes in networks.values() for shape in shapes),
        *random_shapes(_RECORDED_SHAPES),
    )
    return list(dict.fromkeys(drawn))[:_RECORDED_SHAPES], networks


def _locate_networks(
    shapes: Sequence[ConvolutionShape], networks: Mapping[str, Sequence[ConvolutionShape]]
) -> tuple[NetworkPlaces, ...]:
    index_of = {shape: index for index, shape in enumerate(shapes)}
    for name, shapes_of_network in networks.items():
        missing = [shape for shape in shapes_of(shapes_of_network) if shape not in index_of]
        if missing:
            raise ValueError(
                f"{len(missing)} convolutions of {name} are not among the shapes; add them to "
                "shapes"
            )
    return tuple(
        NetworkPlaces(name, tuple(index_of[shape] for shape in shapes_of_network))
        for name, shapes_of_network in networks.items()
    )


# In the fresh process.


def _time_shapes(
    shapes: Sequence[ConvolutionShape], algorithms: Sequence[str], is_first: bool
) -> list[dict[str, float]]:
    """Return for each shape the seconds of the algorithms that serve it; the first pass checks and
    logs as well.
    """
    timing.steady_allocator()
    torch.set_num_threads(1)
    gc.disable()
    times = []
    with torch.inference_mode():
        for index, shape in enumerate(shapes):
            served = [name for name in algorithms if not why_not(name, shape)]
            calls = _calls(shape, served)
            if is_first:
                _refuse_wrong(shape, calls)
                _log_programs(index, shape)
            times.append(
                {name: _least_s(calls[name]) for name in (served if is_first else served[::-1])}
            )
    return times


def _operands(shape: ConvolutionShape, algorithm: str) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(size, generator=draw) for size in (shape.input_size, shape.weight_size)
    )
    stored = torch.channels_last if algorithm == "channels_last" else torch.contiguous_format
    return x.contiguous(memory_format=stored), weight.contiguous(memory_format=stored)


def _calls(shape: ConvolutionShape, names: Iterable[str]) -> dict[str, Callable[[], torch.Tensor]]:
    contiguous = _operands(shape, "direct")
    operands = {"channels_last": _operands(shape, "channels_last")}
    return {
        name: functools.partial(ALGORITHMS[name], *operands.get(name, contiguous), shape)
        for name in names
    }


def _least_s(call: Callable[[], object]) -> float:
    call()
    times: list[float] = []
    while len(times) < _LEAST_CALLS or (sum(times) < _ENOUGH_S and len(times) < _MOST_CALLS):
        start_s = time.process_time()
        call()
        times.append(time.process_time() - start_s)
    return min(times)


def _refuse_wrong(shape: ConvolutionShape, calls: Mapping[str, Callable[[], torch.Tensor]]) -> None:
    expected = ALGORITHMS["direct"](*_operands(shape, "direct"), shape)
    for name, call in calls.items():
        relative_error = float((call() - expected).abs().max() / expected.abs().max())
        if not relative_error <= _FARTHEST:
            raise RuntimeError(
                f"{name} is {relative_error:.2g} of the largest output from the direct call on "
                f"{shape!r}; "
                "nothing was timed: leave it out of algorithms, and report it"
            )


def _log_programs(index: int, shape: ConvolutionShape) -> None:
    """Print oneDNN's log of one call of each of LOGGED, each under a line of its own."""
    if not torch.backends.mkldnn.is_available():
        return
    for name in LOGGED:
        operands = _operands(shape, name)
        print(f"\nconvolution_time {index} {name}", flush=True)
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            ALGORITHMS[name](*operands, shape)


# Reading and writing.


def _read_programs(
    logs: Sequence[str], shapes: Sequence[ConvolutionShape]
) -> tuple[list[list[str]], str]:
    """Return the programs of LOGGED for each of ``shapes``, and the instruction set, from the
    processes' logs.
    """
    programs: list[list[str]] = []
    instruction_set = _UNKNOWN
    for log in logs:
        stated = "\n".join(line for line in log.splitlines() if ",info," in line)
        _, *parts = _MARK.split(log)
        bodies = {
            (int(index), name): body for index, name, body in zip(*[iter(parts)] * 3, strict=True)
        }
        for index in range(min(_CHUNK, len(shapes) - len(programs))):
            shape = shapes[len(programs)]
            programs.append([_program(shape, stated, bodies.get((index, name))) for name in LOGGED])
        match = re.search(r"cpu,isa:(.+)", stated)
        instruction_set = match[1].strip() if match else instruction_set
    return programs, instruction_set


def _program(shape: ConvolutionShape, stated: str, body: str | None) -> str:
    if body is None:  # this PyTorch is built without oneDNN
        return _UNKNOWN
    calls = "\n".join(line for line in body.splitlines() if ",exec," in line)
    _, primitives = stack.read_log(f"{stated}\n{calls}")
    ran = [primitive.implementation for primitive in primitives if primitive.name == "convolution"]
    reorders = sum(primitive.name == "reorder" for primitive in primitives)
    return f"{' and '.join(ran)} + {reorders} reorders" if ran else own_program_of(shape)


def _row(
    shape: ConvolutionShape, pairs: Sequence[tuple[float, float] | None], programs: Sequence[str]
) -> str:
    sizes = " ".join(map(str, shape.to_dict().values()))
    times = [
        " ".join(f"{seconds:.4g}" for seconds in pair) if pair else _NOT_TIMED for pair in pairs
    ]
    return "|".join((sizes, *times, *programs))


def _numbers(cell: str) -> tuple[float, float]:
    first, second = (math.nan, math.nan) if cell == _NOT_TIMED else map(float, cell.split())
    return first, second
