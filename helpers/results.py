"""How every result of the library is shown and kept: as text, HTML, a pandas DataFrame, JSON.

A result is a frozen dataclass that inherits :class:`Result`; its field names carry the units, and the suffix
alone decides how a value is printed:

=========================  ==================  =============
field                      printed as          example
=========================  ==================  =============
``..._s``                  time                ``76.0 us``
``..._bytes``              bytes, decimal      ``3.14 MB``
``..._bytes_per_s``        rate                ``34.1 GB/s``
``..._flops``, ``flops``   operations          ``557 kFLOP``
``..._flops_per_s``        rate                ``104 GFLOP/s``
``..._macs``, ``macs``     multiply-accumulate ``279 kMAC``
``..._hz``, ``..._w``      frequency, power    ``4.90 GHz``
``..._share``              part of one         ``31.9 %``
``..._ratio``, ``speedup`` ratio               ``1.96x``
=========================  ==================  =============

A whole number anywhere else is printed with thousands separators. A field that holds a tuple of results is a
table with one row a member.

Lesson 00.
"""

from __future__ import annotations

import dataclasses
import html
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import pandas as pd

from helpers import units

ResultType = TypeVar("ResultType", bound="Result")

# The order matters: the first suffix that fits is taken.
_SUFFIX_UNITS = {
    "bytes_per_s": "B/s", "flops_per_s": "FLOP/s", "macs_per_s": "MAC/s", "flops_per_byte": "FLOP/B",
    "bytes": "B", "flops": "FLOP", "macs": "MAC", "hz": "Hz", "s": "s", "w": "W", "j": "J",
}  # fmt: skip
_PLAIN_SUFFIXES = {"share": lambda value: f"{100 * value:.1f} %", "ratio": lambda value: f"{value:.2f}x",
                   "speedup": lambda value: f"{value:.2f}x"}  # fmt: skip


class Result:
    """Base of every result dataclass: prints as text, shows as HTML in a notebook, turns into a table or JSON."""

    def __str__(self) -> str:
        scalars = [(label(name), cell(name, value)) for name, value in _scalars(self)]
        width = max((len(name) for name, _ in scalars), default=0)
        lines = [type(self).__name__, *(f"  {name:<{width}}  {value}" for name, value in scalars)]
        for name, rows in _tables(self):
            lines += [f"  {label(name)}", _indent(printed(_frame(rows)).to_string(index=False))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label(name))}</th>"
            f"<td style='text-align:left'>{html.escape(cell(name, value))}</td></tr>"
            for name, value in _scalars(self)
        )
        tables = "".join(
            f"<div><b>{html.escape(label(name))}</b></div>{printed(_frame(members)).to_html(index=False, border=0)}"
            for name, members in _tables(self)
        )
        scalars = f"<table><tbody>{rows}</tbody></table>" if rows else ""
        return f"<div><b>{type(self).__name__}</b>{scalars}{tables}</div>"

    def table(self) -> pd.DataFrame:
        """Return a DataFrame of plain numbers: one row, or one a member of the tuple of results it holds."""
        tables = _tables(self)
        if len(tables) == 1:
            return _frame(tables[0][1])
        return pd.DataFrame([dict(_scalars(self))])

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dictionaries, lists, numbers and strings, with the field names as keys."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def to_json(self) -> str:
        """Return the result as JSON text; :func:`from_dict` reads it back."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=True)


def from_dict(result_type: type[ResultType], values: Mapping[str, Any]) -> ResultType:
    """Build a ``result_type`` from what :meth:`Result.to_dict` gave, nested results and tuples included.

    Raises ValueError when a field is missing or unknown, naming it.
    """
    hints = typing.get_type_hints(result_type)
    fields = {field.name: field for field in dataclasses.fields(result_type)}
    unknown = sorted(set(values) - set(fields))
    required = {name for name, field in fields.items()
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING}  # fmt: skip
    missing = sorted(required - set(values))
    if unknown or missing:
        problem = f"fields missing {missing or 'none'}, unknown {unknown or 'none'}"
        raise ValueError(f"not a {result_type.__name__}: {problem}")
    return result_type(**{name: _restore(hints[name], value) for name, value in values.items()})


def label(name: str) -> str:
    """Return a field's name as a reader sees it: without the unit that the value prints, with spaces."""
    suffix = _suffix(name)
    stem = name.removesuffix(f"_{suffix}") if suffix in _SUFFIX_UNITS else name
    return stem.replace("_", " ")


def cell(name: str, value: Any) -> str:
    """Return the printed value of the field ``name``: the field's suffix decides the unit."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {cell(name, item)}" for key, item in value.items()) or "none"
    if isinstance(value, tuple | list):
        return ", ".join(cell(name, item) for item in value) or "none"
    if isinstance(value, int | float):
        return _number(name, value)
    return str(value)


def _number(name: str, value: float) -> str:
    suffix = _suffix(name)
    if suffix in _SUFFIX_UNITS:
        return units.text(value, _SUFFIX_UNITS[suffix])
    if suffix in _PLAIN_SUFFIXES:
        return _PLAIN_SUFFIXES[suffix](value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def printed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``frame`` with every cell as text in its column's unit and the columns labelled for a reader."""
    columns = {label(name): [cell(name, value) for value in frame[name].tolist()] for name in frame.columns}
    return pd.DataFrame(columns, index=frame.index)


def _suffix(name: str) -> str | None:
    known = [*_SUFFIX_UNITS, *_PLAIN_SUFFIXES]
    return next(
        (suffix for suffix in known if (name == suffix and len(suffix) > 1) or name.endswith(f"_{suffix}")), None
    )


def _is_rows(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(item, Result) for item in value)


def _scalars(result: Result) -> list[tuple[str, Any]]:
    pairs = [(field.name, getattr(result, field.name)) for field in dataclasses.fields(result) if field.repr]
    return [(name, value) for name, value in pairs if not _is_rows(value)]


def _tables(result: Result) -> list[tuple[str, tuple[Result, ...]]]:
    pairs = [(field.name, getattr(result, field.name)) for field in dataclasses.fields(result) if field.repr]
    return [(name, value) for name, value in pairs if _is_rows(value)]


def _frame(rows: tuple[Result, ...]) -> pd.DataFrame:
    return pd.DataFrame([dict(_scalars(row)) for row in rows])


def _indent(block: str) -> str:
    return "\n".join(f"    {line}" for line in block.splitlines())


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _restore(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        return None if value is None else _restore(options[0], value)
    if origin is tuple:
        members = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_restore(member, item) for member, item in zip(members, value, strict=True))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {key: _restore(arguments[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Result):
        return from_dict(hint, value)
    return value
