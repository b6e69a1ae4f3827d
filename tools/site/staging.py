"""The pages that Sphinx makes the site of: the course with its links within reach, and what a site
has besides.

The built notebooks stay as they are but for tags, and for the colours of players, which are the
page's. The text below a question is hidden until its reader has written a number
(static/questions.js). The code of a cell that asks, checks or shows is folded, and so is the
course's version of what a reader writes, because a reader of the page needs only the code that
measures or computes.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import nbformat

from slides import assets, build, lecture, players
from slides.cells import read_deck
from tools.authoring import machine_map
from tools.authoring.cells import AuthoringError
from tools.authoring.course import Course
from tools.authoring.lesson import APPENDIX, Lesson
from tools.authoring.rules import form, glossary
from tools.site import cards, licences, machines, reference

STATIC = Path(__file__).resolve().parent / "static"
# How the slides show a drawing in the light and in the dark, and how they read and write a reader's
# number.
SHARED = tuple(build.SLIDES / "template" / name for name in ("drawings.css", "numbers.js"))
OWN = "_own"
DECKS = "slides"

_COMMENT = re.compile(r"<!--.*?-->\n?")
_ENTRIES = """
- **Learn.** Begin with [lesson 00](00_start_here.ipynb), or look up your problem in
  [My training is slow](my_training_is_slow.md).
- **Teach.** Use the [slides](decks.md), and plan two hours, a day or a term with the [syllabus](syllabus.md).
- **Use.** The [reference](api/index.md) describes the library, which times, counts and models your own programs.
""".strip()  # noqa: E501
_BET = "00_start_here.html"  # asks what the README asks, as its first question, named bet
_SECTIONS = ("Two commands", "Where to begin")  # of the README
_COMMANDS = "two-commands"  # the anchor of the first page's section that says how to get the course
_FOLDED = {"predict", "look"}  # stages of an experiment whose code asks or shows
# how the cells end that check a lesson's and an exercise's function
_CHECKED = (".settle()", ".report()")
_LINK = re.compile(r"(!?)\[((?:[^\[\]\\]|\\.)*)\]\(([^()\s]+)\)")


def write(course: Course, folder: Path, *, numbers: Sequence[str] = ()) -> None:
    """Write the pages of the lessons in ``numbers`` (all when empty) into the new folder
    ``folder``.

    Raises AuthoringError where a notebook cannot be read.
    """
    lessons = course.lessons(numbers)
    api = reference.of(course, lessons)
    names = [path.relative_to(course.folder) for path in _sources(course, lessons)]
    texts = {name.as_posix(): course.folder / name for name in names}
    pages = {
        "decks.md": _decks(course, lessons, whole=not numbers),
        "recorded_machines.md": machines.page(course),
        "licences.md": licences.page(course.root),
        **api.pages,
    }
    page_names = {*texts, *pages, "index.md"}
    terms = {
        f"glossary.md#{entry.anchor}": entry.meaning for entry in glossary.read(course.glossary)
    }
    pictures = {}
    for name, path in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        links = _Links(name, page_names, terms, api.paths)
        if path.suffix == ".md":
            text = links.mend(path.read_text(encoding="utf-8"))
            (folder / name).write_text(
                text if "\n## " in text else text.replace("\n### ", "\n## "), encoding="utf-8"
            )
        else:
            built = _page(_read(path), links)
            _retitle(built, name)
            _lead_on(built, name, page_names)
            if "/" not in name and (picture := cards.picture(built)):
                pictures[path.stem] = picture
            nbformat.write(built, folder / name)
    for lesson, picture in pictures.items():
        picture_path = folder / cards.path(lesson, picture)
        picture_path.parent.mkdir(exist_ok=True)
        picture_path.write_bytes(picture.content)
    pages["index.md"] = _index(
        course, lessons, names, pictures, _Links("index.md", page_names, terms, api.paths)
    )
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if course.course_map.is_file():
        shutil.copytree(course.course_map.parent, folder / course.course_map.parent.name)
    shutil.copytree(STATIC, folder / OWN)
    for file in SHARED:
        shutil.copy(file, folder / OWN)
    (folder / OWN / "mathjax.js").write_text(assets.asset("mathjax.js"), encoding="utf-8")


@dataclass(frozen=True)
class _Links:
    """What becomes of a page's links: a term says its meaning, a function goes to the reference,
    the rest to words.
    """

    page: str
    known: Collection[str]
    terms: Mapping[str, str]
    paths: Mapping[str, str]

    def mend(self, text: str) -> str:
        return _LINK.sub(self._link, text)

    def _link(self, link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if picture or target.startswith(("#", "http:", "https:", "attachment:")):
            return link[0]
        file, _, fragment = target.partition("#")
        full_path = posixpath.normpath(posixpath.join(posixpath.dirname(self.page), file))
        if meaning := self.terms.get(f"{full_path}#{fragment}"):
            return f'[{words}]({target} "{meaning.replace(chr(34), chr(39))}")'
        if full_path in self.known:
            return link[0]
        path = self.paths.get(words.strip("`")) if full_path.startswith("../helpers/") else None
        return f"{{py:obj}}`{words.strip('`')} <{path}>`" if path else words


def _index(
    course: Course,
    lessons: Sequence[Lesson],
    names: Sequence[Path],
    pictures: Mapping[str, cards.Picture],
    links: _Links,
) -> str:
    """Return the first page: what the README says first, three entries, how to run it and begin,
    the lessons, the map.

    The README's bet takes a number here (static/questions.js). The site's contents are on the page
    too, hidden.
    """
    readme = course.readme.read_text(encoding="utf-8")
    introduction = _COMMENT.sub("", readme.partition("\n## ")[0]).replace("](course/", "](")
    # that section is the README's alone
    introduction = introduction.replace("](#for-engineers)", f"]({reference.FOLDER}/index.md)")
    story, turn, bet = introduction.partition("**Your turn.**")
    bet = bet.replace(
        "<details>", f'<details class="bet" data-unit="times as long" data-page="{_BET}">'
    ).strip()
    acts = {lesson.name: lesson.act or "Lessons" for lesson in lessons}
    groups: dict[str, list[Path]] = {act: [] for act in acts.values()}
    for name in names:
        if name.stem in acts and len(name.parts) == 1:
            groups[acts[name.stem]].append(name)
    groups |= {
        "Appendices": [name for name in names if name.parts[0] == APPENDIX],
        "Exercises": [name for name in names if name.parts[0] == "exercises"],
        "To look up": [name for name in names if name.suffix == ".md"],
    }
    titles = {lesson.number: f"{lesson.number} {lesson.title}" for lesson in lessons}
    lists = {title: [_toc_entry(name, titles) for name in group] for title, group in groups.items()}
    lists["To look up"] += ["decks", "recorded_machines", "api/index", "licences"]
    contents = [
        f":::{{toctree}}\n:hidden:\n:caption: {title}\n:titlesonly:\n\n"
        + "\n".join(pages)
        + "\n:::"
        for title, pages in lists.items()
    ]
    blocks = [links.mend(story).rstrip(), _box("try-it", links.mend(f"{turn} {bet}"))]
    blocks += [
        _box("entries", links.mend(_ENTRIES)),
        *(links.mend(_section(readme, title)) for title in _SECTIONS),
    ]
    blocks.append("## Lessons")
    blocks.append(cards.markdown(lessons, course.acts, pictures, address=course.address))
    if course.course_map.is_file():
        blocks.append(f"![{machine_map.COURSE}](map/{course.course_map.name})")
    return "\n\n".join([*blocks, *contents]) + "\n"


def _section(readme: str, title: str) -> str:
    """Return a section of the README as it stands in the folder of the course."""
    text = readme.partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()
    return f"## {title}\n\n{text.replace('](course/', '](')}"


def _box(name: str, text: str) -> str:
    return f'<div class="{name}">\n\n{text}\n\n</div>'


def _toc_entry(name: Path, titles: Mapping[str, str]) -> str:
    path = name.with_suffix("").as_posix()
    title = titles.get(name.name[:2]) if name.suffix == ".ipynb" and len(name.parts) == 1 else None
    return f"{title} <{path}>" if title else path


def _decks(course: Course, lessons: Sequence[Lesson], *, whole: bool) -> str:
    """Return the page of the slides: a deck's title, its slides with the title slide, and the
    minutes to talk.
    """
    rows = (
        [f"| {_deck('lecture', 'The 45-minute lecture')} | | {lecture.MINUTES} |"] if whole else []
    )
    for lesson in lessons:
        deck = read_deck(
            build.read_notebook(course.notebook(lesson)), name=lesson.name, folder=course.folder
        )
        link = _deck(lesson.name, f"{lesson.number} {lesson.title}")
        rows.append(f"| {link} | {len(deck.slides) + 1} | {deck.minutes:g} |")
    return (
        "\n".join(
            [
                "# Slides",
                "",
                "Each deck is one file and needs no network; press S for the speaker's notes.",
                "",
                "| Deck | Slides | Minutes to talk |",
                "|--|--:|--:|",
                *rows,
            ]
        )
        + "\n"
    )


def _deck(name: str, title: str) -> str:
    return f'<a href="{DECKS}/{name}.html">{html.escape(title)}</a>'


def _sources(course: Course, lessons: Sequence[Lesson]) -> list[Path]:
    parts = ("{}_*.ipynb", f"{APPENDIX}/{{}}_*.ipynb", "exercises/{}_*.ipynb")
    notebooks = [
        path
        for part in parts
        for lesson in lessons
        for path in course.folder.glob(part.format(lesson.number))
    ]
    return [*notebooks, *sorted(course.folder.glob("*.md"))]


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
        raise AuthoringError(
            f"{path.name} is not a notebook ({error}); run make lessons"
        ) from error


def _page(built: nbformat.NotebookNode, links: _Links) -> nbformat.NotebookNode:
    for question in form.questions(built):
        last, _ = form.find_reveal(built, question)
        if last is not None:
            _tag(built.cells[question.cell_index], f"asks-{question.name}")
            for cell in _answer(built.cells[question.cell_index + 1 : last + 1]):
                _fold(
                    cell,
                    "output",
                    "The answer, once you have predicted",
                    f"answers-{question.name}",
                )
    for cell in built.cells:
        if "yours" in cell.metadata.get("tags", []):
            _fold(cell, "input", "One way to write it")
        elif cell.source.rstrip().endswith(_CHECKED):
            _fold(cell, "input", "What is checked")
        elif "checks" in cell.metadata or _FOLDED & {*cell.metadata.get("tags", [])}:
            _tag(cell, "hide-input")
        if cell.cell_type == "markdown":
            cell.source = links.mend(cell.source)
        else:
            _say_pictures(cell)
            cell.outputs = [
                nbformat.from_dict(players.for_slide(output)) for output in cell.outputs
            ]
    return built


def _retitle(built: nbformat.NotebookNode, name: str) -> None:
    """Say in the page's title which lesson it is, or of which lesson the appendix or the exercises
    are.

    The search finds pages by their titles, and a lesson's appendix and exercises may have the
    lesson's own.
    """
    folder, _, file = name.rpartition("/")
    kind = {"": "Lesson", APPENDIX: "Appendix", "exercises": "Exercises"}[folder]
    title, line_end, text = built.cells[0].source.partition("\n")
    words = title.removeprefix("# ").removesuffix(": exercises")
    built.cells[0].source = f"# {kind} {file[:2]}: {words}{line_end}{text}"


def _say_pictures(cell: nbformat.NotebookNode) -> None:
    """Give the cell's pictures the alt text that stands beside them in the notebook."""
    shown_data = [output.data for output in cell.outputs if "image/png" in output.get("data", {})]
    if shown_data:
        alt = " ".join(data["text/plain"] for data in shown_data)
        cell.metadata.setdefault("mystnb", {})["image"] = {"alt": alt}


def _lead_on(built: nbformat.NotebookNode, name: str, page_names: Collection[str]) -> None:
    """Say below the page's title how one writes and runs it, and below a lesson's what stands
    beside it.

    The link is HTML, because its target is a section of the first page, which comes from the
    README.
    """
    folder, _, file = name.rpartition("/")
    kind, pronoun = {
        "": ("lesson", "it"),
        APPENDIX: ("appendix", "it"),
        "exercises": ("exercises", "them"),
    }[folder]
    demonstrative = "these" if pronoun == "them" else "this"
    begin = f"{'../' if folder else ''}index.html#{_COMMANDS}"
    line = (
        f"You are reading {demonstrative} {kind}. To write and run {pronoun}, "
        f'<a href="{begin}">get the course</a>.'
    )
    if not folder:
        lesson = file.removesuffix(".ipynb")
        targets = {
            "exercises": f"exercises/{lesson}_exercises.ipynb",
            "appendix": f"{APPENDIX}/{file}",
        }
        links = [f'<a href="{DECKS}/{lesson}.html">slides</a>']
        links += [
            f"[{words}]({target})" for words, target in targets.items() if target in page_names
        ]
        line += f" Beside it: {', '.join(links)}."
    title, _, text = built.cells[0].source.partition("\n\n")
    built.cells[0].source = "\n\n".join([title, _box("reading", line), text])


def _answer(cells: Sequence[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the cells with outputs that end in the reveal and that no text parts from it."""
    code_cells = list(takewhile(lambda cell: cell.cell_type == "code", reversed(cells)))
    return [
        cell
        for cell in code_cells
        if cell.outputs and "predict" not in cell.metadata.get("tags", [])
    ]


def _fold(cell: nbformat.NotebookNode, part: str, prompt: str, *tags: str) -> None:
    _tag(cell, f"hide-{part}", *tags)
    cell.metadata.setdefault("mystnb", {}).update(code_prompt_show=prompt, code_prompt_hide=prompt)


def _tag(cell: nbformat.NotebookNode, *tags: str) -> None:
    cell_tags = cell.metadata.setdefault("tags", [])
    cell_tags.extend(tag for tag in tags if tag not in cell_tags)
