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
# ---

# %% [markdown]
# # Start here: exercises
#
# Four functions to write, for [lesson 00](../00_start_here.ipynb). Each exercise has a picture or a table, a function
# that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay folded until
# you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Each goal has inputs of its own, so that you can reach it while you are
# still wrong about another. Only what all goals need, such as a function that returns something, is asked by all of
# them. Nothing here depends on how fast your machine is.

# %%
import statistics

import pandas as pd

from helpers import exercises, plotting, results, timing, units

# %% [markdown]
# ## Exercise 1: how long must it take?
#
# A machine moves or computes an *amount* at a *rate*. Write `time_s(amount, rate)`, which takes the two as texts and
# returns the time in seconds. These are the kinds of amounts and rates that occur, and what is true of them:
#
# | amount | rate | time | because |
# |---|---|--:|---|
# | `'24 GB'` | `'936 GB/s'` | 25.6 ms | G is $10^9$ in both |
# | `'24 GiB'` | `'936 GB/s'` | 27.5 ms | Gi is $2^{30}$ |
# | `'3 GB'` | `'8 Gbit/s'` | 3 s | eight bits are a byte |
# | `'2 GFLOP'` | `'4 GFLOP/s'` | 0.5 s | both count FLOP |
# | `'1 GMAC'` | `'4 GFLOP/s'` | 0.5 s | a [MAC](../glossary.md#mac) is two [FLOP](../glossary.md#flop) |
#
# Amounts are in B, FLOP or MAC, rates in B/s, bit/s or FLOP/s, with any prefix that `units.parse` reads.


# %% answer="units"
def time_s(amount, rate):
    """Return the seconds that `amount` takes at `rate`: time_s('24 GB', '936 GB/s') is 0.0256..."""
    ### BEGIN SOLUTION
    if rate.endswith("bit/s"):
        bytes_per_s = units.parse(rate.replace("bit/s", "B/s"), "B/s") / 8
        return units.parse(amount, "B") / bytes_per_s
    if amount.endswith("MAC"):
        return units.flops_from_macs(units.parse(amount, "MAC")) / units.parse(rate, "FLOP/s")
    if amount.endswith("FLOP"):
        return units.parse(amount, "FLOP") / units.parse(rate, "FLOP/s")
    return units.parse(amount, "B") / units.parse(rate, "B/s")
    ### END SOLUTION


# %% checks="units" points=3
check = exercises.Checks("Exercise 1, time_s", time_s)
prefixes, bits, macs = "GB and GiB are told apart", "bits are told from bytes", "a MAC counts as two FLOP"
upside_down = "That is the rate over the amount; the time is the amount over the rate"
check.returns(prefixes, ("6 GB", "3 GB/s"), expected=2.0, mistakes={0.5: upside_down})
as_gb = "That is 3 GB over 3 GB/s; in 3 GiB the Gi stands for 2**30"
check.returns(prefixes, ("3 GiB", "3 GB/s"), expected=1.073741824, mistakes={1.0: as_gb})
as_bytes = "That takes 8 Gbit/s for 8 GB/s; a byte is eight bits"
bit_mistakes = {0.375: as_bytes, 24.0: "Divide by 8 once, not twice", 1 / 3: upside_down}
check.returns(bits, ("3 GB", "8 Gbit/s"), expected=3.0, mistakes=bit_mistakes)
as_flop = "That counts a MAC as one operation; it is a multiplication and an addition"
check.returns(macs, ("1 GMAC", "4 GFLOP/s"), expected=0.5, mistakes={0.25: as_flop})
twice = "That doubles FLOP; only a MAC counts twice"
check.returns(macs, ("2 GFLOP", "4 GFLOP/s"), expected=0.5, mistakes={1.0: twice})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(1009)
for decimal, binary, factor in (("MB", "MiB", 2**20), ("GB", "GiB", 2**30), ("TB", "TiB", 2**40)):
    count, per_s = draw.randint(2, 999), draw.randint(2, 999)
    check.returns(prefixes, (f"{count} {binary}", f"{per_s} GB/s"), expected=count * factor / (per_s * 10**9))
    check.returns(prefixes, (f"{count} {decimal}", f"{per_s} {decimal}/s"), expected=count / per_s)
    check.returns(bits, (f"{count} {decimal}", f"{per_s} {decimal[0]}bit/s"), expected=8 * count / per_s)
    check.returns(macs, (f"{count} MMAC", f"{per_s} GFLOP/s"), expected=2 * count / (per_s * 1000))
    check.returns(macs, (f"{count} TFLOP", f"{per_s} GFLOP/s"), expected=1000 * count / per_s)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: where to start</summary>
#
# `units.parse(text, unit)` reads every text in the table but one, and refuses what is not in `unit`. Try it on
# `'24 GiB'`.
#
# </details>
# <details><summary>Hint 2: which unit?</summary>
#
# The end of the text tells: `rate.endswith("bit/s")`, `amount.endswith("MAC")`.
#
# </details>
# <details><summary>Hint 3: the two conversions</summary>
#
# Read a rate in bits as if it were in bytes (`replace` the unit in the text) and divide by eight.
# `units.flops_from_macs` does the other one.
#
# </details>


# %% wrong="units" says="in 3 GiB the Gi stands for 2**30" gets=2
def time_s(amount, rate):
    amount = amount.replace("i", "")
    if amount.endswith("MAC"):
        return 2 * units.parse(amount, "MAC") / units.parse(rate, "FLOP/s")
    if amount.endswith("FLOP"):
        return units.parse(amount, "FLOP") / units.parse(rate, "FLOP/s")
    return units.parse(amount, "B") / units.parse(rate.replace("bit", "B"), "B/s") * (8 if "bit" in rate else 1)


# %% wrong="units" says="That takes 8 Gbit/s for 8 GB/s; a byte is eight bits" gets=2
def time_s(amount, rate):
    if amount.endswith("MAC"):
        return 2 * units.parse(amount, "MAC") / units.parse(rate, "FLOP/s")
    if amount.endswith("FLOP"):
        return units.parse(amount, "FLOP") / units.parse(rate, "FLOP/s")
    return units.parse(amount, "B") / units.parse(rate.replace("bit", "B"), "B/s")


# %% wrong="units" says="That counts a MAC as one operation" gets=2
def time_s(amount, rate):
    if "FLOP" in rate:
        return units.parse(amount.replace("MAC", "FLOP"), "FLOP") / units.parse(rate, "FLOP/s")
    return units.parse(amount, "B") / units.parse(rate.replace("bit", "B"), "B/s") * (8 if "bit" in rate else 1)


# %% wrong="units" says="That is the rate over the amount" gets=0
def time_s(amount, rate):
    if amount.endswith("MAC"):
        return units.parse(rate, "FLOP/s") / units.parse(amount, "MAC") / 2
    if amount.endswith("FLOP"):
        return units.parse(rate, "FLOP/s") / units.parse(amount, "FLOP")
    return units.parse(rate.replace("bit", "B"), "B/s") / units.parse(amount, "B") / (8 if "bit" in rate else 1)


# %% wrong="units" says="raised ValueError: '8 Gbit/s' is not in B/s" gets=1
def time_s(amount, rate):
    return units.parse(amount, "B") / units.parse(rate, "B/s")


# %% [markdown]
# ## Exercise 2: cold against warm
#
# Somebody wrote down how long each of six calls of the same function took, in the order in which they were made. (The
# numbers are made up, so that you can check them by hand.)

# %%
durations_s = [0.900, 0.022, 0.020, 0.021, 0.020, 0.057]
calls = {f"call {number}": duration_s for number, duration_s in enumerate(durations_s, start=1)}
drawn = plotting.draw_bars(calls, unit="s", title="Six calls of one function", log=True)
plotting.show(drawn, alt="Six points: the first call takes 900 ms, the next four 20 to 22 ms, the last one 57 ms.")

# %% [markdown]
# Write `cold_and_warm(durations_s)`, which returns three numbers:
#
# 1. the time of the [cold call](../glossary.md#cold-call), which is the first one, whatever it took;
# 2. the minimum of the warm calls, which are all others;
# 3. the median of the warm calls.
#
# There are at least two durations. The list belongs to the caller: leave it as it is.


# %% answer="cold_and_warm"
def cold_and_warm(durations_s):
    """Return the seconds of the cold call, and the minimum and the median of the warm ones."""
    ### BEGIN SOLUTION
    cold_s, *warm_s = durations_s
    return cold_s, min(warm_s), statistics.median(warm_s)
    ### END SOLUTION


# %% checks="cold_and_warm" points=3
check = exercises.Checks("Exercise 2, cold_and_warm", cold_and_warm)
apart, first, kept = "the median is that of the warm calls", "the cold call is the first", "the list is left as it was"
mistakes = {
    (0.9, 0.020, 0.0215): "That median includes the cold call",
    (0.9, 0.020, 0.028): "That is the mean of the warm calls, and one disturbed call moves it; take the median",
    (0.9, 0.020, 1.04 / 6): "That is the mean of all calls, the cold one too; take the median of the warm ones",
}
check.returns(apart, (list(durations_s),), expected=(0.9, 0.020, 0.021), mistakes=mistakes)
middle = "With an even number of warm calls the median lies half-way between the middle two"
even = {(0.5, 0.010, 0.011): middle, (0.5, 0.010, 0.012): middle}
check.returns(apart, ([0.5, 0.014, 0.010, 0.012, 0.011],), expected=(0.5, 0.010, 0.0115), mistakes=even)
as_cold = "That takes the slowest call for the cold one; the cold call is the first"
slowest = {(0.030, 0.010, 0.0175): as_cold, (0.030, 0.010, 0.020): f"{as_cold}. Its median is one of all calls"}
check.returns(first, ([0.015, 0.010, 0.030, 0.020, 0.020],), expected=(0.015, 0.010, 0.020), mistakes=slowest)
check.returns(kept, ([0.8, 0.003, 0.002, 0.001, 0.002],), expected=(0.8, 0.001, 0.002), unchanged=True)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(1013)
for warm_calls in (1, 2, 7, 8, 31):
    warm_s = [draw.uniform(0.001, 0.01) for _ in range(warm_calls)]
    cold_s, ordered_s = 2 * max(warm_s), sorted(warm_s)
    median_s = (ordered_s[(warm_calls - 1) // 2] + ordered_s[warm_calls // 2]) / 2
    check.returns(apart, ([cold_s, *warm_s],), expected=(cold_s, ordered_s[0], median_s))
    low_s, step_s = draw.uniform(0.001, 0.01), draw.uniform(0.001, 0.01)
    middle_s = low_s + step_s  # the mean and the median, with and without one call more
    even_s = draw.sample([low_s, middle_s, middle_s, low_s + 2 * step_s], 4)
    check.returns(first, ([low_s + step_s / 2, *even_s],), expected=(low_s + step_s / 2, low_s, middle_s))
    check.returns(kept, ([4 * middle_s, *even_s],), expected=(4 * middle_s, low_s, middle_s), unchanged=True)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: take the list apart</summary>
#
# `cold_s, *warm_s = durations_s` gives the first one a name, and puts all others into a new list.
#
# </details>
# <details><summary>Hint 2: the median</summary>
#
# `statistics.median` sorts a copy, and knows what to do with an even number of values.
#
# </details>
# <details><summary>Hint 3: three numbers</summary>
#
# `return cold_s, min(...), statistics.median(...)`, and both of the last two see the warm calls only.
#
# </details>


# %% wrong="cold_and_warm" says="Its median is one of all calls" gets=1
def cold_and_warm(durations_s):
    ordered = sorted(durations_s)
    return ordered[-1], ordered[0], statistics.median(ordered)


# %% wrong="cold_and_warm" says="That median includes the cold call" gets=2
def cold_and_warm(durations_s):
    return durations_s[0], min(durations_s), statistics.median(durations_s)


# %% wrong="cold_and_warm" says="That is the mean of the warm calls" gets=2
def cold_and_warm(durations_s):
    return durations_s[0], min(durations_s[1:]), statistics.fmean(durations_s[1:])


# %% wrong="cold_and_warm" says="That takes the slowest call for the cold one" gets=2
def cold_and_warm(durations_s):
    *warm_s, cold_s = sorted(durations_s)
    return cold_s, min(warm_s), statistics.median(warm_s)


# %% wrong="cold_and_warm" says="turned [0.8, 0.003, 0.002, 0.001, 0.002] into [0.003, 0.002, 0.001, 0.002]" gets=2
def cold_and_warm(durations_s):
    cold_s = durations_s.pop(0)
    return cold_s, min(durations_s), statistics.median(durations_s)


# %% [markdown]
# ## Exercise 3: which timings may be compared?
#
# Seven versions of one operation were timed, and kept by name. (Again the numbers are made up.)

# %%
fields = ("cold_s", "minimum_s", "median_s", "calls_per_run", "threads", "device", "reason")
rows = {
    "plain": (400e-6, 7.6e-6, 8.0e-6, 16, 1, "cpu", ""),
    "blocked": (950e-6, 4.9e-6, 5.0e-6, 24, 1, "cpu", ""),
    "padded": (700e-6, 5.1e-6, 5.2e-6, 32, 1, "cpu", ""),
    "unrolled": (300e-6, 4.8e-6, 5.9e-6, 20, 1, "cpu", ""),
    "fused": (350e-6, 2.4e-6, 3.9e-6, 31, 1, "cpu", "the median is 1.62 times the minimum, so something disturbs it"),
    "threaded": (2e-3, 2.9e-6, 3.0e-6, 40, 4, "cpu", ""),
    "on CUDA": (90e-3, 1.9e-6, 2.0e-6, 1000, 1, "cuda:0", ""),
}
timings = {}
for name, row in rows.items():
    known = dict(zip(fields, row, strict=True))
    timings[name] = timing.Timing(iqr_s=1e-7, runs=64, waiting_share=0.0, stable=not known["reason"], **known)
table = pd.DataFrame([{"name": name, **one.to_dict()} for name, one in timings.items()])
results.printed(table.set_index("name")[[*fields[:-1], "stable"]])

# %% [markdown]
# Write `ranking(timings, threads, device)`. `timings` maps names to `Timing`. Return the list of the names of those
# that
#
# - are stable: the others say in `reason` why their median may be anything;
# - ran with `threads` threads on `device`: a faster machine does not make a faster program;
#
# in the order of their medians, the fastest first. `median_s` is the time of one call, also where a run held many
# calls. No two medians are equal. Where nothing may be compared, return an empty list.


# %% answer="ranking"
def ranking(timings, threads, device):
    """Return the names of the stable timings with these threads on this device, the smallest median first."""
    ### BEGIN SOLUTION
    comparable = [
        name for name, one in timings.items() if one.stable and one.threads == threads and one.device == device
    ]
    return sorted(comparable, key=lambda name: timings[name].median_s)
    ### END SOLUTION


# %% checks="ranking" points=3
check = exercises.Checks("Exercise 3, ranking", ranking)
in_table = "That looks names up in the table above; look them up in the timings that your function is given"
stable, alike, order = "only stable timings", "only the threads and the device asked for", "the smallest median first"
unstable = {("fused", "plain"): "fused is not stable: print its reason"}
two = {name: timings[name] for name in ("plain", "fused")}
check.returns(stable, (two, 1, "cpu"), expected=["plain"], mistakes=unstable)
swapped = {"plain": timings["fused"], "fused": timings["plain"]}
check.returns(stable, (swapped, 1, "cpu"), expected=["fused"], mistakes={("plain",): in_table})
elsewhere = {name: timings[name] for name in ("plain", "threaded", "on CUDA")}
more = "threaded ran with 4 threads, plain with 1: more processors, not a better program"
other = "on CUDA ran on another device, so it says nothing about this one"
mixed = {("threaded", "plain"): more, ("on CUDA", "plain"): other, ("on CUDA", "threaded", "plain"): f"{other}; {more}"}
check.returns(alike, (elsewhere, 1, "cpu"), expected=["plain"], mistakes=mixed)
swapped = {"plain": timings["threaded"], "threaded": timings["plain"]}
check.returns(alike, (swapped, 1, "cpu"), expected=["threaded"], mistakes={("plain",): in_table})
check.returns(alike, (elsewhere, 1, "cuda:0"), expected=["on CUDA"])
check.returns(alike, (elsewhere, 8, "cpu"), expected=[])
wrong_orders = {
    ("unrolled", "blocked", "padded", "plain"): "That is the order of the minima: unrolled was lucky once",
    ("unrolled", "plain", "padded", "blocked"): "That is the order of the cold calls",
    ("padded", "blocked", "unrolled", "plain"): "Do not divide by calls_per_run: median_s is the time of one call",
    ("plain", "unrolled", "padded", "blocked"): "That is the slowest first",
}
four = {name: timings[name] for name in ("plain", "blocked", "padded", "unrolled")}
check.returns(order, (four, 1, "cpu"), expected=["blocked", "padded", "unrolled", "plain"], mistakes=wrong_orders)
swapped = {"plain": timings["blocked"], "blocked": timings["plain"]}
check.returns(order, (swapped, 1, "cpu"), expected=["plain", "blocked"], mistakes={("blocked", "plain"): in_table})
check.report()
### BEGIN HIDDEN TESTS
import dataclasses
import random

draw = random.Random(1019)
for goal in (stable, alike, order) * 4:
    medians, pool = draw.sample(range(10, 99), 12), {}
    for number, median in enumerate(medians if goal == order else sorted(medians)):
        changes = {"median_s": median * 1e-4, "minimum_s": median * 9e-5, "cold_s": median * 1e-2}
        if goal == stable and draw.random() < 0.5:
            changes |= {"stable": False, "reason": "too few runs"}
        if goal == alike:
            changes |= {"threads": draw.choice([1, 2]), "device": draw.choice(["cpu", "cuda:0"])}
        if goal == order:
            changes |= {"minimum_s": median * 1e-4 * draw.uniform(0.81, 1), "calls_per_run": draw.randint(1, 9)}
            changes |= {"cold_s": draw.uniform(0.1, 1)}
        pool[f"v{number}"] = dataclasses.replace(timings["plain"], **changes)
    settings = [(threads, device) for device in ("cpu", "cuda:0") for threads in (1, 2)]
    for threads, device in settings if goal == alike else settings[:1]:
        fit = [n for n, t in pool.items() if t.stable and (t.threads, t.device) == (threads, device)]
        check.returns(goal, (pool, threads, device), expected=sorted(fit, key=lambda n: pool[n].median_s))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: look at one</summary>
#
# `print(timings["fused"])` shows every field with its name: `timings["fused"].stable` is one of them.
#
# </details>
# <details><summary>Hint 2: choose</summary>
#
# A list comprehension over `timings.items()` keeps the names whose timing fulfils three conditions.
#
# </details>
# <details><summary>Hint 3: sort</summary>
#
# `sorted(names, key=lambda name: ...)` sorts names by what the function after `key` gives for each.
#
# </details>


# %% wrong="ranking" says="fused is not stable: print its reason" gets=2
def ranking(timings, threads, device):
    alike = [name for name, one in timings.items() if (one.threads, one.device) == (threads, device)]
    return sorted(alike, key=lambda name: timings[name].median_s)


# %% wrong="ranking" says="more processors, not a better program" gets=2
def ranking(timings, threads, device):
    steady = [name for name, one in timings.items() if one.stable and one.device == device and one.threads >= threads]
    return sorted(steady, key=lambda name: timings[name].median_s)


# %% wrong="ranking" says="on CUDA ran on another device, so it says nothing about this one" gets=2
def ranking(timings, threads, device):  # noqa: ARG001
    fit = [name for name, one in timings.items() if one.stable and one.threads == threads]
    return sorted(fit, key=lambda name: timings[name].median_s)


# %% wrong="ranking" says="look them up in the timings that your function is given" gets=0
def ranking(given, threads, device):
    fit = [n for n in given if timings[n].stable and (timings[n].threads, timings[n].device) == (threads, device)]
    return sorted(fit, key=lambda n: timings[n].median_s)


# %% wrong="ranking" says="expected ['blocked', 'padded', 'unrolled', 'plain']" gets=2
def ranking(timings, threads, device):
    return [name for name, one in timings.items() if one.stable and (one.threads, one.device) == (threads, device)]


# %% wrong="ranking" says="That is the order of the minima" gets=2
def ranking(timings, threads, device):
    fit = [name for name, one in timings.items() if one.stable and (one.threads, one.device) == (threads, device)]
    return sorted(fit, key=lambda name: timings[name].minimum_s)


# %% wrong="ranking" says="Do not divide by calls_per_run" gets=2
def ranking(timings, threads, device):
    fit = [name for name, one in timings.items() if one.stable and (one.threads, one.device) == (threads, device)]
    return sorted(fit, key=lambda name: timings[name].median_s / timings[name].calls_per_run)


# %% [markdown]
# ## Exercise 4: a fair comparison
#
# Two functions, and the question how many times longer the second takes. The machine is not kind: every first call is
# cold, the processor gets hotter and slower as time goes on, and now and then another program disturbs a call. A
# comparison that is fair all the same makes its calls in this order, here for three rounds:
#
# | | warm-up | warm-up | round 1 | round 1 | round 2 | round 2 | round 3 | round 3 |
# |---|---|---|---|---|---|---|---|---|
# | call | first | second | first | second | first | second | first | second |
# | timed | no | no | yes | yes | yes | yes | yes | yes |
#
# Write `fair_ratio(first, second, clock, rounds)`. `first()` and `second()` run the two functions, `clock()` returns
# the time in seconds; no other clock knows this machine. Begin by calling each function once, before any reading of the
# clock. Then, in each of `rounds` rounds, time one call of `first` and one of `second`: read the clock just before the
# call and just after it. Return the median of the times of `second` over the median of the times of `first`.
#
# The checks run your function on a machine whose time is made up and which keeps a log, so every call and every reading
# of the clock is counted. It is kinder than a real one, and does not get hotter: whether the two take turns is read in
# the log, and the ratio is a goal of its own.


# %% answer="fair_ratio"
def fair_ratio(first, second, clock, rounds):
    """Return the median time of `second` over that of `first`, from `rounds` rounds in which they take turns."""
    ### BEGIN SOLUTION
    first()
    second()
    first_s, second_s = [], []
    for _ in range(rounds):
        for function, times_s in ((first, first_s), (second, second_s)):
            start_s = clock()
            function()
            times_s.append(clock() - start_s)
    return statistics.median(second_s) / statistics.median(first_s)
    ### END SOLUTION


# %%
def cost_s(name, nth, _total):
    """Seconds of call number `nth` (from 0) of a function: the first is cold, and one of `second` is disturbed."""
    warm_s = {"first": 0.002, "second": 0.003}[name]
    return 0.5 if nth == 0 else 10 * warm_s if (name, nth) == ("second", 4) else warm_s


# %% checks="fair_ratio" points=4
check = exercises.Checks("Exercise 4, fair_ratio", fair_ratio)
warmed, equal, turns = "each is warmed up once, untimed", "each is timed once a round", "they take turns"
ratio = "the ratio is that of the medians"
machine = exercises.FakeMachine(cost_s)
first, second = machine.function("first"), machine.function("second")
mean = "That is the ratio of the means: one disturbed call moves it"
upside_down = "That is the time of first over that of second; turn it round"
mistakes = {4.2: mean, 2 / 3: upside_down}
check.returns(ratio, (first, second, machine.clock, 5), expected=1.5, mistakes=mistakes)
two_cold = sorted(machine.log[:2]) == ["first", "second"] and len(machine.untimed) == 2
begins = f"The log begins {machine.log[:3]}, and {len(machine.untimed)} calls in it are untimed"
needed = "It must begin with one call of each, before any reading of the clock; all later calls are timed"
check.holds(warmed, two_cold, otherwise=f"{begins}.\n{needed}")
counts = {name: machine.timed.count(name) for name in ("first", "second")}
in_rounds = f"In 5 rounds each is timed 5 times, not {counts}"
no_clock = "Your function never read the clock that it was given: call clock(); time.perf_counter knows no made-up time"
read = in_rounds if "clock" in machine.log else no_clock
check.holds(equal, counts == {"first": 5, "second": 5}, otherwise=read)
in_turn = f"The timed calls began {machine.timed[:4]}: time both in every round"
check.holds(turns, machine.takes_turns, otherwise=in_turn)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(1021)
for rounds in (3, 6, 9):
    warm_s = {"first": draw.uniform(0.001, 0.01), "second": draw.uniform(0.001, 0.01)}

    def hidden_cost_s(name, nth, _total, warm_s=warm_s, rounds=rounds):
        lucky, disturbed = (name, nth) == ("second", 1), (name, nth) == ("first", rounds)
        odd = 0.1 if lucky else 20 if disturbed else 1
        return 0.7 if nth == 0 else warm_s[name] * odd

    machine = exercises.FakeMachine(hidden_cost_s)
    calls = (machine.function("first"), machine.function("second"), machine.clock, rounds)
    check.returns(ratio, calls, expected=warm_s["second"] / warm_s["first"])
    two_cold = sorted(machine.log[:2]) == ["first", "second"] and len(machine.untimed) == 2
    check.holds(warmed, two_cold, otherwise="untimed calls")
    timed_often = [machine.timed.count(name) for name in ("first", "second")]
    check.holds(equal, timed_often == [rounds, rounds], otherwise="timed calls")
    check.holds(turns, machine.takes_turns, otherwise="turns")
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: time one call</summary>
#
# `start_s = clock()`, then the call, then `clock() - start_s`.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# One loop over the rounds. Within it both functions are timed, each into its own list. Two loops, one for each
# function, would leave the hot end of the measurement to one of them.
#
# </details>
# <details><summary>Hint 3: why medians</summary>
#
# One disturbed call among five makes a mean many times too large, and does not move the median: `statistics.median`.
#
# </details>


# %% wrong="fair_ratio" says="begins ['clock', 'first', 'clock'], and 0 calls in it are untimed" gets=3
def fair_ratio(first, second, clock, rounds):
    times_s = {first: [], second: []}
    for _ in range(rounds):
        for function in (first, second):
            start_s = clock()
            function()
            times_s[function].append(clock() - start_s)
    return statistics.median(times_s[second]) / statistics.median(times_s[first])


# %% wrong="fair_ratio" says="begins ['clock', 'first', 'clock'], and 2 calls in it are untimed" gets=3
def fair_ratio(first, second, clock, rounds):
    first_s, second_s = [], []
    for _ in range(rounds):
        for function, times_s in ((first, first_s), (second, second_s)):
            start_s = clock()
            function()
            times_s.append(clock() - start_s)
    first()
    second()
    return statistics.median(second_s) / statistics.median(first_s)


# %% wrong="fair_ratio" says="The log begins ['clock', 'first', 'second'], and 2 calls in it are untimed" gets=3
def fair_ratio(first, second, clock, rounds):
    start_s = clock()
    first()
    second()
    cold_s = clock() - start_s
    times_s = {first: [], second: []}
    for _ in range(rounds):
        for function in (first, second):
            start_s = clock()
            function()
            times_s[function].append(clock() - start_s)
    return statistics.median(times_s[second]) / statistics.median(times_s[first]) if cold_s else None


# %% wrong="fair_ratio" says="Your function never read the clock that it was given" gets=0
def fair_ratio(first, second, clock, rounds):  # noqa: ARG001
    import time

    first()
    second()
    times_s = {first: [], second: []}
    for _ in range(rounds):
        for function in (first, second):
            called_s = time.perf_counter()
            function()
            times_s[function].append(time.perf_counter() - called_s)
    return statistics.median(times_s[second]) / statistics.median(times_s[first])


# %% wrong="fair_ratio" says="That is the time of first over that of second" gets=3
def fair_ratio(first, second, clock, rounds):
    first()
    second()
    times_s = {first: [], second: []}
    for _ in range(rounds):
        for function in (first, second):
            start_s = clock()
            function()
            times_s[function].append(clock() - start_s)
    return statistics.median(times_s[first]) / statistics.median(times_s[second])


# %% wrong="fair_ratio" says="The timed calls began ['first', 'first', 'first', 'first']" gets=3
def fair_ratio(first, second, clock, rounds):
    first()
    second()
    medians_s = []
    for function in (first, second):
        times_s = []
        for _ in range(rounds):
            start_s = clock()
            function()
            times_s.append(clock() - start_s)
        medians_s.append(statistics.median(times_s))
    return medians_s[1] / medians_s[0]


# %% wrong="fair_ratio" says="That is the ratio of the means" gets=3
def fair_ratio(first, second, clock, rounds):
    first()
    second()
    times_s = {first: [], second: []}
    for _ in range(rounds):
        for function in (first, second):
            start_s = clock()
            function()
            times_s[function].append(clock() - start_s)
    return statistics.fmean(times_s[second]) / statistics.fmean(times_s[first])


# %% wrong="fair_ratio" says="In 5 rounds each is timed 5 times, not {'first': 5, 'second': 6}" gets=2
def fair_ratio(first, second, clock, rounds):
    first()
    second()
    times_s = {first: [], second: []}
    for function in (second, *(first, second) * rounds):
        start_s = clock()
        function()
        times_s[function].append(clock() - start_s)
    return statistics.median(times_s[second]) / statistics.median(times_s[first])


# %% [markdown]
# ## Question 1: why the first call?
#
# A friend times one call of a function, gets 900 ms, and reports that the function takes 900 ms. You call it again and
# again and get 20 ms. Name two things that a first call may have to do and later calls need not, and say which of the
# two numbers you would report for a function that a program calls a thousand times, and which for one that it calls
# once.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="first_call" points=2
# A full answer says:
#
# - 1 point: two things that are done once, such as loading or compiling code, allocating memory, reading data into a
#   cache, starting threads. "It warms up", with no thing named, is not enough.
# - 1 point: the later number for a thousand calls (the first is one in a thousand of them), the first number for a
#   single call; the reason must say that each is right for its own use.

# %% [markdown]
# ## Question 2: an operation of your own
#
# Choose an operation that the lesson did not time: a sort, a softmax, a sum along rows, a convolution, whatever you
# use. Predict its time for one size. Model it from this machine's two rates (bytes a second of a copy, FLOP a second of
# a product). Then measure it with `helpers.measure`.
#
# Give the three numbers with the size, say whether it waits for data, for arithmetic or for something else, and explain
# a distance of more than a factor of two between model and measurement. Three to six sentences; a person reads them.

# %% [markdown] written="own_operation" points=2
# A full answer says:
#
# - 1 point: three numbers with units; the model counts bytes and FLOP of the stated size (reads and writes, 4 bytes a
#   float32), and takes the longer of the two times.
# - 1 point: an explanation that fits the numbers: the cost of a call for small sizes, data that came from a cache,
#   fresh memory, an operation that does other work than multiply-adds (comparisons, exponentials), a kernel that does
#   not vectorise, or an unstable measurement that is named as such. "The model is wrong" is no explanation.

# %% [markdown]
# ## What you have practised
#
# Reading units without mixing them up, keeping the cold call apart, telling which timings may stand side by side, and
# comparing fairly on a machine that is not. `helpers.measure` and `helpers.compare` do the last three for you; now
# you know what they do.
