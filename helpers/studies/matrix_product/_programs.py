"""The matrix product studied: naive and tiled programs of our own, beside ``torch.matmul``.

The same study runs on two machines. On CUDA the programs are CUDA C++ kernels, one thread an
element; on a CPU they are C++ of one thread. Without a GPU the kernels are still compiled, and
their instructions counted. Lesson 02.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers import native, timing
from helpers.checks import cpu_or_cuda, one_of
from helpers.results import Record, derived
from helpers.units import flops_from_macs

CPU_PRODUCTS = ("naive", "interchanged", "tiled", "registers")
CUDA_PRODUCTS = ("naive", "tiled")
CUDA_TILES = (8, 16, 32)  # a block has tile x tile threads, of which a GPU takes at most 1,024
LIBRARY = "torch.matmul"

_PRECISION = 0.15
_SIDE = {"cpu": 512, "cuda": 2048}
_TILE = {"cpu": 64, "cuda": 16}
_ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_MOST_ELEMENTS = 2**31 - 1  # the kernels' indices are ints
_MOST_BLOCK_ROWS = 65_535
_CUDA_DECLARATION = "void {}_product(const float* a, const float* b, float* c, int m, int n, int k)"
_CPU_DECLARATION = (
    "void {}_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k)"
)
_UNIT_ROUNDOFF = 2.0**-24  # of float32

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class KernelInstructions(Record):
    """A kernel's instructions as they stand in its program, by memory space; the loops' bodies may
    be unrolled.

    ``loads_per_multiply_add_ratio`` is the global loads over the multiply-adds: 2 for the naive
    kernel, 2 / tile for the tiled one. ``shared_load_bytes`` are bytes a thread: one load may bring
    several numbers. Lesson 02.
    """

    kernel: str
    architecture: str
    tile: int
    total: int
    multiply_adds: int
    global_loads: int
    global_stores: int
    shared_loads: int
    shared_load_bytes: int
    shared_stores: int
    barriers: int
    registers: int | None

    @property
    def loads_per_multiply_add_ratio(self) -> float:
        """Global loads for each multiply-add, as they stand in the program."""
        return self.global_loads / self.multiply_adds


class InstructionCounts(Record):
    """The two kernels' instructions, for one or several architectures. Lesson 02."""

    compiler: str
    kernels: tuple[KernelInstructions, ...]


class ProductTime(Record):
    """One program's time for a product; ``speedup`` is over the naive program's, from runs taken in
    turns.

    ``error_share`` is the largest error of an element over what rounding can cause in any order of
    the sum. Lesson 02.
    """

    name: str
    median_s: float
    rate_flops_per_s: float
    speedup: float
    error_share: float


class ProductTimes(Record):
    """The programs' times on one machine, ``torch.matmul`` among them; ``comparison`` has the
    intervals.

    ``matmul_precision`` is torch's setting for float32 products, ``"highest"`` unless somebody
    allows TF32. Lesson 02.
    """

    m: int
    n: int
    k: int
    tile: int
    macs: int
    device: str
    matmul_precision: str
    products: tuple[ProductTime, ...]
    comparison: timing.Comparison


def cuda_source(*, tile: int) -> str:
    """Return the CUDA C++ program with ``naive_product`` and ``tiled_product`` (blocks of ``tile``
    x ``tile``).

    Raises ValueError for a tile that is not one of :data:`CUDA_TILES`.
    """
    if tile not in CUDA_TILES:
        raise ValueError(
            f"a block of tile x tile threads has a tile of {', '.join(map(str, CUDA_TILES))}; got "
            f"{tile!r}"
        )
    return f"#define TILE {tile}\n{native.read_source(__package__, 'products.cu')}"


def cpu_source(*, tile: int) -> str:
    """Return the C++ program: ``naive_product``, ``interchanged_product``, ``tiled_product``,
    ``registers_product``.

    Raises ValueError for a tile that is no whole number from 1 to 4,096. Lesson 02.
    """
    if isinstance(tile, bool) or not isinstance(tile, int) or not 1 <= tile <= 4096:
        raise ValueError(f"tile is a whole number from 1 to 4,096; got {tile!r}")
    return f"#define TILE {tile}\n{native.read_source(__package__, 'products.cpp')}"


def count_instructions(
    *, tile: int = 16, architectures: Sequence[str] | None = None
) -> InstructionCounts:
    """Return the instructions of both kernels, compiled for ``architectures``; no GPU is needed.

    By default for those from sm_75 to sm_120 that the installed NVRTC knows. Raises ValueError for
    a tile or an architecture that is not known, MissingToolError without NVRTC or nvdisasm. Lesson
    02.
    """
    if architectures is None:
        known = native.supported_architectures()
        architectures = [name for name in _ARCHITECTURES if name in known]
    elif isinstance(architectures, str):
        raise TypeError(f"architectures is a list of names, such as [{architectures!r}]")
    source = cuda_source(tile=tile)
    cubins = [native.compile_cuda(source, architecture=name) for name in architectures]
    if not cubins:
        raise ValueError(
            "no architecture to compile for; name one, such as architectures=['sm_90']"
        )
    rows = tuple(_instructions(cubin, name, tile) for cubin in cubins for name in CUDA_PRODUCTS)
    return InstructionCounts(compiler=cubins[0].compiler, kernels=rows)


def _instructions(cubin: native.Cubin, name: str, tile: int) -> KernelInstructions:
    census = native.census(cubin, function=f"{name}_product")
    shared = [row for row in census.accesses if (row.access, row.space) == ("load", "shared")]
    return derived(
        KernelInstructions,
        census,
        kernel=name,
        tile=tile,
        total=census.total - census.padding,
        shared_load_bytes=sum(row.count * _width_bits(row) // 8 for row in shared),
        barriers=sum(row.count for row in census.kinds if row.kind == "BAR"),
    )


def _width_bits(row: native.AccessCount) -> int:
    if row.width_bits is None:
        raise native.NativeError(
            "a load from shared memory does not name its width", "add it to native/_cubin.py"
        )
    return row.width_bits


def make_product(
    name: str, *, tile: int | None = None, device: str | torch.device | None = None
) -> Product:
    """Return the program ``name`` as a function of two float32 matrices on ``device`` that returns
    their product.

    On a CPU ``name`` is one of :data:`CPU_PRODUCTS` and ``tile`` (64 by default) the side of the
    blocks of "tiled"; on CUDA one of :data:`CUDA_PRODUCTS`, with blocks of ``tile`` x ``tile``
    threads (8, 16 or 32; 16 by default). ``device`` is CUDA if there is one. It is compiled on the
    first call and kept.

    The function raises TypeError or ValueError for anything but two float32 matrices there that fit
    together. Raises ValueError for an unknown name or tile, and as :mod:`helpers.native` where
    nothing can be compiled.
    """
    chosen = _device(device)
    names = CUDA_PRODUCTS if chosen.type == "cuda" else CPU_PRODUCTS
    if name not in names:
        raise ValueError(
            f"on {chosen.type} the products are {', '.join(names)}; there is no {name!r}"
        )
    tile = _TILE[chosen.type] if tile is None else tile
    if chosen.type == "cpu":
        return _cpu_product(native.compile_cpp(cpu_source(tile=tile)), name)
    module = _module(tile, chosen)
    kernel = module.function(_CUDA_DECLARATION.format(name))
    return functools.partial(_launch, kernel, tile, chosen)


def _cpu_product(library: native.Library, name: str) -> Product:
    function = library.function(_CPU_DECLARATION.format(name))

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b, c = _operands(a, b, torch.device("cpu"))
        function(a, b, c, *c.shape, a.shape[1])
        return c

    return multiply


@functools.lru_cache(maxsize=8)
def _module(tile: int, device: torch.device) -> native.Module:
    architecture = native.gpu_architecture(device)
    return native.compile_cuda(cuda_source(tile=tile), architecture=architecture).load(device)


def _launch(
    kernel: Callable[..., None], tile: int, device: torch.device, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Launch a kernel, one thread an element of the product; return the product, which is still
    being computed.
    """
    a, b, c = _operands(a, b, device)
    (m, n), k = c.shape, a.shape[1]
    largest = max(a.numel(), b.numel(), c.numel())
    if largest > _MOST_ELEMENTS or m > tile * _MOST_BLOCK_ROWS:
        raise ValueError(
            f"the kernels take matrices of up to {_MOST_ELEMENTS:,} elements and "
            f"{tile * _MOST_BLOCK_ROWS:,} rows; these have up to {largest:,}, and {m:,}"
        )
    kernel(a, b, c, m, n, k, grid=(math.ceil(n / tile), math.ceil(m / tile)), block=(tile, tile))
    return c


def _operands(
    a: Any, b: Any, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return both factors, stored row by row, and an empty product; raise for what cannot be
    multiplied.
    """
    for name, matrix in (("a", a), ("b", b)):
        if not isinstance(matrix, torch.Tensor):
            raise TypeError(f"{name} is a tensor, not {type(matrix).__name__}")
        if matrix.dtype != torch.float32 or matrix.dim() != 2 or matrix.device.type != device.type:
            raise ValueError(
                f"{name} is a float32 matrix on {device.type}; this is {matrix.dtype} of shape "
                f"{tuple(matrix.shape)} on {matrix.device}"
            )
    if a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        raise ValueError(
            f"(m, k) @ (k, n) with sides of 1 or more; got {tuple(a.shape)} @ {tuple(b.shape)}"
        )
    return (
        a.detach().contiguous(),
        b.detach().contiguous(),
        torch.empty(len(a), b.shape[1], device=a.device),
    )


def measure_products(
    side: int | None = None,
    *,
    tile: int | None = None,
    device: str | torch.device | None = None,
    budget_s: float = 6.0,
) -> ProductTimes:
    """Return the times of all programs and of ``torch.matmul`` for two random matrices of ``side``
    x ``side``.

    Each product is checked first, against the product in float64. All are timed by
    :func:`helpers.timing.compare` with the naive one as the baseline, for ``budget_s`` seconds
    together, on a CPU with one thread. ``side`` is 512 on a CPU and 2,048 on CUDA by default;
    ``tile`` and ``device`` as in :func:`make_product`.

    Raises RuntimeError when a program computes a wrong product, and as :func:`make_product`. Lesson
    02.
    """
    chosen = _device(device)
    side = _SIDE[chosen.type] if side is None else side
    tile = _TILE[chosen.type] if tile is None else tile
    if isinstance(side, bool) or not isinstance(side, int) or side < 1:
        raise ValueError(f"side is a whole number of at least 1; got {side!r}")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(side, side, generator=generator).to(chosen) for _ in range(2))
    names = CUDA_PRODUCTS if chosen.type == "cuda" else CPU_PRODUCTS
    programs = {name: make_product(name, tile=tile, device=chosen) for name in names} | {
        LIBRARY: torch.matmul
    }
    errors = {name: error_share(program(a, b), a, b) for name, program in programs.items()}
    _refuse_wrong(errors)
    with timing.fixed_threads(1 if chosen.type == "cpu" else torch.get_num_threads()):
        runs = {name: functools.partial(program, a, b) for name, program in programs.items()}
        comparison = timing.compare(
            runs, baseline="naive", device=chosen.type, budget_s=budget_s, precision=_PRECISION
        )
    macs = side**3
    rows = tuple(
        ProductTime(
            row.name,
            row.median_s,
            flops_from_macs(macs) / row.median_s,
            1 / row.time_ratio,
            errors[row.name],
        )
        for row in comparison.candidates
    )
    return ProductTimes(
        m=side,
        n=side,
        k=side,
        tile=tile,
        macs=macs,
        device=comparison.device,
        matmul_precision=torch.get_float32_matmul_precision(),
        products=rows,
        comparison=comparison,
    )


def error_share(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest error of ``c`` against ``a @ b`` in float64, over what rounding to float32
    can cause.

    In whatever order the k products of an element are added, its error is at most k u / (1 - k u)
    times the sum of their absolute values, with u = 2^-24 (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd edition, 3.5). So above 1 the program is wrong, or computes with fewer
    bits. NaN gives infinity. Raises ValueError for shapes that are not those of a product.
    """
    for name, matrix in (("c", c), ("a", a), ("b", b)):
        one_of(name, matrix, torch.Tensor, "a matrix, as a tensor")
    shapes = [tuple(matrix.shape) for matrix in (c, a, b)]
    if any(len(shape) != 2 for shape in shapes) or shapes != [
        (a.shape[0], b.shape[1]),
        (a.shape[0], b.shape[0]),
        tuple(b.shape),
    ]:
        raise ValueError(
            "c, a and b have the shapes {}, {} and {}; give (m, n), (m, k) and (k, n)".format(
                *shapes
            )
        )
    wide_a, wide_b = a.double(), b.double()
    rounding = a.shape[1] * _UNIT_ROUNDOFF
    allowed = rounding / (1 - rounding) * (wide_a.abs() @ wide_b.abs())
    errors = (c.double() - wide_a @ wide_b).abs()
    shares = torch.where(errors > 0, errors / allowed, torch.zeros_like(errors))
    shares = torch.where(errors.isnan(), torch.full_like(errors, torch.inf), shares)
    return float(shares.max())


def _refuse_wrong(errors: dict[str, float]) -> None:
    wrong = {name: share for name, share in errors.items() if name != LIBRARY and not share <= 1}
    if wrong:
        listed = ", ".join(
            f"{name} ({share:.3g} times what rounding can cause)" for name, share in wrong.items()
        )
        raise RuntimeError(
            f"wrong products: {listed}; nothing was timed. Change the program back, or report it"
        )


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = cpu_or_cuda(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "there is no CUDA device here; count_instructions compiles the kernels without one, "
            "and device='cpu' measures the C++ programs"
        )
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen
