"""What names a machine is found in an output, and what only looks like it is not."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from nbformat.v4 import new_output

from tools.authoring.rules import traces


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/data/ann"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch/t")
    monkeypatch.setattr(socket, "gethostname", lambda: "anns-laptop")
    monkeypatch.setenv("LOGNAME", "annette")
    return traces.here(Path("/srv/repository"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("read /data/ann/x", "the home folder"),
        ("in '/data/ann'", "the home folder"),
        ("/srv/repository/helpers/units.py:3", "the repository's folder"),
        ("kept in /scratch/t/y", "the temporary folder"),
        ("measured on anns-laptop.", "the host's name"),
        ("by annette", "the user's name"),
        ("<object object at 0x7f3b9c0a1b20>", "a memory address"),
        ("see /home/bob/x.py", "a path of a machine"),
        ("/var/folders/a/b", "a path of a machine"),
        (r"C:\\Users\\bob\\x", "a path of a Windows machine"),
        (r"D:\data\x", "a path of a Windows machine"),
    ],
)
def test_a_trace_is_found(local, text, what):
    assert [phrase.partition(":")[0] for phrase in traces.in_text(text, local)] == [what]


@pytest.mark.parametrize(
    "text",
    [
        "/data/annual",
        "/srv/repository-2/x",
        "x/mnt/y",
        "../mnt/y",
        "/sys/devices/system/cpu",
        "anns-laptops",
        "0x10",
        "at 0x10",
        "C: a letter",
        "3/home",
        "10 MB/s",
        "home/x",
        "annettes",
        r"a:\b",
        "dtype: int64",
    ],
)
def test_what_is_no_trace_is_left_alone(local, text):
    assert traces.in_text(text, local) == []


@pytest.mark.parametrize("host", ["localhost", "pc", ""])
def test_a_host_name_that_is_an_ordinary_word_is_not_looked_for(monkeypatch, host):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert "the host's name" not in traces.here(Path("/srv/repository"))


def test_a_home_at_the_root_is_not_looked_for(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert "the home folder" not in traces.here(Path("/srv/repository"))


def test_every_text_of_an_output_is_looked_at_and_no_picture():
    shown = new_output(
        "display_data",
        {"text/plain": "a", "text/html": "b", "image/png": "c", "application/json": {"d": 1}},
    )
    shown.metadata = {"e": "f"}
    assert list(traces.texts(shown)) == ["a", "b", "{'d': 1}", "{'e': 'f'}"]
    assert list(traces.texts(new_output("stream", name="stdout", text="g"))) == ["g"]
    assert list(traces.texts(new_output("error", ename="h", evalue="i", traceback=["j"]))) == [
        "h",
        "i",
        "j",
    ]
