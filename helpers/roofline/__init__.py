"""A workload on a machine's measured limits: what it can attain, what bounds it, and how long it takes.

:func:`model` works from two numbers of the workload and the limits that :func:`helpers.hardware.probe` measured, and
measures nothing. :func:`place` times a function and :func:`roofline` a model's layers, each beside its modelled time.

Lesson 02.
"""

from helpers.roofline.modelling import DatasheetRoof, RooflinePoint, Workload, datasheet_roof, model
from helpers.roofline.placing import LayerPlacement, Placement, RooflineProfile, place, roofline, workload_of

__all__ = [
    "DatasheetRoof", "LayerPlacement", "Placement", "RooflinePoint", "RooflineProfile", "Workload", "datasheet_roof",
    "model", "place", "roofline", "workload_of",
]  # fmt: skip
