"""What Canvas and Moodle pack is read, and what they import is written; every student of the class
has a row.

The names are invented. The forms are those of canvas-lms (lib/content_zipper.rb,
gradebook_exporter.rb, gradebook_importer.rb) and of Moodle (mod/assign/classes/downloader.php,
feedback/offline/importgradeslib.php).
"""

from __future__ import annotations

import csv
import io
import random
import zipfile

import pytest

from tests.course.grading_samples import ASSIGNMENT, SHEET
from tools.grading import grade, intake, lms, table
from tools.grading.gradebook import GradingError

SHEETS = {ASSIGNMENT: SHEET}
MOST = float(sum(table.points_of(SHEET).values()))
CANVAS = {
    f"doejane_1201_88001_{ASSIGNMENT}.ipynb": b"jane",
    f"mllerjrg_LATE_1202_88002_{ASSIGNMENT}-1.ipynb": b"joerg",
    f"osullivanmáire_1203_88003_{ASSIGNMENT} (1).ipynb": b"maire",
    "smithsam_1204_88004_essay.pdf": b"%PDF",
    "roeruth_1205_88005_homework.ipynb": b"{}",
    f"anon_Ab3xZ_88006_{ASSIGNMENT}.ipynb": b"nobody",
}
MOODLE = {
    f"Jane Doe_501_assignsubmission_file/{ASSIGNMENT}.ipynb": b"jane",
    f"Jörg Müller_502_assignsubmission_file_/{ASSIGNMENT} (1).ipynb": b"joerg",
    f"Máire O'Sullivan_503_assignsubmission_file_{ASSIGNMENT}.ipynb": b"maire",
    "Sam Smith_504_assignsubmission_onlinetext/onlinetext.html": b"see my mail",
}
CANVAS_BOOK = f"""Student,ID,SIS Login ID,Section,Homework 1 (7),{ASSIGNMENT} (4711),Final Score
,,,,,Manual Posting,
    Points Possible,,,,10,{MOST:g},(read only)
"Doe, Jane",1201,jane@uni.example,A,9,,90
"Müller, Jörg",1202,joerg@uni.example,A,8,3,80
"O'Sullivan, Máire",1203,maire@uni.example,B,,,
"Smith, Sam",1204,sam@uni.example,B,,,
"Poe, Pat",1206,pat@uni.example,B,,2,
"Student, Test",9999,test,A,,,
"""
MOODLE_SHEET = f"""Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,\
Last modified (submission),Last modified (grade),Feedback comments
Participant 501,Jane Doe,jane@uni.example,Submitted for grading,,{MOST:.2f},Yes,"Sunday, 22 November 2026",-,
Participant 502,Jörg Müller,joerg@uni.example,Submitted for grading,,{MOST:.2f},Yes,-,-,
Participant 503,Máire O'Sullivan,maire@uni.example,Submitted for grading,,{MOST:.2f},Yes,-,-,
Participant 504,Sam Smith,sam@uni.example,Submitted for grading,1.00,{MOST:.2f},Yes,-,-,kept
"""  # noqa: E501


def packed(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def unpacked(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


FORMS = {
    "zip": lambda at, files: packed(at / "download.zip", files),
    "folder": lambda at, files: unpacked(at / "download", files),
    "zip of a folder": lambda at, files: packed(
        at / "d.zip", {f"download/{name}": one for name, one in files.items()}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_canvas_packs_is_laid_out_by_student(tmp_path, form):
    done = lms.unpack(FORMS[form](tmp_path, CANVAS), tmp_path)
    found, strange = intake.find(done.folder, [ASSIGNMENT])
    assert {one.student: one.path.read_bytes() for one in found} == {
        "doejane_1201": b"jane",
        "mllerjrg_1202": b"joerg",
        "osullivanmaire_1203": b"maire",
        "anon_Ab3xZ": b"nobody",
    }
    assert done.system == lms.CANVAS
    assert [one.late for one in done.people.values()].count(True) == 1
    assert done.people["mllerjrg_1202"].late
    assert done.skipped == {"smithsam_1204": "handed in 'essay.pdf' and no notebook"}
    assert list(strange) == ["roeruth_1205"]


@pytest.mark.parametrize("form", FORMS)
def test_what_moodle_packs_is_laid_out_by_student(tmp_path, form):
    done = lms.unpack(FORMS[form](tmp_path, MOODLE), tmp_path)
    found, _ = intake.find(done.folder, [ASSIGNMENT])
    assert {one.student: one.path.read_bytes() for one in found} == {
        "janedoe_501": b"jane",
        "jorgmuller_502": b"joerg",
        "maireosullivan_503": b"maire",
    }
    assert done.system == lms.MOODLE
    assert done.people["jorgmuller_502"] == lms.Person("Jörg Müller", "502")
    assert done.skipped == {"samsmith_504": "handed in 'onlinetext.html' and no notebook"}


def test_a_plain_zip_file_and_a_plain_folder_are_read_as_they_are(tmp_path):
    files = {f"ann/{ASSIGNMENT}.ipynb": b"ann", f"ben/{ASSIGNMENT}/{ASSIGNMENT}.ipynb": b"ben"}
    done = lms.unpack(packed(tmp_path / "class.zip", files), tmp_path)
    assert [one.student for one in intake.find(done.folder, [ASSIGNMENT])[0]] == ["ann", "ben"]
    assert (done.system, done.people) == ("", {})
    folder = unpacked(tmp_path / "plain", files)
    assert lms.unpack(folder, tmp_path) == lms.Download(folder)


def test_an_archive_writes_nothing_outside_and_unpacks_no_more_than_a_notebook(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lms, "LARGEST_BYTES", 1000)
    evil = {
        f"../../{ASSIGNMENT}.ipynb": b"x",
        f"/etc/{ASSIGNMENT}.ipynb": b"x",
        f"..\\ann\\{ASSIGNMENT}.ipynb": b"x",
        f"doejane_1_2_..\\..\\{ASSIGNMENT}.ipynb": b"x",
        "a_1_2_\x01.ipynb": b"x",
        f"bomb_1_2_{ASSIGNMENT}.ipynb": b"\0" * 10**6,
        "__MACOSX/._x": b"x",
    }
    before = {path for path in tmp_path.parent.rglob("*") if not path.is_relative_to(tmp_path)}
    done = lms.unpack(packed(tmp_path / "evil.zip", evil), tmp_path / "into")
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "evil.zip"]
    assert all(path.resolve().is_relative_to(done.folder.resolve()) for path in written)
    assert len(written) >= 4
    assert max(path.stat().st_size for path in written) == 1001
    assert {
        path for path in tmp_path.parent.rglob("*") if not path.is_relative_to(tmp_path)
    } == before


def test_a_plain_download_keeps_its_assignments_apart_and_when_they_were_handed_in(tmp_path):
    names = ["00_a", "01_b"]
    files = {
        f"ann/{one}/{name}": one.encode()
        for one in ("00_a", "01_b")
        for name in (f"{one}.ipynb", "timestamp.txt")
    }
    done = lms.unpack(
        packed(tmp_path / "c.zip", {**files, f"jdoe_1_2_{ASSIGNMENT}.ipynb": b""}), tmp_path
    )
    found, _ = intake.find(done.folder, names)
    assert [one.path.with_name("timestamp.txt").read_text() for one in found] == names


def _damaged(path, packing):
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name in (f"doejane_1_2_{ASSIGNMENT}.ipynb", f"roeruth_3_4_{ASSIGNMENT}.ipynb"):
            archive.writestr(name, random.Random(0).randbytes(500))
    data = bytearray(path.read_bytes())
    at = data.index(b".ipynb") + len(".ipynb")
    data[at + 4 : at + 20] = b"\xff" * 16
    path.write_bytes(data)


@pytest.mark.parametrize(
    "packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_damaged_file_in_an_archive_is_its_own_students(tmp_path, packing):
    _damaged(tmp_path / "a.zip", packing)
    done = lms.unpack(tmp_path / "a.zip", tmp_path)
    assert [one.student for one in intake.find(done.folder, [ASSIGNMENT])[0]] == ["roeruth_3"]
    assert done.skipped["doejane_1"].startswith(f"handed in '{ASSIGNMENT}.ipynb', which is damaged")


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [("MOST_FILES", 2, "files; 2 are read"), ("MOST_BYTES", 8, "GiB; grade it in parts")],
)
def test_a_download_without_end_is_refused(tmp_path, monkeypatch, limit, most, said):
    monkeypatch.setattr(lms, limit, most)
    with pytest.raises(GradingError, match=said):
        lms.unpack(packed(tmp_path / "a.zip", CANVAS), tmp_path)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK no")
    with pytest.raises(GradingError, match="no whole ZIP file"):
        lms.unpack(tmp_path / "a.zip", tmp_path)
    with pytest.raises(GradingError, match="not a folder and no ZIP file"):
        grade._refuse(tmp_path / "a.tar", tmp_path)


def row(student, score, *, waits=0):
    points = table.points_of(SHEET)
    return {
        "student": student,
        "assignment": ASSIGNMENT,
        "score": score,
        "max_score": MOST,
        "so_far_of": MOST - waits,
        "answers_to_mark": int(bool(waits)),
        "note": "",
        **dict.fromkeys(points, 1.0),
        **({SHEET.written[0]: ""} if waits else {}),
    }


def completed(tmp_path, files, roster, rows):
    """Return the people of a download with a roster, and the rows completed."""
    done = lms.unpack(packed(tmp_path / "d.zip", files), tmp_path)
    found, strange = intake.find(done.folder, [ASSIGNMENT])
    strange = done.skipped | strange
    listed = None
    if roster:
        (tmp_path / "roster.csv").write_text(roster)
        listed = table.Roster.read(tmp_path / "roster.csv")
    people = table.People(done, listed, [*(one.student for one in found), *strange])
    return people, people.complete(rows, strange, SHEETS)


def lines(path):
    return list(csv.reader(io.StringIO(path.read_text())))


CANVAS_ROWS = [
    row("doejane_1201", 9.0),
    row("mllerjrg_1202", 7.5),
    row("osullivanmaire_1203", 9.0, waits=2),
]


def test_each_student_of_canvass_list_has_a_row_with_name_and_reason(tmp_path):
    _, rows = completed(tmp_path, CANVAS, CANVAS_BOOK, CANVAS_ROWS)
    text = csv.DictReader(io.StringIO(table.as_csv(rows, SHEETS)))
    by_name = {one["name"]: one for one in text}
    assert list(by_name) == [
        "Doe, Jane",
        "Müller, Jörg",
        "O'Sullivan, Máire",
        "Smith, Sam",
        "Poe, Pat",
    ]
    assert by_name["Doe, Jane"]["note"] == ""
    assert by_name["Müller, Jörg"]["note"] == "late, says Canvas"
    assert by_name["O'Sullivan, Máire"][SHEET.written[0]] == ""
    assert by_name["Smith, Sam"]["note"] == "not marked: handed in 'essay.pdf' and no notebook"
    assert (by_name["Poe, Pat"]["student"], by_name["Poe, Pat"]["score"]) == ("pat@uni.example", "")
    assert by_name["Poe, Pat"]["note"] == "not marked: handed nothing in"


def test_canvas_gets_its_gradebook_with_the_grades_that_are_final(tmp_path):
    people, rows = completed(tmp_path, CANVAS, CANVAS_BOOK, CANVAS_ROWS)
    (said,) = people.write_imports(tmp_path, rows, set())
    assert "2 grades for Canvas" in said
    header, points, *students = lines(tmp_path / "grades_for_canvas.csv")
    assert header == ["Student", "ID", "SIS Login ID", "Section", f"{ASSIGNMENT} (4711)"]
    assert points == ["    Points Possible", "", "", "", f"{MOST:g}"]
    assert {one[1]: one[-1] for one in students} == {
        "1201": "9",
        "1202": "7.5",
        "1203": "",
        "1204": "",
        "1206": "2",
    }


def test_canvas_gets_a_gradebook_without_a_list_too(tmp_path):
    people, rows = completed(tmp_path, CANVAS, "", CANVAS_ROWS)
    people.write_imports(tmp_path, rows, {("mllerjrg_1202", ASSIGNMENT)})
    header, _, *students = lines(tmp_path / "grades_for_canvas.csv")
    assert header == ["Student", "ID", "SIS Login ID", "Section", ASSIGNMENT]
    assert {one[1]: one[-1] for one in students}["1201"] == "9"
    assert {one[1]: one[-1] for one in students}["1202"] == ""  # what could not be read is no 0


MOODLE_ROWS = [
    row("janedoe_501", 9.0),
    row("jorgmuller_502", 7.5),
    row("maireosullivan_503", 9.0, waits=2),
]


@pytest.mark.parametrize("listed", [MOODLE_SHEET, ""], ids=["with the worksheet", "without"])
def test_moodle_gets_its_worksheet(tmp_path, listed):
    people, rows = completed(tmp_path, MOODLE, listed, MOODLE_ROWS)
    (said,) = people.write_imports(tmp_path, rows, set())
    assert "2 grades for Moodle" in said
    header, *students = lines(tmp_path / f"grades_for_moodle_{ASSIGNMENT}.csv")
    assert header == MOODLE_SHEET.splitlines()[0].split(",")
    grades = {one[0]: one[header.index("Grade")] for one in students}
    assert grades == {
        "Participant 501": "9.00",
        "Participant 502": "7.50",
        "Participant 503": "",
        "Participant 504": "1.00" if listed else "",
    }
    assert students[-1][-1] == ("kept" if listed else "")


def test_another_maximum_in_moodle_is_refused(tmp_path):
    people, rows = completed(
        tmp_path, MOODLE, MOODLE_SHEET.replace(f"{MOST:.2f}", "100.00"), MOODLE_ROWS
    )
    assert "the maximum grade is 100" in people.write_imports(tmp_path, rows, set())[0]
    assert not list(tmp_path.glob("grades_for_moodle*"))


def test_a_list_of_names_and_ids_will_do(tmp_path):
    files = {f"{one}/{ASSIGNMENT}.ipynb": b"" for one in ("ann", "ben", "stranger")}
    rows = [row("ann", 9.0), row("ben", 1.0), row("stranger", 2.0)]
    people, rows = completed(
        tmp_path, files, "Name;ID;Mail\n=Ann;ann;a@x\nBen;4;ben@uni.example\nCleo;c;\n", rows
    )
    assert [(one["name"], one["note"]) for one in rows] == [
        ("=Ann", ""),
        ("Ben", ""),
        ("", "not on the roster"),
        ("Cleo", "not marked: handed nothing in"),
    ]
    assert people.write_imports(tmp_path, rows, set()) == []
    assert ",'=Ann," in table.as_csv(rows, SHEETS)  # no formula


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "has the columns 'a, b'; give Canvas's"),
        ("", "name and id"),
        ("\xff", "save it as CSV in UTF-8"),
        ('name,id\n"Ann,a\nBen,b\n', "cannot be read .*; save it as CSV"),
        ("name,id\n" + "x" * 200_000, "cannot be read .*; save it as CSV"),
        ("name,id\n\n,\n", "lists no student below its columns"),
        ("name,id\nAnn,a\nBen,A\n", "has 'A' for 'Ann' and for 'Ben'; give each"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, text, said):
    (tmp_path / "r.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(GradingError, match=said):
        table.Roster.read(tmp_path / "r.csv")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffsep=;\r\nName;ID\r\nJ\u00f6rg;j\r\n\r\n;\r\nJ\u00f6rg;j\r\n",
        "\n\nname\tid\rJ\u00f6rg\tj\r",
    ],
)
def test_a_list_is_read_as_spreadsheets_save_it(tmp_path, text):
    (tmp_path / "r.csv").write_bytes(text.encode())
    assert table.Roster.read(tmp_path / "r.csv").rows == (("Jörg", "j"),)
