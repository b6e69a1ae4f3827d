"""What of a marked markdown cell stands on the slide, and what a slide may not hold."""

import base64
from html import escape as html_escape
from pathlib import Path

import pytest

from slides.markdown import (
    count_words,
    cut_markdown,
    formula_of_words,
    is_described,
    measurement_in_comments,
    outside_reference,
    plain_text,
    refused_block,
    typed_measurement,
    undescribed_figure,
)


def cut(source: str):
    return cut_markdown(source, folder=Path())


def test_heading_and_first_paragraph_are_shown_the_rest_is_for_the_speaker():
    found = cut("## Caches\n\nSmall and near.\n\nSay how small.\n\n- and\n- how near")
    assert found.heading == "Caches"
    assert plain_text(found.text) == "Small and near."
    assert plain_text(found.notes) == "Say how small. and how near"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("## H\n\n- one\n- two\n\nnote", "one two"),
        ("## H\n\n1. one\n2. two\n\nnote", "one two"),
        ("## H\n\n$$t = n / r$$\n\nnote", "$$t = n / r$$"),
        ("## H\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nnote", "a b 1 2"),
        ("shown before\n\n## H\n\nnote", "shown before"),
        ("## H", ""),
        ("", ""),
    ],
)
def test_first_block(source: str, shown: str):
    found = cut(source)
    assert plain_text(found.text) == shown
    assert found.heading == ("H" if "## H" in source else "")
    assert plain_text(found.notes) == ("note" if "note" in source else "")


def test_formulas_and_code_reach_the_slide_unchanged():
    assert "$a_i * b_i < c$" in plain_text(cut("The sum $a_i * b_i < c$ of `x_1`").text)
    assert "<code>x_1</code>" in cut("The sum of `x_1`").text


def test_a_link_into_the_course_becomes_its_text_and_one_to_the_web_stays():
    text = cut("A [cold call](glossary.md#cold-call) and [a page](https://example.org/a).").text
    assert "glossary" not in text
    assert "A cold call and" in plain_text(text)
    assert 'href="https://example.org/a"' in text


def test_an_image_beside_the_notebook_is_inlined(tmp_path: Path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    text = cut_markdown("![a dot](dot.png)", folder=tmp_path).text
    assert base64.b64encode(b"\x89PNG\r\n\x1a\n").decode() in text
    assert outside_reference(text) is None


@pytest.mark.parametrize(
    ("html", "words"),
    [
        ("", 0),
        ("<p>one two</p>", 2),
        ("<ul><li>one</li><li>two</li></ul>", 2),
        ("<p>one - two & three — four</p>", 4),
        ("<p>$2 m n k$ operations in $$t$$</p>", 4),
        ("<p><b>half</b>word <code>a @ b</code></p>", 3),
        ("<table><tr><td>1</td><td>2</td></tr></table>", 2),
        ("<p>1,024 don't e.g. x</p>", 4),
    ],
)
def test_count_words(html: str, words: int):
    assert count_words(html) == words


@pytest.mark.parametrize(
    "text",
    [
        "12.3 ms",
        "It takes 3 s.",
        "5 µs",
        "34.1 GB/s",
        "1e9 B/s",
        "104 GFLOP/s",
        "2 TFLOPS",
        "30x faster",
        "8 bytes a second",
        "3 times slower",
        "20 seconds",
        "1,024 MiB/s",
        "137 times longer",
        "137 times as long",
        "2x speedup",
        "87 % of the peak",
        "87%",
        "87 percent",
        "12 minutes",
        "3 hours",
        "a 3-second wait",
        "1,200 images/s",
        "60 images per second",
        "100 Gbps",
        "12\u00a0ms",
        "<b>12</b> ms",
        "$12$ ms",
        r"$12\,GB/s$",
        r"$12\,\mathrm{GB/s}$",
        r"$t = 5\,s$",
        r"$t = 5\ \text{ms}$",
        r"$87\,\%$",
        r"$30\times$ faster",
        r"$30 \times \text{faster}$",
        r"$$12\frac{GB}{s}$$",
        r"\(12~ms\)",
        r"$76\,\mu s$",
        "$12 GB/s$",
    ],
)
def test_a_typed_time_rate_share_or_speedup_is_found(text: str):
    assert typed_measurement(f"<p>{text}</p>") is not None


@pytest.mark.parametrize(
    "text",
    [
        "3 layers",
        "1,024 by 1,024",
        "2 FLOP",
        "4 bytes a number",
        "64 samples",
        "32 KiB",
        "within 2x",
        "$t = 5 s$",
        "lesson 3",
        "0.5 FLOP/B",
        "10 sizes",
        "How many times longer?",
        "the 1990s",
        "3 times the memory",
        r"$t = \tfrac{3}{2}\,t_{copy}$",
        r"$t = 8\,t_{half}$",
        "$2mnk$",
        "$16 h w$",
        r"$t \geq \frac{2mnk}{P}$",
        r"$6 \cdot 24 \cdot 24$",
        "a second look",
        "$n = 1024$",
        "4 bits",
        "3 times as many",
        "$24/s + 1$",
        r"$\frac{24}{s}$",
        "",
    ],
)
def test_a_count_is_not_a_measurement(text: str):
    assert typed_measurement(f"<p>{text}</p>") is None


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("f()  # takes 3 ms", "3 ms"),
        ("# 30x faster\nf()", "30x faster"),
        ("%timeit f()  # takes 3 ms", "3 ms"),
        ("def f(\n    # 87 %", "87 %"),
        ('def f():\n    """Takes 3 ms."""', "3 ms"),
        ('units.parse("3 ms", "s")', None),
        ("x = 87 % s  # the remainder", None),
        ("# 3 layers", None),
        ("", None),
    ],
)
def test_a_measurement_in_a_comment_is_found(code: str, found: str | None):
    assert measurement_in_comments(code) == found


@pytest.mark.parametrize(
    "text",
    [
        "costs $5 and then $6",
        "a fee of $5, later $6",
        "$5-$10",
        "between $5 and more$",
        "$cold call$",
        "$t_{cold call}$",
        r"\(cold and warm\)",
        "$$rate of copies$$",
        r"$\frac{cold call}{2}$",
        "$ x $",
        "$5<br>and $6",
        "$5 <!-- now --> and $6",
    ],
)
def test_a_formula_of_plain_words_is_found(text: str):
    assert formula_of_words(f"<p>so {text}</p>") is not None


@pytest.mark.parametrize(
    "text",
    [
        "costs $5",
        "$2mnk$ of $n^3$",
        r"$t \geq \max(a, b)$",
        r"$t_{\text{cold call}}$",
        r"$\mathrm{GB read} / s$",
        "$$\n x + y \n$$",
        "$m n k$",
        r"$\begin{aligned} a &= b \end{aligned}$",
        "<code>echo $HOME and $PATH</code>",
        "<pre>$5 and then $6</pre>",
        r"$W x$, $y x^T$",
        r"$\partial y\,x^T$",
        "$mn, nk$",
        "<b>$5</b> and $6",
        "",
    ],
)
def test_a_real_formula_is_left_alone(text: str):
    assert formula_of_words(f"<p>so {text}</p>") is None


@pytest.mark.parametrize(
    "alt",
    [
        "",
        " \n",
        "<Figure size 640x480 with 1 Axes>",
        "Figure(640x480)",
        "No description has been provided for this image",
    ],
)
def test_what_a_program_writes_for_want_of_an_alt_text_is_none(alt: str):
    assert not is_described(alt)
    assert undescribed_figure(f"<p><img src='data:,' alt='{html_escape(alt)}'></p>") == "<img>"


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<img src="data:image/png;base64,AA">', "<img>"),
        ('<img src="data:," alt="two bars">', None),
        ("<svg><path></path></svg>", "<svg>"),
        ("<svg><title>Two bars</title></svg>", None),
        ('<svg aria-label="two bars"></svg>', None),
        ('<svg aria-hidden="true"></svg>', None),
        ("<p>text</p>", None),
    ],
)
def test_a_figure_without_alt_text_is_found(html: str, found: str | None):
    assert undescribed_figure(html) == found


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("Text.", None),
        ("- a", None),
        ("1. a", None),
        ("$$t$$", None),
        ("| a |\n|---|\n| 1 |", None),
        ("", None),
        ("![a](data:image/png;base64,AA)", None),
        ("> quote", "a quote"),
        ("```python\nf()\n```", "a block of code"),
        ("```\nf()\n```", "a block of code"),
        ("    f()", "a block of code"),
        ("---", "a line across"),
        ("<details>x</details>", "<details>"),
    ],
)
def test_the_first_block_is_a_paragraph_list_table_or_figure(source: str, refused: str | None):
    assert refused_block(cut(f"## H\n\n{source}\n\nnote").text if source else "") == refused


@pytest.mark.parametrize(
    "html",
    [
        '<img src="https://example.org/a.png">',
        '<img src="a.png">',
        '<img srcset="a.png 2x">',
        "<script>1</script>",
        '<iframe src="a"></iframe>',
        "<style>@import 'a.css'</style>",
        "<p style='background: url(a.png)'>x</p>",
        '<svg><use href="a.svg#b"></use></svg>',
        '<link rel="stylesheet" href="a.css">',
        '<video poster="a.png"></video>',
        '<p onclick="f()">x</p>',
        '<style>p { background: url( "//example.org/a" ) }</style>',
    ],
)
def test_what_would_load_or_run_is_found(html: str):
    assert outside_reference(f"<div>{html}</div>") is not None


@pytest.mark.parametrize(
    "html",
    [
        '<img src="data:image/png;base64,AA">',
        '<a href="https://example.org">x</a>',
        '<svg><use href="#b"></use></svg>',
        "<style scoped>.dataframe td { color: red }</style>",
        "<p style='background: url(#g)'>one</p>",
        "",
    ],
)
def test_what_stands_alone_is_left_alone(html: str):
    assert outside_reference(html) is None
