"""What a compared value rests on is named, from statement to statement and from function to
function.
"""

from __future__ import annotations

import sys

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.authoring import audit, mutation
from tools.authoring.course import HERE
from tools.authoring.rules import origins, shares

SANITIZE = mutation.SANITIZE
RULES = shares.patterns(SANITIZE)
PACKAGE = {
    "__init__.py": "from .models import fit\nfrom . import clocks, counting",
    "clocks.py": (
        "import time\n\ndef lap():\n    return time.perf_counter()\n\ndef twice():\n    return 2 * "
        "lap()"
    ),
    "models.py": (
        "import numpy as np\nfrom grown import clocks\n\nclass Line:\n    def __init__(self, x, "
        "y):\n        self.costs = np.linalg.lstsq(x, y)[0]\n\nMODELS = {'line': Line}\n\ndef "
        "fit(name):\n    return MODELS[name]\n\ndef text_of(one: clocks.lap) -> clocks.lap:\n    "
        "return str(one)"
    ),
    "counting.py": (
        "import os\n\ndef count():\n    return 3\n\ndef cores():\n    return os.cpu_count()"
    ),
}


@pytest.fixture(autouse=True)
def grown(tmp_path, monkeypatch):
    folder = tmp_path / "grown"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    origins._library.cache_clear()
    yield
    origins._library.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "grown"]:
        del sys.modules[name]


def resting(*cells, tags=()):
    shown = [new_output("stream", name="stdout", text="3 of 7\n")]
    code = [
        new_code_cell(cell, outputs=shown, execution_count=1, metadata={"tags": list(tags)})
        for cell in cells
    ]
    found = origins.trace("99", new_notebook(cells=code), "grown", RULES)
    return {f"{kind} {name}": cells for (kind, name), cells in found.cells.items()}


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["import grown\nprint(grown.counting.count())"], {}),
        (["from grown import clocks\nprint(clocks.twice())"], {"measures clocks.twice": (0,)}),
        (["import grown\ngrown.fit('line')"], {"fits fit": (0,)}),  # through a table of the module
        (["from grown import counting\ncounting.cores()"], {"probes counting.cores": (0,)}),
        (["from grown import models\nmodels.text_of(3)"], {}),  # an annotation does not run
        (
            ["import time\nbegin = time.perf_counter()", "print(begin)"],
            {"measures time.perf_counter": (1,)},
        ),
        (["import grown\nx = grown.fit('line')", "x = 3", "print(x)"], {}),
        (["import grown\nrows = {}\nrows['a'] = grown.fit('line')", "rows"], {"fits fit": (1,)}),
        (
            ["import grown\nfound = []\nfound.append(grown.fit('line'))\nx = 3", "found"],
            {"fits fit": (1,)},
        ),
        (
            ["import grown\nfor x in [grown.fit('line')]:\n    y = x", "print(y)"],
            {"fits fit": (1,)},
        ),
        (["import grown\nif True:\n    x = grown.fit('line')", "x"], {"fits fit": (1,)}),
        (["import grown\nx = grown.fit('line')\ny = [x for x in (1, 2)]", "y"], {}),
        (["import grown\nx = grown.fit('line')\n\ndef area(x):\n    return 2 * x", "area(3)"], {}),
        (
            ["import grown\n\ndef area():\n    return grown.fit('line')", "print(area())"],
            {"fits fit": (1,)},
        ),
        (
            ["import numpy as np\nprint(np.linalg.lstsq([[1]], [1]))"],
            {"fits numpy.linalg.lstsq": (0,)},
        ),
        (
            [
                "def learn(model):\n    for _ in range(3):\n        model.sum().backward()",
                "net = 1\nx = learn(net)",
                "net",
            ],
            {"trains a loop of the notebook": (2,)},
        ),
        (
            ["net = 1\nfor _ in range(3):\n    net.sum().backward()", "net"],
            {"trains a loop of the notebook": (1,)},
        ),
        (["net = 1\nnet.sum().backward()", "net"], {}),  # a gradient is no training
    ],
)
def test_what_a_compared_value_rests_on_is_named(cells, named):
    assert resting(*cells) == named


BOUGHT = "import grown\nx = grown.fit('line')\n"


@pytest.mark.parametrize(
    "cell",
    [
        "print(f'{x:.1f} ms')",
        "print(f'{x} times (measured), {3} of 7')",
        "units.text(x, 'GB/s')",
        "timing.claim('it is so', x, at_least=2)",
        "race.claim('it is so', x)",
        "plotting.show(draw(x), alt='Two lines.')",
        "y = x",
        "asked = Checks('a', x)\nasked.returns('b', x)\nx = asked.settle()",
    ],
)
def test_what_is_masked_or_not_shown_is_not_followed(cell):
    assert resting(BOUGHT + cell) == {}


@pytest.mark.parametrize(
    "cell",
    [
        "print(f'{x:.1f} million')",
        "units.text(x, 'B')",
        "answer.reveal(counted=x)",
        "plotting.show(draw(3), alt=f'{x} lines.')",
        "for y in (1, 2):\n    print(y, x)",
    ],
)
def test_what_is_shown_is_followed(cell):
    assert resting(BOUGHT + cell) == {"fits fit": (0,)}


def test_a_cell_that_is_not_compared_names_nothing():
    assert resting(BOUGHT + "x", tags=["nbval-ignore-output"]) == {}


def test_the_line_names_function_and_cells():
    cells = {("fits", "fit"): (3, 5), ("fits", "line"): (4,), ("probes", "cores"): (1,)}
    assert str(origins.Resting("lesson 14", cells)) == (
        "lesson 14: compared values rest on fits: fit (cell 3, 5), line (cell 4); probes: cores "
        "(cell 1)"
    )
    assert "nothing that measures, fits, trains or probes" in str(origins.Resting("lesson 09", {}))


def test_no_lesson_compares_what_a_fit_gives(record_property):
    """But for a line through a few published points, by a closed formula whose digits have room."""
    found = audit.origins_of(HERE, (), SANITIZE)
    record_property("what compared values rest on", "\n".join(map(str, found)))
    assert len(found) > 20
    fits = {(one.notebook, name) for one in found for kind, name in one.cells if kind == "fits"}
    assert fits == {("appendix 02", "numpy.polyfit")}
