"""The four sources as schedules: as many boxes as layers that are done, an exchange where both
wait.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers.studies import sgd_parallelism
from helpers.studies._paper import SENDING


def counted(until):
    drawn = sgd_parallelism.draw_sources(until=until)
    boxes = [patch for patch in drawn.axes[0].patches if type(patch) is Rectangle]
    exchanges = [box for box in boxes if to_hex(box.get_facecolor()) == SENDING.lower()]
    arrows = [patch for patch in drawn.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    texts = [text.get_text() for text in drawn.axes[0].texts]
    plt.close(drawn)
    return len(boxes) - len(exchanges), len(exchanges), len(arrows), texts


def test_one_update_alone_takes_four_units_and_shared_ones_less():
    boxes, exchanges, arrows, texts = counted(4)
    # Within a layer an update takes 4 x 0.5 + 3 x 0.25 = 2.75, over examples 4 x 0.5 + 0.25 = 2.25.
    assert boxes == 2 * (6 + 8 + 4 + 4)
    # three between the layers of the first update, one in the second; one gradient
    assert exchanges == 4 + 1
    assert arrows == 2  # of worker B at 2, of worker A at 4
    assert texts.count("½ 1") == 2 * 3  # forward, backward, forward


def test_until_the_end_there_is_more_and_a_later_end_is_refused():
    assert counted(8)[0] > counted(4)[0] > counted(1)[0]
    with pytest.raises(ValueError, match="behind the end"):
        sgd_parallelism.draw_sources(until=9)
    with pytest.raises(ValueError, match="until"):
        sgd_parallelism.draw_sources(until=0)
