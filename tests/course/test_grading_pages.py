"""What a lecturer's browser shows of a submission, and what its student reads: text, the right
words, no request.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from hypothesis import given, strategies as st
from nbconvert.exporters import HTMLExporter
from nbgrader.api import Gradebook
from nbgrader.server_extensions.formgrader import handlers
from traitlets.config import Config

from tests.course.grading_samples import (
    ASSIGNMENT,
    FIRST,
    HEAD,
    KERNEL,
    LAST,
    LIMITS,
    POINTS,
    SHEET,
    hand_in,
    notebook,
    solution,
)
from tests.properties import repeatable
from tools.authoring.course import HERE
from tools.exercises import sheets
from tools.exercises.sheets import WRITTEN_STUB
from tools.grading import __main__ as command, grade, gradebook, intake, marker, outputs, page
from tools.grading.gradebook import Book
from tools.grading.intake import Submission
from tools.grading.marker import Mark, Marks

QUESTION, BLANK = SHEET.written
SHEETS = sheets.load(HERE)
HARMLESS = "the memory\nis slow"
PAYLOADS = {
    "script": "<script>alert(1)</script>",
    "handler": "<img src=x onerror=alert(1)>",
    "style": "<style>body { display: none }</style>",
    "frame": "text\n\n<iframe src='http://evil.example'></iframe>",
    "ends the element": "</pre><script>alert(1)</script>",
    "ends it later": "one\n\n</pre>\n\n<script>alert(1)</script>",
    "ends the cell": "</div></div></div><b>x</b>",
    "comment": "<!-- hides the rest",
    "script link": "[x](javascript:alert(1))",
    "link": "one\n\n[x](http://evil.example)",
    "reference": "[x][1]\n\n[1]: javascript:alert(1)",
    "autolink": "<http://evil.example>",
    "bare link": "http://evil.example",
    "image": "![x](http://evil.example/x.png)",
    "image of the server": "![x](/logout)",
    "data": "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+)",
    "fence": "```\ntext\n```\n<b onclick=alert(1)>x</b>",
    "diagram": "```mermaid\n<img src=x onerror=alert(1)>\n```",
    "table": "| a |\n|---|\n| <b onclick=alert(1)>x</b> |",
    "item": "- <b onclick=alert(1)>x</b>",
    "line ends": "one\r\n\r<script>alert(1)</script>\u2028<b>x</b>",
}
SHOWN_AS_TYPED = (
    "`a < b`",
    "$a<b$ and $$x_1 < \\frac{1}{2}$$",
    "5 * 3 and *less*",
    "a && b &lt; c",
    "&amp;lt;",
    "1. x\n   2. y",
)


def answered(**texts):
    made = notebook()
    for cell in made.cells:
        cell.source = texts.get(cell.metadata.nbgrader.grade_id, cell.source)
    return made


def marked(said=""):
    marks = tuple(
        Mark(name, 1.0, POINTS[name], said, (("a goal", True),)) for name in SHEET.exercises
    )
    return Marks("ann", ASSIGNMENT, marks)


@functools.cache
def exporter():
    """Return Formgrader's own exporter, whose templates are read once."""
    config = Config()
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    return HTMLExporter(config=config)


def formgraders(made):
    """Return a notebook as Formgrader shows it."""
    names = (
        "base_url",
        "submission_id",
        "notebook_id",
        "assignment_id",
        "student",
        "notebook_path",
    )
    resources = {**dict.fromkeys(names, "x"), "index": 0, "total": 1}
    return BeautifulSoup(exporter().from_notebook_node(made, resources=resources)[0], "html.parser")


def of_answer(made, name=QUESTION):
    """Return the one cell ``name`` of a notebook, as Formgrader shows it."""
    made = nbformat.from_dict(
        {**made, "cells": [one for one in made.cells if one.metadata.nbgrader.grade_id == name]}
    )
    return formgraders(made)


def elements(soup):
    return [(one.name, one.attrs) for one in soup.find_all(True)]


@functools.cache
def of_harmless_answers():
    """Return the elements that Formgrader shows for a harmless answer with its marks, and for one
    as it was sent.
    """
    made = (
        gradebook.with_marks(answered(**{QUESTION: HARMLESS}), marked()),
        answered(**{QUESTION: "x"}),
    )
    return [elements(of_answer(one)) for one in made]


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_written_answer_adds_no_element_to_the_formgrader(payload):
    plain, bare = of_harmless_answers()
    assert elements(of_answer(answered(**{QUESTION: payload}))) != bare
    shown = of_answer(gradebook.with_marks(answered(**{QUESTION: payload}), marked()))
    assert elements(shown) == plain
    assert payload.split() == shown.find("pre").get_text().split()


@pytest.mark.parametrize("typed", SHOWN_AS_TYPED)
def test_a_written_answer_stands_as_it_was_typed(typed):
    shown = of_answer(gradebook.with_marks(answered(**{QUESTION: f"{typed}\n\n  end\n"}), marked()))
    assert shown.find("pre").get_text().strip("\n") == f"{typed}\n\n  end"


def test_code_and_what_the_checks_say_of_it_are_text():
    evil = "\n".join(one for one in PAYLOADS.values() if "\r" not in one)
    made = answered(**{FIRST: f"%%html\n{evil}", QUESTION: HARMLESS})
    made.cells.insert(0, nbformat.v4.new_code_cell(evil))
    shown = formgraders(gradebook.with_marks(made, marked(said=f"{evil}\x1b[31m{evil}")))
    plain = formgraders(gradebook.with_marks(answered(**{QUESTION: HARMLESS}), marked()))
    names = {one.name for one in plain.find_all(True)}
    assert {one.name for one in shown.find_all(True)} <= names
    assert len(shown.find_all("script")) == len(plain.find_all("script"))
    assert len(shown.find_all(["img", "iframe", "style"])) == len(
        plain.find_all(["img", "iframe", "style"])
    )
    inside = shown.find(id="notebook").find_all(True)
    assert not [one for one in inside for name in one.attrs if name.startswith("on")]


def test_of_a_submission_nothing_but_sources_is_taken(tmp_path):
    made = answered(**{QUESTION: HARMLESS, BLANK: " \n"})
    kinds = ("text/html", "image/svg+xml", "application/javascript")
    evil = nbformat.v4.new_output(
        "display_data", dict.fromkeys(kinds, "EVIL"), metadata={"EVIL": "EVIL"}
    )
    for cell in made.cells:
        cell.metadata["EVIL"] = cell.metadata.nbgrader["EVIL"] = "EVIL"
        if cell.cell_type == "code":
            cell.outputs = [evil]
        else:
            cell["attachments"] = {"EVIL": {"image/svg+xml": "EVIL"}}
    made.cells += [nbformat.v4.new_raw_cell("EVIL"), nbformat.v4.new_markdown_cell("EVIL")]
    made.metadata = nbformat.from_dict(
        {
            "EVIL": "EVIL",
            "title": "EVIL",
            "widgets": {"EVIL": {}},
            "language_info": {"name": "EVIL", "pygments_lexer": "html"},
        }
    )
    taken = intake.clean(SHEET, hand_in(tmp_path, "ann", made))
    sources = {one.metadata.nbgrader.grade_id: one.source for one in taken.cells}
    assert (sources[QUESTION], sources[BLANK]) == (HARMLESS, WRITTEN_STUB)
    assert "EVIL" not in nbformat.writes(taken)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A class's folder with the submission of Ann in it, which lies in nbgrader's own place, and
    her page.
    """
    folder = tmp_path_factory.mktemp("class")
    path = hand_in(
        folder / "submitted" / "ann", ASSIGNMENT, answered(**{QUESTION: PAYLOADS["script"]})
    )
    made = Book(folder)
    made.prepare(HERE, SHEET)
    made.record(
        SHEET,
        marked("Exercise\nall there\npublic checks passed, hidden not run\n"),
        intake.clean(SHEET, path),
    )
    made.page(ASSIGNMENT, "ann")
    return folder


@pytest.fixture
def book(made_once, tmp_path):
    """A gradebook of its own for each test, with the submission and the page of Ann."""
    return Book(shutil.copytree(made_once, tmp_path / "class"))


def kept(book):
    return book.folder / "autograded" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"


def read_page(book):
    path = book.folder / "feedback" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.html"
    return path, BeautifulSoup(path.read_text(), "html.parser")


def test_the_notebook_for_the_formgrader_holds_no_tag_of_a_student(book):
    assert PAYLOADS["script"] not in kept(book).read_text()
    assert "&lt;script&gt;" in kept(book).read_text()


def test_the_page_names_what_got_points_and_what_waits(book):
    _, soup = read_page(book)
    rows = [
        [one.get_text() for one in row.find_all("td")] for row in soup.find("table").find_all("tr")
    ]
    headings = [
        one.get_text()
        for one in soup.find_all("h2")
        if one.get_text().startswith(("Exercise", "Question"))
    ]
    assert [row[0] for row in rows] == headings
    assert len(set(headings)) == 5
    assert [row[1] for row in rows] == [
        *["1 of 3 points"] * 3,
        "waits for a person (2 points)",
        "0 of 2 points",
    ]
    assert f"3 of 13 points so far; 2 points wait for a person: {headings[3]}." in soup.get_text()
    assert "No response" not in soup.get_text()
    assert all(soup.find(id=one["href"][1:]) for one in soup.find("table").find_all("a"))
    with Gradebook(book.url) as grades:
        grades.find_grade(QUESTION, ASSIGNMENT, ASSIGNMENT, "ann").manual_score = 1.5
        grades.find_comment(
            QUESTION, ASSIGNMENT, ASSIGNMENT, "ann"
        ).manual_comment = "Half: $t^2$, *why*? $\\nope{x}$"
        grades.db.commit()
    book.page(ASSIGNMENT, "ann")
    _, soup = read_page(book)
    assert "1.5 of 2 points" in soup.find(id=QUESTION).get_text()
    assert "wait for a person" not in soup.get_text()
    comment = soup.find(id=QUESTION).find(class_="comment")
    assert comment.find("msup")
    assert comment.find("em").get_text() == "why"
    assert "$\\nope{x}$" in comment.get_text()


def test_the_page_says_which_checks_were_run(book):
    said = read_page(book)[1].find(id=f"{FIRST}_checks").find("pre").get_text()
    assert said == "Exercise\nall there\npublic checks passed\n1 of 3 points\n"


def test_the_page_says_whose_it_is_of_what_and_when_and_shows_what_cells_showed(book, tmp_path):
    """What a submission sends is never taken as it is: a table's text, and a picture that is
    one.
    """
    made = answered()
    made.cells.insert(0, nbformat.v4.new_code_cell("plot()", id="own-0"))
    path = hand_in(tmp_path, "ann", made)
    sent = [
        {"printed": "hello <b>\x00"},
        {"html": "<table onclick=x><tr><td>5<script>alert(1)</script>"},
        {"png": base64.b64encode(PICTURE).decode(), "text": "a 'figure'"},
    ]
    marks = replace(
        marked(),
        handed_in="2026-11-22 10:00:00",
        notes=("the checks of x were changed",),
        outputs={"own-0": outputs.safe(sent)},
    )
    book.record(SHEET, marks, intake.clean(SHEET, path))
    Book(book.folder, {"ann": "Ann <i> Example"}).page(ASSIGNMENT, "ann")
    soup = read_page(book)[1]
    assert [one.get_text() for one in soup.find_all("h1")] == [SHEET.lesson.title]
    assert "Ann <i> Example (ann), handed in 2026-11-22 10:00 UTC" in soup.get_text()
    assert "Note: the checks of x were changed." in soup.get_text()
    shown = soup.find_all(class_="box")[0]
    assert shown.find(class_="output").get_text() == "hello <b>\u2400"
    assert [one.get_text() for one in shown.find_all("td")] == ["5"]
    assert shown.find("img")["src"] == f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    assert not soup.find_all(["script", "i"])


PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 20, 10) + b"\x08\x02\0\0\0"


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "x",
        [5],
        [{}],
        [{"png": "no base64"}],
        [{"png": base64.b64encode(b"<svg onload=alert(1)>").decode()}],
        [{"png": base64.b64encode(PICTURE[:20]).decode()}],
        [{"png": base64.b64encode(PICTURE + b"x" * 500_000).decode()}],
        [{"png": base64.b64encode(PICTURE.replace(b"\0\0\0\x14", b"\0\xff\0\0")).decode()}],
        [{"html": "<b>x</b>"}],
        [{"html": "<table><tr><td>x</td></tr></table>" * 5000}],
        [{"svg": "<svg>"}],
    ],
    ids=lambda one: str(one)[:25],
)
def test_what_is_no_output_is_left_out(sent):
    assert outputs.safe(sent) == []


def test_of_outputs_as_much_is_taken_as_somebody_reads():
    assert len(outputs.safe([{"printed": "x"}] * 100)) == outputs.MOST_OF_A_CELL
    (one,) = outputs.safe([{"printed": "x" * 10**6}])
    assert one["text"] == "x" * outputs.MOST_CHARACTERS + "\n[and so on]"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "<table><thead><tr><th a=1>n<tbody><tr><td>1<td>2</table>",
            "<table><thead><tr><th>n</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
        ),
        (
            (
                "<style>td{}</style><table><tr><td><img src=x "
                "onerror=y>&lt;b&gt;</td></tr></table><p>after"
            ),
            "<table><tr><td>&lt;b&gt;</td></tr></table>",
        ),
        (
            "<table><tr><td>out<table><tr><td>in</td></tr></table></td></tr></table>",
            "<table><tr><td>out</td></tr><tr><td>in</td></tr></table>",
        ),
        (
            (
                "<!-- <table><td>no --><TABLE class='a'><TR/><TD\n>a &amp;lt; b "
                "<!----><script><td>x</script>c<td-x>d</table>"
            ),
            "<table><tr><td>a &amp;lt; b cd</td></tr></table>",
        ),
        ("<table><td>a < b, <!-- and so on", "<table><td>a &lt; b, &lt;!-- and so on</td></table>"),
        (
            "<table><thead><thead><thead><td>a",
            "<table><thead></thead><thead></thead><thead><td>a</td></thead></table>",
        ),
        ("<style><table><td>no</script></table>", ""),
        (
            "</style><table><tr><td>a</td></script><td>b</td></tr></table>",
            "<table><tr><td>a</td><td>b</td></tr></table>",
        ),
        ("<table><td title=\"a>b\" x='>'>c", "<table><td>c</td></table>"),
        ("<table><td>&#" + "1" * 5000 + ";d", "<table><td>\ufffdd</td></table>"),
    ],
)
def test_of_a_table_its_cells_are_kept(given, shown):
    assert outputs.table(given) == shown


PIECES = [
    "<table>",
    "</table>",
    "<tr>",
    "<td>",
    "</td>",
    "<th a=1>",
    "<tbody>",
    "<td title='",
    "'",
    "<",
    ">",
    "</",
    "<!",
    "<!--",
    "-->",
    "<![",
    "x[",
    "]]>",
    "<?",
    "<script>",
    "</script>",
    "<style>",
    "&",
    "&lt;",
    "&#0;",
    "x",
    "\r\n",
]


@repeatable(examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_of_any_html_whole_elements_without_attributes_are_kept_and_again_the_same(text):
    shown = outputs.table(text)
    names, open_names = re.findall(r"<(/?)([a-z]+)>", shown), []
    for ends, name in names:
        assert name in ("table", "thead", "tbody", "tr", "th", "td")
        assert not ends or open_names.pop() == name
        open_names += [] if ends else [name]
    assert open_names == []
    assert not set("<>") & set(re.sub(r"</?[a-z]+>", "", shown))
    assert outputs.table(shown) == shown


@pytest.mark.parametrize(
    "text", ["<a ", "<!--", "<td", "</", "<a", "a", "<thead>", "<a='", "&", "<style>", "<!"]
)
def test_tables_take_as_long_as_their_text_is(text):
    """Python's parser of HTML takes two minutes for the first of them, and has no limit of a
    sandbox around it.
    """
    took_s = {}
    for length in (outputs.MOST_OF_A_TABLE // 8, outputs.MOST_OF_A_TABLE):
        given = "<table><td>" + text * ((length - 11) // len(text))
        began_s = time.process_time()
        assert outputs.table(given).endswith("</table>")
        took_s[length] = time.process_time() - began_s
    short_s, long_s = took_s.values()
    assert long_s < 30 * short_s + 1  # 8 times in proportion, 64 times as a square


@pytest.mark.parametrize("text", ["a.", "...", "\n "])
def test_the_page_of_a_cell_takes_as_long_as_its_text_is(text):
    """The page's colours take the square of a run of blanks and of a line; the student's file keeps
    what is cut.
    """
    took_s = []
    for length in (12_000, 48_000):
        cell = nbformat.v4.new_code_cell("x = 1\n" + text * (length // len(text)))
        made = gradebook.with_marks(nbformat.v4.new_notebook(cells=[cell]), Marks("ada", "02", ()))
        began_s = time.process_time()
        assert page.PageExporter().from_notebook_node(made)
        took_s.append(time.process_time() - began_s)
    assert took_s[1] < 9 * took_s[0] + 0.5  # 4 times in proportion, 16 times as a square


def test_of_what_is_too_long_the_beginning_is_shown():
    long = "\n " * 200_000 + "x = 1\n" + "y" * 300_000
    assert outputs.cut(long, 50_000).startswith("\n# [400000 blanks]\nx = 1\nyyy")
    assert len(outputs.cut(long, 50_000)) < 50_100
    assert outputs.cut_code(long, 50_000).splitlines()[2:4] == [
        "x = 1",
        f"{'y' * 1000}  # [48,975 characters more]",
    ]


def test_the_page_is_drawn_without_a_script_and_without_a_request(book, chromium):
    path, soup = read_page(book)
    assert not soup.find_all(["script", "img", "link", "iframe"])
    assert path.stat().st_size < 200_000
    asked, heard = [], []
    opened = chromium.new_page()
    opened.on("request", lambda one: asked.append(one.url))
    opened.on("console", lambda one: heard.append(one.text))
    opened.on("dialog", lambda one: (heard.append(one.message), one.dismiss()))
    opened.goto(path.as_uri())
    padding = opened.evaluate(
        "[...document.querySelectorAll('td, th')].map(e => "
        "parseFloat(getComputedStyle(e).paddingLeft))"
    )
    opened.close()
    assert (asked, heard) == ([path.as_uri()], [])
    assert min(padding) >= 8


@pytest.mark.parametrize("sheet", [pytest.param(one, id=one.lesson.number) for one in SHEETS])
def test_every_formula_of_the_course_is_drawn_and_every_link_leads_somewhere(sheet):
    for cell in sheets.released(sheet).cells:
        if cell.cell_type == "markdown":
            soup = BeautifulSoup(page.PageExporter().markdown2html({}, cell.source), "html.parser")
            assert all(one["href"].startswith("https://") for one in soup.find_all("a"))
            assert not soup.find_all("img")
            for code in soup.find_all(["code", "pre"]):
                code.decompose()
            assert "$" not in soup.get_text(), cell.source


@pytest.mark.parametrize(
    "mark", ["### BEGIN HIDDEN TESTS", "### END MARK SCHEME", "### BEGIN MARK SCHEME\nx = 1"]
)
def test_nbgraders_marks_in_a_students_cell_are_text(book, mark):
    made = answered(**{FIRST: f"{mark}\nx = 2", QUESTION: mark})
    made.cells.insert(0, nbformat.v4.new_code_cell(f"{mark}\nown = 1"))
    path = hand_in(book.folder / "more", "ann", made)
    book.record(SHEET, marked(), intake.clean(SHEET, path))
    book.page(ASSIGNMENT, "ann")
    text = read_page(book)[1].get_text()
    assert text.count(mark.splitlines()[0]) == 3
    assert "Random(20" not in text


def test_a_page_is_written_where_what_it_shows_has_changed(book, monkeypatch):
    path, _ = read_page(book)
    written = []
    convert = Book._convert
    monkeypatch.setattr(
        Book, "_convert", lambda *given: (written.append(given[2:]), convert(*given))
    )

    def writes():
        written.clear()
        book.page(ASSIGNMENT, "ann")
        return written == [(ASSIGNMENT, "ann")]

    assert not writes()
    path.write_text(path.read_text().replace("points", "no points"))
    assert writes()
    path.unlink()
    assert writes()
    with Gradebook(book.url) as grades:
        grades.find_grade(QUESTION, ASSIGNMENT, ASSIGNMENT, "ann").manual_score = 1.5
        grades.db.commit()
    assert writes()
    with Gradebook(book.url) as grades:
        grades.find_comment(QUESTION, ASSIGNMENT, ASSIGNMENT, "ann").manual_comment = "Half."
        grades.db.commit()
    assert writes()
    assert "Half." in path.read_text()
    monkeypatch.setattr(page, "sources", lambda: [b"another template"])
    assert writes()
    assert not writes()


def test_where_nbgrader_fails_the_student_and_the_cause_are_named(book):
    kept(book).write_text("no notebook")
    with pytest.raises(
        gradebook.GradingError, match=f"nbgrader failed on {ASSIGNMENT} of ann: .*NotJSONError"
    ):
        book.page(ASSIGNMENT, "ann")


def test_what_the_formgrader_removed_or_wrote_itself_is_restored(book):
    assert book.holds(marked())
    right = kept(book).read_text()
    made = json.loads(right)
    next(one for one in made["cells"] if one["cell_type"] == "code")["outputs"] = [
        {"output_type": "display_data", "data": {"text/html": "<b>run outside</b>"}, "metadata": {}}
    ]
    kept(book).write_text(json.dumps(made))
    assert not book.holds(marked())
    kept(book).write_text(right.replace("&lt;script&gt;", "<script>"))
    assert not book.holds(marked())
    kept(book).unlink()
    assert not book.holds(marked())
    kept(book).write_text(right)
    assert book.holds(marked())
    read = book.folder / "read" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    for path in (read, kept(book)):  # as a version that kept what a student wrote left it
        path.write_text(path.read_text().replace("&lt;script&gt;", "<script>"))
    assert not book.holds(marked())


@pytest.mark.parametrize("ours", [True, False], ids=["with our settings", "without"])
def test_autograde_runs_and_removes_nothing_and_what_it_would_remove_is_missed(book, ours):
    """Formgrader's button and the command go the same way; without the settings the same command
    runs the notebook.
    """
    run = book.folder / "run"
    made = answered()
    made.cells.insert(
        0, nbformat.v4.new_code_cell(f"open({str(run)!r}, 'w').close()\nimport os\nos._exit(1)")
    )
    (book.folder / "submitted" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").write_text(
        nbformat.writes(made)
    )
    if not ours:
        (book.folder / "nbgrader_config.py").write_text("c = get_config()\n")
    command_line = [
        Path(sys.executable).with_name("nbgrader"),
        "autograde",
        "--force",
        "--student",
        "ann",
        ASSIGNMENT,
    ]
    done = subprocess.run(
        command_line, cwd=book.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert ("run `make grade`" in done.stderr) == ours
    assert run.exists() != ours, done.stderr
    assert book.holds(marked()) == ours


def test_generate_feedback_of_the_formgrader_shows_no_hidden_test(book):
    command_line = [
        Path(sys.executable).with_name("nbgrader"),
        "generate_feedback",
        "--student",
        "ann",
        ASSIGNMENT,
    ]
    elsewhere = "--CourseDirectory.feedback_directory=again"
    subprocess.run([*command_line, elsewhere], cwd=book.folder, capture_output=True, check=True)
    text = (book.folder / "again" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.html").read_text()
    assert "1 of 3 points" in text
    assert "HIDDEN TESTS" in kept(book).read_text()
    assert "HIDDEN TESTS" not in text


@pytest.mark.usefixtures("working_sandbox")
@pytest.mark.slow
def test_a_student_reads_what_their_own_cells_raised(tmp_path):
    divides = (
        "def smallest_batch(inputs, outputs, size, ridge):\n    share = size / 0\n    return "
        "share\n"
    )
    answers = {
        FIRST: f"{HEAD}    return (flops +* peak)\n",
        KERNEL: f"{solution(KERNEL)}\nlimit = undefined\n",
        LAST: divides,
    }
    path = hand_in(tmp_path, "ann", notebook(answers, before="scratch = [1][5]"))
    one, kernel, last = marker.mark(SHEET, Submission("ann", ASSIGNMENT, path), LIMITS).marks
    assert [one.score, kernel.score, last.score] == [0, POINTS[KERNEL], 0]
    assert (
        "A cell above raised IndexError: list index out of range\nin your line: scratch = [1][5]\n"
        in one.said
    )
    assert (
        "A cell above raised SyntaxError: invalid syntax\nin your line: return (flops +* peak)\n"
        in one.said
    )
    assert "raised NameError: name 'roofline_time' is not defined\n" in one.said
    assert kernel.said.startswith(
        "A cell above raised NameError: name 'undefined' is not defined\nin your line: limit = "
        "undefined\nExercise 2"
    )
    assert (
        "raised ZeroDivisionError: division by zero\n               in your line: share = size / "
        "0\n" in last.said
    )
    assert "A cell above" not in last.said
    for said in (one.said, kernel.said, last.said):
        assert "self._" not in said
        assert "KeyError" not in said


def test_the_folder_of_the_submissions_may_begin_with_a_tilde(tmp_path, monkeypatch):
    given = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(grade, "grade", lambda *where, **_: given.extend(where) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command.main(["~/class/submitted"])
    assert given == [tmp_path / "class" / "submitted", tmp_path / "class"]
