constexpr bool STRAIGHT_LINE = false;
#include "candidates_on_lanes.h"
#include "outputs_on_lanes.h"
#include "network.h"
#include "blocks.h"
