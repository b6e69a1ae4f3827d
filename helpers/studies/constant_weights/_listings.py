"""Machine code as lines, and what they carry: compiled here, or recorded where the tools are
missing.

Lesson 17.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers import native, storage
from helpers.checks import one_of
from helpers.native import _cubin as cubin
from helpers.results import from_dict
from helpers.studies.constant_weights._counting import INSTRUCTION_BYTES, WeightCensus, cuda_census
from helpers.studies.constant_weights._network import Network
from helpers.studies.constant_weights._programs import build_cuda

RECORDED_FILE = "programs.json"
# NVRTC of the locked torch: the lesson's numbers are its counts, and another one counts otherwise
COMPILER = "13.0"
_LINE = re.compile(r"^\s*[\da-f]+ +(.*)", re.M)
_NOISE = re.compile(r"\.reuse|desc\[\w+\]")  # hints to the processor, which change no operand
_NUMBER_AT = slice(4, 8)  # of an instruction's 16 bytes, those of a 32-bit immediate


def missing_gpu_tools() -> native.MissingToolError | None:
    """Return the error that names the tool for a GPU's programs that is missing here and how to
    get it, None where none is.

    Another version of the compiler than the lesson's is a missing tool too, because its programs
    have other counts. Lesson 17.
    """
    try:
        version = native.nvrtc_version()
        native.find_nvdisasm()
    except native.MissingToolError as error:
        return error
    if version != COMPILER:
        problem = (
            f"The NVRTC that is installed is {version}, and the lesson's counts are those of "
            f"{COMPILER}"
        )
        return native.MissingToolError(problem, f"install a build of torch for CUDA {COMPILER}")
    return None


def listing(source: str, *, architecture: str = "sm_90") -> list[str]:
    """Return the instructions of a CUDA C++ ``source`` with a single kernel, a line each.

    A line is such as "FFMA R0, R1, 0.5, R2", without hints like ``.reuse``. The program is compiled
    for ``architecture``. Where the tools are missing, a small program of the lesson is read from
    the course's record, and another one raises MissingToolError with what to install. Lesson 17.
    """
    if missing_gpu_tools():
        return list(_read_record(source, architecture, "lines"))
    program = build_cuda(source, architecture=architecture)
    return [_NOISE.sub("", line) for line in _LINE.findall(native.disassemble(program.cubin))]


def count_instructions(source: str, *, architecture: str = "sm_90") -> WeightCensus:
    """Return the census of a CUDA C++ ``source`` whose kernel is ``evaluate``, compiled for
    ``architecture``.

    No GPU is needed. Where the tools are missing, a program of the lesson is read from the course's
    record; another one raises MissingToolError with what to install. Lesson 17.
    """
    if missing_gpu_tools():
        return from_dict(WeightCensus, _read_record(source, architecture, "census"))
    return cuda_census(build_cuda(source, architecture=architecture).cubin)


def instruction_with(weight: float, source: str, *, architecture: str = "sm_90") -> bytes:
    """Return the 16 bytes of the first instruction of a ``source`` that carries a float32
    ``weight``.

    The instructions are those of ``architecture``, such as "sm_90". Raises ValueError where none
    does, and MissingToolError as :func:`listing` does. Lesson 17.
    """
    number = np.float32(weight).tobytes()
    if missing_gpu_tools():
        codes = [bytes.fromhex(text) for text in _read_record(source, architecture, "codes")]
    else:
        codes = instruction_codes(source, architecture=architecture)
    for code in codes:
        if code[_NUMBER_AT] == number:
            return code
    raise ValueError(
        f"no instruction for {architecture} carries {weight!r}; give a weight of a const array"
    )


def instruction_codes(source: str, *, architecture: str) -> list[bytes]:
    """Return the instructions of the kernels of a ``source``, 16 bytes each.

    Raises as :func:`build` does.
    """
    image = build_cuda(source, architecture=architecture).cubin.image
    sections = cubin.read(image).sections.items()
    code = b"".join(section for name, section in sections if name.startswith(".text."))
    return [
        code[start : start + INSTRUCTION_BYTES] for start in range(0, len(code), INSTRUCTION_BYTES)
    ]


def parameters_in(lines: Sequence[str], network: Network) -> int:
    """Return the number of parameters of ``network`` that are numbers in the FFMA and MOV
    instructions of ``lines``.

    A weight may stand there without its minus, because an operand can be subtracted, so signs do
    not count. Lesson 17.

    >>> from helpers.studies import constant_weights as cw
    >>> cw.parameters_in(["FFMA R1, R2, 0.5, R3"], cw.standard_network())
    0
    """
    one_of("network", network, Network, "a network such as standard_network()")
    carried = {number for line in lines for number in _numbers(line)}
    return sum(abs(float(value)) in carried for array in network.arrays for value in array.flat)


def _numbers(line: str) -> list[float]:
    """Return the numbers without their signs that an FFMA, or a MOV in hexadecimal, carries as
    float32.
    """
    opcode, _, operands = re.sub(r"^@\S+ ", "", line).partition(" ")
    if opcode == "MOV":
        return [
            abs(float(np.uint32(int(text, 16)).view(np.float32)))
            for text in re.findall(r"0x[\da-f]+", operands)
        ]
    if opcode.partition(".")[0] != "FFMA":
        return []
    return [abs(float(np.float32(text))) for text in re.findall(r"(?<=, )-?\d[-+.\de]*", operands)]


def record_key(source: str, architecture: str) -> str:
    """Return the name under which a program is recorded, which changes with its text."""
    return f"{architecture} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def record_path() -> Path:
    """Return the file of recorded programs. Raises FileNotFoundError outside a course."""
    return storage.course_file("recorded", "constant_weights", RECORDED_FILE)


@functools.cache
def _programs(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))["programs"]


def _read_record(source: str, architecture: str, kind: str) -> Any:
    """Return the record of ``kind`` of a program. Raises MissingToolError where nothing is."""
    record = _programs(record_path()).get(record_key(source, architecture), {})
    missing = missing_gpu_tools()
    if kind not in record and missing:
        raise native.MissingToolError(
            f"This program for {architecture} is none of those that the course has recorded, "
            f"and it cannot be compiled here. {missing.problem}",
            missing.remedy,
        )
    return record[kind]
