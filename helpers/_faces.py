"""The face of a package: its public names, listed in ``__init__.pyi`` and imported from their
modules at first use.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

try:
    import lazy_loader
except ModuleNotFoundError:  # a Python in which nothing of the library is installed
    remedy = "run `make setup` in the course's folder and use .venv/bin/python"
    raise ModuleNotFoundError(
        f"lazy-loader is not installed in {sys.prefix}; {remedy}", name="lazy_loader"
    ) from None


def attach(
    package: str, file: str, *, moved: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of ``package``; a wrong name is told the
    right ones.

    ``moved`` maps a name that was public here to where it is now, "package:name" or a package. It
    is found there, with a warning the first time.
    """
    import_lazily, list_names, public_names = lazy_loader.attach_stub(package, file)

    def attribute(name: str) -> object:
        if name in moved:
            module, _, attribute = moved[name].partition(":")
            new_path = moved[name].replace(":", ".")
            warnings.warn(
                f"{package}.{name} is {new_path} now; write {new_path}", FutureWarning, stacklevel=2
            )
            value = importlib.import_module(module)
            value = getattr(value, attribute) if attribute else value
            setattr(sys.modules[package], name, value)
            return value
        if name not in public_names:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(public_names)}"
            )
        return import_lazily(name)

    return attribute, list_names, public_names
