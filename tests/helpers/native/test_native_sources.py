"""The programs that stand in files: shipped, found by their modules, and in the compilers'
grammar.
"""

import re
import subprocess
from pathlib import Path

import pytest

import helpers
from helpers import native
from helpers.native import _nvrtc as nvrtc, _tools as tools

HELPERS = Path(helpers.__file__).parent
FILES = sorted(
    path.relative_to(HELPERS) for kind in ("cpp", "cu", "h") for path in HELPERS.rglob(f"*.{kind}")
)
# Given on the command line or written above the program.
NEEDED = {"KIND": "F32", "REAL": "float", "TILE": "16", "STREAMS": "4", "AHEAD": "128"}
NETWORK = """
constexpr int INPUTS = 1, OUTPUTS = 1;
INLINE void evaluate_one(const float*, float*, const float*);
template <int WIDTH> INLINE void evaluate_lanes(const Lanes (*)[WIDTH], Lanes (*)[WIDTH], const float*);
"""  # what is generated  # noqa: E501


def package_of(path: Path) -> tuple[str, str]:
    """Return the package whose module reads the file, and the file's name in it."""
    folder = next(
        folder for folder in (HELPERS / path).parents if (folder / "__init__.py").exists()
    )
    return ".".join(["helpers", *folder.relative_to(HELPERS).parts]), (HELPERS / path).relative_to(
        folder
    ).as_posix()


def includes(path: Path) -> set[Path]:
    return {
        path.parent / name for name in re.findall(r'#include "(.+)"', (HELPERS / path).read_text())
    }


@pytest.mark.skipif(not tools._first_tool(("g++", "clang++"), ()), reason="no C++ compiler")
@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".cpp"], ids=str)
def test_every_cpp_file_is_cpp(path, tmp_path):
    package, name = package_of(path)
    file = tmp_path / "program.cpp"
    text = native.read_source(package, name, generated={"network.h": NETWORK})
    # a number in its place, as the triad's module writes it
    file.write_text(text.replace("UNROLLED", "4"))
    flags = [
        "-std=c++17",
        "-march=native",
        *(f"-D{name}={value}" for name, value in NEEDED.items()),
    ]
    done = subprocess.run(
        [*tools.find_compiler(), "-fsyntax-only", *flags, str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.suffix == ".cu" and "$" not in (HELPERS / path).read_text()],
    ids=str,
)
def test_every_cuda_file_is_cuda(path):
    """But for the templates (``$``), of which test_constant_weights_cuda compiles what is written
    with them.
    """
    package, name = package_of(path)
    text = native.read_source(package, name)
    try:
        nvrtc.find_nvrtc()
    except native.MissingToolError as missing:
        pytest.skip(missing.problem)
    halves = "#include <cuda_fp16.h>\n" * ("halves" in name)
    others = native.read_source(package, name.replace("_halves", "")) * ("halves" in name)
    native.compile_cuda(
        halves + others + text, options=[f"-D{name}={value}" for name, value in NEEDED.items()]
    )


def test_every_header_is_included():
    included = set().union(*map(includes, FILES))
    assert {path for path in FILES if path.suffix == ".h"} <= included


def test_a_file_is_read_once_and_what_is_generated_stands_in_its_place(tmp_path, monkeypatch):
    place = tmp_path / "a_package"
    (place / "part").mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / "part/base.h").write_text("#pragma once\nint base;\n")
    (place / "part/more.h").write_text('#pragma once\n#include "base.h"\nint more;\n')
    (place / "part/program.cpp").write_text(
        '#include <cstdint>\n#include "base.h"\n#include "more.h"\n#include "made.h"\nint end;\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = native.read_source("a_package", "part/program.cpp", generated={"made.h": "int made;\n"})
    assert text == "#include <cstdint>\nint base;\nint more;\nint made;\nint end;\n"
    with pytest.raises(FileNotFoundError, match="made"):
        native.read_source("a_package", "part/program.cpp")
