"""Figures of a test are closed after it, as in the tests of plotting."""

from tests.helpers.plotting.conftest import _closed_figures as _closed_figures
