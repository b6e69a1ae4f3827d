"""The figures of lesson 00 show the numbers that they are given, and the calculator those of a
published run.
"""

from __future__ import annotations

import json
import re

import matplotlib.pyplot as plt
import pytest

from helpers.plotting.explorer._explore import Menu, Slider
from helpers.studies import start_here
from tests.explored import at


@pytest.fixture(autouse=True)
def _figures_closed():
    yield
    plt.close("all")


def labels(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_model_is_drawn_as_shares_of_the_measured_time_with_the_times_as_labels():
    programs = {"a * b": (0.6e-3, 0.01e-3, 0.8e-3), "a @ b": (0.6e-3, 24e-3, 32e-3)}
    [axes] = start_here.draw_model(programs, title="Two programs").axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [pytest.approx([0.75, 0.01875]), pytest.approx([0.0125, 0.75]), [1, 1]]
    assert labels(axes) == ["600 us", "600 us", "10.0 us", "24.0 ms", "800 us", "32.0 ms"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(programs)


def test_the_rates_after_pauses_are_a_curve_and_the_product_a_point_of_its_own():
    drawn = start_here.draw_pauses({0: 20e9, 0.01: 9e9}, product=(0.015, 8e9))
    [axes] = drawn.axes
    curve, star = axes.lines
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 0.01], [20e9, 9e9])
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([0.015], [8e9])
    assert axes.get_ylim() == (0, 1.3 * 20e9)


def test_the_longest_run_is_apart_from_those_that_the_model_knows():
    [axes] = start_here.draw_runs({1: 2.5, 3: 3.7, 6: 5.4}, modelled_s={0: 1.9, 6: 5.5}).axes
    line, known, longest, start = axes.lines
    assert list(line.get_ydata()) == [1.9, 5.5]
    assert (list(known.get_xdata()), list(known.get_ydata())) == ([1, 3], [2.5, 3.7])
    assert (list(longest.get_xdata()), list(longest.get_ydata())) == ([6], [5.4])
    assert list(start.get_ydata()) == [1.9]
    assert labels(axes) == ["the start, 1.90 s (modelled)"]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert left < 0 < 6 < right  # no marker is cut by the frame
    assert bottom == 0
    assert top > 5.5


def calculator(monkeypatch) -> tuple[list[Menu | Slider], dict[str, str]]:
    """Return the inputs and the formulas of the calculator as a page holds them."""
    displayed = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: displayed.append(data))
    start_here.explore_training()
    [page] = displayed
    [text] = re.findall(r'<script type="application/json">(.*?)</script>', page["text/html"])
    data = json.loads(text)
    inputs = [
        Menu(one["name"], one["label"], one["options"], list(one["options"])[one["place"]])
        if "options" in one
        else Slider(one["name"], one["label"], one["values"], one["values"][one["place"]])
        for one in data["inputs"]
    ]
    return inputs, data["formulas"]


def test_the_calculator_has_the_days_of_a_published_run(monkeypatch):
    """Llama 3 405B: 3.8e25 operations on up to 16,384 H100s at 400 TFLOP/s (Grattafiori and others,
    2024, table 4).
    """
    inputs, formulas = calculator(monkeypatch)
    setting = {"billions": 405, "tokens": 15, "gpu": "H100", "gpus": 16384, "reached": 40}
    values = at(inputs, formulas, **setting)
    assert values["operations"] == pytest.approx(3.8e25, rel=0.05)
    assert values["days"] == pytest.approx(3.8e25 / (16384 * 400e12) / 86400, rel=0.1)
    assert values["days"] == pytest.approx(67, rel=0.05)


def test_the_calculator_begins_with_another_published_run_and_has_the_answers_of_the_lesson(
    monkeypatch,
):
    """LLaMA 65B: 1.4 trillion tokens, about 21 days on 2,048 A100s (Touvron and others, 2023,
    section 2.4).
    """
    inputs, formulas = calculator(monkeypatch)
    assert at(inputs, formulas)["days"] == pytest.approx(21, rel=0.08)
    assert at(inputs, formulas)["days"] == pytest.approx(22.5, abs=0.05)
    assert at(inputs, formulas, billions=69, tokens=2)["days"] > 30
    assert at(inputs, formulas, billions=69, tokens=2, gpus=2400)["days"] < 30
    assert at(inputs, formulas, billions=1, tokens=0.1, gpus=8)["days"] < 7
    assert at(inputs, formulas, billions=1, tokens=0.5, gpus=8)["days"] > 7
