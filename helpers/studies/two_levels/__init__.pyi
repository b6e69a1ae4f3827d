from ._measuring import (
    ComparedAllReduces as ComparedAllReduces,
    RankSum as RankSum,
    compare_all_reduces as compare_all_reduces,
    sum_on_ranks as sum_on_ranks,
)
from ._published import (
    A3_MEGA as A3_MEGA,
    A3_MEGA_SOURCE as A3_MEGA_SOURCE,
    B200_FOUR_NODES as B200_FOUR_NODES,
    B200_ONE_NODE as B200_ONE_NODE,
    B200_SOURCE as B200_SOURCE,
    DEEP_EP as DEEP_EP,
    DEEP_EP_SOURCE as DEEP_EP_SOURCE,
    V100 as V100,
    V100_SOURCE as V100_SOURCE,
    AllReduceTimes as AllReduceTimes,
    ExchangeRate as ExchangeRate,
)
from ._rings import Ring as Ring
from .figures import (
    draw_sizes as draw_sizes,
    draw_steps as draw_steps,
    explore_leaving as explore_leaving,
)
