"""The lecture: every topic in its order, 50 minutes, nothing but slides of lessons, in a browser and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from slide_samples import notebook_of, text_cell

from slides import build, check, lecture, questions
from slides.cells import SlideError
from slides.lecture import Act, Pick, Topic
from slides.markdown import plain_text
from tools.authoring.course import HERE
from tools.authoring.rules import glossary


@pytest.fixture(scope="module")
def assembled():
    return lecture.assemble()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[build.BuiltDeck, Path]:
    folder = tmp_path_factory.mktemp("lecture")
    return lecture.build(folder=folder), folder / "lecture.html"


@pytest.fixture(scope="module")
def notes(written) -> list[str]:
    page = BeautifulSoup(written[1].read_text(encoding="utf-8"), "html.parser")
    return [aside.get_text(" ", strip=True) for aside in page.select("aside.notes")]


def test_the_topics_are_those_of_the_lecture_in_order():
    assert [topic.number for topic in lecture.topics()] == list(range(1, 25))


def test_every_topic_has_slides_or_says_what_is_missing():
    assert [topic.number for topic in lecture.topics() if not topic.picks and not topic.later] == []


def test_no_slide_stands_in_it_twice():
    picks = [(pick.lesson, pick.heading, pick.nth) for topic in lecture.topics() for pick in topic.picks]
    assert len(picks) == len(set(picks))


def test_the_minutes_sum_to_fifty(assembled):
    assert assembled[0].minutes == 50


def test_every_slide_shows_what_its_lesson_shows(assembled):
    deck, notebook, _ = assembled
    picks = [pick for topic in lecture.topics() for pick in topic.picks]
    assert len(deck.slides) == len(picks)
    lessons = {number: lecture.read_lesson(number) for number in {pick.lesson for pick in picks}}
    for slide, pick in zip(deck.slides, picks, strict=True):
        lesson, own = lessons[pick.lesson]
        same = [one for one in own.slides if plain_text(one.heading) == pick.heading][pick.nth - 1]
        assert [(part.text, part.code, part.outputs) for part in slide.parts] == [
            (part.text, part.code, part.outputs) for part in same.parts
        ]
        for part, original in zip(slide.parts, same.parts, strict=True):
            assert notebook.cells[part.cell_index].id == lesson.cells[original.cell_index].id


def test_no_heading_numbers_a_part_of_a_lesson(assembled):
    assert [slide.heading for slide in assembled[0].slides if "Part " in slide.heading] == []


def test_every_slide_has_a_heading_of_its_own(assembled):
    """The lecture says in its heading what an output shows; 'What went wrong here?' asks, and is no answer."""
    headings = [plain_text(slide.heading) for slide in assembled[0].slides]
    assert sorted({heading for heading in headings if headings.count(heading) > 1}) == []
    assert not any(heading.startswith(("What went wrong here?", "Part ")) and slide.parts[0].outputs
                   for heading, slide in zip(headings, assembled[0].slides, strict=True))  # fmt: skip


def test_a_question_and_its_answer_stand_on_two_slides_and_the_answer_comes(assembled):
    slides = assembled[0].slides
    asking = [place for place, slide in enumerate(slides) if questions.asks([part.text for part in slide.parts])]
    assert len(asking) >= 6
    for place in asking:
        assert not any(part.outputs for part in slides[place].parts)
        assert any(part.outputs or part.code for part in slides[place + 1].parts), slides[place].heading


def test_the_notes_name_each_topic_and_count_the_minutes(notes):
    assert notes[0] == f"{len(notes)} slides, 50 minutes to talk."
    assert "1 minute; 1 of 50 so far. Topic 1: How we got here." in notes[1]
    named = list(dict.fromkeys(int(re.search(r"Topic (\d+):", note)[1]) for note in notes[1:]))
    assert named == [topic.number for topic in lecture.topics() if topic.picks]
    assert notes[-1].endswith("The deck's total: 50 minutes.")


def test_the_last_note_lists_what_no_lesson_has(notes):
    assert [note for note in notes[:-1] if "Not in the lessons yet" in note] == []
    listed = [int(number) for number in re.findall(r"(\d+)\. [A-Z]", notes[-1].partition("Not in the lessons yet:")[2])]
    assert listed == [topic.number for topic in lecture.topics() if topic.later]
    assert {19, 20, 22, 23} & set(listed) == set()


def test_every_lesson_that_is_on_a_slide_stands_in_its_footer(written):
    page = BeautifulSoup(written[1].read_text(encoding="utf-8"), "html.parser")
    footers = [footer.select_one("span").get_text() for footer in page.select("footer")]
    picks = [pick for topic in lecture.topics() for pick in topic.picks]
    assert footers == ["Hardware ecosystem", *(f"Hardware ecosystem · lesson {pick.lesson}" for pick in picks)]


def test_it_is_built_to_the_same_bytes(written, tmp_path: Path):
    again = lecture.build(folder=tmp_path)
    assert again == written[0]
    assert (tmp_path / "lecture.html").read_bytes() == written[1].read_bytes()


def test_it_stands_in_a_browser_in_every_mode_and_a_page_a_slide(chromium, written):
    built, deck = written
    examinations, printed = check.examine_all(chromium, deck)
    assert tuple(found.mode for found in examinations) == check.MODES
    for found in examinations:
        assert found.problems == (), f"\n{found}"
        assert found.slides == built.slides
    assert len(re.findall(rb"/Type\s*/Page(?![\w])", printed)) == built.slides


@pytest.fixture
def course(tmp_path: Path) -> Path:
    source = "## Part 1: <b>b</b> & c\n\nText.\n\nSaid 1."
    nbformat.write(notebook_of(text_cell(source), text_cell(source)), tmp_path / "98_sample.ipynb")
    return tmp_path


def test_a_slide_that_its_lesson_does_not_have_is_named(course: Path):
    act = Act("All", (Topic(1, "One", (Pick("98", "Part 2: b & c", 50),)),))
    with pytest.raises(SlideError, match=r"headed 'Part 2: b & c' of lesson 98, which has 0; .*\(.*Part 1: b & c\)"):
        lecture.assemble((act,), course=course)


def test_minutes_that_do_not_sum_up_are_refused(course: Path):
    act = Act("All", (Topic(1, "One", (Pick("98", "Part 1: b & c", 49.5),)),))
    with pytest.raises(SlideError, match=r"take 49\.5 minutes, not 50"):
        lecture.assemble((act,), course=course)


def test_a_slide_keeps_its_notes_and_may_have_another_heading(course: Path):
    picks = (Pick("98", "Part 1: b & c", 20, 2), Pick("98", "Part 1: b & c", 30, shown="d < e"))
    deck, _, _ = lecture.assemble((Act("All", (Topic(1, "One", picks),)),), course=course)
    assert [plain_text(slide.heading) for slide in deck.slides] == ["b & c", "d < e"]
    assert [slide.minutes for slide in deck.slides] == [20, 30]
    assert all("Said 1." in slide.notes for slide in deck.slides)
    assert "Not in the lessons yet" not in deck.slides[-1].notes


def test_the_glossary_has_at_least_sixty_terms():
    assert len(glossary.read(HERE.glossary)) >= 60
