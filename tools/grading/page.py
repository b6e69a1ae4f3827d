"""The page of a submission for its student: the answers, their points and why; one file, no script,
no network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader import preprocessors
from nbgrader.converters import GenerateFeedback
from traitlets import Unicode
from traitlets.config import Config

from tools.grading import outputs

TEMPLATES = Path(__file__).with_name("templates")
_HEADING = re.compile(r"^##? +(.+?) *$", re.MULTILINE)
_OUTSIDE = ("https://", "http://", "mailto:")


class _Grades(preprocessors.GetGrades):
    """nbgrader's grades, each with the heading that it stands under, and whether a person has still
    to give it.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        nb, resources = super().preprocess(nb, resources)
        heading, awaited_points = "", 0.0
        for cell in nb.cells:
            mark = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "markdown" and mark.get("locked"):
                heading = [heading, *_HEADING.findall(cell.source)][-1]
            if mark.get("grade"):
                mark.title = heading
                awaited_points += mark.points if mark.waits else 0
        awaited_titles = [
            cell.metadata.nbgrader.title
            for cell in nb.cells
            if cell.metadata.get("nbgrader", {}).get("waits")
        ]
        resources["nbgrader"].update(waiting_points=awaited_points, waiting=awaited_titles)
        first_locked = next(
            cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("locked")
        )
        resources["title"] = next(
            iter(_HEADING.findall(first_locked.source)), resources["nbgrader"]["notebook"]
        )
        first_locked.source = _HEADING.sub("", first_locked.source, count=1)  # it heads the page
        return nb, resources

    def _get_comment(self, cell: Any, _resources: Any) -> None:
        """Take a person's comment; nbgrader's own, "No response.", says what the points say."""
        comment = self.gradebook.find_comment(
            cell.metadata.nbgrader.grade_id, self.notebook_id, self.assignment_id, self.student_id
        )
        cell.metadata.nbgrader.comment = comment.manual_comment

    def _get_score(self, cell: Any, resources: Any) -> None:
        super()._get_score(cell, resources)
        mark = cell.metadata.nbgrader
        grade = self.gradebook.find_grade(
            mark.grade_id, self.notebook_id, self.assignment_id, self.student_id
        )
        mark.waits = bool(grade.needs_manual_grade and grade.manual_score is None)


class _OfTheCourse:
    """A preprocessor of nbgrader, for the cells of the course alone: its marks in a student's cell
    are text.
    """

    def preprocess_cell(self, cell: Any, resources: Any, cell_index: int) -> tuple[Any, Any]:
        if not cell.metadata.get("nbgrader", {}).get("locked"):
            return cell, resources
        return super().preprocess_cell(cell, resources, cell_index)  # type: ignore[misc]  # of the other parent


class _NoHiddenTests(_OfTheCourse, preprocessors.ClearHiddenTests):
    pass


class _NoMarkScheme(_OfTheCourse, preprocessors.ClearMarkScheme):
    pass


class _Renderer(IPythonRenderer):
    """Markdown as HTML that needs nothing else: formulas are MathML, and a link into the course is
    its text.
    """

    def inline_math(self, body: str) -> str:
        return _mathml(body, as_block=False) or super().inline_math(body)

    def block_math(self, body: str) -> str:
        return _mathml(body, as_block=True) or super().block_math(body)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return super().link(text, url, title) if url.startswith(_OUTSIDE) else text


def _mathml(formula: str, *, as_block: bool) -> str:
    """Return a formula as MathML, "" where docutils cannot: in a lecturer's comment it then stands
    as it was typed.
    """
    try:
        return tex2mathml(formula, as_block=as_block)
    except MathError:
        return ""


class PageExporter(HTMLExporter):
    """Writes the page; ``student_name`` is "" where nobody knows it."""

    student_name = Unicode("").tag(config=True)

    def default_filters(self) -> Any:
        yield from super().default_filters()
        yield ("table", outputs.table)

    def from_notebook_node(self, nb: Any, resources: Any = None, **more: Any) -> Any:
        # Of its two parents each returns another type.
        return super().from_notebook_node(
            nb, {**(resources or {}), "student_name": self.student_name}, **more
        )

    @pass_context
    def markdown2html(self, _context: Any, source: str) -> str:
        return MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True)).render(
            source
        )


class Page(GenerateFeedback):
    """nbgrader's feedback, without the hidden tests, on a page of our own."""

    preprocessors: ClassVar = [_NoHiddenTests, _NoMarkScheme, _Grades, CSSHTMLHeaderPreprocessor]

    def _exporter_class_default(self) -> type[HTMLExporter]:
        return PageExporter


def sources() -> list[bytes]:
    """Return the files of the course by which a page is written."""
    return [
        Path(__file__).read_bytes(),
        Path(outputs.__file__).read_bytes(),
        *(path.read_bytes() for path in sorted(TEMPLATES.rglob("*")) if path.is_file()),
    ]


def configure(config: Config) -> None:
    """Set in ``config`` what :class:`Page` needs."""
    config.HTMLExporter.template_name = "page"
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES)]
    config.CSSHTMLHeaderPreprocessor.update({"enabled": True, "style": "default"})
