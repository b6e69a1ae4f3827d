"""Models that others wrote, called with masks, labels and lengths, against torch's own counter of a
real run.
"""

from __future__ import annotations

import model_zoo
import pytest

from helpers.operations import profile_ops


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_counted_as_a_real_run_is(name):
    model, inputs = model_zoo.CASES[name]()
    model.eval()
    # which expert takes whom hangs on values
    profile = profile_ops(model, inputs=inputs, values=name == "switch")
    # torch counts no grouped product, and every other one
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    assert (2 * profile.forward_macs, 2 * profile.backward_macs) == model_zoo.counted_by_torch(
        model, inputs
    )
    assert (profile.may_hold_products, profile.random_draws) == ((), ())


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_experts_by_group_and_one_by_one(name):
    model, inputs = model_zoo.CASES[name]()
    grouped, half = profile_ops(model, inputs=inputs), profile_ops(model.bfloat16(), inputs=inputs)
    model.float().set_experts_implementation("eager")
    one_by_one = profile_ops(model, inputs=inputs, values=True)
    assert grouped.forward_macs == half.forward_macs == one_by_one.forward_macs
    assert grouped.backward_macs == half.backward_macs == one_by_one.backward_macs
