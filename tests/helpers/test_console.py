"""Progress is shown and gone again, whatever ends the loop, and a headless build shows nothing."""

from __future__ import annotations

import io
import sys

import pytest
import tqdm.auto
import tqdm.std

from helpers import console


@pytest.fixture
def watched(monkeypatch):
    """Somebody watches: HELPERS_HEADLESS is off, and the bars that are made are collected."""
    monkeypatch.delenv("HELPERS_HEADLESS", raising=False)
    bars = []

    class Collected(tqdm.std.tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, **{**options, "mininterval": 0})
            self.was_closed = False
            bars.append(self)

        def close(self):
            self.was_closed = True
            super().close()

    monkeypatch.setattr(tqdm.auto, "tqdm", Collected)
    return bars


@pytest.fixture
def without_tqdm(monkeypatch):
    monkeypatch.delenv("HELPERS_HEADLESS", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "tqdm"]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("value", "expected"), [("", False), ("0", False), ("1", True), ("yes", True)]
)
def test_the_one_switch(monkeypatch, value, expected):
    monkeypatch.setenv("HELPERS_HEADLESS", value)
    assert console.is_headless() is expected


def test_headless_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setenv("HELPERS_HEADLESS", "1")
    assert list(console.track(range(3), "work")) == [0, 1, 2]
    console.notice("renewed")
    assert capsys.readouterr() == ("", "")


def test_items_pass_under_a_bar_that_knows_its_length(watched, capsys):
    assert list(console.track([4, 5], "work", unit="batch")) == [4, 5]
    assert list(console.track((n for n in (4, 5)), "work", total=2)) == [4, 5]
    assert [(bar.total, bar.unit, bar.was_closed) for bar in watched] == [
        (2, "batch", True),
        (2, "it", True),
    ]
    assert "work" in capsys.readouterr().out


def test_the_bar_is_closed_when_the_loop_breaks_off(watched):
    for _ in console.track(range(10), "work"):
        break
    assert watched[0].was_closed


def test_the_bar_is_closed_when_the_loop_or_the_items_raise(watched):
    def failing():
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(console.track(failing(), "work"))
    try:
        for item in console.track(range(10), "work"):
            1 / item
    except ZeroDivisionError as error:
        kept = error
    assert kept.__traceback__ is not None
    assert [bar.was_closed for bar in watched] == [True, True]


class Stream:
    """A loader over a stream, as PyTorch's: it has __len__, which raises."""

    def __len__(self):
        raise TypeError("object of type 'Stream' has no len()")

    def __iter__(self):
        return iter("abc")


def test_without_tqdm_progress_is_lines(without_tqdm, capsys):
    assert list(console.track(range(2000), "work")) == list(range(2000))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[5] == "work: 1,000 of 2,000"
    assert list(console.track([], "work")) == []
    assert list(console.track(Stream(), "work")) == ["a", "b", "c"]
    assert capsys.readouterr().out == "work: 0\n"


def test_what_has_no_length_is_tracked(watched):
    assert list(console.track(Stream(), "work")) == ["a", "b", "c"]
    assert watched[0].total is None


def test_a_notice_goes_to_the_standard_error(monkeypatch):
    monkeypatch.delenv("HELPERS_HEADLESS", raising=False)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    console.notice("The cache was renewed.")
    assert stream.getvalue() == "The cache was renewed.\n"
