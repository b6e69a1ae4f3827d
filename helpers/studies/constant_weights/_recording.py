"""Record what compilers made: the census of the placements, and the programs of the lesson for
machines without tools.

Neither NVRTC nor nvdisasm of CUDA 13 knows sm_60 and sm_70, where the rule changed. Two wheels
bring the last that do; unpacked into a folder of their own they touch nothing that is installed::

    python -m helpers.studies.constant_weights._recording
    uv pip install --target old --no-deps nvidia-cuda-nvrtc-cu12==12.8.93 triton==3.3.1
    python -m helpers.studies.constant_weights._recording old

The first also writes the programs that :mod:`listings` reads; each of the two writes a file of
:func:`counting.recorded_counts`.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers import console, storage
from helpers.native import (
    _cubin as cubin,
    _machine_code as machine_code,
    _nvrtc as nvrtc,
    _tools as tools,
)
from helpers.results import derived
from helpers.studies.constant_weights._counting import (
    CURRENT_ARCHITECTURES,
    OLD_ARCHITECTURES,
    PlacementCount,
    PlacementCounts,
    cuda_census,
    recorded_file,
)
from helpers.studies.constant_weights._cuda_sources import (
    CUDA_PLACEMENTS,
    PRECISIONS,
    candidates_per_thread,
    cuda_source,
)
from helpers.studies.constant_weights._layer_sources import (
    REFERENCES,
    WORDS,
    layer_source,
    layer_weights,
    reference_source,
)
from helpers.studies.constant_weights._listings import (
    count_instructions,
    instruction_codes,
    listing,
    missing_gpu_tools,
    record_key,
    record_path,
)
from helpers.studies.constant_weights._network import (
    Dense,
    Network,
    pruned,
    random_network,
    standard_network,
)
from helpers.studies.constant_weights._programs import build_cuda

# an instruction: on sm_60 three, and what schedules them, take 32
_BYTES = {"sm_60": 32 / 3, "sm_70": 16}
_PARAMETER_FROM = "sm_70"  # __grid_constant__ needs it
_LIMIT_S = 60
PRUNED_SHARES = (0.75, 0.5, 0.25, 0.1)  # of the weights, kept
GROWN_WIDTHS = (8, 16, 64)


def count_old(folder: Path) -> PlacementCounts:
    """Return the census of the standard network for every placement, by the compiler in
    ``folder``.

    ``folder`` holds the wheels nvidia-cuda-nvrtc-cu12 and triton, unpacked. Raises
    FileNotFoundError, with the command that fetches them, where it does not, and NativeError for a
    source that the compiler refuses.
    """
    library = nvrtc._library(_find_file(folder, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    nvdisasm = str(_find_file(folder, "triton/backends/nvidia/bin/nvdisasm"))
    rows = []
    for architecture, placement in itertools.product(OLD_ARCHITECTURES, CUDA_PLACEMENTS):
        if placement == "parameter" and architecture < _PARAMETER_FROM:
            continue
        source = cuda_source(standard_network(), placement=placement)
        image, _ = nvrtc._compile(library, source, (f"--gpu-architecture={architecture}",))
        rows.append(_count_kernel(_kernel(image, nvdisasm, architecture), placement, architecture))
    note = (
        f"Recorded on {datetime.date.today()} by python -m "
        f"helpers.studies.constant_weights._recording, with {_version(nvdisasm)}. CUDA 13 no "
        "longer compiles for these architectures. On sm_60 an FFMA32I counts as an FFMA with an "
        "immediate; __grid_constant__ parameters begin with sm_70."
    )
    return _counts(rows, f"NVRTC {_nvrtc_version(library)}", note)


def _counts(rows: Sequence[PlacementCount], compiler: str, note: str) -> PlacementCounts:
    network = standard_network()
    return PlacementCounts(
        compiler, network.widths, network.macs, network.nonzero_weights, tuple(rows), note
    )


def _find_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise FileNotFoundError(
            f"{name} is not in {folder.name}; fetch it with: uv pip install --target {folder.name} "
            "--no-deps nvidia-cuda-nvrtc-cu12==12.8.93 triton==3.3.1"
        )
    return path


def _nvrtc_version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc._call(library, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _version(nvdisasm: str) -> str:
    printed = tools.run_tool([nvdisasm, "--version"], limit_s=_LIMIT_S).stdout
    match = re.search(r"V(\d[\d.]*)", printed)
    return f"nvdisasm {match[1]}" if match else "an nvdisasm that does not say its version"


def _kernel(image: bytes, nvdisasm: str, architecture: str) -> cubin.GpuFunction:
    with storage.temporary_folder("disassemble-") as folder:
        path = folder / "program.cubin"
        path.write_bytes(image)
        process = tools.run_tool([nvdisasm, "-c", str(path)], limit_s=_LIMIT_S)
    if process.returncode != 0:
        raise tools.NativeError(
            f"nvdisasm cannot read the program: {process.stderr.strip():.200}", "take triton==3.3.1"
        )
    kernel = cubin.parse(as_of_today(process.stdout))["evaluate"]
    size, listed = len(cubin.read(image).sections[".text.evaluate"]), len(kernel.instructions)
    if listed * _BYTES[architecture] != size:
        raise tools.NativeError(
            f"of {size:,} bytes of code the listing shows {listed:,} instructions",
            "take triton==3.3.1, whose nvdisasm was read here",
        )
    return kernel


def as_of_today(listing: str) -> str:
    """Return a listing of sm_60 in the words that :func:`helpers.native._cubin.parse` reads.

    Two instructions that are issued together stand in braces there, the second without its
    semicolon, and a multiply-add with an immediate of 32 bits is named FFMA32I.
    """
    plain = re.sub(r"(\*/\s+)\{", r"\1 ", listing)
    plain = re.sub(r"\}\s*$", ";", plain, flags=re.M)
    return re.sub(r"\bFFMA32I\b", "FFMA", plain)


def _count_kernel(kernel: cubin.GpuFunction, placement: str, architecture: str) -> PlacementCount:
    counts = machine_code._counts(kernel)
    return derived(
        PlacementCount,
        SimpleNamespace(**counts),
        placement=placement,
        precision="fp32",
        architecture=architecture,
        candidates=1,
        total=counts["total"] - counts["padding"],
    )


def count_current() -> PlacementCounts:
    """Return the census of the standard network for :data:`CURRENT_ARCHITECTURES`, in both
    precisions.
    """
    cases = list(itertools.product(PRECISIONS, CURRENT_ARCHITECTURES, CUDA_PLACEMENTS))
    rows = []
    for precision, architecture, placement in console.track(cases, "compiling"):
        source = cuda_source(standard_network(), placement=placement, precision=precision)
        weight_census = cuda_census(build_cuda(source, architecture=architecture).cubin)
        rows.append(
            derived(
                PlacementCount,
                weight_census,
                placement=placement,
                precision=precision,
                candidates=candidates_per_thread(precision),
            )
        )
    return _counts(rows, weight_census.compiler, f"{weight_census.compiler}, {_today()}")


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def small_programs() -> Iterator[tuple[str, str]]:
    """Yield the source and the architecture of each program of which the lesson reads lines."""
    for architecture in CURRENT_ARCHITECTURES:
        yield from ((layer_source(placement), architecture) for placement in WORDS)
    newest = CURRENT_ARCHITECTURES[-1]
    yield from ((reference_source(array), newest) for array in REFERENCES)
    yield half_layer(), newest


def half_layer() -> str:
    """Return the source of the small layer in half precision, its weights constants."""
    weights = layer_weights()
    layer = Dense(weights, np.zeros(weights.shape[1], np.float32))
    return cuda_source(Network((layer,)), precision="fp16")


def counted_programs() -> Iterator[tuple[str, str]]:
    """Yield the source and the architecture of each program that the lesson counts."""
    network, newest = standard_network(), CURRENT_ARCHITECTURES[-1]
    for placement in ("const", "device", "constant"):
        yield from (
            (cuda_source(network, placement=placement), name) for name in CURRENT_ARCHITECTURES
        )
    yield cuda_source(network, placement="pointer"), newest
    yield from (
        (cuda_source(network, placement=name, precision="fp16"), newest)
        for name in ("const", "device")
    )
    yield from ((cuda_source(pruned(network, 1 - share)), newest) for share in PRUNED_SHARES)
    for width in GROWN_WIDTHS:
        yield (
            cuda_source(random_network((23, width, width, 1), ("relu", "relu", "sigmoid"))),
            newest,
        )


def record_programs() -> dict[str, Any]:
    """Return the records of the lesson's programs from the compiler here, by
    :func:`listings.record_key`.

    Raises MissingToolError without the tools.
    """
    missing = missing_gpu_tools()
    if missing:
        raise missing
    programs: dict[str, dict[str, Any]] = {}
    for source, name in small_programs():
        record = programs.setdefault(record_key(source, name), {})
        record["lines"] = listing(source, architecture=name)
    constants, newest = layer_source("const"), CURRENT_ARCHITECTURES[-1]
    codes = instruction_codes(constants, architecture=newest)
    programs[record_key(constants, newest)]["codes"] = [code.hex() for code in codes]
    for source, name in counted_programs():
        weight_census = count_instructions(source, architecture=name)
        programs.setdefault(record_key(source, name), {})["census"] = weight_census.to_dict()
    return {
        "note": f"{weight_census.compiler}, {_today()}: the programs of the lesson",
        "programs": programs,
    }


def main() -> None:
    """Count with the compiler that is here, or in the folder that is named, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the two wheels are unpacked")
    folder = parser.parse_args().folder
    counts = count_old(folder) if folder else count_current()
    path = recorded_file(OLD_ARCHITECTURES if folder else CURRENT_ARCHITECTURES)
    storage.write_atomically(path, counts.to_json() + "\n")
    print(counts)
    if not folder:
        storage.write_atomically(record_path(), json.dumps(record_programs(), indent=1) + "\n")


if __name__ == "__main__":
    main()
