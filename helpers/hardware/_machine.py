"""The card of the machine at hand.

On Linux it is read from ``/proc``, ``/sys`` and ``/etc`` below a ``root``: a file that is missing,
unreadable or malformed makes its value None, never 0 and never an exception. On macOS and Windows
the card comes from sysctl, the registry, psutil and ``torch.cpu.get_capabilities()``; that part is
written from their documentation and was not tried on such machines. Lesson 00.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        if card.caches is None or card.extensions is None:
            card = _complete_card(card, _capabilities())
    elif sys.platform == "darwin":
        card = macos_card(_sysctl, _portable_card(_capabilities()))
    else:
        card = replace(_portable_card(_capabilities()), **_windows_names())
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
            memory = torch.mps.recommended_max_memory()
            gpus.append(
                Gpu(
                    name="Apple GPU, memory shared with the processor",
                    backend="MPS",
                    memory_bytes=memory,
                )
            )
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return None, (f"the GPU driver does not answer: {reason}",)
    return tuple(gpus), ()


def _gpu(properties: Any, driver: str | None, hip: str | None) -> Gpu:
    capability = properties.gcnArchName if hip else f"{properties.major}.{properties.minor}"
    return Gpu(
        name=properties.name,
        backend="ROCm" if hip else "CUDA",
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=getattr(properties, "L2_cache_size", None) or None,
        capability=capability,
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

    with winreg.OpenKey(
        winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    ) as key:
        names = {"model": "ProcessorNameString", "vendor": "VendorIdentifier"}
        return {field: winreg.QueryValueEx(key, name)[0].strip() for field, name in names.items()}


def _portable_card(capabilities: Mapping[str, Any]) -> MachineCard:
    """Return the card that torch, psutil (where it is installed) and the platform module give on
    any system.
    """
    logical = os.cpu_count()
    allowed_cores = getattr(os, "process_cpu_count", os.cpu_count)()  # Python 3.13
    card = MachineCard(
        model=capabilities.get("cpu_name") or None,
        architecture=platform.machine() or None,
        physical_cores=capabilities.get("num_physical_cores") or None,
        logical_cores=logical,
        allowed_cores=allowed_cores,
        usable_cores=allowed_cores,
        system=f"{platform.system()} {platform.release()}",
    )
    try:
        import psutil
    except ModuleNotFoundError:
        return _complete_card(
            replace(card, notes=("the memory is unknown: psutil is not installed",)), capabilities
        )
    memory = psutil.virtual_memory()
    swap = psutil.swap_memory().total
    card = replace(
        card, ram_bytes=memory.total, ram_available_bytes=memory.available, swap_bytes=swap
    )
    return _complete_card(card, capabilities)


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
        card = replace(
            card,
            extensions=extensions_among(
                {name for name, has in capabilities.items() if has is True}
            ),
        )
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
    0x41: "ARM",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0xC0: "Ampere",
}
_ARM_PARTS = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "Kunpeng-920",
    (0xC0, 0xAC3): "Ampere-1",
}
# of a cache: level, kind, size, line and ways
_Sort = tuple[int, str, int | None, int | None, int | None]
_NO_LIMIT_BYTES = 2**62  # cgroup v1 writes "no limit" as the largest page-aligned 64-bit number


def linux_card(
    root: Path, *, allowed_cores: int | None, architecture: str | None = None
) -> MachineCard:
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
        architecture=architecture or platform.machine() or None,
        extensions=_extensions(records),
        physical_cores=physical,
        logical_cores=logical,
        allowed_cores=allowed_cores,
        quota_cores=quota,
        usable_cores=_usable(allowed_cores, quota),
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
    sharers_by_sort: dict[_Sort, set[frozenset[int] | None]] = {}
    covered_cpus: dict[str, set[int]] = {}
    nameless = 0
    for cpu in _online(root):
        folder = f"{_cpu_folder(root, cpu)}/cache"
        for index in _cache_indexes(folder):
            if cpu in covered_cpus.setdefault(index, set()):
                continue
            sharing = _cpu_list(_read(f"{folder}/{index}/shared_cpu_list")) or None
            covered_cpus[index] |= sharing or set()
            sort = _cache_sort(f"{folder}/{index}")
            if sort is None:
                nameless += 1
            else:
                sharers_by_sort.setdefault(sort, set()).add(sharing)
    notes = (f"left out {nameless} cache entries without a level or a type",) if nameless else ()
    return tuple(
        sorted((_cache(*item) for item in sharers_by_sort.items()), key=cache_order)
    ) or None, notes


def _cache_indexes(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith("index"))
    except OSError:
        return []


def _cache_sort(folder: str) -> _Sort | None:
    level, kind = _positive(_read(f"{folder}/level")), (_read(f"{folder}/type") or "").lower()
    if level is None or kind not in CACHE_KINDS:
        return None
    line, ways = (
        _positive(_read(f"{folder}/{name}"))
        for name in ("coherency_line_size", "ways_of_associativity")
    )
    return level, kind, _cache_bytes(_read(f"{folder}/size")), line, ways


def _cache(sort: _Sort, sharers: set[frozenset[int] | None]) -> Cache:
    known_sharers = [sharing for sharing in sharers if sharing is not None]
    if len(known_sharers) < len(sharers):
        return Cache(*sort)
    return Cache(*sort, shared_by=max(map(len, known_sharers)), instances=len(sharers))


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
    physical = _cores_of_topology(root, online)
    if online and physical:
        return physical, len(online)
    records = [record for record in _cpuinfo(root) if "processor" in record]
    cores = {
        (record["physical id"], record["core id"])
        for record in records
        if {"physical id", "core id"} <= {*record}
    }
    return len(cores) or None, len(online) or len(records) or None


def _cores_of_topology(root: Path, online: list[int]) -> int | None:
    cores = 0
    seen_cpus: set[int] = set()
    for cpu in online:
        if cpu in seen_cpus:
            continue
        folder = f"{_cpu_folder(root, cpu)}/topology"
        siblings = _cpu_list(
            _read(f"{folder}/core_cpus_list") or _read(f"{folder}/thread_siblings_list")
        )
        if not siblings:
            return None
        seen_cpus |= siblings
        cores += 1
    return cores


def read_clocks(root: Path) -> tuple[float | None, float | None]:
    """Return the base and the maximum clock in hertz of the fastest processor, each None where it
    is not told.
    """
    folders = [_cpu_folder(root, cpu) for cpu in _online(root)]
    base = [_positive(_read(f"{folder}/cpufreq/base_frequency")) for folder in folders]
    top = [_positive(_read(f"{folder}/cpufreq/cpuinfo_max_freq")) for folder in folders]
    return _largest(base, 1000.0), _largest(top, 1000.0)


def read_memory_limit(root: Path) -> int | None:
    """Return the smallest memory limit in bytes of this process's control groups (v1 and v2), None
    without one.
    """
    limits: list[int | None] = []
    for folder in _control_groups(root, "memory"):
        limits += [
            _positive(_read(folder / "memory.max")),
            _positive(_read(folder / "memory.limit_in_bytes")),
        ]
        # Version 1 tells here what groups above the visible ones allow.
        ancestors = re.search(
            r"^hierarchical_memory_limit (\d{1,20})$",
            _read(folder / "memory.stat") or "",
            re.MULTILINE,
        )
        limits.append(int(ancestors.group(1)) if ancestors else None)
    return min((limit for limit in limits if limit and limit < _NO_LIMIT_BYTES), default=None)


def read_quota(root: Path) -> float | None:
    """Return the smallest processor quota, in cores, of this process's control groups (v1 and v2),
    None without one.
    """
    quotas = []
    for folder in _control_groups(root, "cpu"):
        pair = (_read(folder / "cpu.max") or "").split()
        if len(pair) != 2:
            pair = [
                _read(folder / "cpu.cfs_quota_us") or "",
                _read(folder / "cpu.cfs_period_us") or "",
            ]
        quota, period = map(_positive, pair)
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def nvidia_driver(root: Path) -> str | None:
    """Return the version of the NVIDIA kernel driver, such as ``565.57.01``; None where there is
    none.
    """
    text = _read(root / "proc/driver/nvidia/version") or ""
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return version.group(1) if version else None


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """Return one record a block of ``/proc/cpuinfo``."""
    blocks = re.split(r"\n\s*\n", _read(root / "proc/cpuinfo") or "")
    pairs = [
        [line.partition(":") for line in block.splitlines() if ":" in line] for block in blocks
    ]
    return [{name.strip(): value.strip() for name, _, value in block} for block in pairs if block]


def _identity(records: list[dict[str, str]]) -> tuple[str | None, str | None]:
    models = [
        record.get("model name") or record.get("cpu model") or _arm_model(record)
        for record in records
    ]
    vendors = [
        record.get("vendor_id") or _ARM_VENDORS.get(_hexadecimal(record, "CPU implementer"))
        for record in records
    ]
    model, vendor = (
        " + ".join(dict.fromkeys(filter(None, names))) or None for names in (models, vendors)
    )
    return model, vendor


def _arm_model(record: Mapping[str, str]) -> str | None:
    implementer, part = _hexadecimal(record, "CPU implementer"), _hexadecimal(record, "CPU part")
    if implementer < 0 or part < 0:
        return None
    maker = _ARM_VENDORS.get(implementer, f"implementer {implementer:#x}")
    return _ARM_PARTS.get((implementer, part), f"{maker} part {part:#x}")


def _hexadecimal(record: Mapping[str, str], name: str) -> int:
    return int(record[name], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", record.get(name, "")) else -1


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
    lines = re.findall(
        r"^(\w+):\s+(\d{1,20}) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE
    )
    return {name: 1024 * int(kibibytes) for name, kibibytes in lines}


def _linux_name(root: Path) -> str | None:
    release = re.search(
        r'^PRETTY_NAME="?([^"\n]*)"?$', _read(root / "etc/os-release") or "", re.MULTILINE
    )
    kernel = _read(root / "proc/sys/kernel/osrelease")
    return (
        ", ".join(filter(None, [release and release.group(1), kernel and f"Linux {kernel}"]))
        or None
    )


def _usable(allowed_cores: int | None, quota: float | None) -> float | None:
    return min(allowed_cores, quota) if allowed_cores and quota else allowed_cores


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups for ``controller``, each from its own up to the
    mount, v1 and v2.
    """
    memberships = [
        line.split(":", 2) for line in (_read(root / "proc/self/cgroup") or "").splitlines()
    ]
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, source = line.partition(" - ")
        mount_fields, source_fields = mount.split(), source.split()
        if (
            len(mount_fields) < 5
            or len(source_fields) < 3
            or source_fields[0] not in ("cgroup", "cgroup2")
        ):
            continue
        required_controller = "" if source_fields[0] == "cgroup2" else controller
        if required_controller and required_controller not in source_fields[2].split(","):
            continue
        paths = [
            path
            for _, names, path in (m for m in memberships if len(m) == 3)
            if required_controller in names.split(",")
        ]
        mount_root, point = mount_fields[3], root / mount_fields[4].lstrip("/")
        for path in map(PurePosixPath, paths):
            # A group outside the mounted part (a container without its own namespace) is seen as
            # the mount itself.
            inside = path.is_relative_to(mount_root) and ".." not in path.parts
            relative = path.relative_to(mount_root) if inside else PurePosixPath()
            yield from (point / parent for parent in (relative, *relative.parents))


def _online(root: Path) -> list[int]:
    cpus = _cpu_list(_read(root / "sys/devices/system/cpu/online"))
    if cpus:
        return sorted(cpus)
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*")
    return sorted(
        int(folder.name[3:])
        for folder in folders
        if folder.name[3:].isdigit() and _read(folder / "online") != "0"
    )


def _cpu_folder(root: Path, cpu: int) -> str:
    return f"{root}/sys/devices/system/cpu/cpu{cpu}"


def _cpu_list(text: str | None) -> frozenset[int] | None:
    """Return the processors in a list as Linux writes it (``0-3,8``); None where it is missing or
    malformed.
    """
    if text is None or not re.fullmatch(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?", text):
        return None
    ranges = [part.split("-") for part in text.split(",") if part]
    return frozenset(cpu for bounds in ranges for cpu in range(int(bounds[0]), int(bounds[-1]) + 1))


def _cache_bytes(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", text or "")
    return (
        int(match.group(1)) * 1024 ** " KMG".index(match.group(2) or " ") or None if match else None
    )


def _positive(text: str | None) -> int | None:
    return int(text) or None if text is not None and re.fullmatch(r"\d{1,20}", text) else None


def _largest(values: Iterable[int | None], factor: float) -> float | None:
    return max((factor * value for value in values if value), default=None)


def _read(path: Path | str) -> str | None:
    """Return the stripped text of ``path``, None where it cannot be read: half the time that
    pathlib takes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        chunks = []
        while chunk := os.read(descriptor, 1 << 16):
            chunks.append(chunk)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(chunks).decode(errors="replace").strip()
