"""A question and its answer: what a slide shows of each, and never both on one slide, in every
lesson.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from nbformat import NotebookNode
from slide_samples import (
    QUESTION,
    answered,
    asked,
    code_cell,
    displayed,
    figure_output,
    notebook_of,
    printed,
    text_cell,
)

from helpers.widgets import NO_PREDICTION, Answer
from slides import build, evidence, questions
from slides.cells import read_deck
from slides.deck import Deck
from slides.markdown import plain_text
from slides.rules import SlideError

LESSONS = sorted(path for path in build.COURSE.glob("*.ipynb") if re.match(r"\d\d_", path.name))


def predict(*tags: str, **metadata: float) -> NotebookNode:
    return code_cell("seen = predict(...)", asked(), tags=("predict", *tags), **metadata)


def reveal(*tags: str, **metadata: float) -> NotebookNode:
    return code_cell("seen.reveal(...)", answered(), tags=("look", *tags), **metadata)


def output(*tags: str, **metadata: float) -> NotebookNode:
    return code_cell("f()", printed("1"), tags=("slide-output", *tags), **metadata)


def deck_of(*cells: NotebookNode) -> Deck:
    return read_deck(notebook_of(*cells), name="98_sample", folder=Path())


def refusal(*cells: NotebookNode) -> str:
    with pytest.raises(SlideError) as caught:
        deck_of(*cells)
    return str(caught.value)


STATES, ASKS = text_cell("## H\n\nText."), text_cell("## H\n\nWhy?")
ALONE = {"minutes": 1}


def test_a_predict_is_its_question_as_text():
    (slide,) = deck_of(STATES, predict("slide-output")).slides
    assert [plain_text(part.text) for part in slide.parts] == ["Text.", QUESTION]
    assert slide.layout == "question"
    assert slide.words == 10
    assert all(not part.outputs and not part.code for part in slide.parts)


def test_its_text_is_on_the_page_and_what_nobody_did_is_not():
    cells = (STATES, predict("slide-output"), reveal("slide", "slide-output", **ALONE))
    page = build.render(notebook_of(*cells), name="98_sample")
    assert page.count("<p>How many times longer is a &lt; b [cold]?</p>") == 1
    assert page.count('<p class="of">How many times longer is a &lt; b [cold]?</p>') == 1
    assert NO_PREDICTION not in page


def test_a_predict_alone_is_the_title_of_its_slide_with_an_axis_to_guess_on():
    (slide,) = deck_of(predict("slide", "slide-output", **ALONE), reveal()).slides
    assert plain_text(slide.heading) == QUESTION
    assert (slide.parts[0].text, slide.layout) == ("", "question")
    assert 'data-low="0.1" data-high="1000" data-marks="[]"' in slide.parts[0].axis
    stated = predict("slide", "slide-output", axis=[1, 50], **ALONE)
    assert 'data-low="1" data-high="50"' in deck_of(stated).slides[0].parts[0].axis


@pytest.mark.parametrize(
    ("found", "unit", "ends"),
    [
        (4.0, "x", (0.1, 1000)),
        (40.0, "%", (0, 100)),
        (0.0, "logits", (0, 10)),
        (None, "s", (0.01, 1000)),
    ],
)
def test_the_axis_holds_the_answer_well_inside(
    found: float | None, unit: str, ends: tuple[float, float]
):
    answer = Answer(
        QUESTION,
        unit,
        predicted=None,
        modelled=2.0 if found else None,
        found=found if found != 2 else 0,
    )
    cells = [
        predict(),
        code_cell("r", displayed({"text/html": answer._repr_html_(), "text/plain": str(answer)})),
    ]
    cells[0].outputs = [asked(unit=unit)]
    if found is None:
        cells = cells[:1]
        ends = (0, 10)
    assert (questions.read(cells)[QUESTION].low, questions.read(cells)[QUESTION].high) == ends


def shown(output) -> str:
    cells = [predict(), code_cell("r", output)]
    return evidence.render_output(output, questions.read(cells))["data"]["text/html"]


def test_an_answer_keeps_its_model_and_its_measurement_as_numbers_and_on_the_axis():
    page = BeautifulSoup(shown(answered()), "html.parser")
    assert plain_text(str(page.select_one(".of"))) == QUESTION
    assert [one.get_text(" ") for one in page.select(".number")] == ["2x modelled", "4x measured"]
    assert json.loads(page.select_one(".guess")["data-marks"]) == [
        ["modelled", 2.0],
        ["measured", 4.0],
    ]
    assert page.select_one("input") is None


def test_who_published_a_number_is_said_at_the_foot_and_not_beside_the_number():
    paper = "Somebody, a long title of a paper, table 1"
    published = answered(evidence="published", source=paper)
    page = BeautifulSoup(shown(published), "html.parser")
    assert [one.get_text(" ") for one in page.select(".number")] == ["2x modelled", "4x published"]
    asking = predict("slide", "slide-output", **ALONE)
    telling = code_cell("r", published, tags=("slide", "slide-output"), **ALONE)
    assert [slide.source for slide in deck_of(asking, telling).slides] == ["", paper]
    telling.metadata["source"] = "as the cell says it"
    assert [slide.source for slide in deck_of(asking, telling).slides] == [
        "",
        "as the cell says it",
    ]


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem[:2])
def test_each_slide_of_a_lesson_with_published_numbers_says_who_published_them(notebook: Path):
    content = build.read_notebook(notebook)
    for slide in read_deck(content, name=notebook.stem, folder=notebook.parent).slides:
        outputs = [output for part in slide.parts for output in part.outputs]
        texts = [
            f"{output.get('text', '')} {output.get('data', {}).get('text/html', '')}"
            for output in outputs
        ]
        if any("published" in BeautifulSoup(text, "html.parser").get_text() for text in texts):
            assert slide.source, slide.heading


def test_a_prediction_that_was_made_stays():
    assert "8x predicted" in plain_text(shown(answered(predicted=8.0)).replace("</b>", "</b> "))


def test_another_output_stays_as_it_is():
    other = displayed({"text/html": "<p>predicted</p>", "text/plain": "predicted"})
    assert evidence.render_output(other, {}) is other
    assert questions.question(other) is None
    assert not questions.is_answer(other)


def test_a_reveal_of_the_library_is_known_as_an_answer(monkeypatch):
    """What is shown comes from the library itself, so that a change of its words is seen here."""
    from IPython.core.formatters import DisplayFormatter

    from helpers.widgets import predict as ask

    monkeypatch.setenv("HELPERS_HEADLESS", "1")
    heard = []
    monkeypatch.setattr(
        "IPython.display.display", lambda shown, raw=False: heard.append((shown, raw))
    )
    asking = ask(QUESTION, "x")
    asking._ipython_display_()
    asking.reveal(modelled=2.0, measured=4.0)
    (question, raw), (answer, _) = heard
    assert raw
    assert questions.question(displayed(question)) == QUESTION
    data, _ = DisplayFormatter().format(answer)
    assert questions.is_answer(displayed(data))
    assert NO_PREDICTION in data["text/html"]
    assert NO_PREDICTION not in shown(displayed(data))


@pytest.mark.parametrize(
    "cells",
    [
        (ASKS, output()),
        (ASKS, code_cell("f()", figure_output(), tags=("slide-output",))),
        (ASKS, code_cell("f()", printed("1"), tags=("slide-more",))),
        (STATES, predict("slide-output"), output()),
        (STATES, predict("slide-output"), reveal("slide-output")),
    ],
    ids=["printed", "figure", "with its code", "after its predict", "its reveal"],
)
def test_an_answer_on_the_slide_of_its_question_is_refused(cells):
    message = refusal(*cells)
    assert message.startswith(
        "98_sample, cell 1, asks a question and shows an output on one slide; open a slide"
    )


def test_an_output_from_below_a_predict_does_not_join_a_text_above_it():
    message = refusal(STATES, predict(), output())
    assert message.startswith(
        "98_sample, cell 1, joins a text above a predict to an output below it; open a slide"
    )


@pytest.mark.parametrize(
    "cells",
    [
        (STATES, reveal("slide-output")),
        (STATES, reveal("slide", "slide-output", **ALONE)),
        (ASKS, output("slide", **ALONE), reveal("slide", "slide-output", **ALONE)),
    ],
    ids=["on its slide", "on the next", "after another answer"],
)
def test_an_answer_that_nobody_asked_for_is_refused(cells):
    assert "shows the answer of a reveal, and no slide since the last output has asked" in refusal(
        *cells
    )


@pytest.mark.parametrize(
    "cells",
    [
        (
            predict("slide", "slide-output", **ALONE),
            output("slide", **ALONE),
            reveal("slide", "slide-output", **ALONE),
        ),
        (ASKS, reveal("slide", "slide-output", **ALONE)),
        (ASKS, output("slide", **ALONE)),
        (ASKS, text_cell("## More\n\nText."), reveal("slide", "slide-output", **ALONE)),
        (ASKS, output("slide", **ALONE), reveal("slide-output")),
        (ASKS, code_cell("f()", printed("1"), tags=("slide-code",))),
        (text_cell("## Why?\n\nText."), output()),
        (STATES, output(), predict()),
        (STATES, predict("slide-output"), reveal("slide", "slide-output", **ALONE)),
        (predict("slide", "slide-output", **ALONE), reveal("slide", "slide-output", **ALONE)),
    ],
)
def test_a_question_before_its_answer_is_right(cells):
    assert deck_of(*cells).slides


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_in_every_lesson_a_question_stands_on_a_slide_before_its_answer(notebook: Path):
    """Said once more from the cells alone, without the deck: what ``read_deck`` refuses cannot hide
    here.
    """
    cells = build.read_notebook(notebook).cells
    slide_of, slide = {}, 0
    for index, cell in enumerate(cells):
        tags = set(cell.metadata.get("tags", []))
        slide += "slide" in tags
        if tags & {"slide", "slide-more", "slide-code", "slide-output"}:
            slide_of[index] = slide
    asking = [
        i
        for i, cell in enumerate(cells)
        if cell.cell_type == "code" and "predict" in cell.metadata.get("tags", [])
    ]
    assert asking, "no predict in this lesson: the test has nothing to look at"
    for start, end in pairwise([*asking, len(cells)]):
        heading = max((i for i in range(start) if _begins(cells[i])), default=0)
        told = {
            slide_of[i] for i in range(heading, start + 1) if i in slide_of and not _shows(cells[i])
        }
        shown = {slide_of[i] for i in range(start + 1, end) if i in slide_of and _shows(cells[i])}
        assert not told & shown, (
            f"the question of cell {start + 1} and an output below it stand on one slide"
        )
        revealed = [
            i
            for i in range(start + 1, end)
            if i in slide_of and ".reveal(" in cells[i].source and _shows(cells[i])
        ]
        assert not revealed or told, (
            f"cell {revealed[0] + 1} shows an answer; its question stands on no slide"
        )


def _begins(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown" and cell.source.startswith("#")


def _shows(cell: NotebookNode) -> bool:
    """Whether a cell shows an output on its slide that is no question."""
    tags = cell.metadata.get("tags", [])
    return cell.cell_type == "code" and "slide-code" not in tags and "predict" not in tags


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_every_lessons_deck_ends_with_what_to_take_home_and_has_a_whole_note_a_slide(notebook):
    deck = read_deck(build.read_notebook(notebook), name=notebook.stem, folder=notebook.parent)
    assert plain_text(deck.slides[-1].heading) in ("What to take home", "Back to the bet")
    notes = [plain_text(slide.notes) for slide in deck.slides]
    assert [
        number for number, note in enumerate(notes, start=2) if not note or note.endswith(":")
    ] == []
