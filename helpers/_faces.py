"""The face of a package: its public names, listed in ``__init__.pyi`` and imported from their modules at first use."""

from __future__ import annotations

import sys
from collections.abc import Callable

try:
    import lazy_loader
except ModuleNotFoundError:  # a Python in which nothing of the library is installed
    remedy = "run `make setup` in the course's folder and use .venv/bin/python"
    raise ModuleNotFoundError(f"lazy-loader is not installed in {sys.prefix}; {remedy}", name="lazy_loader") from None


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of ``package``; a wrong name is told the right ones."""
    lazily, names, public = lazy_loader.attach_stub(package, file)

    def attribute(name: str) -> object:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(public)}")
        return lazily(name)

    return attribute, names, public
