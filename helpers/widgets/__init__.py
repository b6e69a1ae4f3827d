"""What a reader touches: predictions that lock, answers that wait for them, figures with sliders."""

from helpers.widgets.answers import Answer
from helpers.widgets.figures import interactive_figure
from helpers.widgets.predictions import Prediction, predict
from helpers.widgets.store import progress

__all__ = ["Answer", "Prediction", "interactive_figure", "predict", "progress"]
