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
# # Serving: exercises
#
# Three functions to write and two questions to answer, for [lesson 23](../23_serving.ipynb). Each exercise has a table
# or a picture, a function that returns `exercises.not_yet` until you write it, checks that you can read, and three
# hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted, so nothing depends on how fast your machine
# is.

# %%
from helpers import exercises, plotting
from helpers.studies import decoding

# %% [markdown]
# ## Exercise 1: a cache in pages
#
# The lesson cuts the [KV cache](../glossary.md#kv-cache) into pages, because a server does not know how long an answer
# will become (Kwon and others, *PagedAttention*, 2023). The paper's figure 2 has the share of the reserved memory that
# held tokens (published).

# %%
for row in decoding.PAGED_ATTENTION:
    print(f"{100 * row.token_states_share:5.1f} %  {row.system}")

# %% [markdown]
# A user may ask for several answers to one prompt. A page that the prompt fills is kept once, for all of them. A page
# that the prompt has only begun is copied for each answer, because each writes something else into it. Here are a
# prompt of 20 tokens, two answers of 4 and 15 tokens, and pages of 8:
#
# | tokens | pages | whose |
# |---|--:|---|
# | prompt, 0 to 15 | 2 | kept once, for both |
# | prompt, 16 to 19, and 4 of the first answer | 1 | the first answer's |
# | prompt, 16 to 19, and 15 of the second answer | 3 | the second answer's |
# | all | 6 | |
#
# Write `pages(prompt, written, page)`, which returns how many pages there are. `written` has the tokens of each
# answer, at least one each.


# %% answer="pages"
def pages(prompt, written, page):
    """Return the pages of all answers: pages(20, [4, 15], 8) is 6."""
    ### BEGIN SOLUTION
    full, begun = divmod(prompt, page)
    return full + sum(-(-(begun + tokens) // page) for tokens in written)
    ### END SOLUTION


# %% checks="pages" points=3
check = exercises.Checks("Exercise 1, pages", pages)
last, once, copied = "a last page counts whole", "full pages of the prompt are kept once", "a begun page is copied"
cut = {2: "The last page is not full and is there all the same: round up", 2.25: "Pages are whole: round up"}
check.returns(last, (8, [10], 8), expected=3, mistakes=cut)
each = {9: "Both pages of the prompt serve all three answers, so keep them once"}
check.returns(once, (16, [8, 8, 8], 8), expected=5, mistakes=each)
shared = {6: "An answer goes on in its copy of the page that the prompt has begun, not in a new one"}
check.returns(copied, (20, [4, 4, 4], 8), expected=5, mistakes=shared | {9: "Full pages are kept once"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(15001)


def truth(prompt, written, page):
    """All pages by name: the prompt's own, or an answer's."""
    names = set()
    for answer, tokens in enumerate(written):
        for token in range(prompt + tokens):
            number = token // page
            names.add(("all", number) if (number + 1) * page <= prompt else (answer, number))
    return len(names)


for _ in range(5):
    page, answers = draw.randint(4, 9), draw.randint(3, 6)
    full = page * draw.randint(2, 5)
    written = [page * draw.randint(1, 4) + draw.randint(1, page - 1)]
    check.returns(last, (full, written, page), expected=truth(full, written, page))
    written = [page * draw.randint(1, 4) for _ in range(answers)]
    check.returns(once, (full, written, page), expected=truth(full, written, page))
    begun = draw.randint(1, page - 1)
    written = [page * draw.randint(1, 4) - begun for _ in range(answers)]
    check.returns(copied, (full + begun, written, page), expected=truth(full + begun, written, page))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what is shared?</summary>
#
# `prompt // page` pages are full. They count once, however many answers there are.
#
# </details>
# <details><summary>Hint 2: what does each answer add?</summary>
#
# The `prompt % page` tokens that begin a page, and all tokens that it writes itself.
#
# </details>
# <details><summary>Hint 3: round up</summary>
#
# `-(-tokens // page)` rounds up.
#
# </details>


# %% wrong="pages" says="round up" gets=2
def pages(prompt, written, page):
    full, begun = divmod(prompt, page)
    return full + sum((begun + tokens) // page for tokens in written)


# %% wrong="pages" says="keep them once" gets=1
def pages(prompt, written, page):
    return sum(-(-(prompt + tokens) // page) for tokens in written)


# %% wrong="pages" says="not in a new one" gets=2
def pages(prompt, written, page):
    return -(-prompt // page) + sum(-(-tokens // page) for tokens in written)


# %% [markdown]
# ## Exercise 2: how many steps?
#
# A server with static batches starts as many requests as it has slots, and takes the next ones when all of these are
# done. With [continuous batching](../glossary.md#continuous-batching) the next request takes a slot as soon as it is
# free. Here are answers of 6, 1, 4 and 3 tokens in two slots:

# %%
titles = {"static": "Static batches leave a slot empty", "continuous": "Continuous batching fills it"}
for policy, title in titles.items():
    schedule = decoding.schedule([6, 1, 4, 3], places=2, policy=policy)
    spans = [
        plotting.Span(f"slot {slot}", start, end, "computing", f"answer {number}")
        for number, (slot, start, end) in enumerate(schedule.spans)
    ]
    figure = plotting.gantt(spans, title=title, unit="", xlabel="steps", until=12)
    plotting.show(figure, alt=f"Two lanes with four answers; all are written after {schedule.steps} steps.")

# %% [markdown]
# Write `steps(lengths, slots, static)`, which returns the number of steps after which all answers are written. Requests
# start in the order of `lengths`, the tokens of their answers. Prompts cost nothing here.


# %% answer="steps"
def steps(lengths, slots, static):
    """Return the steps: steps([6, 1, 4, 3], 2, True) is 10, with False it is 8."""
    ### BEGIN SOLUTION
    if static:
        return sum(max(lengths[first : first + slots]) for first in range(0, len(lengths), slots))
    free = [0] * slots
    for needed in lengths:
        free.sort()
        free[0] += needed
    return max(free)
    ### END SOLUTION


# %% checks="steps" points=3
check = exercises.Checks("Exercise 2, steps", steps)
longest, filled, ordered = (
    "with static batches the longest decides",
    "a free slot is filled at once",
    "requests start in order",
)
mistakes = {
    8: "Requests start in the order that is given",
    6: "That is the longest of all, but two batches follow one another",
}
check.returns(
    longest, ([6, 1, 5, 2], 2, True), expected=11, mistakes=mistakes | {14: "The requests of a batch run at once"}
)
mistakes = {10: "That waits until all slots are empty", 8: "An answer cannot be cut in two, so one slot works longer"}
check.returns(filled, ([6, 5, 4], 2, False), expected=9, mistakes=mistakes | {15: "Two slots write at once"})
mistakes = {6: "Requests start in the order that is given, not the longest first"}
check.returns(ordered, ([1, 1, 1, 6], 3, False), expected=7, mistakes=mistakes)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(15002)


def truth(lengths, slots, static):
    """Step by step, by what is left in each slot."""
    waiting, left, count = list(lengths), [0] * slots, 0
    while waiting or any(left):
        empty = not any(left)
        for lane in range(slots):
            if waiting and not left[lane] and (empty or not static):
                left[lane] = waiting.pop(0)
        left, count = [max(0, each - 1) for each in left], count + 1
    return count


for _ in range(5):
    slots = draw.randint(2, 4)
    lengths = [draw.randint(2, 30) for _ in range(3 * slots)]
    check.returns(longest, (lengths, slots, True), expected=truth(lengths, slots, True))
    lengths = sorted((draw.randint(4, 30) for _ in range(2 * slots + 1)), reverse=True)
    check.returns(filled, (lengths, slots, False), expected=truth(lengths, slots, False))
    lengths = [*[draw.randint(1, 5)] * slots, draw.randint(20, 30)]
    check.returns(ordered, (lengths, slots, False), expected=truth(lengths, slots, False))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: static batches</summary>
#
# Cut `lengths` into groups of `slots`. A group takes as long as its longest answer.
#
# </details>
# <details><summary>Hint 2: continuous batching</summary>
#
# Keep for each slot the step in which it becomes free.
#
# </details>
# <details><summary>Hint 3: who is next?</summary>
#
# The next request goes to the slot that is free first; add its length there. The largest number at the end is the
# answer.
#
# </details>


# %% wrong="steps" says="waits until all slots are empty" gets=2
def steps(lengths, slots, static):  # noqa: ARG001
    return sum(max(lengths[first : first + slots]) for first in range(0, len(lengths), slots))


# %% wrong="steps" says="cannot be cut in two" gets=1
def steps(lengths, slots, static):
    if static:
        return sum(max(lengths[first : first + slots]) for first in range(0, len(lengths), slots))
    return -(-sum(lengths) // slots)


# %% wrong="steps" says="not the longest first" gets=2
def steps(lengths, slots, static):
    if static:
        return sum(max(lengths[first : first + slots]) for first in range(0, len(lengths), slots))
    free = [0] * slots
    for length in sorted(lengths, reverse=True):
        free.sort()
        free[0] += length
    return max(free)


# %% [markdown]
# ## Exercise 3: which beginnings are kept?
#
# A server keeps the caches of prompts that it has read, in whole pages. A new prompt uses such a page again if all
# tokens up to the end of the page are those of an earlier prompt, since a key depends on every token before it. The
# last token of a prompt is always read, because the first token of the answer comes out of it. Here the pages have 4
# tokens:
#
# | prompt | pages found | tokens read |
# |---|--:|--:|
# | 1 2 3 4 5 6 | 0 | 6 |
# | 1 2 3 4 5 9 | 1 | 2 |
# | 0 2 3 4 5 6 | 0 | 6 |
# | 1 2 3 4 | 1 | 1 |
#
# Write `tokens_to_read(prompts, page)`, which returns for each prompt how many of its tokens the server must read. The
# prompts are lists of tokens, in the order of their arrival, and `page` is the number of tokens in a page.


# %% answer="tokens_to_read"
def tokens_to_read(prompts, page):
    """Return a list: tokens_to_read([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9]], 4) is [6, 2]."""
    ### BEGIN SOLUTION
    kept, read = set(), []
    for prompt in prompts:
        beginnings = [tuple(prompt[:end]) for end in range(page, len(prompt) + 1, page)]
        pages = sum(beginning in kept for beginning in beginnings)
        read.append(max(1, len(prompt) - pages * page))
        kept.update(beginnings)
    return read
    ### END SOLUTION


# %% checks="tokens_to_read" points=3
check = exercises.Checks("Exercise 3, tokens_to_read", tokens_to_read)
whole, before, last = "whole pages of any earlier prompt", "all tokens before count", "the last token is read"
prompts = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 9, 9, 9], [1, 2, 3, 4, 5, 9]]
mistakes = {
    (6, 6, 1): "Only whole pages are kept, and these two prompts have one in common",
    (6, 6, 6): "Any earlier prompt counts, and not only the one before",
}
check.returns(whole, (prompts, 4), expected=[6, 6, 2], mistakes=mistakes)
prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 2, 3, 4, 5, 6, 7, 8, 9]]
mistakes = {
    (9, 5): "The second pages are equal, but not the tokens before them, so the keys differ",
    (9, 1): "The second prompt begins with another token, so nothing of it is kept",
}
check.returns(before, (prompts, 4), expected=[9, 9], mistakes=mistakes)
mistakes = {(8, 0): "The first token of the answer comes out of the last token of the prompt, so read that one"}
check.returns(last, ([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8]], 4), expected=[8, 1], mistakes=mistakes)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(23003)


def truth(prompts, page):
    """Compare each prompt with each earlier one, token by token."""
    read = []
    for number, prompt in enumerate(prompts):
        most = 0
        for earlier in prompts[:number]:
            common = 0
            while common < min(len(prompt), len(earlier)) and prompt[common] == earlier[common]:
                common += 1
            most = max(most, common // page * page)
        read.append(max(1, len(prompt) - most))
    return read


def tokens(count):
    return [draw.randint(10, 99) for _ in range(count)]


for _ in range(5):
    page = draw.randint(3, 6)
    shared = tokens(page * draw.randint(2, 4))
    prompts = [[*shared, 1, 2], [*tokens(page), 3], [*shared, 1, 5], [*tokens(page), 4], [*shared, 1, 7]]
    check.returns(whole, (prompts, page), expected=truth(prompts, page))
    prompts = [[1, *shared, 2], [3, *shared, 2], [4, *shared, 2]]
    check.returns(before, (prompts, page), expected=truth(prompts, page))
    prompts = [shared, shared]
    check.returns(last, (prompts, page), expected=truth(prompts, page))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what must agree?</summary>
#
# The tokens from the first one to the end of the page, `tuple(prompt[:end])`.
#
# </details>
# <details><summary>Hint 2: what to remember</summary>
#
# A set of all such beginnings of the earlier prompts. `end` is `page`, `2 * page` and so on, up to the prompt's length.
#
# </details>
# <details><summary>Hint 3: what is left</summary>
#
# `len(prompt) - pages * page` tokens, but at least 1.
#
# </details>


# %% wrong="tokens_to_read" says="Only whole pages are kept" gets=2
def tokens_to_read(prompts, page):  # noqa: ARG001
    kept, read = set(), []
    for prompt in prompts:
        beginnings = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        read.append(max(1, len(prompt) - sum(beginning in kept for beginning in beginnings)))
        kept.update(beginnings)
    return read


# %% wrong="tokens_to_read" says="but not the tokens before them" gets=2
def tokens_to_read(prompts, page):
    kept, read = set(), []
    for prompt in prompts:
        pages = [tuple(prompt[end - page : end]) for end in range(page, len(prompt) + 1, page)]
        read.append(max(1, len(prompt) - page * sum(tokens in kept for tokens in pages)))
        kept.update(pages)
    return read


# %% wrong="tokens_to_read" says="so read that one" gets=2
def tokens_to_read(prompts, page):
    kept, read = set(), []
    for prompt in prompts:
        beginnings = [tuple(prompt[:end]) for end in range(page, len(prompt) + 1, page)]
        read.append(len(prompt) - page * sum(beginning in kept for beginning in beginnings))
        kept.update(beginnings)
    return read


# %% wrong="tokens_to_read" says="not only the one before" gets=2
def tokens_to_read(prompts, page):
    kept, read = set(), []
    for prompt in prompts:
        beginnings = {tuple(prompt[:end]) for end in range(page, len(prompt) + 1, page)}
        read.append(max(1, len(prompt) - page * len(beginnings & kept)))
        kept = beginnings
    return read


# %% [markdown]
# ## Question 1: 23 times the throughput
#
# A blog post by Anyscale (2023) has the title "How continuous batching enables 23x throughput in LLM inference while
# reducing p50 latency". A colleague wants to replace a static server by a continuous one and expects 23 times as many
# tokens per second, at a load of four of the lesson's requests per second.
#
# How many times as many will the colleague get, and why? Name two things about the measurement that must be known
# before the 23 can be expected from any server.
#
# Three to six sentences with your numbers; a person reads them.

# %% [markdown] written="throughput" points=2
# A full answer says:
#
# - 1 point: once, because four requests with 250 tokens arrive per second and the static server can serve up to 5.6, so
#   both write 1,000 tokens per second; the first tokens come earlier.
# - 1 point: two of these. The load (requests that never run out). The lengths of the answers (the more they
#   differ, the longer a static batch waits for its longest one, 4.74 times the mean for 64 exponential ones). The
#   baseline (how many requests it takes at once, which memory it reserves, whether it pads to the longest). What else
#   differs (pages, kernels). One that only says "another model" or "another GPU" without an effect gets no point.

# %% [markdown]
# ## Question 2: a promise of your own
#
# Choose a service that you know, for example a program that completes code or one that summarises letters. State the
# lengths of its prompts and answers, the part of its prompts that is common, and the two limits that its users need.
#
# *Before* you simulate, work out for Llama 3 8B on an H100 the limit in requests per second, the budget and the number
# of slots. Then simulate it with `serving.serve` at three rates, and say how many requests per second you would
# promise.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_promise" points=2
# A full answer says:
#
# - 1 point: lengths and limits with a reason; the limit from the cost of a request (read tokens and written ones,
#   caches included), a budget from the promised time per token, and slots from the free memory, each with its numbers.
# - 1 point: the shares of kept promises at three rates, one of them beyond what can be promised, and the cause of the
#   distance between the promised rate and the limit (random arrivals, the slots, first tokens behind long prompts).

# %% [markdown]
# ## What you have practised
#
# Cutting a cache into pages, counting the steps of two schedulers, finding the beginnings that a server keeps, and
# judging a claim and a promise of your own.
