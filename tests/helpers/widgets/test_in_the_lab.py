"""Lesson 00 of a reader's own copy in a real JupyterLab, started by `make lab` itself, read in a
real browser.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools.authoring import yours
from tools.authoring.environment import EARLY_END

ROOT = Path(__file__).parents[3]
START_S, RUN_S, ACT_S = 90, 180, 60
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}'
}
QUIET_S = 3  # in which the lab shows what it has to say when a notebook and its kernel stand
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/lab/tree/00_start_here\.ipynb\?token=\w+")

pytestmark = pytest.mark.slow


def copy_of_the_course(folder: Path) -> Path:
    """Copy what git tracks, so that a lesson that is saved by the lab does not change the
    repository.

    The copy shares the environment and must not install itself into it: its files are older than
    any stamp of make's.
    """
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
            os.utime(folder / name, (0, 0))
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def private_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a reader who has a lab of their own: no browser opens, no setting
    is shared.
    """
    config = folder / "config"
    config.mkdir()
    (config / "jupyter_lab_config.py").write_text(
        "c.ServerApp.open_browser = False\nc.ServerApp.port = 0\nc.LabApp.expose_app_in_browser = "
        "True\n"
    )
    for name, text in SETTINGS.items():
        path = folder / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return os.environ | {
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "HELPERS_HEADLESS": "0",
        "HELPERS_CACHE": str(folder / "cache"),
        "HELPERS_PREDICTIONS": str(folder / "predictions.json"),
        **EARLY_END,
    }


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Start `make lab` in a copy of the course; yield its address and the reader's folder; end it
    with its kernels.
    """
    stamps = [ROOT / ".venv" / f"{name}.stamp" for name in ("uv", "student")]
    if not all(stamp.exists() for stamp in stamps):
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop(
            "this environment was not set up by `make setup`, which `make lab` needs; run `make "
            "test`"
        )
    folder = tmp_path_factory.mktemp("lab")
    course = copy_of_the_course(tmp_path_factory.mktemp("course"))
    server = subprocess.Popen(
        ["make", "lab"],
        cwd=course,
        env=private_environment(folder),
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines: list[str] = []
    reader = threading.Thread(
        target=lambda: lines.extend(iter(server.stdout.readline, "")), daemon=True
    )
    reader.start()
    try:
        yield address_of(server, lines), folder
    finally:
        end(server)


def end(server: subprocess.Popen) -> None:
    """End the lab and its kernels, which are in its process group; it may have ended by itself."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if server.poll() is None:
            os.killpg(server.pid, kind)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                continue


def address_of(server: subprocess.Popen, lines: list[str]) -> str:
    """Wait for the address that the lab prints."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        found = ADDRESS.search("".join(lines))
        if found:
            return found[0]
        time.sleep(0.2)
    pytest.fail("the lab printed no address:\n" + "".join(lines)[-3000:])


@pytest.fixture(scope="module")
def page(lab, chromium):
    """Lesson 00, opened and run from top to bottom; what the browser complained of is kept in
    ``page.complaints``.
    """
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda m: page.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(lab[0], timeout=1000 * ACT_S)
    page.wait_for_function(
        "() => "
        "window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session?.kernel?.status "
        "=== 'idle'",
        timeout=1000 * START_S,
    )
    page.wait_for_timeout(1000 * QUIET_S)
    page.at_first = page.evaluate(
        """() => ({
            changed: window.jupyterapp.shell.currentWidget.context.model.dirty,
            said: [...document.querySelectorAll('.jp-Dialog, .Toastify__toast')].map(e => e.textContent),
            waiting: document.querySelector('.jp-Notification-Status')?.textContent.trim(),
            shown: [...document.querySelectorAll('.jp-DirListing-itemText')].map(e => e.textContent).sort(),
            outputs: document.querySelectorAll('.jp-OutputArea-child').length,
        })"""  # noqa: E501
    )
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => {
            const cells = window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code');
            return cells.every(c => c.model.executionState !== 'running' && c.model.executionCount !== null)
        }""",  # noqa: E501
        timeout=1000 * RUN_S,
    )
    yield page
    context.close()


def test_the_address_is_local_and_has_a_token(lab):
    assert ADDRESS.fullmatch(lab[0])


def test_lesson_00_is_what_opens(page):
    path = page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    assert Path(path).name == "00_start_here.ipynb"


def test_the_lab_opens_quietly_with_nothing_run_and_nothing_changed(page):
    opened = page.at_first
    assert (opened["changed"], opened["said"], opened["outputs"]) == (False, [], 0)
    assert opened["waiting"] in ("", "0")


def test_the_lab_shows_the_readers_copy_and_no_tools_sources_or_solutions(page):
    lessons = {path.name for path in (ROOT / "course").glob("*.ipynb")}
    pages = {path.name for path in (ROOT / "course").glob("*.md")}
    folders = {"checks", "exercises", "map", "recorded", "scripts"}
    folders |= {"appendix"} if any((ROOT / "course" / "appendix").glob("*.ipynb")) else set()
    assert set(page.at_first["shown"]) == lessons | pages | folders


def test_every_cell_ran_without_an_error(page):
    errors = page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
            .filter(c => c.model.type === 'code')
            .flatMap(c => c.model.outputs.toJSON()).filter(o => o.output_type === 'error').map(o => o.evalue)"""  # noqa: E501
    )
    assert errors == []


def test_figures_are_drawn(page):
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea img')].map(i => i.naturalWidth)"
    )
    source = (ROOT / "course" / "source" / "00_start_here.py").read_text(encoding="utf-8")
    # a figure to turn keeps its still
    assert len(widths) == source.count("plotting.show(") + source.count(".explore_")
    assert min(widths) > 100


def test_a_typed_prediction_is_locked_and_the_answer_appears(page, lab):
    waiting = page.get_by_text("Lock in your prediction above to see it.")
    before = waiting.count()
    box = page.locator(".widget-text input").first
    box.fill("7")
    page.get_by_role("button", name="Lock it in").first.click()
    page.get_by_text(re.compile(r"Your prediction is .* (high|low|measured)")).first.wait_for(
        timeout=1000 * ACT_S
    )
    assert waiting.count() == before - 1
    assert box.is_disabled()
    [kept] = [
        entry
        for entry in json.loads((lab[1] / "predictions.json").read_text())
        if entry["value"] is not None
    ]
    assert kept["value"] == 7


OPEN = """async ([older, content]) => {
    const app = window.jupyterapp;
    const save = (path, content) => app.serviceManager.contents.save(path, {type: 'notebook', format: 'json', content});
    await save('an_older_copy.ipynb', older);
    await save('settling.ipynb', content);
    const panel = await app.commands.execute('docmanager:open', {path: 'settling.ipynb', kernel: {name: 'python3'}});
    await panel.context.ready;
    await panel.sessionContext.ready;
    await app.commands.execute('notebook:run-all-cells');
}"""  # noqa: E501
WRITTEN = '''def twice(n):
    """Return n < n two times."""
    return 2 * n
'''
CHECKS = """from helpers import exercises
asked = exercises.Checks("Twice", twice)
asked.returns("doubles", (3,), expected=6)
twice = asked.settle()
twice(21)"""
SLIDER = """import helpers
from helpers import plotting
draw = lambda n: plotting.draw_bars({"a": n, "b": 2}, unit="s", title=f"n = {n}")
helpers.interactive_figure(draw, {"n": [1, 2, 3]}, views=[{"n": 1}, {"n": 2}], alt=lambda n: f"n is {n}")"""  # noqa: E501

ASK = """import helpers
legs = helpers.predict("How many legs does a spider have?", "legs")
legs"""
REVEAL = """print("before the answer")
legs.reveal(stated=8)
print("beside the answer: eight")
"and below it: eight\""""
LATER = 'print("a cell below")'


def test_a_stub_is_answered_with_the_courses_version_which_unfolds(page):
    """The kernel takes it from the notebook that runs, not from another one beside it."""
    versions = (WRITTEN.replace("2 * n", "3 * n"), WRITTEN)
    cells = (
        [
            new_code_cell(one, metadata={"yours": "twice"}),
            *map(new_code_cell, (CHECKS, SLIDER, ASK, REVEAL, LATER)),
        ]
        for one in versions
    )
    page.evaluate(OPEN, [yours.as_copy(new_notebook(cells=one)) for one in cells])
    panel = page.locator(".jp-NotebookPanel:visible")
    summary = panel.get_by_text("Show me", exact=True)
    panel.locator(".jp-OutputArea-output").get_by_text("42", exact=True).wait_for(
        timeout=1000 * ACT_S
    )
    shown = panel.locator("details pre")
    assert not shown.is_visible()
    summary.click()
    assert shown.is_visible()
    assert shown.inner_text() == WRITTEN
    said = panel.locator(".jp-OutputArea-output").first.inner_text()
    assert said == "Twice: not written yet\nBelow, the course's twice is used.\n"


def test_a_slider_moved_by_keyboard_draws_another_figure(page):
    """In the notebook that the test above has opened."""
    image = page.locator(".jp-OutputArea-output .jp-OutputArea img").first
    image.wait_for(timeout=1000 * ACT_S)
    before = image.get_attribute("src")
    page.locator(".widget-hslider [role=slider], .widget-hslider .noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => document.querySelector('.jp-OutputArea-output .jp-OutputArea img')?.src !== "
        "before",
        arg=before,
        timeout=1000 * ACT_S,
    )


def test_what_a_cell_shows_beside_an_answer_waits_with_it(page):
    """In the same notebook: nothing beside the answer is there to read until the reader has locked
    a number.
    """
    panel = page.locator(".jp-NotebookPanel:visible")
    panel.locator(".jp-OutputArea-output").get_by_text("a cell below", exact=True).wait_for(
        timeout=1000 * ACT_S
    )
    shown = """() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell-outputArea')]
        .map(area => area.innerText).join(' ')"""  # noqa: E501
    waiting = page.evaluate(shown)
    assert "before the answer" in waiting
    assert "eight" not in waiting
    panel.locator(".widget-text input").last.fill("6")
    panel.get_by_role("button", name="Lock it in").last.click()
    panel.get_by_text(re.compile("Your prediction is .* low")).wait_for(timeout=1000 * ACT_S)
    answered = page.evaluate(shown)
    assert "beside the answer: eight" in answered
    assert "and below it: eight" in answered


def test_the_browser_has_nothing_to_complain_of(page):
    assert page.complaints == []
