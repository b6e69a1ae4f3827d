"""Programs compiled, loaded, disassembled and counted: C++ for this processor, CUDA C++ for any NVIDIA GPU.

``compile_cpp`` gives functions to call, ``compile_cuda`` a cubin (no GPU needed) that ``load`` puts on a GPU,
``disassemble`` and ``census`` read what the compiler made of either. Nothing else in the course compiles. Lesson 11.
"""

from __future__ import annotations

from helpers.native.counting import AccessCount, Census, HostCensus, KindCount, MnemonicCount, census
from helpers.native.cpp import CPP_FLAGS, Library, compile_cpp
from helpers.native.disassembly import disassemble
from helpers.native.driver import Kernel, Module, gpu_architecture
from helpers.native.nvrtc import Cubin, compile_cuda, nvrtc_version, supported_architectures
from helpers.native.sources import read_source
from helpers.native.tools import CompilationError, MissingToolError, NativeError, find_nvdisasm, find_objdump

__all__ = [
    "CPP_FLAGS",
    "AccessCount",
    "Census",
    "CompilationError",
    "Cubin",
    "HostCensus",
    "Kernel",
    "KindCount",
    "Library",
    "MissingToolError",
    "MnemonicCount",
    "Module",
    "NativeError",
    "census",
    "compile_cpp",
    "compile_cuda",
    "disassemble",
    "find_nvdisasm",
    "find_objdump",
    "gpu_architecture",
    "nvrtc_version",
    "read_source",
    "supported_architectures",
]
