"""Results of the library as text, HTML, a pandas DataFrame and JSON.

A result is a class that inherits :class:`Record`, which makes it a frozen dataclass (a frozen
dataclass that inherits :class:`Result` is one as well). Its field names carry the units, and the
suffix alone decides how a value is printed:

==========================  ===================  ===============
field                       printed as           example
==========================  ===================  ===============
``..._s``                   time                 ``76.0 us``
``..._bytes``               bytes, decimal       ``3.14 MB``
``..._bytes_per_s``         rate                 ``34.1 GB/s``
``..._per_s``               events a second      ``1,200/s``
``..._flops``, ``flops``    operations           ``557 kFLOP``
``..._flops_per_s``         rate                 ``104 GFLOP/s``
``..._macs``, ``macs``      multiply-accumulate  ``279 kMAC``
``..._hz``, ``..._w``       frequency, power     ``4.90 GHz``
``..._share``               part of one          ``31.9 %``
``..._ratio``, ``speedup``  ratio                ``1.96x``
==========================  ===================  ===============

A whole number anywhere else is printed with thousands separators; None and NaN are ``unknown``. A
field that holds a tuple of results is a table with one row a member; a field that holds one result
is shown below it. A field made with ``field(repr=False)`` is kept, and not shown.

Lesson 00.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from helpers import units
from helpers.checks import one_of

if TYPE_CHECKING:
    import pandas as pd

ResultType = TypeVar("ResultType", bound="Result")

# The order matters: the first suffix that fits is taken.
_SUFFIX_UNITS: dict[str, str] = {
    "bytes_per_s": "B/s",
    "flops_per_s": "FLOP/s",
    "macs_per_s": "MAC/s",
    "flops_per_byte": "FLOP/B",
    "per_s": "",
    "bytes": "B",
    "flops": "FLOP",
    "macs": "MAC",
    "hz": "Hz",
    "s": "s",
    "w": "W",
    "j": "J",
}
_PLAIN_SUFFIXES = {
    "share": lambda value: f"{100 * value:.1f} %",
    "ratio": lambda value: f"{value:.2f}x",
    "speedup": lambda value: f"{value:.2f}x",
}
_EXACT_FLOATS = 2**53
_PLAIN_TYPES = (bool, int, float, str)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # as json writes them, and float reads them


class Result:
    """Base of every result dataclass: prints as text, shows as HTML in a notebook, turns into a
    table or JSON.
    """

    # each class of results is a dataclass
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __str__(self) -> str:
        scalars = [(label(name), cell(name, value)) for name, value in _scalars(self)]
        width = max((len(name) for name, _ in scalars), default=0)
        lines = [
            type(self).__name__,
            *(f"  {name:<{width}}  {value}".rstrip() for name, value in scalars),
        ]
        for name, part in _parts(self):
            lines += [f"  {label(name)}", _indent(str(part))]
        for name, rows in _tables(self):
            text = printed(_frame(rows)).to_string(index=False, max_colwidth=None)
            lines += [f"  {label(name)}", _indent(text)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label(name))}</th>"
            f"<td style='text-align:left'>{html.escape(cell(name, value))}</td></tr>"
            for name, value in _scalars(self)
        )
        scalars = f"<table><tbody>{rows}</tbody></table>" if rows else ""
        parts = "".join(_add_title(label(name), part._repr_html_()) for name, part in _parts(self))
        tables = "".join(
            _add_title(label(name), _whole_html(printed(_frame(members))))
            for name, members in _tables(self)
        )
        return f"<div><b>{html.escape(type(self).__name__)}</b>{scalars}{parts}{tables}</div>"

    def _shown(self) -> list[tuple[str, Any]]:
        return [
            (field.name, getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.repr
        ]

    @classmethod
    def _upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return recorded ``values`` as those of today's fields; a class whose fields have changed
        says how.
        """
        return values

    def table(self) -> pd.DataFrame:
        """Return a DataFrame of plain numbers: one row, or one a member of the tuple of results it
        holds.

        A result within a row adds its own columns, ``cold`` with ``median_s`` as ``cold_median_s``.
        """
        tables = _tables(self)
        return _frame(tables[0][1] if len(tables) == 1 else (self,))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dictionaries, lists, numbers and strings, with the field names
        as keys.

        Raises TypeError for a field that is none of these, nor a NumPy or PyTorch scalar, naming
        it.
        """
        return {
            field.name: _plain(getattr(self, field.name), field.name)
            for field in dataclasses.fields(self)
        }

    def to_json(self) -> str:
        """Return the result as JSON text; :func:`from_dict` reads back the values of
        ``json.loads``.

        JSON has no NaN and no infinity: they stand as the strings "NaN", "Infinity" and
        "-Infinity".
        """
        return json.dumps(_finite(self.to_dict()), indent=1, allow_nan=False)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Record(Result):
    """A result whose subclasses, and theirs, are frozen dataclasses without a decorator."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)


def from_dict(result_type: type[ResultType], values: Mapping[str, Any]) -> ResultType:
    """Build a ``result_type`` from the values of :meth:`Result.to_dict`, nested results and tuples
    included.

    The types that the fields declare say what becomes of a list (a tuple) or of the string "NaN" (a
    float). What was recorded before a class changed its fields is read as that class says. Raises
    ValueError when a field is missing, unknown, of another type or shape, naming it.

    >>> from helpers.links import Link
    >>> from_dict(Link, {"bandwidth_bytes_per_s": 12.5e6, "latency_s": 0.0001})
    Link(bandwidth_bytes_per_s=12500000.0, latency_s=0.0001)
    """
    if not (isinstance(result_type, type) and issubclass(result_type, Result)):
        raise TypeError(
            f"result_type={result_type!r:.80} is no class of results; give one, such as "
            "timing.Timing"
        )
    if not isinstance(values, Mapping):
        raise ValueError(
            f"not a {result_type.__name__}: a mapping of field names is needed, not {values!r:.80}"
        )
    values = result_type._upgraded(values)
    hints = typing.get_type_hints(result_type)
    fields = {field.name: field for field in dataclasses.fields(result_type) if field.init}
    unknown = sorted(set(values) - set(fields), key=str)
    required = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(values))
    if unknown or missing:
        problem = f"fields missing {missing or 'none'}, unknown {unknown or 'none'}"
        raise ValueError(f"not a {result_type.__name__}: {problem}")
    return result_type(
        **{name: _restore_field(result_type, name, hints[name], values[name]) for name in values}
    )


def derived(result_type: type[ResultType], *sources: Any, **overrides: Any) -> ResultType:
    """Return a ``result_type`` with fields ``overrides``; another field is that of the first of
    ``sources`` that has it.

    >>> from helpers.links import Link
    >>> derived(Link, Link(12.5e6, latency_s=0.0001), latency_s=0.002)
    Link(bandwidth_bytes_per_s=12500000.0, latency_s=0.002)
    """
    for name in _names(result_type):  # type: ignore[arg-type]  # mypy takes its objects' __hash__ for the class's own
        if name not in overrides:
            for source in sources:
                value = getattr(source, name, dataclasses.MISSING)
                if value is not dataclasses.MISSING:
                    overrides[name] = value
                    break
    return result_type(**overrides)


@functools.cache
def _names(result_type: type[Result]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(result_type))


def row_of(rows: Sequence[ResultType], what: str, **fields: Any) -> ResultType:
    """Return the first of ``rows`` whose fields are as ``fields``.

    ``what`` names a row in the error. Raises ValueError, with what there is, for none.

    >>> from helpers.links import Link
    >>> row_of([Link(12.5e6), Link(5e9, latency_s=1e-6)], "link", latency_s=1e-6)
    Link(bandwidth_bytes_per_s=5000000000.0, latency_s=1e-06)
    """
    candidates = [tuple(getattr(row, name) for name in fields) for row in rows]
    if (values := tuple(fields.values())) in candidates:
        return rows[candidates.index(values)]
    request = ", ".join(f"{name} {value!r}" for name, value in fields.items())
    request, options = (
        (f"with {request}", candidates)
        if len(values) > 1
        else (repr(*values), [value for (value,) in candidates])
    )
    raise ValueError(
        f"there is no {what} {request}; there are {', '.join(map(repr, options)) or 'none'}"
    )


def label(name: str) -> str:
    """Return a field's name as a reader sees it: without the unit that the value prints, with
    spaces.

    >>> label("peak_bytes_per_s"), label("waiting_share")
    ('peak', 'waiting share')
    """
    suffix = _suffix(name)
    stem = name.removesuffix(f"_{suffix}") if suffix in _SUFFIX_UNITS else name
    return stem.replace("_", " ")


def cell(name: str, value: Any) -> str:
    """Return the printed value of the field ``name``: the field's suffix decides the unit.

    >>> cell("median_s", 7.6e-05), cell("waiting_share", 0.319), cell("parameters", 41282)
    ('76.0 us', '31.9 %', '41,282')
    """
    value = _python_scalar(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
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


def printed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``frame`` with every cell as text in its column's unit and the columns labelled for a
    reader.

    Two columns that differ in the unit alone keep their units in the heading.

    >>> from helpers.links import Link
    >>> printed(Link(12.5e6, latency_s=0.0001).table()).to_dict("records")
    [{'bandwidth': '12.5 MB/s', 'latency': '100 us'}]
    """
    import pandas as pd

    one_of("frame", frame, pd.DataFrame, "a DataFrame, such as a result's table()")
    labels = [label(name) for name in frame.columns]
    headings = [
        name.replace("_", " ") if labels.count(short) > 1 else short
        for name, short in zip(frame.columns, labels, strict=True)
    ]
    columns = [[cell(name, value) for value in frame[name].tolist()] for name in frame.columns]
    return pd.DataFrame(dict(zip(headings, columns, strict=True)), index=frame.index)


def _number(name: str, value: float) -> str:
    suffix = _suffix(name)
    if suffix == "per_s":
        return f"{_plain_number(value)}/s"
    if suffix in _SUFFIX_UNITS:
        return units.text(value, _SUFFIX_UNITS[suffix])
    if suffix in _PLAIN_SUFFIXES:
        return _PLAIN_SUFFIXES[suffix](value)
    return _plain_number(value)


def _plain_number(value: float) -> str:
    # pandas turns a column of whole numbers into floats where one is missing.
    is_whole = isinstance(value, int) or (value.is_integer() and abs(value) < _EXACT_FLOATS)
    return f"{int(value):,}" if is_whole else f"{value:.4g}"


def _suffix(name: str) -> str | None:
    one_of("name", name, str, "a field's name as text")
    for suffix in (*_SUFFIX_UNITS, *_PLAIN_SUFFIXES):
        if (name == suffix and len(suffix) > 1) or name.endswith(f"_{suffix}"):
            return suffix
    return None


def _python_scalar(value: Any) -> Any:
    """Return a NumPy scalar, or an array or tensor without dimensions, as Python's own number; else
    ``value``.
    """
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, tuple) and bool(value) and all(isinstance(item, Result) for item in value)
    )


def _scalars(result: Result) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in result._shown()
        if not isinstance(value, Result) and not _is_rows(value)
    ]


def _parts(result: Result) -> list[tuple[str, Result]]:
    return [(name, value) for name, value in result._shown() if isinstance(value, Result)]


def _tables(result: Result) -> list[tuple[str, tuple[Result, ...]]]:
    return [(name, value) for name, value in result._shown() if _is_rows(value)]


def _row(result: Result) -> dict[str, Any]:
    row = {name: _python_scalar(value) for name, value in _scalars(result)}
    for name, part in _parts(result):
        row |= {f"{name}_{inner}": value for inner, value in _row(part).items()}
    return row


def _frame(rows: tuple[Result, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([_row(row) for row in rows])


def _whole_html(frame: pd.DataFrame) -> str:
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):
        return frame.to_html(index=False, border=0)


def _add_title(title: str, block: str) -> str:
    return f"<div><b>{html.escape(title)}</b></div>{block}"


def _indent(block: str) -> str:
    return "\n".join(f"    {line}" for line in block.splitlines())


def _plain(value: Any, name: str) -> Any:
    value = _python_scalar(value)
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(item, name) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, name) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the field {name!r} holds a {type(value).__name__}, which JSON cannot keep; give numbers, "
        "text, tuples of these, or results"
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value


def _restore_field(owner: type, name: str, hint: Any, value: Any) -> Any:
    try:
        return _restore(hint, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"not a {owner.__name__}: the field {name!r} does not hold {hint}: {error}"
        ) from error


def _restore(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _restore_union(arguments, value)
    if origin in (tuple, list) and not isinstance(value, tuple | list):
        raise ValueError(f"{value!r:.80} is not a list")
    if origin is tuple:
        if not arguments:
            return tuple(value)
        members = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_restore(member, item) for member, item in zip(members, value, strict=True))
    if origin is list and arguments:
        return [_restore(arguments[0], item) for item in value]
    if isinstance(origin, type) and issubclass(origin, Mapping) and arguments:
        key_type = arguments[0] if arguments[0] in (int, float) else (lambda key: key)
        return {key_type(key): _restore(arguments[1], item) for key, item in value.items()}
    if isinstance(origin, type) and issubclass(origin, Result):
        return from_dict(origin, value)
    if hint is float and value in _NOT_FINITE:
        return float(value)
    if hint in _PLAIN_TYPES and not _is_a(hint, value):
        raise ValueError(f"{value!r:.80} is {type(value).__name__}")
    return int(value) if hint is int else value


def _is_a(hint: type, value: Any) -> bool:
    """Return True where ``value`` is a ``hint`` as JSON has it, in which 2.0 is a whole number and
    true is none.
    """
    if hint is int and isinstance(value, float):
        return value.is_integer()
    accepted_types = (int, float) if hint is float else hint
    return isinstance(value, accepted_types) and (hint is bool or not isinstance(value, bool))


def _restore_union(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    if any(type(value) is option for option in options):
        return value
    problems = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _restore(option, value)
        except (TypeError, ValueError, AttributeError) as error:
            problems.append(str(error))
    raise ValueError("; ".join(problems) or f"{value!r:.80} is not None")
