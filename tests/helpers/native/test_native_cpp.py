"""C++ through the wrapper: right answers, compiled once, found whole, refused with the line that is
wrong.
"""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import native
from helpers.native import _cpp as cpp, _tools as tools

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in compilers are shell scripts")

ADD = """#include <cstdint>
extern "C" void add(const float* x, const float* y, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}
"""
DECLARATION = "void add(const float* x, const float* y, float* out, int64_t n)"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("HELPERS_CACHE", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder / "native"


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A compiler on the PATH that writes down how it is called, and then is g++."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    script = folder / "g++"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\nexec "{shutil.which("g++")}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return lambda: calls.read_text().splitlines() if calls.exists() else []


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@needs_compiler
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_a_compiled_loop_adds_tensors_and_arrays(size):
    add = native.compile_cpp(ADD).function(DECLARATION)
    x, y, out = torch.arange(size * 1.0), torch.full((size,), 0.5), torch.full((size,), -1.0)
    assert (add.__name__, add(x, y, out, size)) == ("add", None)
    assert torch.equal(out, x + y)
    array = np.zeros(size, dtype=np.float32)
    add(x.numpy(), y, array, size)
    assert np.array_equal(array, (x + y).numpy())
    add.raw(x.data_ptr(), x.data_ptr(), out.data_ptr(), size)
    assert torch.equal(out, 2 * x)


@needs_compiler
def test_values_come_back_in_their_type():
    source = """#include <cstdint>
    extern "C" double half_of(float x) { return x / 2; }
    extern "C" int64_t big() { return int64_t(1) << 40; }
    extern "C" const float* same(const float* x) { return x; }
    extern "C" bool odd(int8_t x) { return x % 2; }"""
    library, x = native.compile_cpp(source), torch.ones(3)
    assert library.function("double half_of(float x)")(3) == 1.5
    assert library.function("int64_t big()")() == 2**40
    assert library.function("const float* same(const float* x)")(x) == x.data_ptr()
    assert library.function("bool odd(int8_t x)")(-3) is True


@needs_compiler
@posix
def test_a_program_is_compiled_once_and_then_found_also_by_another_process(counted, own_cache):
    first = native.compile_cpp(ADD)
    assert (first.was_cached, first.compile_s > 0) == (False, True)
    calls = counted()
    assert sum("-shared" in call for call in calls) == 1
    second = native.compile_cpp(ADD)
    assert (second.was_cached, second.compile_s, second.path) == (True, 0.0, first.path)
    assert counted() == calls
    program = (
        "import sys; from helpers import native; "
        "print(native.compile_cpp(sys.stdin.read()).was_cached)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=ADD, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    assert sum("-shared" in call for call in counted()) == 1
    assert kept(own_cache) == [first.path.name]


@needs_compiler
@posix
def test_another_source_flag_or_compiler_is_another_program(counted, monkeypatch):
    plain = ("-O0",)
    paths = {native.compile_cpp(ADD).path, native.compile_cpp(ADD + "\n").path}
    paths |= {
        native.compile_cpp(ADD, flags=plain).path,
        native.compile_cpp(ADD, flags=(*plain, "-g")).path,
    }
    monkeypatch.setenv("CXX", shutil.which("g++", path=os.environ["PATH"].partition(os.pathsep)[2]))
    paths.add(native.compile_cpp(ADD).path)
    assert len(paths) == 5
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(cpp, "_processor", lambda: "another processor")
    assert native.compile_cpp(ADD, flags=plain).path in paths
    assert native.compile_cpp(ADD).path not in paths


def test_the_key_keeps_borders_apart():
    assert tools.digest("ab", "c") != tools.digest("a", "bc")
    assert tools.digest("a") != tools.digest("a", "")
    assert tools.digest("\udcff") == tools.digest("\udcff")


@needs_compiler
@posix
def test_two_processes_at_once_compile_once_and_leave_one_file(counted, own_cache):
    program = textwrap.dedent("""
        import ctypes, sys
        from helpers import native
        one, out = (ctypes.c_float * 2)(1, 1), (ctypes.c_float * 2)()
        native.compile_cpp(sys.stdin.read()).function(sys.argv[1])(one, one, out, 2)
        print(list(out))
    """)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, DECLARATION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in running:
        process.stdin.write(ADD)
        process.stdin.close()
    assert [(process.stdout.read(), process.wait()) for process in running] == [
        ("[2.0, 2.0]\n", 0)
    ] * 2
    for process in running:
        process.stdout.close()
    assert len(kept(own_cache)) == 1
    assert sum("-shared" in call for call in counted()) == 1


@needs_compiler
@posix
def test_threads_at_once_compile_once(counted, own_cache):
    with ThreadPoolExecutor(4) as pool:
        libraries = list(pool.map(lambda _: native.compile_cpp(ADD), range(4)))
    assert len({library.path for library in libraries}) == 1
    assert sum(library.was_cached for library in libraries) == 3
    assert sum("-shared" in call for call in counted()) == 1
    assert len(kept(own_cache)) == 1


@needs_compiler
def test_without_the_lock_the_file_is_still_whole_and_one(own_cache, monkeypatch):
    import contextlib

    monkeypatch.setattr(tools, "_hold_lock", lambda path: contextlib.nullcontext())
    with ThreadPoolExecutor(3) as pool:
        paths = {library.path for library in pool.map(lambda _: native.compile_cpp(ADD), range(3))}
    assert [path.name for path in paths] == kept(own_cache)


@needs_compiler
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    ],
)
def test_a_damaged_library_is_noticed_and_compiled_again(damage, own_cache):
    path = native.compile_cpp(ADD).path
    content = path.read_bytes()
    # the loaded file itself keeps its content: a mapped file must not shrink
    copy = path.with_name("copy")
    copy.write_bytes(damage(content))
    os.replace(copy, path)
    again = native.compile_cpp(ADD)
    assert not again.was_cached
    assert (again.path, again.path.read_bytes(), kept(own_cache)) == (path, content, [path.name])
    out = torch.zeros(1)
    again.function(DECLARATION)(torch.ones(1), torch.ones(1), out, 1)
    assert out.item() == 2


@needs_compiler
def test_a_changed_source_runs_the_new_code_beside_the_old():
    old = native.compile_cpp('extern "C" int version() { return 1; }').function("int version()")
    new = native.compile_cpp('extern "C" int version() { return 2; }').function("int version()")
    assert (old(), new(), old()) == (1, 2, 1)


@needs_compiler
@pytest.mark.parametrize(("source", "line", "words"), [
    ("int f() {\n  return missing;\n}\n", 2, "missing"),
    ("\n\nint f( {\n", 3, "expected"),
    ('#include "no_such_header.h"\n', 1, "no_such_header.h"),
    ("int a = 1;\nint b = ;\nint c = ;\n", 2, "expected"),
])  # fmt: skip
def test_a_refused_program_shows_the_first_error_and_its_line(source, line, words, own_cache):
    with pytest.raises(native.CompilationError, match=f"refuses line {line}: .*{words}") as caught:
        native.compile_cpp(source)
    assert f"\n    {line} | {source.splitlines()[line - 1]}\n" in str(caught.value)
    assert f"source.cpp:{line}" in caught.value.log
    assert str(own_cache) not in str(caught.value)
    assert kept(own_cache) == []


@needs_compiler
def test_an_error_that_is_not_in_the_source_is_told_too():
    with pytest.raises(native.CompilationError, match="no-such-flag"):
        native.compile_cpp(ADD, flags=("--no-such-flag",))
    with pytest.raises(native.CompilationError, match="no-such-library"):
        native.compile_cpp(ADD, flags=("-lno-such-library",))
    error = native.CompilationError("a", "b", "c")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a. To mend it: b."
    assert pickle.loads(pickle.dumps(error)).log == "c"


@needs_compiler
def test_a_library_that_does_not_load_says_what_it_lacks():
    source = 'int elsewhere(); extern "C" int f() { return elsewhere(); }'
    with pytest.raises(native.NativeError, match=r"does not load: .*elsewhere.*To mend it: .*-lm"):
        native.compile_cpp(source, flags=("-Wl,-z,now",))


@needs_compiler
def test_two_declarations_of_a_function_do_not_share_their_types():
    library = native.compile_cpp('extern "C" long same(long x) { return x; }')
    whole = library.function("long same(long x)")
    assert library.function("int8_t same(int8_t x)")(-1) == -1
    assert whole(2**40) == 2**40


@needs_compiler
def test_names_that_are_not_there_and_structures_by_value():
    library = native.compile_cpp("int add(int x) { return x; }")
    with pytest.raises(ValueError, match=r'no function \'add\'.*extern "C"'):
        library.function("int add(int x)")
    with pytest.raises(
        ValueError, match="takes a Weights by value; on the CPU let it take a pointer"
    ):
        library.function("int add(Weights weights)")


@posix
def test_without_a_compiler_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        native.MissingToolError, match=r"PATH has no g\+\+ or clang\+\+ or c\+\+.*install"
    ):
        native.compile_cpp(ADD)
    monkeypatch.setenv("CXX", "my-compiler -m32")
    with pytest.raises(
        native.MissingToolError, match=r"CXX is 'my-compiler -m32'.*no my-compiler.*unset"
    ):
        native.compile_cpp(ADD)
    monkeypatch.setenv("CXX", "g++ '-O2")
    with pytest.raises(
        native.MissingToolError,
        match=r"CXX is \"g\+\+ '-O2\", which is no command: no closing quot",
    ):
        native.compile_cpp(ADD)
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'libmpc.so.3: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.delenv("CXX")
    with pytest.raises(native.MissingToolError, match=r"g\+\+ fails: libmpc\.so\.3: cannot open"):
        native.compile_cpp(ADD)
    broken.write_text("not a program")
    with pytest.raises(native.MissingToolError, match=r"g\+\+ does not run"):
        native.compile_cpp(ADD)


@needs_compiler
@posix
def test_cxx_may_hold_words_and_a_relative_path(tmp_path, monkeypatch, own_cache):
    (tmp_path / "wrapper").write_text('#!/bin/sh\nexec "$@"\n')
    (tmp_path / "wrapper").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./wrapper g++")
    monkeypatch.setenv("HELPERS_CACHE", "cache")
    library = native.compile_cpp(ADD)
    assert library.path.is_absolute()
    assert kept(own_cache) == [library.path.name]


def test_a_cache_that_cannot_be_written_to_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    (tmp_path / "native").write_text("")
    if shutil.which("g++"):
        with pytest.raises(OSError, match=r"could not be kept .*HELPERS_CACHE") as told:
            native.compile_cpp(ADD)
        assert told.value.filename == str(tmp_path / "native")
        assert str(told.value).count("HELPERS_CACHE") == 1


@needs_compiler
def test_an_exception_while_compiling_leaves_nothing_behind(own_cache, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    native.compile_cpp("int kept;")
    before = kept(own_cache)
    monkeypatch.setattr(cpp, "_compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        native.compile_cpp(ADD)
    assert kept(own_cache) == before


@needs_compiler
def test_the_library_holds_no_path_of_this_machine():
    content = native.compile_cpp(ADD).path.read_bytes()
    assert tempfile.gettempdir().encode() not in content
