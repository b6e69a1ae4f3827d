"""Dead links are found without a network, and living ones are left alone."""

from __future__ import annotations

import json

import pytest

from tools.authoring.rules import links, markdown


@pytest.fixture
def root(tmp_path):
    (tmp_path / "course").mkdir()
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "units.py").write_text("")
    (tmp_path / "course" / "a b.png").write_bytes(b"")
    (tmp_path / "course" / "glossary.md").write_text(
        "# Glossary\n\n### MAC\n\n### all-reduce, ring\n\n### MAC\n"
    )
    cells = [
        {"cell_type": "markdown", "source": ["## A first `a * b`\n", "\n", "text"]},
        {"cell_type": "code", "source": ""},
    ]
    (tmp_path / "course" / "00_a.ipynb").write_text(json.dumps({"cells": cells}))
    return tmp_path


def dead(root, text):
    return links.dead_links(
        text, page=root / "course" / "00_a.ipynb", root=root, own_anchors={"Recap"}
    )


@pytest.mark.parametrize(
    "target",
    [
        "glossary.md",
        "glossary.md#mac",
        "glossary.md#mac-1",
        "glossary.md#all-reduce-ring",
        "../helpers/units.py",
        "../helpers",
        "../helpers/units.py#L3",
        "../helpers/units.py#L3-L9",
        "#Recap",
        "00_a.ipynb#A-first-a-*-b",
        "a%20b.png",
        "https://example.org/a?b#c",
        "http://a-b.example.org:8080",
        "mailto:a@example.org",
    ],
)
def test_a_living_link_is_left_alone(root, target):
    assert dead(root, f"[a]({target})") == []


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("missing.md", "leads to no file"),
        ("glossary.md#macs", "leads to a file without the section #macs"),
        ("glossary.md#MAC", "leads to a file without the section #MAC"),
        ("00_a.ipynb#a-first", "leads to a file without the section #a-first"),
        ("../helpers/units.py#parse", "leads to a file without the section #parse"),
        ("../../elsewhere", "leaves the repository"),
        ("/etc/hostname", "is an absolute path"),
        ("#recap", "names no section of this page"),
        ("#", "names no section of this page"),
        ("https://", "names no host"),
        ("https:///a", "names no host"),
        ("http://localhost/a", "names no host"),
        ("http://a_b/c", "names no host"),
        ("ftp://example.org", "has the scheme ftp"),
        ("//example.org/a", "has the scheme //"),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "[a]({})",
        "![a]({})",
        "| a |\n|--|\n| **[a]({})** |",
        '<a href="{}">a</a>',
        "[a][b]\n\n[b]: {}",
    ],
)
def test_a_dead_link_is_found(root, target, reason, form):
    found = dead(root, form.format(target))
    assert len(found) == 1
    assert reason in found[0]


def test_an_address_that_cannot_be_parsed_is_dead(root):
    assert dead(root, '<a href="https://[a">a</a>') == ["the link to 'https://[a' is no address"]


@pytest.mark.parametrize(
    "text",
    ["`[a](missing.md)`", "```\n[a](missing.md)\n```", "$[a](missing.md)$", "a (missing.md)"],
)
def test_what_is_no_link_is_left_alone(root, text):
    assert dead(root, text) == []


def test_a_notebook_is_checked_cell_by_cell(root):
    built = {
        "cells": [
            {"cell_type": "markdown", "source": text}
            for text in ("# One", "[a](#One)", "[a](#Two) [b](no.md)")
        ]
    }
    problems = links.check_notebook(
        "00_a.ipynb", built, page=root / "course" / "00_a.ipynb", root=root
    )
    assert [problem.cell for problem in problems] == [2, 2]


def test_a_page_is_checked(root):
    page = root / "README.md"
    page.write_text("# A `b` c\n\n[here](#a-b-c) [there](course/no.md)\n")
    assert [str(problem) for problem in links.check_page(page, root=root)] == [
        "README.md: the link to 'course/no.md' leads to no file; mend it"
    ]


def test_spans_leave_out_code_and_formulas_and_keep_the_order():
    text = (
        "# A `b`\n\none `two` [three *four*](x) five $six$\nseven\n\n| eight |\n|--|\n| ![nine](y) "
        "|\n\n<b>ten</b>\n"
    )
    spans = [(span.kind, " ".join(span.text.split()), span.target) for span in markdown.spans(text)]
    assert [span for span in spans if span[0] != "text"] == [
        ("heading", "A b", ""),
        ("link", "three four", "x"),
        ("image", "nine", "y"),
    ]
    words = (
        " ".join(text for kind, text, _ in spans if kind == "text").replace("\ufffc", "").split()
    )
    assert words == ["one", "five", "seven", "eight", "ten"]
