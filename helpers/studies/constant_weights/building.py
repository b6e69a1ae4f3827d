"""From source to a program: CUDA C++ to a cubin, on any machine, C++ to a function of this processor. Lesson 11."""

from __future__ import annotations

from dataclasses import dataclass, field

from helpers import native


@dataclass(frozen=True)
class CudaProgram:
    """CUDA C++ compiled: ``cubin`` holds the machine code and loads on a GPU (``cubin.load()``). Lesson 11."""

    cubin: native.Cubin
    source: str = field(repr=False)

    def disassembly(self) -> str:
        """Return the kernel's machine code as text, an instruction a line. Raises MissingToolError. Lesson 11."""
        return native.disassemble(self.cubin, function="evaluate")


def build(source: str, *, architecture: str = "sm_90") -> CudaProgram | native.Library:
    """Return what the compiler makes of a generated ``source``; a kernel in it (``__global__``) says that it is CUDA.

    CUDA C++ gives a :class:`CudaProgram` for ``architecture``, and needs no GPU; C++ a loaded
    :class:`helpers.native.Library` for this processor, of which :func:`cpp_program` makes a function of tensors. Both
    are kept in the cache under their content.

    Raises TypeError for what is no text, ValueError for an architecture that is not known, CompilationError for a
    source that the compiler refuses, and MissingToolError, with what to install, without it. Lesson 11.
    """
    if not isinstance(source, str):
        raise TypeError(f"a source is the text that generate() returns, not {type(source).__name__}")
    if "__global__" in source:
        return CudaProgram(native.compile_cuda(source, architecture=architecture), source)
    from helpers.studies.constant_weights.cpp_building import build_cpp

    return build_cpp(source)
