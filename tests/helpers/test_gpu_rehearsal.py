"""What runs on a reader's GPU has run here, to its end, on one that is none
(tests/fake_cuda.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import native
from helpers.native import _nvrtc as nvrtc
from helpers.studies import sending
from helpers.studies.input_pipeline._starvation import COPYING
from tools.authoring.environment import EARLY_END, headless

ROOT = Path(__file__).parents[2]


def _lacks_tools() -> str:
    try:
        nvrtc.find_nvrtc()
        native.find_nvdisasm()
    except native.MissingToolError as error:
        return str(error)
    return ""


def recorded(folder: Path, *lessons: str) -> tuple[str, sending.GpuRecords]:
    """Return what the command printed while it recorded the lessons, all where none is named, and
    the records.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.fake_cuda", str(folder), *lessons],
        cwd=ROOT,
        timeout=250,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [path] = folder.glob("*.json")
    records = sending.check(path.read_text())
    assert records.missing == (), done.stderr[-3000:]
    return done.stdout, records


def test_a_lesson_is_recorded_on_a_gpu_that_is_none(tmp_path):
    _, records = recorded(tmp_path, "02")
    [only] = records.recordings
    assert only.result("matrix products").device.partition(":")[0] == "cuda"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lesson", "shows"),
    [
        pytest.param(
            "02_compute_and_roofline",
            r"The layer under the roof of the GPU that was found here",
            marks=pytest.mark.release,
        ),
        pytest.param("03_how_a_gpu_runs_a_kernel", r"padded: .* ms, .* GB/s", marks=pytest.mark.ci),
        pytest.param(
            "13_reading_a_profile",
            r"\d+ kernels and copies, idle \d+% \(measured\)",
            marks=pytest.mark.ci,
        ),
        pytest.param(
            "17_constant_weights",
            r"const: .* ms, 1\.00 times as long as const",
            marks=(
                pytest.mark.release,
                pytest.mark.skipif(bool(_lacks_tools()), reason="no compiler for GPUs"),
            ),
        ),
        pytest.param("18_fused_bias", r"this GPU, 1,000 digits +\d", marks=pytest.mark.release),
    ],
)
def test_a_lesson_runs_on_a_gpu_that_is_none(tmp_path, lesson, shows):
    environment = {**os.environ, **headless(cache_folder=str(tmp_path)), **EARLY_END}
    del environment["CUDA_VISIBLE_DEVICES"]
    walked = (
        "import pathlib, sys; from tests import fake_cuda; "
        "fake_cuda.walk(pathlib.Path(sys.argv[1]))"
    )
    notebook = ROOT / "course" / f"{lesson}.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", walked, str(notebook)],
        cwd=ROOT,
        timeout=250,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(shows, done.stdout)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.skipif(bool(_lacks_tools()), reason="no compiler for GPUs")
def test_the_command_records_every_lesson_on_a_gpu_that_is_none(tmp_path):
    printed, records = recorded(tmp_path)
    [path] = tmp_path.glob("*.json")
    assert path.read_text() in printed
    assert tuple(one.lesson for one in records.recordings) == sending.LESSONS
    found = {one.lesson: one for one in records.recordings}
    places = [
        found["01"].result("limits"),
        found["02"].result("matrix products"),
        found["10"].result("copying"),
        found["18"].result("story"),
    ]
    assert [place.device.partition(":")[0] for place in places] == ["cuda"] * 4
    rows = found["17"].result("placements on CUDA").rows
    assert len(rows) > 12
    assert all(row.error_share <= 1 for row in rows)
    assert tuple(row.copying for row in places[2].rows) == COPYING
