"""The built file: what stands in it, that it is whole and always the same, and what is said when it
cannot be built.
"""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from slide_samples import ALT, notebook_of, sample_notebook, text_cell

from slides import assets, build
from slides.rules import SlideError

ROOT = Path(build.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def page(sample_html: str) -> BeautifulSoup:
    return BeautifulSoup(sample_html, "html.parser")


def test_one_flat_section_a_slide_each_with_heading_number_and_notes(page: BeautifulSoup):
    sections = page.select(".slides > section")
    assert len(sections) == len(page.select("section")) == 10
    assert [section.select_one("h1, h2").get_text() for section in sections[:2]] == [
        "A sample of everything",
        "How many times longer is a < b [cold]?",
    ]
    assert [section.select("footer span")[1].get_text() for section in sections] == [
        f"{n} / 10" for n in range(1, 11)
    ]
    assert all(
        section.select_one("footer span").get_text() == "Lesson 98 · A sample of everything"
        for section in sections
    )


def test_notes_give_the_seconds_and_the_clock(page: BeautifulSoup):
    notes = [aside.get_text(" ", strip=True) for aside in page.select("aside.notes")]
    assert notes[0] == "10 slides, 16:30 to talk."
    assert (
        notes[3]
        == "40 seconds; 7:10 of 16:30 at its end. Say why the order matters. Ask Who has measured "
        "before?"
    )
    assert notes[4].startswith("20 seconds; 7:30 of 16:30 at its end.")
    assert (
        notes[-1]
        == "35 seconds; 16:30 of 16:30 at its end. Most of the work stands in the first layer."
    )


def test_a_number_on_a_slide_is_the_notebooks_own_output(page: BeautifulSoup):
    assert page.select(".output pre")[0].get_text() == "  32,000,000.0 < 10^9"
    assert [cell.get_text() for cell in page.select(".output td")] == [
        "conv1",
        "117600",
        "fc1",
        "30720",
    ]


def test_no_prompts_and_the_code_of_an_output_cell_is_hidden(page: BeautifulSoup):
    slides = page.select_one(".slides").get_text()
    assert "In [" not in slides
    assert "Out[" not in slides
    assert "plotting.show" not in slides
    assert "profile_ops(model)" in slides


def test_figures_carry_their_alt_text(page: BeautifulSoup):
    assert [image["alt"] for image in page.select(".slides img")] == [ALT, ALT]


def test_nothing_is_loaded_and_the_policy_forbids_it(page: BeautifulSoup):
    assert not page.select("script[src], link, iframe")
    assert all(image["src"].startswith("data:") for image in page.select("img"))
    policy = page.select_one("meta[http-equiv=Content-Security-Policy]")["content"]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_reveal_and_mathjax_are_inlined_as_they_are(sample_html: str):
    assert all(assets.asset(name).strip() in sample_html for name in assets.ASSETS)
    assert "@import" not in "".join(
        style.get_text() for style in BeautifulSoup(sample_html, "html.parser").select("style")
    )


def test_the_same_notebook_gives_the_same_bytes_in_another_process(
    sample_html: str, tmp_path: Path
):
    nbformat.write(sample_notebook(), tmp_path / "98_sample.ipynb")
    script = "import sys; from pathlib import Path; from slides import build\n"
    script += "build.build(Path(sys.argv[1]), folder=Path(sys.argv[2]))"
    command = [
        sys.executable,
        "-c",
        script,
        str(tmp_path / "98_sample.ipynb"),
        str(tmp_path / "out"),
    ]
    subprocess.run(
        command, check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "1"}, timeout=120
    )
    written = (tmp_path / "out" / "98_sample.html").read_bytes()
    assert hashlib.sha256(written).digest() == hashlib.sha256(sample_html.encode()).digest()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["98_sample.html"]


def test_the_notebook_is_left_as_it_is():
    notebook = sample_notebook()
    build.render(notebook, name="98_sample")
    assert notebook == sample_notebook()


def test_find_lessons(tmp_path: Path):
    for name in ("07_working_set.ipynb", "00_start_here.ipynb", "notes.ipynb"):
        (tmp_path / name).touch()
    assert [path.name[:2] for path in build.find_lessons(course=tmp_path)] == ["00", "07"]
    assert [path.name[:2] for path in build.find_lessons(["7"], course=tmp_path)] == ["07"]
    with pytest.raises(SlideError, match=r"no notebook of lesson 12 in course/ \(there: 00, 07\)"):
        build.find_lessons(["12"], course=tmp_path)
    with pytest.raises(SlideError, match="there: none"):
        build.find_lessons(course=tmp_path / "empty")


def test_one_lesson_that_cannot_be_built_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    nbformat.write(notebook_of(text_cell("Text.", tags=())), tmp_path / "01_none.ipynb")
    (tmp_path / "02_broken.ipynb").write_text("{", encoding="utf-8")
    nbformat.write(notebook_of(text_cell("## H\n\nText.")), tmp_path / "03_good.ipynb")
    assert build.main([], course=tmp_path, folder=tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "01_none has no slide" in printed.err
    assert "02_broken.ipynb is not a notebook" in printed.err
    assert "out/03_good.html: 2 slides, 2 minutes" in printed.out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["03_good.html"]


def test_a_disk_that_is_full_leaves_the_old_deck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    nbformat.write(notebook_of(text_cell("## H\n\nText.")), tmp_path / "03_good.ipynb")
    assert build.main([], course=tmp_path, folder=tmp_path / "out") == 0
    before = (tmp_path / "out" / "03_good.html").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert build.main([], course=tmp_path, folder=tmp_path / "out") == 1
    assert "No space left" in capsys.readouterr().err
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [before]


def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(
        assets.AssetError,
        match=r"reveal\.js not found: .*sphinx-revealjs is not installed; run `make",
    ):
        assets.asset("reveal.js")


def test_a_package_without_the_file_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(assets.ASSETS, "reveal.js", ("sphinx-revealjs", "dist/no-such-file.js"))
    with pytest.raises(assets.AssetError, match=r"holds no file dist/no-such-file\.js"):
        assets.asset("reveal.js")


def test_an_asset_that_would_end_its_own_tag_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        assets.ASSETS, "reveal.js", ("sphinx-revealjs", "plugin/notes/speaker-view.html")
    )
    with pytest.raises(assets.AssetError, match="cannot be inlined"):
        assets.asset("reveal.js")


def test_a_deck_carries_the_licences_of_what_is_in_it_and_names_its_own(sample_html):
    comment = sample_html.partition("<!-- ")[2].partition("-->")[0]
    for words in (
        "Hakim El Hattab",
        "Permission is hereby granted",
        "Apache License",
        "Grant of Patent License",
    ):
        assert words in comment
    footers = re.findall(r"<footer>.*?</footer>", sample_html, re.S)
    assert ["CC BY 4.0" in one for one in footers] == [False] * (len(footers) - 1) + [True]


def test_the_last_slide_names_the_first_exercise(tmp_path: Path):
    take_home = text_cell("## What to take home\n\n1. Count.", layout="close")
    (tmp_path / "exercises").mkdir()
    exercise = text_cell("## Exercise 1: a ring\n\nWrite it.", tags=())
    nbformat.write(notebook_of(exercise), tmp_path / "exercises" / "98_sample_exercises.ipynb")
    page = build.render(notebook_of(take_home), name="98_sample", folder=tmp_path)
    assert "Now you: exercise 1 of lesson 98, a ring" in page
