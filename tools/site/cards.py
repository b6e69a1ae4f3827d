"""The lessons as cards on the first page: each with a picture, its title, its question and its
minutes.

A lesson's picture is the first one on its slides that answers no question, and of a player the
frame in its middle.
"""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode
from PIL import Image

from slides import players
from tools.authoring import pages
from tools.authoring.lesson import Lesson
from tools.authoring.order import Act

FOLDER = "cards"
WIDTH_PX = 560  # twice the width of a card, for screens with two pixels per point
COLOURS = 64


@dataclass(frozen=True)
class Picture:
    """A picture for a card: its file's content and suffix, and what it shows in words."""

    content: bytes
    suffix: str
    alt: str


def picture(lesson: NotebookNode) -> Picture | None:
    """Return the picture of a lesson whose answers are tagged, None for a lesson without one on its
    slides.
    """
    for cell in lesson.cells:
        tags = cell.metadata.get("tags", [])
        if any(tag.startswith("slide") for tag in tags) and not any(
            tag.startswith("answers-") for tag in tags
        ):
            for output in cell.get("outputs", []):
                if "image/png" in output.get("data", {}):
                    return _of_player(output) or _of_figure(output)
    return None


def _of_player(output: NotebookNode) -> Picture | None:
    player = players.read_player(output)
    if player is None:
        return None
    frame = player["frames"][len(player["frames"]) // 2]
    return Picture(frame.encode(), "svg", player["alt"])


def _of_figure(output: NotebookNode) -> Picture:
    figure = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
    figure.thumbnail((WIDTH_PX, figure.height))
    with io.BytesIO() as file:
        figure.quantize(COLOURS).save(file, format="png", optimize=True)
        return Picture(file.getvalue(), "png", output.data["text/plain"])


def markdown(
    lessons: Sequence[Lesson],
    acts: Sequence[Act],
    pictures: Mapping[str, Picture],
    *,
    address: str = "",
) -> str:
    """Return the cards of the lessons, those of an act below its title and question.

    ``pictures`` are by the lessons' names, and their files are in :data:`FOLDER` (see
    :func:`path`). With the repository's address a card also leads to Colab and Binder.
    """
    questions = {act.title: act.question for act in acts}
    files = {lesson.number: lesson.notebook_name for lesson in lessons}
    blocks = []
    for act, members in itertools.groupby(lessons, key=lambda lesson: lesson.act):
        blocks += [f"### {act}", questions[act]] if act else []
        cards = (_card(lesson, files, pictures.get(lesson.name), address) for lesson in members)
        blocks += ['<div class="lesson-cards">', *itertools.chain.from_iterable(cards), "</div>"]
    return "\n\n".join(blocks)


def path(lesson: str, picture: Picture) -> str:
    """Return the path of a card's picture from the first page."""
    return f"{FOLDER}/{lesson}.{picture.suffix}"


def _card(
    lesson: Lesson, files: Mapping[str, str], picture: Picture | None, address: str
) -> Iterator[str]:
    yield '<div class="lesson-card">'
    if picture:
        words = re.sub(r"([\\\[\]])", r"\\\1", " ".join(picture.alt.split()))
        yield f"![{words}]({path(lesson.name, picture)})"
    yield f"**[{lesson.number} {lesson.title}]({lesson.notebook_name})**"
    if lesson.way:
        yield lesson.way.question
    badges = f" {pages.badges(lesson, address, pictures=False)}." if address else ""
    yield f"{lesson.minutes} minutes, needs {pages.needs(lesson, files)}.{badges}"
    yield "</div>"
