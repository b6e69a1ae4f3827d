from ._dropping import expect_dropped as expect_dropped
from ._training import RouterRun as RouterRun, train_routers as train_routers
from .figures import draw_shares as draw_shares
