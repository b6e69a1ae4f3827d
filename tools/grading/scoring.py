"""The checks of an exercise, run so that an exception in them costs the goals that it left
unchecked, and no others.

A call that stands alone gives no name to what follows, so the next statement runs. What a round of
a loop lacks after any other statement is left out, and what such a statement at the top would have
named is unknown below. So no check is made on what an earlier round left, and a goal is short of a
check for each that was not made.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

from helpers.exercises import Checks

_KEEP = "_keep_error"


def run(source: str, names: dict[str, Any]) -> list[Exception]:
    """Run checks in ``names`` and return the exceptions that they raised."""
    errors: list[Exception] = []
    names[_KEEP] = errors.append
    for statement in ast.parse(source).body:
        guarded = ast.fix_missing_locations(ast.Module([_Rounds().visit(statement)], []))
        try:
            exec(compile(guarded, "<checks>", "exec"), names)
        except Exception as error:
            errors.append(error)
            for name in _assigned_names(statement):
                names.pop(name, None)
    return errors


def count_checks(checks: Checks) -> Counter[str]:
    """Return the number of checks that were made of each goal."""
    return Counter(outcome.goal for outcome in checks._outcomes)


class _Rounds(ast.NodeTransformer):
    """Gives each round of a loop, and each call alone in it, a handler that keeps the exception."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.body = [
            _guard(
                [
                    _guard([statement]) if isinstance(statement, ast.Expr) else statement
                    for statement in node.body
                ]
            )
        ]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node  # what it raises ends the statement that calls it


def _guard(body: list[ast.stmt]) -> ast.Try:
    [guard] = ast.parse(f"try: pass\nexcept Exception as _error: {_KEEP}(_error)").body
    assert isinstance(guard, ast.Try)
    return ast.Try(body, guard.handlers, [], [])


def _assigned_names(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
