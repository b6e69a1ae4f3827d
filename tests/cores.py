"""What is known of processors' cores apart from any measurement of their peak: clock, vector units,
lanes.

The clock is that of a chain of integer additions, one cycle each on every core. Both factors come
from registers: a constant would be added without a cycle on newer cores (Intel since Golden Cove).
Units and lanes are published.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers import native

CLOCK = """#include <chrono>
#include <cstdint>
extern "C" double additions_s(int64_t additions) {
    uint64_t sum = 1, more = 3;
    asm volatile("" : "+r"(more));
    auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < additions; i += 16) {
        #pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) { sum += more; asm volatile("" : "+r"(sum)); }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
"""
ADDITIONS = 1_600_000


@dataclass(frozen=True)
class Core:
    """A core's float32 multiply-adds: in each cycle ``units`` vectors of ``lanes`` numbers may
    start.
    """

    name: str
    units: int
    lanes: int


# Fog, "Instruction tables", agner.org/optimize; uops.info; Arm's Software Optimization Guides. A
# core that starts one 512-bit vector in a cycle does the work of two of 256 bits. Left out are
# Skylake-X and Cascade Lake, which have one 512-bit unit or two by their model's name, and chips
# with cores of two kinds.
_ZEN1, _ZEN2 = Core("Zen", 2, 4), Core("Zen 2", 2, 8)
_ZEN3, _ZEN4 = Core("Zen 3", 2, 8), Core("Zen 4", 2, 8)
_HASWELL, _SKYLAKE = Core("Haswell or Broadwell", 2, 8), Core("Skylake client", 2, 8)
_ICE_LAKE = Core("Ice, Tiger or Rocket Lake client", 2, 8)
_SERVER = Core("Intel server of two 512-bit units", 2, 16)
_INTEL = {
    **dict.fromkeys((60, 61, 63, 69, 70, 71, 79, 86), _HASWELL),
    **dict.fromkeys((78, 94, 142, 158, 165, 166), _SKYLAKE),
    **dict.fromkeys((125, 126, 140, 141, 167), _ICE_LAKE),
    # Ice Lake SP, Sapphire, Granite and Emerald Rapids
    **dict.fromkeys((106, 143, 173, 207), _SERVER),
}
_AMD = {
    (0x17, range(0x30)): _ZEN1,
    (0x17, range(0x30, 0x100)): _ZEN2,
    (0x19, range(0x10)): _ZEN3,
    (0x19, range(0x10, 0x20)): _ZEN4,
    (0x19, range(0x20, 0x60)): _ZEN3,
    (0x19, range(0x60, 0x80)): _ZEN4,
    (0x19, range(0xA0, 0xB0)): _ZEN4,
    (0x1A, range(0x20)): Core("Zen 5 server", 2, 16),
    (0x1A, range(0x40, 0x50)): Core("Zen 5 desktop", 2, 16),
}
_ARM = {
    0xD0C: Core("Neoverse N1", 2, 4),
    0xD40: Core("Neoverse V1", 4, 4),
    0xD49: Core("Neoverse N2", 2, 4),
    0xD4F: Core("Neoverse V2", 4, 4),
}


def core_of(cpuinfo: str) -> Core | str:
    """Return the core that the text of /proc/cpuinfo describes, or how it names one that is not
    known here.
    """
    facts = dict(
        line.split(":", 1) for line in cpuinfo.split("\n\n")[0].splitlines() if ":" in line
    )
    values = {name.strip(): value.strip() for name, value in facts.items()}
    family, model = (int(values.get(name, -1)) for name in ("cpu family", "model"))
    vendor = values.get("vendor_id", values.get("CPU implementer", "no vendor"))
    if vendor == "GenuineIntel" and family == 6 and model in _INTEL:
        # A virtual machine may give a client's model; tiles are on servers alone, since Sapphire
        # Rapids.
        return _SERVER if "amx_tile" in values.get("flags", "").split() else _INTEL[model]
    for (known, models), core in _AMD.items():
        if vendor == "AuthenticAMD" and family == known and model in models:
            return core
    part = int(values.get("CPU part", "-1"), 16)
    if vendor == "0x41" and part in _ARM:
        return _ARM[part]
    return f"{vendor}, family {family}, model {model}, part {part:#x}"


def this_core() -> Core | str:
    """Return the core of this machine, or how its system names one that is not known here."""
    path = Path("/proc/cpuinfo")
    return core_of(path.read_text()) if path.exists() else "a system without /proc/cpuinfo"


def clock_hz(runs: int = 5) -> float:
    """Return this core's clock now, from the fastest of some chains of additions.

    Raises NativeError.
    """
    additions_s = native.compile_cpp(CLOCK).function("double additions_s(int64_t additions)").raw
    return ADDITIONS / min(additions_s(ADDITIONS) for _ in range(runs))
