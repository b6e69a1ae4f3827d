"""Predictions: typed once, locked, kept in one private file, and never in the way of a test or a
build.
"""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import widgets
from helpers.widgets import _predictions as predictions, _store as store
from helpers.widgets._answers import NO_PREDICTION, Answer, quantity, read_number

QUESTION = "How many times longer is b than a?"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_HEADLESS", "0")
    monkeypatch.setenv("HELPERS_PREDICTIONS", str(tmp_path / "mine.json"))
    return tmp_path / "mine.json"


@pytest.fixture
def displayed(monkeypatch):
    shown: list = []
    monkeypatch.setattr("IPython.display.display", lambda *objects, **_: shown.extend(objects))
    return shown


def answer(**changes):
    return Answer(
        **(
            {"question": QUESTION, "unit": "x", "predicted": 60, "modelled": 10, "found": 20}
            | changes
        )
    )


def type_and_lock(form, text):
    box, button = form.children[1].children
    box.value = text
    button.click()
    return form.children[2].value


def test_three_numbers_stand_side_by_side_with_their_ratios():
    assert answer().rows() == [
        ("predicted", "60x", "3 times what was measured"),
        ("modelled", "10x", "0.5 times what was measured"),
        ("measured", "20x", ""),
    ]
    assert "Your prediction is 3 times too high." in str(answer())


@pytest.mark.parametrize(
    ("predicted", "line"),
    [
        (20, "Your prediction is exactly what was measured."),
        (21, "Your prediction is within 6 % of what was measured."),
        (20.01, "Your prediction is within 1 % of what was measured."),
        (5, "Your prediction is 4 times too low."),
        (0, "Your prediction is off by -20x."),
    ],
)
def test_one_line_on_the_readers_error(predicted, line):
    assert answer(predicted=predicted).verdict == line


def test_without_a_prediction_the_place_says_so():
    text = str(answer(predicted=None))
    assert NO_PREDICTION in text
    assert "too" not in text
    assert NO_PREDICTION in answer(predicted=None)._repr_html_()


@pytest.mark.parametrize("evidence", ["measured", "counted", "simulated", "stated"])
def test_an_answer_stands_under_the_name_of_what_it_rests_on(displayed, evidence):
    widgets.predict(QUESTION, "x").reveal(modelled=10, **{evidence: 20})
    [shown] = displayed
    assert shown.rows() == [
        ("predicted", NO_PREDICTION, ""),
        ("modelled", "10x", f"0.5 times what was {evidence}"),
        (evidence, "20x", ""),
    ]
    assert answer(evidence=evidence, predicted=40).verdict == "Your prediction is 2 times too high."
    assert (
        answer(evidence=evidence, predicted=20).verdict
        == f"Your prediction is exactly what was {evidence}."
    )


def test_a_published_answer_names_its_source(displayed):
    widgets.predict(QUESTION, "x").reveal(published=20, source="Hopper white paper")
    assert displayed[0].rows()[-1] == ("published", "20x", "Hopper white paper")
    assert "Hopper white paper" in displayed[0]._repr_html_()


def test_a_model_alone_answers():
    assert answer(found=None).rows() == [("predicted", "60x", ""), ("modelled", "10x", "")]
    assert answer(found=None).verdict == "Your prediction is 6 times too high."
    assert (
        answer(found=None, predicted=10).verdict
        == "Your prediction is exactly what the model says."
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "reveal what"),
        ({"measured": 1, "counted": 2}, "measured and counted are given; an answer rests on one"),
        ({"published": 1}, "a published number has its source"),
        ({"measured": 1, "source": "a book"}, "no other has one"),
        ({"simulated": "2"}, "simulated='2' is no finite number"),
    ],
)
def test_an_answer_rests_on_one_thing(given, words):
    with pytest.raises(ValueError, match=words):
        widgets.predict(QUESTION, "x").reveal(**given)


def test_html_is_escaped():
    assert "<script>" not in answer(question="<script>")._repr_html_()


def test_headless_shows_the_question_and_no_form(displayed):
    prediction = widgets.predict(QUESTION, "x")
    prediction._ipython_display_()
    prediction.reveal(measured=20)
    assert displayed[0] == {"text/plain": f"{QUESTION} [x]\n{NO_PREDICTION}"}
    assert displayed[1] == Answer(QUESTION, "x", None, None, 20, "measured")
    assert prediction.value is None


def test_headless_neither_reads_nor_writes_the_readers_file(file, monkeypatch, displayed):
    store.lock_in(QUESTION, "x", 7)
    before = file.read_bytes()
    monkeypatch.setenv("HELPERS_HEADLESS", "1")
    prediction = widgets.predict(QUESTION, "x")
    prediction.reveal(measured=20)
    assert prediction.value is None
    assert displayed[0].predicted is None
    assert file.read_bytes() == before


def test_a_typed_number_is_locked_and_kept(file):
    prediction = widgets.predict(QUESTION, "s")
    form = predictions._question_form(prediction.question, prediction.unit)
    assert type_and_lock(form, "3 ms") == ""
    box, button = form.children[1].children
    assert box.disabled
    assert button.disabled
    assert prediction.value == 0.003
    assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


def test_a_locked_number_stays(file):
    store.lock_in(QUESTION, "x", 7)
    assert store.lock_in(QUESTION, "x", 8).value == 7
    form = predictions._question_form(QUESTION, "x")
    assert form.children[1].children[0].disabled


def test_a_typing_error_is_explained_and_nothing_is_locked(file):
    prediction = widgets.predict(QUESTION, "s")
    form = predictions._question_form(prediction.question, prediction.unit)
    assert "not a quantity" in type_and_lock(form, "fast")
    assert prediction.value is None
    assert not file.exists()
    assert type_and_lock(form, "2") == ""


def test_the_answer_waits_for_the_prediction_and_then_appears(file):
    question, reply = (
        predictions._question_form(QUESTION, "x"),
        predictions._answer_form(answer(predicted=None)),
    )
    shown, skip, beside = reply.children
    assert "Lock in your prediction" in shown.value
    assert "20x" not in shown.value
    assert beside.layout.display == "none"
    type_and_lock(question, "60")
    assert "3 times too high" in shown.value
    assert skip.layout.display == "none"
    assert beside.layout.display != "none"


def test_a_prediction_after_the_answer_is_marked(file):
    question, reply = (
        predictions._question_form(QUESTION, "x"),
        predictions._answer_form(answer(predicted=None)),
    )
    reply.children[1].click()
    assert NO_PREDICTION in reply.children[0].value
    type_and_lock(question, "20")
    assert "after the answer was shown" in reply.children[0].value


def test_damaged_file_is_reported_and_left_alone(file):
    file.write_text("[{")
    with pytest.raises(ValueError, match=r"mine\.json, is damaged .* move it away"):
        store.read()
    assert file.read_text() == "[{"


def test_two_notebooks_at_once_lose_nothing(file):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.lock_in(f"question {i}", "x", i), range(24)))
    assert {question: entry.value for question, entry in store.read().items()} == {
        f"question {i}": i for i in range(24)
    }


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("40", "x", 40),
        ("40x", "x", 40),
        ("1,000 messages", "messages", 1000),
        ("2 GiB", "B", 2**31),
        ("50 %", "%", 50),
    ],
)
def test_numbers_as_people_write_them(text, unit, value):
    assert read_number(text, unit) == value


@pytest.mark.parametrize("text", ["", "x", "ten", "1e999", "nan"])
def test_what_is_no_finite_number_is_refused(text):
    with pytest.raises(ValueError, match=r"not a quantity|too large|more than a computer"):
        read_number(text, "x")


@pytest.mark.parametrize("text", ["about 30", "3 ms"])
def test_a_plain_number_is_asked_for_alone_whatever_was_written(text):
    with pytest.raises(ValueError, match="write a number alone"):
        read_number(text, "x")


@pytest.mark.parametrize(
    ("text", "unit"),
    [("-5", "x"), ("0", "x"), ("-1 ms", "s"), ("0 GB/s", "B/s"), ("-2", "messages")],
)
def test_what_no_measurement_can_give_is_not_locked(text, unit):
    with pytest.raises(ValueError, match="zero"):
        read_number(text, unit)


def test_quantities_are_printed_in_their_unit():
    assert [quantity(0.003, "s"), quantity(40, "x"), quantity(12, "messages")] == [
        "3.00 ms",
        "40x",
        "12 messages",
    ]


def test_an_empty_question_is_refused():
    with pytest.raises(ValueError, match="question is empty"):
        widgets.predict(" ", "x")


def notebook(tmp_path, *cells):
    body = {
        "cells": [{"cell_type": "code", "source": [cell]} for cell in cells],
        "metadata": {"lesson": {"title": "T"}},
    }
    (tmp_path / "07_t.ipynb").write_text(json.dumps(body))
    return tmp_path


def test_progress_counts_what_was_asked_predicted_and_answered(file, tmp_path):
    course = notebook(
        tmp_path,
        f"guess = helpers.predict({QUESTION!r}, 'x')\nguess",
        "%matplotlib inline\nother = predict('Other?', 's')",
        "print('predict(')",
    )
    store.lock_in(QUESTION, "x", 3)
    store.mark_seen("Other?", "s")
    [lesson] = widgets.progress(course=course).lessons
    assert (lesson.lesson, lesson.title) == ("07", "T")
    assert (lesson.questions, lesson.predicted, lesson.answered) == (2, 1, 1)


def test_progress_counts_a_lesson_once_whatever_its_reader_is_writing_in_it(tmp_path):
    course = notebook(tmp_path, "predict('One?', 's')", "def unfinished(")
    for beside in ("07_t.new.ipynb", "07_t-Copy1.ipynb"):
        (course / beside).write_bytes((course / "07_t.ipynb").read_bytes())
    assert [(one.lesson, one.questions) for one in widgets.progress(course=course).lessons] == [
        ("07", 1)
    ]


@pytest.mark.parametrize("given", [True, False])
def test_progress_without_lessons_says_what_to_do(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="make lab"):
        widgets.progress(course=tmp_path if given else None)


def test_outside_a_course_a_prediction_lasts_as_long_as_the_kernel_and_leaves_no_file(
    file, tmp_path, monkeypatch
):
    monkeypatch.delenv("HELPERS_PREDICTIONS")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store, "_outside", {})
    store.lock_in(QUESTION, "x", 3)
    assert widgets.predict(QUESTION, "x").value == 3
    assert list(tmp_path.iterdir()) == []


def test_predictions_stand_beside_the_lessons_from_each_of_their_folders(
    file, tmp_path, monkeypatch
):
    monkeypatch.delenv("HELPERS_PREDICTIONS")
    (tmp_path / "course" / "recorded").mkdir(parents=True)
    (tmp_path / "course" / "recorded" / "00.json").touch()
    (tmp_path / "course" / "exercises").mkdir()
    (tmp_path / "class" / "07").mkdir(parents=True)  # where nbgrader's extension puts an assignment
    for folder in ("", "course", "course/exercises", "class/07"):
        monkeypatch.chdir(tmp_path / folder)
        assert store.path() == tmp_path / "course" / "my_predictions.json"


@pytest.mark.parametrize("number", [float("nan"), "twenty"])
def test_an_answer_that_is_no_number_is_refused(number):
    with pytest.raises(ValueError, match="is no finite number in x"):
        widgets.predict(QUESTION, "x").reveal(measured=number)
