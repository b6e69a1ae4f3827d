"""What a process that marks needs, loaded once: each is forked from one that has it, and starts in no time."""

import matplotlib.pyplot
import pandas
import torch

from helpers import operations, parallel, plotting, simulators
from tools.grading.grade import all_sheets

__all__ = ["matplotlib", "operations", "pandas", "parallel", "plotting", "simulators", "torch"]

torch.set_num_threads(1)
all_sheets()
