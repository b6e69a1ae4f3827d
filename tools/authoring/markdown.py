"""What a reader sees of a Markdown text, in order: its words, links, headings and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

_GAP = " \ufffc "  # stands for code or a formula, so that the words on its two sides do not join


@dataclass(frozen=True)
class Span:
    """A stretch of a text. ``kind`` is text, heading, link or image; ``target`` is where a link or image points."""

    kind: str
    text: str
    target: str = ""


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table").use(dollarmath_plugin).use(amsmath_plugin)


def spans(source: str) -> list[Span]:
    """Return the spans of a Markdown text in reading order; code and formulas are left out, but for headings."""
    found: list[Span] = []
    in_heading = False
    for token in _parser().parse(source):
        if token.type in ("heading_open", "heading_close"):
            in_heading = token.type == "heading_open"
        elif token.type == "html_block":
            found += _html(token.content)
        elif token.type == "inline":
            inside = list(_inline(token.children or []))
            if in_heading:
                found.append(Span("heading", "".join(part.content for part in token.children or []).strip()))
                inside = [span for span in inside if span.kind != "text"]
            found += inside
    return found


def titles(source: str) -> list[str]:
    """Return the headings of the first level, as they are written."""
    tokens = _parser().parse(source)
    opens = [index for index, token in enumerate(tokens) if token.type == "heading_open" and token.tag == "h1"]
    return [tokens[index + 1].content for index in opens]


def _inline(tokens: Iterable[Token]) -> Iterator[Span]:
    words, link = "", None
    label = ""
    for token in tokens:
        if token.type == "link_open":
            yield from _text(words)
            words, label, link = "", "", str(token.attrGet("href") or "")
        elif token.type == "link_close":
            yield Span("link", label, link or "")
            link = None
        elif token.type == "image":
            yield Span("image", token.content, str(token.attrGet("src") or ""))
        elif token.type == "html_inline":
            yield from _html(token.content)
        elif link is not None:
            label += _words(token)
        else:
            words += _words(token)
    yield from _text(words)


def _words(token: Token) -> str:
    if token.type == "text":
        return token.content
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return "" if token.type.endswith(("_open", "_close")) else _GAP


def _text(words: str) -> Iterator[Span]:
    if words.replace(_GAP, "").strip():
        yield Span("text", words)


def _html(source: str) -> list[Span]:
    reader = _HtmlReader()
    reader.feed(source)
    reader.close()
    return reader.found


class _HtmlReader(HTMLParser):
    """Collects the links, pictures and words of raw HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Span] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.found.append(Span("link", "", values["href"] or ""))
        if tag == "img":
            self.found.append(Span("image", values.get("alt") or "", values.get("src") or ""))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.found.append(Span("text", data))


def pictures(html: str) -> list[Span]:
    """Return the pictures in a piece of HTML; ``text`` is the alt text, empty where there is none."""
    return [span for span in _html(html) if span.kind == "image"]
