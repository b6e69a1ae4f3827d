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
# Three functions to write, for [lesson 03](../03_sources_of_parallelism.ipynb). Each has a picture or a table, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Nothing here depends on how fast your machine is.

# %%
import torch

from helpers import exercises, plotting, sources

# %% [markdown]
# ## Exercise 1: a product that needs a sum
#
# The product $(m, k) \cdot (k, n)$ is cut over its inner dimension. Each part multiplies some columns of `a` with the
# rows of `b` that belong to them, and has a *term*: a matrix as large as the whole output. The sum of the terms is
# the product.

# %%
drawn = plotting.draw_split(sources.model_split(4, 6, 8, by="inner", parts=3))
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
# ## Exercise 3: which source pays?
#
# A step computes for $t$ seconds, and each source of parallelism makes it wait on a link: each synchronisation takes
# the latency $\alpha$ once, and each byte $\beta$, one over the bandwidth. A source *pays* here when at least half of
# the step is left for computing:
#
# $$\frac{t}{t + n \alpha + b \beta} \ge \frac{1}{2}$$
#
# | source | $n$, synchronisations | $b$, bytes | wait at 1 ms and 1 kB/s | pays, if the step computes for 1 s? |
# |---|--:|--:|--:|---|
# | within a layer | 100 | 500 | 0.6 s | yes |
# | over examples | 1 | 2000 | 2.001 s | no |
# | over models | 0 | 0 | 0 s | yes |
#
# Write `paying(sources, compute_s, bandwidth_bytes_per_s, latency_s)`. `sources` is a list of triples (name, $n$, $b$);
# return the list of the names that pay, in the order given.


# %% answer="paying"
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    """Return the names of the sources that leave at least half of the step for computing."""
    ### BEGIN SOLUTION
    names = []
    for name, synchronisations, payload_bytes in sources:
        wait_s = synchronisations * latency_s + payload_bytes / bandwidth_bytes_per_s
        if wait_s <= compute_s:
            names.append(name)
    return names
    ### END SOLUTION


# %% checks="paying" points=3
by_bytes, by_times, edge = "the bytes", "the synchronisations", "exactly half is enough"
check = exercises.Checks("Exercise 3, paying", paying)
no_latency = [("a", 1, 400), ("b", 1, 3000), ("c", 0, 1), ("d", 1, 1100), ("e", 4, 600)]
mistakes = {
    ("b", "d", "e"): "That is bandwidth over bytes; the time is bytes over bandwidth",
    ("a", "c", "e"): "A wait of up to as long as the computing is allowed",
    ("a", "c", "d"): "The bytes are those of all synchronisations together; do not multiply them",
    ("b",): "Those are the ones that do not pay",
}
check.returns(by_bytes, (no_latency, 2.0, 1000, 2**-20), expected=["a", "c", "d", "e"], mistakes=mistakes)
often = [("a", 3, 1), ("b", 9, 1), ("c", 0, 1), ("d", 1, 1)]
forgotten = "The latency is missing, or is paid once whatever the synchronisations"
check.returns(by_times, (often, 1.0, 2**30, 0.25), expected=["a", "c", "d"], mistakes={tuple("abcd"): forgotten})
just = [("a", 1, 768), ("b", 1, 769), ("c", 2, 768)]
at_half = "At a wait exactly as long as the computing, half is left: that still pays"
check.returns(edge, (just, 1.0, 1024, 0.25), expected=["a"], mistakes={(): at_half})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(3019)
for _ in range(4):
    compute_s, bandwidth = draw.choice([0.5, 2.0, 8.0]), draw.choice([2**10, 2**20, 2**30])
    names = [f"s{place}" for place in range(6)]
    few = [(name, draw.randint(0, 1), int(bandwidth * compute_s * draw.choice([0.25, 0.75, 1.5, 3]))) for name in names]
    wanted = [name for name, _, size in few if size / bandwidth < compute_s]
    check.returns(by_bytes, (few, compute_s, bandwidth, 2**-30), expected=wanted)
    latency_s = compute_s / 8
    many = [(name, draw.choice([0, 1, 5, 11, 40]), 1) for name in names]
    wanted = [name for name, count, _ in many if count < 8]
    check.returns(by_times, (many, compute_s, 2**40, latency_s), expected=wanted)
    half = [(name, 4, int(bandwidth * compute_s / 2) + draw.choice([0, 1])) for name in names]
    wanted = [name for name, _, size in half if size * 2 == bandwidth * compute_s]
    check.returns(edge, (half, compute_s, bandwidth, latency_s), expected=wanted)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the wait</summary>
#
# Synchronisations times latency, plus bytes over bandwidth.
#
# </details>
# <details><summary>Hint 2: half</summary>
#
# At least half of the step is left when the wait is at most as long as the computing.
#
# </details>
# <details><summary>Hint 3: the order</summary>
#
# Go through `sources` once and append each name that pays to a list.
#
# </details>


# %% wrong="paying" says="The latency is missing, or is paid once whatever the synchronisations" gets=1
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    return [name for name, _, size in sources if latency_s + size / bandwidth_bytes_per_s <= compute_s]


# %% wrong="paying" says="half is left: that still pays" gets=2
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    return [name for name, n, size in sources if n * latency_s + size / bandwidth_bytes_per_s < compute_s]


# %% wrong="paying" says="That is bandwidth over bytes" gets=0
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    return [name for name, n, size in sources if n * latency_s + bandwidth_bytes_per_s / size <= compute_s]


# %% wrong="paying" says="A wait of up to as long as the computing is allowed" gets=0
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    return [name for name, n, size in sources if n * latency_s + size / bandwidth_bytes_per_s <= compute_s / 2]


# %% wrong="paying" says="do not multiply them" gets=1
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    return [name for name, n, size in sources if n * (latency_s + size / bandwidth_bytes_per_s) <= compute_s]


# %% wrong="paying" says="Those are the ones that do not pay" gets=0
def paying(sources, compute_s, bandwidth_bytes_per_s, latency_s):
    return [name for name, n, size in sources if n * latency_s + size / bandwidth_bytes_per_s > compute_s]


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
# ## Question 2: split which side?
#
# A matrix product may be split over the rows of the first matrix, over the columns of the second, or over the inner
# side. Say for each what every part needs and what must happen at the end, and when you would still choose the inner
# side.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="which_side" points=2
# A full answer says:
#
# - 1 point: rows need their rows and all of the second matrix, columns all of the first matrix and their columns, and
#   both give pieces of the output that are put side by side; the inner side gives terms as large as the output that
#   must be added.
# - 1 point: one of these: nothing of the inputs is needed twice, so none is copied; the inner side is by far the
#   longest and the output is small; the matrices lie divided that way already, for instance as the output of a layer
#   that was split over its columns.

# %% [markdown]
# ## What you have practised
#
# Cutting a product where it needs a sum, and counting what that sum costs; saying how old a gradient is; and holding
# a source of parallelism to a link before anybody builds it. Lesson 04 runs the second source, over examples, on
# processes that really exchange their gradients.
