"""Programs compiled, loaded, disassembled and counted: C++ for this processor, CUDA C++ for any
NVIDIA GPU.

``compile_cpp`` gives functions to call, ``compile_cuda`` a cubin (no GPU needed) that ``load`` puts
on a GPU, ``disassemble`` and ``census`` read what the compiler made of either. Nothing else in the
course compiles. Lesson 17.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
