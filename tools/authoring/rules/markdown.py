"""The parts of a Markdown text that a reader sees, in order: words, links, headings,
pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any

from nbconvert.filters.markdown_mistune import MarkdownWithMath

_GAP = " \ufffc "  # stands for code or a formula, so that the words on its two sides do not join
_WORDS = {
    "softbreak": " ",
    "linebreak": " ",
    "codespan": _GAP,
    "inline_math": _GAP,
    "block_math": _GAP,
}
_MARKS = ("emphasis", "strong", "strikethrough")


@dataclass(frozen=True)
class MarkdownSpan:
    """A stretch of a text.

    ``kind`` is text, heading, link or image; ``target`` is where a link or image points.
    """

    kind: str
    text: str
    target: str = ""


@lru_cache(maxsize=1)
def _parser() -> MarkdownWithMath:
    return MarkdownWithMath(renderer=None)  # type: ignore[arg-type]  # mistune's word for tokens, which it allows


def spans(source: str) -> list[MarkdownSpan]:
    """Return the spans of a Markdown text in reading order; code and formulas are left out, but for
    headings.
    """
    return list(_spans(_tokens(source)))


def titles(source: str) -> list[str]:
    """Return the headings of the first level, as a reader sees them."""
    tokens = _tokens(source)
    return [
        _content(token)
        for token in tokens
        if token["type"] == "heading" and token["attrs"]["level"] == 1
    ]


def _tokens(source: str) -> list[dict[str, Any]]:
    tokens, _ = _parser().parse(source)
    assert not isinstance(tokens, str)  # as there is no renderer
    return tokens


def _spans(tokens: Iterable[dict[str, Any]]) -> Iterator[MarkdownSpan]:
    """Yield the spans of a row of tokens; words run on until a link, a picture, HTML or a block
    ends them.
    """
    words = ""
    for token in _flat_tokens(tokens):
        kind, children = token["type"], token.get("children", [])
        if kind == "text" or kind in _WORDS:
            words += _WORDS.get(kind) or token["raw"]
            continue
        yield from _text(words)
        words = ""
        if kind == "link":
            label = "".join(
                _WORDS.get(part["type"]) or part.get("raw", "") for part in _flat_tokens(children)
            )
            yield MarkdownSpan("link", label, token["attrs"]["url"])
            yield from (span for span in _spans(children) if span.kind == "image")
        elif kind == "image":
            yield MarkdownSpan("image", _content(token), token["attrs"]["url"])
        elif kind in ("inline_html", "block_html"):
            yield from _html(token["raw"])
        elif kind == "heading":
            yield MarkdownSpan("heading", _content(token))
            yield from (span for span in _spans(children) if span.kind != "text")
        else:
            yield from _spans(children)
    yield from _text(words)


def _flat_tokens(tokens: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the tokens, those of emphasised words among the others."""
    for token in tokens:
        if token["type"] in _MARKS:
            yield from _flat_tokens(token["children"])
        else:
            yield token


def _content(token: dict[str, Any]) -> str:
    return token.get("raw", "") + "".join(map(_content, token.get("children", ())))


def _text(words: str) -> Iterator[MarkdownSpan]:
    if words.replace(_GAP, "").strip():
        yield MarkdownSpan("text", words)


def _html(source: str) -> list[MarkdownSpan]:
    reader = _HtmlReader()
    reader.feed(source)
    reader.close()
    return reader.spans


class _HtmlReader(HTMLParser):
    """Collects the links, pictures and words of raw HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[MarkdownSpan] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.spans.append(MarkdownSpan("link", "", values["href"] or ""))
        if tag == "img":
            self.spans.append(
                MarkdownSpan("image", values.get("alt") or "", values.get("src") or "")
            )

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.spans.append(MarkdownSpan("text", data))


def pictures(html: str) -> list[MarkdownSpan]:
    """Return the pictures in a piece of HTML; ``text`` is the alt text, empty where there is
    none.
    """
    return [span for span in _html(html) if span.kind == "image"]
