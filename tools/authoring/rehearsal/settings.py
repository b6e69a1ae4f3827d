"""Other processors, as far as this one can act as them: which instruction sets, cores, threads and
caches are left.

Each library that looks for instruction sets by itself has a variable which forbids it some of them.
The size of a cache and the flags of the processor are files, in whose place others are seen. What
asks the processor itself (``cpuid``) gets the answers of another maker, where the processor lets a
program withhold its own (processor.c); all but the C library, which has chosen before, and has a
variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__ as NUMPY_LEVELS  # type: ignore[import-not-found]  # NumPy has no stub of it

from tools.authoring.lesson import AuthoringError
from tools.authoring.rehearsal import cpuid

MIB = 2**20
_AMX = frozenset({"amx_bf16", "amx_tile", "amx_int8"})
_NARROW = _AMX | {"avx512_bf16", "avx512_fp16"}


class Unavailable(AuthoringError):
    """This machine cannot act as a setting asks; the text says why."""


@dataclass(frozen=True)
class Setting:
    """A part of this machine for a run: ``name`` as the command takes it, ``what`` in words.

    ``variables`` limit libraries, ``cores`` are the processors that may be used, ``cache_bytes`` is
    the size of the last cache, ``hidden`` are the flags (words, of which those that begin so go)
    that ``/proc/cpuinfo`` does not show, ``processor`` answers ``cpuid`` and gives its maker,
    family and name.
    """

    name: str
    what: str
    variables: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    cache_bytes: int | None = None
    hidden: frozenset[str] = frozenset()
    processor: cpuid.Processor | None = None

    def __or__(self, other: Setting) -> Setting:
        """Return the setting of both, whose limits must not contradict each other."""
        clash = {
            key
            for key in self.variables.keys() & other.variables.keys()
            if self.variables[key] != other.variables[key]
        }
        for name in ("cores", "cache_bytes", "processor"):
            values = [
                value for value in (getattr(self, name), getattr(other, name)) if value is not None
            ]
            clash |= {name} if values[1:] and values[0] != values[1] else set()
        if clash:
            both = f"{self.name} and {other.name} both set {', '.join(sorted(clash))}"
            raise AuthoringError(f"{both}; rehearse them one after the other")
        return Setting(
            f"{self.name}+{other.name}",
            f"{self.what}; {other.what}",
            {**self.variables, **other.variables},
            self.cores or other.cores,
            self.cache_bytes or other.cache_bytes,
            self.hidden | other.hidden,
            self.processor or other.processor,
        )


def _numpy_without(*levels: str) -> str:
    """Return the names, as this NumPy has them, of the instruction sets that begin with one of
    ``levels``.
    """
    return " ".join(name for name in NUMPY_LEVELS if name.startswith(levels))


AS_IT_IS = Setting("as-it-is", "this machine, nothing limited")
SINGLE = (
    Setting(
        "avx512",
        "AVX-512, without bfloat16, float16 and AMX",
        {
            "ATEN_CPU_CAPABILITY": "avx512",
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512",
            "OPENBLAS_CORETYPE": "SkylakeX",
            "NPY_DISABLE_CPU_FEATURES": _numpy_without("AVX512_ICL", "AVX512_SPR"),
            "NUMBA_CPU_NAME": "skylake-avx512",
            "NUMBA_CPU_FEATURES": "",
            "FBGEMM_ENABLE_INSTRUCTIONS": "AVX512",
        },
        hidden=_NARROW,
    ),
    Setting(
        "avx2",
        "AVX2 at most",
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "OPENBLAS_CORETYPE": "Haswell",
            "NPY_DISABLE_CPU_FEATURES": _numpy_without("AVX512", "X86_V4"),
            "NUMBA_CPU_NAME": "haswell",
            "NUMBA_CPU_FEATURES": "",
            "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
        },
        hidden=_NARROW | {"avx512", "avx_vnni"},
    ),
    Setting(
        "sse",
        "SSE4.2 at most, without fused multiply-adds",
        {
            "ATEN_CPU_CAPABILITY": "default",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem",
            "NPY_DISABLE_CPU_FEATURES": _numpy_without("AVX", "FMA", "F16C", "X86_V3", "X86_V4"),
            "NUMBA_CPU_NAME": "nehalem",
            "NUMBA_CPU_FEATURES": "",
            "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps="
            "-AVX,-AVX2,-FMA,-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ",
        },
        hidden=_NARROW | {"avx", "fma", "f16c"},
    ),
    Setting("one-core", "one core", cores=1),
    Setting(
        "four-threads",
        "four threads",
        {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE"},
    ),
    Setting("small-cache", "a last cache of 8 MiB", cache_bytes=8 * MIB),
    Setting(
        "amd",
        "an AMD EPYC of 2022: AVX-512 and bfloat16, no AMX, a last cache of 32 MiB",
        cache_bytes=32 * MIB,
        hidden=_AMX | {"avx512_fp16", "avx_vnni"},
        processor=cpuid.EPYC,
    ),
)
KNOWN = {setting.name: setting for setting in (AS_IT_IS, *SINGLE)}


def parse(name: str) -> Setting:
    """Return the setting of a name such as ``avx2`` or, for several at once, ``avx2+one-core``."""
    parts = name.split("+")
    unknown = [part for part in parts if part not in KNOWN]
    if unknown:
        raise AuthoringError(
            f"no setting {', '.join(unknown)}; there are {', '.join(KNOWN)}, and a+b for both"
        )
    setting = KNOWN[parts[0]]
    for part in parts[1:]:
        setting |= KNOWN[part]
    return setting


LIMITED = "avx2+one-core+small-cache"  # what CI runs on a few lessons
WHOLE = ("avx512+four-threads", LIMITED, "sse", "amd")


def files(setting: Setting, root: Path = Path("/")) -> dict[Path, str]:
    """Return the files below ``root`` that are seen otherwise, with their contents."""
    contents = {}
    if setting.hidden or setting.processor:
        path = root / "proc/cpuinfo"
        if not path.exists():
            raise Unavailable("this system has no /proc/cpuinfo, whose flags a setting hides")
        contents[path] = _cpuinfo(path.read_text(encoding="utf-8"), setting)
    if setting.cache_bytes:
        contents |= _last_caches(root, setting.cache_bytes)
    return contents


def _cpuinfo(text: str, setting: Setting) -> str:
    start = "|".join(sorted(map(re.escape, setting.hidden)))
    if start:
        text = re.sub(rf"(?m)(?<=[ \t])(?:{start})\w*(?: |$)", "", text)
    fields = setting.processor.cpuinfo if setting.processor else {}
    for key, value in fields.items():
        text = re.sub(rf"(?m)^({re.escape(key)}\s*:).*$", rf"\1 {value}", text)
    return text


def _last_caches(root: Path, size_bytes: int) -> dict[Path, str]:
    """Return the sizes of the caches of the highest level, and their sets, so that ways and lines
    stay true.
    """
    caches = list((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"))
    levels = {cache: int((cache / "level").read_text()) for cache in caches}
    contents = {}
    for cache in (cache for cache, level in levels.items() if level == max(levels.values())):
        line, ways = (
            int((cache / name).read_text())
            for name in ("coherency_line_size", "ways_of_associativity")
        )
        contents[cache / "size"] = f"{size_bytes // 1024}K\n"
        contents[cache / "number_of_sets"] = f"{size_bytes // line // max(ways, 1)}\n"
    if not contents:
        raise Unavailable("this system lists no caches, so the last one cannot be made smaller")
    return contents
