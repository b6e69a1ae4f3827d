"""The checks of lesson 08: what goes in, what must come out, and what common mistakes would give instead."""

from helpers.exercises import Checks

# Of Llama 2 7B with 2 bytes per element: what a sequence of 4,096 tokens adds to each buffer, and the weights.
_SUMS_BYTES = 4 * 32 * 2 * 4096 * 4096
_BOUNDARY_BYTES = 2 * 4096 * 4096
_WEIGHT_BYTES = 14e9


def sent_to_groups(checks: Checks) -> None:
    """What a GPU sends to its two groups"""
    all_tokens = (
        "You count the tokens of the whole step. A copy has only sequences / data of them."
    )
    whole_model = "You sum the gradients of a whole copy. A tensor rank holds only its part of the model."
    once = "A sum is a reduce-scatter and an all-gather, so each GPU sends 2 (p - 1) / p of its bytes."
    swapped = "Return first the bytes to the tensor group, then those to the data group."
    to_tensor, to_data = 2 * 7 / 8 * 8 * _SUMS_BYTES, 2 * 7 / 8 * _WEIGHT_BYTES / 8
    checks.returns(
        "8 x 8 ranks and 64 sequences: 60.13 GB and 3.06 GB",
        (8, 8, 64),
        expected=(to_tensor, to_data),
        kind=(tuple, list),
        mistakes={
            (8 * to_tensor, to_data): all_tokens,
            (to_tensor, 8 * to_data): whole_model,
            (to_tensor / 2, to_data / 2): once,
            (to_data, to_tensor): swapped,
        },
    )
    checks.returns(
        "a group of one sends nothing",
        (4, 1, 8),
        expected=(0, 2 * 3 / 4 * _WEIGHT_BYTES),
        kind=(tuple, list),
    )


def step_parts(checks: Checks) -> None:
    """The four times of a step"""
    no_stage = (
        4096 * 6 * 7e9 / 400e12,
        0,
        2 * 7 / 8 * _WEIGHT_BYTES / 450e9,
        2 * 7 / 8 * _WEIGHT_BYTES / 8 / 50e9,
    )
    checks.returns(
        "64 copies, one sequence each: 430, 0, 54 and 61 ms",
        (64, 1, 1, 64),
        expected=no_stage,
        kind=(tuple, list),
    )
    # 2 copies of 4 sequences: tensor ranks fill a node, and its two copies are in different nodes
    computing = 8 * no_stage[0] / (2 * 8 * 4)
    sums = 4 / 4 * _SUMS_BYTES  # of four sequences and a quarter of the layers
    gradients, boundary = _WEIGHT_BYTES / 32, 2 * 3 / 4 * 4 * _BOUNDARY_BYTES / 8
    inside_s = 2 * 7 / 8 * sums / 450e9
    ports_s = (2 * 1 / 2 * gradients + boundary) / 50e9
    busy_s = computing + inside_s
    right = (computing, 3 / 4 * busy_s, inside_s, ports_s)
    fewer = "Stages wait for (stages - 1) / (sequences / data) of what a stage does, because a copy has only its own sequences."
    alone = "While one stage computes and sums, another waits. Your stages wait for the computing only."
    missing = "The ports also carry what a stage sends to the next one, on average 2 (q - 1) / q x 8,192 bytes per token."
    all_layers = (
        "Your tensor ranks sum the activations of all layers. A stage has only its own layers."
    )
    undivided = "The tensor ranks of a stage divide among themselves what the stage passes on."
    checks.returns(
        "2 copies, 8 tensor ranks, 4 stages, 8 sequences",
        (2, 8, 4, 8),
        expected=right,
        kind=(tuple, list),
        mistakes={
            (computing, 3 / 8 * busy_s, inside_s, ports_s): fewer,
            (computing, 3 * busy_s, inside_s, ports_s): fewer,
            (computing, 3 / 4 * computing, inside_s, ports_s): alone,
            (computing, 3 / 4 * busy_s, inside_s, 2 * 1 / 2 * gradients / 50e9): missing,
            (computing, 3 / 4 * (computing + 4 * inside_s), 4 * inside_s, ports_s): all_layers,
            (
                computing,
                3 / 4 * busy_s,
                inside_s,
                (gradients + 8 * boundary) / 50e9,
            ): undivided,
        },
    )
    # 8 sequences and half of the layers: the tensor ranks of a stage also sum through the ports, and the other waits
    computing, sums = 8 * no_stage[0] / 64, 4 * _SUMS_BYTES
    inside_s, sums_s = 2 * 7 / 8 * sums / 450e9, 2 * 3 / 4 * sums / 8 / 50e9
    checks.returns(
        "32 tensor ranks in each of 2 stages",
        (1, 32, 2, 8),
        expected=(
            computing,
            1 / 8 * (computing + inside_s + sums_s),
            inside_s,
            sums_s + 8 * _BOUNDARY_BYTES / 32 / 50e9,
        ),
        kind=(tuple, list),
    )
    # 32 tensor ranks are in four nodes, so that their sums have two levels as well
    sums = 4 * _SUMS_BYTES
    checks.returns(
        "2 copies of 32 tensor ranks, which are in four nodes",
        (2, 32, 1, 8),
        expected=(
            8 * no_stage[0] / 64,
            0,
            2 * 7 / 8 * sums / 450e9,
            (2 * 3 / 4 * sums / 8 + 2 * 1 / 2 * _WEIGHT_BYTES / 32) / 50e9,
        ),
        kind=(tuple, list),
    )


def cut_to_fit(checks: Checks) -> None:
    """The tensor ranks and stages that fit"""
    node_first = "First fill the node with tensor ranks, and only then use stages."
    too_many = "More than eight tensor ranks leave the node. Use stages from there on."
    down = "Round the stages up, because a part that is a little too large does not fit."
    checks.returns(
        "7.5 billion parameters in 40 GB: 4 tensor ranks",
        (7.5e9, 40e9),
        expected=(4, 1),
        kind=tuple,
        mistakes={
            (1, 3): node_first,
            (8, 1): "Four tensor ranks keep 30 GB each, so eight are more than needed.",
        },
    )
    checks.returns(
        "39.1 billion parameters in 40 GB: 8 tensor ranks and 2 stages",
        (39.1e9, 40e9),
        expected=(8, 2),
        kind=tuple,
        mistakes={(1, 16): node_first, (16, 1): too_many, (8, 1): down},
    )
    checks.returns(
        "10 billion parameters fill exactly 4 x 40 GB",
        (10e9, 40e9),
        expected=(4, 1),
        kind=tuple,
    )
    checks.returns("a small model stays whole", (1e9, 40e9), expected=(1, 1), kind=tuple)
