"""A GPU's file as a stranger may send it is refused in a sentence, or its page holds what its card
says, as text.
"""

from __future__ import annotations

import copy
import functools
import json
import operator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from hypothesis import given, strategies as st
from myst_parser.docutils_ import Parser

from helpers import hardware, recorded, results
from helpers.studies import sending
from tests.properties import repeatable
from tools.authoring.course import HERE, Course
from tools.authoring.lesson import AuthoringError
from tools.site import conf, machines

RECORDED = HERE.folder / "recorded"
HOSTILE = {
    "a file of the machine": "AVX |\n\n```{include} ../../../../../etc/hosts\n```\n\n| |",
    "raw HTML": "x\n\n```{eval-rst}\n.. raw:: html\n   :file: questions.js\n```\n",
    "a stranger's script": (
        "x\n\n```{eval-rst}\n.. raw:: html\n   :url: https://evil.example/x.js\n```\n"
    ),
    "a module": "x\n\n```{eval-rst}\n.. automodule:: this\n```\n",
    "a download": "{download}`x </etc/hostname>`",
    "a picture": "![t](https://evil.example/pixel.png)",
    "a link": "[x](javascript:alert(1))",
    "a tag": "<script>alert(1)</script>",
    "an entity": "&lt;b&gt;",
    "a formula": "$\\href{javascript:alert(1)}{x}$",
    "the end of a cell": "a | b",
    "the end of a line": "a\n",
    "lines of another kind": "a\u2028b",
    "turned text": "a\u202eb",
    "NUL": "a\x00b",
    "an escape": "a\x1b[2Jb",
    "a heading": "x\n\n# Title",
    "a role": "{py:obj}`os`",
    "a colon fence": "x\n\n:::{include} ../../../etc/hosts\n:::\n",
    "no end": "x" * 400,
}


def sent() -> dict:
    """Return what a GPU's file would hold, from runs of lessons 00 and 01 that were recorded on
    processors.
    """
    runs = []
    for lesson in ("00", "01"):
        run = json.loads((RECORDED / f"{lesson}.json").read_text())
        run["device"], run["versions"]["cuda"] = "Tesla T4", "13.0"
        run["card"]["gpus"] = [{"name": "Tesla T4", "backend": "CUDA", "driver": "550.54.15"}]
        run["card"]["notes"] = ["on a machine that is lent"]
        for curve in ("latencies", "bandwidths"):
            for entry in run["entries"].values():
                entry["values"][curve] = (
                    entry["values"][curve][:2] if curve in entry["values"] else None
                )
                if entry["values"][curve] is None:
                    del entry["values"][curve]
        runs.append(run)
    first = runs[0]["entries"]["first calls"]
    first["type"] = "helpers.timing:CudaTiming"
    first["values"]["device_median_s"] = first["values"]["median_s"]
    return {"terms": sending.TERMS, "recordings": runs, "missing": []}


SENT = sent()


def paths(value: object, here: tuple = ()) -> list[tuple]:
    """Return the paths of all values within JSON."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path for key, item in inner for path in ((*here, key), *paths(item, (*here, key)))]


PATHS = paths(SENT)
# one path to each field
FIELDS = {tuple(step for step in path if isinstance(step, str)): path for path in PATHS}
TEXTS = [
    path
    for path in FIELDS.values()
    if isinstance(functools.reduce(operator.getitem, path, SENT), str)
]


def changed(path: tuple, to: object, *, key: bool = False) -> dict:
    """Return the file with ``to`` at ``path``, or, with ``key``, as the name of what stands
    there.
    """
    values = copy.deepcopy(SENT)
    place = values
    for step in path[:-1]:
        place = place[step]
    if key and isinstance(place, dict):
        place[str(to)] = place.pop(path[-1])
    else:
        place[path[-1]] = to
    return values


class Elements(HTMLParser):
    """The elements of HTML with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: set[tuple] = set()
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.add((tag, tuple(attributes)))

    def handle_data(self, data):
        self.text.append(data)


def page(runs) -> str:
    blocks = [f"## Lesson {run.lesson}\n\n{recorded.results_html(run)}" for run in runs]
    return "\n\n".join(["# Recorded machines", recorded.machines_html(runs), *blocks]) + "\n"


def read_as_markdown(text: str):
    how = {
        "myst_enable_extensions": conf.myst_enable_extensions,
        "report_level": 5,
        "halt_level": 5,
    }
    return publish_doctree(text, parser=Parser(), settings_overrides=how)


def require_harmless(runs) -> None:
    """Assert that MyST reads of a page with these runs headings and HTML, and that this is the
    elements of a table.
    """
    text = page(runs)
    tree = read_as_markdown(text)
    kinds = {type(node) for node in tree.findall() if not isinstance(node, nodes.document)}
    assert kinds <= {nodes.section, nodes.title, nodes.subtitle, nodes.Text, nodes.raw}
    titles = [node.astext() for node in tree.findall(nodes.title)]
    assert len(titles) <= 1 + len(runs)
    raw = " ".join(node.astext() for node in tree.findall(nodes.raw))
    assert Elements(raw).elements <= ELEMENTS
    assert len(list(tree.findall(nodes.raw))) == 1 + len(runs)


CARD = ("recordings", 0, "card")
RUNS = sending.check(json.dumps(SENT)).recordings
ELEMENTS = Elements(page(RUNS)).elements


def test_the_page_is_the_sites_and_holds_tables_alone():
    assert {tag for tag, _ in ELEMENTS} <= {
        "div",
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        "p",
    }
    assert not [
        name
        for _, attributes in ELEMENTS
        for name, _ in attributes
        if name not in ("class", "style", "border")
    ]
    require_harmless(RUNS)
    assert recorded.results_html(recorded.load("00")) in machines.page(HERE).splitlines()


def judged(text: str) -> sending.GpuRecords | str:
    """Return the records of a file that is sound, else what is said."""
    try:
        return sending.check(text)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_refused_wherever_it_stands(name):
    for path in TEXTS:
        said = judged(json.dumps(changed(path, HOSTILE[name])))
        assert isinstance(said, str), path
        assert said.isprintable()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_that_got_past_the_check_is_text_on_the_page(name):
    text = HOSTILE[name]
    gpu = hardware.Gpu(text, "CUDA")
    card = replace(RUNS[0].card, extensions=(text,), gpus=(gpu,), notes=(text,))
    timing = {
        **RUNS[0].entries["first calls"],
        "values": RUNS[0].entries["first calls"]["values"] | {"reason": text},
    }
    run = replace(
        RUNS[0],
        device=text,
        date=text,
        versions={"torch": text},
        card=card,
        entries={"first calls": timing},
    )
    require_harmless([run])
    cells = [cell.strip() for cell in Elements(recorded.machines_html([run])).text]
    assert cells.count(" ".join(text.splitlines()).strip()) == 5


LEAVES = st.one_of(
    st.sampled_from(list(HOSTILE.values())),
    st.text(max_size=20),
    st.none(),
    st.booleans(),
    st.sampled_from(
        [
            10**400,
            -1,
            0,
            1.5,
            1e308,
            float("inf"),
            float("nan"),
            "NaN",
            "2026-02-30",
            "helpers:Result",
        ]
    ),
    st.integers(),
    st.floats(),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@repeatable(examples=150)
@given(st.sampled_from(PATHS), JSON, st.booleans())
def test_every_file_is_refused_in_a_sentence_or_its_page_is_harmless(path, to, key):
    result = judged(json.dumps(changed(path, to, key=key)))
    if isinstance(result, str):
        assert result.isprintable()
        assert result
    else:
        require_harmless(result.recordings)


def same_shape(value: object) -> st.SearchStrategy:
    """Return other values of a value's own kind: what the schema lets through most often."""
    if isinstance(value, bool) or value is None:
        return st.booleans() | st.none()
    if isinstance(value, int):
        return st.integers(-5, 10**18)
    if isinstance(value, float):
        return st.floats(0, 1e20)
    if isinstance(value, str):
        return st.text("ab* @.,/'%=()_-+:;!?", max_size=30)
    if isinstance(value, list):
        return st.lists(st.sampled_from(value), max_size=4) if value else st.just(value)
    return st.just(value)


@st.composite
def alike(draw) -> dict:
    """Return a file of which some values are others of their own kind."""
    values = SENT
    for path in draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=4, unique=True)):
        place = value = values = copy.deepcopy(values)
        try:
            for step in path:
                place, value = value, value[step]
        except (IndexError, KeyError, TypeError):  # an earlier change took it away
            continue
        place[path[-1]] = draw(same_shape(value))
    return values


@repeatable(examples=100)
@given(alike())
def test_a_file_of_the_form_is_refused_in_a_sentence_or_its_page_is_harmless(values):
    result = judged(json.dumps(values))
    if isinstance(result, str):
        assert result.isprintable()
    else:
        require_harmless(result.recordings)
        assert sending.check(result.to_json()) == result


def texts_of(name: str) -> st.SearchStrategy:
    """Return all texts that the schema takes as a ``name``."""
    form = json.loads(sending._SCHEMA.read_text(encoding="utf-8"))["$defs"][name]
    pattern = form["pattern"].removeprefix("^").removesuffix(r"(?![\s\S])")
    drawn = st.from_regex(pattern, fullmatch=True)
    return drawn.filter(lambda text: form.get("minLength", 0) <= len(text) <= form["maxLength"])


@repeatable(examples=60)
@given(texts_of("text"), texts_of("text"), texts_of("name"))
def test_a_text_that_the_schema_takes_is_that_text_on_the_page_or_tells_too_much(
    text, note, version
):
    values = changed(("recordings", 0, "versions", version), "1")
    values["recordings"][0]["entries"]["first calls"]["values"]["reason"] = note
    # the last is shown
    values["recordings"][1]["card"] |= {"extensions": [text], "notes": [note], "model": note}
    result = judged(json.dumps(values))
    if isinstance(result, str):
        assert "which tells where it was recorded or by whom" in result
    else:
        require_harmless(result.recordings)
        assert text in Elements(page(result.recordings)).text or not text
        assert results.from_dict(sending.GpuRecords, json.loads(result.to_json())) == result


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A clone's folder of files that were sent."""
    monkeypatch.setattr(sending.storage, "course_file", lambda name: tmp_path / "course" / name)
    return tmp_path / "course" / sending.FOLDER


def given_in(tmp_path: Path, values: object, name: str = "sent.json") -> str:
    path = tmp_path / name
    path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    return str(path)


def test_what_is_taken_is_read_back_and_shown(tmp_path, folder, capsys):
    assert sending.main(["take", given_in(tmp_path, SENT)]) == 0
    assert "it is sound" in capsys.readouterr().out
    (records,) = sending.gpus(folder=folder)
    assert records.recordings == RUNS
    assert "<td>Tesla T4</td>" in machines.page(Course(tmp_path))


def test_what_cannot_be_shown_is_not_called_sound(tmp_path, folder, monkeypatch, capsys):
    def fail(recording):
        raise ValueError("no page can be made of it")

    monkeypatch.setattr(recorded, "results_html", fail)
    assert sending.main(["take", given_in(tmp_path, SENT)]) == 1
    assert capsys.readouterr().err == "error: no page can be made of it\n"
    assert not folder.exists()


def test_what_is_not_sound_as_it_is_kept_is_not_taken(tmp_path, folder, monkeypatch, capsys):
    """It is what is written that is read from then on, and not what was sent."""
    kept = json.dumps(changed((*CARD, "physical_cores"), "Infinity"))
    monkeypatch.setattr(sending.GpuRecords, "to_json", lambda records: kept)
    assert sending.main(["take", given_in(tmp_path, SENT)]) == 1
    assert "physical_cores" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
@pytest.mark.parametrize("field", ["rounds", "physical_cores", "logical_cores"])
def test_a_number_that_is_infinite_is_refused(tmp_path, folder, capsys, number, field):
    text = json.dumps(SENT)
    old = {"rounds": SENT["recordings"][0]["entries"]["products"]["values"]["rounds"]}.get(field, 2)
    assert f'"{field}": {old}' in text
    assert (
        sending.main(
            [
                "take",
                given_in(tmp_path, text.replace(f'"{field}": {old}', f'"{field}": {number}', 1)),
            ]
        )
        == 1
    )
    assert f"{number} is no number" in capsys.readouterr().err
    assert not folder.exists()


def test_a_second_file_of_a_gpu_and_a_day_has_a_name_of_its_own_and_the_same_one_has_not(
    tmp_path, folder
):
    other = changed(("recordings", 0, "card", "ram_bytes"), 2**34)
    for name, values in (("a", SENT), ("b", other), ("again", SENT)):
        assert sending.main(["take", given_in(tmp_path, values, name)]) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert [name.partition(RUNS[0].date)[2] for name in names] == [".json", "_2.json"]
    assert len(sending.gpus(folder=folder)) == 2


def test_a_file_that_is_not_sound_in_the_folder_is_named_to_who_builds_the_site(tmp_path, folder):
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text(
        json.dumps(changed(("recordings", 0, "date"), "2026-19-39"))
    )
    with pytest.raises(
        AuthoringError, match=r"recorded/gpu/broken\.json is not sound .*; delete it"
    ):
        machines.page(Course(tmp_path))


@pytest.mark.parametrize("path", ["a folder", "no such file", "no text"])
def test_what_cannot_be_read_is_told_in_a_line(tmp_path, folder, capsys, path):
    (tmp_path / "no text").write_bytes(b"\xff\xfe")
    (tmp_path / "a folder").mkdir()
    assert sending.main(["take", str(tmp_path / path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_the_results_that_are_recorded_are_those_of_the_recorders():
    assert {lesson: set(names) for lesson, names in sending.RESULTS.items()} == {
        lesson: set(recorded.RECORDERS[lesson]) for lesson in sending.LESSONS
    }
    for place in (place for names in sending.RESULTS.values() for place in names.values()):
        kind = recorded._result_type(place)
        assert recorded._public_name(kind) == place
        assert issubclass(kind, results.Result)


def test_a_recorder_writes_no_text_that_the_check_refuses():
    """Names of kernels are C++, and messages of exceptions are anything."""
    entry = RUNS[0].entries["first calls"]
    kernel = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul>>"
    )
    run = replace(
        RUNS[0],
        entries={
            **RUNS[0].entries,
            "first calls": {
                **entry,
                "values": entry["values"] | {"reason": f"{kernel} {kernel} {kernel} {kernel}"},
            },
        },
    )
    message = "lesson 02: RuntimeError: [Errno 5] `x` \\ $HOME | {a}\n# b"
    records = sending.remove_names(sending.GpuRecords(sending.TERMS, (run,), (message,)))
    checked = sending.check(records.to_json())
    assert checked.missing == ("lesson 02: RuntimeError: Errno 5 x HOME a b",)
    reason = checked.recordings[0].result("first calls").reason
    assert reason.startswith(
        "void at::native::vectorized_elementwise_kernel 4, at::native::FillFunctor float"
    )
    assert len(reason) == 300
    assert reason.endswith("...")
