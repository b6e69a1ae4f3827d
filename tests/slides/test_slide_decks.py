"""Decks in a real Chromium without a network: the sample, every lesson's, and one with a fault on
each slide.
"""

import base64
import io
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from slide_samples import (
    answered,
    asked,
    code_cell,
    displayed,
    figure_output,
    notebook_of,
    printed,
    text_cell,
)

from helpers import plotting
from helpers.hardware.limits._results import LatencyPoint, MachineLimits, MemoryLevel
from helpers.plotting._style import OTHERS, contrast, ink_on, legible_colour, png
from helpers.studies import (
    data_movement,
    history,
    memory_hierarchy,
    parallel_plans,
    sgd_parallelism,
)
from slides import browser, build, check, pdf, questions
from slides.cells import read_deck
from slides.rules import SlideError
from tests.ci import one_in_test

LESSONS = sorted(path for path in build.COURSE.glob("*.ipynb") if re.match(r"\d\d_", path.name))

MOST_SLIDES = 22


@pytest.mark.parametrize(
    "mode", [pytest.param(check.MODES[0], marks=pytest.mark.in_test), *check.MODES[1:]]
)
def test_the_sample_deck(chromium, sample_deck: Path, mode: str):
    found = check.examine(chromium, sample_deck, mode=mode)
    assert found.problems == ()
    assert (found.slides, found.formulas, found.figures) == (10, 3, 2)
    assert found.texts > 60
    assert found.lowest_contrast >= 4.5
    assert found.smallest_text_px >= 20
    assert found.least_filled >= check.LIMITS["filled"]


def test_there_are_lessons_to_look_at():
    assert LESSONS, f"no notebook of a lesson in {build.COURSE.name}/"


@pytest.mark.parametrize(
    "notebook", one_in_test(LESSONS, name=lambda path: path.stem, lesson="systolic_arrays")
)
def test_every_lessons_deck(chromium, notebook: Path, tmp_path: Path):
    built = build.build(notebook, folder=tmp_path)
    deck = tmp_path / f"{notebook.stem}.html"
    examinations, printed = check.examine_all(chromium, deck)
    assert tuple(found.mode for found in examinations) == check.MODES
    assert built.slides <= MOST_SLIDES
    for found in examinations:
        assert found.problems == (), f"\n{found}"
        assert found.slides == built.slides
    assert _pages(printed) == built.slides


def test_all_modes_at_once_are_each_by_itself(
    chromium, sample_deck: Path, faulty_deck: Path, tmp_path: Path
):
    for deck in (sample_deck, faulty_deck):
        together, _ = check.examine_all(chromium, deck, tmp_path)
        assert together == [check.examine(chromium, deck, mode=mode) for mode in check.MODES]
        assert len(list(tmp_path.glob(f"{deck.stem}_*_light.png"))) == together[0].slides
    assert (tmp_path / "98_sample_03_dark.png").read_bytes() != (
        tmp_path / "98_sample_03_light.png"
    ).read_bytes()


def test_a_deck_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]):
    assert check.main(["99"]) == 1
    assert "no notebook of lesson 99" in capsys.readouterr().err


def test_the_pdf_has_a_page_a_slide(chromium, sample_deck: Path):
    printed = pdf.print_deck(chromium, sample_deck)
    assert _pages(printed) == 10
    assert set(re.findall(rb"/MediaBox\s*\[([^\]]*)\]", printed)) == {b"0 0 960 540"}


def _pages(printed: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page(?![\w])", printed))


def test_the_arrow_keys_walk_through_the_deck_and_the_address_follows(chromium, sample_deck: Path):
    with browser.open_deck(chromium, sample_deck) as opened:
        for _ in range(9):
            opened.page.keyboard.press("ArrowRight")
        assert opened.page.evaluate("Reveal.isLastSlide()")
        opened.page.keyboard.press("ArrowLeft")
        assert opened.page.locator("section.present h2").inner_text() == "A table"
        opened.page.wait_for_url("**#/8")


def test_a_lecturers_keys_work(chromium, sample_deck: Path):
    with browser.open_deck(chromium, sample_deck) as opened:
        page = opened.page
        for key, method in (("o", "isOverview"), ("b", "isPaused")):
            for shown in (True, False):
                page.keyboard.press(key)
                assert page.evaluate(f"Reveal.{method}()") is shown
        page.keyboard.press("g")
        page.keyboard.type("4")
        page.keyboard.press("Enter")
        page.wait_for_function("Reveal.getIndices().h === 3")
        page.keyboard.press("Shift+Slash")
        page.get_by_text("Light or dark").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("Home")
        assert page.evaluate("Reveal.isFirstSlide()")
        assert opened.complaints == []


@pytest.mark.parametrize(
    ("dark", "query", "theme"),
    [
        (False, {}, "light"),
        (True, {}, "dark"),
        (False, {"theme": "dark"}, "dark"),
        (True, {"theme": "light"}, "light"),
        (True, {"theme": "none"}, "dark"),
        (True, browser.PRINT_QUERY, "light"),
    ],
)
def test_the_theme_is_the_asked_one_or_the_systems(
    chromium, sample_deck: Path, dark: bool, query: dict, theme: str
):
    with browser.open_deck(chromium, sample_deck, dark=dark, query=query) as opened:
        assert opened.page.evaluate("document.documentElement.dataset.theme") == theme


def test_a_key_switches_the_theme_and_the_system_no_longer_does(chromium, sample_deck: Path):
    with browser.open_deck(chromium, sample_deck) as opened:
        opened.page.emulate_media(color_scheme="dark")
        opened.page.wait_for_selector("html[data-theme=dark]", state="attached")
        opened.page.keyboard.press("t")
        opened.page.wait_for_selector("html[data-theme=light]", state="attached")
        heard = (
            "new Promise(done => matchMedia('(prefers-color-scheme: "
            "dark)').addEventListener('change', done))"
        )
        opened.page.evaluate(f"() => {{ window.heard = {heard}; }}")
        opened.page.emulate_media(color_scheme="light")
        opened.page.evaluate("() => window.heard.then(() => true)")
        opened.page.emulate_media(color_scheme="dark")
        opened.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_speakers_window_shows_the_notes_and_follows(chromium, sample_deck: Path):
    with browser.open_deck(chromium, sample_deck) as opened:
        for _ in range(3):
            opened.page.keyboard.press("ArrowRight")
        with opened.page.context.expect_page() as waiting:
            opened.page.keyboard.press("s")
        notes = waiting.value.locator(".speaker-controls-notes .value")
        notes.get_by_text("Who has measured before?").wait_for()
        opened.page.keyboard.press("ArrowRight")
        notes.get_by_text("20 seconds; 7:30 of 16:30 at its end.").wait_for()
        assert opened.complaints == []


@pytest.fixture(scope="module")
def played() -> list:
    """The outputs of two players."""
    outputs: list = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("IPython.display.display", lambda data, **_: outputs.append(data))
        for title in ("First", "Second"):
            frames = [parallel_plans.draw_blocks(4, step, causal=True) for step in range(4)]
            plotting.play(
                frames, title=title, alt=f"{title}: blocks meet.", captions=["Blocks meet."] * 4
            )
    return outputs


@pytest.fixture(scope="module")
def player_deck(played: list, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deck with a player on each of two slides, the first of which has a script of its own in the
    notebook.
    """
    cells = [
        text_cell("## Blocks\n\nEach step has a block a rank."),
        code_cell(
            "plotting.play(frames)", player_output(played[0], tampered=True), tags=("slide-output",)
        ),
        text_cell("## Blocks again"),
        code_cell("plotting.play(frames)", player_output(played[1]), tags=("slide-output",)),
    ]
    deck = tmp_path_factory.mktemp("player") / "97_player.html"
    deck.write_text(build.render(notebook_of(*cells), name="97_player"), encoding="utf-8")
    return deck


def player_output(data: dict, *, tampered: bool = False):
    page = (
        data["text/html"].replace("(() => {", "document.title = 'not ours'; (() => {")
        if tampered
        else data["text/html"]
    )
    return displayed(
        {**data, "text/html": page, "image/png": base64.b64encode(data["image/png"]).decode()}
    )


@pytest.mark.parametrize("mode", check.MODES)
def test_a_player_fits_on_its_slide(chromium, player_deck: Path, mode: str):
    found = check.examine(chromium, player_deck, mode=mode)
    assert _of_a_slide(found) == []
    assert (found.slides, found.figures) == (3, 2)


def test_the_arrow_keys_are_a_players_while_it_has_the_focus_and_the_decks_again_afterwards(
    chromium, player_deck
):
    with browser.open_deck(chromium, player_deck) as opened:
        page, count = opened.page, opened.page.locator("section.present .count")
        page.keyboard.press("ArrowRight")
        assert count.inner_text() == "1 / 4"
        page.locator("section.present .stage").click()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert count.inner_text() == "3 / 4"
        assert page.evaluate("Reveal.getIndices().h") == 1
        page.locator("section.present h2").click()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("Reveal.getIndices().h") == 2
        assert count.inner_text() == "1 / 4"
        assert page.title() != "not ours"
        assert opened.complaints == []


def test_the_frames_of_a_player_are_steps_of_its_slide(chromium, played: list, tmp_path: Path):
    frames = code_cell(
        "play(frames)", player_output(played[0]), tags=("slide-output",), frames=[0, 2, 3]
    )
    assert _problems_of(chromium, tmp_path, text_cell("## H", layout="steps"), frames) == []
    with browser.open_deck(chromium, tmp_path / "one.html") as opened:
        page = opened.page
        page.keyboard.press("ArrowRight")
        for shown in (0, 1, 2):
            seen = page.locator("section.present .frame").evaluate_all(
                "all => all.map(frame => getComputedStyle(frame).visibility === 'visible')"
            )
            assert seen == [place == shown for place in range(3)]
            page.keyboard.press("ArrowRight")
        assert page.evaluate("Reveal.isLastSlide()")
        assert opened.complaints == []


def test_steps_that_show_the_same_drawing_have_names_of_their_own(played: list):
    frames = code_cell(
        "play(frames)", player_output(played[0]), tags=("slide-output",), frames=[0, 1, 0]
    )
    html = build.render(notebook_of(text_cell("## H", layout="steps"), frames), name="98_sample")
    names = [one["id"] for one in BeautifulSoup(html, "html.parser").select(".frame svg [id]")]
    assert len(names) == len(set(names)) >= 3


def test_a_crop_without_a_height_is_refused(played: list):
    frames = code_cell(
        "play(frames)", player_output(played[0]), tags=("slide-output",), crop=[0, 0, 2000]
    )
    with pytest.raises(
        SlideError, match=r"crop=\[0, 0, 2000\], which must be left, top, width and height"
    ):
        build.render(notebook_of(text_cell("## H", layout="steps"), frames), name="98_sample")


def test_a_drawing_whose_text_is_too_small_is_reported(chromium, played: list, tmp_path: Path):
    far = code_cell(
        "play(frames)", player_output(played[0]), tags=("slide-output",), crop=[0, 0, 2000, 1000]
    )
    (problem,) = _problems_of(chromium, tmp_path, text_cell("## H", layout="steps"), far)
    assert re.match(r'font size: ".+" is drawn at \d\.\d px', problem)


def test_the_texts_of_steps_are_at_least_as_large_as_the_slide_says(
    chromium, played: list, tmp_path: Path
):
    for smallest, least in ((0, 0), (30, 30)):
        frames = code_cell(
            "play(frames)", player_output(played[0]), tags=("slide-output",), smallest=smallest
        )
        html = build.render(
            notebook_of(text_cell("## H", layout="steps"), frames), name="98_sample"
        )
        drawn = BeautifulSoup(html, "html.parser").select(".frame svg text")
        sizes = {float(re.search(r"font-size: ([\d.]+)px", text["style"])[1]) for text in drawn}
        assert len(drawn) > 20
        assert min(sizes) >= least
        assert (min(sizes) < 12) == (smallest == 0)


def test_a_figure_without_its_title_is_what_stands_below_it():
    drawn = plotting.draw_bars({"a": 1.0, "b": 2.0}, unit="s", title="Its title")
    figure = displayed(
        {"image/png": base64.b64encode(png(drawn)).decode(), "text/plain": "Two points."}
    )
    plt.close(drawn)
    (whole,) = build.render(
        notebook_of(text_cell("## H"), figure_cell(figure)), name="98_sample"
    ).split("<figure>")[1:]
    (cut,) = build.render(
        notebook_of(text_cell("## H"), figure_cell(figure, untitled=True)), name="98_sample"
    ).split("<figure>")[1:]
    before, after = (np.asarray(_picture(one).convert("L")) for one in (whole, cut))
    assert after.shape[0] < 0.95 * before.shape[0]
    below = _inked(before)[-len(_inked(after)) :]
    assert (_inked(below) == _inked(after)).all()
    above = before[: len(before) - len(after)]
    assert (above < 250).any()


def _inked(picture: np.ndarray) -> np.ndarray:
    """Return the part of a picture that is not its white border."""
    rows, columns = (np.flatnonzero((picture < 250).any(axis=axis)) for axis in (1, 0))
    return picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def test_a_figure_that_has_no_title_is_refused():
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 60), 255, np.uint8)).save(buffer, "png")
    blank = displayed(
        {
            "image/png": base64.b64encode(buffer.getvalue()).decode(),
            "text/plain": "Nothing is drawn.",
        }
    )
    with pytest.raises(SlideError, match="cell 2, shows a figure without a title to leave out"):
        build.render(
            notebook_of(text_cell("## H"), figure_cell(blank, untitled=True)), name="98_sample"
        )


def figure_cell(output, **metadata):
    return code_cell("f()", output, tags=("slide-output",), **metadata)


def _picture(html: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,\s*([^\"]+)", html)[1])))


def test_the_pdf_has_the_picture_of_a_players_frames(chromium, player_deck: Path):
    printed = pdf.print_deck(chromium, player_deck)
    assert _pages(printed) == 3
    assert len(re.findall(rb"/Subtype\s*/Image", printed)) == 2


# What a deck of a slide or two breaks by being one: no bet, no end, a heading of its own twice,
# little on a slide.
OF_THE_ROW = {"opening", "title", "close", "empty"}


def _of_a_slide(found: check.Examination) -> list[str]:
    return [
        f"{problem.kind}: {problem.detail}"
        for problem in found.problems
        if problem.kind not in OF_THE_ROW
    ]


BROKEN_IMAGE = '<figure><img alt="a" src="data:image/png;base64,AAAA"></figure>'
# What a good deck says, and what stands there instead.
FAULTS = {
    "<h2>Three numbers</h2>": "<h2>Three numbers</h2><p>" + "too much text " * 150 + "</p>",
    "does $2mnk$": 'does $\\frac{1}$ <b style="color: #777777; background: #ffffff">grey</b>',
    "One order": (
        '<i style="color: #767676; background: #ffffff">just enough</i> <small>One</small> order'
    ),
    "<h2>A square picture</h2>": f"<h2>A square picture</h2>{BROKEN_IMAGE}",
    "figure on the right": "figure on the right $\\frac{1$",
    "A rate is": '<img alt="" src="https://192.0.2.1/a.png">A rate is',
    "130 seconds; 14:00 of": "14:00 of",
    "<h2>Four, not two</h2>": "<h2>A table</h2>",
    'class="sheet close"': 'class="sheet statement"',
    "profile_ops": '<span style="background: linear-gradient(red, blue)">profile_ops</span>',
}


@pytest.fixture(scope="module")
def faulty_deck(sample_html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for good, bad in FAULTS.items():
        assert sample_html.count(good) == 1
        sample_html = sample_html.replace(good, bad)
    deck = tmp_path_factory.mktemp("faults") / "faults.html"
    deck.write_text(sample_html, encoding="utf-8")
    return deck


@pytest.fixture(scope="module")
def faults(chromium, faulty_deck: Path) -> list[check.SlideProblem]:
    return list(check.examine(chromium, faulty_deck).problems)


def _of(faults: list[check.SlideProblem], slide: int, kind: str) -> str:
    return "; ".join(
        problem.detail for problem in faults if (problem.slide, problem.kind) == (slide, kind)
    )


@pytest.mark.parametrize(
    ("slide", "kind", "said"),
    [
        (4, "overflow", "outside its area"),
        (5, "contrast", '"grey" has 4.48'),
        (5, "maths", "MathJax says: Missing argument"),
        (6, "font size", '"One" has'),
        (7, "figure", "not loaded"),
        (7, "maths", "source is on show"),
        (8, "figure", "no alt text"),
        (8, "notes", "no seconds"),
        (9, "contrast", "stands on a picture"),
        (9, "title", "said twice"),
        (10, "close", "does not end with what to take home"),
        (0, "page", "Content Security Policy"),
    ],
)
def test_a_planted_fault_is_found(
    faults: list[check.SlideProblem], slide: int, kind: str, said: str
):
    assert said in _of(faults, slide, kind)


def test_a_contrast_just_above_the_limit_is_none(faults: list[check.SlideProblem]):
    assert _of(faults, 6, "contrast") == ""


def _problems_of(chromium, folder: Path, *cells, **replaced: str) -> list[str]:
    deck = folder / "one.html"
    html = build.render(notebook_of(*cells), name="98_sample")
    for good, bad in replaced.items():
        assert html.count(good) >= 1
        html = html.replace(good, bad)
    deck.write_text(html, encoding="utf-8")
    return _of_a_slide(check.examine(chromium, deck))


def test_a_macro_that_does_not_exist_is_reported(chromium, tmp_path: Path):
    problems = _problems_of(
        chromium, tmp_path, text_cell("## H\n\nThe time $\\notamacro{1} + x$ is.")
    )
    assert problems == ["maths: MathJax says: Undefined control sequence \\notamacro"]


def test_a_figure_that_is_long_and_thin_is_reported(chromium, tmp_path: Path):
    thin = code_cell("f()", figure_output(width_in=0.8, height_in=6), tags=("slide-output",))
    squeezed, small = _problems_of(chromium, tmp_path, text_cell("## H"), thin)
    assert squeezed.startswith("figure: a figure is squeezed to ")
    assert small.startswith("figure: a figure and its text are drawn at ")


def test_a_figure_whose_text_is_drawn_too_small_is_reported(chromium, tmp_path: Path):
    tall = code_cell("f()", figure_output(width_in=7, height_in=6.5), tags=("slide-output",))
    (problem,) = _problems_of(chromium, tmp_path, text_cell("## H"), tall)
    percent = int(
        problem.removeprefix("figure: a figure and its text are drawn at ").removesuffix(
            " % of their size"
        )
    )
    assert 20 < percent < 100 * check.LIMITS["figureScale"]


def test_nbconverts_own_sentence_is_no_alt_text(chromium, tmp_path: Path):
    sentence = "No description has been provided for this image"
    shown = code_cell("f()", figure_output(alt="described"), tags=("slide-output",))
    problems = _problems_of(
        chromium, tmp_path, text_cell("## H"), shown, **{'alt="described"': f'alt="{sentence}"'}
    )
    assert problems == ["figure: a figure has no alt text"]


def test_an_output_alone_stands_in_the_middle_of_its_page(chromium, tmp_path: Path):
    alone = {"tags": ("slide", "slide-output"), "minutes": 1}
    table = displayed({"text/html": f"<table>{'<tr><td>1</td></tr>' * 3}</table>"})
    cells = [code_cell("f()", printed("1\n2\n3"), **alone), code_cell("f()", table, **alone)]
    (bare,) = _problems_of(chromium, tmp_path, text_cell("## H"), *cells)
    assert bare.startswith("bare output: printed lines stand alone")
    with browser.open_deck(chromium, tmp_path / "one.html") as opened:
        for slide in (2, 3):
            opened.page.evaluate("index => Reveal.slide(index)", slide)
            box = opened.page.locator("section.present .output").bounding_box()
            assert 0.35 < (box["y"] + box["height"] / 2) / browser.HEIGHT_PX < 0.55


@pytest.mark.parametrize("rows", [9, 10, 12])
def test_a_table_alone_stands_inside_its_page(chromium, tmp_path: Path, rows: int):
    table = displayed({"text/html": f"<table>{'<tr><td>1</td></tr>' * rows}</table>"})
    alone = code_cell("f()", table, tags=("slide", "slide-output"), minutes=1)
    assert _problems_of(chromium, tmp_path, text_cell("## H"), alone) == []


def test_a_figure_is_dark_in_the_dark_and_stands_on_the_page(chromium, sample_deck: Path):
    for dark, page in ((False, (251, 251, 249)), (True, (20, 25, 31))):
        with browser.open_deck(chromium, sample_deck, dark=dark) as opened:
            opened.page.evaluate("Reveal.slide(5)")
            shot = opened.page.locator("section.present figure").screenshot()
        pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
        corner = pixels[4, 4]
        assert abs(corner - page).max() <= 4
        luminances = [
            _luminance(colour / 255) for colour in np.unique(pixels.reshape(-1, 3), axis=0)
        ]
        lightest, darkest = max(luminances), min(luminances)
        assert (lightest + 0.05) / (darkest + 0.05) >= 10  # its ink on its page


@pytest.mark.parametrize(("theme", "page_colour"), [("light", "#fbfbf9"), ("dark", "#14191f")])
def test_a_label_on_a_bar_of_any_colour_can_be_read_in_the_light_and_in_the_dark(
    chromium, theme, page_colour
):
    shades = [legible_colour(colour) for colour in (*plotting.COLOURS.values(), *OTHERS)]
    side = 20
    squares = "".join(
        f'<rect x="{place * side}" y="{row * side}" width="{side}" height="{side}" fill="{fill}"/>'
        for place, shade in enumerate(shades)
        for row, fill in enumerate((shade, ink_on(shade)))
    )
    size = f'width="{len(shades) * side}" height="{2 * side}"'
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{squares}</svg>'
    css = (build.SLIDES / "template" / "drawings.css").read_text(encoding="utf-8")
    page = chromium.new_page()
    page.set_content(
        f'<html data-theme="{theme}"><style>{css} html, body {{ margin: 0; background: '
        f"{page_colour}; }}"
        "img { display: block; filter: var(--figure-filter); mix-blend-mode: var(--figure-blend); "
        "}</style>"
        "<img "
        f'src="data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode()}"></html>'
    )
    pixels = (
        np.asarray(Image.open(io.BytesIO(page.locator("img").screenshot())).convert("RGB")) / 255
    )
    page.close()
    for place, shade in enumerate(shades):
        bar, ink = (pixels[row * side + side // 2, place * side + side // 2] for row in (0, 1))
        darker, lighter = sorted(map(_luminance, (bar, ink)))
        found = (lighter + 0.05) / (darker + 0.05)
        assert found >= 4.45, shade  # 4.5, but for a pixel's whole steps
        assert found >= contrast(shade, ink_on(shade)) - 0.1, shade
        behind = np.array([int(page_colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        darker, lighter = sorted(map(_luminance, (bar, behind)))
        if theme == "dark" and shade != legible_colour(plotting.COLOURS["waiting"]):
            assert (lighter + 0.05) / (darker + 0.05) >= 3, shade  # WCAG 2.2, criterion 1.4.11


def _luminance(channels: np.ndarray) -> float:
    """WCAG 2.2's relative luminance."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_guesses_that_are_typed_stand_on_the_slide_of_the_answer_too(chromium, sample_deck: Path):
    with browser.open_deck(chromium, sample_deck) as opened:
        page = opened.page
        page.keyboard.press("ArrowRight")
        page.locator("section.present .guess input").fill("10x, 2, 1k, word")
        assert page.evaluate("Reveal.getIndices().h") == 1
        places = (
            page.locator(".guess >> nth=1")
            .locator(".room")
            .evaluate_all("marks => marks.map(m => m.style.left)")
        )
        assert [round(float(place.removesuffix("%"))) for place in places] == [33, 10, 100]
        assert opened.complaints == []


@pytest.mark.parametrize(
    ("key", "at_start", "slide"),
    [
        ("Enter", False, 2),
        ("PageDown", False, 2),
        ("ArrowDown", False, 2),
        ("ArrowRight", False, 2),
        ("ArrowRight", True, 1),  # the cursor moves within the line
        ("ArrowLeft", False, 1),
        ("ArrowLeft", True, 0),
        ("PageUp", False, 0),
        ("Escape", False, 1),
    ],
)
def test_a_key_turns_the_slide_after_a_guess_was_typed(
    chromium, sample_deck: Path, key: str, at_start: bool, slide: int
):
    with browser.open_deck(chromium, sample_deck) as opened:
        page = opened.page
        page.keyboard.press("ArrowRight")
        page.keyboard.press("r")
        page.keyboard.type("3, 50")
        if at_start:
            page.keyboard.press("Home")
        page.keyboard.press(key)
        assert page.evaluate("Reveal.getIndices().h") == slide
        stays = key in ("ArrowLeft", "ArrowRight") and slide == 1
        assert page.evaluate("document.activeElement.localName === 'input'") is stays
        assert page.locator(".guess input").input_value() == "3, 50"


def test_an_answer_without_room_for_its_axis_says_the_guesses_in_words(chromium, tmp_path: Path):
    cells = [
        code_cell(
            "asked = predict(...)", asked(), tags=("predict", "slide", "slide-output"), minutes=1
        ),
        code_cell(
            "asked.reveal(...)",
            answered(),
            tags=("slide", "slide-output"),
            minutes=1,
            headline="Four",
        ),
        code_cell("f(1)", tags=("slide-more",)),
    ]
    cells[-1].source = "\n".join(f"step({number})" for number in range(12))
    deck = tmp_path / "one.html"
    deck.write_text(build.render(notebook_of(*cells), name="98_one"), encoding="utf-8")
    with browser.open_deck(chromium, deck) as opened:
        opened.page.keyboard.press("ArrowRight")
        opened.page.locator("section.present .guess input").fill("3, 50")
        opened.page.keyboard.press("Enter")
        assert opened.page.locator("section.present .said").inner_text() == "The room: 3 ×, 50 ×"
        assert opened.page.locator("section.present .said").is_visible()


@pytest.mark.parametrize("notebook", build.find_lessons(), ids=lambda path: path.stem[:2])
def test_each_question_of_a_lessons_deck_has_its_answer_with_the_axis_and_the_second_slide_asks(
    notebook: Path,
):
    content = build.read_notebook(notebook)
    slides = read_deck(content, name=notebook.stem, folder=notebook.parent).slides
    asking, answering = {}, {}
    for place, slide in enumerate(slides):
        for part in slide.parts:
            outputs = content.cells[part.cell_index].get("outputs", [])
            asking |= {
                asked: place for asked in map(questions.question, outputs) if asked and part.axis
            }
            shown = [output["data"] for output in part.outputs if "data" in output]
            answering |= {
                page["text/plain"].partition("\n")[0]: place
                for page in shown
                if 'class="guess' in page.get("text/html", "")
            }
    assert [asked for asked, place in asking.items() if answering.get(asked, -1) <= place] == []
    assert set(answering) <= set(asking)
    assert min(asking.values()) <= 1  # the bet opens the deck


# What a slide with a heading of one line leaves for a figure, without its white border.
FIGURE_WIDTH_PX, FIGURE_HEIGHT_PX = 1136 - 28, 534 - 20
SAVED_PX_PER_INCH, BACK_ROW_PX = 160, 18


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plotting.draw_three(
            ["1"], {"modelled": [1], "measured": [2]}, unit="s", title="t", xlabel="x"
        ),
        lambda: plotting.draw_bars({"a": 1.0, "b": 2.0}, unit="s", title="t"),
        lambda: plotting.draw_layers(
            ["a", "b"], {"in": [1, 2], "out": [3, 4]}, unit="B", title="t"
        ),
        lambda: plotting.draw_shares({"a": {"x": 1, "y": 2}}, title="t"),
        lambda: plotting.gantt(
            [plotting.Span("a", 0, 1, "k", "F0"), plotting.Span("b", 1, 2, "l")], title="t"
        ),
    ],
    ids=["three", "bars", "layers", "shares", "gantt"],
)
def test_the_text_in_a_figure_is_as_large_as_code_on_a_slide(draw):
    sizes = _text_px(draw())
    assert len(sizes) >= 5
    assert min(sizes.values()) >= check.LIMITS["code"], sizes


def _text_px(drawn: Figure) -> dict[str, float]:
    """Return each text of a figure with its size on a slide that the figure has to itself; closes
    the figure.
    """
    drawn.canvas.draw()
    width_in, height_in = drawn.get_size_inches()
    # A figure is never drawn larger than it is: 160 pixels an inch.
    px_per_inch = min(FIGURE_WIDTH_PX / width_in, FIGURE_HEIGHT_PX / height_in, SAVED_PX_PER_INCH)
    sizes = {
        text.get_text(): text.get_fontsize() / 72 * px_per_inch
        for text in drawn.findobj(Text)
        if text.get_visible() and text.get_text()
    }
    plt.close(drawn)
    return sizes


TEN_BARS = {f"one kernel a layer, variant {place}": place + 1.0 for place in range(10)}
EIGHT_NUMBERS = {"modelled": [0.175, 0.699, 2.8, 2.8], "measured": [0.231, 0.572, 2.22, 4.12]}
LAYERS = [f"conv{place}" for place in range(12)]
LEVELS = (MemoryLevel("L1", 2**15, 1e-9, 2e11), MemoryLevel("DRAM", 2**33, 1e-7, 2e10))
LIMITS = MachineLimits(
    device="cpu",
    threads=1,
    date="2026-01-01",
    versions={},
    chase="none",
    memory_levels=LEVELS,
    bandwidths=(),
    peak_flops={"float32": 1e11},
    product_flops={"float32": 1e11},
    call_overhead_s=1e-6,
    launch_s=None,
    host_to_device_bytes_per_s=None,
    device_to_host_bytes_per_s=None,
    unstable=(),
    notes=(),
    latencies=tuple(LatencyPoint(2**power, 1e-9) for power in range(12, 25)),
)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plotting.draw_three(list("abcd"), EIGHT_NUMBERS, unit="s", title="t", xlabel="x"),
        lambda: plotting.draw_bars(TEN_BARS, unit="", title="t"),
        lambda: plotting.draw_layers(
            LAYERS, {"in": [1.0] * 12, "out": [2.0] * 12}, unit="B", title="t"
        ),
        lambda: plotting.draw_curves(
            [1, 2, 4],
            {"modelled": [1, 2, 3], "measured": [1, 2, 4]},
            unit="s",
            title="t",
            xlabel="batch",
            ylabel="time",
        ),
        lambda: data_movement.draw_hierarchy(LEVELS),
        lambda: data_movement.draw_inversion(
            memory_hierarchy.memory_inversion(["GeForce RTX 3090", "A100 SXM 40 GB"])
        ),
        data_movement.draw_dies,
        data_movement.draw_memory_spaces,
        lambda: history.draw_energy(history.energy_costs().costs),
        lambda: history.draw_trends([history.training_compute()], title="t"),
        lambda: sgd_parallelism.draw_split(
            sgd_parallelism.model_split(4, 6, 8, by="inner", parts=2)
        ),
        lambda: data_movement.draw_latencies(LIMITS.latencies),
    ],
    ids=[
        "three",
        "bars",
        "layers",
        "curves",
        "hierarchy",
        "inversion",
        "dies",
        "spaces",
        "energy",
        "growth",
        "split",
        "latencies",
    ],
)
def test_the_text_in_the_fullest_figures_can_be_read_from_the_back_row(draw):
    sizes = _text_px(draw())
    assert len(sizes) >= 5
    assert min(sizes.values()) >= BACK_ROW_PX, sizes


def test_without_the_policy_a_request_is_seen(chromium, sample_html: str, tmp_path: Path):
    deck = tmp_path / "remote.html"
    remote = sample_html.replace("default-src 'none'", "default-src *").replace(
        "img-src data:", "img-src *"
    )
    deck.write_text(
        remote.replace("A rate is", '<img alt="a" src="https://192.0.2.1/a.png">A rate is'),
        encoding="utf-8",
    )
    found = check.examine(chromium, deck)
    assert [problem.detail for problem in found.problems if problem.kind == "request"] == [
        "https://192.0.2.1/a.png"
    ]


def test_a_deck_that_does_not_start_is_said_so(
    chromium, sample_html: str, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(browser, "_READY_MS", 500)
    deck = tmp_path / "dead.html"
    deck.write_text(
        sample_html.replace("window.Reveal.initialize", "window.NoReveal.initialize"),
        encoding="utf-8",
    )
    with pytest.raises(browser.BrowserError, match=r"dead\.html did not start in Chromium"):
        check.examine(chromium, deck)


def test_another_mode_is_refused(chromium, sample_deck: Path):
    with pytest.raises(ValueError, match="light, dark, print, not 'sepia'"):
        check.examine(chromium, sample_deck, mode="sepia")


def test_without_chromium_a_test_skips_on_a_desk_and_fails_in_ci(chromium_executable, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium_executable()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium_executable()
