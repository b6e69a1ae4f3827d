"""Interactive figures: fixed views always, sliders when somebody is there."""

from __future__ import annotations

import pytest

from helpers import plotting, widgets


def draw(width):
    return plotting.draw_bars({"width": width}, unit="B", title="Width")


def show(**changes):
    arguments = {
        "choices": {"width": [1, 2, 4]},
        "views": [{"width": 1}, {"width": 4}],
        "alt": lambda width: f"One bar of {width} bytes.",
    } | changes
    widgets.interactive_figure(draw, arguments.pop("choices"), **arguments)


@pytest.fixture
def displayed(monkeypatch):
    shown: list = []
    monkeypatch.setattr("IPython.display.display", lambda *objects, **_: shown.extend(objects))
    return shown


def test_headless_leaves_the_fixed_views_alone(displayed):
    show()
    assert [output["text/plain"] for output in displayed] == [
        "One bar of 1 bytes.",
        "One bar of 4 bytes.",
    ]


def test_live_there_are_sliders_above_the_fixed_views(displayed, monkeypatch):
    monkeypatch.setenv("HELPERS_HEADLESS", "0")
    show()
    sliders = next(output for output in displayed if not isinstance(output, dict)).children
    assert [(slider.description, slider.options, slider.value) for slider in sliders] == [
        ("width", (1, 2, 4), 1)
    ]
    assert [output["text/plain"] for output in displayed if isinstance(output, dict)][-2:] == [
        "One bar of 1 bytes.",
        "One bar of 4 bytes.",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": {}}, "needs values"),
        ({"choices": {"width": []}}, "none given for width"),
        ({"views": [{"width": 1}]}, "two or three"),
        ({"views": [{"width": 1}, {"width": 3}]}, "does not have"),
        ({"views": [{"width": 1}, {"height": 1}]}, "must set exactly width"),
    ],
)
def test_wrong_settings_are_refused(changes, message, displayed):
    with pytest.raises(ValueError, match=message):
        show(**changes)
    assert displayed == []
