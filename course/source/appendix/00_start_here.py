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
#     number: "00"
#     title: What a pause does to a copy
# ---

# %% [markdown]
# # What a pause does to a copy
#
# In the lesson `a * b` was faster alone than in turns with a product. The likely reason was the cache. Alone, a program finds its matrices where its
# last call has left them, whereas in turns something may have replaced them. There are two suspects, the product itself and everybody else who uses
# this cache. Here we tell them apart, with a copy, because it has a single matrix to find.

# %% tags=["hide-input"]
import statistics
import time

import torch

import helpers
from helpers import plotting
from helpers.studies import start_here

torch.set_num_threads(1)  # one core
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors

# %% [markdown]
# ## A pause that leaves the cache alone
#
# Between two copies we let the core multiply two tiny matrices again and again, for as long as we like. With their result they take 48 KiB, so they
# hardly touch the cache. If a copy is fast after a pause that is as long as the product, then the product is to blame for the slow ones. If it is as
# slow, the product is innocent, because the pause alone is enough.

# %%
a, b, c = torch.rand(3, 1024, 1024)
tiny_a, tiny_b = torch.rand(2, 64, 64)


def tiny_products(pause_s):
    until_s = time.perf_counter() + pause_s
    while time.perf_counter() < until_s:
        tiny_a @ tiny_b


def copy_rate_after(interlude, runs=20):
    """Return the median bytes per second of copies, each after a call of interlude()."""
    times_s = []
    for _ in range(runs):
        interlude()
        begun_s = time.perf_counter()
        c.clone()
        times_s.append(time.perf_counter() - begun_s)
    return 2 * c.nbytes / statistics.median(times_s)


# %% tags=["hide-input"]
pauses_s = (0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04)
rates = {
    pause_s: copy_rate_after(lambda pause_s=pause_s: tiny_products(pause_s))
    for pause_s in pauses_s
}
product_s = helpers.measure(lambda: a @ b, budget_s=0.5).median_s
after_product = (product_s, copy_rate_after(lambda: a @ b))
alt = "The rate of a copy over the pause before it, and after a product."
plotting.show(start_here.draw_pauses(rates, product=after_product), alt=alt)

# %% [markdown]
# If your star is on the curve, the product is innocent. So it was on an Intel Xeon, a virtual machine with two cores on which other programs were
# running. Alone, the copy moved 19 GB/s there, after a product 10 and after a pause of the same length 9 (measured, in time that the core spent on
# the copy). What remains is that others filled the shared cache in the meantime, the other programs or the other guests of the server. If your curve is
# level and the star below it, the product has done it. If both are level, as they may be on a laptop that does nothing else, nobody has.
#
# So a rate in turns depends on the machine's other users, and it changes with the time of day on a server that you share. If you need a rate for a
# decision, measure it in turns with the work between which your program will run, and measure it again.
#
# ## More of the course's tools
#
# Your predictions stay in one private file beside the lessons, and `helpers.progress()` shows how far you are. `helpers.gpu_train` trains LeNet on a
# GPU, if you have one. `helpers.doctor.examine` examines this machine, as `python -m helpers` does in a terminal, and says what to try.
