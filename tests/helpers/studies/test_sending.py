"""A GPU's file: it tells nothing of who recorded it and is shown whole; a foreign one is refused
unless it is sound.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import pytest
import torch

from helpers import hardware, recorded, results
from helpers.studies import sending
from tools.authoring.course import Course
from tools.site import machines

PLANTED = {
    "host": "ada-laptop",
    "user": "ada",
    "home": "/home/ada",
    "file": "/home/ada/thesis/plan.cu",
    "file elsewhere": "/nfs/group/ada/x",
    "folder of Windows": r"C:\Users\Ada Byron\x",
    "serial": "GPU-5a1b2c3d-0000-1111-2222-333344445555",
    "machine's number": "4c4c4544-0051-3710-8052-b4c04f4d3532",
    "network card": "0a:1b:2c:3d:4e:5f",
    "address": "192.168.178.20",
    "mail": "ada@example.org",
    "mail in words": "ada at cs.example.org",
    "home of a network": "/nfs/home/ada",
    "folder of a network": "/afs/cs.example/u",
    "way up": "../../ada",
}


@dataclass(frozen=True)
class Sample(results.Result):
    median_s: float
    notes: tuple[str, ...] = ()


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, of somebody's, whose lessons 00 and 01 record a sample; 02 fails."""
    here = sys.modules[__name__]
    card = replace(
        hardware.machine_card(),
        gpus=(hardware.Gpu("Tesla T4", "CUDA", driver="550.54.15"),),
        notes=(f"on {PLANTED['host']}, see {PLANTED['file']}",),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(hardware, "machine_card", lambda: card)
    monkeypatch.setattr(sending.platform, "node", lambda: PLANTED["host"])
    monkeypatch.setattr(sending.getpass, "getuser", lambda: PLANTED["user"])
    monkeypatch.setenv("HOME", PLANTED["home"])
    monkeypatch.setattr(recorded, "_commit", lambda: "aa1e2d0+")
    monkeypatch.setattr(recorded, "_public_name", lambda kind: f"helpers.sample:{kind.__name__}")
    monkeypatch.setitem(sys.modules, "helpers.sample", here)
    for lesson in sending.LESSONS:
        monkeypatch.setitem(recorded.RECORDERS, lesson, {"sample": f"{__name__}:measure"})
        monkeypatch.setitem(sending.RESULTS, lesson, {"sample": "helpers.sample:Sample"})
    monkeypatch.setitem(recorded.RECORDERS, "02", {"sample": f"{__name__}:fail"})
    monkeypatch.setattr(
        here, "measure", lambda: Sample(1.5e-3, tuple(PLANTED.values())), raising=False
    )
    return card


def fail() -> Sample:
    raise RuntimeError(f"no kernel image; see {PLANTED['file']}")


@pytest.fixture
def sent(gpu) -> str:
    return sending.record_gpu().to_json()


def test_nothing_in_the_file_tells_who_recorded_it_or_where(sent):
    for what, name in PLANTED.items():
        assert name not in sent.replace("\\\\", "\\"), what
    assert "Ada" not in sent
    assert sending.find_private_texts(sent) == []
    [first, *_] = json.loads(sent)["recordings"]
    assert first["card"]["notes"] == ["on (removed), see (removed)"]
    assert first["device"] == "Tesla T4"


@pytest.mark.parametrize("what", PLANTED)
def test_each_of_these_is_seen_in_a_text(gpu, what):
    assert sending.find_private_texts(f"note: {PLANTED[what]}, 3") != []


def test_what_a_recording_says_of_a_machine_is_no_name(gpu):
    for text in (
        "Debian GNU/Linux 12 (bookworm), Linux 6.18.44",
        "550.54.15",
        "AMD EPYC",
        "2.13.0+cu130",
        "/proc/cpuinfo names none",
        "bytes / s",
        "at 2.5 GB/s",
        "rises at 45.3 MiB",
        "n/a",
        "NVRTC 13.0.88",
        "adaptive",
        "const, rows",
        "helpers.timing:Comparison",
        "12.5 GB/s",
        "host/data",
    ):
        assert sending.find_private_texts(text) == [], text


def test_what_fails_is_named_and_the_rest_is_recorded(sent, gpu):
    values = json.loads(sent)
    assert [one["lesson"] for one in values["recordings"]] == ["00", "01", "10", "17", "18"]
    assert values["missing"] == ["lesson 02: RuntimeError: no kernel image; see (removed)"]


def test_without_a_gpu_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert sending.main([]) == 1
    assert "T4 GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_shows_the_whole_file_and_what_it_shows_is_taken(
    gpu, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert sending.main([]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("tesla_t4_20")
    assert path.read_text() in capsys.readouterr().out
    course = tmp_path / "clone" / "course"
    (course / "recorded").mkdir(parents=True)
    (course / "glossary.md").touch()
    monkeypatch.setattr(sending.storage, "course_file", lambda name: course / name)
    assert sending.gpus() == ()
    assert sending.main(["take", str(path)]) == 0
    (records,) = sending.gpus()
    assert records.device == "Tesla T4"
    assert records.recordings[0].result("sample").median_s == 1.5e-3
    assert (course / sending.FOLDER / path.name).is_file()


def test_the_site_shows_what_was_sent_beside_the_other_machines(sent, gpu, tmp_path):
    folder = tmp_path / "course" / sending.FOLDER
    folder.mkdir(parents=True)
    (folder / "tesla_t4.json").write_text(sent)
    page = machines.page(Course(tmp_path))
    assert "<tr><th></th><th>Tesla T4</th></tr>" in page
    assert "<tr><td>GPU</td><td>Tesla T4</td></tr>" in page
    assert "1.50 ms" in page
    assert "recorded on Tesla T4" in page


def test_the_schema_is_one_and_takes_what_is_recorded(sent):
    schema = json.loads(sending._SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(sent), schema)
    known = schema["$defs"]["recording"]["properties"]["lesson"]["enum"]
    assert tuple(known) == sending.LESSONS
    assert schema["properties"]["terms"]["const"] == sending.TERMS


def changed(text: str, *path: object, to: object) -> str:
    values = json.loads(text)
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(values)


FIRST = ("recordings", 0)
SAMPLE = (*FIRST, "entries", "sample")


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("recordings",), [], "recordings"),
        (("sender",), "Ada", "sender"),
        (("terms",), "all rights reserved", "terms"),
        ((*FIRST, "lesson"), "../../00", "lesson"),
        ((*FIRST, "device"), "<script>alert(1)</script>", "device"),
        ((*FIRST, "card", "notes"), ["<img src=x>"], "card/notes"),
        ((*FIRST, "card", "notes"), ["x" * 301], "card/notes"),
        ((*FIRST, "card", "notes"), ["from /home/bob/run"], "/home/bob/run"),
        ((*FIRST, "card", "gpus"), [], "card/gpus"),
        ((*FIRST, "card", "gpus", 0, "name"), "Tesla P4", "not the first GPU"),
        ((*FIRST, "card", "gpus", 0, "backend"), "magic", "gpus/0/backend"),
        ((*FIRST, "card", "serial"), "a", "serial"),
        ((*FIRST, "card", "caches", 0, "kind"), "x", "caches/0/kind"),
        ((*FIRST, "card", "caches", 0, "level"), 0, "level=0 is not within 1 and 9"),
        ((*FIRST, "card", "physical_cores"), 1.5, "physical_cores"),
        ((*FIRST, "card", "physical_cores"), -3, "physical_cores=-3 is not within"),
        ((*FIRST, "card", "physical_cores"), True, "physical_cores"),
        ((*FIRST, "card", "physical_cores"), [], "physical_cores"),
        ((*FIRST, "card", "physical_cores"), 10**400, "physical_cores"),
        ((*FIRST, "card", "usable_cores"), 1e308, "usable_cores"),
        ((*FIRST, "card", "usable_cores"), "NaN", "usable_cores=nan is not within"),
        ((*FIRST, "card", "ram_bytes"), "Infinity", "ram_bytes"),
        ((*FIRST, "card", "model"), "/nfs/home/ada", "/nfs/home/ada"),
        ((*FIRST, "card", "model"), "ada at example.org", "ada at example.org"),
        ((*FIRST, "card", "model"), "a\n", "card/model"),
        ((*FIRST, "card", "model"), "a\u202eb", "card/model"),
        ((*FIRST, "card", "model"), "Intel®", "card/model"),
        ((*FIRST, "card", "<script>"), 1, "<script>"),
        ((*FIRST, "date"), "yesterday", "date"),
        ((*FIRST, "date"), "2026-19-39", "it is not what this library records"),
        ((*FIRST, "date"), "2026-01-01\n", "recordings/0/date:"),
        ((*FIRST, "date"), "2099-01-01", "is not a day between 2020-01-01 and tomorrow"),
        ((*FIRST, "device"), "---", "recordings/0/device:"),
        ((*FIRST, "device"), "显卡", "recordings/0/device:"),
        ((*FIRST, "device"), "Tesla T4\n", "recordings/0/device:"),
        ((*FIRST, "commit"), "aa1e2d0\n", "recordings/0/commit:"),
        ((*FIRST, "command"), "rm -r *", "command"),
        ((*FIRST, "command"), "python -m helpers.recorded 12", "is not recorded by"),
        ((*FIRST, "versions", "__class__<b>"), "1", "versions"),
        ((*FIRST, "versions"), {"python": "3.12"}, "versions"),
        ((*SAMPLE, "type"), "os:system", "type"),
        ((*SAMPLE, "type"), "helpers.storage:write_atomically", "lesson 00 records"),
        ((*SAMPLE, "type"), "helpers.timing:Timing", "lesson 00 records"),
        ((*SAMPLE, "values", "median_s"), "soon", "median_s"),
        ((*SAMPLE, "values", "median_s"), -1, "median_s=-1 is not within 0"),
        ((*SAMPLE, "values", "median_s"), None, "median_s"),
        ((*SAMPLE, "values", "notes"), "a", "notes"),
        ((*SAMPLE, "values", "speed"), 1, "speed"),
        (
            (*FIRST, "entries", "other"),
            {"type": "helpers.sample:Sample", "values": {}},
            "lesson 00 records",
        ),
    ],
)
def test_a_foreign_file_is_refused_with_the_reason(sent, gpu, path, to, said):
    assert sending.check(sent).device == "Tesla T4"
    with pytest.raises(ValueError, match=said):
        sending.check(changed(sent, *path, to=to))


def test_a_lesson_that_is_there_twice_and_a_second_gpu_are_refused(sent, gpu):
    first, second = json.loads(sent)["recordings"][:2]
    with pytest.raises(ValueError, match="each lesson is recorded once, on one GPU"):
        sending.check(changed(sent, "recordings", to=[first, first]))
    other = changed(sent, "recordings", 1, "card", "gpus", 0, "name", to="Tesla P4")
    with pytest.raises(ValueError, match="each lesson is recorded once, on one GPU"):
        sending.check(changed(other, "recordings", 1, "device", to="Tesla P4"))
    assert second["device"] == "Tesla T4"


def test_what_is_no_such_file_at_all_is_refused(sent):
    for text, said in (
        ("", "no JSON"),
        ("[" * 10**4, "no JSON"),
        ("[" * 20_001, "more than 20,000 lists"),
        ("[]", "the file"),
        (f"{' ' * 2**20}{{}}", "larger"),
        (sent.replace("0.0015", "NaN"), "no number"),
        (sent.replace("0.0015", "Infinity"), "no number"),
        (sent.replace("0.0015", "1e999"), "1e999 is no number"),
        (sent.replace("0.0015", "-1e999"), "-1e999 is no number"),
        (sent.replace("0.0015", f"{'[' * 400}{']' * 400}"), "too deep"),
        (sent.replace("0.0015", f"{'[' * 90}{']' * 90}"), "median_s"),
    ):
        with pytest.raises(ValueError, match=said):
            sending.check(text)


def test_a_file_that_is_refused_goes_nowhere(sent, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sending.storage, "course_file", lambda name: tmp_path / name)
    bad = tmp_path / "sent.json"
    bad.write_text(changed(sent, *FIRST, "device", to="<b>"))
    assert sending.main(["take", str(bad)]) == 1
    assert capsys.readouterr().err.startswith("error: recordings/0/device: ")
    assert list(tmp_path.iterdir()) == [bad]
    with pytest.raises(SystemExit):
        sending.main(["take"])


def test_committed_files_of_gpus_are_sound():
    for path in Path(__file__).parents[3].joinpath("course", sending.FOLDER).glob("*.json"):
        sending.check(path.read_text(encoding="utf-8"))
