"""The picture of the three numbers: drawn from lesson 00 as it was built, and the README says the same numbers."""

from __future__ import annotations

import re

import pytest
from nbformat import v4

from tools.authoring import three_numbers
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError

BET = "predicted  no prediction made\nmodelled   2,048x              100 times what was measured\nmeasured   20.5x\n"
RATES = "12.6 GB/s, 0.1 TFLOP/s\n"


def built(*texts):
    shown = [v4.new_output("stream", text=text) for text in texts[1:]]
    return v4.new_notebook(
        cells=[v4.new_code_cell(outputs=[v4.new_output("display_data", {"text/plain": texts[0]}), *shown])]
    )


def test_the_numbers_are_those_of_the_outputs_and_the_second_model_takes_the_longer_of_two_times():
    operations, both, measured = three_numbers.numbers(built(BET, RATES))
    assert (operations, measured) == (2048, 20.5)
    assert both == pytest.approx((2 * 1024**3 / 0.1e12) / (3 * 4 * 1024**2 / 12.6e9))


@pytest.mark.parametrize(
    ("texts", "missing"), [(("", RATES), "measured number of its bet"), ((BET, "13.1 GB/s"), "its two rates")]
)
def test_a_lesson_that_does_not_show_them_is_refused(texts, missing):
    with pytest.raises(AuthoringError, match=missing):
        three_numbers.svg(built(*texts))


def test_a_longer_time_has_a_longer_bar():
    widths = [
        float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', three_numbers.svg(built(BET, RATES)))
    ]
    assert widths[1] > 10 * max(widths[2:])
    assert min(widths) > 0


def test_the_picture_is_made_of_this_courses_lesson_and_the_readme_says_its_numbers():
    lessons = HERE.lessons()
    assert three_numbers.svg(HERE.built(lessons[0])) == HERE.three_numbers.read_text(encoding="utf-8")
    notebook = HERE.built(lessons[0])
    readme = HERE.readme.read_text(encoding="utf-8")
    assert f"![{three_numbers.description(notebook)}](course/map/three_numbers.svg)" in readme
    operations, both, measured = (f"{number:,.0f}" for number in three_numbers.numbers(notebook))
    [told] = re.findall(r"This is the first bet .*?\n\n", readme, re.DOTALL)
    said = " ".join(told.split())
    assert f"product does {operations} times as much arithmetic" in said
    assert f"only {measured} times as long" in said
    assert f"as well as operations says {both}." in said


def test_the_readmes_own_bet_has_the_answer_of_lesson_01():
    shown = [output for cell in HERE.built(HERE.lessons(["01"])[0]).cells for output in cell.get("outputs", [])]
    texts = [output.get("data", {}).get("text/plain", "") for output in shown]
    [revealed] = [text for text in texts if text.startswith("How many times as long as reading the 512 MiB")
                  and "measured" in text]  # fmt: skip
    measured = re.search(r"measured +([\d.]+)x", revealed)
    [told] = re.findall(r"<details>.*?</details>", HERE.readme.read_text(encoding="utf-8"), re.DOTALL)
    assert f"\n{float(measured[1]):.0f} times as long (measured)" in told
