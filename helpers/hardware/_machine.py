"""The card of the machine at hand.

On Linux it is read from ``/proc``, ``/sys`` and ``/etc`` below a ``root``: a file that is missing,
unreadable or malformed makes its value None, never 0 and never an exception. On macOS and Windows
the card comes from sysctl, the registry, psutil and ``torch.cpu.get_capabilities()``; that part is
written from their documentation and was not tried on such machines. Lesson 00.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from helpers.hardware._card import CACHE_KINDS, Cache, Gpu, MachineCard


def machine_card() -> MachineCard:
    """Return the card of this machine, read afresh: under 50 ms once torch (and CUDA, if there is
    one) is loaded.

    No process is started and nothing is measured. Asking a CUDA device for its properties
    initialises CUDA.

    >>> card = machine_card()
    >>> card.usable_cores <= card.logical_cores
    True

    Lesson 00.
    """
    if sys.platform == "linux":
        card = linux_card(Path("/"), allowed_cores=len(os.sched_getaffinity(0)))
    elif sys.platform == "darwin":
        card = macos_card(_sysctl, _portable_card(_capabilities()))
    else:
        card = replace(_portable_card(_capabilities()), **_windows_names())
    if card.caches is None or card.extensions is None:
        card = _complete_card(card, _capabilities())
    gpus, trouble = read_gpus(Path("/"))
    return replace(card, gpus=gpus, notes=card.notes + trouble)


def read_gpus(root: Path) -> tuple[tuple[Gpu, ...] | None, tuple[str, ...]]:
    """Return the accelerators that torch sees, and a note (the GPUs then None) where CUDA does not
    answer.
    """
    import torch

    try:
        count = torch.cuda.device_count()
        driver = _driver(root) if count and torch.version.cuda else None
        gpus = [
            _gpu(torch.cuda.get_device_properties(index), driver, torch.version.hip)
            for index in range(count)
        ]
        if torch.backends.mps.is_available():
            name = "Apple GPU, memory shared with the processor"
            gpus.append(Gpu(name, "MPS", memory_bytes=torch.mps.recommended_max_memory()))
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return None, (f"the GPU driver does not answer: {reason}",)
    return tuple(gpus), ()


def _gpu(properties: Any, driver: str | None, hip: str | None) -> Gpu:
    return Gpu(
        name=properties.name,
        backend="ROCm" if hip else "CUDA",
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=getattr(properties, "L2_cache_size", None) or None,
        capability=properties.gcnArchName if hip else f"{properties.major}.{properties.minor}",
        clock_hz=1000.0 * getattr(properties, "clock_rate", 0) or None,
        driver=driver,
    )


def _driver(root: Path) -> str | None:
    """Return NVIDIA's driver version from nvidia-ml-py where that is installed, else from ``/proc``
    (not in WSL).
    """
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
    """Return ``card`` with the facts of macOS's ``sysctl``: model, vendor and the caches of each
    sort of core.
    """

    def number(name: str) -> int | None:
        return int.from_bytes(sysctl(name) or b"", "little") or None

    levels = number("hw.nperflevels") or 0
    caches = []
    for sort in [f"hw.perflevel{level}." for level in range(levels)] or ["hw."]:
        cores, threads = number(f"{sort}physicalcpu"), number(f"{sort}logicalcpu")
        one_core = threads // cores if cores and threads else None
        for level, kind, name, sharing in (
            (1, "data", "l1dcachesize", one_core),
            (1, "instruction", "l1icachesize", one_core),
            (2, "unified", "l2cachesize", number(f"{sort}cpusperl2")),
            (3, "unified", "l3cachesize", number(f"{sort}cpusperl3")),
        ):
            size = number(f"{sort}{name}")
            instances = -(-threads // sharing) if sharing and threads else None
            if size:
                caches.append(
                    Cache(level, kind, size, number("hw.cachelinesize"), None, sharing, instances)
                )
    brand, vendor = (
        (sysctl(f"machdep.cpu.{name}") or b"").rstrip(b"\0").decode()
        for name in ("brand_string", "vendor")
    )
    vendor = vendor or ("Apple" if brand.startswith("Apple") else "")
    return replace(
        card,
        model=brand or card.model,
        vendor=vendor or card.vendor,
        caches=tuple(sorted(caches, key=cache_order)) or card.caches,
    )


def _sysctl(name: str) -> bytes | None:
    query, size = ctypes.CDLL(None).sysctlbyname, ctypes.c_size_t(0)
    arguments = (ctypes.byref(size), None, ctypes.c_size_t(0))
    if query(name.encode(), None, *arguments) != 0:
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if query(name.encode(), buffer, *arguments) != 0:
        return None
    return buffer.raw[: size.value]


def _windows_names() -> dict[str, str]:
    if sys.platform != "win32":
        return {}
    import winreg

    with winreg.OpenKey(
        winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    ) as key:
        names = {"model": "ProcessorNameString", "vendor": "VendorIdentifier"}
        return {field: winreg.QueryValueEx(key, name)[0].strip() for field, name in names.items()}


def _portable_card(capabilities: Mapping[str, Any]) -> MachineCard:
    """Return the card that torch, psutil (where it is installed) and the platform module give on
    any system.
    """
    allowed_cores = getattr(os, "process_cpu_count", os.cpu_count)()  # Python 3.13
    card = MachineCard(
        model=capabilities.get("cpu_name") or None,
        architecture=platform.machine() or None,
        physical_cores=capabilities.get("num_physical_cores") or None,
        logical_cores=os.cpu_count(),
        allowed_cores=allowed_cores,
        usable_cores=allowed_cores,
        system=f"{platform.system()} {platform.release()}",
    )
    try:
        import psutil
    except ModuleNotFoundError:
        return replace(card, notes=("the memory is unknown: psutil is not installed",))
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return replace(
        card, ram_bytes=memory.total, ram_available_bytes=memory.available, swap_bytes=swap.total
    )


def _complete_card(card: MachineCard, capabilities: Mapping[str, Any]) -> MachineCard:
    """Return ``card`` with the caches and the extensions that torch found, where the system listed
    none.
    """
    sizes = [(1, "data", "l1d_cache_size"), (2, "unified", "l2_cache_size")]
    caches = tuple(
        Cache(level, kind, capabilities[key]) for level, kind, key in sizes if capabilities.get(key)
    )
    if card.caches is None and caches:
        note = "the system lists no caches; their sizes are those of torch.cpu.get_capabilities()"
        card = replace(card, caches=caches, notes=(*card.notes, note))
    if card.extensions is None and capabilities:
        names = {name for name, has in capabilities.items() if has is True}
        card = replace(card, extensions=extensions_among(names))
    return card


def _capabilities() -> dict[str, Any]:
    import torch

    read_capabilities = getattr(torch.cpu, "get_capabilities", None)
    try:
        return dict(read_capabilities()) if read_capabilities else {}
    except RuntimeError:
        # torch's own reader does not know this processor: all it would tell stays unknown
        return {}


# What matters to deep learning, under the names of /proc/cpuinfo and of
# torch.cpu.get_capabilities().
_EXTENSIONS = {
    "AVX2": ("avx2",),
    "FMA": ("fma", "fma3"),
    "F16C": ("f16c",),
    "AVX-512F": ("avx512f", "avx512_f"),
    "AVX-512 VNNI": ("avx512_vnni",),
    "AVX-VNNI": ("avx_vnni",),
    "AVX-512 BF16": ("avx512_bf16",),
    "AVX-512 FP16": ("avx512_fp16",),
    "AMX": ("amx_tile",),
    "AMX BF16": ("amx_bf16",),
    "AMX INT8": ("amx_int8",),
    "NEON": ("asimd", "neon"),
    "FP16": ("asimdhp", "fp16_arith"),
    "dot product": ("asimddp", "dot"),
    "BF16": ("bf16",),
    "I8MM": ("i8mm",),
    "SVE": ("sve",),
    "SVE2": ("sve2",),
    "SME": ("sme",),
    "SME2": ("sme2",),
}
# ARM's /proc/cpuinfo has numbers in place of names: implementer, then part (Linux,
# arch/arm64/include/asm/cputype.h).
_ARM_VENDORS = {
    "0x41": "ARM",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0xc0": "Ampere",
}
_ARM_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd41"): "Cortex-A78",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
}
# of a cache: level, kind, size, line and ways
_Sort = tuple[int, str, int | None, int | None, int | None]
# of /proc/self/cgroup the controllers and the path, of /proc/self/mountinfo the mounted group, the
# mount point, the version and the options
_MEMBERSHIP = r"^[^:\n]*:([^:\n]*):(.*)$"
_CGROUP_MOUNT = r"^(?:\S+ ){3}(\S+) (\S+) .* - cgroup(2?) \S+ (\S+)"
_NO_LIMIT_BYTES = 2**62  # cgroup v1 writes "no limit" as the largest page-aligned 64-bit number


def linux_card(root: Path, *, allowed_cores: int | None) -> MachineCard:
    """Return the card of the Linux machine whose ``/proc``, ``/sys`` and ``/etc`` stand below
    ``root``; no GPUs.
    """
    records = _cpuinfo(root)
    model, vendor = _identity(records)
    physical, logical = read_cores(root)
    quota = read_quota(root)
    base, maximum = read_clocks(root)
    caches, notes = read_caches(root)
    memory = _memory(root)
    return MachineCard(
        model=model,
        vendor=vendor,
        architecture=platform.machine() or None,
        extensions=_extensions(records),
        physical_cores=physical,
        logical_cores=logical,
        allowed_cores=allowed_cores,
        quota_cores=quota,
        usable_cores=min(allowed_cores, quota) if allowed_cores and quota else allowed_cores,
        base_hz=base,
        maximum_hz=maximum,
        caches=caches,
        ram_bytes=memory.get("MemTotal"),
        ram_available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=read_memory_limit(root),
        swap_bytes=memory.get("SwapTotal"),
        system=_linux_name(root),
        notes=notes,
    )


def read_caches(root: Path) -> tuple[tuple[Cache, ...] | None, tuple[str, ...]]:
    """Return the caches that ``/sys`` lists for the processors that are online, and notes on
    entries left out.

    Caches of one sort (level, kind, size, line, ways) are one :class:`Cache`, so a hybrid processor
    has two rows for a level. None where the system lists none.
    """
    sharers_by_sort: dict[_Sort, set[frozenset[int]]] = {}
    covered_entries: set[tuple[str, int]] = set()
    nameless = 0
    for cpu, folder in _online(root).items():
        for index in sorted(glob.glob("index*", root_dir=f"{folder}/cache")):
            if (index, cpu) in covered_entries:
                continue
            sharing = _cpu_list(_read(f"{folder}/cache/{index}/shared_cpu_list"))
            covered_entries |= {(index, sharer) for sharer in sharing}
            sort = _cache_sort(f"{folder}/cache/{index}")
            if sort is None:
                nameless += 1
            else:
                sharers_by_sort.setdefault(sort, set()).add(sharing)
    notes = (f"left out {nameless} cache entries without a level or a type",) if nameless else ()
    caches = sorted((_cache(*item) for item in sharers_by_sort.items()), key=cache_order)
    return tuple(caches) or None, notes


def _cache_sort(folder: str) -> _Sort | None:
    level, kind = _number(f"{folder}/level"), _read(f"{folder}/type").lower()
    if level is None or kind not in CACHE_KINDS:
        return None
    size, line = _cache_bytes(_read(f"{folder}/size")), _number(f"{folder}/coherency_line_size")
    return level, kind, size, line, _number(f"{folder}/ways_of_associativity")


def _cache(sort: _Sort, sharers: set[frozenset[int]]) -> Cache:
    if not all(sharers):  # an entry does not say who shares it
        return Cache(*sort)
    return Cache(*sort, shared_by=max(map(len, sharers)), instances=len(sharers))


def cache_order(cache: Cache) -> tuple[int, int, int]:
    """Return the key that sorts caches as they are listed: by level, then kind, the larger
    first.
    """
    return cache.level, CACHE_KINDS.index(cache.kind), -(cache.size_bytes or 0)


def read_cores(root: Path) -> tuple[int | None, int | None]:
    """Return the physical cores and the logical processors that are online, each None where it is
    not told.
    """
    online = _online(root)
    topologies = [f"{folder}/topology" for folder in online.values()]
    siblings = {
        _cpu_list(_read(f"{folder}/core_cpus_list") or _read(f"{folder}/thread_siblings_list"))
        for folder in topologies
    }
    if siblings and all(siblings):
        return len(siblings), len(online)
    records = [record for record in _cpuinfo(root) if "processor" in record]
    cores = {
        (record["physical id"], record["core id"])
        for record in records
        if {"physical id", "core id"} <= {*record}
    }
    return len(cores) or None, len(online) or len(records) or None


def read_clocks(root: Path) -> tuple[float | None, float | None]:
    """Return the base and the maximum clock in hertz of the fastest processor, each None where it
    is not told.
    """
    folders = _online(root).values()
    base, maximum = (
        max((_number(f"{folder}/cpufreq/{name}") or 0 for folder in folders), default=0)
        for name in ("base_frequency", "cpuinfo_max_freq")
    )
    return 1000.0 * base or None, 1000.0 * maximum or None


def read_memory_limit(root: Path) -> int | None:
    """Return the smallest memory limit in bytes of this process's control groups (v1 and v2), None
    without one.
    """
    limits: list[int | None] = []
    for folder in _control_groups(root, "memory"):
        limits += [_number(folder / "memory.max"), _number(folder / "memory.limit_in_bytes")]
        # Version 1 tells here what groups above the visible ones allow.
        pattern = r"^hierarchical_memory_limit (\d{1,20})$"
        limits += map(int, re.findall(pattern, _read(folder / "memory.stat"), re.MULTILINE))
    return min((limit for limit in limits if limit and limit < _NO_LIMIT_BYTES), default=None)


def read_quota(root: Path) -> float | None:
    """Return the smallest processor quota, in cores, of this process's control groups (v1 and v2),
    None without one.
    """
    quotas = []
    for folder in _control_groups(root, "cpu"):
        pair = _read(folder / "cpu.max").split()
        if len(pair) != 2:
            pair = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = map(_positive, pair)
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def nvidia_driver(root: Path) -> str | None:
    """Return the version of the NVIDIA kernel driver, such as ``565.57.01``; None where there is
    none.
    """
    text = _read(root / "proc/driver/nvidia/version")
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return version[1] if version else None


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """Return one record a block of ``/proc/cpuinfo``."""
    blocks = re.split(r"\n\s*\n", _read(root / "proc/cpuinfo"))
    field = r"^[ \t]*([^:\n]*?)[ \t]*:[ \t]*(.*?)[ \t]*$"
    records = [dict(re.findall(field, block, re.MULTILINE)) for block in blocks]
    return [record for record in records if record]


def _identity(records: list[dict[str, str]]) -> tuple[str | None, str | None]:
    models = [
        record.get("model name") or record.get("cpu model") or _arm_model(record)
        for record in records
    ]
    vendors = [
        record.get("vendor_id") or _ARM_VENDORS.get(record.get("CPU implementer", ""))
        for record in records
    ]
    model, vendor = (
        " + ".join(dict.fromkeys(filter(None, names))) or None for names in (models, vendors)
    )
    return model, vendor


def _arm_model(record: Mapping[str, str]) -> str | None:
    implementer, part = record.get("CPU implementer"), record.get("CPU part")
    if not implementer or not part:
        return None
    maker = _ARM_VENDORS.get(implementer, f"implementer {implementer}")
    return _ARM_PARTS.get((implementer, part), f"{maker} part {part}")


def _extensions(records: list[dict[str, str]]) -> tuple[str, ...] | None:
    """Return the extensions of every processor, in the table's order; None where no flags are
    listed.
    """
    lines = {record.get("flags") or record.get("Features") for record in records}
    words = [set(line.split()) for line in lines if line is not None]
    return extensions_among(set.intersection(*words)) if words else None


def extensions_among(names: set[str]) -> tuple[str, ...]:
    """Return, in a fixed order, the extensions that ``names`` (flags of the system or of torch)
    tell of.
    """
    return tuple(
        extension for extension, spellings in _EXTENSIONS.items() if names & set(spellings)
    )


def _memory(root: Path) -> dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d{1,20}) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return {name: 1024 * int(kibibytes) for name, kibibytes in lines}


def _linux_name(root: Path) -> str | None:
    pattern = r'^PRETTY_NAME="?([^"\n]*)"?$'
    release = re.search(pattern, _read(root / "etc/os-release"), re.MULTILINE)
    kernel = _read(root / "proc/sys/kernel/osrelease")
    names = [release and release[1], kernel and f"Linux {kernel}"]
    return ", ".join(filter(None, names)) or None


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups for ``controller``, each from its own up to the
    mount, v1 and v2.
    """
    memberships = re.findall(_MEMBERSHIP, _read(root / "proc/self/cgroup"), re.MULTILINE)
    mounts = re.findall(_CGROUP_MOUNT, _read(root / "proc/self/mountinfo"), re.MULTILINE)
    for mount_root, point, version, options in mounts:
        required_controller = "" if version == "2" else controller
        if required_controller and required_controller not in options.split(","):
            continue
        for names, group in memberships:
            path = PurePosixPath(group)
            if required_controller not in names.split(","):
                continue
            # A group outside the mounted part (a container without its own namespace) is seen as
            # the mount itself.
            inside = path.is_relative_to(mount_root) and ".." not in path.parts
            relative = path.relative_to(mount_root) if inside else PurePosixPath()
            for parent in (relative, *relative.parents):
                yield root / point.lstrip("/") / parent


def _online(root: Path) -> dict[int, str]:
    """Return the folders in ``/sys`` of the processors that are online, by their numbers."""
    folder = root / "sys/devices/system/cpu"
    cpus = _cpu_list(_read(folder / "online")) or [
        int(path.name[3:])
        for path in folder.glob("cpu[0-9]*")
        if path.name[3:].isdigit() and _read(path / "online") != "0"
    ]
    return {cpu: f"{folder}/cpu{cpu}" for cpu in sorted(cpus)}


def _cpu_list(text: str) -> frozenset[int]:
    """Return the processors in a list as Linux writes it (``0-3,8``); none where it is empty or
    malformed.
    """
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return frozenset()
    ranges = [part.split("-") for part in text.split(",")]
    return frozenset(cpu for bounds in ranges for cpu in range(int(bounds[0]), int(bounds[-1]) + 1))


def _cache_bytes(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", text)
    return int(match[1]) * 1024 ** " KMG".find(match[2]) or None if match else None


def _positive(text: str) -> int | None:
    return int(text) or None if re.fullmatch(r"\d{1,20}", text) else None


def _number(path: Path | str) -> int | None:
    """Return the number above 0 that the file ``path`` holds, None where it holds none."""
    return _positive(_read(path))


def _read(path: Path | str) -> str:
    """Return the stripped text of ``path``, "" where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
