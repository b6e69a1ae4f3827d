"""A marked markdown cell cut in two: its heading and first block for the slide, the rest for the speaker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, NavigableString, Tag
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from helpers.results import Result

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = (*_HEADINGS, "p", "li", "td", "th", "div", "br", "pre", "blockquote", "summary", "dt", "dd")
_FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$]+?\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_OUTSIDE_STYLE = re.compile(r"@import|url\(\s*['\"]?(?!data:|#)", re.IGNORECASE)
_LOADING_TAGS = ("script", "iframe", "link", "object", "embed", "base", "meta")
_LOADING_ATTRIBUTES = ("src", "srcset", "poster", "data", "background")

# A time or a rate varies from machine to machine, so a slide takes it from an output.
_MEASUREMENT = re.compile(
    r"""(?<![\w.])\d[\d,_.]*(?:[eE][+-]?\d+)?\s*
    (?: (?:[nmuµμ]s|s|sec|seconds?|milliseconds?|microseconds?|nanoseconds?)\b(?!/)
      | (?:[kKMGTPE]i?)?(?:B|bytes?|FLOPs?|MACs?|OPs?)(?:/s\b|\s+(?:a|per)\s+second)
      | [kMGTPE]?FLOPS\b
      | (?:x|×|times)\s+(?:as\s+)?(?:fast|slow)(?:er)?\b )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class CutCell(Result):
    """A markdown cell as HTML: the heading's inside, the first paragraph or list, and everything after it."""

    heading: str
    text: str
    notes: str


def cut_markdown(source: str, *, folder: Path, attachments: dict | None = None) -> CutCell:
    """Return the cell's heading, its first other block, and the rest, each as HTML ('' where there is none).

    A formula on its own lines counts as a paragraph. Images are inlined, read from ``folder`` where they are files.
    A link to another file of the course becomes its text, for a deck stands alone.
    """
    blocks = _blocks(render_markdown(source, folder=folder, attachments=attachments))
    heading = next((block for block in blocks if block.name in _HEADINGS), None)
    others = [block for block in blocks if block is not heading]
    return CutCell(
        heading=heading.decode_contents().strip() if heading is not None else "",
        text=str(others[0]) if others else "",
        notes="\n".join(str(block) for block in others[1:]),
    )


def render_markdown(source: str, *, folder: Path, attachments: dict | None = None) -> str:
    """Return markdown as HTML the way nbconvert renders it, formulas untouched, images of ``folder`` inlined."""
    renderer = IPythonRenderer(
        escape=False, embed_images=True, exclude_anchor_links=True, path=str(folder), attachments=attachments or {}
    )
    return MarkdownWithMath(renderer=renderer).render(source)


def _blocks(html: str) -> list[Tag]:
    soup = BeautifulSoup(html, "html.parser")
    for link in soup.find_all("a"):
        if not re.match(r"https?://|mailto:", link.get("href", "")):
            link.unwrap()
    blocks = []
    for node in list(soup.children):
        if isinstance(node, Tag):
            blocks.append(node)
        elif type(node) is NavigableString and node.strip():
            blocks.append(node.wrap(soup.new_tag("p")))
    return blocks


def plain_text(html: str) -> str:
    """Return the text a reader sees in a piece of HTML, on one line."""
    soup = BeautifulSoup(html, "html.parser")
    for block in soup.find_all(_BLOCKS):
        block.append(" ")
    return re.sub(r"\s+", " ", soup.get_text()).strip()


def count_words(html: str) -> int:
    """Return how many words a reader sees: a formula is one word, punctuation standing alone is none."""
    words = _FORMULA.sub(" formula ", plain_text(html)).split()
    return sum(any(character.isalnum() for character in word) for word in words)


def typed_measurement(html: str) -> str | None:
    """Return the first time, rate or speedup written in the text itself, or None; formulas do not count."""
    match = _MEASUREMENT.search(_FORMULA.sub(" ", plain_text(html)))
    return match.group() if match else None


def outside_reference(html: str) -> str | None:
    """Return the first thing in ``html`` that would run code or make a browser load something, or None."""
    soup = BeautifulSoup(html, "html.parser")
    for tag in soup.find_all(True):
        if tag.name in _LOADING_TAGS:
            return f"<{tag.name}>"
        if any(name.startswith("on") for name in tag.attrs):
            return f"<{tag.name}> with code in it"
        loading = [tag[name] for name in _LOADING_ATTRIBUTES if name in tag.attrs]
        loading += [tag[name] for name in ("href", "xlink:href") if name in tag.attrs and tag.name != "a"]
        outside = [value for value in loading if not str(value).startswith(("data:", "#"))]
        if outside:
            return f"<{tag.name}> from {str(outside[0])[:80]}"
        styles = [str(tag.get("style", "")), tag.get_text() if tag.name == "style" else ""]
        if any(_OUTSIDE_STYLE.search(style) for style in styles):
            return f"a style of <{tag.name}> that loads a file"
    return None
