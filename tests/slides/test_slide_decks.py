"""Decks in a real Chromium without a network: the sample, every lesson's, and one with a fault on each slide."""

import re
from pathlib import Path

import pytest

from slides import browser, build, check, pdf

LESSONS = sorted(path for path in build.COURSE.glob("*.ipynb") if re.match(r"\d\d_", path.name))


@pytest.mark.parametrize("mode", check.MODES)
def test_the_sample_deck(chromium, sample_deck: Path, mode: str):
    found = check.examine(chromium, sample_deck, mode=mode)
    assert found.problems == ()
    assert (found.slides, found.formulas, found.figures) == (7, 3, 2)
    assert found.texts > 60
    assert found.lowest_contrast >= 4.5
    assert found.smallest_text_px >= 20


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_every_lessons_deck(chromium, notebook: Path, tmp_path: Path):
    built = build.build(notebook, folder=tmp_path)
    deck = tmp_path / f"{notebook.stem}.html"
    for mode in check.MODES:
        found = check.examine(chromium, deck, mode=mode)
        assert found.problems == (), f"\n{found}"
        assert found.slides == built.slides
    assert _pages(pdf.print_deck(chromium, deck)) == built.slides


def test_the_pdf_has_a_page_a_slide(chromium, sample_deck: Path):
    printed = pdf.print_deck(chromium, sample_deck)
    assert _pages(printed) == 7
    assert set(re.findall(rb"/MediaBox\s*\[([^\]]*)\]", printed)) == {b"0 0 960 540"}


def _pages(printed: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page(?![\w])", printed))


def test_the_arrow_keys_walk_through_the_deck_and_the_address_follows(chromium, sample_deck: Path):
    with browser.opened(chromium, sample_deck) as opened:
        for _ in range(6):
            opened.page.keyboard.press("ArrowRight")
        assert opened.page.evaluate("Reveal.isLastSlide()")
        opened.page.keyboard.press("ArrowLeft")
        assert opened.page.locator("section.present h2").inner_text() == "Code that wraps"
        opened.page.wait_for_url("**#/5")


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
def test_the_theme_is_the_asked_one_or_the_systems(chromium, sample_deck: Path, dark: bool, query: dict, theme: str):
    with browser.opened(chromium, sample_deck, dark=dark, **query) as opened:
        assert opened.page.evaluate("document.documentElement.dataset.theme") == theme


def test_a_key_switches_the_theme_and_the_system_no_longer_does(chromium, sample_deck: Path):
    with browser.opened(chromium, sample_deck) as opened:
        opened.page.emulate_media(color_scheme="dark")
        opened.page.wait_for_selector("html[data-theme=dark]", state="attached")
        opened.page.keyboard.press("t")
        opened.page.wait_for_selector("html[data-theme=light]", state="attached")
        heard = "new Promise(done => matchMedia('(prefers-color-scheme: dark)').addEventListener('change', done))"
        opened.page.evaluate(f"() => {{ window.heard = {heard}; }}")
        opened.page.emulate_media(color_scheme="light")
        opened.page.evaluate("() => window.heard.then(() => true)")
        opened.page.emulate_media(color_scheme="dark")
        opened.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_speakers_window_shows_the_notes_and_follows(chromium, sample_deck: Path):
    with browser.opened(chromium, sample_deck) as opened:
        opened.page.keyboard.press("ArrowRight")
        with opened.page.context.expect_page() as waiting:
            opened.page.keyboard.press("s")
        notes = waiting.value.locator(".speaker-controls-notes .value")
        notes.get_by_text("Who has measured before?").wait_for()
        opened.page.keyboard.press("ArrowRight")
        notes.get_by_text("1.5 minutes; 3.5 of 12.5 so far.").wait_for()
        assert opened.complaints == []


BROKEN_IMAGE = '<figure class="figure"><img alt="a" src="data:image/png;base64,AAAA"></figure>'
# What a good deck says, and what stands there instead.
FAULTS = {
    "<h2>Three numbers</h2>": "<h2>Three numbers</h2><p>" + "too much text " * 150 + "</p>",
    "does $2mnk$": 'does $\\frac{1}$ <b style="color: #777777; background: #ffffff">grey</b>',
    "One order": '<i style="color: #767676; background: #ffffff">just enough</i> <small>One</small> order',
    "<h2>A square picture</h2>": f"<h2>A square picture</h2>{BROKEN_IMAGE}",
    "figure on the right": "figure on the right $\\frac{1$",
    "A rate is": '<img alt="" src="https://192.0.2.1/a.png">A rate is',
    "3 minutes; 10.5 of": "10.5 of",
    "profile_ops": '<span style="background: linear-gradient(red, blue)">profile_ops</span>',
}


@pytest.fixture(scope="module")
def faults(chromium, sample_html: str, tmp_path_factory: pytest.TempPathFactory) -> list[check.Problem]:
    for good, bad in FAULTS.items():
        assert sample_html.count(good) == 1
        sample_html = sample_html.replace(good, bad)
    deck = tmp_path_factory.mktemp("faults") / "faults.html"
    deck.write_text(sample_html, encoding="utf-8")
    return list(check.examine(chromium, deck).problems)


def _of(faults: list[check.Problem], slide: int, kind: str) -> str:
    return "; ".join(problem.detail for problem in faults if (problem.slide, problem.kind) == (slide, kind))


@pytest.mark.parametrize(
    ("slide", "kind", "said"),
    [
        (2, "overflow", "outside its area"),
        (3, "contrast", '"grey" has 4.48'),
        (3, "maths", "MathJax says: Missing argument"),
        (4, "font size", '"One" has'),
        (5, "figure", "not loaded"),
        (5, "maths", "source is on show"),
        (6, "figure", "no alt text"),
        (6, "notes", "no minutes"),
        (7, "contrast", "stands on a picture"),
        (0, "page", "Content Security Policy"),
    ],
)
def test_a_planted_fault_is_found(faults: list[check.Problem], slide: int, kind: str, said: str):
    assert said in _of(faults, slide, kind)


def test_a_contrast_just_above_the_limit_is_none(faults: list[check.Problem]):
    assert _of(faults, 4, "contrast") == ""


def test_without_the_policy_a_request_is_seen(chromium, sample_html: str, tmp_path: Path):
    deck = tmp_path / "remote.html"
    remote = sample_html.replace("default-src 'none'", "default-src *").replace("img-src data:", "img-src *")
    deck.write_text(
        remote.replace("A rate is", '<img alt="a" src="https://192.0.2.1/a.png">A rate is'), encoding="utf-8"
    )
    found = check.examine(chromium, deck)
    assert [problem.detail for problem in found.problems if problem.kind == "request"] == ["https://192.0.2.1/a.png"]


def test_a_deck_that_does_not_start_is_said_so(chromium, sample_html: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(browser, "_READY_MS", 500)
    deck = tmp_path / "dead.html"
    deck.write_text(sample_html.replace("window.Reveal.initialize", "window.NoReveal.initialize"), encoding="utf-8")
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
