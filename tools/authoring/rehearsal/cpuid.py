"""The answers of another processor to a program that asks it (``cpuid``), as rules for
processor.c.

Source of the leaves: AMD64 Architecture Programmer's Manual, volume 3, appendix E.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL = 0xFFFFFFFF
ANY = ALL  # every subleaf
_REGISTERS = "abcd"


@dataclass(frozen=True)
class Processor:
    """Answers to ``cpuid``: (leaf, subleaf, register, bits to clear, bits to set); and lines of
    ``/proc/cpuinfo``.
    """

    rules: tuple[tuple[int, int, str, int, int], ...]
    cpuinfo: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The rules as processor.c reads them."""
        return " ".join(
            f"{leaf:x}:{subleaf:x}:{_REGISTERS.index(register)}:{clear:x}:{put:x}"
            for leaf, subleaf, register, clear, put in self.rules
        )


def _put(
    leaf: int, subleaf: int = ANY, /, **registers: int
) -> list[tuple[int, int, str, int, int]]:
    return [(leaf, subleaf, register, ALL, value) for register, value in registers.items()]


def _word(text: str) -> int:
    return int.from_bytes(text.encode().ljust(4, b"\0")[:4], "little")


def _maker(leaf: int, largest: int) -> list[tuple[int, int, str, int, int]]:
    return _put(leaf, a=largest, b=_word("Auth"), d=_word("enti"), c=_word("cAMD"))


def _name(text: str) -> list[tuple[int, int, str, int, int]]:
    words = [_word(text[start : start + 4]) for start in range(0, 48, 4)]
    return [
        rule
        for leaf in range(3)
        for rule in _put(
            0x80000002 + leaf, **dict(zip(_REGISTERS, words[4 * leaf : 4 * leaf + 4], strict=True))
        )
    ]


def _cache(
    subleaf: int, kind: int, level: int, size_kib: int, ways: int
) -> list[tuple[int, int, str, int, int]]:
    """Return AMD's leaf of one cache with lines of 64 bytes, used by one thread (the last one by
    sixteen).
    """
    threads = 16 if level == 3 else 1
    sets = size_kib * 1024 // 64 // ways
    return _put(
        0x8000001D,
        subleaf,
        a=(threads - 1) << 14 | 1 << 8 | level << 5 | kind,
        b=(ways - 1) << 22 | 63,
        c=sets - 1,
        d=0,
    )


_NAME = "AMD EPYC 9354P"
EPYC = Processor(
    rules=(
        *_maker(0, 0x10),
        *_put(1, a=0x00A10F11),
        *_put(4, a=0, b=0, c=0, d=0),  # where Intel describes its caches
        (7, 0, "d", 0b1111 << 22, 0),  # no AMX and no float16
        (7, 1, "a", ALL ^ 1 << 5, 0),  # of these bfloat16 alone
        *_put(7, 1, b=0, c=0, d=0),
        *_maker(0x80000000, 0x80000028),
        (0x80000001, ANY, "c", 0, 1 << 22),  # caches stand in leaf 8000001D
        *_name(_NAME),
        *_put(0x80000005, c=32 << 24 | 8 << 16 | 0x140, d=32 << 24 | 8 << 16 | 0x140),
        *_put(0x80000006, c=1024 << 16 | 6 << 12 | 0x140, d=64 << 18 | 9 << 12 | 0x140),
        *_cache(0, 1, 1, 32, 8),
        *_cache(1, 2, 1, 32, 8),
        *_cache(2, 3, 2, 1024, 8),
        *_cache(3, 3, 3, 32 * 1024, 16),
        *_put(0x8000001D, 4, a=0, b=0, c=0, d=0),
    ),
    cpuinfo={
        "vendor_id": "AuthenticAMD",
        "cpu family": "25",
        "model": "17",
        "model name": _NAME,
        "stepping": "1",
    },
)
