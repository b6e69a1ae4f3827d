"""Formulas with one meaning in two languages: Python draws the still picture, JavaScript the figure
that moves.

A formula is a text that both languages read alike. It may have ``+ - * / **``, one comparison
(whose value is 1 or 0), parentheses, numbers, names of inputs and of formulas above it, fields of a
menu's options (``model.layers``), and the functions of :data:`FUNCTIONS`. Everything else is
refused, because the two languages would differ: ``//`` begins a comment in JavaScript, ``%`` has
another sign there, and ``-a ** b`` is an error.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from types import SimpleNamespace

FUNCTIONS = {
    "min": min,
    "max": max,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "ceil": math.ceil,
    "floor": math.floor,
    "abs": abs,
}

Value = float | Mapping[str, float]

_OPERATORS = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow
_COMPARISONS = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def check_formula(name: str, formula: str, known_fields: Mapping[str, frozenset[str]]) -> None:
    """Raise ValueError for a formula that Python and JavaScript would not compute alike.

    ``known_fields`` has the names that it may use, each with its fields (none for a number).
    """
    try:
        tree = ast.parse(formula, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"the formula {name} = {formula!r} is not Python: {error.msg}") from error
    problem = _problem(tree, known_fields)
    if problem:
        raise ValueError(f"the formula {name} = {formula!r} {problem}")


def _problem(node: ast.expr, known_fields: Mapping[str, frozenset[str]]) -> str:
    """Return the problem of a part of a formula, "" where there is none."""
    match node:
        case ast.Constant(value=bool() | str() | bytes() | complex() | None):
            return f"has {node.value!r}, but every constant must be a number"
        case ast.Constant():
            return ""
        case ast.Name(id=name):
            if name not in known_fields:
                return (
                    f"has the name {name}; the names before it are "
                    f"{', '.join(known_fields) or 'none'}"
                )
            return (
                f"uses the menu {name} as a number; name a field of its options"
                if known_fields[name]
                else ""
            )
        case ast.Attribute(value=ast.Name(id=name), attr=field):
            fields = known_fields.get(name, frozenset())
            return (
                ""
                if field in fields
                else f"has {name}.{field}; {name} has {', '.join(sorted(fields)) or 'no fields'}"
            )
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _OPERATORS):
            parts = [left, right]
        case ast.UnaryOp(op=ast.USub(), operand=ast.BinOp(op=ast.Pow()) as power) if _touch(
            node, power
        ):
            return "negates a power, which is no JavaScript; put the power into parentheses"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            parts = [operand]
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if isinstance(
            operator, _COMPARISONS
        ):
            parts = [left, right]
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]) if (
            function in FUNCTIONS
        ):
            parts = arguments
        case _:
            return (
                f"has {ast.unparse(node)}; allowed are + - * / **, one comparison and "
                f"{', '.join(FUNCTIONS)}"
            )
    return next(filter(None, (_problem(part, known_fields) for part in parts)), "")


def _touch(minus: ast.UnaryOp, power: ast.BinOp) -> bool:
    """Return whether no parenthesis is between a minus and the power that it negates."""
    return power.col_offset == minus.col_offset + 1


def evaluate(formulas: Mapping[str, str], inputs: Mapping[str, Value]) -> dict[str, float]:
    """Return the value of each formula, computed in order from the inputs and from the formulas
    above it.

    Raises ValueError for a value that is no finite number, such as a division by zero.
    """
    names = {
        name: SimpleNamespace(**value) if isinstance(value, Mapping) else float(value)
        for name, value in inputs.items()
    }
    values: dict[str, float] = {}
    for name, formula in formulas.items():
        try:
            value = float(eval(formula, {"__builtins__": {}, **FUNCTIONS}, {**names, **values}))
        except (ArithmeticError, ValueError) as error:
            raise ValueError(
                f"{name} = {formula!r} has no value here ({error}): {_setting(inputs)}"
            ) from error
        if not math.isfinite(value):
            raise ValueError(f"{name} = {formula!r} is {value} here: {_setting(inputs)}")
        values[name] = value
    return values


def _setting(inputs: Mapping[str, Value]) -> str:
    return ", ".join(
        f"{name} = {dict(value) if isinstance(value, Mapping) else value}"
        for name, value in inputs.items()
    )
