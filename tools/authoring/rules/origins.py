"""Compared values that rest on measuring, fitting, training or probing: they may differ on another
processor.

The build names them and refuses nothing, because a mask, a count or rounding may make a value the
same everywhere; that is for a person to judge. What is followed are assignments from statement to
statement of a notebook, and calls from function to function of the library. A value within a masked
text (a time, a rate, a ratio of times) is not followed.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from tools.authoring.rules import functions, shares

# What a function does that names one of these, or calls a function of the library that does.
KINDS: Mapping[str, tuple[str, ...]] = {
    "measures": ("time.perf_counter", "time.perf_counter_ns", "torch.cuda.Event"),
    "fits": (
        "numpy.linalg.lstsq",
        "numpy.linalg.solve",
        "numpy.polyfit",
        "scipy.optimize",
        "scipy.stats",
        "sklearn",
        "torch.linalg.lstsq",
    ),
    "probes": (
        "os.cpu_count",
        "os.sched_getaffinity",
        "os.sysconf",
        "torch.backends.cpu",
        "torch.backends.mkl",
        "torch.backends.mkldnn",
        "torch.profiler",
    ),
}
TRAINS = "trains"  # a loop that asks for gradients
_LOOP = (TRAINS, "a loop of the notebook")
_GRADIENTS = {"backward", "grad"}
_SHOWN_BY = {"print", "display", "reveal"}
_ALT_ONLY = {"show", "play", "interactive_figure"}
# a claim shows its sentence and a masked line, a prediction its question
_NOT_COMPARED = {"claim", "predict"}
_CHECKS = {"settle", "report"}

Origin = tuple[str, str]  # kind and function
Origins = frozenset[Origin]
_NONE: Origins = frozenset()


@dataclass(frozen=True)
class Resting:
    """The functions behind a notebook's compared values: of each kind and function the code cells,
    counted from 0.
    """

    notebook: str
    cells: Mapping[Origin, tuple[int, ...]]

    def __str__(self) -> str:
        """One line, without a kind that there is not."""
        parts: dict[str, list[str]] = {}
        for (kind, name), cells in sorted(self.cells.items()):
            parts.setdefault(kind, []).append(f"{name} (cell {', '.join(map(str, cells))})")
        text = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in parts.items())
        return (
            f"{self.notebook}: compared values rest on "
            f"{text or 'nothing that measures, fits, trains or probes'}"
        )


def trace(
    name: str, notebook: nbformat.NotebookNode, package: str, rules: shares.Patterns
) -> Resting:
    """Return the origins of the compared values of a built notebook."""
    flow = _Flow(package, rules)
    cells_by_origin: dict[Origin, list[int]] = {}
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    for index, cell in enumerate(code):
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
        cell_origins = flow.follow_cell(tree)
        for origin in cell_origins if shares.is_compared(cell, rules) else ():
            cells_by_origin.setdefault(origin, []).append(index)
    return Resting(name, {origin: tuple(cells) for origin, cells in cells_by_origin.items()})


@dataclass
class _Flow:
    """Follows values from statement to statement; ``origins`` are those of each name so far."""

    package: str
    rules: shares.Patterns
    origins: dict[str, Origins] = field(default_factory=dict)
    bindings: dict[str, str] = field(default_factory=dict)

    def follow_cell(self, tree: ast.Module) -> Origins:
        """Take in a cell, and return the origins of what it shows."""
        checks = any(_called_name(node) in _CHECKS for node in ast.walk(tree))
        origins = _NONE
        for index, statement in enumerate(tree.body):
            self._follow(statement)
            is_last = index == len(tree.body) - 1 and isinstance(statement, ast.Expr)
            origins |= _NONE if checks else self._shown_origins(statement, is_last=is_last)
        return origins

    def _follow(self, statement: ast.stmt) -> None:
        """Let names have the origins of what a statement binds them to, or changes in them."""
        self.bindings |= _bindings(statement, "")
        bodies = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if _is_definition(statement) or not any(bodies):
            self._bind(statement)
            return
        if isinstance(statement, ast.For):
            self._name(statement.target, self.of(statement.iter))
        for item in getattr(statement, "items", ()):
            self._name(item.optional_vars, self.of(item.context_expr))
        bodies += [handler.body for handler in getattr(statement, "handlers", ())]
        if _trains(statement):
            loop_names = {
                part.id for part in ast.walk(statement) if isinstance(part, ast.Name)
            } - self.bindings.keys()
            self.origins |= {name: self.origins.get(name, _NONE) | {_LOOP} for name in loop_names}
        origins_before = dict(self.origins)
        for body in [
            body
            for _ in range(2 if isinstance(statement, ast.For | ast.While) else 1)
            for body in bodies
        ]:
            for part in body:
                self._follow(part)
        for name, origins in origins_before.items():  # a body may not run
            self.origins[name] |= origins

    def _name(self, target: ast.AST | None, origins: Origins) -> None:
        for part in ast.walk(target) if target is not None else ():
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.origins[part.id] = origins

    def _bind(self, statement: ast.stmt) -> None:
        origins = self.of(statement)
        for call in (part for part in ast.walk(statement) if isinstance(part, ast.Call)):
            trains = {
                origin
                for origin in self.origins.get(getattr(call.func, "id", ""), _NONE)
                if origin[0] == TRAINS
            }
            for argument in (
                argument for argument in call.args if isinstance(argument, ast.Name) and trains
            ):
                # a network that is trained changes
                self.origins[argument.id] = self.origins.get(argument.id, _NONE) | trains
        for name in _changed_names(statement) - self.bindings.keys():
            self.origins[name] = self.origins.get(name, _NONE) | origins
        for name in _bound_names(statement):
            self.origins[name] = origins

    def of(self, node: ast.AST) -> Origins:
        """Return the origins of a node: of the names it takes, the library's functions, and what it
        does itself.
        """
        origins = {_LOOP} if _trains(node) else set()
        local = _local_names(node)
        for part in _unmasked_nodes(node, self.rules):
            if (
                isinstance(part, ast.Name)
                and part.id not in local
                and isinstance(part.ctx, ast.Load)
            ):
                origins |= self.origins.get(part.id, _NONE)
            if isinstance(part, ast.Name | ast.Attribute):
                dotted_name = _dotted_name(part, self.bindings)
                origins |= {(kind, start) for kind, start in _primitives(dotted_name)}
                key = (
                    functions.resolve(dotted_name, self.package)
                    if dotted_name.startswith(f"{self.package}.")
                    else None
                )
                if key is not None:
                    function_name = dotted_name.removeprefix(f"{self.package}.")
                    origins |= {
                        (kind, function_name)
                        for kind in _library(self.package).get(".".join(key), frozenset())
                    }
        return frozenset(origins)

    def _shown_origins(self, statement: ast.stmt, *, is_last: bool) -> Origins:
        parts: list[ast.AST] = []
        for node in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            name = _called_name(node)
            if name in _SHOWN_BY:
                parts += [*node.args, *node.keywords]
                parts += [node.func] if name == "reveal" else []
            if name in _ALT_ONLY:
                parts += [keyword.value for keyword in node.keywords if keyword.arg == "alt"]
        if is_last and isinstance(statement, ast.Expr):
            last = _called_name(statement.value)
            parts += [] if last in _SHOWN_BY | _ALT_ONLY | _NOT_COMPARED else [statement.value]
        return frozenset().union(*map(self.of, parts))


def _called_name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _dotted_name(node: ast.AST, bindings: Mapping[str, str]) -> str:
    """Return the dotted name that a name or a chain of attributes stands for; "" for an attribute
    of anything else.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (
        ".".join((bindings.get(node.id, node.id), *reversed(parts)))
        if isinstance(node, ast.Name)
        else ""
    )


def _primitives(dotted_name: str) -> Iterator[Origin]:
    for kind, starts in KINDS.items():
        yield from ((kind, start) for start in starts if f"{dotted_name}.".startswith(f"{start}."))


def _trains(node: ast.AST) -> bool:
    loops = (part for part in ast.walk(node) if isinstance(part, ast.For | ast.While))
    return any(_called_name(part) in _GRADIENTS for loop in loops for part in ast.walk(loop))


def _bindings(node: ast.AST, module: str) -> dict[str, str]:
    """Return the bindings of the imports within a node: name to dotted name; ``module`` is the
    package of relative ones.
    """
    bindings = {}
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                bindings[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(part, ast.ImportFrom):
            base = (
                importlib.util.resolve_name("." * part.level + (part.module or ""), module)
                if part.level
                else ""
            )
            start = base or part.module or ""
            bindings |= {
                alias.asname or alias.name: f"{start}.{alias.name}" for alias in part.names
            }
    return bindings


def _bound_names(statement: ast.stmt) -> set[str]:
    if _is_definition(statement):
        return {statement.name}
    stores = (
        part
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )
    return {part.id for part in stores} - _local_names(statement)


def _local_names(node: ast.AST) -> set[str]:
    """Return the names that comprehensions and lambdas bind within a node, or a function its
    arguments and names to.
    """
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.comprehension):
            names |= {name.id for name in ast.walk(part.target) if isinstance(name, ast.Name)}
        elif isinstance(part, ast.arguments):
            names |= {argument.arg for argument in ast.walk(part) if isinstance(argument, ast.arg)}
    if _is_definition(node):
        names |= {
            part.id
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
    return names


def _changed_names(statement: ast.stmt) -> set[str]:
    """Return the names whose objects a statement may change: a part is assigned, or a method called
    for its effect.
    """
    names = set()
    for part in ast.walk(statement):
        targets: Iterable[ast.AST] = ()
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, ast.AugAssign):
            targets = (part.target,)
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            targets = (part.value.func,)
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
                root = root.func if isinstance(root, ast.Call) else root.value
            if isinstance(root, ast.Name) and (
                root is not target or isinstance(part, ast.AugAssign)
            ):
                names.add(root.id)
    return names


def _unmasked_nodes(node: ast.AST, rules: shares.Patterns) -> Iterator[ast.AST]:
    """Yield a node and the parts of it whose values the text that it makes lets be compared."""
    yield node
    name = _called_name(node)
    if isinstance(node, ast.Call) and name == "text" and _is_masked("1", _unit(node), rules):
        return
    if isinstance(node, ast.Call) and name in _NOT_COMPARED:
        return
    skipped_nodes = _masked_values(node, rules) if isinstance(node, ast.JoinedStr) else set()
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        skipped_nodes = {node.value}  # its names are those of the whole
        root: ast.expr = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        yield from _unmasked_nodes(root, rules)
    for child in ast.iter_child_nodes(node):
        if child not in skipped_nodes:
            yield from _unmasked_nodes(child, rules)


def _unit(call: ast.Call) -> str:
    unit = call.args[1] if len(call.args) > 1 else None
    return (
        f" {unit.value}" if isinstance(unit, ast.Constant) and isinstance(unit.value, str) else ""
    )


def _masked_values(text: ast.JoinedStr, rules: shares.Patterns) -> set[ast.AST]:
    """Return the values of an f-string that stand before a unit of time or rate, or before "times
    (measured)".
    """
    values: set[ast.AST] = set()
    for value, after in zip(text.values, [*text.values[1:], None], strict=True):
        suffix = (
            after.value if isinstance(after, ast.Constant) and isinstance(after.value, str) else ""
        )
        if isinstance(value, ast.FormattedValue) and _is_masked("1", suffix, rules):
            values.add(value)
    return values


def _is_masked(number: str, after: str, rules: shares.Patterns) -> bool:
    return bool(after) and shares.sanitize(f"{number}{after}", rules).startswith("<")


@lru_cache(maxsize=4)
def _library(package: str) -> dict[str, frozenset[str]]:
    """Return the kinds of every function and class of a package, by its dotted name, that has
    any.
    """
    uses: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None  # a package of a lesson is a folder with an __init__.py
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        holder = module if parts[-1] == "__init__" else module.rpartition(".")[0]
        definitions = {name: node for node in tree.body for name in _defined_names(node)}
        other_statements = ast.Module([node for node in tree.body if not _is_definition(node)], [])
        top = _bindings(other_statements, holder) | {
            name: f"{module}.{name}" for name in definitions
        }
        for name, node in definitions.items():
            bindings = top | _bindings(node, holder)
            names = (
                part
                for part in _evaluated_nodes(node)
                if isinstance(part, ast.Name | ast.Attribute)
            )
            dotted_names = {_dotted_name(part, bindings) for part in names}
            own_kinds = {
                kind for dotted_name in dotted_names for kind, _ in _primitives(dotted_name)
            }
            kinds[f"{module}.{name}"] = own_kinds | ({TRAINS} if _trains(node) else set())
            uses[f"{module}.{name}"] = {
                dotted_name for dotted_name in dotted_names if dotted_name.startswith(f"{package}.")
            }
    faces = {
        dotted_name: ".".join(key)
        for used_names in uses.values()
        for dotted_name in used_names
        if dotted_name not in kinds and (key := functions.resolve(dotted_name, package))
    }
    has_changed = True
    while has_changed:
        has_changed = False
        for name, used_names in uses.items():
            inherited_kinds = (
                set().union(
                    *(
                        kinds.get(faces.get(dotted_name, dotted_name), ())
                        for dotted_name in used_names
                    )
                )
                - kinds[name]
            )
            kinds[name] |= inherited_kinds
            has_changed |= bool(inherited_kinds)
    return {name: frozenset(name_kinds) for name, name_kinds in kinds.items() if name_kinds}


def _defined_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines: a function, a class, or what is
    assigned.
    """
    return (
        _bound_names(node)
        if _is_definition(node) or isinstance(node, ast.Assign | ast.AnnAssign)
        else set()
    )


def _is_definition(
    node: ast.AST,
) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _evaluated_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a definition that run when it is called; what its annotations name is not
    among them.
    """
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _evaluated_nodes(child)
