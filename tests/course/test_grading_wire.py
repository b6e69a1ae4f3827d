"""What crosses between the checks and a submission: any data comes back as it went, and anything
else is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from tests.properties import repeatable
from tools.grading.sandbox import Limits
from tools.grading.session import Lost, Session
from tools.grading.student import wire

# 10**300 is beside 2**997
WHOLE = st.integers(-(2**70), 2**70) | st.integers(900, 1100).map(lambda power: -(2**power))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.none() | st.booleans() | WHOLE | TEXT | st.binary(max_size=4) | st.tuples(WHOLE, TEXT)
DATA = st.recursive(
    KEYS | st.floats() | st.fractions(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(WHOLE, max_size=3)
    ),
    max_leaves=8,
)
KINDS = ["?", "i1", "u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"]
TORCH_KINDS = [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16,
               torch.float32, torch.float64]  # fmt: skip


def never_kept(tag: str, body: object) -> object:
    raise AssertionError(f"asked for {tag} {body!r:.80}")


def sent(message: dict) -> dict:
    """Return the message as it comes out at the other end of a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, message)
        return wire.receive(theirs)


@repeatable(examples=150)
@given(DATA)
def test_data_comes_back_as_it_went(value):
    """All are compared as their text, in which NaN is NaN, and True, 1 and 1.0 differ, as a list
    and a tuple do.
    """
    encoded = sent({"value": wire.encode(value, never_kept)})["value"]
    assert repr(wire.decode(encoded, never_kept)) == repr(value)


@st.composite
def arrays(draw) -> np.ndarray | torch.Tensor:
    """Draw an array of NumPy's or a tensor, of any type of numbers, up to three axes, also without
    elements.
    """
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    bits = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 256, math.prod(shape) * 8, dtype=np.uint8
    )
    if draw(st.booleans()):
        return bits.view("<f8").reshape(shape).astype(draw(st.sampled_from(KINDS)))
    return torch.from_numpy(bits.view("<i8").reshape(shape)).to(draw(st.sampled_from(TORCH_KINDS)))


@pytest.mark.filterwarnings(
    "ignore:invalid value encountered in cast:RuntimeWarning", "ignore:overflow:RuntimeWarning"
)
@repeatable(examples=100)
@given(arrays())
def test_an_array_comes_back_with_its_type_its_shape_and_every_element(array):
    back = wire.decode(sent({"value": wire.encode(array, never_kept)})["value"], never_kept)
    if isinstance(array, np.ndarray) and not array.ndim:  # it is one number
        assert repr(back) == repr(array.item())
        return
    assert type(back) is type(array)
    assert (back.dtype, tuple(back.shape)) == (array.dtype, tuple(array.shape))
    assert repr(back.tolist()) == repr(array.tolist())


ARRAYS = st.tuples(
    st.sampled_from(["", "bfloat16"]),
    st.sampled_from(["<f8", "|O", "(", ">i4"]),
    st.lists(st.integers(-1, 2) | st.just(10**30), max_size=70),
    st.sampled_from(["", "AAAAAAAAAAA="]),
).map(list)


def tagged(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Draw an object with a tag of the wire's own or of an object that is kept, most often with a
    body near to it.
    """
    bodies = {
        "d": st.lists(st.lists(inner, max_size=3)),
        "q": st.lists(st.sampled_from(["0x1", "0x0", "f"])),
    }
    bodies |= dict.fromkeys("lts", st.lists(inner, max_size=3)) | dict.fromkeys("TNn", ARRAYS)
    bodies |= dict.fromkeys("bixogcy", st.nothing())
    return st.sampled_from(sorted(bodies)).flatmap(
        lambda tag: (bodies[tag] | inner).map(lambda body: {tag: body})
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 10**30)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(
        [
            "",
            "<f8",
            "é",
            "0x1",
            "(",
            "=",
            "f" * 20_001,
            "AAAAAAAAAAA=",
            "bfloat16",
            "|O",
            "<U3",
            "<M8",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | tagged(inner)
    ),
    max_leaves=8,
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@repeatable(examples=150)
@given(tagged(JSON) | JSON)
def test_any_json_is_a_value_or_is_broken_and_nothing_is_made_from_it(data):
    tags = []
    try:
        value = wire.decode(data, lambda tag, body: tags.append(tag))
    except wire.Broken:
        return
    assert not set(tags) & set("ltsdbiqTNn")
    known = (
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        list,
        tuple,
        set,
        dict,
        Fraction,
        np.ndarray,
        torch.Tensor,
    )
    assert type(value) in known


@contextlib.contextmanager
def session_after(*parts: bytes) -> Iterator[Session]:
    """Yield a session whose other side has sent these bytes behind its first message, and then
    nothing more.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(theirs, {"ready": True})
        theirs.sendall(b"".join(parts))
        theirs.shutdown(socket.SHUT_WR)
        box = SimpleNamespace(channel=ours, ended=lambda: "it has gone", allow=lambda _: None)
        yield Session(box, Limits(step_s=60), time.monotonic() + 60)


def message(content: object) -> bytes:
    data = json.dumps(content).encode()
    return struct.pack(">I", len(data)) + data


def require_its_own_fault(session: Session, call: Callable, *arguments: object) -> None:
    """Require that a call gives an answer, that what came ends the session, or an exception of the
    submission's.
    """
    try:
        call(*arguments)
    except (Lost, Exception) as error:
        own = type(error).__module__ == Session.__module__ or error in session._raised
        # what was sent ends it, and not the time
        if not own or str(error).startswith("it ran for"):
            raise AssertionError("a submission's answer ends the checks") from error


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@repeatable(examples=150)
@given(st.lists(st.binary(max_size=12) | JSON.map(message), max_size=3))
def test_whatever_bytes_come_are_an_answer_or_end_the_session(parts):
    with session_after(*parts) as session:
        require_its_own_fault(session, session.function("f"), len)


SHOWN = st.dictionaries(
    st.sampled_from(["printed", "text", "html", "png"]), JSON | TEXT, max_size=2
)
ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        "do": st.sampled_from(["call", "get", "item", "put"]) | JSON,
        "to": st.integers(-1, 2) | JSON,
        "with": tagged(JSON),
        "value": JSON,
        "changed": JSON | st.lists(JSON).map(lambda items: {"l": items}),
        "raised": JSON | TEXT,
        "said": JSON,
        "line": JSON,
        "more": JSON,
        "ran": JSON,
        "shown": st.lists(SHOWN, max_size=3) | JSON,
    },
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@repeatable(examples=80)
@given(ANSWERS, ANSWERS)
def test_whatever_a_submission_answers_ends_nothing_but_itself(first, second):
    with session_after(message(first), message(second)) as session:
        require_its_own_fault(session, session.function("f"), len, [1], {"a": 2})
    with session_after(message(first), message(second)) as session:
        require_its_own_fault(session, session.run, "x = 1")
        assert {output["output_type"] for output in session.shown} <= {"stream", "display_data"}
