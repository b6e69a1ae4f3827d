"""Quantities as people write them: parse and print seconds, bytes, operations and rates.

Decimal prefixes (kB = 1,000 bytes) and binary prefixes (KiB = 1,024 bytes) are both read, and never
mixed up: ``GB`` is 10^9 bytes, ``GiB`` is 2^30 (IEC 80000-13). A multiply-accumulate (MAC) is one
multiplication and one addition, so two floating-point operations (FLOP); the two are different
units here, and a number goes from one to the other only through :func:`flops_from_macs`.

Lesson 00.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from helpers.checks import boolean, real, whole_number

DECIMAL_PREFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "m": 1e-3,
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
BINARY_PREFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
BASE_UNITS = ("s", "B", "B/s", "FLOP", "FLOP/s", "MAC", "MAC/s", "FLOP/B", "Hz", "W", "J", "")

_FLOPS_PER_MAC = 2
_OTHER_TIMES_S = {"min": 60, "h": 3600}
_DIVISIBLE_UNITS = ("s", "W", "J")  # a millibyte is a mistyped megabyte, a millisecond is not
_SPELLINGS = {
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "byte": "B",
    "bytes": "B",
    "byte/s": "B/s",
    "bytes/s": "B/s",
    "FLOPs": "FLOP",
    "MACs": "MAC",
    "FLOPS": "FLOP/s",
    "MACs/s": "MAC/s",
    "FLOPs/s": "FLOP/s",
    "FLOP/byte": "FLOP/B",
    "FLOPs/byte": "FLOP/B",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
}
_WHOLE_PART = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:_\d+)*"
_NUMBER = re.compile(
    rf"\s*([+-]?(?:(?:{_WHOLE_PART})(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf)(?![\d.,])\s*(.*?)\s*"
)
_GREEK_MU = "\N{GREEK SMALL LETTER MU}"  # looks like the micro sign, and is another character
_EXACT_DIGITS = 27  # what Decimal multiplies without rounding


def parse(text: str, unit: str, *, bare: bool = False) -> float:
    """Return the value of ``text`` in the base unit ``unit`` (one of :data:`BASE_UNITS`).

    ``parse("24 GiB", "B")`` is 25769803776, ``parse("76 us", "s")`` is 7.6e-05, and
    ``parse("1,024", "")`` is 1024. A whole number comes back as an ``int``. A comma separates
    thousands; the decimal sign is the point. With ``bare`` a number alone is in the base unit.

    Raises ValueError when the text holds no number, no unit, or one that is not a multiple of
    ``unit``, and TypeError when it is no text.

    >>> parse("24 GiB", "B")
    25769803776

    Lesson 11.
    """
    boolean("bare", bare)
    _require_known(unit)
    if not isinstance(text, str):
        raise TypeError(
            f"parse reads text such as '3.5 {unit}', not {text!r} ({type(text).__name__})"
        )
    match = _NUMBER.fullmatch(text)
    if match is None:
        comma = (
            " (a comma separates thousands, the decimal sign is the point)" if "," in text else ""
        )
        example = (
            f"a number and a unit, such as '3.5 {unit}'"
            if unit
            else "a number alone, such as '3.5'"
        )
        raise ValueError(f"{text!r} is not a quantity{comma}; write {example}")
    number, suffix = match.group(1), match.group(2).replace(_GREEK_MU, "µ")
    plain = number.replace(",", "").replace("_", "")
    if not (suffix or bare) and unit:
        raise ValueError(f"{text!r} has no unit; write it as, for example, '{plain} {unit}'")
    factor = _factor(suffix, unit, text)
    if "inf" in plain or float(plain) == 0:
        return float(plain) if "inf" in plain else 0
    if math.isinf(float(plain) * factor):
        raise ValueError(f"{text!r} is more than a computer's number can hold (about 1.8e308)")
    # In floating point 76 * 1e-6 is 7.599999999999999e-05; in decimal arithmetic it is exact.
    value = Decimal(plain) * Decimal(repr(factor))
    is_whole = value.adjusted() < _EXACT_DIGITS and value == value.to_integral_value()
    return int(value) if is_whole else float(value)


def _require_known(unit: str) -> None:
    if unit not in BASE_UNITS:
        raise ValueError(
            f"unit {unit!r} is not known; use one of {', '.join(repr(u) for u in BASE_UNITS)}"
        )


def _factor(suffix: str, unit: str, text: str) -> float:
    if suffix == "" or suffix == unit:
        return 1
    if _SPELLINGS.get(suffix, suffix) in _OTHER_TIMES_S and unit == "s":
        return _OTHER_TIMES_S[_SPELLINGS.get(suffix, suffix)]
    prefixes = {**_decimal_prefixes(unit), **(BINARY_PREFIXES if unit.startswith("B") else {})}
    for prefix in sorted(prefixes, key=len, reverse=True):
        base_unit = suffix.removeprefix(prefix) if suffix.startswith(prefix) else None
        if base_unit and _SPELLINGS.get(base_unit, base_unit) == unit:
            return prefixes[prefix]
    if unit == "" and suffix in prefixes:
        return prefixes[suffix]
    raise ValueError(
        f"{text!r} is not in "
        f"{unit or 'plain numbers'}{_confusion(suffix, unit, [*filter(None, prefixes)])}"
    )


def _decimal_prefixes(unit: str) -> dict[str, float]:
    return {
        name: factor
        for name, factor in DECIMAL_PREFIXES.items()
        if factor >= 1 or unit in _DIVISIBLE_UNITS
    }


def _confusion(suffix: str, unit: str, prefixes: Sequence[str]) -> str:
    """Name the mistake behind a unit that does not fit, where it is a common one."""
    if unit.startswith("B") and re.fullmatch(r"[kKmMGTPE]?i?([bB]its?|b)(/s|ps)?", suffix):
        return ": a small b means bits (8 bits are a byte); write a capital B for bytes"
    if unit.startswith("FLOP") and "MAC" in suffix:
        return ": a MAC is two FLOP; convert with flops_from_macs first"
    if unit == "FLOP" and suffix.endswith(("FLOPS", "FLOP/s", "FLOPs/s")):
        return ": FLOPS and FLOP/s are rates; a count of operations is in FLOP"
    if unit == "FLOP/s" and suffix.endswith(("FLOP", "FLOPs")):
        return ": FLOP and FLOPs are counts; a rate is in FLOP/s"
    if suffix.startswith("m") and unit and unit not in _DIVISIBLE_UNITS:
        return ": a small m means a thousandth; write a capital M for a million"
    intended_units = {
        form.lower(): f"{prefix}{unit}"
        for prefix in reversed(prefixes)
        for form in (prefix, f"{prefix}{unit}")
    }
    example = f"3.5 {intended_units.get(suffix.lower()) or ('m' if unit == 's' else 'M') + unit}"
    return (
        f"; write it as, for example, '3.5 {unit}' or '{example}'"
        if unit
        else "; write a number alone"
    )


def text(value: float | None, unit: str, *, binary: bool = False) -> str:
    """Return ``value`` in ``unit`` to 3 significant digits, with a prefix that leaves one to three
    before the point.

    ``text(7.6e-05, "s")`` is ``'76.0 us'``. ``binary=True`` uses Ki, Mi, Gi and is for bytes only.
    Counts below 10,000 in B, FLOP and MAC are printed whole. None and NaN give ``'unknown'``. What
    no prefix reaches keeps its size: ``text(2e-13, "s")`` is ``'0.0002 ns'``.

    Raises TypeError for what is no number, ValueError for a unit that is not in :data:`BASE_UNITS`.

    >>> text(7.6e-05, "s")
    '76.0 us'

    Lesson 00.
    """
    boolean("binary", binary)
    _require_known(unit)
    if binary and not unit.startswith("B"):
        raise ValueError(f"binary prefixes are for bytes, not for {unit!r}")
    value = math.nan if value is None else real("value", value)
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return f"{value} {unit}".strip()
    is_whole = unit in ("B", "FLOP", "MAC") and value.is_integer()
    if value == 0 or (is_whole and abs(value) < (1024 if binary else 10_000)):
        return f"{int(value):,} {unit}".strip()
    prefixes: dict[str, float] = {"": 1, **BINARY_PREFIXES} if binary else _printed_prefixes(unit)
    return _text_with_prefix(value, unit, prefixes)


def _printed_prefixes(unit: str) -> dict[str, float]:
    small = ("n", "u", "m") if unit in _DIVISIBLE_UNITS else ()
    large = () if unit == "s" else ("k", "M", "G", "T", "P", "E")
    return {prefix: DECIMAL_PREFIXES[prefix] for prefix in (*small, "", *large)}


def _text_with_prefix(value: float, unit: str, prefixes: dict[str, float]) -> str:
    ascending = sorted(prefixes.items(), key=lambda item: item[1])
    fitting = [
        item for item in ascending if float(f"{abs(value) / item[1]:.6g}") >= 0.9995
    ] or ascending[:1]
    prefix, factor = fitting[-1]
    scaled_value = value / factor
    return f"{_three_digits(scaled_value)} {prefix}{unit}".strip()


def _three_digits(value: float) -> str:
    if abs(value) < 0.9995:
        return f"{value:.3g}"
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def flops_from_macs(macs: int) -> int:
    """Return the floating-point operations in ``macs`` multiply-accumulates: two each.

    Raises TypeError or ValueError for what is no whole number of at least 0.

    >>> flops_from_macs(279_000)
    558000

    Lesson 00.
    """
    return _FLOPS_PER_MAC * whole_number("macs", macs, at_least=0)
