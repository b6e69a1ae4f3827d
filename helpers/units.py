"""Quantities as people write them: parse and print seconds, bytes, operations and rates.

Decimal prefixes (kB = 1,000 bytes) and binary prefixes (KiB = 1,024 bytes) are both read, and never mixed
up: ``GB`` is 10^9 bytes, ``GiB`` is 2^30 (IEC 80000-13). A multiply-accumulate (MAC) is one multiplication
and one addition, so two floating-point operations (FLOP); the two are different units here, and a number
goes from one to the other only through :func:`flops_from_macs`.

Lesson 00.
"""

from __future__ import annotations

import math
import re

DECIMAL_PREFIXES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1, "k": 10**3, "K": 10**3, "M": 10**6,
                    "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}  # fmt: skip
BINARY_PREFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
BASE_UNITS = ("s", "B", "B/s", "FLOP", "FLOP/s", "MAC", "MAC/s", "FLOP/B", "Hz", "W", "J", "")

_FLOPS_PER_MAC = 2
_OTHER_TIMES_S = {"min": 60, "h": 3600}
_SPELLINGS = {
    "sec": "s", "second": "s", "seconds": "s", "byte": "B", "bytes": "B", "byte/s": "B/s", "bytes/s": "B/s",
    "FLOPs": "FLOP", "MACs": "MAC", "FLOPS": "FLOP/s", "MACs/s": "MAC/s", "FLOPs/s": "FLOP/s",
    "FLOP/byte": "FLOP/B", "FLOPs/byte": "FLOP/B", "minute": "min", "minutes": "min", "hour": "h", "hours": "h",
}  # fmt: skip
_NUMBER = re.compile(r"^\s*([+-]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def parse(text: str, unit: str) -> float:
    """Return the value of ``text`` in the base unit ``unit`` (one of :data:`BASE_UNITS`).

    ``parse("24 GiB", "B")`` is 25769803776, ``parse("76 us", "s")`` is 7.6e-05, ``parse("1,024", "B")`` is
    1024: a number without a unit is taken to be in the base unit. A whole number comes back as an ``int``.

    Raises ValueError when the text holds no number, or a unit that is not a multiple of ``unit``.
    Lesson 00.
    """
    if unit not in BASE_UNITS:
        raise ValueError(f"unit {unit!r} is not known; use one of {', '.join(repr(u) for u in BASE_UNITS)}")
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write a number and a unit, such as '3.5 {unit}'")
    number, suffix = match.groups()
    value = float(number.replace(",", "").replace("_", "")) * _factor(suffix, unit, text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _factor(suffix: str, unit: str, text: str) -> float:
    if suffix == "" or suffix == unit:
        return 1
    if _SPELLINGS.get(suffix, suffix) in _OTHER_TIMES_S and unit == "s":
        return _OTHER_TIMES_S[_SPELLINGS.get(suffix, suffix)]
    prefixes = {**DECIMAL_PREFIXES, **(BINARY_PREFIXES if unit.startswith("B") else {})}
    for prefix in sorted(prefixes, key=len, reverse=True):
        rest = suffix.removeprefix(prefix) if suffix.startswith(prefix) else None
        if rest and _SPELLINGS.get(rest, rest) == unit:
            return prefixes[prefix]
    raise ValueError(f"{text!r} is not in {unit or 'plain numbers'}{_confusion(suffix, unit)}")


def _confusion(suffix: str, unit: str) -> str:
    """Name the mistake behind a unit that does not fit, where it is a common one."""
    if unit.startswith("B") and re.fullmatch(r"[kKMGTP]?i?(b|bit|bits)(/s|ps)?", suffix):
        return ": a small b means bits (8 bits are a byte); write a capital B for bytes"
    if unit.startswith("FLOP") and "MAC" in suffix:
        return ": a MAC is two FLOP; convert with flops_from_macs first"
    if unit == "FLOP" and suffix.endswith(("FLOPS", "FLOP/s")):
        return ": FLOPS and FLOP/s are rates; a count of operations is in FLOP"
    example = f"3.5 {'m' if unit == 's' else 'M'}{unit}"
    return f"; write it as, for example, '3.5 {unit}' or '{example}'" if unit else "; write a number alone"


def text(value: float, unit: str, *, binary: bool = False) -> str:
    """Return ``value`` with a prefix that leaves one to three digits before the point, to 3 significant digits.

    ``text(7.6e-05, "s")`` is ``'76.0 us'``. ``binary=True`` uses Ki, Mi, Gi and is for bytes only. Counts below
    10,000 in B, FLOP and MAC are printed whole. None and NaN give ``'unknown'``.
    """
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return f"{value} {unit}".strip()
    if binary and not unit.startswith("B"):
        raise ValueError(f"binary prefixes are for bytes, not for {unit!r}")
    whole = unit in ("B", "FLOP", "MAC") and float(value).is_integer()
    if value == 0 or (whole and abs(value) < (1024 if binary else 10_000)):
        return f"{value:,.0f} {unit}".strip()
    prefixes = {"": 1, **BINARY_PREFIXES} if binary else _printed_prefixes(unit)
    return _scaled(value, unit, prefixes)


def _printed_prefixes(unit: str) -> dict[str, float]:
    small = ("n", "u", "m") if unit in ("s", "W", "J") else ()
    large = () if unit == "s" else ("k", "M", "G", "T", "P", "E")
    return {prefix: DECIMAL_PREFIXES[prefix] for prefix in (*small, "", *large)}


def _scaled(value: float, unit: str, prefixes: dict[str, float]) -> str:
    ascending = sorted(prefixes.items(), key=lambda item: item[1])
    fitting = [item for item in ascending if abs(value) / item[1] >= 0.9995] or ascending[:1]
    prefix, factor = fitting[-1]
    scaled = value / factor
    digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:,.{digits}f} {prefix}{unit}".strip()


def flops_from_macs(macs: int) -> int:
    """Return the floating-point operations in ``macs`` multiply-accumulates: two each. Lesson 00."""
    return _FLOPS_PER_MAC * macs
