"""Recordings: what is written is what was measured, under its machine's name, and can be read back
or is refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from helpers import recorded, results

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Sample(results.Result):
    median_s: float
    runs: int


def measure_sample() -> Sample:
    return Sample(1.5e-3, 7)


def measure_without_torchvision() -> Sample:
    raise ModuleNotFoundError("it comes with torchvision; install torchvision")


@pytest.fixture
def recording(monkeypatch) -> recorded.Recording:
    monkeypatch.setitem(recorded.RECORDERS, "99", {"sample": f"{__name__}:measure_sample"})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    return recorded.record("99")


def test_what_was_measured_comes_back_in_its_own_type(recording, tmp_path):
    recorded.save(recording, folder=tmp_path)
    again = recorded.load("99", folder=tmp_path)
    assert again == recording
    assert again.result("sample") == Sample(1.5e-3, 7)


def test_a_recording_names_machine_versions_date_commit_and_command(recording):
    import torch

    assert recording.versions["torch"] == torch.__version__
    assert recording.command == "python -m helpers.recorded 99"
    assert recording.device in recording.source
    assert recording.date in recording.source
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True)
    assert recording.commit.rstrip("+") == (head.stdout.decode().strip() or "unknown")


def test_a_recording_holds_no_name_of_host_user_or_folder(recording):
    import getpass
    import platform

    text = recording.to_json()
    for private in {str(Path.home()), platform.node()} - {"", "/", "localhost"}:
        assert private not in text
    assert f'"{getpass.getuser()}"' not in text


def test_missing_recording_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"python -m helpers\.recorded 00"):
        recorded.show("00", "products", folder=tmp_path)


def test_outside_a_course_nothing_is_read_or_recorded_and_both_say_why(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match=r"^recorded is in the course's folder, and this notebook is in none",
    ):
        recorded.show("00", "products")
    with pytest.raises(SystemExit):
        recorded.main(["00"])
    assert "or give --folder" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"lesson": "99"}'])
def test_damaged_file_is_refused_with_the_remedy(recording, tmp_path, damage):
    path = recorded.save(recording, folder=tmp_path)
    path.write_text(damage)
    with pytest.raises(
        ValueError, match=r"99\.json is not a recording .* python -m helpers.recorded 99"
    ):
        recorded.load("99", folder=tmp_path)


def test_a_field_too_many_is_noticed(recording, tmp_path):
    path = recorded.save(recording, folder=tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"speed": 1}))
    with pytest.raises(ValueError, match="speed"):
        recorded.load("99", folder=tmp_path)


def test_show_displays_the_result_under_its_machines_name(recording, tmp_path, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    recorded.save(replace(recording, device="Machine X"), folder=tmp_path)
    recorded.show("99", "sample", folder=tmp_path)
    assert capsys.readouterr().out.startswith("recorded on Machine X, ")
    assert shown == [Sample(1.5e-3, 7)]


def test_unknown_names_are_refused(recording):
    with pytest.raises(ValueError, match="there is no 'other'"):
        recording.result("other")
    with pytest.raises(ValueError, match="lesson '77' records nothing; these do: 00"):
        recorded.record("77")


def test_the_command_refuses_a_lesson_that_records_nothing(capsys):
    with pytest.raises(SystemExit) as stopped:
        recorded.main(["77"])
    assert stopped.value.code == 2
    assert "records nothing" in capsys.readouterr().err


def test_a_lesson_that_fails_is_named_and_the_rest_are_recorded(
    recording, monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(
        recorded.RECORDERS, "98", {"sample": f"{__name__}:measure_without_torchvision"}
    )
    assert recorded.main(["98", "99", "--folder", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["99.json"]
    printed = capsys.readouterr()
    assert "lesson 99: sample on " in printed.out
    assert printed.err.endswith(
        "lesson 98 is not recorded: it comes with torchvision; install torchvision\n"
    )


def test_every_registered_recorder_exists():
    import importlib

    for places in recorded.RECORDERS.values():
        for place in places.values():
            module, function = place.split(":")
            assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.timed
def test_lesson_00_records_that_a_matrix_product_takes_longer(tmp_path):
    assert recorded.main(["00", "--folder", str(tmp_path)]) == 0
    written = recorded.load("00", folder=tmp_path)
    assert set(written.entries) == set(recorded.RECORDERS["00"])
    assert written.result("products").candidate("a @ b").time_ratio > 1


def test_committed_recordings_are_read_in_full():
    for path in (ROOT / "course" / "recorded").glob("*.json"):
        recording = recorded.load(path.stem)
        assert set(recording.entries) == set(recorded.RECORDERS[path.stem])
        for name in recording.entries:
            assert isinstance(recording.result(name), results.Result)


@pytest.mark.parametrize(
    "place", ["os:system", "helpers.units", "helpers.units:parse", "nowhere:Thing", ""]
)
def test_an_entry_that_is_no_result_is_refused(recording, tmp_path, place):
    path = recorded.save(recording, folder=tmp_path)
    content = json.loads(path.read_text())
    content["entries"]["sample"]["type"] = place
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"99\.json is not a recording"):
        recorded.load("99", folder=tmp_path)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(recorded.RECORDERS, "99", {"sample": f"{__name__}:never"})
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        recorded.main(["99", "--folder", str(tmp_path / "file")])
    assert "nothing can be written" in capsys.readouterr().err
