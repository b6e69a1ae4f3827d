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
# # Four sources of parallelism: exercises
#
# Three functions to write, for [lesson 04](../04_sources_of_parallelism.ipynb). Each has a picture or a table, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Nothing here depends on how fast your machine is.

# %%
import torch

from helpers import exercises, plotting
from helpers.studies import sgd_parallelism

# %% [markdown]
# ## Exercise 1: a product that needs a sum
#
# The product $(m, k) \cdot (k, n)$ is cut over its inner dimension. Each part multiplies some columns of `a` with the
# rows of `b` that belong to them, and has a *term*: a matrix as large as the whole output. The sum of the terms is
# the product.

# %%
drawn = sgd_parallelism.draw_split(sgd_parallelism.model_split(4, 6, 8, by="inner", parts=3))
alt = "A 4 x 6 matrix cut into three pairs of columns, a 6 x 8 one into pairs of rows; three terms of 4 x 8."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Write `product(a, b, parts, receive)`, which computes the terms and returns their sum. You are part 0: your own term
# is there, and the term of every other part comes over a link. Call `receive(term)` for each of those, in the order of
# the parts; it gives the term back and counts its bytes.
#
# Where $k$ does not divide by `parts`, the first parts have one inner element more: 7 in 3 parts is 3, 2, 2.


# %% answer="product"
def product(a, b, parts, receive):
    """Return a @ b as a sum of terms, cut over the inner dimension; all but the first term are received."""
    ### BEGIN SOLUTION
    k = a.shape[1]
    sizes = [k // parts + (part < k % parts) for part in range(parts)]
    own, *others = [left @ right for left, right in zip(a.split(sizes, dim=1), b.split(sizes), strict=True)]
    return own + sum(receive(term) for term in others)
    ### END SOLUTION


# %%
class Link:
    """Counts what is received."""

    def __init__(self):
        self.terms = []

    def receive(self, term):
        self.terms.append(torch.as_tensor(term).clone())
        return term

    @property
    def received_bytes(self):
        return sum(term.nbytes for term in self.terms)

    def got(self, *cuts, in_order=True):
        """Whether the terms of one of these cuts were received, with or without the first, in their order or not."""
        received = [term.tolist() for term in self.terms]
        for terms in cuts:
            for wanted in ([term.tolist() for term in terms], [term.tolist() for term in terms[1:]]):
                if received == wanted or (not in_order and sorted(received) == sorted(wanted)):
                    return True
        return False


# %%
def terms_of(a, b, columns):
    """The terms of parts that have these columns of a, and rows of b."""
    return [a[:, own] @ b[own] for own in columns]


def whole_numbers(m, k, n):
    """Two matrices of small whole numbers, the same at every call, so that every sum is exact."""
    return torch.arange(m * k).reshape(m, k).float(), torch.arange(k * n).reshape(k, n).float() - 3


NO_TERMS = "What was received are not the terms of the other parts, so it is no sum of terms"

# %% checks="product" points=3
right, counted, cut = "the product is right", "the others' terms are received", "the cut where k does not divide"
check = exercises.Checks("Exercise 1, product", product)
link, (a, b) = Link(), whole_numbers(2, 6, 4)
even = terms_of(a, b, [[0, 1], [2, 3], [4, 5]]), terms_of(a, b, [[0, 3], [1, 4], [2, 5]])
check.returns(right, (a, b, 3, link.receive), expected=(a @ b).tolist())
check.holds(right, link.got(*even, in_order=False), otherwise=NO_TERMS)
link, (a, b) = Link(), whole_numbers(2, 6, 4)
check.returns(counted, (a, b, 3, link.receive), expected=(a @ b).tolist())
said = {
    96: "That includes the term of part 0, which is there already",
    0: "Nothing was received: call receive(term) for the term of each other part",
}
why = said.get(link.received_bytes, "Each of the two others has a term as large as the whole output, 32 bytes")
check.holds(counted, link.received_bytes == 64, otherwise=f"{link.received_bytes} bytes were received.\n{why}")
check.holds(counted, link.got(*even, in_order=False), otherwise=NO_TERMS)
link, (a, b) = Link(), whole_numbers(2, 7, 4)
seven = terms_of(a, b, [[0, 1, 2], [3, 4], [5, 6]]), terms_of(a, b, [[0, 3, 6], [1, 4], [2, 5]])
left_out = {tuple(map(tuple, (a[:, :6] @ b[:6]).tolist())): "7 // 3 is 2, and 3 x 2 is 6: one element is left out"}
check.returns(cut, (a, b, 3, link.receive), expected=(a @ b).tolist(), mistakes=left_out)
uneven = "The terms are not those of 3, 2 and 2 inner elements: the first parts take one more"
if link.got(*seven, in_order=False):
    uneven = "The terms are right and their order is not: receive that of part 1 first, then that of part 2"
check.holds(cut, link.got(*seven), otherwise=uneven)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(3001)
for parts in (2, 3, 5):
    m, n, each = draw.randint(1, 6), draw.randint(1, 6), draw.randint(1, 3)
    for goal, rest in ((right, 0), (counted, 0), (cut, draw.randint(1, parts - 1))):
        link, (a, b) = Link(), whole_numbers(m, parts * each + rest, n)
        places = torch.arange(parts * each + rest)
        neighbours, strided = places.tensor_split(parts), [places[part::parts] for part in range(parts)]
        cuts = terms_of(a, b, neighbours), terms_of(a, b, strided)
        check.returns(goal, (a, b, parts, link.receive), expected=(a @ b).tolist())
        check.holds(goal, link.got(*cuts, in_order=goal == cut), otherwise="terms")
        if goal == counted:
            check.holds(counted, link.received_bytes == (parts - 1) * m * n * 4, otherwise="bytes")
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the sizes</summary>
#
# `k // parts` for each part, and one more for the first `k % parts` of them.
#
# </details>
# <details><summary>Hint 2: the pieces</summary>
#
# `a.split(sizes, dim=1)` cuts the columns of `a`, `b.split(sizes)` the rows of `b`. Multiply them pair by pair.
#
# </details>
# <details><summary>Hint 3: the sum</summary>
#
# Start from the first term, and add `receive(term)` for each of the others.
#
# </details>


# %% wrong="product" says="one element is left out" gets=2
def product(a, b, parts, receive):
    size = a.shape[1] // parts
    terms = [a[:, i * size : (i + 1) * size] @ b[i * size : (i + 1) * size] for i in range(parts)]
    return terms[0] + sum(receive(term) for term in terms[1:])


# %% wrong="product" says="The terms are not those of 3, 2 and 2 inner elements" gets=2
def product(a, b, parts, receive):
    size = a.shape[1] // parts
    starts = [i * size for i in range(parts)]
    ends = [*starts[1:], a.shape[1]]
    terms = [a[:, low:high] @ b[low:high] for low, high in zip(starts, ends, strict=True)]
    return terms[0] + sum(receive(term) for term in terms[1:])


# %% wrong="product" says="That includes the term of part 0" gets=2
def product(a, b, parts, receive):
    k = a.shape[1]
    sizes = [k // parts + (part < k % parts) for part in range(parts)]
    pieces = zip(a.split(sizes, dim=1), b.split(sizes), strict=True)
    return sum(receive(left @ right) for left, right in pieces)


# %% wrong="product" says="Each of the two others has a term as large as the whole output" gets=0
def product(a, b, parts, receive):
    own, *others = [a @ piece for piece in b.tensor_split(parts, dim=1)]
    return torch.cat([own, *[receive(piece) for piece in others]], dim=1)


# %% wrong="product" says="Nothing was received" gets=0
def product(a, b, parts, receive):  # noqa: ARG001
    return a @ b


# %% wrong="product" says="The terms are right and their order is not" gets=2
def product(a, b, parts, receive):
    own, *others = [a[:, part::parts] @ b[part::parts] for part in range(parts)]
    return own + sum(receive(term) for term in reversed(others))


# %% [markdown]
# ## Exercise 2: how stale is it?
#
# A parameter server writes a log. `("fetch", 1)` says that worker 1 took the weights, `("send", 1)` that its gradient
# came in and was applied at once. The *staleness* of a gradient is the number of updates that were applied between
# the fetch of its weights and itself. Here worker 1 is slow:
#
# | log | fetch 0 | fetch 1 | send 0 | fetch 0 | send 0 | fetch 0 | send 1 | send 0 |
# |---|---|---|---|---|---|---|---|---|
# | updates applied so far | 0 | 0 | 1 | 1 | 2 | 2 | 3 | 4 |
# | staleness | | | 0 | | 0 | | 2 | 1 |
#
# Somebody counted it like this, and got other numbers:
#
# ```
# def staleness(log):
#     updates, found = 0, []
#     for event, worker in log:
#         if event == "fetch":
#             version = updates
#         else:
#             found.append(updates - version)
#             updates += 1
#     return found
# ```
#
# Which ones, and why? Write `staleness(log)`, which returns the staleness of each gradient in the order in which they
# came in. A worker may fetch again before it sends: the last fetch counts. The log is well-formed: nobody sends without
# a fetch before it.

# %%
steps = ["fetch 0", "fetch 1", "send 0", "fetch 0", "send 0", "fetch 0", "send 1", "send 0"]
log = [(step.split()[0], int(step.split()[1])) for step in steps]
print(log)


# %% answer="staleness"
def staleness(log):
    """Return the staleness of each gradient in the log, in the order in which they were applied."""
    ### BEGIN SOLUTION
    updates, versions, found = 0, {}, []
    for event, worker in log:
        if event == "fetch":
            versions[worker] = updates
        else:
            found.append(updates - versions[worker])
            updates += 1
    return found
    ### END SOLUTION


# %% checks="staleness" points=3
alone, others, again = "one worker alone", "updates of others", "a worker that fetches again"
check = exercises.Checks("Exercise 2, staleness", staleness)
one = [("fetch", 0), ("send", 0), ("fetch", 0), ("send", 0)]
including = "That counts the gradient's own update; count those before it"
check.returns(alone, (one,), expected=[0, 0], mistakes={(1, 1): including})
mistakes = {
    (0, 0, 0, 0): "That takes the version of the last fetch of anybody; each worker has a version of its own",
    (0, 0, 0, 1): "That takes the version of the last fetch of anybody; each worker has a version of its own",
    (1, 1, 3, 2): including,
    (1, 0, 4, 1): "That counts fetches as well; only a send updates the weights",
}
check.returns(others, (log,), expected=[0, 0, 2, 1], mistakes=mistakes)
twice = [("fetch", 0), ("fetch", 1), ("send", 1), ("fetch", 0), ("send", 0)]
first = "That is from worker 0's first fetch; it took newer weights before it sent"
check.returns(again, (twice,), expected=[0, 0], mistakes={(0, 1): first})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(3011)
for goal, workers in ((alone, 1), (others, 2), (others, 4), (again, 2), (again, 3)):
    hidden, held, applied, wanted = [], {}, 0, []
    for _ in range(30):
        worker = draw.randrange(workers)
        if worker in held and (goal != again or draw.random() < 0.6):
            hidden.append(("send", worker))
            wanted.append(applied - held.pop(worker))
            applied += 1
        else:
            hidden.append(("fetch", worker))
            held[worker] = applied
    check.returns(goal, (hidden,), expected=wanted)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to remember</summary>
#
# Two things: how many updates there were so far, and for *each* worker how many there were when it fetched.
#
# </details>
# <details><summary>Hint 2: where</summary>
#
# A dictionary from worker to version. A second fetch writes over the first.
#
# </details>
# <details><summary>Hint 3: when to count</summary>
#
# At a send: first the difference, then one update more.
#
# </details>


# %% wrong="staleness" says="each worker has a version of its own" gets=1
def staleness(log):
    updates, version, found = 0, 0, []
    for event, _worker in log:
        if event == "fetch":
            version = updates
        else:
            found.append(updates - version)
            updates += 1
    return found


# %% wrong="staleness" says="That counts the gradient's own update" gets=0
def staleness(log):
    updates, versions, found = 0, {}, []
    for event, worker in log:
        if event == "fetch":
            versions[worker] = updates
        else:
            updates += 1
            found.append(updates - versions[worker])
    return found


# %% wrong="staleness" says="That is from worker 0's first fetch" gets=2
def staleness(log):
    updates, versions, found = 0, {}, []
    for event, worker in log:
        if event == "fetch":
            versions.setdefault(worker, updates)
        else:
            found.append(updates - versions.pop(worker))
            updates += 1
    return found


# %% [markdown]
# ## Exercise 3: run the server by hand
#
# Each worker fetches the weights at time 0, computes for its own number of seconds, sends its gradient, and fetches
# again at once. Fetching and sending take no time. Of workers that are ready at the same time, the one with the lower
# number goes first. Worker 0 takes 2 s here, worker 1 takes 3 s:
#
# | time | 0 | 0 | 2 | 2 | 3 | 3 | 4 |
# |---|---|---|---|---|---|---|---|
# | event | fetch 0 | fetch 1 | send 0 | fetch 0 | send 1 | fetch 1 | send 0 |
#
# Write `serve(seconds, updates)`. `seconds[worker]` is a whole number for each worker; return the log up to and with
# the send that is update number `updates`, as pairs: `("fetch", 0)`. (Your `staleness` of exercise 2 reads such a
# log.)


# %% answer="serve"
def serve(seconds, updates):
    """Return the log of a parameter server whose workers do not wait, up to the last of so many sends."""
    ### BEGIN SOLUTION
    log = [("fetch", worker) for worker in range(len(seconds))]
    ready = list(seconds)
    for _ in range(updates):
        worker = ready.index(min(ready))
        log += [("send", worker), ("fetch", worker)]
        ready[worker] += seconds[worker]
    return log[:-1]
    ### END SOLUTION


# %%
def written(text):
    """Return the log that a text such as "f0 s0" stands for."""
    return [({"f": "fetch", "s": "send"}[event[0]], int(event[1:])) for event in text.split()]


def kept(text):
    return tuple(written(text))


# %% checks="serve" points=3
alone, turns, slow = "one worker alone", "equal workers take turns", "a slow worker"
check = exercises.Checks("Exercise 3, serve", serve)
mistakes = {kept("f0 s0 f0 s0 f0"): "The log ends with the last send; nobody fetches after it"}
check.returns(alone, ([5], 2), expected=written("f0 s0 f0 s0"), mistakes=mistakes)
mistakes = {
    kept("f0 f1 s0 s1 f0 f1 s0 s1"): "They waited for each other: a worker fetches right after it sends",
    kept("f0 f1 s1 f1 s0 f0 s1 f1 s0"): "At equal times the lower number goes first",
    kept("f0 f1 s0 f0 s1 f1 s0 f0 s1 f1"): "The log ends with the last send; nobody fetches after it",
}
check.returns(turns, ([1, 1], 4), expected=written("f0 f1 s0 f0 s1 f1 s0 f0 s1"), mistakes=mistakes)
mistakes = {
    kept("f0 f1 s0 f0 s1 f1 s0 f0 s1"): "They took turns: worker 1 needs three seconds for each gradient",
    kept("f0 f1 s0 f0 s0 f0 s0 f0 s0"): "Worker 1 is ready at 3 s, as worker 0 is: it goes right after it",
    kept("f0 f1 s0 f0 s0 f0 s1 f1 s0"): "At 3 s both are ready, and the lower number goes first",
}
check.returns(slow, ([1, 3], 4), expected=written("f0 f1 s0 f0 s0 f0 s0 f0 s1"), mistakes=mistakes)
check.report()
### BEGIN HIDDEN TESTS
import random


def reference(seconds, updates):
    """Every second in turn: whoever is ready sends and fetches."""
    log, now = [("fetch", worker) for worker in range(len(seconds))], 0
    while True:
        now += 1
        for worker, each in enumerate(seconds):
            if now % each == 0:
                log.append(("send", worker))
                updates -= 1
                if updates == 0:
                    return log
                log.append(("fetch", worker))


draw = random.Random(3023)
for _ in range(3):
    each, many, count = draw.randint(1, 9), draw.randint(3, 5), draw.randint(7, 12)
    check.returns(alone, ([each], count), expected=reference([each], count))
    check.returns(turns, ([each] * many, count), expected=reference([each] * many, count))
    unequal = [draw.randint(2, 7) for _ in range(many - 1)] + [draw.randint(9, 14)]
    check.returns(slow, (unequal, 3 * count), expected=reference(unequal, 3 * count))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to remember</summary>
#
# For each worker the time at which its gradient will be ready.
#
# </details>
# <details><summary>Hint 2: who is next</summary>
#
# The earliest of these times; `ready.index(min(ready))` is the lowest number that has it.
#
# </details>
# <details><summary>Hint 3: what happens then</summary>
#
# A send and a fetch go into the log, and the worker is ready again its own number of seconds later. Cut the last fetch
# off in the end.
#
# </details>


# %% wrong="serve" says="They waited for each other" gets=1
def serve(seconds, updates):
    everybody, log = range(len(seconds)), []
    while sum(event == "send" for event, _ in log) < updates:
        log += [("fetch", worker) for worker in everybody] + [("send", worker) for worker in everybody]
    return log


# %% wrong="serve" says="They took turns" gets=2
def serve(seconds, updates):
    log = [("fetch", worker) for worker in range(len(seconds))]
    for update in range(updates):
        worker = update % len(seconds)
        log += [("send", worker), ("fetch", worker)]
    return log[:-1]


# %% wrong="serve" says="At equal times the lower number goes first" gets=1
def serve(seconds, updates):
    log = [("fetch", worker) for worker in range(len(seconds))]
    ready = list(seconds)
    for _ in range(updates):
        worker = max(range(len(ready)), key=lambda each: (-ready[each], each))
        log += [("send", worker), ("fetch", worker)]
        ready[worker] += seconds[worker]
    return log[:-1]


# %% wrong="serve" says="nobody fetches after it" gets=0
def serve(seconds, updates):
    log = [("fetch", worker) for worker in range(len(seconds))]
    ready = list(seconds)
    for _ in range(updates):
        worker = ready.index(min(ready))
        log += [("send", worker), ("fetch", worker)]
        ready[worker] += seconds[worker]
    return log


# %% [markdown]
# ## Question 1: an old gradient
#
# In asynchronous training a worker's gradient is applied when the weights have moved on. Say what goes wrong when the
# gradient is old and the learning rate is large, why the same learning rate may be fine without the delay, and one
# thing that you would change.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="old_gradient" points=2
# A full answer says:
#
# - 1 point: the step goes downhill from where the weights were; it overshoots where they are by now, later gradients
#   correct a place that was left, and the error grows instead of shrinking. Without delay the same step is corrected
#   at once. An answer from the limits counts as well: the largest stable rate times curvature falls with the delay, so
#   the same rate may lie below the limit without delay and above it with one.
# - 1 point: a change with its effect: a smaller learning rate, fewer updates in between (waiting for all, or for
#   some), or a weight for a gradient that falls with its age.

# %% [markdown]
# ## Question 2: a cut of your own
#
# Take a model and a machine that you know: a network of yours on two GPUs, on two processes of your laptop, or on two
# computers with a network between them. Choose one of the four sources. From counts and two numbers of the link
# (latency, bandwidth) and one of the worker (the time of a step alone, measured), predict how many times as fast two
# workers are. Then run it, or the part of it that you can run, and measure. A cut inside one process counts as well:
# a product in two threads, two networks in a stack.
#
# Give the three numbers (counted, predicted, measured) with sizes and units, and explain a distance of more than a
# factor of two between prediction and measurement. Three to six sentences; a person reads them.

# %% [markdown] written="own_cut" points=2
# A full answer says:
#
# - 1 point: one source, named, for stated shapes; how often the workers exchange and how many bytes; where the link's
#   two numbers and the time of a step come from; the predicted ratio that follows from them; the measured one, with
#   the same result (or the same gradient) as one worker.
# - 1 point: an explanation that fits the numbers: threads that must be woken, cores that were not free or share a
#   cache and the memory's bandwidth, a batch too small for the work to shrink with the workers, several messages
#   where one was counted, sending that hides behind computing, more bytes than each tensor once (a ring). A prediction
#   within a factor of two gets this point when it says which term of the model was the largest. "The model is wrong"
#   explains nothing.

# %% [markdown]
# ## What you have practised
#
# Cutting a product where it needs a sum, and counting what that sum costs; running a parameter server, and saying how
# old its gradients are; and holding a cut of your own to a model. Lesson 05 runs the second source, over examples, on
# processes that really exchange their gradients.
