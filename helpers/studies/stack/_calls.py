"""The levels of one call as data: the operators that PyTorch dispatched, the library that computed,
and its instructions.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch

from helpers import _processes as processes, isolation, native, storage
from helpers.checks import short
from helpers.results import Record
from helpers.steps import described
from helpers.studies.stack._following import MODES, VARIABLES, DispatchedOperator, Followed, follow
from helpers.studies.stack._logs import MKL, ONEDNN, CalledLibrary, Primitive, read_log

_X86_64 = ("x86_64", "AMD64")
_DOT_PRODUCT = re.compile(r"vp?dp(bf16ps|phps|[bw]\w+)|v?pmadd(ubsw|wd)|tdp\w+")
_ELSEWHERE = "only this processor's are followed; helpers.kernel_table names the kernels of a GPU"
_VECTOR = re.compile(r"\b([xyz])mm\d")
_VECTOR_BITS = {"x": 128, "y": 256, "z": 512}


class OperatorCount(Record):
    """How often one operator was dispatched; None where the call does not run in that mode.

    Lesson 15.
    """

    operator: str
    with_autograd: int | None
    without_autograd: int | None
    in_inference_mode: int | None


class Gap(Record):
    """A level of the call that cannot be seen, and why. Lesson 15."""

    level: str
    reason: str


class GeneratedKernel(Record):
    """A kernel that oneDNN generated, by the name of its generator, with all that it may run and
    may not.

    ``listing`` are its instructions, ``census`` counts them; both are None where no disassembler
    read them. ``multiply_adds`` are the fused ones of floating-point numbers, ``dot_products``
    those that sum products of short numbers (bf16 and int8: vdpbf16ps, vpdpbusd, vpmaddubsw, AMX's
    tdp...), ``vector_bits`` is the widest vector register that they name (0: none). Lesson 15.
    """

    name: str
    code_bytes: int
    listing: str | None = field(repr=False)
    census: native.HostCensus | None = field(repr=False)

    @property
    def instructions(self) -> int | None:
        """All instructions, each counted once, however often it runs."""
        return None if self.census is None else self.census.total

    @property
    def multiply_adds(self) -> int | None:
        """Fused multiply-adds, scalar and packed."""
        return None if self.census is None else self.census.multiply_adds

    @property
    def dot_products(self) -> int | None:
        """Instructions that sum products of short numbers."""
        if self.census is None:
            return None
        return sum(
            kind.count for kind in self.census.kinds if _DOT_PRODUCT.fullmatch(kind.mnemonic)
        )

    @property
    def vector_bits(self) -> int | None:
        """The widest vector register, in bits."""
        if self.listing is None:
            return None
        return max((_VECTOR_BITS[letter] for letter in _VECTOR.findall(self.listing)), default=0)

    def _shown(self) -> list[tuple[str, Any]]:
        properties = ("instructions", "multiply_adds", "dot_products", "vector_bits")
        return [*super()._shown(), *((name, getattr(self, name)) for name in properties)]


class StackTrace(Record):
    """The levels of one call, from the operators to the instructions; each table is one of them.

    ``computed_by`` names the libraries and what they did, or says that none was called;
    ``not_followed`` is what of the call cannot be seen, and why. ``operators`` counts the
    dispatched ones in each of three modes; ``with_autograd``, ``without_autograd`` and
    ``in_inference_mode`` have them in their order, ``nested`` each with those that it calls in turn
    (the profiler's record, with autograd as the call leaves it). ``primitives`` are the libraries'
    calls in their order; MKL's instructions are its own, oneDNN's ``kernels`` are those that it
    generated for this call. ``log`` is what the libraries printed. Lesson 15.
    """

    function: str
    inputs: str
    computed_by: str
    not_followed: tuple[Gap, ...]
    operators: tuple[OperatorCount, ...]
    libraries: tuple[CalledLibrary, ...]
    primitives: tuple[Primitive, ...]
    kernels: tuple[GeneratedKernel, ...]
    with_autograd: tuple[DispatchedOperator, ...] = field(repr=False)
    without_autograd: tuple[DispatchedOperator, ...] = field(repr=False)
    in_inference_mode: tuple[DispatchedOperator, ...] = field(repr=False)
    nested: tuple[DispatchedOperator, ...] = field(repr=False)
    log: str = field(repr=False)


def trace_calls(function: Callable[..., Any], *inputs: Any, timeout_s: float = 60.0) -> StackTrace:
    """Follow ``function(*inputs)`` from the operators that PyTorch dispatches to the instructions
    of its kernels.

    A fresh process makes the call five times on copies, in an empty working folder: first with the
    logs of oneDNN and MKL on, then with autograd, without it, in inference mode, and under the
    profiler. So nothing of the caller's changes and nothing that the function prints is shown. Of
    the caller's settings only the number of threads and the environment go along: set default
    types, autocast and ``torch.backends`` inside the function. ``timeout_s`` is for all five calls.

    Libraries without such a log (Accelerate, OpenBLAS, FBGEMM, those of a GPU) and PyTorch's own
    loops are not told apart. Operators that the function runs in threads of its own are not
    counted.

    Raises TypeError for what is no function or cannot be sent to another process, RuntimeError with
    the traceback when the call raises, TimeoutError when it takes longer, and ValueError for a log
    in another form than those known. Lesson 15.
    """
    packed = processes.pack_call(function, inputs, caller="trace_calls")
    with storage.temporary_folder("stack-") as folder:
        observed: Followed = isolation.run_limited(
            follow,
            packed,
            str(folder),
            torch.get_num_threads(),
            timeout_s=timeout_s,
            variables=VARIABLES,
        ).unwrap()
    libraries, primitives = read_log(observed.log)
    kernels, unread = _read_kernels(observed.kernels)
    with_autograd, without_autograd, in_inference_mode = (_calls(observed, mode) for mode in MODES)
    return StackTrace(
        function=_name(function),
        inputs=described(inputs),
        computed_by=_computed_by(observed, primitives),
        not_followed=_gaps(observed, libraries, unread),
        operators=_count_operators(observed),
        libraries=libraries,
        primitives=primitives,
        kernels=kernels,
        with_autograd=with_autograd,
        without_autograd=without_autograd,
        in_inference_mode=in_inference_mode,
        nested=observed.nested,
        log=observed.log,
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", "") or (
        type(function).__name__ if isinstance(function, torch.nn.Module) else short(function)
    )


def _calls(observed: Followed, mode: str) -> tuple[DispatchedOperator, ...]:
    calls = observed.operators[mode]
    return () if isinstance(calls, str) else calls


def _count_operators(observed: Followed) -> tuple[OperatorCount, ...]:
    counts = {mode: Counter(call.name for call in _calls(observed, mode)) for mode in MODES}
    names = dict.fromkeys(name for count in counts.values() for name in count)
    failed = {mode for mode in MODES if isinstance(observed.operators[mode], str)}
    return tuple(
        OperatorCount(name, *(None if mode in failed else counts[mode][name] for mode in MODES))
        for name in names
    )


def _computed_by(observed: Followed, primitives: Sequence[Primitive]) -> str:
    if primitives:
        names_by_library = {
            library: Counter(p.name for p in primitives if p.library == library)
            for library in (ONEDNN, MKL)
        }
        parts = [
            f"{library} ({', '.join(f'{name} x {count}' for name, count in names.items())})"
            for library, names in names_by_library.items()
            if names
        ]
        return " and ".join(parts)
    if not any(_calls(observed, mode) for mode in MODES):
        return "nothing: no operator of PyTorch ran"
    return "no library that keeps a log: neither oneDNN nor MKL was called"


def _gaps(observed: Followed, libraries: Sequence[CalledLibrary], unread: str) -> tuple[Gap, ...]:
    has_library = {ONEDNN: observed.has_onednn, MKL: observed.has_mkl}
    gaps = [
        Gap(f"operators {mode}", reason)
        for mode, reason in observed.operators.items()
        if isinstance(reason, str)
    ]
    gaps += [
        Gap(name, "this PyTorch is built without it")
        for name, is_built_in in has_library.items()
        if not is_built_in
    ]
    gaps += [
        Gap(f"libraries and kernels on {device}", _ELSEWHERE)
        for device in observed.devices
        if device not in ("cpu", "meta")
    ]
    if unread:
        gaps.append(Gap("oneDNN's instructions", unread))
    if any(library.name == MKL for library in libraries):
        gaps.append(Gap("MKL's instructions", "it does not write them out"))
    return tuple(gaps)


def _read_kernels(codes: Sequence[native.MachineCode]) -> tuple[tuple[GeneratedKernel, ...], str]:
    """Return the kernels, and why their instructions were not read where they were not."""
    obstacle = _obstacle() if codes else ""
    kernels = tuple(
        GeneratedKernel(
            name=code.name,
            code_bytes=len(code.code),
            listing=None if obstacle else native.disassemble(code),
            census=None if obstacle else native.census(code),
        )
        for code in codes
    )
    return kernels, obstacle


def _obstacle() -> str:
    if platform.machine() not in _X86_64:
        return f"they are read for x86-64, and this processor is {platform.machine()}"
    try:
        native.find_objdump()
    except native.MissingToolError as error:
        return str(error)
    return ""
