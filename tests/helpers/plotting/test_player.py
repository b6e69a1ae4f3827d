"""The player of ``plotting.play``: what stands in the output, and what it does in a browser without
a network.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from PIL import Image

from helpers import plotting
from helpers.plotting.player._play import svg

CAPTIONS = ["One <b>bar</b>.", "Two.", "Three </script> bars."]


def frame(count: int, *, width_in: float = 4.0):
    drawn = plt.figure(figsize=(width_in, 2), layout="none")
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.barh(range(count), [1 / 3] * count)
    axes.text(0.2, 0, f"{count} bars & <more>")
    return drawn


@pytest.fixture
def shown(monkeypatch) -> list:
    """What was displayed, each a pair of data and metadata."""
    outputs: list = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, metadata, **_: outputs.append((data, metadata))
    )
    return outputs


def played(shown, *, count: int = 3, **changes) -> tuple[dict, dict]:
    arguments = {
        "title": "Bars grow",
        "alt": "A bar more in each step.",
        "captions": CAPTIONS,
    } | changes
    plotting.play([frame(place + 1) for place in range(count)], **arguments)
    return shown[-1]


def held(page: str) -> dict:
    return json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1]
    )


def test_the_output_is_a_player_a_picture_and_the_alt_text(shown):
    before = plt.get_fignums()
    data, metadata = played(shown)
    assert data["text/plain"] == metadata["image/png"]["alt"] == "A bar more in each step."
    assert held(data["text/html"])["captions"] == CAPTIONS
    assert len(held(data["text/html"])["frames"]) == 3
    assert base64.b64encode(data["image/png"]).decode() in data["text/html"]
    assert len(data["text/html"]) < 100_000
    assert plt.get_fignums() == before


def test_the_same_frames_give_the_same_bytes(shown):
    assert played(shown) == played(shown)


@pytest.mark.parametrize(("width_in", "across"), [(3.0, 3), (7.0, 2)])
def test_the_picture_has_three_frames_side_by_side_or_in_two_rows_where_they_are_larger_so(
    shown, width_in, across
):
    frames = [frame(place + 1, width_in=width_in) for place in range(5)]
    plotting.play(frames, title="t", alt="a")
    [(data, metadata)] = shown
    picture, sizes = Image.open(io.BytesIO(data["image/png"])), metadata["image/png"]
    assert sizes["width"] == pytest.approx(100 * across * width_in, rel=0.15)
    assert picture.size == (sizes["width"], sizes["height"])


def test_the_picture_has_the_frames_that_are_asked_for(shown):
    first_and_last, chosen = (
        played(shown, stills=stills)[0]["image/png"] for stills in ((0, 2), (2, 0))
    )
    assert chosen == first_and_last != played(shown)[0]["image/png"]
    assert played(shown, stills=(0, 1, 2)) == played(shown)


def test_a_frame_has_texts_and_only_ids_that_something_refers_to():
    drawn = svg(frame(2))
    assert "2 bars &amp; &lt;more&gt;" in drawn
    assert (
        set(re.findall(r'id="([^"]+)"', drawn)) == set(re.findall(r"url\(#(\w+)\)", drawn)) != set()
    )
    assert not re.search(r"\d\.\d{3}", drawn)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"frames": []}, "0 frames do not move; give at least two"),
        ({"frames": [1]}, "1 frames do not move; give at least two"),
        ({"frames": [1, 2.0]}, "these have 4 x 2 inches and 5 x 2 inches"),
        ({"title": " "}, "a player needs title"),
        ({"alt": ""}, "a player needs alt"),
        ({"captions": ["one"]}, "1 captions for 2 frames"),
        ({"stills": []}, "stills is empty"),
        ({"stills": [0, 2]}, "stills=2 is too large; give a whole number, 0 to 1"),
    ],
)
def test_what_does_not_move_or_has_no_words_is_refused(shown, arguments, says):
    widths = arguments.pop("frames", [1, 1])
    frames = [frame(1, width_in=4 if width == 1 else 5) for width in widths]
    with pytest.raises(ValueError, match=says):
        plotting.play(frames, **{"title": "t", "alt": "a"} | arguments)
    assert shown == []


@pytest.mark.parametrize("frames", ["ab", 3, [1, 2], [Figure(), None]])
def test_what_is_no_figure_is_refused(shown, frames):
    with pytest.raises(TypeError, match="figures, such as draw_ring returns"):
        plotting.play(frames, title="t", alt="a")


@pytest.fixture
def page(chromium, shown, tmp_path: Path) -> Iterator:
    """Two players on one page, offline."""
    players = [played(shown)[0]["text/html"], played(shown, count=2, captions=None)[0]["text/html"]]
    path = tmp_path / "page.html"
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><body>{'<p>and</p>'.join(players)}</body>",
        encoding="utf-8",
    )
    context = chromium.new_context(offline=True)
    opened = context.new_page()
    opened.asked, opened.faults = [], []
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.on("pageerror", lambda error: opened.faults.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    assert opened.faults == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [path.as_uri()]
    context.close()


def counts(page) -> list[str]:
    return page.locator(".count").all_inner_texts()


def test_buttons_keys_and_slider_step_one_player_and_leave_the_other(page):
    first = page.locator(".course-player").first
    assert counts(page) == ["1 / 3", "1 / 2"]
    assert page.locator(".caption").first.inner_text() == "One <b>bar</b>."
    first.get_by_label("One step forward").click()
    assert counts(page) == ["2 / 3", "1 / 2"]
    first.get_by_role("group").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert counts(page) == ["3 / 3", "1 / 2"]
    assert page.locator(".caption").first.inner_text() == "Three </script> bars."
    assert first.get_by_role("img").get_by_text("3 bars & <more>").count() == 1
    page.keyboard.press("Home")
    assert counts(page) == ["1 / 3", "1 / 2"]
    first.get_by_label("Step", exact=True).fill("2")
    assert counts(page) == ["2 / 3", "1 / 2"]
    first.get_by_label("Step", exact=True).press("ArrowLeft")
    assert counts(page) == ["1 / 3", "1 / 2"]


def test_it_plays_to_the_end_and_starts_again_from_there(page):
    page.clock.install()
    first = page.locator(".course-player").first
    first.get_by_role("group").press(" ")
    page.clock.run_for(3_100)
    assert counts(page) == ["3 / 3", "1 / 2"]
    first.get_by_label("Play").click()
    assert counts(page) == ["1 / 3", "1 / 2"]
    first.get_by_label("Pause").click()
    page.clock.run_for(3_100)
    assert counts(page) == ["1 / 3", "1 / 2"]


def test_who_wants_less_motion_has_steps_alone(page):
    page.emulate_media(reduced_motion="reduce")
    page.reload()
    page.asked.pop()
    assert not page.get_by_label("Play").first.is_visible()
    page.get_by_role("group").first.press(" ")
    assert counts(page) == ["2 / 3", "1 / 2"]
    assert page.locator(".stage").first.locator("> svg").count() == 1


def test_on_paper_and_without_scripts_the_picture_stands_there(page, chromium):
    picture = page.get_by_alt_text("A bar more in each step.").first
    assert not picture.is_visible()
    page.emulate_media(media="print")
    assert picture.is_visible()
    assert not page.get_by_role("group").first.is_visible()
    context = chromium.new_context(java_script_enabled=False)
    bare = context.new_page()
    bare.goto(page.url)
    assert bare.get_by_alt_text("A bar more in each step.").first.is_visible()
    assert "path" not in bare.locator("body").inner_text()
    context.close()
