"""What of a marked markdown cell stands on the slide, and what a slide may not hold."""

import base64
from pathlib import Path

import pytest

from slides.markdown import count_words, cut_markdown, outside_reference, plain_text, typed_measurement


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
    ["12.3 ms", "It takes 3 s.", "5 µs", "34.1 GB/s", "1e9 B/s", "104 GFLOP/s", "2 TFLOPS", "30x faster",
     "8 bytes a second", "3 times slower", "20 seconds", "1,024 MiB/s"],
)  # fmt: skip
def test_a_typed_time_or_rate_is_found(text: str):
    assert typed_measurement(f"<p>{text}</p>") is not None


@pytest.mark.parametrize(
    "text",
    ["3 layers", "1,024 by 1,024", "2 FLOP", "4 bytes a number", "64 samples", "32 KiB", "within 2x", "$t = 5 s$",
     "lesson 3", "45 minutes", "0.5 FLOP/B", "10 sizes"],
)  # fmt: skip
def test_a_count_is_not_a_measurement(text: str):
    assert typed_measurement(f"<p>{text}</p>") is None


@pytest.mark.parametrize(
    "html",
    ['<img src="https://example.org/a.png">', '<img src="a.png">', '<img srcset="a.png 2x">', "<script>1</script>",
     '<iframe src="a"></iframe>', "<style>@import 'a.css'</style>", "<p style='background: url(a.png)'>x</p>",
     '<svg><use href="a.svg#b"></use></svg>', '<link rel="stylesheet" href="a.css">', '<video poster="a.png"></video>',
     '<p onclick="f()">x</p>', '<style>p { background: url( "//example.org/a" ) }</style>'],
)  # fmt: skip
def test_what_would_load_or_run_is_found(html: str):
    assert outside_reference(f"<div>{html}</div>") is not None


@pytest.mark.parametrize(
    "html",
    ['<img src="data:image/png;base64,AA">', '<a href="https://example.org">x</a>', '<svg><use href="#b"></use></svg>',
     "<style scoped>.dataframe td { color: red }</style>", "<p style='background: url(#g)'>one</p>", ""],
)  # fmt: skip
def test_what_stands_alone_is_left_alone(html: str):
    assert outside_reference(html) is None
