"""Which cells make which slide, and every rule that refuses one."""

from pathlib import Path

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_output, new_raw_cell
from slide_samples import (
    LESSON,
    code_cell,
    displayed,
    figure_output,
    notebook_of,
    printed,
    sample_notebook,
    text_cell,
)

from helpers.plotting.player import BEGINS
from helpers.widgets import NO_PREDICTION
from slides import players
from slides.cells import read_deck
from slides.deck import Deck
from slides.markdown import plain_text
from slides.rules import MOST_WORDS, SlideError


def deck_of(*cells, lesson=None) -> Deck:
    return read_deck(notebook_of(*cells, lesson=lesson), name="98_sample", folder=Path())


def refusal(*cells, lesson=None) -> str:
    with pytest.raises(SlideError) as caught:
        deck_of(*cells, lesson=lesson)
    return str(caught.value)


OPENS = text_cell("## H\n\nText.")


def test_the_sample():
    deck = read_deck(sample_notebook(), name="98_sample", folder=Path())
    assert [slide.heading for slide in deck.slides] == [
        "How many times longer is a &lt; b [cold]?",
        "Four, not two",
        "Three numbers",
        "Work over time",
        "Rows before columns",
        "A square picture",
        "Code that wraps",
        "A table",
        "What to take home",
    ]
    assert [slide.layout for slide in deck.slides] == [
        "question",
        "numbers",
        "statement",
        "statement",
        "figure",
        "beside",
        "code",
        "table",
        "close",
    ]
    assert [len(slide.parts) for slide in deck.slides] == [1, 1, 1, 2, 2, 2, 2, 1, 1]
    assert [60 * slide.minutes for slide in deck.slides] == pytest.approx(
        [260, 130, 40, 20, 130, 130, 130, 115, 35]
    )
    assert deck.minutes == pytest.approx(16.5)
    assert deck.facts == "20 minutes · needs lesson 00, a quiet machine"
    assert deck.objectives == (
        "tell a byte from a bit",
        "predict the time of <code>a @ b</code> from $2mnk$ operations",
    )


@pytest.mark.parametrize(
    ("tags", "code", "outputs"),
    [
        (("slide-more",), True, 1),
        (("slide-code",), True, 0),
        (("slide-output",), False, 1),
        (("slide-more", "slide-output"), False, 1),
    ],
)
def test_what_of_a_joining_code_cell_is_shown(tags, code, outputs):
    (slide,) = deck_of(OPENS, code_cell("f()", printed("1"), tags=tags)).slides
    assert (bool(slide.parts[1].code), len(slide.parts[1].outputs)) == (code, outputs)


def test_a_cell_that_the_reader_writes_is_cut_as_any_and_its_checks_are_not_shown():
    written = code_cell(
        "def f():\n    return 1", tags=("yours", "slide-more", "slide-code"), yours="f"
    )
    (slide,) = deck_of(
        OPENS, written, code_cell("f = asked.settle()", printed("F\n  reached"), checks="f")
    ).slides
    assert [(part.cell_index, bool(part.code), len(part.outputs)) for part in slide.parts[1:]] == [
        (1, True, 0)
    ]
    assert "reached" not in slide.notes


def test_a_part_tag_beside_slide_opens():
    deck = deck_of(
        OPENS, code_cell("f()", printed("1"), tags=("run", "slide", "slide-output"), minutes=1)
    )
    assert len(deck.slides) == 2
    assert not deck.slides[1].parts[0].code
    assert deck.slides[1].heading == "H"


def test_a_joining_cell_may_stand_further_down():
    (slide,) = deck_of(
        OPENS, text_cell("Between.", tags=(), minutes=None), code_cell("f()", tags=("slide-more",))
    ).slides
    assert [part.cell_index for part in slide.parts] == [0, 2]


def test_the_heading_of_a_joining_cell_goes_to_the_notes():
    (slide,) = deck_of(
        OPENS, text_cell("### Look\n\nMore.\n\nSpoken.", tags=("slide-more",), minutes=None)
    ).slides
    assert slide.heading == "H"
    assert plain_text(slide.notes) == "Look Spoken."


BELOW = text_cell("Because.\n\nAnd so on.", tags=("explain",), minutes=None)
OUTPUT = code_cell("f()", printed("1"), tags=("slide", "slide-output"), minutes=1)


HOLD = "Hold the guesses of the room against it: who was near, and by what reasoning?"


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ((), "Because. And so on."),
        ((code_cell("g()", printed("2"), tags=("look",)),), "Because. And so on."),
        ((code_cell("g()", printed("2"), tags=("slide-output",)),), "Because. And so on."),
        ((text_cell("## Next", tags=(), minutes=None),), HOLD),
        ((text_cell("## Next\n\nText."),), HOLD),
        (
            (
                code_cell(
                    "g()",
                    displayed({"text/plain": f"Why? [x]\n{NO_PREDICTION}"}),
                    tags=("predict",),
                ),
            ),
            HOLD,
        ),
    ],
    ids=[
        "right below",
        "below another cell",
        "below the slide's last",
        "a section",
        "a slide",
        "a predict",
    ],
)
def test_the_text_below_an_output_is_for_the_speaker(between, said):
    assert plain_text(deck_of(OPENS, OUTPUT, *between, BELOW).slides[1].notes) == said


def test_the_text_below_a_text_is_not_for_the_speaker():
    assert deck_of(OPENS, BELOW).slides[0].notes == ""
    assert deck_of(OPENS, text_cell("Text.", tags=("slide",))).slides[1].notes == ""


def test_a_note_that_led_over_to_a_cell_ends_with_a_full_stop():
    leads_over = text_cell("## H\n\nShown.\n\nRun it, there and back:")
    assert plain_text(deck_of(leads_over).slides[0].notes) == "Run it, there and back."


def test_where_the_lesson_says_no_more_the_speaker_is_told_what_to_do():
    above = text_cell("The last text above.", tags=(), minutes=None)
    assert plain_text(deck_of(OPENS, above, OUTPUT).slides[1].notes) == "The last text above."
    asked = text_cell("## H\n\nWhich is slower?")
    assert "Let the room guess" in deck_of(asked).slides[0].notes
    figure = code_cell("draw()", figure_output(), tags=("slide", "slide-output"), minutes=1)
    assert plain_text(deck_of(OPENS, figure).slides[1].notes).startswith("On the figure: ")


def test_without_any_heading_the_lessons_title_is_the_heading():
    deck = deck_of(text_cell("Text."), lesson={**LESSON, "title": "Bytes & bits"})
    assert deck.slides[0].heading == "Bytes &amp; bits"


def test_a_widget_is_left_out_beside_its_static_figure():
    widget = displayed(
        {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "interactive"}
    )
    (slide,) = deck_of(
        OPENS, code_cell("f()", widget, figure_output(), tags=("slide-output",))
    ).slides
    assert len(slide.parts[1].outputs) == 1


TABLE = displayed({"text/html": "<table><tr><td>1</td></tr><tr><td>2</td></tr></table>"})
CLAIM = "A row is faster (at least 2 times)\nHere it is 3.1 times (measured), so this holds.\n"


@pytest.mark.parametrize(
    ("cell", "layout"),
    [
        (code_cell("f()", TABLE, tags=("slide-output",)), "table"),
        (code_cell("f()", figure_output(), tags=("slide-output",)), "figure"),
        (code_cell("f()", printed("1"), tags=("slide-output",)), "printed"),
        (code_cell("f()", printed("1")), "code"),
        (code_cell("f()", printed(CLAIM), tags=("slide-output",)), "numbers"),
        (code_cell("f()", printed(CLAIM + "more"), tags=("slide-output",)), "printed"),
        (
            code_cell(
                "f()", printed("all: 12 B"), tags=("slide-output",), numbers=[["(\\d+ B)", "bytes"]]
            ),
            "numbers",
        ),
    ],
)
def test_the_layout_is_that_of_its_evidence(cell, layout: str):
    cell = cell.copy()
    cell.metadata.tags = [*cell.metadata.get("tags", []), "slide"]
    cell.metadata.minutes = 1
    assert deck_of(OPENS, cell).slides[1].layout == layout


def test_a_cell_may_state_headline_layout_and_notes():
    stated = {
        "headline": "A *sum* waits",
        "layout": "act",
        "say": "<p>Say it.</p>",
        "here": ["machine"],
    }
    (slide,) = deck_of(text_cell("## H\n\nText.", **stated)).slides
    assert (slide.heading, slide.layout, slide.notes, slide.here) == (
        "A <em>sum</em> waits",
        "act",
        "<p>Say it.</p>",
        ("machine",),
    )


def test_a_line_of_code_and_a_row_of_a_table_are_set_off():
    cell = code_cell(
        "a = 1\nb = 2\nc = 3", TABLE, tags=("slide",), minutes=1, mark="2", lines=[2, 3]
    )
    (part,) = deck_of(OPENS, cell).slides[1].parts
    page = BeautifulSoup(part.code, "html.parser")
    assert page.get_text().split() == ["b", "=", "2", "c", "=", "3"]
    assert [line.get_text().strip() for line in page.select(".hll")] == ["b = 2"]
    (table,) = part.outputs
    assert table["data"]["text/html"].count("set-off") == 1


INDEXED = pd.DataFrame(
    {"first": [1, 2, 3], "second": [4, 5, 6]}, index=pd.Index(["a", "ab", "c"], name="letter")
)


def table_of(**stated) -> list[list[str]]:
    """The texts of the table that a cell shows."""
    output = displayed({"text/html": INDEXED.to_html(), "text/plain": str(INDEXED)})
    cell = code_cell("f()", output, tags=("slide", "slide-output"), minutes=1, **stated)
    (part,) = deck_of(OPENS, cell).slides[1].parts
    rows = BeautifulSoup(part.outputs[0]["data"]["text/html"], "html.parser").find_all("tr")
    return [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in rows]


def test_the_name_of_an_index_stands_above_it_and_takes_no_row_of_its_own():
    assert table_of() == [
        ["letter", "first", "second"],
        ["a", "1", "4"],
        ["ab", "2", "5"],
        ["c", "3", "6"],
    ]


def test_a_slide_shows_the_rows_and_columns_of_a_table_that_its_cell_names():
    assert table_of(rows=["ab", "c"], columns=["sec"]) == [
        ["letter", "second"],
        ["ab", "5"],
        ["c", "6"],
    ]


@pytest.mark.parametrize(
    ("stated", "said"), [({"rows": ["x"]}, "no row"), ({"columns": ["x"]}, "no column")]
)
def test_a_row_or_a_column_that_is_not_there_is_named(stated, said: str):
    with pytest.raises(SlideError, match=f"{said} of its table that begins with 'x'"):
        table_of(**stated)


def test_what_is_printed_beside_a_figure_can_stay_away():
    shown = printed("1\n"), figure_output()
    cell = code_cell("draw()", *shown, tags=("slide", "slide-output"), minutes=1, printed=False)
    (part,) = deck_of(OPENS, cell).slides[1].parts
    assert [set(output["data"]) for output in part.outputs] == [{"image/png", "text/plain"}]


def test_numbers_come_out_of_the_output_with_their_labels():
    shown = printed("device: 12.5 ms\nhost: 3 ms\n")
    cell = code_cell(
        "f()",
        shown,
        tags=("slide-output",),
        numbers=[["host: (.+)", "the host"], ["(12\\S+)", "it"]],
    )
    (output,) = deck_of(OPENS, cell).slides[0].parts[1].outputs
    cells = BeautifulSoup(output["data"]["text/html"], "html.parser").select(".number")
    assert [cell.get_text(" ") for cell in cells] == ["3 ms the host", "12.5 it"]


def test_forty_words_are_a_slide_and_forty_one_are_refused():
    assert deck_of(text_cell(f"## Two words\n\n{'word ' * (MOST_WORDS - 2)}")).slides[0].words == 40
    message = refusal(
        text_cell("# First", tags=(), minutes=None), text_cell(f"## Two words\n\n{'word ' * 39}")
    )
    assert message.startswith("98_sample, cell 2, makes a slide of 41 words; at most 40")


def test_the_words_of_all_joined_cells_count():
    more = text_cell("word " * 20, tags=("slide-more",), minutes=None)
    assert "41 words" in refusal(text_cell(f"## H\n\n{'word ' * 20}"), more)
    assert deck_of(text_cell(f"## H\n\n{'word ' * 19}"), more).slides[0].words == 40


@pytest.mark.parametrize("minutes", [None, 0, -1, True, "2", float("nan"), float("inf")])
def test_minutes_are_a_number_above_zero(minutes):
    assert "cell 1, opens a slide and has" in refusal(text_cell("## H\n\nText.", minutes=minutes))


PICTURE = "data:image/png;base64,AA"
ERROR = new_output("error", ename="ValueError", evalue="no", traceback=[])
WARNING = new_output("stream", name="stderr", text="warning")
WIDGET = displayed({"application/vnd.jupyter.widget-view+json": {}, "text/plain": "interactive"})


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            text_cell("Text.", tags=("slides",)),
            "has the tag 'slides'; the tags of slides are slide, slide-more",
        ),
        (text_cell("Text.", tags=("slide", "slide-more")), "both 'slide' and 'slide-more'"),
        (code_cell("f()", tags=("slide-code", "slide-output")), "leave both out to show both"),
        (text_cell("Text.", tags=("slide-output",), minutes=None), "holds text"),
        (text_cell("Text.", tags=("slide-more",), minutes=3), "joins a slide and has minutes"),
        (new_raw_cell("raw", metadata={"tags": ["slide"]}), "is a raw cell"),
        (code_cell("f()", tags=("slide-output",)), "has no output to show"),
        (code_cell("f()", WIDGET, tags=("slide-more",)), "shows a widget alone"),
        (code_cell("f()", ERROR, tags=("slide-more",)), "failed with ValueError"),
        (code_cell("f()", WARNING, tags=("slide-more",)), "writes to stderr"),
        (
            code_cell("f()", figure_output(alt="<Figure size 640x480>"), tags=("slide-more",)),
            "without an alt text",
        ),
        (code_cell("f()", figure_output(alt=" "), tags=("slide-more",)), "without an alt text"),
        (
            code_cell("f()", displayed({"text/html": "<script>1</script>"}), tags=("slide-more",)),
            "<script>",
        ),
        (
            code_cell(
                "f()", displayed({"text/markdown": "![x](https://a.b/c)"}), tags=("slide-more",)
            ),
            "https://a.b/c",
        ),
        (
            code_cell("f()", displayed({"application/json": "1"}), tags=("slide-more",)),
            "application/json",
        ),
        (text_cell("![a](https://example.org/a.png)"), "<img> from https://example.org/a.png"),
        (text_cell("## It takes 3 ms\n\nText."), "types the measurement '3 ms'"),
        (text_cell(r"A rate of $12\,GB/s$."), "types the measurement '12 GB/s'"),
        (
            code_cell("f()  # takes 3 ms", tags=("slide-more",)),
            "types the measurement '3 ms' in a comment",
        ),
        (
            text_cell("It costs $5 and then $6."),
            "plain words that become a formula, '$5 and then $'",
        ),
        (text_cell("Text.\n\nIt costs $5 and then $6."), "plain words that become a formula"),
        (
            code_cell(
                "f()", displayed({"text/html": "<p>$5 and then $6</p>"}), tags=("slide-more",)
            ),
            "plain words",
        ),
        (text_cell("> A quote."), "has a quote as its first block"),
        (text_cell("```python\nf()\n```"), "has a block of code as its first block"),
        (
            text_cell("Text.", layout="poster"),
            "has the layout 'poster'; the layouts are statement, question",
        ),
        (
            text_cell("Text.", headline="It takes 3 ms"),
            "types the measurement '3 ms' in the headline",
        ),
        (
            code_cell("f()", tags=("slide-more",), mark="g"),
            "has no line of code and no row with 'g' to set off",
        ),
        (
            code_cell("f()", printed("1"), tags=("slide-more",), numbers=[["b", "bytes"]]),
            "finds no 'b' in its output",
        ),
        (text_cell(f"![]({PICTURE})"), "without an alt text (<img>)"),
        (text_cell(f'<img src="{PICTURE}">'), "without an alt text (<img>)"),
        (
            code_cell(
                "f()", displayed({"text/html": f'<img src="{PICTURE}">'}), tags=("slide-more",)
            ),
            "(<img>)",
        ),
        (
            code_cell("f()", displayed({"text/markdown": f"![]({PICTURE})"}), tags=("slide-more",)),
            "(<img>)",
        ),
    ],
)
def test_a_cell_that_breaks_a_rule_is_named_with_the_rule(cell, said):
    message = refusal(OPENS, cell)
    assert message.startswith("98_sample, cell 2, ")
    assert said in message


def test_a_measurement_is_allowed_in_the_notes():
    assert deck_of(text_cell("## H\n\nText.\n\nOn our machine it took 3 ms.")).slides[0].notes


def test_a_measurement_is_allowed_in_an_output_and_in_code_that_is_not_shown():
    shown = code_cell(
        "f()  # takes 3 ms", printed("137 times longer, 87 %"), tags=("slide-output",)
    )
    assert deck_of(OPENS, shown).slides[0].parts[1].outputs


def test_an_inherited_heading_is_held_to_the_rules_too():
    above = text_cell("## It takes 3 ms", tags=(), minutes=None)
    opens = code_cell("f()", printed("1"), tags=("slide",), minutes=1)
    assert "cell 1, types the measurement '3 ms' in the heading" in refusal(above, opens)


@pytest.mark.parametrize("key", ["title", "objectives"])
def test_the_title_and_the_objectives_are_held_to_the_rules(key: str):
    def lesson(text: str) -> dict:
        return {**LESSON, key: text if key == "title" else [f"tell|told {text}"]}

    assert "98_sample types the measurement '3 ms' in its title" in refusal(
        OPENS, lesson=lesson("what takes 3 ms")
    )
    assert "plain words that become a formula" in refusal(
        OPENS, lesson=lesson("why $5 and then $6")
    )


def test_joining_before_any_slide():
    assert "is tagged 'slide-more' before any cell is tagged 'slide'" in refusal(
        text_cell("A.", tags=("slide-more",))
    )


def test_a_lesson_without_slides():
    assert "98_sample has no slide" in refusal(text_cell("Text.", tags=()))


@pytest.mark.parametrize("key", ["number", "title", "minutes", "objectives"])
def test_metadata_that_is_missing(key: str):
    assert f"has no {key}" in refusal(
        OPENS, lesson={**LESSON, key: LESSON[key][:0] if key != "minutes" else None}
    )


def test_an_objective_of_two_verbs():
    deck = deck_of(OPENS, lesson={**LESSON, "objectives": ["set up|set up a fair comparison."]})
    assert deck.objectives == ("set up a fair comparison",)


@pytest.mark.parametrize(
    "objective", ["predict the time", "predict|predicted", "|predicted it", ""]
)
def test_an_objective_of_another_form(objective: str):
    assert "is not of the form" in refusal(OPENS, lesson={**LESSON, "objectives": [objective]})


def test_a_player_without_frames_is_refused():
    with pytest.raises(ValueError, match="holds no frames"):
        players.read_player({"data": {"text/html": BEGINS}})
