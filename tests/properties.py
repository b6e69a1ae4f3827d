"""The settings of property tests, so that they repeat: the same examples in every run, and no clock
decides.

A test that states a property draws its inputs with hypothesis, and has
``@repeatable(examples=...)`` above ``@given(...)``. Take as few examples as a planted fault needs
to be seen, because a test has at most two seconds. Hypothesis also tries constants of the modules
that are imported, so a few examples differ in the company of other files. A failure prints the
example, and ``@example(...)`` keeps it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def repeatable(examples: int) -> settings:
    """Return settings for ``examples`` drawn inputs, a decorator.

    Examples follow from the test's source and not from chance or from a database of earlier
    failures. There is no deadline, and drawing may take long, because other programs may take the
    processor meanwhile.
    """
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
