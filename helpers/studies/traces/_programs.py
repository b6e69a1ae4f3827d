"""The program that a compiler writes for a function, counted, and the function's reads and writes
without a compiler.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers import native
from helpers.results import Record
from helpers.studies import _triton

_KERNEL = re.compile(r"(\w+) = async_compile\.cpp_pybinding\(\[.*?\], r?'''\n(.*?)'''\)", re.DOTALL)
_SHORT = {r"at::vec::Vectorized<float>": "Vector", r"static_cast<int64_t>\((\w+?)L?\)": r"\1"}
_BUFFER = re.compile(r"= empty_strided_cpu\(")
_PRODUCT = re.compile(r"extern_kernels\.\w+\(|torch\.ops\.mkldnn\.")


class Program(Record):
    """The program that Inductor wrote: its C++ kernels, their loops, the buffers that it makes and
    the library's products.

    ``kernels`` are the names, ``source`` the C++ of the first kernel from its function on, without
    the preamble. ``loop`` is the body of its first loop, with short names for types. Lesson 13.
    """

    kernels: tuple[str, ...]
    loops: int
    buffers: int
    products: int
    source: str

    @property
    def loop(self) -> str:
        """The first loop, from its head to its last store, without casts of integers and long names
        of types.
        """
        lines = self.source.splitlines()
        first = next(index for index, line in enumerate(lines) if "for(" in line)
        last = max(index for index, line in enumerate(lines) if ".store(" in line or "] = " in line)
        text = textwrap.dedent("\n".join(lines[first : last + 1]))
        for pattern, short in _SHORT.items():
            text = re.sub(pattern, short, text)
        return text


class Passes(Record):
    """The operators of a function, and how often they read and write a tensor of its input's size.

    Lesson 13.
    """

    operators: int
    reads: float
    writes: float


def missing_compiler(device: str | torch.device = "cpu") -> str:
    """Return a sentence on what Inductor lacks here for programs on ``device``, "" if it lacks
    nothing.

    It needs a C++ compiler, and on a CUDA device Triton as well. For a CPU it writes vectors, which
    PyTorch 2.13 also does for a processor that has none of AVX2 or of another kind that it knows:
    no compiler takes this. Lesson 13.
    """
    tools: dict[str, Callable[[], object]] = {"C++ compiler": native.find_compiler}
    if torch.device(device).type == "cuda":
        tools["Triton"] = _triton.load
    for name, find in tools.items():
        try:
            find()
        except native.MissingToolError as error:
            return f"No {name}: {error}"
    if torch.device(device).type == "cpu" and not _has_vectors():
        return (
            "No vectors: the programs that torch.compile writes for this processor need AVX2 or "
            "the like."
        )
    return ""


def _has_vectors() -> bool:
    from torch._inductor import cpu_vec_isa

    return cpu_vec_isa.pick_vec_isa() is not cpu_vec_isa.invalid_vec_isa


def write_program(function: Callable[..., object], *inputs: torch.Tensor) -> Program:
    """Compile ``function`` for ``inputs`` with Inductor, run it once, and return the program that
    it wrote.

    What was compiled before in this process is compiled again at its next call. Raises RuntimeError
    if Inductor wrote no C++ kernel. Lesson 13.
    """
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    _, programs = run_and_get_code(torch.compile(function), *inputs)
    program = "\n".join(programs)
    kernels = _KERNEL.findall(program)
    if not kernels:
        raise RuntimeError(
            f"Inductor wrote no C++ kernel for inputs on {inputs[0].device}; give a function of at "
            "least one element-wise operator, on a CPU"
        )
    # the C++ of each kernel from its function on; what stands before it are includes
    sources = [text[max(text.find('extern "C"'), 0) :].strip() for _, text in kernels]
    return Program(
        kernels=tuple(name for name, _ in kernels),
        loops=sum(len(re.findall(r"\bfor\s*\(", source)) for source in sources),
        buffers=len(_BUFFER.findall(program)),
        products=len(_PRODUCT.findall(program)),
        source=sources[0],
    )


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = self.read_bytes = self.written_bytes = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.operators += 1
        self.read_bytes += _bytes((args, kwargs))
        self.written_bytes += _bytes(result)
        return result


def _bytes(values: object) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def count_passes(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Passes:
    """Return the operators that ``function(x)`` calls, and the bytes that they read and write in
    sizes of ``x``.

    >>> count_passes(lambda x: torch.relu(x + 1), torch.ones(8)).reads
    2.0

    Lesson 13.
    """
    with _Counting() as counting:
        function(x)
    return Passes(
        counting.operators, counting.read_bytes / x.nbytes, counting.written_bytes / x.nbytes
    )
