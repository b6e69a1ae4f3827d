"""Models on machines whose times are known, judged by hand and by scikit-learn; splits that leak,
and others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess

import numpy as np
import pytest
import torch

from helpers.studies import convolution_time
from helpers.studies.convolution_time import (
    MODELS,
    TERMS,
    ConvolutionShape,
    _models as models,
    errors,
    fit,
    hold_out_networks,
    program_of,
    random_shapes,
    random_split,
)

SHAPES = random_shapes(160, seed=7)
NEW = random_shapes(60, seed=8)
# Seconds of one of each: 5 us a call, 100 GFLOP/s, 10 to 20 GB/s.
MACHINE = dict(
    zip(
        TERMS,
        (5e-6, 1e-11, 1e-11, 3e-12, 1e-10, 5e-11, 2e-10, 3e-11, 4e-12, 1e-12, 2e-12),
        strict=True,
    )
)
SLOWER = {term: 3 * seconds for term, seconds in MACHINE.items()} | {
    "patch bytes": 0.0,
    "macs of a column": 0.0,
}


def times_on(machine, shapes):
    return [
        sum(seconds * TERMS[term](shape) for term, seconds in machine.items()) for shape in shapes
    ]


def by_program(shapes):
    """Return times of a machine whose two programs have nothing in common."""
    return [
        times_on(MACHINE if program_of(shape) == "blocked" else SLOWER, [shape])[0]
        for shape in shapes
    ]


def test_a_machine_of_known_coefficients_is_recovered():
    # of a 1 x 1 kernel the patches are the input
    large = [shape for shape in SHAPES if shape.kernel > 1 and program_of(shape) == "blocked"]
    found = fit("physical", large, times_on(MACHINE, large))
    assert [part.program for part in found.fits] == ["all programs", "blocked"]
    for part in found.fits:
        assert part.coefficients == pytest.approx(MACHINE, rel=1e-9)
        assert list(part.coefficients) == list(TERMS)
    new = [shape for shape in NEW if shape.kernel > 1]
    assert found.predict(new) == pytest.approx(np.array(times_on(MACHINE, new)), rel=1e-9)


def test_two_programs_are_recovered_where_one_fit_is_wrong():
    found = fit("physical", SHAPES, by_program(SHAPES))
    assert [part.program for part in found.fits] == [
        "all programs",
        "blocked",
        "im2col and product",
        "matrix product",
    ]
    assert errors(found.predict(NEW), by_program(NEW)).rmspe_share < 1e-9
    together = dataclasses.replace(found, fits=found.fits[:1])
    assert errors(together.predict(NEW), by_program(NEW)).rmspe_share > 0.1


def test_a_machine_as_the_simple_model_has_it_is_recovered():
    found = fit("flops", SHAPES, [4e-6 + 3e-11 * shape.macs for shape in SHAPES])
    assert found.predict(NEW) == pytest.approx(
        np.array([4e-6 + 3e-11 * shape.macs for shape in NEW]), rel=1e-9
    )


def test_coefficients_are_those_of_the_least_relative_error():
    """No change of one coefficient, up or down, makes the sum of squared relative errors
    smaller.
    """
    noisy = np.array(times_on(MACHINE, SHAPES)) * np.random.default_rng(0).uniform(
        0.7, 1.3, len(SHAPES)
    )
    columns = models._columns(SHAPES, TERMS)
    found = models.least_relative_error(columns, noisy)

    def error(coefficients):
        return ((columns @ coefficients / noisy - 1) ** 2).sum()

    assert (found >= 0).all()
    for place in range(len(found)):
        step = np.zeros(len(found))
        step[place] = 1e-3 / columns[:, place].max() * noisy.max()
        assert error(found + step) >= error(found)
        if found[place] > step[place]:
            assert error(found - step) >= error(found)


def test_absolute_error_in_its_place_is_seen(monkeypatch):
    from scipy.optimize import nnls

    monkeypatch.setattr(
        models, "least_relative_error", lambda columns, times: nnls(columns, times)[0]
    )
    with pytest.raises(AssertionError):
        test_coefficients_are_those_of_the_least_relative_error()


def test_every_model_predicts_arrays_again_the_same_and_starts_no_process(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    times = by_program(SHAPES)
    for name in MODELS:
        found = fit(name, SHAPES, times)
        seconds = found.predict(NEW)
        assert seconds.shape == (len(NEW),)
        assert (seconds > 0).all()
        assert (seconds == fit(name, SHAPES, times).predict(NEW)).all()
        assert name in str(found)


def test_a_rare_program_is_predicted_by_all():
    others = [shape for shape in SHAPES if program_of(shape) != "matrix product"]
    rare = [shape for shape in SHAPES if program_of(shape) == "matrix product"]
    chosen = [*others, *rare[:7]]
    found = fit("physical", chosen, by_program(chosen))
    assert [part.program for part in found.fits] == [
        "all programs",
        "blocked",
        "im2col and product",
    ]
    of_all = found.fits[0].coefficients
    expected = sum(seconds * TERMS[term](rare[0]) for term, seconds in of_all.items())
    assert found.predict(rare[:1])[0] == pytest.approx(expected, rel=1e-12)
    assert fit("physical", SHAPES, by_program(SHAPES)).predict(rare[:1])[0] != expected


def test_the_program_follows_from_the_shape_as_in_pytorch():
    """torch's own choice, asked for one thread, for 1 x 1 and small images and batches of 16 and
    more as well.
    """
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch is built without oneDNN")
    sizes = itertools.product((1, 2, 15, 16), (1, 80, 81), (15, 16, 17), (1, 3, 4, 5), (1, 2))
    shapes = [
        ConvolutionShape(b, c, side, side, 4, k, stride, 0) for b, c, side, k, stride in sizes
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for shape in (*shapes, *SHAPES[:20]):
            x, weight = torch.empty(shape.input_size), torch.empty(shape.weight_size)
            stride, padding = (shape.stride,) * 2, (shape.padding,) * 2
            chosen = torch._C._select_conv_backend(
                x, weight, None, stride, padding, (1, 1), False, (0, 0), 1, None
            )
            assert (program_of(shape) == "blocked") == (chosen.name == "Mkldnn"), shape
    finally:
        torch.set_num_threads(threads)


# Judging.


def test_errors_by_hand_and_by_scikit_learn():
    from sklearn.metrics import mean_absolute_percentage_error

    predicted, measured = [1.1, 1.8, 3.0, 12.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    found = errors(predicted, measured)
    assert found.mape_share == pytest.approx((0.1 + 0.1 + 0 + 2 + 0) / 5)
    assert found.mape_share == pytest.approx(mean_absolute_percentage_error(measured, predicted))
    assert found.rmspe_share == pytest.approx(math.sqrt((0.01 + 0.01 + 4) / 5))
    assert found.total_share == pytest.approx(22.9 / 15 - 1)
    assert found.worst_share == pytest.approx(2)
    # One prediction of three times the time, all others right.
    one_wrong = errors([3.0] + [1.0] * 9, [1.0] * 10)
    assert (one_wrong.mape_share, one_wrong.rmspe_share) == pytest.approx(
        (2 / 10, 2 / math.sqrt(10))
    )


def networks():
    shared = SHAPES[:5]
    return {
        "first": [*SHAPES[5:15], *shared, *shared],
        "second": [*SHAPES[15:30], *shared],
        "third": SHAPES[30:40],
    }


def leaks_by_sets(split, shapes):
    return {shapes[place] for place in split.train} & {shapes[place] for place in split.test}


def check_held_out(split_networks):
    shapes = SHAPES[:60]
    for name, split in zip(networks(), split_networks(shapes, networks()), strict=True):
        assert not leaks_by_sets(split, shapes)
        assert {shapes[place] for place in split.test} == set(networks()[name])
        assert sorted([*split.train, *split.test]) == list(range(60))
        assert (split.held_out, split.leaked) == (name, 0)


def test_a_network_is_held_out_whole():
    check_held_out(hold_out_networks)


def test_a_random_split_in_its_place_is_seen():
    with pytest.raises(AssertionError):
        check_held_out(
            lambda shapes, networks: [
                random_split(shapes, seed=seed) for seed, _ in enumerate(networks)
            ]
        )


def test_duplicates_that_leak_are_counted():
    layers = [shape for owned in networks().values() for shape in owned]
    split = random_split(layers, seed=1)
    assert len(split.test) == round(0.3 * len(layers))
    assert sorted([*split.train, *split.test]) == list(range(len(layers)))
    fitted = [layers[place] for place in split.train]
    assert split.leaked == sum(fitted.count(layers[place]) > 0 for place in split.test) > 0
    assert random_split(SHAPES).leaked == 0
    assert all(split.leaked == 0 for split in hold_out_networks(layers, networks()))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: fit("forest", SHAPES, [1.0] * 160),
            ValueError,
            "name='forest' is not known; give one of 'flops'",
        ),
        (
            lambda: fit("flops", SHAPES[0], [1.0]),
            TypeError,
            "shapes is one ConvolutionShape; give a list of them",
        ),
        (
            lambda: fit("flops", [(1, 2)], [1.0]),
            TypeError,
            "shapes[0]=(1, 2) is a tuple; give a list of Convolution",
        ),
        (
            lambda: fit("flops", SHAPES[:2], [1.0]),
            ValueError,
            "2 shapes and 1 times_s are given; give one",
        ),
        (
            lambda: fit("flops", SHAPES[:2], [1.0, math.nan]),
            ValueError,
            "times_s[1]=nan; give a finite number above 0",
        ),
        (lambda: fit("flops", SHAPES[:1], [1.0]), ValueError, "2 or more"),
        (lambda: fit("flops", SHAPES[:2], [1, 1]).predict([]), ValueError, "shapes is empty"),
        (
            lambda: errors([1.0], []),
            ValueError,
            "1 predicted and 0 measured times; give one pair a shape",
        ),
        (lambda: errors([1.0], [0]), ValueError, "measured_s[0]=0; give a finite number above 0"),
        (
            lambda: hold_out_networks(SHAPES, {"all": SHAPES}),
            ValueError,
            "of the 160 shapes, 160 are of all",
        ),
        (
            lambda: random_split(SHAPES, test_share=1),
            ValueError,
            "test_share=1 puts 160 of 160 shapes aside",
        ),
        (lambda: program_of(3), TypeError, "shape=3 is an int; give a ConvolutionShape"),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_face_has_what_the_lesson_uses():
    assert {"ConvolutionShape", "fit", "errors", "hold_out_networks"} <= set(dir(convolution_time))
