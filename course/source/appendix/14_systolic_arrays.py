# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   lesson:
#     number: "14"
#     title: The paper's unit, the energy of a byte, and AlexNet on two arrays
# ---

# %% [markdown]
# # The paper's unit, the energy of a byte, and AlexNet on two arrays
#
# The lesson follows the time of one tile. Here are three things that it leaves out. We check in which unit the paper
# counts operations, we price the bytes that move, and we send a whole network through two arrays.

# %% tags=["hide-input"]
import numpy as np
import pandas as pd

import helpers
from helpers import hardware, plotting
from helpers.studies import history
from helpers.studies.simulators import systolic

tpu = hardware.device("TPU v1")
bandwidth = tpu.memory_bandwidth_bytes_per_s
applications = systolic.tpu_applications().applications

# %% [markdown]
# ## Is a multiply-add one operation or two?
#
# The paper gives "operations per weight byte" for each of its six applications, and a peak of 92 trillion operations
# per second, in which a multiply-add counts as two. Does it count as two in the first number as well? The measured
# speeds can decide this, because no application can be faster than its memory allows. The figure draws both roofs.

# %% tags=["hide-input"]
peak = 2 * tpu.array_rows * tpu.array_columns * tpu.clock_hz / 1e12
per_byte = np.geomspace(20, 4000, 50)
figure, axes = plotting.figure(
    title="Six applications on TPU v1, under two roofs", height_in=4.4
)
for operations, name in {1: "an operation", 2: "a multiply-add, two operations"}.items():
    roof = np.minimum(peak, operations * per_byte * bandwidth / 1e12)
    style = "--" if operations == 1 else "-"
    axes.loglog(per_byte, roof, style, color=plotting.MODELLED, label=f"roof if it is {name}")
for app in applications:
    point = (app.ops_per_weight_byte, app.measured_tops)
    label = "measured by Google (published)" if app is applications[0] else None
    axes.plot(*point, "o", color=plotting.MEASURED, label=label)
    above = app.name in ("MLP0", "MLP1", "LSTM0")
    offset, side = ((-8, 6), "right") if above else ((9, -12), "left")
    axes.annotate(app.name, point, offset, textcoords="offset points", ha=side)
axes.text(500, 3, "above its roof a point\nwould be impossible", color="#555555")
axes.set(xlabel='"operations per weight byte"', ylabel="10$^{12}$ operations per second")
axes.legend()
alt = "Three points lie above the dashed, lower roof, and all lie below the upper one."
plotting.show(figure, alt=alt)

# %% tags=["hide-input"]
table = {}
for app in applications:
    roofs = [min(peak, n * app.ops_per_weight_byte * bandwidth / 1e12) for n in (1, 2)]
    table[app.name] = [
        f"{app.ops_per_weight_byte:,}",
        f"{app.measured_tops:.1f}",
        *(f"{app.measured_tops / roof:.2f}" for roof in roofs),
    ]
columns = ["per weight byte", "10^12 per second", "of the lower roof", "of the upper roof"]
pd.DataFrame(table, index=columns).T

# %% [markdown]
# MLP0, MLP1 and LSTM0 would lie above the lower roof, which is impossible, so the unit is multiply-adds. This also
# explains why the number equals the batch in the first four rows, because a weight of one byte meets each row once.
# Four applications reach 0.85 of their roof or more. LSTM1 and CNN1 do not, and the counters say why.

# %% tags=["hide-input"]
table = {}
for app in applications[3:]:
    table[app.name] = [
        f"{app.active_share:.1%}",
        f"{app.useful_share / app.active_share:.1%}",
        f"{app.stall_share + app.shift_share:.1%}",
    ]
columns = ["active", "useful part of the active cycles", "waits for weights or moves them"]
pd.DataFrame(table, index=columns).T

# %% [markdown]
# LSTM1 has matrices of 600 × 600 weights, which fill 61.0 % of their tiles. If we count the padding as work, it
# reaches 0.43 / 0.61, or 0.70 of its roof. CNN1 has layers with few channels, which leave half of the active
# multipliers without a weight, and in 35 % of the cycles it waits for the weights of its other layers or moves them
# in. Counters and speeds do not agree perfectly. CNN0 is active in 78 % of the cycles and reaches 94 % of the peak.
# The paper says so itself, and we take both as published.
#
# ## Where does the energy go?
#
# A byte from memory costs far more energy than a multiply-add. Take one layer of 1,024 × 1,024 weights of one byte,
# on an array of side 256. We price a multiply-add as 1, each byte that crosses the array's edges as an access to a
# buffer (a sum has 4 bytes), and each weight once from memory. Two published tables give the prices, one of a
# research chip (Chen, Emer and Sze, *Eyeriss*, 2016, 65 nm) and one of circuits (Horowitz, 2014, 45 nm, 8 bits).

# %% tags=["hide-input"]
relative = {cost.name: cost.mac_ratio for cost in history.relative_energy_costs().costs}
mac_pj = sum(history.energy_cost(name).least_pj for name in ("int8 multiply", "int32 add"))
byte_pj = [history.energy_cost(name).least_pj / 8 for name in ("cache of 1 MB", "DRAM")]
prices = {
    "Eyeriss": (relative["buffer"], relative["DRAM"]),
    "Horowitz": tuple(picojoule / mac_pj for picojoule in byte_pj),
}
table = {}
for batch in (1, 256):
    edge = systolic.model_accesses(batch, 1024, 1024, rows=256, columns=256)
    edge_bytes = edge.input_reads + edge.filter_reads
    edge_bytes += 4 * (edge.output_writes + edge.partial_sum_reads)
    per_mac = edge_bytes / (batch * 1024**2)
    column = {"bytes at the edges, per multiply-add": f"{per_mac:.3f}"}
    column["bytes from memory, per multiply-add"] = f"{1 / batch:.4f}"
    for name, (buffer, memory) in prices.items():
        parts = 1, buffer * per_mac, memory / batch
        column[f"{name}: energy, in multiply-adds"] = f"{sum(parts):.1f}"
        column[f"{name}: share of memory"] = f"{parts[2] / sum(parts):.1%}"
    table[f"batch {batch}"] = column
pd.DataFrame(table)

# %% [markdown]
# All numbers are modelled. The two tables differ by a factor of seven for buffers and of three for memory, but both
# give the same answer. With a batch of 1 nearly all the energy goes into reading weights, because each weight is read
# for a single multiply-add. A batch of 256 shares the read. We left out the registers and the steps between
# neighbours, which cost a few multiply-adds and matter only for the large batch.
#
# ## How does AlexNet fill an array?
#
# The lesson counts the places of a single matrix. A network is a row of products, each with its own rows, so both the
# fill of the tiles and the number of rows count. Here is AlexNet with a batch of 128, on arrays of side 128 and 256
# with double buffering, as if all weights were on the chip.

# %% tags=["hide-input"]
table, alexnet = {}, helpers.AlexNet(towers=1)
for side in (128, 256):
    array = {"rows": side, "columns": side, "double_buffered": True}
    network = systolic.simulate_network(alexnet, (128, 3, 224, 224), **array)
    column = {layer.layer: f"{layer.utilisation_share:.1%}" for layer in network.layers}
    column["whole network"] = f"{network.utilisation_share:.1%}"
    table[f"side {side}"] = column
pd.DataFrame(table).rename_axis("share of the PEs at work")

# %% [markdown]
# The third convolution has 384 filters, which make three columns of tiles of side 128, but one and a half of side
# 256. The first has 96 filters and 3 × 11 × 11, or 363 values in a patch, so it fills neither array well. In the
# linear layers 128 rows pass while the next tile of side 256 takes 256 cycles to come in, so half of the time is
# lost.
#
# One layer is easy to follow by hand. The first convolution is a product in which every position of its output is a
# row, and the filters are the columns.

# %%
first = systolic.gemm_of(alexnet.conv1, (128, 3, 224, 224))
array = {"rows": 128, "columns": 128, "double_buffered": True}
cycles = systolic.model_cycles(first.m, first.n, first.k, **array)
places = 128 * 128 * cycles
print(f"{first.m:,} rows, {first.k} values in each, {first.n} columns: {cycles:,} cycles")
print(f"share of the PEs at work {first.m * first.n * first.k / places:.1%}")
