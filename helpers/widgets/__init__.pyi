from .answers import Answer as Answer
from .figures import interactive_figure as interactive_figure
from .predictions import Prediction as Prediction, predict as predict
from .store import progress as progress
