"""The machine under the notebook, as its operating system describes it: :func:`machine_card`. Lesson 00."""

from helpers.hardware.card import Cache, Gpu, MachineCard
from helpers.hardware.machine import machine_card

__all__ = ["Cache", "Gpu", "MachineCard", "machine_card"]
