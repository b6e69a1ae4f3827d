"""The facts that each library tells of the processor, so that a limit which nothing heeds is not
taken for evidence.

This file is also the program that asks the libraries, in a process of its own that has a setting's
limits from the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence

ONEDNN, MKL = "oneDNN", "MKL"
# What shows the effect of a variable.
SHOWN_BY = {
    "ATEN_CPU_CAPABILITY": "PyTorch",
    "ONEDNN_MAX_CPU_ISA": ONEDNN,
    "MKL_ENABLE_INSTRUCTIONS": MKL,
    "OPENBLAS_CORETYPE": "OpenBLAS",
    "NPY_DISABLE_CPU_FEATURES": "NumPy",
    "NUMBA_CPU_NAME": "numba",
    "NUMBA_CPU_FEATURES": "numba",
    "FBGEMM_ENABLE_INSTRUCTIONS": "FBGEMM's 2 x 255 x 127",
    "GLIBC_TUNABLES": "exp of the C library",
    "OMP_NUM_THREADS": "threads of PyTorch",
    "MKL_NUM_THREADS": "threads of MKL",
    "MKL_DYNAMIC": "threads of MKL",
}
_VERBOSE = {
    ONEDNN: re.compile(r"(?m)^onednn_verbose,.*info,cpu,isa:(.*)$"),
    MKL: re.compile(
        r"(?m)^MKL_VERBOSE oneMKL .*? for Intel\(R\) 64 architecture (.*?), (?:Lnx|Win|OSX)"
    ),
    "threads of MKL": re.compile(r"(?m)^MKL_VERBOSE \w+\(.* NThr:(\d+)"),
}


def facts(
    command: Sequence[str], environment: Mapping[str, str], start: Callable[[], None]
) -> dict[str, str]:
    """Return the facts that each library tells in a process of Python that ``command`` starts and
    that begins with ``start``.
    """
    verbose = {**environment, "ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    process = subprocess.run(
        [*command, __file__],
        env=verbose,
        preexec_fn=start,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    verbose_facts = {
        name: match[1]
        for name, pattern in _VERBOSE.items()
        if (match := pattern.search(process.stdout))
    }
    return json.loads(process.stdout.splitlines()[-1]) | verbose_facts


def _ask_libraries() -> dict[str, str]:
    import numba
    import scipy.linalg  # noqa: F401  # it brings an OpenBLAS of its own
    import threadpoolctl
    import torch
    from numpy._core import _multiarray_umath as umath

    from helpers.hardware import machine_card

    torch.nn.functional.conv2d(torch.ones(2, 16, 8, 8), torch.ones(16, 16, 3, 3))
    torch.ones(64, 64) @ torch.ones(64, 64)
    card = machine_card()
    caches = card.caches or ()
    processor = numba.config.CPU_NAME  # type: ignore[attr-defined]  # numba makes it of the environment
    pools = (pool for pool in threadpoolctl.threadpool_info() if pool["internal_api"] == "openblas")
    return {
        "PyTorch": torch.backends.cpu.get_cpu_capability(),
        "OpenBLAS": ", ".join(sorted({pool["architecture"] for pool in pools})),
        "NumPy": ", ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name])
        or "its least",
        "numba": f"{processor or 'this one'}, {_numba_registers()}",
        "FBGEMM's 2 x 255 x 127": _sum_of_bytes(),
        "exp of the C library": f"{_digits_of_exp():08x}",
        "g++ -march=native": _compiler_extensions(),
        "threads of PyTorch": str(torch.get_num_threads()),
        "cores of the card": f"{card.usable_cores:g}" if card.usable_cores else "unknown",
        "last cache of the card": f"{caches[-1].size_bytes:,} B" if caches else "unknown",
        "extensions of the card": ", ".join(card.extensions or ()) or "unknown",
    }


def _numba_registers() -> str:
    import numba
    import numpy

    @numba.njit(fastmath=True)
    def dot(a: numpy.ndarray, b: numpy.ndarray) -> float:
        total = 0.0
        for index in range(a.size):
            total += a[index] * b[index]
        return total

    dot(numpy.ones(8), numpy.ones(8))
    text = next(iter(dot.inspect_asm().values()))
    return next((f"{name}mm" for name in "zyx" if f"{name}mm" in text), "no vectors")


def _sum_of_bytes() -> str:
    """Return 255 * 127 + 255 * 127 by FBGEMM, which is 32,767 where the instruction keeps 16 bits
    of it.
    """
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return "no FBGEMM"
    torch.backends.quantized.engine = "fbgemm"
    with warnings.catch_warnings(action="ignore"):  # it is to go, and lesson 17 uses it
        weights = torch._make_per_tensor_quantized_tensor(
            torch.full((16, 64), 127, dtype=torch.int8), 1.0, 0
        )
        packed_weights = torch.ops.quantized.linear_prepack(weights, None)
        inputs = torch.zeros(4, 64)
        inputs[:, :2] = 255
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            inputs, 1.0, 0, packed_weights
        )
    return f"{product[0, 0].item():,.0f}"


def _digits_of_exp() -> int:
    import math

    return zlib.crc32(repr([math.exp(number / 997) for number in range(-5000, 5000)]).encode())


def _compiler_extensions() -> str:
    from helpers import native

    macros = ("AMX_TILE", "AVX512BF16", "AVX512F", "AVX2", "FMA", "SSE4_2")
    with contextlib.suppress(native.MissingToolError):
        command = [*native.find_compiler(), "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return ", ".join(name for name in macros if f"#define __{name}__" in text)
    return "no compiler"


if __name__ == "__main__":
    answers = _ask_libraries()
    sys.stdout.flush()
    print(json.dumps(answers))
