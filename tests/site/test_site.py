"""The site of two lessons, as a reader without a network sees it in Chromium, and every page's
links without one.
"""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document
from PIL import Image

from helpers.plotting import player
from slides import build
from slides.cells import read_deck
from tests.ci import in_ci
from tests.planted import ROOT
from tools.authoring.course import HERE, Course
from tools.site import cards, excerpts, staging

LESSONS = ("02", "14")
SHOWN = ("index.html", "02_compute_and_roofline.html", "14_systolic_arrays.html", "glossary.html",
         "formulas.html", "exercises/14_systolic_arrays_exercises.html",
         "appendix/02_compute_and_roofline.html", "decks.html", "recorded_machines.html",
         "licences.html", "index_of_functions.html", "genindex.html", "api/index.html",
         "api/helpers.memory.html", "api/helpers.studies.simulators.systolic.html")  # fmt: skip
BUILD = """
import sys, pathlib
from tools.site.__main__ import main
sys.exit(main(sys.argv[2:], site=pathlib.Path(sys.argv[1])))
"""
# The least contrast of any text in the article with what stands behind it; pictures have their own
# check.
LEAST_CONTRAST = """() => {
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  let least = [99, ""];
  for (const element of document.querySelectorAll("article *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, iframe, .headerlink")) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least[0]) least = [ratio, element.textContent.slice(0, 40)];
  }
  return least;
}"""  # noqa: E501

# What of a page lies beyond the screen's right side where nobody can scroll to it, and pictures out
# of shape.
AMISS = """() => {
  document.querySelectorAll("article details").forEach((one) => one.open = true);
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => {
    for (let one = element.parentElement; one; one = one.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(one).overflowX))
        return one.getBoundingClientRect().right <= width;
    return false;
  };
  const beyond = [...document.querySelectorAll("article *, .prev-next-area *")].filter((one) =>
    one.checkVisibility() && one.getBoundingClientRect().right > width + 1 && !scrolls(one) &&
    !one.closest("mjx-assistive-mml"));
  const askew = [...document.querySelectorAll("article img")].filter((one) => one.clientHeight &&
    Math.abs(one.naturalWidth * one.clientHeight / (one.naturalHeight * one.clientWidth) - 1) > 0.05);
  return [...beyond, ...askew].map((one) => `${one.tagName}: ${one.alt ?? one.textContent.slice(0, 40)}`);
}"""  # noqa: E501

# the first of a process builds the site of all lessons, for minutes
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of two lessons; in CI that of all, whose links it reads as well, so that it is built
    once.
    """
    return built(tmp_path_factory.mktemp("site") / "site", () if in_ci() else LESSONS)


@pytest.fixture(scope="module")
def whole_site(site, tmp_path_factory) -> Path:
    return site if in_ci() else built(tmp_path_factory.mktemp("whole") / "site")


def built(folder: Path, lessons: Sequence[str] = ()) -> Path:
    command = [sys.executable, "-c", BUILD, str(folder), *lessons]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the site: {folder / 'index.html'}\n"
    return folder


@contextmanager
def shown(chromium, page: Path, **context) -> Iterator:
    made = chromium.new_context(offline=True, **context)
    try:
        opened = made.new_page()
        opened.goto(page.as_uri())
        yield opened
    finally:
        made.close()


@pytest.mark.ci
def test_the_files_that_a_host_looks_for_are_at_the_root(site):
    assert {"index.html", "searchindex.js", "slides"} <= {path.name for path in site.iterdir()}
    # not the lecture
    decks = sorted(path.name[:2] for path in (site / "slides").iterdir() if path.name[0].isdigit())
    assert decks == ([lesson.number for lesson in HERE.lessons()] if in_ci() else sorted(LESSONS))


def _says(image) -> bool:
    """Whether a picture has words, and not its file's name, which Sphinx puts where there are
    none.
    """
    return bool(image.get("alt")) and image["alt"] != image["src"]


def faults(site: Path) -> list[str]:
    """Dead links, pictures without words and second titles of the site's pages, the decks'
    apart.
    """
    pages = {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in site.rglob("*.html")
        if path.relative_to(site).parts[0] not in ("slides", "_static")
    }
    names = {path: {tag["id"] for tag in page.find_all(id=True)} for path, page in pages.items()}
    wrong = []
    for path, page in pages.items():
        here = path.relative_to(site).as_posix()
        if len(page.find_all("h1")) != 1:
            wrong.append(f"{here}: {len(page.find_all('h1'))} h1")
        wrong += [
            f"{here}: a picture without words" for image in page.find_all("img") if not _says(image)
        ]
        for tag, source in (
            ("a", "href"),
            ("link", "href"),
            ("script", "src"),
            ("img", "src"),
            ("iframe", "src"),
        ):
            for found in page.find_all(tag, {source: True}):
                parts = urlsplit(found[source])
                if parts.scheme in ("data", "mailto") or (tag == "a" and parts.scheme):
                    continue
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                fragment = unquote(parts.fragment)
                if (
                    parts.scheme
                    or not target.is_file()
                    or (fragment and fragment not in names.get(target, {fragment}))
                ):
                    wrong.append(f"{here}: {found[source]}")
    assert len(pages) > len(SHOWN)
    return wrong


@pytest.mark.ci
def test_no_page_has_a_dead_link_a_picture_without_words_or_a_second_title(whole_site):
    assert faults(whole_site) == []


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_asks_no_network_and_complains_of_nothing(site, chromium, page):
    with shown(chromium, site / page, viewport={"width": 360, "height": 640}) as opened:
        asked, complaints = [], []
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("requestfailed", lambda request: complaints.append(request.url))
        opened.on(
            "console",
            lambda said: said.type in ("error", "warning") and complaints.append(said.text),
        )
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.reload(wait_until="load")
        opened.wait_for_timeout(300)
        assert complaints == []
        assert {urlsplit(url).scheme for url in asked} <= {"file", "data", "blob"}
        assert opened.evaluate("document.documentElement.scrollWidth") <= 360
        assert opened.evaluate(AMISS) == []


def test_on_paper_a_page_has_its_title_and_whole_lines_of_code(site, chromium):
    with shown(
        chromium, site / "02_compute_and_roofline.html", viewport={"width": 700, "height": 900}
    ) as opened:
        opened.emulate_media(media="print")
        assert opened.locator("article h1").is_visible()
        wide = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).length"
        assert opened.eval_on_selector_all("article .cell_input pre", wide) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "page", ["02_compute_and_roofline.html", "api/helpers.memory.html", "glossary.html"]
)
def test_text_can_be_read_in_both_themes(site, chromium, page, theme):
    with shown(chromium, site / page, color_scheme=theme) as opened:
        ratio, text = opened.evaluate(LEAST_CONTRAST)
        assert ratio >= 4.5, text


def test_the_search_finds_a_word_of_a_lesson(site, chromium):
    with shown(chromium, site / "search.html") as opened:
        opened.goto(f"{(site / 'search.html').as_uri()}?q=systolic")
        opened.wait_for_selector("ul.search li a")
        assert "14_systolic_arrays.html" in " ".join(
            link.get_attribute("href") for link in opened.query_selector_all("ul.search li a")
        )


def hits(opened, site: Path, word: str) -> list[str]:
    """The addresses of the pages that the search lists, best first, from the site's root."""
    opened.goto(f"{(site / 'search.html').as_uri()}?q={word}")
    opened.get_by_text("Search finished").wait_for()
    found = opened.eval_on_selector_all(
        "ul.search li > a", "(all) => all.map((one) => one.getAttribute('href'))"
    )
    return [address.partition("?")[0] for address in found]


def test_the_search_lists_lessons_and_the_glossary_first_and_the_reference_last(site, chromium):
    with shown(chromium, site / "search.html") as opened:
        found = hits(opened, site, "bandwidth")
        assert "glossary.html#bandwidth" in found[:5]
        assert {"01_memory_hierarchy.html", "02_compute_and_roofline.html"} & set(found[:5])
        groups = [
            0
            if re.match(r"\d\d_|glossary", page)
            else 1
            if page.startswith(("appendix/", "exercises/"))
            else 3
            if page.startswith("api/")
            else 2
            for page in found
        ]
        assert groups == sorted(groups)
        assert set(groups) == {0, 1, 2, 3}


def test_the_search_lists_an_object_with_exactly_the_name_first(site, chromium):
    with shown(chromium, site / "search.html") as opened:
        assert hits(opened, site, "measure")[0] == "api/helpers.timing.html#helpers.timing.measure"


def test_a_hit_of_the_search_has_a_sentence_with_the_word_although_no_page_can_be_fetched(
    site, chromium
):
    with shown(chromium, site / "search.html") as opened:
        lesson = opened.locator(
            "ul.search li", has=opened.locator("a[href='14_systolic_arrays.html']")
        )
        opened.goto(f"{(site / 'search.html').as_uri()}?q=systolic")
        lesson.locator("p.context").wait_for()
        said = lesson.locator("p.context").inner_text()
        assert "systolic array" in said.lower()
        assert "import" not in said  # of the lesson's text and not of its code
        assert lesson.locator("p.context .highlighted").count() >= 1


def test_the_text_of_a_page_has_its_sentences_and_the_names_of_its_sections():
    document = new_document("a page")
    section = nodes.section(
        "", nodes.paragraph("", "a < b"), nodes.literal_block("", "code"), ids=["part-1"]
    )
    document += [nodes.paragraph("", "first"), section]
    assert excerpts.text(document) == 'first <section id="part-1">a &lt; b</section>'


TEXTS = (
    "(one) => [...one.children].filter((each) => each.checkVisibility()).map((each) => "
    "each.textContent.trim())"
)

VISIBLE_AFTER = """(one) => [...one.parentElement.children].filter((other) =>
  one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING).map((other) => other.checkVisibility())"""  # noqa: E501


def below(asked) -> list[str]:
    """The visible texts of a part below its question, without the line that says that they are
    hidden.
    """
    section = asked.locator("xpath=ancestor::section[1]")
    texts = section.evaluate(TEXTS)
    return [
        text
        for text in texts[texts.index(asked.evaluate("(one) => one.textContent.trim()")) + 1 :]
        if text
    ]


def test_the_rest_of_a_part_opens_when_its_reader_has_typed_a_number_and_stays_open(site, chromium):
    with shown(chromium, site / "14_systolic_arrays.html") as opened:
        asked = opened.locator("[class*='tag_asks-']:has(form.guess)").nth(1)
        [note] = below(asked)
        assert note.startswith("The text below is hidden until you have written a number, because")
        asked.locator("input").fill("many")
        opened.keyboard.press("Enter")
        assert asked.locator("output").inner_text() == "that is not a number"
        assert below(asked) == [note]
        asked.locator("input").fill("0.5")
        opened.keyboard.press("Enter")
        assert len(below(asked)) > 1
        assert note not in below(asked)
        name = next(
            one for one in asked.get_attribute("class").split() if one.startswith("tag_asks-")
        )
        answer = opened.locator(f".{name.replace('asks-', 'answers-')}").last
        assert answer.locator("details.below-input").evaluate("(one) => one.open")
        code = answer.locator("details.above-input")
        assert code.locator("summary").inner_text().strip() == "The code"
        assert not code.evaluate("(one) => one.open")
        opened.reload()
        assert asked.locator("input").input_value() == "0.5"
        assert note not in below(asked)


def test_a_reader_may_see_an_answer_without_a_number_and_the_next_question_stays_closed(
    site, chromium
):
    with shown(chromium, site / "02_compute_and_roofline.html") as opened:
        first, second = (opened.locator(f".tag_asks-{name}") for name in ("fewer_reads", "slower"))
        before = below(second)
        assert len(before) == 1
        opened.locator(".guess-note:near(.tag_asks-fewer_reads)").first.get_by_role(
            "button"
        ).click()
        assert len(below(first)) > len(before) + 2
        assert below(second) == before


def test_an_answer_in_a_later_part_is_hidden_there_with_what_follows_it_and_its_line_leads_to_the_question(  # noqa: E501
    site, chromium
):
    with shown(chromium, site / "14_systolic_arrays.html") as opened:
        answer = opened.locator(".tag_answers-bet")
        # the question before it in the same part
        opened.locator(".tag_asks-moving input").fill("3")
        opened.keyboard.press("Enter")
        note = opened.locator(".guess-note", has=opened.locator("a[href='#predict-bet']"))
        assert note.is_visible()
        assert set(note.evaluate(VISIBLE_AFTER)) == {False}
        note.get_by_role("button").click()
        assert not note.is_visible()
        assert set(note.evaluate(VISIBLE_AFTER)) == {True}
        assert answer.locator("table").is_visible()


def test_on_paper_and_at_a_link_into_it_a_hidden_part_is_there(site, chromium):
    with shown(chromium, site / "14_systolic_arrays.html") as opened:
        answer = opened.locator(".tag_answers-unskewed").last
        assert not answer.is_visible()
        opened.emulate_media(media="print")
        assert answer.locator("table").is_visible()
        assert not opened.locator(".guess-note").first.is_visible()
        opened.emulate_media(media="screen")
        answer.evaluate("(one) => (one.id = 'inside')")
        opened.evaluate("location.hash = '#inside'")
        answer.locator("table").wait_for(state="visible", timeout=2000)
        assert not opened.locator(".tag_answers-one_row").last.is_visible()


def rows_of(table) -> list[list[str]]:
    return table.evaluate(
        "(one) => [...one.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )


WIDTHS = (
    "(one) => [...one.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().width)"
)


def test_a_prediction_is_shown_beside_the_model_and_the_answer_and_is_there_again_on_the_next_visit(
    site, chromium
):
    with shown(chromium, site / "02_compute_and_roofline.html") as opened:
        asked = opened.locator("[class*='tag_asks-']:has(form.guess)").first
        name = next(
            one for one in asked.get_attribute("class").split() if one.startswith("tag_asks-")
        )
        answers = f".tag_{name.removeprefix('tag_').replace('asks-', 'answers-')}"
        table = opened.locator(f"{answers} table", has_text="predicted")
        before = rows_of(table)
        assert before[0][:2] == ["predicted", "no prediction made"]
        asked.locator("input").fill("1,000,000")
        opened.keyboard.press("Enter")
        for _ in ("typed", "kept"):
            after = rows_of(table)
            assert after[0][1].startswith("1,000,000")
            assert after[0][3].endswith(f"times what was {before[-1][0]}")
            assert after[1:] == before[1:]
            widths = table.evaluate(WIDTHS)
            assert len(widths) == len(before)
            assert widths[0] == max(widths) > 100 > max(widths[1:])
            opened.reload()
        asked.locator("input").fill("0.001")
        opened.keyboard.press("Enter")
        widths = table.evaluate(WIDTHS)
        assert max(widths[1:]) > 100 > widths[0]  # the bars of the others have grown back


def test_a_browser_that_keeps_nothing_still_shows_the_prediction(site, chromium):
    with shown(chromium, site / "index.html") as opened:
        complaints = []
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        refuses = """const storage = Storage.prototype;
          for (const [name, theirs] of [["getItem", storage.getItem], ["setItem", storage.setItem]])
            storage[name] = function (key, ...rest) {
              if (key.startsWith("prediction")) throw new DOMException("refused", "QuotaExceededError");
              return theirs.call(this, key, ...rest);
            };"""  # noqa: E501
        opened.add_init_script(refuses)
        opened.reload()
        opened.locator("form.guess input").fill("7")
        opened.keyboard.press("Enter")
        assert rows_of(opened.locator("details.bet table"))[0][1] == "7 times as long"
        opened.reload()
        assert opened.locator("form.guess input").input_value() == ""
        assert complaints == []


def test_without_scripts_an_answer_is_a_plain_fold(site, chromium):
    with shown(chromium, site / "14_systolic_arrays.html", java_script_enabled=False) as opened:
        folded = opened.locator("[class*='tag_answers-'] details.below-input").first
        folded.locator("summary").click()
        assert folded.get_attribute("open") is not None


def test_a_player_moves(site, chromium):
    with shown(chromium, site / "14_systolic_arrays.html") as opened:
        player = opened.locator("input[type=range]").first
        before = player.input_value()
        opened.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
        player.focus()
        opened.keyboard.press("ArrowRight")
        assert player.input_value() != before


@pytest.mark.ci
def test_a_term_says_what_it_means_and_a_function_goes_to_the_reference_and_back(site):
    lesson = BeautifulSoup((site / "02_compute_and_roofline.html").read_text(), "html.parser")
    term = lesson.find("a", href="glossary.html#roofline")
    assert "arithmetic" in term["title"].lower() or "bandwidth" in term["title"].lower()
    index = (site / "index_of_functions.html").read_text()
    assert 'href="api/helpers.roofline.html#helpers.roofline' in index
    assert (
        'href="../02_compute_and_roofline.html"'
        in (site / "api" / "helpers.roofline.html").read_text()
    )


def test_a_page_says_at_its_top_how_one_runs_it_and_a_lesson_what_stands_beside_it(tmp_path):
    staging.write(HERE, tmp_path / "pages", numbers=["14"])
    name = "14_systolic_arrays"
    tops = {}
    for page in (name, f"appendix/{name}", f"exercises/{name}_exercises"):
        title, *below = (
            nbformat.read(tmp_path / "pages" / f"{page}.ipynb", as_version=4)
            .cells[0]
            .source.split("\n\n")
        )
        assert title.startswith("# ")
        assert below[0] == '<div class="reading">'
        tops[page] = below[1]
    start = '<a href="{}index.html#two-commands">get the course</a>.'
    assert list(tops.values()) == [
        f"You are reading this lesson. To write and run it, {start.format('')} Beside it: "
        f'<a href="slides/{name}.html">slides</a>, [exercises](exercises/{name}_exercises.ipynb), '
        f"[appendix](appendix/{name}.ipynb).",
        f"You are reading this appendix. To write and run it, {start.format('../')}",
        f"You are reading these exercises. To write and run them, {start.format('../')}",
    ]


@pytest.mark.ci
def test_a_lesson_its_appendix_and_its_exercises_have_titles_that_differ(site):
    titles = {
        page: BeautifulSoup(
            (site / page).read_text(encoding="utf-8"), "html.parser"
        ).article.h1.contents[0]
        for page in (
            "02_compute_and_roofline.html",
            "appendix/02_compute_and_roofline.html",
            "exercises/02_compute_and_roofline_exercises.html",
        )
    }
    assert list(titles.values()) == [
        f"{kind} 02: Compute and roofline" for kind in ("Lesson", "Appendix", "Exercises")
    ]


@pytest.mark.ci
def test_no_page_tells_its_reader_not_to_edit_it(site):
    for page in (
        "syllabus.html",
        "formulas.html",
        "index_of_functions.html",
        "glossary.html",
        "rules_of_thumb.html",
    ):
        article = BeautifulSoup((site / page).read_text(encoding="utf-8"), "html.parser").article
        assert "do not edit" not in article.get_text()


def test_a_known_address_is_on_the_first_page_without_a_picture_from_a_network(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Course, "address", "https://github.com/somebody/a-course")
    staging.write(HERE, tmp_path / "pages", numbers=["14"])
    text = (tmp_path / "pages" / "index.md").read_text()
    lesson = "14_systolic_arrays.ipynb"
    assert f"/github/somebody/a-course/blob/colab/course/{lesson})" in text
    assert f"urlpath=lab/tree/my_course/{lesson})" in text
    assert not [
        picture for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text) if ":" in picture
    ]


def test_the_first_page_has_the_bet_the_entries_the_map_and_links_that_lead_to_pages_of_the_site(
    tmp_path,
):
    staging.write(HERE, tmp_path / "pages", numbers=["00", "01"])
    text = (tmp_path / "pages" / "index.md").read_text()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    cards_of = ["cards/00_start_here.png", "cards/01_memory_hierarchy.png"]
    assert pictures == [
        "map/asked_numbers.svg",
        "map/three_numbers.svg",
        *cards_of,
        "map/course.svg",
    ]
    assert [text.count(lesson.way.question) for lesson in HERE.lessons(["00", "01"])] == [1, 1]
    assert [picture for picture in pictures if not (tmp_path / "pages" / picture).is_file()] == []
    assert [text.count(entry) for entry in ("**Learn.**", "**Teach.**", "**Use.**")] == [1, 1, 1]
    assert [part in text for part in ("](00_start_here.ipynb)", "](course/", "<!--")] == [
        True,
        False,
        False,
    ]
    assert "[For engineers](api/index.md)" in text
    headings = {
        title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
    assert (
        text.count('<details class="bet" data-unit="times as long" data-page="00_start_here.html">')
        == 1
    )
    lesson = nbformat.read(tmp_path / "pages" / "00_start_here.ipynb", as_version=4)
    asked = [
        tag
        for cell in lesson.cells
        for tag in cell.metadata.get("tags", [])
        if tag.startswith("asks-")
    ]
    assert asked[0] == "asks-bet"
    assert [
        text.count(f"\n## {title}\n") for title in ("Two commands", "Where to begin", "Lessons")
    ] == [1, 1, 1]


def test_the_bet_of_the_first_page_takes_a_number_and_opens_its_answer(site, chromium):
    with shown(chromium, site / "index.html") as opened:
        answer = opened.locator("details.bet")
        assert not answer.evaluate("(one) => one.open")
        form = opened.locator("form.guess")
        form.locator("input").fill("many")
        opened.keyboard.press("Enter")
        assert form.locator("output").inner_text() == "that is not a number"
        assert not answer.locator("table").is_visible()
        form.locator("input").fill("10")
        opened.keyboard.press("Enter")
        assert answer.evaluate("(one) => one.open")
        [measured] = re.findall(
            r"(\d+ times as long) \(measured\)", answer.locator("p").first.inner_text()
        )
        for _ in ("typed", "kept"):
            predicted, found = rows_of(answer.locator("table"))
            assert predicted[:2] == ["predicted", "10 times as long"]
            assert found[:2] == ["measured", measured]
            opened.reload()
        assert (
            opened.evaluate("localStorage.getItem('prediction site/00_start_here.html bet')")
            == "10"
        )


def _cell(*tags: str, **data: str) -> nbformat.NotebookNode:
    output = nbformat.v4.new_output(
        "display_data", data={kind.replace("_", "/"): held for kind, held in data.items()}
    )
    return nbformat.v4.new_code_cell(outputs=[output], metadata={"tags": list(tags)})


def _png(width: int) -> str:
    with io.BytesIO() as file:
        Image.new("RGB", (width, 30), "white").save(file, format="png")
        return base64.b64encode(file.getvalue()).decode()


def _lesson(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=list(cells))


def test_the_picture_of_a_card_is_the_first_on_the_slides_that_answers_no_question():
    shown = {"image_png": _png(3 * cards.WIDTH_PX), "text_plain": "a curve"}
    answer, elsewhere = (
        _cell("slide", "answers-bet", image_png=_png(9), text_plain="an answer"),
        _cell(**shown),
    )
    picture = cards.picture(_lesson(answer, elsewhere, _cell("slide-output", **shown)))
    assert (picture.suffix, picture.alt) == ("png", "a curve")
    assert Image.open(io.BytesIO(picture.content)).size == (cards.WIDTH_PX, 10)
    assert cards.picture(_lesson(answer, elsewhere)) is None


def test_the_picture_of_a_player_is_its_frame_in_the_middle():
    held = json.dumps(
        {"title": "", "alt": "steps", "frames": ["<svg>1</svg>", "<svg>2</svg>", "<svg>3</svg>"]}
    )
    played = f'{player.BEGINS}><script type="application/json">{held}</script></div>'
    picture = cards.picture(
        _lesson(_cell("slide", text_html=played, image_png=_png(9), text_plain="steps"))
    )
    assert picture == cards.Picture(b"<svg>2</svg>", "svg", "steps")


@pytest.mark.parametrize("width", [1280, 400])
def test_each_lesson_has_a_card_with_a_picture_that_leads_to_it(site, chromium, width):
    with shown(chromium, site / "index.html", viewport={"width": width, "height": 900}) as opened:
        all_cards = opened.locator(".lesson-card")
        assert all_cards.count() == (len(HERE.lessons()) if in_ci() else len(LESSONS))
        for place in range(all_cards.count()):
            all_cards.nth(place).scroll_into_view_if_needed()
            loaded = "async (one) => { await one.decode(); return one.naturalWidth; }"
            assert all_cards.nth(place).locator("img").evaluate(loaded) > 0
        roofline = opened.locator(".lesson-card", has_text="02 Compute and roofline")
        roofline.click(position={"x": 30, "y": 30})  # on the picture: the whole card is the link
        assert opened.url.endswith("/02_compute_and_roofline.html")


@pytest.mark.parametrize("page", ["02_compute_and_roofline.html", "14_systolic_arrays.html"])
def test_the_code_that_asks_checks_or_shows_is_folded_and_the_rest_is_open(site, page):
    article = BeautifulSoup((site / page).read_text(encoding="utf-8"), "html.parser").article
    codes = [(cell, cell.select_one(".cell_input")) for cell in article.select("div.cell")]
    folded = [(cell, code) for cell, code in codes if code.find_parent("details")]
    still_open = [(cell, code) for cell, code in codes if not code.find_parent("details")]
    stages = {
        stage
        for cell, _ in still_open
        for stage in cell["class"]
        if stage in ("tag_predict", "tag_look")
    }
    assert stages == set()
    assert [code.get_text() for _, code in still_open if "= check(" in code.get_text()] == []
    assert sum("= check(" in code.get_text() for _, code in folded) >= 3
    assert [cell["class"] for cell, _ in still_open if "tag_run" in cell["class"]] != []


def test_the_cells_that_check_an_exercise_are_folded_because_they_have_its_answers(site):
    page = site / "exercises" / "14_systolic_arrays_exercises.html"
    article = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").article
    checks = [code for code in article.select(".cell_input") if ".report()" in code.get_text()]
    said = [code.find_parent("details").summary.p.get_text() for code in checks]
    assert said == ["What is checked"] * len(checks) != []
    assert [code for code in article.select(".cell_input") if not code.find_parent("details")] != []


def test_a_wide_page_shows_whole_lines_of_an_exercise(site, chromium):
    page = site / "exercises" / "14_systolic_arrays_exercises.html"
    with shown(chromium, page, viewport={"width": 1280, "height": 900}) as opened:
        opened.evaluate(
            "document.querySelectorAll('article details').forEach((one) => one.open = true)"
        )
        wide = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).length"
        assert opened.eval_on_selector_all("article .cell_input pre", wide) == 0


@pytest.mark.parametrize(
    "drawing",
    [
        "img[alt^='Map of the machine']",
        ".cell_output img:not(.course-player *, .course-explorer *)",
        ".course-player .stage",
    ],
)
def test_a_drawing_is_dark_on_the_dark_page_and_light_on_the_light_one(site, chromium, drawing):
    page = site / "14_systolic_arrays.html"
    for theme in ("light", "dark"):
        with shown(
            chromium, page, color_scheme=theme, viewport={"width": 1280, "height": 900}
        ) as opened:
            opened.evaluate(
                "document.querySelectorAll('details').forEach((one) => one.open = true)"
            )
            picture = opened.locator(f"article {drawing}").first
            picture.scroll_into_view_if_needed()
            pixels = np.asarray(Image.open(io.BytesIO(picture.screenshot())).convert("L")).astype(
                int
            )
            middle = np.median(pixels)  # most of a drawing is its page
            assert (middle > 240, middle < 40) == (theme == "light", theme == "dark")
            assert abs(pixels - middle).max() > 100  # its ink


def test_on_paper_a_drawing_is_not_turned_round(site, chromium):
    with shown(chromium, site / "14_systolic_arrays.html", color_scheme="dark") as opened:
        opened.emulate_media(media="print")
        turned = "(one) => getComputedStyle(one).filter"
        assert opened.locator("article img").first.evaluate(turned) == "none"


@pytest.mark.parametrize(
    ("page", "folds"),
    [
        ("index.html", [False, False, False]),
        ("appendix/02_compute_and_roofline.html", [True, False, False]),
        ("exercises/14_systolic_arrays_exercises.html", [False, True, False]),
        ("glossary.html", [False, False, True]),
    ],
)
def test_the_lists_at_the_side_are_folded_but_for_the_lessons_and_the_one_that_has_the_page(
    site, chromium, page, folds
):
    with shown(chromium, site / page, viewport={"width": 1280, "height": 900}) as opened:
        side = opened.locator(".bd-docs-nav")
        assert side.locator("a", has_text="14 Systolic arrays").first.is_visible()
        lists = side.locator("details:has(> summary > .caption)")
        assert [
            lists.nth(place).evaluate("(one) => one.open") for place in range(lists.count())
        ] == folds
        lists.last.locator("> summary").click()
        assert side.locator("a", has_text="Glossary").is_visible() != folds[-1]


def test_the_lessons_at_the_side_are_in_their_acts(site, chromium):
    with shown(
        chromium, site / "14_systolic_arrays.html", viewport={"width": 1280, "height": 900}
    ) as opened:
        captions = opened.locator(".bd-docs-nav p.caption")
        count = "one.nextElementSibling?.querySelectorAll('a').length"
        lists = captions.evaluate_all(
            f"(all) => all.map((one) => [one.textContent.trim(), {count}])"
        )
        lessons = HERE.lessons(() if in_ci() else LESSONS)
        acts = {lesson.act: sum(other.act == lesson.act for other in lessons) for lesson in lessons}
        assert len(acts) > 1
        assert [tuple(found) for found in lists[: len(acts)]] == list(acts.items())
        assert all(captions.nth(place).is_visible() for place in range(len(acts)))


def test_the_list_of_slides_says_how_long_each_deck_takes(site):
    rows = BeautifulSoup(
        (site / "decks.html").read_text(encoding="utf-8"), "html.parser"
    ).article.select("tbody tr")
    said = {row.a["href"]: [cell.get_text() for cell in row.find_all("td")[1:]] for row in rows}
    deck = read_deck(
        build.read_notebook(HERE.folder / "14_systolic_arrays.ipynb"), name="14", folder=HERE.folder
    )
    assert said["slides/14_systolic_arrays.html"] == [
        str(len(deck.slides) + 1),
        f"{deck.minutes:g}",
    ]
    assert len(said) == (len(HERE.lessons()) + 1 if in_ci() else len(LESSONS))
