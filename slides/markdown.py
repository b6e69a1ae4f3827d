"""A marked markdown cell cut in two: its heading and first block for the slide, the rest for the
speaker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, NavigableString, Tag
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.lexers import PythonLexer
from pygments.token import Comment, String

from helpers.results import Result

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = (
    *_HEADINGS,
    "p",
    "li",
    "td",
    "th",
    "div",
    "br",
    "pre",
    "blockquote",
    "summary",
    "dt",
    "dd",
)
_FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$]+?\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_OUTSIDE_STYLE = re.compile(r"@import|url\(\s*['\"]?(?!data:|#)", re.IGNORECASE)
_LOADING_TAGS = ("script", "iframe", "link", "object", "embed", "base", "meta")
_LOADING_ATTRIBUTES = ("src", "srcset", "poster", "data", "background")

# nbconvert writes this where an image has no alt text of its own.
_NO_DESCRIPTION = "no description has been provided for this image"
_SHOWN_BLOCKS = ("p", "ul", "ol", "table", "img", "figure", "svg")

# A time, a rate or a ratio of them varies from machine to machine, so a slide takes it from an
# output.
_RATE = r"(?:\s*/\s*s(?:ec(?:ond)?)?\b|\s+(?:a|per|each)\s+(?:second|minute|hour)\b)"
_COMPARED = r"(?:fast|slow|long|short|quick)(?:er)?"
_MEASUREMENT = re.compile(
    rf"""(?<![\w.]) (?!(?:1[89]|20)\d0s\b) \d[\d,_.]*(?:[eE][+-]?\d+)?
    (?: (?:\s*|-) (?:[nmuµμ]s|s|secs?|(?:milli|micro|nano)?seconds?|mins?|minutes?|h|hrs?|hours?|days?)\b(?!/)
      | \s* (?:\w+)?{_RATE}
      | \s* [kMGTPE]?(?:FLOPS|bps)\b
      | \s* (?:%|(?:percent|per\s+cent)\b)
      | (?:\s*|-) (?:x|×|times|fold)\s+(?:as\s+)?{_COMPARED}\b
      | \s* (?:x|×|times|-?fold)\s+(?:speed-?up|slow-?down)\b )""",  # noqa: E501
    re.VERBOSE,
)

# What remains of a formula's source when its measurement, if any, is read as text.
_TEX_AS_TEXT = (
    # In a formula a number beside one letter is a product (5 s); a unit stands behind a space of
    # TeX or upright.
    (re.compile(r"(?<=\d)\s*(?=[A-Za-z](?![A-Za-z]|\s*/))"), "·"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"(?<=\d)\s*/\s*(?=[A-Za-z](?![A-Za-z]))"), "÷"),
    (re.compile(r"\\(?:text\w*|math[a-z]+|operatorname|mbox)\*?\s*\{([^{}]*)\}"), r" \1"),
    (re.compile(r"\\[,;:! >]|~|\\q?quad\b|\\(?:thin|med|thick)?space\b"), " "),
    (re.compile(r"\\times\b"), "×"),
    (re.compile(r"\\mu\b\s*"), "µ"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"[{}]"), ""),
)
_UPRIGHT = re.compile(
    r"\\(?:text\w*|math[a-z]+|operatorname|mbox|begin|end|label|tag)\*?\s*\{[^{}]*\}"
)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
_TWO_WORDS = re.compile(r"(?<![A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]{2,}")
# Where MathJax looks for no formula.
_WITHOUT_MATHS = (
    "script",
    "noscript",
    "style",
    "textarea",
    "pre",
    "code",
    "annotation",
    "annotation-xml",
)


@dataclass(frozen=True)
class CutCell(Result):
    """A markdown cell as HTML: the heading's inside, the first paragraph or list, and everything
    after it.
    """

    heading: str
    text: str
    notes: str


def cut_markdown(source: str, *, folder: Path, attachments: dict | None = None) -> CutCell:
    """Return the cell's heading, its first other block, and the rest, each as HTML ('' where there
    is none).

    A part of a lesson asks its question in a paragraph above its list: the list is shown, and the
    question is said. A formula on its own lines counts as a paragraph. Images are inlined, read
    from ``folder`` where they are files. A link to another file of the course becomes its text, for
    a deck stands alone.
    """
    blocks = _blocks(render_markdown(source, folder=folder, attachments=attachments))
    heading = next((block for block in blocks if block.name in _HEADINGS), None)
    others = [block for block in blocks if block is not heading]
    asks = (
        heading is not None
        and [block.name for block in others[:2]] == ["p", "ul"]
        and "?" in others[0].get_text()
    )
    shown_blocks = others[asks : asks + 1]
    return CutCell(
        heading=heading.decode_contents().strip() if heading is not None else "",
        text="".join(map(str, shown_blocks)),
        notes="\n".join(str(block) for block in others if block not in shown_blocks),
    )


def render_markdown(source: str, *, folder: Path, attachments: dict | None = None) -> str:
    """Return markdown as HTML the way nbconvert renders it, formulas untouched, images of
    ``folder`` inlined.
    """
    renderer = IPythonRenderer(
        escape=False,
        embed_images=True,
        exclude_anchor_links=True,
        path=str(folder),
        attachments=attachments or {},
    )
    return MarkdownWithMath(renderer=renderer).render(source)


def _blocks(html: str) -> list[Tag]:
    soup = BeautifulSoup(html, "html.parser")
    for link in soup.find_all("a"):
        if not re.match(r"https?://|mailto:", str(link.get("href", ""))):
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
    """Return how many words a reader sees: a formula is one word, punctuation standing alone is
    none.
    """
    words = _FORMULA.sub(" formula ", plain_text(html)).split()
    return sum(any(character.isalnum() for character in word) for word in words)


def typed_measurement(html: str) -> str | None:
    """Return the first time, rate, percentage or speedup typed in the text or its formulas, or
    None.

    In a formula a number beside a single letter is a product: ``$5 s$`` is none, ``$5\\,s$`` is
    one. A comparison of counts, such as '3 times as many', is exact and none.
    """
    match = _MEASUREMENT.search(
        _FORMULA.sub(lambda formula: _as_text(formula.group()), plain_text(html))
    )
    return match.group().strip() if match else None


def measurement_in_comments(code: str) -> str | None:
    """Return the first measurement typed in a comment or docstring of Python code, or None; magics
    may stand in it.
    """
    comments = [
        value
        for kind, value in PythonLexer().get_tokens(code)
        if kind in Comment or kind in String.Doc
    ]
    matches = (_MEASUREMENT.search(comment) for comment in comments)
    return next((match.group().strip() for match in matches if match), None)


def _as_text(formula: str) -> str:
    for pattern, replacement in _TEX_AS_TEXT:
        formula = pattern.sub(replacement, formula)
    return formula.replace("$", "").removeprefix(r"\(").removesuffix(r"\)")


def formula_of_words(html: str) -> str | None:
    """Return the first formula that MathJax would make of plain text, such as an amount in dollars,
    or None.

    That is one with two words side by side, or one between single dollars with a space at its
    inside edge or a digit behind it, as in 'costs $5, then $6'. Code holds no formulas.
    """
    soup = BeautifulSoup(html, "html.parser")
    # MathJax reads on over a <br> and over what is no text, such as an HTML comment, and stops at
    # other tags.
    for line_break in soup.find_all("br"):
        line_break.replace_with("\n")
    for non_text in soup.find_all(string=lambda text: type(text) is not NavigableString):
        non_text.extract()
    soup.smooth()
    for text in soup.find_all(string=True):
        if text.find_parent(_WITHOUT_MATHS):
            continue
        for match in _FORMULA.finditer(text):
            formula = match.group()
            inside = formula.strip("$") if formula.startswith("$") else formula[2:-2]
            is_loose = not formula.startswith(("$$", "\\")) and (
                inside != inside.strip() or text[match.end() : match.end() + 1].isdigit()
            )
            if is_loose or _TWO_WORDS.search(_COMMAND.sub("\\\\", _UPRIGHT.sub("\\\\", inside))):
                return " ".join(formula.split())
    return None


def is_described(alt: str) -> bool:
    """Return whether ``alt`` says something: not nothing, nor what a program writes when nobody has
    said anything.
    """
    text = alt.strip()
    return (
        bool(text)
        and not text.startswith(("<", "Figure("))
        and text.rstrip(".").lower() != _NO_DESCRIPTION
    )


def undescribed_figure(html: str) -> str | None:
    """Return the name of the first tag, <img> or <svg>, that has no alt text, or None.

    An <svg> is described by ``aria-label`` or by its <title>; one that is ``aria-hidden`` is no
    figure.
    """
    for tag in BeautifulSoup(html, "html.parser").find_all(["img", "svg"]):
        alt = str(tag.get("alt" if tag.name == "img" else "aria-label", ""))
        title = tag.title.get_text() if tag.name == "svg" and tag.title else ""
        if not is_described(alt) and not title.strip() and tag.get("aria-hidden") != "true":
            return f"<{tag.name}>"
    return None


def refused_block(text: str) -> str | None:
    """Return what ``text``, the block of a cut cell, is when it is no paragraph, list, table or
    figure, else None.
    """
    block = BeautifulSoup(text, "html.parser").find(True)
    if block is None or block.name in _SHOWN_BLOCKS:
        return None
    if block.name == "pre" or "highlight" in block.get_attribute_list("class"):
        return "a block of code"
    return {"blockquote": "a quote", "hr": "a line across"}.get(block.name, f"<{block.name}>")


def outside_reference(html: str) -> str | None:
    """Return the first thing in ``html`` that would run code or make a browser load something, or
    None.
    """
    soup = BeautifulSoup(html, "html.parser")
    for tag in soup.find_all(True):
        if tag.name in _LOADING_TAGS:
            return f"<{tag.name}>"
        if any(name.startswith("on") for name in tag.attrs):
            return f"<{tag.name}> with code in it"
        loading = [tag[name] for name in _LOADING_ATTRIBUTES if name in tag.attrs]
        loading += [
            tag[name] for name in ("href", "xlink:href") if name in tag.attrs and tag.name != "a"
        ]
        outside = [value for value in loading if not str(value).startswith(("data:", "#"))]
        if outside:
            return f"<{tag.name}> from {str(outside[0])[:80]}"
        styles = [str(tag.get("style", "")), tag.get_text() if tag.name == "style" else ""]
        if any(_OUTSIDE_STYLE.search(style) for style in styles):
            return f"a style of <{tag.name}> that loads a file"
    return None
