"""Messages over a socket: a length and JSON.

Values become JSON by what they are, and nothing else is rebuilt. Both sides use it. What comes from
a submission is data: numbers, texts, bytes, lists, arrays of numbers, and the names of objects that
the other side keeps. Nothing is unpickled, imported or called to decode it.
"""

from __future__ import annotations

import base64
import json
import math
import numbers
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LARGEST_MESSAGE_BYTES = 16 * 2**20
_LENGTH = struct.Struct(">I")
_NUMBER_KINDS = "biuf"
_MOST_DIGITS = 20_000  # to reduce a fraction takes the square of this
# may be half a surrogate pair, which no file takes: it becomes "?"
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class Broken(Exception):
    """The other side has gone, or sent what is no message."""


@dataclass(frozen=True)
class Unsendable:
    """Stands for a value that is no data; ``text`` shows it. It equals nothing."""

    text: str

    def __repr__(self) -> str:
        return self.text

    __hash__ = None  # type: ignore[assignment]  # Python's word for what has none

    def __eq__(self, other: object) -> bool:
        return False


SAME = object()  # stands for a value that the sender may not change


def send(channel: Any, message: dict[str, Any]) -> None:
    """Send one message. Raises Broken when it is too large or the other side has gone."""
    try:
        data = json.dumps(message).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise Broken(f"no message can be made of it ({type(error).__name__})") from error
    if len(data) > LARGEST_MESSAGE_BYTES:
        raise Broken(f"a message of {len(data)} bytes, above the {LARGEST_MESSAGE_BYTES} allowed")
    try:
        channel.sendall(_LENGTH.pack(len(data)) + data)
    except TimeoutError:
        raise
    except OSError as error:
        raise Broken("the other side has gone") from error


def receive(channel: Any, clean: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the next message, whose JSON ``clean`` may change.

    Raises Broken for one too large or no JSON object.
    """
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    if length > LARGEST_MESSAGE_BYTES:
        raise Broken(f"a message of {length} bytes, above the {LARGEST_MESSAGE_BYTES} allowed")
    text = clean(_exactly(channel, length).decode("utf-8", "replace"))
    try:
        message = json.loads(text)
        if _HALF_PAIR.search(text):
            message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Broken("what came is no message") from error
    if not isinstance(message, dict):
        raise Broken("what came is no message")
    return message


def _exactly(channel: Any, count: int) -> bytes:
    parts, missing = [], count
    while missing:
        try:
            part = channel.recv(min(missing, 2**20))
        except TimeoutError:
            raise
        except OSError as error:
            raise Broken("the other side has gone") from error
        if not part:
            raise Broken("the other side has gone")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def encode(value: Any, encode_object: Callable[[Any], Any]) -> Any:
    """Return ``value`` as JSON; ``encode_object`` gives the JSON of what is no data."""
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):  # also what is made from it, such as NumPy's; and so below
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"b": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list):
        return {"l": [encode(item, encode_object) for item in list.__iter__(value)]}
    if isinstance(value, tuple):
        return {"t": [encode(item, encode_object) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {
            "d": [
                [encode(key, encode_object), encode(item, encode_object)]
                for key, item in dict.items(value)
            ]
        }
    if isinstance(value, set | frozenset):
        return {"s": [encode(item, encode_object) for item in value]}
    library = type(value).__module__.partition(".")[0]
    if library in ("numpy", "torch") and hasattr(value, "dtype") and hasattr(value, "shape"):
        return _encode_array(value, library, encode_object)
    if isinstance(value, int):
        return int(value) if abs(int(value)) < 10**300 else {"i": hex(int(value))}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, numbers.Rational):
        return {"q": [hex(int(value.numerator)), hex(int(value.denominator))]}
    return encode_object(value)


def _encode_array(value: Any, library: str, encode_object: Callable[[Any], Any]) -> Any:
    if getattr(value.dtype, "kind", "") == "U":
        return encode(value.tolist(), encode_object)
    array = value.detach().cpu() if library == "torch" else value
    if library == "torch" and str(array.dtype) == "torch.bfloat16":
        return {"T": ["bfloat16", *_packed(array.float().numpy())]}
    try:
        packed = _packed(array.numpy() if library == "torch" else array)
    except TypeError:
        return encode_object(value)
    return {"T" if library == "torch" else "N" if getattr(value, "ndim", 0) else "n": ["", *packed]}


def _packed(array: Any) -> list[Any]:
    if array.dtype.kind not in _NUMBER_KINDS:
        raise TypeError("no numbers")
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode("ascii")]


def decode(data: Any, decode_object: Callable[[str, Any], Any]) -> Any:
    """Return the value of JSON; ``decode_object`` gives that of other tags. Raises Broken."""
    try:
        return _decode(data, decode_object)
    except Broken:
        raise
    except Exception as error:
        # of Python or of a library, such as ZeroDivisionError from a fraction
        raise Broken(f"no value ({type(error).__name__})") from error


def _decode(data: Any, decode_object: Callable[[str, Any], Any]) -> Any:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise Broken("no value")
    ((tag, body),) = data.items()
    if tag in ("l", "t", "s"):
        return {"l": list, "t": tuple, "s": set}[tag](_decode(item, decode_object) for item in body)
    if tag == "d":
        return {_decode(key, decode_object): _decode(item, decode_object) for key, item in body}
    if tag == "b":
        return base64.b64decode(body, validate=True)
    if tag == "i":
        return _whole(body)
    if tag == "q":
        import fractions

        return fractions.Fraction(_whole(body[0]), _whole(body[1]))
    if tag in ("T", "N", "n"):
        return _decode_array(tag, *body)
    return decode_object(tag, body)


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise Broken(f"a whole number of more than {_MOST_DIGITS:,} hexadecimal digits")
    return int(text, 16)


def _decode_array(tag: str, as_type: str, dtype: str, shape: list[int], data: str) -> Any:
    import numpy as np

    kind = np.dtype(str(dtype))
    if kind.kind not in _NUMBER_KINDS or not all(type(side) is int and side >= 0 for side in shape):
        raise Broken("no array of numbers")
    raw = base64.b64decode(data, validate=True)
    if len(raw) != kind.itemsize * math.prod(shape):
        raise Broken("no array of numbers")
    array = np.frombuffer(raw, dtype=kind).reshape(shape).copy()
    if tag == "N":
        return array
    if tag == "n":
        return array.item()
    import torch

    tensor = torch.from_numpy(array)
    return tensor.to(torch.bfloat16) if as_type == "bfloat16" else tensor
