"""What a notebook measures ends early under test, and takes its whole time where ``make release``
asks for that.
"""

from __future__ import annotations

import nbformat
import pytest

from tests import planted


@pytest.mark.parametrize(
    ("options", "said"), [((), "1"), (("--whole-budgets",), "None")], ids=["test", "release"]
)
def test_a_notebook_measures_for_as_long_as_is_asked_for(tmp_path, options, said):
    planted.plant(tmp_path, {})
    cell = nbformat.v4.new_code_cell(
        f"import os\nassert str(os.environ.get('HELPERS_EARLY_END')) == {said!r}"
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebook.ipynb")
    text = planted.run(
        tmp_path, "--nbval-lax", "--nbval-current-env", *options, plugins=("nbval.plugin",)
    )
    assert "1 passed" in text
