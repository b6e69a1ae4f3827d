"""A contract of import-linter: who stands outside a package goes in by its public doors alone."""

from __future__ import annotations

from collections.abc import Iterable

import grimp
from importlinter import Contract, ContractCheck, fields, output


class PublicDoors(Contract):
    """No module of ``importers`` imports a module of ``package`` with an underscore anywhere in its
    path.
    """

    importers: Iterable[str] = fields.SetField(subfield=fields.StringField())  # type: ignore[assignment]  # the values
    package: str = fields.StringField()  # type: ignore[assignment]  # that import-linter puts in the fields' places

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        outside = {
            module for root in self.importers for module in (root, *graph.find_descendants(root))
        }
        private = {module for module in graph.find_descendants(self.package) if "._" in module}
        found = [
            (importer, module)
            for module in sorted(private)
            for importer in sorted(graph.find_modules_that_directly_import(module) & outside)
        ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, module in check.metadata["found"]:
            output.print_error(
                f"{importer} imports {module}: take it from a face of {self.package}, or put it on "
                "one"
            )
