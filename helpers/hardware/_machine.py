"""The card of the machine at hand: Linux through :mod:`helpers.hardware._linux`, other systems and GPUs here.

On macOS and Windows the card comes from sysctl, the registry, psutil and ``torch.cpu.get_capabilities()``; that part
is written from their documentation and was not tried on such machines. Lesson 00.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.hardware._card import Cache, Gpu, MachineCard
from helpers.hardware._linux import cache_order, extensions_among, linux_card, nvidia_driver


def machine_card() -> MachineCard:
    """Return the card of this machine, read afresh: under 50 ms once torch (and CUDA, if there is one) is loaded.

    No process is started and nothing is measured. Asking a CUDA device for its properties initialises CUDA.
    Lesson 00.
    """
    if sys.platform == "linux":
        card = linux_card(Path("/"), allowed_cores=len(os.sched_getaffinity(0)))
        if card.caches is None or card.extensions is None:
            card = _completed(card, _capabilities())
    elif sys.platform == "darwin":
        card = macos_card(_sysctl, _portable_card(_capabilities()))
    else:
        card = replace(_portable_card(_capabilities()), **_windows_names())
    gpus, trouble = read_gpus(Path("/"))
    return replace(card, gpus=gpus, notes=card.notes + trouble)


def read_gpus(root: Path) -> tuple[tuple[Gpu, ...] | None, tuple[str, ...]]:
    """Return the accelerators that torch sees, and a note (the GPUs then None) where CUDA does not answer."""
    import torch

    try:
        count = torch.cuda.device_count()
        driver = _driver(root) if count and torch.version.cuda else None
        gpus = [_gpu(torch.cuda.get_device_properties(index), driver, torch.version.hip) for index in range(count)]
        if torch.backends.mps.is_available():
            memory = torch.mps.recommended_max_memory()
            gpus.append(Gpu(name="Apple GPU, memory shared with the processor", backend="MPS", memory_bytes=memory))
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return None, (f"the GPU driver does not answer: {reason}",)
    return tuple(gpus), ()


def _gpu(properties: Any, driver: str | None, hip: str | None) -> Gpu:
    capability = properties.gcnArchName if hip else f"{properties.major}.{properties.minor}"
    return Gpu(
        name=properties.name, backend="ROCm" if hip else "CUDA", multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory, l2_bytes=getattr(properties, "L2_cache_size", None) or None,
        capability=capability, clock_hz=1000.0 * getattr(properties, "clock_rate", 0) or None, driver=driver,
    )  # fmt: skip


def _driver(root: Path) -> str | None:
    """Return NVIDIA's driver version from nvidia-ml-py where that is installed, else from ``/proc`` (not in WSL)."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return nvidia_driver(root)
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return nvidia_driver(root)
    return version.decode() if isinstance(version, bytes) else version


def macos_card(sysctl: Callable[[str], bytes | None], card: MachineCard) -> MachineCard:
    """Return ``card`` with what macOS's ``sysctl`` adds: model, vendor and the caches of each sort of core."""

    def number(name: str) -> int | None:
        return int.from_bytes(sysctl(name) or b"", "little") or None

    levels = number("hw.nperflevels") or 0
    caches = []
    for sort in [f"hw.perflevel{level}." for level in range(levels)] or ["hw."]:
        cores, threads = number(f"{sort}physicalcpu"), number(f"{sort}logicalcpu")
        one_core = threads // cores if cores and threads else None
        for level, kind, name, sharing in (
            (1, "data", "l1dcachesize", one_core), (1, "instruction", "l1icachesize", one_core),
            (2, "unified", "l2cachesize", number(f"{sort}cpusperl2")),
            (3, "unified", "l3cachesize", number(f"{sort}cpusperl3")),
        ):  # fmt: skip
            size = number(f"{sort}{name}")
            instances = -(-threads // sharing) if sharing and threads else None
            if size:
                caches.append(Cache(level, kind, size, number("hw.cachelinesize"), None, sharing, instances))
    brand, vendor = (
        (sysctl(f"machdep.cpu.{name}") or b"").rstrip(b"\0").decode() for name in ("brand_string", "vendor")
    )
    known = {"model": brand, "vendor": vendor or ("Apple" if brand.startswith("Apple") else None),
             "caches": tuple(sorted(caches, key=cache_order))}  # fmt: skip
    return replace(card, **{name: value for name, value in known.items() if value})


def _sysctl(name: str) -> bytes | None:
    libc, size = ctypes.CDLL(None), ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return buffer.raw[: size.value]


def _windows_names() -> dict[str, str]:
    if sys.platform != "win32":
        return {}
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
        names = {"model": "ProcessorNameString", "vendor": "VendorIdentifier"}
        return {field: winreg.QueryValueEx(key, name)[0].strip() for field, name in names.items()}


def _portable_card(capabilities: Mapping[str, Any]) -> MachineCard:
    """Return what torch, psutil (where it is installed) and the platform module tell on any system."""
    logical = os.cpu_count()
    allowed = getattr(os, "process_cpu_count", os.cpu_count)()  # Python 3.13
    card = MachineCard(
        model=capabilities.get("cpu_name") or None, architecture=platform.machine() or None,
        physical_cores=capabilities.get("num_physical_cores") or None, logical_cores=logical,
        allowed_cores=allowed, usable_cores=allowed, system=f"{platform.system()} {platform.release()}",
    )  # fmt: skip
    try:
        import psutil
    except ModuleNotFoundError:
        return _completed(replace(card, notes=("the memory is unknown: psutil is not installed",)), capabilities)
    memory = psutil.virtual_memory()
    swap = psutil.swap_memory().total
    card = replace(card, ram_bytes=memory.total, ram_available_bytes=memory.available, swap_bytes=swap)
    return _completed(card, capabilities)


def _completed(card: MachineCard, capabilities: Mapping[str, Any]) -> MachineCard:
    """Return ``card`` with the caches and the extensions that torch found, where the system listed none."""
    sizes = [(1, "data", "l1d_cache_size"), (2, "unified", "l2_cache_size")]
    caches = tuple(Cache(level, kind, capabilities[key]) for level, kind, key in sizes if capabilities.get(key))
    if card.caches is None and caches:
        note = "the system lists no caches; their sizes are those of torch.cpu.get_capabilities()"
        card = replace(card, caches=caches, notes=(*card.notes, note))
    if card.extensions is None and capabilities:
        card = replace(card, extensions=extensions_among({name for name, has in capabilities.items() if has is True}))
    return card


def _capabilities() -> dict[str, Any]:
    import torch

    read = getattr(torch.cpu, "get_capabilities", None)
    try:
        return dict(read()) if read else {}
    except RuntimeError:  # torch's own reader does not know this processor: all it would tell stays unknown
        return {}
