"""The lecture: all topics of the one it grew from, 45 minutes, statements, notes to say, in a
browser and on paper.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from slide_samples import code_cell, notebook_of, printed, text_cell

from slides import browser, build, check, lecture
from slides.build import PLACES
from slides.markdown import plain_text
from slides.rules import SlideError
from tools.authoring.course import HERE
from tools.authoring.rules import glossary

SLIDES = lecture.plan()


@pytest.fixture(scope="module")
def assembled():
    return lecture.assemble(SLIDES, minutes=lecture.MINUTES)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[build.BuiltDeck, Path]:
    folder = tmp_path_factory.mktemp("lecture")
    return lecture.build(folder=folder), folder / "lecture.html"


def test_all_topics_of_the_lecture_that_it_grew_from_are_taught():
    assert {topic for slide in SLIDES for topic in slide.get("topics", ())} == set(range(1, 24))


def test_each_topic_rests_on_a_cell_of_a_lesson():
    shown = {topic for slide in SLIDES if slide.get("cells") for topic in slide["topics"]}
    assert shown == set(range(1, 24))


def test_it_has_at_most_thirty_five_slides_and_leaves_minutes_of_45_for_pauses(written):
    assert 30 <= written[0].slides <= 35
    assert 40 <= written[0].minutes <= 43


PUBLISHED = re.compile(r"\b(H100|GPT-4|Llama \d|TPU|RTX \d+|Ryzen|45 nm)\b")


def test_a_slide_with_what_others_published_names_its_source_at_its_foot(written):
    page = BeautifulSoup(written[1].read_text(encoding="utf-8"), "html.parser")
    sheets = page.select(".sheet")[1:]
    shown = [
        f"{sheet.get_text(' ')} {' '.join(image.get('alt', '') for image in sheet.select('img'))}"
        for sheet in sheets
    ]
    named = [sheet.select_one("footer .source") for sheet in sheets]
    titles = [slide["title"] for slide in SLIDES]
    missing = [
        title
        for title, text, source in zip(titles, shown, named, strict=True)
        if PUBLISHED.search(text) and source is None
    ]
    assert missing == []
    assert [source.get_text() if source else "" for source in named] == [
        f"Source: {slide['source']}" if "source" in slide else "" for slide in SLIDES
    ]


def test_a_lecturer_who_is_late_is_told_where_to_go_on_and_what_it_saves(assembled):
    notes = [plain_text(slide.notes) for slide in assembled[0].slides]
    for place, (said, slide) in enumerate(zip(notes, SLIDES, strict=True)):
        match = re.match(r"Late\? Skip to slide (\d+); it saves (\d+) seconds\.", said)
        assert bool(match) == bool(slide.get("late")), slide["title"]
        if match:
            goal = int(match[1]) - 2
            assert not SLIDES[goal].get("late")
            assert all(skipped.get("late") for skipped in SLIDES[place:goal])
            assert int(match[2]) == sum(skipped["seconds"] for skipped in SLIDES[place:goal])
    late = [slide for slide in SLIDES if slide.get("late")]
    assert sum(slide["seconds"] for slide in late) >= 8 * 60
    assert not any(
        slide.get("short") or slide.get("layout") in ("act", "question", "close") for slide in late
    )


def test_late_slides_with_none_behind_them_are_refused(course: Path):
    with pytest.raises(SlideError, match="'One': late, and no slide after it stays"):
        lecture.assemble([slide(late=True)], minutes=1, course=course)


def test_no_cell_stands_in_it_twice():
    cells = [(number, text) for slide in SLIDES for number, text, _ in slide.get("cells", ())]
    assert len(cells) == len(set(cells))


def test_seven_to_twelve_topics_begin_with_a_question_and_the_answer_comes_next(assembled):
    slides = assembled[0].slides
    asking = [place for place, slide in enumerate(slides) if slide.layout == "question"]
    assert 7 <= len(asking) <= 12
    for place in asking:
        assert any(part.axis for part in slides[place].parts)
        assert slides[place + 1].layout in ("numbers", "steps"), slides[place].heading


def test_acts_have_a_divider_with_the_machine_and_every_slide_says_where_on_it_we_are(assembled):
    slides = assembled[0].slides
    assert sum(slide.layout == "act" for slide in slides) >= 4
    assert slides[-1].layout == "close"
    assert all(slide.here and set(slide.here) <= set(PLACES) for slide in slides)


def test_the_machine_of_an_act_has_published_sizes(written):
    page = BeautifulSoup(written[1].read_text(encoding="utf-8"), "html.parser")
    machines = page.select(".machine")
    assert len(machines) == 4
    for machine in machines:
        sizes = [size.get_text() for size in machine.select("i")]
        assert sizes == ["H100, published: 80.0 GiB at 3.35 TB/s", "122 MB", "989 TFLOP/s"]


def test_notes_are_whole_sentences_with_a_question_or_a_demonstration(assembled):
    """A minute of talk is 100 to 150 words; the notes are what to say, not all of it."""
    for slide in assembled[0].slides:
        said = plain_text(slide.notes)
        assert said.endswith((".", "?", "!")), said[-60:]
        words = len(said.split())
        assert 25 <= words <= 190 * slide.minutes + 60, (slide.heading, words)
    asked = [slide for slide in SLIDES if slide.get("layout") != "act"]
    assert sum("ask" in slide for slide in asked) > 0.8 * len(asked)


def test_each_question_that_is_no_bet_has_its_answer_in_the_notes():
    for slide in SLIDES:
        if "ask" in slide and slide.get("layout") not in ("question", "close"):
            assert slide["answer"].endswith("."), slide["title"]
            assert len(slide["answer"].split()) <= 25, slide["title"]


def test_what_a_room_may_ask_has_an_answer_in_the_notes(assembled):
    notes = [plain_text(slide.notes) for slide in assembled[0].slides]
    prepared = [place for place, said in enumerate(notes, start=2) if "If asked:" in said]
    assert prepared == [3, 10, 14, 19, 25, 32, 34, 35]
    assert all(SLIDES[place - 2]["if_asked"].endswith(".") for place in prepared)


def test_the_sums_of_the_eight_gpus_are_those_of_lesson_05():
    """24.5 GB go through a port of 12.5 GB/s; the first of 32 layers of the backward pass comes
    before them.
    """
    computing_s, alone_days = 6 * 7e9 * 8192 / 400e12, 6 * 7e9 * 140e9 / 400e12 / 86_400
    forward_s, first_layer_s, sending_s = (
        computing_s / 3,
        computing_s * 2 / 3 / 32,
        2 * 14e9 * 7 / 8 / 12.5e9,
    )
    step_s = forward_s + first_layer_s + sending_s

    def days(seconds):
        return f"{alone_days / 8 * seconds / computing_s:.0f}"

    [slide] = [slide for slide in SLIDES if "24.5/12.5" in slide.get("text", "")]
    assert f"${2 * 14 * 7 / 8:g}/12.5 = {sending_s:.2f}$" in slide["text"]
    assert (
        f"${forward_s:.3f} + {first_layer_s:.3f} + {sending_s:g} = {step_s:.3f}$" in slide["text"]
    )
    said, last = (" ".join(one["say"].split()) for one in (slide, SLIDES[-1]))
    assert said.startswith(f"{days(step_s)} days and not {days(computing_s)}:")
    assert f"{step_s:.2f} seconds and not {computing_s:.2f}." in said
    not_hidden_s = computing_s + sending_s
    assert f"it is {not_hidden_s:.2f}, and the training takes {days(not_hidden_s)} days" in said
    assert f"{computing_s:.2f} of {step_s:.2f} seconds" in last
    faster_gpus, faster_link = (
        days(step_s - (forward_s + first_layer_s) / 2),
        days(step_s - sending_s / 2),
    )
    assert (
        f"{faster_gpus} days instead of {days(step_s)}, and twice the link {faster_link},"
        in SLIDES[-1]["if_asked"]
    )


def test_a_bet_has_time_for_guesses():
    assert all(slide["seconds"] >= 95 for slide in SLIDES if slide.get("layout") == "question")


def test_two_live_demonstrations_name_their_notebook_their_cell_by_its_heading_and_their_seconds(
    assembled,
):
    notes = [plain_text(slide.notes) for slide in assembled[0].slides]
    found = [
        re.search(r"Live, (\d+) s: (\d\d)_\w+\.ipynb, .* cell \[\d+\] under “[^”]{5,}”\. \w", said)
        for said in notes
    ]
    assert [match[2] for match in found if match] == ["01", "00"]
    assert sum("Live" in said for said in notes) == 2
    for slide, match in zip(SLIDES, found, strict=True):
        assert match is None or int(match[1]) < slide["seconds"] / 2


def test_the_wave_is_seen_before_the_bet_on_its_array_and_the_bet_on_the_chain_before_its_curve():
    places = {
        (lesson, text): place
        for place, slide in enumerate(SLIDES)
        for lesson, text, _ in slide.get("cells", ())
    }
    titles = [slide["title"] for slide in SLIDES]
    wave, bet = (
        titles.index("Weights load; then numbers pass as a wave"),
        titles.index("Guess: one row on an array of 256 by 256"),
    )
    assert wave < bet
    assert places["01", "bet.reveal("] + 1 == places["01", "memory_hierarchy.draw_orders("]


def test_the_short_lecture_takes_twenty_five_minutes_and_keeps_bet_acts_and_end():
    short = lecture.plan(short=True)
    deck, _, _ = lecture.assemble(short, minutes=lecture.SHORT_MINUTES)
    assert 22.5 <= deck.minutes <= 24
    assert (deck.slides[0].layout, deck.slides[-1].layout) == ("question", "close")
    assert sum(slide.layout == "act" for slide in deck.slides) == sum(
        slide.get("layout") == "act" for slide in SLIDES
    )


def test_it_is_built_to_the_same_bytes(written, tmp_path: Path):
    again = lecture.build(folder=tmp_path)
    assert again == written[0]
    assert (tmp_path / "lecture.html").read_bytes() == written[1].read_bytes()


def test_it_stands_in_a_browser_in_every_mode_and_a_page_a_slide(chromium, written, monkeypatch):
    """What is drawn has no text below 60 % of a slide's 28 pixels: a figure's smallest has 10
    points, 22 pixels.
    """
    monkeypatch.setitem(check.LIMITS, "drawn", 0.6 * check.LIMITS["text"])
    monkeypatch.setitem(check.LIMITS, "figureScale", 0.6 * check.LIMITS["text"] / 22)
    built, deck = written
    examinations, on_paper = check.examine_all(chromium, deck)
    for found in examinations:
        assert found.problems == (), f"\n{found}"
        assert found.slides == built.slides
        assert found.least_filled >= 0.3
    assert len(re.findall(rb"/Type\s*/Page(?![\w])", on_paper)) == built.slides


def test_the_handout_has_a_page_per_slide_with_its_notes_below_it(chromium, written):
    from slides.pdf import print_deck

    pages = print_deck(chromium, written[1], notes=True)
    assert len(re.findall(rb"/Type\s*/Page(?![\w])", pages)) == written[0].slides
    (shape,) = set(re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pages))
    assert float(shape[1]) / float(shape[0]) == pytest.approx(2**0.5, rel=0.01)


def test_no_key_of_a_remote_is_lost_after_a_guess_and_the_guesses_stand_on_every_answer(
    chromium, written
):
    asking = [
        place for place, slide in enumerate(SLIDES, start=1) if slide.get("layout") == "question"
    ]
    with browser.open_deck(chromium, written[1]) as opened:
        page = opened.page
        for place in asking:
            page.evaluate("place => Reveal.slide(place)", place)
            page.keyboard.press("r")
            page.keyboard.type("3, 50")
            page.keyboard.press("PageDown")
            assert page.evaluate("Reveal.getIndices().h") == place + 1, SLIDES[place - 1]["title"]
            marks = page.locator("section.present .guess .room")
            assert [mark.is_visible() for mark in marks.all()] == [True, True], SLIDES[place][
                "title"
            ]


def test_main_prints_where_the_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chromium, monkeypatch
):
    monkeypatch.setattr(lecture, "run_chromium", lambda: _Given(chromium))
    assert lecture.main(folder=tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert [re.search(r"slides, (\S+) minutes", line)[1] for line in said[:2]] == ["43", "23"]
    assert [line.partition(": ")[0] for line in said] == [
        str(tmp_path / name)
        for name in (
            "lecture.html",
            "lecture_25_minutes.html",
            "lecture.pdf",
            "lecture_handout.pdf",
        )
    ]
    assert all(Path(line.partition(": ")[0]).stat().st_size > 100_000 for line in said)


class _Given:
    def __init__(self, browser):
        self.browser = browser

    def __enter__(self):
        return self.browser

    def __exit__(self, *_):
        return False


@pytest.fixture
def course(tmp_path: Path) -> Path:
    cells = [
        text_cell("## H\n\nText."),
        code_cell("first()", printed("1 B\n")),
        code_cell("second()", printed("2 B\n")),
    ]
    nbformat.write(notebook_of(*cells), tmp_path / "98_sample.ipynb")
    return tmp_path


def slide(**changes) -> dict:
    numbers = [["(.+)", "bytes"]]
    return {
        "title": "One",
        "seconds": 57,
        "say": "Said.",
        "numbers": numbers,
        "cells": [["98", "first()", "output"]],
        **changes,
    }


def test_a_slide_takes_the_one_cell_that_holds_its_text(course: Path):
    live = {"cell": ["98", "first()"], "seconds": 9, "do": "See."}
    deck, notebook, frame = lecture.assemble(
        [slide(topics=[1, 2], ask="Why?", answer="So.", live=live)], minutes=1, course=course
    )
    assert [cell.source for cell in notebook.cells] == ["first()"]
    assert "1 B" in deck.slides[0].parts[0].outputs[0]["data"]["text/html"]
    assert plain_text(deck.slides[0].notes) == (
        "Said. Ask: Why? Answer: So. Live, 9 s: 98_sample.ipynb, open in make lab and run once "
        "before the lecture; cell [1] under “H”. See."
    )
    assert frame.footers == ("Hardware ecosystem", "Lesson 98")


def test_a_cell_of_an_appendix_is_found_and_named_at_the_foot(course: Path):
    (course / "appendix").mkdir()
    cells = [text_cell("## H\n\nText."), code_cell("third()", printed("3 B\n"))]
    nbformat.write(notebook_of(*cells), course / "appendix" / "98_sample.ipynb")
    chosen = slide(cells=[["appendix 98", "third()", "output"]], topics=[1])
    _, notebook, frame = lecture.assemble([chosen], minutes=1, course=course)
    assert [cell.source for cell in notebook.cells] == ["third()"]
    assert frame.footers == ("Hardware ecosystem", "Appendix 98")


@pytest.mark.parametrize(("text", "count"), [("third()", 0), ("()", 2)])
def test_a_cell_that_is_not_there_once_is_named(course: Path, text: str, count: int):
    with pytest.raises(
        SlideError, match=rf"'One': {count} code cells of lesson 98 hold .*, not one"
    ):
        lecture.assemble([slide(cells=[["98", text, "output"]])], minutes=1, course=course)


@pytest.mark.parametrize("seconds", [53, 59])
def test_seconds_that_leave_too_many_or_too_few_for_the_room_are_refused(
    course: Path, seconds: int
):
    with pytest.raises(SlideError, match=f"takes {seconds} seconds, not 54 to 58"):
        lecture.assemble([slide(seconds=seconds)], minutes=1, course=course)


def test_the_numbers_of_a_slide_come_from_whichever_of_its_cells_has_them(course: Path):
    cells = [["98", "first()", "output"], ["98", "second()", "output"]]
    numbers = [["(2 B)", "two"], ["(1 B)", "one"]]
    deck, _, _ = lecture.assemble([slide(cells=cells, numbers=numbers)], minutes=1, course=course)
    shown = [part.outputs[0]["data"]["text/html"] for part in deck.slides[0].parts]
    assert ["1 B</b><span>one" in shown[0], "2 B</b><span>two" in shown[1]] == [True, True]
    with pytest.raises(SlideError, match="no cell of the slide prints '3 B'"):
        lecture.assemble(
            [slide(cells=cells, numbers=[*numbers, ["3 B", "three"]])], minutes=1, course=course
        )


def test_a_field_that_is_unknown_is_named(tmp_path: Path):
    path = tmp_path / "plan.toml"
    path.write_text('[[slide]]\ntitle = "One"\ncolour = "red"\n', encoding="utf-8")
    with pytest.raises(SlideError, match=r"plan\.toml, 'One': unknown colour"):
        lecture.plan(path)


def test_what_the_browser_shows_of_the_notes_begins_with_seconds_and_the_clock(written):
    page = BeautifulSoup(written[1].read_text(encoding="utf-8"), "html.parser")
    notes = [aside.get_text(" ", strip=True) for aside in page.select("aside.notes")]
    whole = build.clock(written[0].minutes)
    assert notes[0].startswith(f"{written[0].slides} slides, {whole} to talk. F is full screen")
    assert notes[1].startswith(f"95 seconds; 1:35 of {whole} at its end. The training of GPT-4")
    assert f"{whole} of {whole} at its end." in notes[-1]


def test_the_glossary_has_at_least_sixty_terms():
    assert len(glossary.read(HERE.glossary)) >= 60
