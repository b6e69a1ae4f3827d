from ._answers import Answer as Answer
from ._figures import interactive_figure as interactive_figure
from ._predictions import Prediction as Prediction, predict as predict
from ._store import progress as progress
