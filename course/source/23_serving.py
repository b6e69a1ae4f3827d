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
#     number: "23"
#     title: Serving
#     needs: ["22"]
#     objectives:
#       - work|worked out how many requests per second a GPU can serve at most
#       - write|wrote a scheduler that decides after every step, and one that cuts prompts into pieces
#       - write|wrote an allocator that gives memory out in pages
#       - predict|predicted how a queue grows when more arrives than the server can do
#       - judge|judged a server by the requests that keep a promise, and not by tokens per second
# ---

# %% [markdown] tags=["objectives"]
# # Serving
#
# In the table of [lesson 22](22_decoding.ipynb), an H100 with 64 users writes 6,745 tokens of Llama 3 8B per second (modelled). If an answer has 250 tokens, that should be 27
# answers per second. So we simulated a server on this GPU. It takes up to 64 waiting requests together, reads their prompts, and writes until all of
# them are answered. Requests came at random, on average one per second, and only 31 of 100 had their first token within half a second.
#
# How can a GPU that could write 27 answers per second be too slow for one? It is not. The median request waited 1.0 s for its first token, nearly all of
# it for somebody else's answer. In this lesson no kernel becomes faster and no model smaller. We change only the order of the work and the things that
# the server keeps.
#
# A service makes a promise about two times. The [time to first token](glossary.md#time-to-first-token) (TTFT) begins when a request arrives. The
# [time per output token](glossary.md#time-per-output-token) (TPOT) is the mean time from one token of an answer to the next. We take the limits of the
# benchmark MLPerf for interactive use of Llama 3.1 8B, 500 ms and 30 ms
# ([settings](https://github.com/mlcommons/inference/blob/master/loadgen/mlperf.conf)), and 99 of 100 requests must keep both. Our prompts have 2,000
# tokens on average, between 1,600 and 2,400. The first 1,500 are the same in all of them, because a chat service puts its instructions before each
# question. The lengths of the answers are random as well (exponentially distributed), with a mean of 250.
#
# Everybody who deploys a model has to know how many requests it can promise to serve, and tokens per second do not tell. For the H100 we *simulate*.
# Requests arrive at random from a fixed seed, and a real scheduler chooses the tokens of each step, but the step itself only advances a clock by its
# modelled time. On your CPU the same loop runs a real model. The times in the text that are called measured are from the machine that wrote this
# page, one core of a shared server.

# %% tags=["hide-input"]
import time

import pandas as pd
import torch
from torch.nn.functional import gelu

import helpers
from helpers import exercises, models, plotting
from helpers.studies import decoding, serving

check = exercises.checks_of("serving")
device = "cuda" if torch.cuda.is_available() else "cpu"
llama = decoding.CONFIGS["Llama 3 8B"]
h100 = serving.gpu_step(llama, bandwidth_bytes_per_s=3.35e12, flops_per_s=400e12)
promise = serving.MLPERF_INTERACTIVE


# %% tags=["hide-input"]
def simulate(server, rate, seed=0, requests=None, **options):
    """Serve ten minutes of requests, or so many of them, on the simulated H100."""
    arriving = serving.random_requests(requests or round(600 * rate), rate, seed=seed)
    return serving.serve(arriving, h100, **server, **options)


def kept_share(server, rate, requests=2000, runs=3):
    """Return the mean share of kept promises in so many runs."""
    shares = []
    for seed in range(runs):
        report = simulate(server, rate, seed, requests)
        times = report.ttfts_s, report.tpots_s
        shares.append(serving.good_share(*times, promise.ttft_s, promise.tpot_s))
    return sum(shares) / runs


# %% tags=["hide-input"]
first_server = {"slots": 64, "admit": serving.admit_static, "plan": serving.read_together}
report = simulate(first_server, rate=1)
in_time = sum(ttft_s <= promise.ttft_s for ttft_s in report.ttfts_s)
print(f"one request per second: {in_time} of {len(report.requests)} had a token within 500 ms")

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# How far can the order of the work alone bring us?
#
# - A request has 2,000 tokens to read and 250 to write
# - Promised are a first token within half a second and no slow ones later
# - 99 of 100 requests must keep this promise
#
# The server above cannot promise a single one. Write down how many the best program of this lesson can promise on the same GPU.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100]
bet = helpers.predict(
    "With the best server program, "
    "how many of these requests per second can one H100 promise to serve?",
    "requests/s",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A read token is cheap, and there are many"
# ## Part 1: what a request costs
#
# What does a request cost? We begin here because no server can do more work than its GPU can.
#
# - A token that is read costs arithmetic
# - A token that is written shares the weights with its batch
# - For it, keys and values of all earlier tokens are loaded
#
# The line of lesson 22 counted only the bytes of a step. A server's step may also contain prompts, so now the arithmetic of its tokens counts as well. The
# GPU can compute with some weights while it reads the next, so only the larger of these two times counts. The
# [KV caches](glossary.md#kv-cache), which are no [caches](glossary.md#cache) of a processor, come on top.
#
# > time of a step = the larger of (weights / [bandwidth](glossary.md#bandwidth)) and (tokens × operations per token / rate), plus caches / bandwidth


# %%
def h100_step_s(tokens, cached):
    """Return the seconds of a step over `tokens` that also reads `cached` tokens."""
    weights_s = 15.01e9 / 3.35e12
    arithmetic_s = tokens * 2 * 7.5e9 / 400e12
    return max(weights_s, arithmetic_s) + cached * 131_072 / 3.35e12


# %% [markdown]
# The 15.0 GB of weights take 4.48 ms. A token needs 15 billion operations, which take 0.0375 ms at 400 TFLOP/s, the rate that the training of Llama 3
# reached on each H100 (published). So 119 tokens take as long as the weights. (Lesson 22 had 295, from the peak of the data sheet.) Reading a cache of
# 2,000 tokens takes 0.078 ms.
#
# A prompt of 2,000 tokens therefore costs 75 ms. If 64 requests share each step, a written token costs a 64th of the weights, 0.070 ms, and the reading of
# its own cache. The cache holds the prompt and the part of the answer that is already written. Averaged over all written tokens, this part has 250
# tokens and not 125, because long answers write most of the tokens. So reading the cache takes 0.088 ms. Together that is 0.158 ms, and 250 such
# tokens cost 40 ms.

# %% tags=["hide-input"]
reading_s = 2000 * 2 * 7.5e9 / 400e12
token_s = h100_step_s(64, 64 * 2250) / 64
costs = {
    "read 2,000 tokens": (reading_s, 2000),
    "write 250 tokens, 64 at once": (250 * token_s, 250),
    "a request": (reading_s + 250 * token_s, None),
}
pd.DataFrame(
    [
        (f"{1e3 * seconds:.0f} ms", f"{1e3 * seconds / tokens:.4g} ms" if tokens else "")
        for seconds, tokens in costs.values()
    ],
    columns=["in all", "per token"],
    index=list(costs),
)

# %% [markdown]
# A whole request costs 115 ms, so the GPU can serve 8.7 per second. The 27 were wrong because the table counted only the writing, whereas two thirds of
# the cost is reading. Turn it yourself. Which share of the prompt must be kept before writing costs more than reading?

# %% tags=["hide-input"]
serving.explore_request()

# %% [markdown]
# With half of the prompt kept, reading costs 38 ms and writing 40. Does this line deserve to be trusted? NVIDIA publishes how many tokens per second its server TensorRT-LLM writes with Llama 3.1 8B on one H100 that never
# runs out of requests ([table](https://github.com/NVIDIA/TensorRT-LLM/blob/00f37686aa854010d68bcbd0f4ab000221541ca6/docs/source/performance/perf-overview.md)).
# Prompts and answers have between 128 and 20,000 tokens there. The line, with 8-bit weights and caches and 800 TFLOP/s, is right to within a quarter
# in all of its rows, and [the appendix](appendix/23_serving.ipynb) says why two of them differ most.
#
# **To remember.** A read token costs 0.0375 ms of an H100, and a token written in a batch of 64 costs 0.158 ms, four times as much. With 2,000 read and
# 250 written, 8.7 requests per second are the limit of 64 at once, if reading and writing do not overlap.
#
# A limit of 8.7 is still far above one per second. Why did our server fail there?

# %% [markdown] tags=["slide"] minutes=2 headline="Decide after every step who joins"
# ## Part 2: who may join a batch
#
# Who may join a batch that has begun? In the server of the first screen nobody may, and this is why it fails far below the limit of 8.7.
#
# - Static: the batch is answered, then the next one begins
# - Continuous: whoever is finished leaves after each step
# - A waiting request takes the empty slot at once
#
# Such a server does *static batching*. Even alone, a request takes 75 ms and 250 steps of 4.6 ms, or 1.2 s, and whoever arrives meanwhile waits for the
# rest of it. To keep the promise to 99 of 100, hardly anybody may arrive during a batch. Our server can promise only one request in 90 s, which is 0.011
# per second (simulated).
#
# It wastes time under a high load, too, because everybody waits for the longest answer. Of 64 random answers the longest has on average 4.74 times the
# mean (the sum of 1, 1/2, 1/3 and so on up to 1/64), which are 1,186 tokens. Meanwhile the other slots, the places in the batch, become empty. On
# average a step serves only 64 × 250 / 1,186, or 13.5 requests, and takes 5.7 ms. With 4.8 s of reading and 6.7 s of writing, 64 requests take
# 11.5 s, so that the server can serve at most 5.6 per second.
#
# In [continuous batching](glossary.md#continuous-batching) (Yu and others, "Orca", 2022) the scheduler decides anew after each step. A finished request
# leaves, and a waiting one takes its slot at once. Its prompt is read in a step of its own.
#
# **Your turn.** Write the rule of admission. `slots` has the number of the request in each slot, and None if the slot is free. `waiting` has the numbers of
# the requests that wait, in the order of their arrival.


# %% tags=["yours"] yours="admit" takes=6
def admit(slots, waiting):
    """Return the list of slots after waiting requests have taken the free ones."""
    slots, following = list(slots), iter(waiting)
    for index, request in enumerate(slots):
        if request is None:
            slots[index] = next(following, None)
    return slots


# %% checks="admit"
admit = check(admit)


# %% wrong="admit" says="even if others are still running"
def admit(slots, waiting):
    if any(request is not None for request in slots):
        return slots
    return (list(waiting) + [None] * len(slots))[: len(slots)]


# %% wrong="admit" says="keeps its slot"
def admit(slots, waiting):
    return (list(waiting) + [None] * len(slots))[: len(slots)]


# %% wrong="admit" says="Fill all free slots"
def admit(slots, waiting):
    slots = list(slots)
    if waiting and None in slots:
        slots[slots.index(None)] = waiting[0]
    return slots


# %% wrong="admit" says="leave what it is given as it is"
def admit(slots, waiting):
    return [waiting.pop(0) if request is None and waiting else request for request in slots]


# %% right="admit" style=1
def admit(slots, waiting):
    following = iter(waiting)
    return [next(following, None) if request is None else request for request in slots]


# %% right="admit" style=2
def admit(slots, waiting):
    free = [index for index, request in enumerate(slots) if request is None]
    filled = dict(zip(free, waiting, strict=False))
    return tuple(filled.get(index, request) for index, request in enumerate(slots))


# %% [markdown]
# Static batching uses the same rule, but only when the batch is empty, so both servers differ in a single line.


# %%
def admit_static(slots, waiting):
    return slots if any(request is not None for request in slots) else admit(slots, waiting)


# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Empty slots wait for the longest answer" layout="steps" frames=[2, 5, 8, 11] smallest=9.5
eight = [
    serving.Request(0.0, prompt_tokens=1000, answer_tokens=tokens)
    for tokens in (90, 20, 50, 150, 30, 60, 110, 40, 70, 30, 100, 50, 20, 80, 60, 40)
]
slots = {
    "static": serving.serve(
        eight, h100, slots=8, admit=admit_static, plan=serving.read_together
    ),
    "continuous": serving.serve(eight, h100, slots=8, admit=admit),
}
title = "Sixteen requests in eight slots"
plotting.play(
    serving.slot_frames(slots, title=title),
    title=title,
    alt="With static batches short answers leave slots empty; continuous batching fills them.",
)

# %% [markdown]
# How much better is the continuous server? We send four requests per second to both. Both can keep up with that, because their limits are 5.6 and 8.7.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 5]
more_tokens = helpers.predict(
    "At four requests per second, how many times as many tokens per second "
    "does the continuous server write as the static one?",
    "x",
)
more_tokens

# %% tags=["run"]
static = {"slots": 64, "admit": admit_static, "plan": serving.read_together}
continuous = {"slots": 64, "admit": admit, "plan": serving.read_alone}
two = {
    "static": simulate(static, rate=4),
    "continuous": simulate(continuous, rate=4),
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The arrivals set the tokens per second"
more_tokens.reveal(
    modelled=1, simulated=two["continuous"].tokens_per_s / two["static"].tokens_per_s
)

# %% tags=["hide-input", "look"]
pd.DataFrame(
    [
        (
            f"{report.tokens_per_s:,.0f}",
            f"{report.median_ttft_s:.2g} s",
            f"{report.mean_running:.1f}",
        )
        for report in two.values()
    ],
    columns=["tokens per second", "first token, median", "requests in slots, mean"],
    index=list(two),
)

# %% [markdown] tags=["explain"]
# Both write nearly 1,000 tokens per second (simulated). Four requests with 250 tokens arrive per second, and no server can write answers that nobody has asked
# for. But the median first token comes after 0.084 s instead of 5.6 s, in a 67th of the time. If requests never run out, the continuous server
# writes 1.5 times as many tokens per second. And it can promise 4.2 requests per second instead of 0.011, about 380 times as many (all simulated).
#
# Orca's authors published 36.9 times the [throughput](glossary.md#throughput) at equal [latency](glossary.md#latency), for a GPT-3 with 175 billion parameters. You have just seen factors of 1, 1.5 and
# 380 for the same change. Such a factor belongs to the load and to the promise as much as to the server, so ask for both when somebody shows you one.
#
# Can a real model serve requests of different lengths in one step? All their tokens go through the matrices together, because a matrix treats each token
# alone. Only attention takes each request by itself, since it reads the cache of that request. This is a block that does so.


# %%
def run_block(block, x, caches, starts, sizes):
    """Return a block's output (tokens, width) for requests with `sizes` new tokens each."""
    heads = block.qkv(block.norm1(x)).unflatten(-1, (-1, block.head_width))
    attended = []
    for new, cache, start in zip(heads.split(sizes), caches, starts, strict=True):
        queries, keys, values = new.transpose(0, 1).split(
            (block.heads, block.kv_heads, block.kv_heads)
        )  # (heads, new tokens, d) each
        end = start + len(new)
        cache[0, :, start:end], cache[1, :, start:end] = keys, values
        output = models.causal_attention(queries[None], *cache[:, None, :, :end])
        attended.append(output[0].transpose(0, 1).flatten(1))
    x = x + block.out(torch.cat(attended))
    return x + block.down(gelu(block.up(block.norm2(x))))


# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Only attention takes each request alone"
step = serving.Batch(
    requests=[0, 1, 2], starts=[5, 9, 0], tokens=[1, 1, 4], tables=[[], [], []]
)
alt = "Three requests go through the matrices as one tensor, and attention takes each alone."
plotting.show(serving.draw_ragged_step(step), alt=alt)

# %% tags=["hide-input", "run", "nbval-ignore-output"]
torch.manual_seed(0)
decoder = models.Decoder(256, width=256, layers=4, heads=8, context=1024).to(device).eval()
with torch.no_grad():  # three prompts in one step, and each alone
    sizes = [5, 17, 9]
    prompts = [torch.randint(256, (size,), device=device) for size in sizes]
    positions = torch.cat([torch.arange(size, device=device) for size in sizes])
    x = decoder.tokens(torch.cat(prompts)) + decoder.positions(positions)
    for block in decoder.blocks:
        caches = [
            torch.zeros(2, 8, 32, 32, device=device) for _ in sizes
        ]  # (2, heads, room, d)
        x = run_block(block, x, caches, [0, 0, 0], sizes)
    together = decoder.head(decoder.norm(x)).split(sizes)
    alone = [decoder(prompt[None])[0] for prompt in prompts]
for ours, theirs in zip(together, alone, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)

# %% tags=["hide-input", "run", "nbval-ignore-output"]
clock = time.process_time if device == "cpu" else time.perf_counter
single, of_eight, of_prompt = (
    serving.measure_step(decoder, requests=requests, tokens=tokens, repeats=9, clock=clock)
    for requests, tokens in ((1, 1), (8, 1), (1, 256))
)
line = serving.fit_step([single, of_eight, of_prompt])
lengths = {"prompt": (20, 140), "answer": 25, "longest": 100}
request_s = 80 / 256 * of_prompt.seconds + 25 / 8 * of_eight.seconds
arriving = serving.random_requests(16, 0.7 / request_s, **lengths)
memory = serving.CacheMemory(pages=512, page_tokens=16)
schedulers = {
    "static": {"admit": admit_static, "plan": serving.read_together},
    "continuous": {"admit": admit, "plan": serving.read_alone},
    "pieces of 64": {"admit": admit, "plan": lambda unread: serving.plan(unread, 64)},
}
real, modelled, texts = {}, {}, {}
for name, rules in schedulers.items():
    step = serving.DecoderStep(
        decoder, serving.random_prompts(arriving, 256), memory, clock=clock
    )
    real[name] = serving.serve(arriving, step, slots=8, memory=memory, **rules)
    modelled[name] = serving.serve(arriving, line, slots=8, memory=memory, **rules)
    texts[name] = step.texts
same = sum(
    len({tuple(text) for text in of_all}) == 1 for of_all in zip(*texts.values(), strict=True)
)
print(f"the same text under all three schedulers: {same} of {len(arriving)} requests")
print(line)
assert same > 12

# %% tags=["hide-input", "look", "nbval-ignore-output"]
pd.DataFrame(
    [
        (
            f"{report.tokens_per_s:.0f}",
            f"{modelled[name].tokens_per_s:.0f}",
            f"{1e3 * report.median_tpot_s:.0f} ms",
            f"{1e3 * modelled[name].median_tpot_s:.0f} ms",
            f"{1e3 * report.median_ttft_s:.0f} ms",
            f"{1e3 * modelled[name].median_ttft_s:.0f} ms",
        )
        for name, report in real.items()
    ],
    columns=pd.MultiIndex.from_product(
        [["tokens per second", "time per token", "first token"], ["measured", "modelled"]]
    ),
    index=list(real),
)

# %% [markdown] tags=["explain"]
# All 16 requests got the same text under every scheduler (measured), because nobody's token depends on who shares its step, apart from rounding.
# The line of the H100 would be of no use on this core. It counts bytes and operations alone, and you know from lesson 22 what else a step takes
# here. On the CPU we therefore use a line through three measured steps, with a fixed time, a time per token and a time per request. With this
# line in place of the decoder, the simulated server wrote up to a tenth more tokens per second than the real one on our core, and its first
# tokens came up to 1.6 times as early (see the table), because a queue adds up the errors of all steps. So such a line shows large differences
# between schedulers, but neither small ones nor exact times.
#
# **To remember.** Decide after every step who joins. At four requests per second this brought no more tokens, but the first one came in a 67th of the
# time, and 4.2 per second could be promised.
#
# The limit is 8.7, and only half of it can be promised. Why are the requests still late?

# %% [markdown] tags=["slide"] minutes=2 headline="One long prompt stops everybody"
# ## Part 3: pieces of a prompt
#
# Must everybody wait for a long prompt? We ask this now because the continuous server still reads each prompt in a step of its own, and the requests of
# others are late for this reason.
#
# - While 2,000 tokens are read, nobody else gets a token
# - Most steps have unused arithmetic
# - A piece of a prompt fits into each of them
#
# While a prompt of 2,000 tokens is read, no running request gets a token for 75 ms. Suppose that your answer has ten tokens, and three prompts arrive while
# it is written. Its nine gaps then contain 225 ms in which others are read, or 25 ms each, and the promised 30 ms are almost used up before your own
# steps have taken any time. A prompt of 8,000 tokens takes 300 ms, as long as 32 steps of lesson 22's 64 users.
#
# But most steps have unused arithmetic. With 64 running requests a step has 64 tokens, and up to 119 would take no longer.
# [Chunked prefill](glossary.md#chunked-prefill) (Agrawal and others, "Sarathi-Serve", 2024) gives a step a budget of tokens. Every request whose
# prompt has been read takes one, and pieces of the other prompts take the rest.
#
# **Your turn.** Write the plan of one step. For each running request, `unread` has the number of prompt tokens that are still to be read, which is 0 once the
# request writes. Prompts are read in this order. The budget is never smaller than the number of running requests.


# %% tags=["yours"] yours="plan" takes=8
def plan(unread, budget):
    """Return a list with the tokens that each running request gets in the next step."""
    tokens = [0 if left else 1 for left in unread]
    room = budget - sum(tokens)
    for index, left in enumerate(unread):
        if left:
            tokens[index] = min(left, room)
            room -= tokens[index]
    return tokens


# %% checks="plan"
plan = check(plan)


# %% wrong="plan" says="the requests that write come first"
def plan(unread, budget):
    tokens = []
    for left in unread:
        tokens.append(min(left or 1, budget))
        budget -= tokens[-1]
    return tokens


# %% wrong="plan" says="more tokens than the budget"
def plan(unread, budget):
    writing = sum(not left for left in unread)
    return [min(left, budget - writing) if left else 1 for left in unread]


# %% wrong="plan" says="more than is left of its prompt"
def plan(unread, budget):
    tokens = [0 if left else 1 for left in unread]
    room = budget - sum(tokens)
    for index, left in enumerate(unread):
        if left:
            tokens[index], room = room, 0
    return tokens


# %% wrong="plan" says="the rest of the budget goes to the next prompt"
def plan(unread, budget):
    tokens = [0 if left else 1 for left in unread]
    room = budget - sum(tokens)
    for index, left in enumerate(unread):
        if left:
            tokens[index] = min(left, room)
            break
    return tokens


# %% right="plan" style=1
def plan(unread, budget):
    room = budget - list(unread).count(0)
    tokens = []
    for left in unread:
        piece = min(left, room)
        room -= piece
        tokens.append(piece if left else 1)
    return tuple(tokens)


# %% right="plan" style=2
def plan(unread, budget):
    import numpy as np

    unread = np.array(unread, dtype=int)
    room = budget - np.count_nonzero(unread == 0)
    before = np.cumsum(unread) - unread
    return np.where(unread == 0, 1, np.clip(room - before, 0, unread)).tolist()


# %% [markdown]
# The budget must not be too large, because a running request gets one token per step. Part 1 has the time of a token.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
most_tokens = helpers.predict(
    "If a step must not take longer than 30 ms, "
    "how many tokens may it have at most, caches left out?",
    "tokens",
)
most_tokens

# %% tags=["run"]
read_token_s = h100_step_s(1000, 0) / 1000  # arithmetic is the larger of the two times there

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The promised gap sets the budget of tokens"
most_tokens.reveal(modelled=0.030 / read_token_s)

# %% tags=["hide-input", "look"]
chunks = {
    budget: {**continuous, "plan": lambda unread, budget=budget: plan(unread, budget)}
    for budget in (128, 256, 512, 640, 1024)
}
pd.DataFrame(
    {
        f"{budget:,}": f"{100 * kept_share(server, 6.7, requests=1500, runs=2):.1f} %"
        for budget, server in chunks.items()
    },
    index=["promises kept at 6.7 requests per second"],
).rename_axis("budget in tokens", axis="columns")

# %% [markdown] tags=["explain"]
# A step may have 30 / 0.0375, or 800 tokens, and with caches somewhat fewer. So the best budget should be a little below 800, and of the budgets
# tried 640 is the best. With 640 tokens 6.9 requests per second can be promised, with 512 it is 6.7, with 256 it is 6.1 and with 128 only 5.5
# (simulated). With a small budget the tokens and caches of the others take a larger share of each step, so that prompts are read more slowly and
# first tokens are late. With 1,024 tokens a step takes 38 ms, so the server itself breaks the promise, and only 5.2 are possible. We take 512,
# which leaves room for the caches of longer prompts.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A mean hides a frozen screen"
three = {**two, "continuous, 512 tokens": simulate(chunks[512], rate=4)}
pd.DataFrame(
    [
        (
            f"{report.median_ttft_s:.3g} s",
            f"{1e3 * report.median_tpot_s:.1f} ms",
            f"{1e3 * report.longest_gap_s:,.0f} ms",
        )
        for report in three.values()
    ],
    columns=["first token, median", "time per token, median", "longest gap"],
    index=list(three),
).rename_axis("four requests per second")

# %% [markdown] tags=["explain"]
# The time per token hides the problem almost completely, because it is a mean. It is 7.4 ms in one row and 6.6 in the next. Yet somebody stared at a
# frozen screen for 1.0 s, while about a dozen prompts were read one after the other. So look at the longest gap, too.
#
# Does the long prompt pay for this, since it now shares its steps? At four requests per second, a prompt of 8,000 had its first token after 327 ms instead of 309 (simulated, the mean of 20 runs). Now let a prompt of 800 tokens arrive on your own machine, while eight requests are
# being written. Read whole, it is a step of 800 tokens, and in pieces the longest step has 64. The line through measured steps is printed above.

# %% tags=["predict"]
shorter_pause = helpers.predict(
    "If a prompt of 800 tokens is read in pieces, "
    "how many times as short does the longest pause of the others become?",
    "x",
)
shorter_pause

# %% tags=["run"]
others = [serving.Request(0.0, prompt_tokens=20, answer_tokens=90)] * 8
long_prompt = serving.Request(12 * of_eight.seconds, prompt_tokens=800, answer_tokens=10)
prompts = serving.random_prompts((*others, long_prompt), 256)
pauses = {}
for name, rule in {"whole": serving.read_alone, "pieces": lambda u: plan(u, 64)}.items():
    step = serving.DecoderStep(decoder, prompts, memory, clock=clock)
    pauses[name] = [
        serving.serve([*others, long_prompt], each, slots=9, memory=memory, plan=rule)
        for each in (step, line)
    ]

# %% tags=["look", "nbval-ignore-output"]
measured, modelled = (
    whole.longest_gap_s / pieces.longest_gap_s
    for whole, pieces in zip(*pauses.values(), strict=True)
)
shorter_pause.reveal(modelled=modelled, measured=measured)
for name, (report, _) in pauses.items():
    pause_s, first_s = report.longest_gap_s, report.requests[-1].ttft_s
    print(f"{name}: pause {1e3 * pause_s:.0f} ms, its first token {1e3 * first_s:.0f} ms")
assert measured > 2

# %% [markdown] tags=["explain"]
# On our core the longest pause fell from 195 to 22 ms (measured), because no step has more than 64 tokens now. Here the prompt pays for it. Its
# own first token came after 285 ms instead of 186, because each step also carries the tokens of others, and on a CPU a step has no unused
# arithmetic.
#
# Chunks also save a little work, because weights are read while the arithmetic runs. In full steps a request costs 2,250 × 0.0375 ms of arithmetic and
# 250 × 0.088 ms of caches, 106 ms instead of 115, and the limit rises to 9.4 per second.
#
# **To remember.** Divide the promised time per token by the arithmetic of a token, and stay below the result. Here that is 800, and with 512 the server
# can promise 6.7 requests per second.
#
# Of the 106 ms, reading still takes 75. Must a server read the same instructions for every request?

# %% [markdown] tags=["slide"] minutes=2 headline="The same beginning gives the same cache"
# ## Part 4: what to keep
#
# What should a server keep? We ask this now, because reading has become the largest cost, and three quarters of it are the same for everybody.
#
# - Keys and values depend only on earlier tokens
# - A common beginning has a common cache
# - Memory that is not reserved in vain makes room for more requests
#
# A key or a value depends only on its token and on the tokens before it (lesson 22). So if two prompts begin with the same 1,500 tokens, their caches begin
# with the same bytes, and the server can compute them once and keep them. This is [prefix caching](glossary.md#prefix-caching). The prompts must agree
# from the very first token. If you put the time of day above the instructions, nothing after it can be reused, so put it below.
#
# The arithmetic of the kept tokens is saved. Their caches must still be read in each step, which takes 250 × 0.088 ms per request as before.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100]
kept = helpers.predict(
    "If the common 1,500 of 2,000 tokens are kept, "
    "how many requests per second can the GPU serve at most?",
    "requests/s",
)
kept

# %% tags=["run"]
in_full_steps = h100.request_s(2000, 250, spread=True)
with_kept = h100.request_s(2000, 250, kept=1500, spread=True)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The arithmetic is saved, the reading is not"
kept.reveal(modelled=1 / with_kept)
print(f"a request costs {1e3 * with_kept:.0f} ms instead of {1e3 * in_full_steps:.0f} ms")

# %% [markdown] tags=["explain"]
# There remain 500 + 250 tokens of arithmetic, which take 28 ms. The caches still take 22 ms, because each step has to read the kept tokens, too. With 50
# ms per request, 20 per second are the limit. The number that can be promised rose from 6.7 to 15 (simulated).
#
# Why only 15 of 20? Now the slots run out. A server does not know how long an answer will become, so ours reserves room for the model's longest
# context, 8,192 tokens or 1.07 GB. The 64 GB beside the weights are enough for 59 slots. (The 64 slots above would need a little less each.) By
# [Little's law](glossary.md#littles-law), which counted bytes in flight in [lesson 01](01_memory_hierarchy.ipynb), the requests in a server are
# their rate times the time that each of them stays. At 15 per second they were 35 on average (simulated), but random arrivals brought the number
# to 59 again and again, and then the next one had to wait.
#
# [PagedAttention](glossary.md#pagedattention) (Kwon and others, 2023) does with the cache what an operating system does with memory. It cuts it into pages,
# for example of 16 tokens. A request takes another page when its last one is full, and a table says where its pages are.
#
# **Your turn.** Write the two functions of the page allocator. `free` is a list with the numbers of the free pages, and `table` is a list with those of one
# request, in the order of its tokens. Both functions change these lists.


# %% tags=["yours"] yours="grow" takes=7
def grow(table, free, tokens, page_tokens):
    """Move pages of `page_tokens` from `free` to `table` until it has room for `tokens`.

    Return whether there were enough. If not, both lists stay as they were.
    """
    needed = -(-tokens // page_tokens) - len(table)
    if needed > len(free):
        return False
    table.extend(free.pop() for _ in range(needed))
    return True


# %% checks="grow"
grow = check(grow)


# %% wrong="grow" says="The last page is only partly full"
def grow(table, free, tokens, page_tokens):
    needed = tokens // page_tokens - len(table)
    if needed > len(free):
        return False
    table.extend(free.pop() for _ in range(needed))
    return True


# %% wrong="grow" says="has pages already"
def grow(table, free, tokens, page_tokens):
    needed = -(-tokens // page_tokens)
    if needed > len(free):
        return False
    table.extend(free.pop() for _ in range(needed))
    return True


# %% wrong="grow" says="leave both lists as they were"
def grow(table, free, tokens, page_tokens):
    while len(table) * page_tokens < tokens:
        if not free:
            return False
        table.append(free.pop())
    return True


# %% right="grow" style=1
def grow(table, free, tokens, page_tokens):
    import math

    needed = math.ceil(tokens / page_tokens) - len(table)
    enough = needed <= len(free)
    if enough:
        for _ in range(needed):
            table.append(free.pop(0))
    return enough


# %% right="grow" style=2
def grow(table, free, tokens, page_tokens):
    needed = max(0, (tokens + page_tokens - 1) // page_tokens - len(table))
    if needed > len(free):
        return False
    table += free[:needed]
    del free[:needed]
    return True


# %% [markdown]
# The other way is shorter. When a request is finished, its pages must go back, because somebody may be waiting for them.


# %% tags=["yours"] yours="release" takes=5
def release(table, free):
    """Give the pages of a finished request back to `free`, and leave its table empty."""
    free.extend(table)
    table.clear()


# %% checks="release"
release = check(release)


# %% wrong="release" says="still names pages that are free now"
def release(table, free):
    free.extend(table)


# %% wrong="release" says="puts a new list in place of the table"
def release(table, free):
    free.extend(table)
    table = []


# %% wrong="release" says="Nobody can use these pages again"
def release(table, free):
    table.clear()


# %% right="release" style=1
def release(table, free):
    while table:
        free.append(table.pop())


# %% right="release" style=2
def release(table, free):
    free[len(free) :] = table
    del table[:]


# %% tags=["hide-input"]
free = list(range(12))
tokens = {"request A": 10, "request B": 5, "request C": 14}
tables = {name: [] for name in tokens}
for name, count in {"request A": 4, "request B": 5, "request C": 9, **tokens}.items():
    assert grow(tables[name], free, min(count, 8), 4)
gone = []
grow(gone, free, 6, 4)
for name, count in tokens.items():
    grow(tables[name], free, count, 4)
release(gone, free)
alt = "Three requests share twelve pages, and a table names those of each request."
plotting.show(serving.draw_pages(tables, tokens, pages=12, page_tokens=4), alt=alt)
print(f"free pages: {len(free)} of 12")

# %% [markdown]
# On average only 7.5 places of the last page are empty. (If no page is free, the server must stop a request and read it again later, which vLLM calls
# *preemption*.) The 64 GB hold 488,000 tokens, so 217 requests of 2,250 tokens fit even if each keeps its own instructions. The authors of PagedAttention
# found that earlier systems used 20 to 38 % of the reserved memory for tokens, and with pages 96 % (published). And your bet?

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The best server comes near the limit"
paged = {**chunks[512], "slots": 217, "common": 1500}
shares = {rate: kept_share(paged, rate, requests=10_800, runs=2) for rate in (18, 19)}
bet.reveal(
    simulated=max(rate for rate, share in shares.items() if share >= promise.kept_share)
)

# %% [markdown] tags=["explain"]
# With pages, the server could promise 18 requests per second instead of 15 (simulated), because all 59 slots of the full context were often taken and 217 are not.
# Before the instructions were kept, pages would have changed nothing, because at 6.7 requests per second only about 17 are in the server. Here are all
# servers of this lesson.

# %% tags=["hide-input", "look"]
reserved = {**paged, "slots": 59}
rates = {
    "static": (static, 0.011),
    "continuous": (continuous, 4.2),
    "chunks of 512 tokens": (chunks[512], 6.7),
    "kept instructions": (reserved, 15),
}
rows = {
    name: (f"{rate:g}", kept_share(server, rate)) for name, (server, rate) in rates.items()
}
rows["pages"] = ("18", shares[18])
pd.DataFrame(
    [(rate, f"{100 * share:.1f} %") for rate, share in rows.values()],
    columns=["requests per second", "promises kept"],
    index=list(rows),
)

# %% [markdown]
# Do pages also make a request faster? On your machine, 24 requests now arrive at once. One server has room for four texts of the longest length, and the other one
# cuts the same memory into pages, with your allocator.

# %% tags=["look", "nbval-ignore-output"]
crowd = serving.random_requests(24, 1e6, **lengths)
prompts = serving.random_prompts(crowd, 256)
for slots, room in ((4, serving.CacheMemory(4, 1024)), (24, serving.CacheMemory(256, 16))):
    step = serving.DecoderStep(decoder, prompts, room, clock=clock)
    report = serving.serve(crowd, step, slots=slots, memory=room, grow=grow, release=release)
    at_once = max(step.requests for step in report.steps)
    print(
        f"{room.pages} pages: {at_once} requests at once, {report.tokens_per_s:.0f} tokens/s, "
        f"{1e3 * report.median_tpot_s:.0f} ms per token"
    )

# %% [markdown] tags=["explain"]
# On our core the pages admitted 22 requests at once instead of 4, and the tokens per second rose from 344 to 469 (measured), because more
# requests shared the weights of each step. But each request waited longer for its next token, 23 ms instead of 10, for the same reason, so pages
# shorten the wait for a place and lengthen the time per token.
#
# **To remember.** Keep a common beginning once, which here halved the cost of a request from 106 to 50 ms. Slots are free memory / (tokens per request ×
# bytes per token), 217 with pages and 59 if the full context is reserved.
#
# So 18 requests per second can be promised. What happens when more arrive?

# %% [markdown] tags=["slide"] minutes=2 headline="Count the requests that keep the promise"
# ## Part 5: what to promise
#
# What can you promise? We ask this last, because no scheduler answers it for you.
#
# - Tokens per second count all that is written
# - [Goodput](glossary.md#goodput) counts the requests that keep the promise
# - Beyond the limit only the tokens still grow
#
# If you count only the requests per second that keep the promise, you get the goodput of a server.
#
# **Your turn.** Write the share of requests that keep both limits. The lists have the two times of each request, in the same order. They are infinite for a
# request that was refused.


# %% tags=["yours"] yours="good_share" takes=5
def good_share(ttft_s, tpot_s, ttft_limit_s, tpot_limit_s):
    """Return the share of requests that keep both limits."""
    both = zip(ttft_s, tpot_s, strict=True)
    kept = [first <= ttft_limit_s and each <= tpot_limit_s for first, each in both]
    return sum(kept) / len(kept)


# %% checks="good_share"
good_share = check(good_share)


# %% wrong="good_share" says="must keep both limits"
def good_share(ttft_s, tpot_s, ttft_limit_s, tpot_limit_s):
    both = zip(ttft_s, tpot_s, strict=True)
    kept = [first <= ttft_limit_s or each <= tpot_limit_s for first, each in both]
    return sum(kept) / len(kept)


# %% wrong="good_share" says="not their number"
def good_share(ttft_s, tpot_s, ttft_limit_s, tpot_limit_s):
    both = zip(ttft_s, tpot_s, strict=True)
    return sum(first <= ttft_limit_s and each <= tpot_limit_s for first, each in both)


# %% wrong="good_share" says="was refused got no answer"
def good_share(ttft_s, tpot_s, ttft_limit_s, tpot_limit_s):
    both = [pair for pair in zip(ttft_s, tpot_s, strict=True) if pair[0] < float("inf")]
    kept = [first <= ttft_limit_s and each <= tpot_limit_s for first, each in both]
    return sum(kept) / len(kept)


# %% right="good_share" style=1
def good_share(ttft_s, tpot_s, ttft_limit_s, tpot_limit_s):
    broken = 0
    for index in range(len(ttft_s)):
        if ttft_s[index] > ttft_limit_s or tpot_s[index] > tpot_limit_s:
            broken += 1
    return 1 - broken / len(ttft_s)


# %% right="good_share" style=2
def good_share(ttft_s, tpot_s, ttft_limit_s, tpot_limit_s):
    times = torch.tensor([ttft_s, tpot_s], dtype=torch.float64)
    limits = torch.tensor([[ttft_limit_s], [tpot_limit_s]], dtype=torch.float64)
    return (times <= limits).all(dim=0).double().mean().item()


# %% [markdown]
# Take the server of Part 3, with chunks and without kept instructions. If requests never run out, it serves 9.3 per second (simulated).

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100]
queue_wait = helpers.predict(
    "If 10 requests per second arrive at a server that serves 9.3, "
    "how long does one that arrives after five minutes wait?",
    "s",
)
queue_wait

# %% tags=["run"]
loads = (6, 8, 9, 10, 12)
patient = {rate: simulate(chunks[512], rate) for rate in loads}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A queue grows by what the server cannot do"
left_over = (10 - 9.3) * 300
late = [each for each in patient[10].requests if 285 < each.request.arrival_s < 315]
simulated = sum(each.ttft_s for each in late) / len(late)
queue_wait.reveal(modelled=left_over / 9.3, simulated=simulated)

# %% tags=["hide-input", "look"]
pd.DataFrame(
    {
        f"{rate}": (
            f"{report.tokens_per_s:,.0f}",
            f"{report.median_ttft_s:.2g} s",
            f"{100 * good_share(report.ttfts_s, report.tpots_s, 0.5, 0.03):.1f} %",
        )
        for rate, report in patient.items()
    },
    index=["tokens per second", "first token, median", "requests that keep the promise"],
).rename_axis("requests per second, for ten minutes", axis="columns")

# %% [markdown] tags=["explain"]
# Every second 0.7 requests are left over, so after 300 s a queue of 210 has grown, and it takes 210 / 9.3, or 23 s. In the
# simulation a few fewer had arrived by then, and a queue adds up every such difference. The tokens per second reach their record exactly where almost nobody is
# served in time. NVIDIA's table shows such a state on purpose. In the sample output on its page the first token comes after 53 s on average (published).
#
# The remedy sounds rude. Let the server admit only 30 requests at once and refuse whoever has waited for 0.3 s.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A server that refuses some keeps its promise" untitled=true
refusing = {**chunks[512], "slots": 30, "patience_s": 0.3}
impatient = {rate: simulate(refusing, rate) for rate in (6, 9, 12)}
title = "Tokens, first tokens and kept promises over the load (simulated)"
alt = "Beyond nine requests per second the patient server writes more, and keeps no promise."
plotting.show(
    serving.draw_load(
        {"all may wait": patient, "refuses": impatient},
        ttft_limit_s=promise.ttft_s,
        tpot_limit_s=promise.tpot_s,
        title=title,
    ),
    alt=alt,
)

# %% [markdown] tags=["explain"]
# Of 12 requests per second it then keeps its promise to 68 %, about 8 per second (simulated). Without refusing it was 0.8 %.
#
# You also pay for goodput. At 3.99 dollars for an hour of an H100 (Lambda, September 2026), a thousand requests cost 6 cents at 18 per second and 26 cents at
# 4.2. That is 0.25 and 1.06 dollars per million written tokens. Part 1 even suggests why price lists have their shape. By our count, for a batch of 64, a
# written token costs four times as much as a read one, and OpenAI charges four to eight times as much for models whose size it does not tell. For a
# prompt token that it has kept, it charges a tenth to a half ("OpenAI API Pricing", November 2026).
#
# You could also let one GPU read and another one write, so that nobody interrupts anybody (Zhong and others, "DistServe", 2024). In our example four such
# GPUs serve 6.5 requests per second each, no more than with chunks, as [the appendix](appendix/23_serving.ipynb) works out.
#
# **To remember.** Measure goodput. From 9 to 10 requests per second the tokens rose by 5 %, and the share of kept promises fell from 56 to 2 %.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Fill the slots after every step, and cut long prompts.
# 2. Keep what is common, and reserve nothing in vain.
# 3. Measure the requests that keep the promise.
#
# With the best of our servers, one H100 can promise 18 of these requests per second (simulated). It is still the GPU of the first paragraph.
#
# | server | requests per second | because |
# |---|--:|---|
# | static | 0.011 | nobody joins a batch that has begun |
# | continuous | 4.2 | slots are filled after every step |
# | chunks of 512 tokens | 6.7 | no gap is longer than 24 ms at this load |
# | kept instructions | 15 | 500 tokens are read instead of 2,000 |
# | pages | 18 | memory holds 217 requests instead of 59 |
#
# The 27 of the beginning counted only the writing. With the reading 8.7 are possible, chunks and kept instructions raise this limit to 20, and
# the best server comes within a tenth of it. (Read the 18 with a margin. NVIDIA's rates confirmed our line only to within a quarter, and on the
# CPU such a line missed first tokens by a factor of up to 1.6.)
#
# Here the course ends. It began with a product of two matrices and ends with people who wait for an answer, but its three questions have stayed
# the same. Which bytes have to travel, who waits for them, and who could use the time meanwhile? The [roofline](glossary.md#roofline) that
# explained one layer also suggested a reason for the shape of a price list, and Little's law counted loads in flight as well as requests in a
# server. So when your next program is slow, write down its line first and work out how long it should take. Then measure. If the two agree, you
# know what you have to shorten or to buy. If they differ, you are about to learn something. [One step, taken apart](one_step.md) does this once
# more for a single step of a server, with all lessons.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A prompt of $p$ tokens, of which $c$ are kept, and an answer of $w$ tokens; a step has $T$ tokens and reads caches with $n$ tokens in all; $N$ parameters
# that a step reads, $s$ bytes per element, $\kappa$ bytes of cache per token; a memory's bandwidth $B$ and a rate of arithmetic $P$.
#
# | quantity | formula |
# |---|---|
# | time of a step | $\max\left(\frac{s N}{B}, \frac{2 N T}{P}\right) + \frac{n \kappa}{B}$ |
# | a request in full steps | $(p - c + w) \cdot \frac{2 N}{P} + w \cdot \frac{(p + w) \kappa}{B}$ |
# | tokens per step within a promised time $t$ per token | $\frac{t P}{2 N}$ |
# | requests in a server | rate of arrivals times the time that each stays |
# | queue after a time $t$ with $\lambda$ arriving and $\mu$ served per second | $(\lambda - \mu) \, t$ |
