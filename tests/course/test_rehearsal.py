"""A rehearsal of another processor limits what it says, finds an output that changes, and says what
had no effect.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.authoring import mutation, rehearsal
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.rehearsal import Change, Effect, Rehearsal, cpuid, settings
from tools.authoring.rehearsal.settings import MIB, Setting

SANITIZE = mutation.SANITIZE
CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some Xeon
flags\t\t: fpu avx avx2 fma avx512f avx512_bf16 amx_tile sse4_2
bugs\t\t: spectre_v1
"""


def machine(root: Path, levels=((1, 48), (2, 2048), (3, 4096))) -> Path:
    """A Linux machine's files of two processors, each with caches of these levels and KiB."""
    for cpu in (0, 1):
        for index, (level, kib) in enumerate(levels):
            cache = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            cache.mkdir(parents=True)
            for name, value in {
                "level": level,
                "size": f"{kib}K",
                "coherency_line_size": 64,
                "ways_of_associativity": 16,
                "number_of_sets": kib,
            }.items():
                (cache / name).write_text(f"{value}\n")
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(CPUINFO)
    return root


def seen(setting: Setting, root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): text
        for path, text in settings.files(setting, root).items()
    }


def test_flags_that_a_setting_hides_are_not_seen(tmp_path):
    root = machine(tmp_path)
    assert (
        "flags\t\t: fpu avx avx2 fma sse4_2\n" in seen(settings.parse("avx2"), root)["proc/cpuinfo"]
    )
    assert (
        "flags\t\t: fpu avx avx2 fma avx512f sse4_2\n"
        in seen(settings.parse("avx512"), root)["proc/cpuinfo"]
    )
    assert "flags\t\t: fpu sse4_2\n" in seen(settings.parse("sse"), root)["proc/cpuinfo"]
    assert seen(settings.parse("one-core"), root) == {}


def test_another_processor_has_another_name_and_maker(tmp_path):
    text = seen(settings.parse("amd"), machine(tmp_path))["proc/cpuinfo"]
    assert "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9354P\n" in text
    assert "avx512_bf16" in text
    assert "amx" not in text


def test_the_last_cache_alone_is_smaller_and_its_ways_stay(tmp_path):
    found = seen(Setting("small", "", cache_bytes=8 * MIB), machine(tmp_path))
    start = "sys/devices/system/cpu/cpu1/cache/index2"
    assert found[f"{start}/size"] == "8192K\n"
    assert int(found[f"{start}/number_of_sets"]) * 64 * 16 == 8 * MIB
    assert {path.rpartition("/")[0].rpartition("/")[2] for path in found} == {"index2"}


def test_a_system_without_caches_is_told(tmp_path):
    with pytest.raises(settings.Unavailable, match="lists no caches"):
        settings.files(Setting("small", "", cache_bytes=MIB), machine(tmp_path, levels=()))


def test_a_system_without_the_file_of_flags_is_told(tmp_path):
    with pytest.raises(settings.Unavailable, match="no /proc/cpuinfo"):
        settings.files(settings.parse("avx2"), tmp_path)


def test_settings_join_unless_they_contradict():
    both = settings.parse("avx2+one-core")
    assert (both.cores, both.variables["ONEDNN_MAX_CPU_ISA"]) == (1, "AVX2")
    with pytest.raises(AuthoringError, match="avx2 and sse both set ATEN_CPU_CAPABILITY"):
        settings.parse("avx2+sse")
    with pytest.raises(AuthoringError, match="small-cache and amd both set cache_bytes"):
        settings.parse("small-cache+amd")
    with pytest.raises(AuthoringError, match="no setting avx1024; there are as-it-is, avx512,"):
        settings.parse("avx2+avx1024")


def test_every_variable_of_a_setting_has_something_that_shows_its_effect():
    shown = {variable for setting in settings.KNOWN.values() for variable in setting.variables}
    assert shown == set(rehearsal.effects.SHOWN_BY)
    assert [settings.parse(name).name for name in settings.WHOLE] == list(settings.WHOLE)
    assert settings.LIMITED in settings.WHOLE


def test_numpy_knows_the_names_of_what_it_is_to_leave_out():
    """It warns of a name that it does not know, and leaves nothing out."""
    names = settings.parse("sse").variables["NPY_DISABLE_CPU_FEATURES"].split()
    assert names
    assert set(names) <= set(settings.NUMPY_LEVELS)


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets a program withhold a processor's answers"
)
def test_another_processor_answers(tmp_path):
    try:
        library = rehearsal._compile_answers(tmp_path)
    except settings.Unavailable as error:
        pytest.skip(str(error))
    source = tmp_path / "ask.c"
    source.write_text(
        "#include <cpuid.h>\n#include <signal.h>\n#include <stdio.h>\n"
        "int main(void) { unsigned a, b, c, d; signal(SIGSEGV, SIG_DFL); __cpuid_count(0, 0, a, b, "
        "c, d);\n"
        'printf("%.4s%.4s%.4s ", (char *)&b, (char *)&d, (char *)&c); __cpuid_count(7, 0, a, b, c, '
        "d);\n"
        'printf("%u %u ", d >> 22 & 15, b >> 5 & 1); __cpuid_count(0x8000001d, 3, a, b, c, d);\n'
        'printf("%u", (c + 1) * ((b >> 22) + 1) * 64); }\n'
    )
    subprocess.run(["cc", str(source), "-o", str(tmp_path / "ask")], check=True)
    ask = [str(tmp_path / "ask")]
    limited = {**os.environ, "LD_PRELOAD": str(library), "REHEARSED_CPUID": cpuid.EPYC.text}
    plain = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    other = subprocess.run(
        ask, env=limited, capture_output=True, text=True, check=True
    ).stdout.split()
    assert other[:2] == ["AuthenticAMD", "0"]  # no AMX
    assert other[2] == plain[2]  # AVX2: what no rule names stays
    assert int(other[3]) == 32 * MIB
    unlimited = {**limited, "REHEARSED_CPUID": ""}
    assert (
        subprocess.run(
            ask, env=unlimited, capture_output=True, text=True, check=True
        ).stdout.split()
        == plain
    )


def notebook(folder: Path, *cells: tuple[str, str]) -> Path:
    code = [
        new_code_cell(source, execution_count=count)
        for count, (source, _) in enumerate(cells, start=1)
    ]
    for cell, (_, text) in zip(code, cells, strict=True):
        cell.outputs = [new_output("stream", name="stdout", text=text)] if text else []
    path = folder / "90_threads.ipynb"
    nbformat.write(new_notebook(cells=code), path)
    return path


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_output_that_a_limit_changes_is_found_and_the_limits_effect_told(built, monkeypatch):
    """What the libraries say is asked of real ones in .ci/run; here the environment says it."""

    def facts(_command, environment, _start):
        return {"threads of PyTorch": environment["OMP_NUM_THREADS"], "threads of MKL": "1"}

    monkeypatch.setattr(rehearsal.effects, "facts", facts)
    threads = 'print(os.environ["OMP_NUM_THREADS"], "threads")'
    path = notebook(
        built.folder,
        ("import os", ""),
        (threads, "1 threads\n"),
        ("print(7, 'ms')", "8 ms\n"),
        ("1 / 0", ""),
    )
    two = Setting(
        "two-threads", "", {"OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE", "MKL_NUM_THREADS": "2"}
    )
    small = Setting("none-such", "", cores=10**6)
    found = rehearsal.rehearse(built, [two, small], [path], sanitize=SANITIZE)
    assert found.changes == (
        Change(
            "two-threads",
            "90_threads.ipynb",
            1,
            "its output differs",
            "1 threads",
            "2 threads",
            True,
            False,
        ),
        Change(
            "two-threads",
            "90_threads.ipynb",
            3,
            "raised ZeroDivisionError",
            "",
            "division by zero",
            True,
            True,
        ),
    )
    assert not found.is_clean
    assert found.impossible[0].startswith("none-such: none-such needs 1000000 cores")
    effects = {effect.says: (effect.as_it_is, effect.limited) for effect in found.effects}
    assert effects == {"threads of PyTorch": ("1", "2"), "threads of MKL": ("1", "1")}


def test_a_change_in_one_run_of_two_and_a_limit_without_effect_are_said():
    change = Change("avx2", "07_a.ipynb", 3, "its output differs", "64.1 %", "64.2 %")
    effect = Effect("avx2", "A=1", "PyTorch", "AVX2", "AVX2")
    once = Rehearsal(3, ("avx2",), ("amd: no",), (effect,), (change,))
    assert once.is_clean
    assert str(once) == (
        "3 notebooks in each of: avx2\nNOT REHEARSED, amd: no\navx2: A=1: PyTorch: NO EFFECT, "
        "AVX2\navx2: 07_a.ipynb, code cell 3, in one run of two: its output differs\n    - 64.1 "
        "%\n    + 64.2 %\n1 output(s) changed"
    )
    assert not Rehearsal(3, (), ("amd: no",), (), ()).is_clean


def test_the_notebooks_of_a_lesson_are_it_its_appendix_and_its_exercises():
    names = [path.relative_to(HERE.folder).as_posix() for path in rehearsal.notebooks(HERE, ["11"])]
    assert names == [
        "11_working_set.ipynb",
        "appendix/11_working_set.ipynb",
        "exercises/11_working_set_exercises.ipynb",
    ]
    assert len(rehearsal.notebooks(HERE)) == len(
        [
            *HERE.folder.glob("*.ipynb"),
            *HERE.folder.glob("appendix/*.ipynb"),
            *HERE.folder.glob("exercises/*.ipynb"),
        ]
    )
