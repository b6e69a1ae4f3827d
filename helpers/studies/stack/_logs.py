"""The statements of oneDNN and MKL in their verbose logs, read into records. Lesson 15."""

from __future__ import annotations

import re
from collections import Counter

from helpers import units
from helpers.checks import one_of, short
from helpers.results import Record

ONEDNN, MKL = "oneDNN", "MKL"

_MKL_HEADER = (
    r"MKL_VERBOSE (?P<version>\D.*?) for .*?architecture (?P<instruction_set>.*?)(?i: "
    r"enabled)?(?i: processors?), "
)
_STATEMENTS = {  # what a line states of its library: the groups are fields of Library
    ONEDNN: (
        re.compile(r"onednn_verbose,v1,info,oneDNN (?P<version>v\S+)"),
        re.compile(r"onednn_verbose,v1,info,cpu,isa:(?P<instruction_set>.+)"),
    ),
    MKL: (re.compile(_MKL_HEADER),),
}
_ONEDNN_TEMPLATE = re.compile(r"onednn_verbose,v1,primitive,info,template:(.+)")
_ONEDNN_CALL = re.compile(r"onednn_verbose,(?!\w+,graph)\S*?(exec,.+)")
_MKL_CALL = re.compile(r"MKL_VERBOSE (?P<name>\w+)\(")
_MKL_FORM = re.compile(r"MKL_VERBOSE \w+\((?P<arguments>.*)\) (?P<time>\S+) CNR:")
_ADDRESS = re.compile(r"(\w+:)?(0x[0-9a-fA-F]+|\(nil\))")
_TENSOR = re.compile(r"(\w+?)[_:]([a-z]+\d\w*):(?:.*:)?blocked:(\w+):.*")
_NO_TENSOR = re.compile(r"\w+?[_:]undef:")
_UNKNOWN = "unknown"


class CalledLibrary(Record):
    """A library that was called: what it states of itself, and how many of its primitives ran.

    Lesson 15.
    """

    name: str
    version: str
    instruction_set: str
    calls: int


class Primitive(Record):
    """One call of a library, as its log states it, with the library's own time.

    ``problem`` are the sizes in the library's words (of MKL the arguments that are no addresses),
    ``tensors`` the number format and memory layout of each tensor (oneDNN alone: ``aBcd8b`` is a
    layout in blocks of 8 channels), ``implementation`` what oneDNN chose, such as ``jit:avx2``; ""
    where the log does not say. Lesson 15.
    """

    library: str
    name: str
    implementation: str
    problem: str
    tensors: str
    elapsed_s: float


def read_log(log: str) -> tuple[tuple[CalledLibrary, ...], tuple[Primitive, ...]]:
    """Return the libraries that a verbose log shows at work, and their primitives in the log's
    order.

    ``log`` is what a program prints under ``ONEDNN_VERBOSE=1`` and ``MKL_VERBOSE=1``; lines of
    others are passed over. The forms are those that oneDNN 3 and MKL 2020 to 2024 write (oneDNN's
    names its fields in a line of its own).

    Raises TypeError for what is no text, ValueError for a call in another form.
    """
    one_of("log", log, str, "a log as text")
    statements: dict[str, dict[str, str]] = {ONEDNN: {}, MKL: {}}
    primitives: list[Primitive] = []
    fields: list[str] = []
    for line in log.splitlines():
        for name, patterns in _STATEMENTS.items():
            for statement in filter(None, (pattern.match(line) for pattern in patterns)):
                statements[name] |= statement.groupdict()
        if match := _ONEDNN_TEMPLATE.match(line):
            fields = match[1].split(",")
        elif match := _ONEDNN_CALL.match(line):
            primitives.append(_parse_onednn(match[1].split(","), fields, line))
        elif match := _MKL_CALL.match(line):
            primitives.append(_parse_mkl(match["name"], line))
    calls = Counter(primitive.library for primitive in primitives)
    unknown = {"version": _UNKNOWN, "instruction_set": _UNKNOWN}
    libraries = (
        CalledLibrary(name=name, calls=count, **(unknown | statements[name]))
        for name, count in calls.items()
    )
    return tuple(libraries), tuple(primitives)


def _parse_onednn(values: list[str], fields: list[str], line: str) -> Primitive:
    if len(values) != len(fields):
        raise _unknown_form(ONEDNN, line)
    value_of = dict(zip(fields, values, strict=True))
    return Primitive(
        library=ONEDNN,
        name=value_of["primitive"],
        implementation=value_of["implementation"],
        problem=value_of["problem_desc"],
        tensors=", ".join(filter(None, map(_tensor, value_of["memory_descriptors"].split()))),
        elapsed_s=float(value_of["exec_time"]) * 1e-3,
    )


def _tensor(descriptor: str) -> str:
    """Return ``src f32 abcd`` for ``src:f32:a:blocked:abcd::f0``, "" for none, another form as it
    stands.
    """
    if _NO_TENSOR.match(descriptor):
        return ""
    match = _TENSOR.fullmatch(descriptor)
    return " ".join(match.groups()) if match else descriptor


def _parse_mkl(name: str, line: str) -> Primitive:
    match = _MKL_FORM.match(line)
    if match is None:
        raise _unknown_form(MKL, line)
    arguments = [
        argument for argument in match["arguments"].split(",") if not _ADDRESS.fullmatch(argument)
    ]
    return Primitive(
        library=MKL,
        name=name,
        implementation="",
        problem=",".join(arguments),
        tensors="",
        elapsed_s=units.parse(match["time"], "s"),
    )


def _unknown_form(library: str, line: str) -> ValueError:
    return ValueError(
        f"this is not the form of {library}'s log that is known here: {short(line)}; give a whole "
        "log, written by oneDNN 3 or MKL 2020 to 2024"
    )
