"""The pictures of the three numbers: drawn from lesson 00 as it was built, and the README says the
same numbers.
"""

from __future__ import annotations

import re

import pytest
from nbformat import v4

from tools.authoring import three_numbers
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError

BET = (
    "predicted  no prediction made\nmodelled   2,048x              100 times what was "
    "measured\nmeasured   20.5x\n"
)
RATES = "12.6 GB/s, 0.1 TFLOP/s\n"


def built(*texts):
    shown = [v4.new_output("stream", text=text) for text in texts[1:]]
    return v4.new_notebook(
        cells=[
            v4.new_code_cell(
                outputs=[v4.new_output("display_data", {"text/plain": texts[0]}), *shown]
            )
        ]
    )


def test_the_numbers_are_those_of_the_outputs_and_the_second_model_takes_the_longer_of_two_times():
    operations, both, measured = three_numbers.numbers(built(BET, RATES))
    assert (operations, measured) == (2048, 20.5)
    assert both == pytest.approx((2 * 1024**3 / 0.1e12) / (3 * 4 * 1024**2 / 12.6e9))


@pytest.mark.parametrize(
    ("texts", "missing"),
    [(("", RATES), "measured number of its bet"), ((BET, "13.1 GB/s"), "its two rates")],
)
def test_a_lesson_that_does_not_show_them_is_refused(texts, missing):
    with pytest.raises(AuthoringError, match=missing):
        three_numbers.svg(built(*texts))


def test_a_longer_time_has_a_longer_bar():
    widths = [
        float(width)
        for width in re.findall(
            r'<rect [^>]*width="([\d.]+)"', three_numbers.svg(built(BET, RATES))
        )
    ]
    assert widths[1] > 10 * max(widths[2:])
    assert min(widths) > 0


def test_one_that_asks_shows_and_tells_no_number_that_answers():
    asked, answered = (three_numbers.svg(built(BET, RATES), asks=asks) for asks in (True, False))
    for text in ("2,048×", "2,048 times"):
        assert text in asked
        assert text in answered
    for number in ("20×", "20 times", "21×", "21 times"):
        assert number not in asked
    assert "20×" in answered
    assert "20 times (measured)" in answered


def test_the_pictures_are_made_of_this_courses_lesson_and_the_readme_says_its_numbers():
    notebook, readme = HERE.built(HERE.lessons()[0]), HERE.readme.read_text(encoding="utf-8")
    question, _, answer = (
        readme.partition("**Your turn.**")[2].partition("</details>")[0].partition("<details>")
    )
    for text, path, asks in (
        (question, HERE.asked_numbers, True),
        (answer, HERE.three_numbers, False),
    ):
        assert three_numbers.svg(notebook, asks=asks) == path.read_text(encoding="utf-8")
        assert (
            f"![{three_numbers.description(notebook, asks=asks)}](course/map/{path.name})" in text
        )
    operations, both, measured = (f"{number:,.0f}" for number in three_numbers.numbers(notebook))
    assert f"product does {operations} times as much arithmetic" in " ".join(question.split())
    assert f"\n{measured} times as long (measured)" in answer
    assert f"as well as operations says {both}," in " ".join(answer.split())
