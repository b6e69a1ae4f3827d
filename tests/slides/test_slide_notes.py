"""What of a lesson's text is said, on which slide, and for how long."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from slide_samples import LESSON, answered, asked, code_cell, figure_output, notebook_of, text_cell

from slides import notes
from slides.build import find_lessons, read_notebook
from slides.cells import read_deck
from slides.deck import Deck
from slides.markdown import count_words, plain_text
from tests.properties import repeatable

ALONE = {"minutes": 1}


def deck_of(*cells) -> Deck:
    return read_deck(
        notebook_of(*cells, lesson=LESSON), name="98_sample", folder=find_lessons()[0].parent
    )


@pytest.mark.parametrize(
    ("html", "said"),
    [
        (
            (
                "<p>A core waits.</p>\n<p><strong>Your turn.</strong> Sum the bytes.</p>\n<p>The "
                "function gets a list.</p>"
            ),
            "A core waits.",
        ),
        (
            (
                "<p><strong>Your turn.</strong> Sum them.</p>\n<p><strong>To remember.</strong> "
                "Count bytes.</p>"
            ),
            "To remember. Count bytes.",
        ),
        (
            (
                "<p>We won.</p>\n<p>In this lesson you:</p>\n<ul>\n<li>counted "
                "bytes</li>\n</ul>\n<p>Next: lesson 01.</p>"
            ),
            "We won. Next: lesson 01.",
        ),
        (
            (
                "<p>It "
                "depends.</p>\n<table><tr><td>1</td></tr></table>\n<pre>code()</pre>\n<ul><li>A "
                "list is said.</li></ul>"
            ),
            "It depends. A list is said.",
        ),
        ("<p>Write the rule. Write down a guess. It holds.</p>", "Write down a guess. It holds."),
        (
            "<p>The line below says so. Turn the figure. Two <em>caches</em> wait.</p>",
            "Two caches wait.",
        ),
        ("<p>Turn it yourself.</p>", ""),
        (
            "<p>A value below zero is 3.5 V. A hill above the sea is one.</p>",
            "A value below zero is 3.5 V. A hill above the sea is one.",
        ),
        # no tag is cut in two
        ("<p><em>One. Turn the page. Two.</em></p>", "One. Turn the page. Two."),
    ],
)
def test_a_lecturer_says_what_a_room_can_follow(html: str, said: str):
    assert plain_text(notes.spoken_text(html)) == said


def test_a_text_below_one_slide_and_above_the_next_is_said_in_two():
    text = text_cell(
        "It is four.\n\nTwo are late.\n\nSo which is it?", tags=("explain",), minutes=None
    )
    slides = deck_of(
        code_cell(
            "asked = predict(...)",
            asked(),
            tags=("predict", "slide", "slide-output"),
            axis=[1, 9],
            **ALONE,
        ),
        code_cell(
            "asked.reveal(...)",
            answered(),
            tags=("slide", "slide-output"),
            headline="Four",
            **ALONE,
        ),
        text,
        code_cell(
            "draw()", figure_output(), tags=("slide", "slide-output"), headline="Two", **ALONE
        ),
    ).slides
    assert [plain_text(slide.notes) for slide in slides[1:]] == [
        "It is four. Two are late.",
        "So which is it?",
    ]


def test_a_text_of_one_paragraph_is_said_once():
    slides = deck_of(
        code_cell(
            "draw()", figure_output(), tags=("slide", "slide-output"), headline="One", **ALONE
        ),
        text_cell("It is four.", tags=("explain",), minutes=None),
        code_cell(
            "draw()", figure_output(), tags=("slide", "slide-output"), headline="Two", **ALONE
        ),
    ).slides
    assert plain_text(slides[0].notes) == "It is four."
    assert plain_text(slides[1].notes).startswith("On the figure: ")


def test_seconds_are_those_of_the_words_of_a_question_and_of_a_look():
    said = f"<p>{'word ' * 130}</p>"
    assert notes.seconds(said, asks=False, shows=False) == 60
    assert notes.seconds(said, asks=True, shows=True) == 60 + notes.QUESTION_S + notes.LOOK_S


@repeatable(examples=200)
@given(st.lists(st.floats(0, 300), min_size=1, max_size=25), st.integers(0, 400))
def test_divided_minutes_are_all_the_minutes_and_who_needs_more_has_no_less(
    needed: list[float], grains: int
):
    given_s = notes.divide_seconds(grains * notes.GRAIN_S, needed)
    assert sum(given_s) == grains * notes.GRAIN_S
    assert all(one % notes.GRAIN_S == 0 for one in given_s)
    assert min(given_s) >= min(notes.LEAST_S, grains // len(needed) * notes.GRAIN_S)
    in_order = sorted(zip(needed, given_s, strict=True))
    assert all(low[1] <= high[1] + notes.GRAIN_S for low, high in pairwise(in_order))


@pytest.mark.parametrize("notebook", find_lessons(), ids=lambda path: path.stem[:2])
def test_the_notes_of_a_lesson_can_be_said_in_their_seconds_and_none_twice(notebook):
    slides = read_deck(read_notebook(notebook), name=notebook.stem, folder=notebook.parent).slides
    assert len({round(60 * slide.minutes) for slide in slides}) > len(slides) / 3
    for slide in slides:
        assert 60 * slide.minutes >= 0.6 * notes.seconds(slide.notes, asks=False, shows=False), (
            slide.heading
        )
    told = [slide.notes for slide in slides if count_words(slide.notes) > 30]
    assert len(set(told)) == len(told)
    assert not [slide.heading for slide in slides if "Your turn" in plain_text(slide.notes)]
