"""What lesson 10 records: each way of copying that the device has, in a result that is read
again.
"""

from __future__ import annotations

import pytest
import torch

from helpers import results
from helpers.studies.input_pipeline import _starvation as starvation
from helpers.studies.input_pipeline._starvation import CopyingTable, measure_copying


def test_each_way_that_the_device_has_is_recorded_and_read_again(monkeypatch):
    monkeypatch.setattr(starvation, "_RECORDED_STEPS", 8)  # 4 of them are warm-up
    table = measure_copying()
    has_cuda = torch.cuda.is_available()
    assert [row.copying for row in table.rows] == (
        ["blocking", "non_blocking", "ahead"] if has_cuda else ["blocking"]
    )
    assert [row.pinned for row in table.rows] == ([False, True, True] if has_cuda else [False])
    assert table.batch_bytes == 64 * 3 * 96 * 96 * 4
    assert all(0 < row.busy_share <= 1 and row.step_s > 0 for row in table.rows)
    assert results.from_dict(CopyingTable, table.to_dict()) == table


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timed
def test_copies_that_run_ahead_leave_the_device_less_idle_than_blocking_ones():
    rows = {row.copying: row for row in measure_copying().rows}
    assert rows["ahead"].step_s < rows["blocking"].step_s
