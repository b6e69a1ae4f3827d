from ._answers import NO_PREDICTION as NO_PREDICTION, Answer as Answer, read_number as read_number
from ._figures import interactive_figure as interactive_figure
from ._predictions import Prediction as Prediction, predict as predict
from ._store import PREDICTIONS_FILE as PREDICTIONS_FILE, progress as progress
