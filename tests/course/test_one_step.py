"""Every number of course/one_step.md is recomputed here; a changed number, or one that no test
computes, fails.
"""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from helpers import hardware, roofline
from helpers.studies import (
    data_parallel,
    decoding,
    gpu_execution,
    memory_hierarchy,
    serving,
    two_levels,
)
from tools.authoring.course import HERE
from tools.authoring.rules import links

PAGE = HERE.folder / "one_step.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())

USERS, TOKENS, ANSWER, CHUNK_STEP = 64, 2000, 250, 512  # the case of lessons 22 and 23
# FLOP per second of an H100 in the training of Llama 3, Table 4 of the Llama Team's paper
TRAINING_RATE = 400e12
LAUNCH_S, KERNELS_IN_A_LAYER, KERNELS_AROUND = 5e-6, 12, 4  # what the page supposes
H100 = hardware.device("H100 SXM 80 GB")
ROOF = roofline.datasheet_roof(H100, "bfloat16")
RATE, PEAK = ROOF.bandwidth_bytes_per_s, ROOF.peak_flops_per_s
LLAMA = decoding.CONFIGS["Llama 3 8B"]
STEP = decoding.count_step(LLAMA, batch=USERS, tokens=TOKENS)
ALONE = decoding.count_step(LLAMA, batch=1, tokens=TOKENS)
WRITTEN = LLAMA.cache_bytes(USERS)
STEP_S = (STEP.read_bytes + WRITTEN) / RATE


def gb(count: float) -> str:
    return f"{count / 1e9:.1f}"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}"


def rows() -> dict[str, tuple[int, int | None]]:
    """Return the bytes and the FLOPs of each row of the table."""
    qkv, output, up, down = (outputs * inputs for outputs, inputs, _ in LLAMA.products)
    weights = {
        "four attention projections per layer": LLAMA.layers * (qkv + output),
        "three feed-forward matrices per layer": LLAMA.layers * (up + down),
        "output head": LLAMA.table_weights,
    }
    found: dict[str, tuple[int, int | None]] = {
        name: (2 * count, 2 * USERS * count) for name, count in weights.items()
    }
    found["norms"] = (2 * LLAMA.norm_weights, None)
    matrices = sum(flops or 0 for _, flops in found.values())
    found["KV caches, read"] = (STEP.cache_bytes, STEP.flops - matrices)
    found["new keys and values, written"] = (WRITTEN, 0)
    return found


def table() -> dict[str, list[str]]:
    cells = [
        [cell.strip(" *") for cell in line.strip("|").split("|")]
        for line in TEXT.splitlines()
        if line[:2] == "| "
    ]
    return {name: values for name, *values in cells[1:]}


def test_each_row_of_the_table_is_counted():
    counted = {
        name: [
            f"{count / 1e6:,.1f}",
            f"{1e6 * count / RATE:,.1f}",
            "not counted" if flops is None else f"{1e6 * flops / PEAK:,.1f}",
        ]
        for name, (count, flops) in rows().items()
    }
    counted["together (modelled)"] = [
        f"{(STEP.read_bytes + WRITTEN) / 1e6:,.1f}",
        f"{1e6 * STEP_S:,.1f}",
        f"{1e6 * STEP.flops / PEAK:,.1f}",
    ]
    assert table() == counted


def test_the_rows_are_the_whole_step():
    counts = rows().values()
    assert sum(count for count, _ in counts) == STEP.read_bytes + WRITTEN
    assert sum(flops or 0 for _, flops in counts) == STEP.flops


@pytest.mark.parametrize("column", range(3), ids=["bytes", "memory", "arithmetic"])
def test_each_column_adds_up_as_it_is_printed(column):
    *parts, together = [
        values[column].replace(",", "").replace("not counted", "0") for values in table().values()
    ]
    assert sum(round(10 * float(part)) for part in parts) == round(10 * float(together))


def prose() -> str:
    """Return the page without its table and its program, in one line."""
    lines = [line for line in TEXT.partition("```")[0].splitlines() if line[:1] != "|"]
    return " ".join([*" ".join(lines).split(), *TEXT.rpartition("```")[2].split()])


def before_the_step() -> list[str]:
    server = serving.gpu_step(LLAMA, bandwidth_bytes_per_s=RATE, flops_per_s=TRAINING_RATE)
    chunk_tokens = CHUNK_STEP - USERS
    own_s, cached_s = server.token_s * CHUNK_STEP, server.cached_s * USERS * TOKENS
    request_s = server.request_s(TOKENS, ANSWER, batch=USERS, spread=True)
    assert own_s > server.weights_s
    one = decoding.count_step(LLAMA)
    return [
        f"for {USERS} users at once",
        f"reads {gb(STEP.read_bytes)} GB",
        f"{USERS} sequences of {TOKENS:,} tokens",
        f"gives {RATE / 1e9:,.0f} GB/s and {PEAK / 1e12:.0f} TFLOP/s",
        f"needs {gb(one.flops)} billion operations",
        f"each of {gb(one.flops / 2)} billion weights",
        f"reached {TRAINING_RATE / 1e12:.0f} TFLOP/s",
        "2024, Table 4, published",
        f"{TOKENS:,} tokens take {1e3 * TOKENS * server.token_s:.0f} ms",
        f"If {chunk_tokens} of its tokens join our step, the step takes {ms(own_s + cached_s)} ms, "
        f"because {CHUNK_STEP} tokens need {ms(own_s)} ms of arithmetic and the caches "
        f"{ms(cached_s)} ms of reading",
        f"costs the GPU {1e3 * request_s:.0f} ms if {USERS} share each step",
        f"more than {1 / request_s:.1f} arrive",
        f"An answer of {ANSWER} tokens needs {ANSWER} steps",
        f"At {ms(STEP_S)} ms per step the answer takes {ANSWER * STEP_S:.1f} s",
        f"Only the {USERS} requests",
    ]


def weights_and_caches() -> list[str]:
    weights_s, cache_s = STEP.weight_bytes / RATE, ALONE.cache_bytes / RATE
    long = decoding.count_step(LLAMA, batch=USERS, tokens=8000)
    alone_s = ALONE.read_bytes / RATE
    assert STEP.cache_bytes > STEP.weight_bytes
    assert STEP.cache_bytes > (STEP.read_bytes + WRITTEN) / 2
    return [
        f"reads {gb(STEP.weight_bytes)} GB of weights, 2 bytes each, in {us(weights_s)} µs",
        (
            f"{STEP.weight_bytes / H100.l2_bytes:.0f} times as large as the L2 cache of "
            f"{H100.l2_bytes / 1e6:.0f} MB"
        ),
        f"one token keeps {LLAMA.cache_bytes():,} bytes, because each of {LLAMA.layers} layers "
        f"stores a key and a value of {LLAMA.kv_heads * LLAMA.head_width:,} elements in 2 bytes",
        f"For {USERS} sequences these are {gb(STEP.cache_bytes)} GB",
        f"With 8,000 tokens per sequence a step would take {ms(long.read_bytes / RATE)} ms",
        f"pays {us(weights_s / USERS)} µs",
        f"own cache costs {us(cache_s)} µs",
        f"single user takes {ms(alone_s)} ms",
        f"With {USERS - 1} others it takes {ms(STEP_S)} ms, which is "
        f"{STEP_S / alone_s:.1f} times as long and not {USERS} times",
    ]


def inside_the_gpu() -> list[str]:
    matrices = sum(flops or 0 for name, (_, flops) in rows().items() if "KV" not in name)
    per_byte = matrices / (STEP.weight_bytes - 2 * LLAMA.norm_weights)
    per_cache_byte = (STEP.flops - matrices) / STEP.cache_bytes
    assert per_cache_byte == LLAMA.heads / LLAMA.kv_heads == 4
    one_pass = USERS * LLAMA.heads * TOKENS * 2 * LLAMA.layers
    latency_s = memory_hierarchy.gpu_wait("GH100").memory_s
    reached = max(row.bandwidth_bytes_per_s for row in gpu_execution.TRANSPOSES) / RATE
    kernels = LLAMA.layers * KERNELS_IN_A_LAYER + KERNELS_AROUND
    assert STEP_S / kernels > LAUNCH_S
    return [
        (
            f"does {STEP.flops / 1e12:.2f} trillion operations, which would take "
            f"{us(STEP.flops / PEAK)} µs"
        ),
        f"busy for {100 * STEP.flops / PEAK / STEP_S:.0f} % of the time",
        f"byte of a matrix brings {per_byte:.0f} operations",
        f"byte of a cache brings {per_cache_byte:.0f},",
        f"could do {PEAK / RATE:.0f} in the time of one byte",
        f"{USERS} × {LLAMA.heads} × {TOKENS:,} scores",
        "In 2 bytes, one pass",
        f"is {one_pass / 1e6:.0f} MB",
        f"add {us(6 * one_pass / RATE)} µs",
        f"takes {1e9 * latency_s:.0f} ns",
        f"deliver {RATE / 1e9:,.0f} GB/s",
        f"have {RATE * latency_s / 1e6:.2f} MB",
        f"reached {100 * reached:.0f} % of this bandwidth",
        f"our step would take {ms(STEP_S / reached)} ms",
        f"a layer has {KERNELS_IN_A_LAYER} kernels",
        f"that {KERNELS_AROUND} more surround",
        f"At {us(LAUNCH_S)} µs each, the {kernels} launches take {ms(kernels * LAUNCH_S)} ms",
        f"average kernel takes {us(STEP_S / kernels)} µs",
    ]


def what_would_change_it() -> list[str]:
    fewer = decoding.count_step(LLAMA, batch=USERS, tokens=TOKENS, bits=8)
    fewest = decoding.count_step(LLAMA, batch=USERS, tokens=TOKENS, bits=8, cache_number_bytes=1)
    stored = decoding.stored_bytes(LLAMA)
    weights, caches = decoding.read_bytes(LLAMA, gpus=8), STEP.cache_bytes / 8
    divided_s = (weights + caches + WRITTEN / 8) / RATE
    size = USERS * LLAMA.width * 2
    sums = 2 * LLAMA.layers
    nvlink = data_parallel.PUBLISHED_LINKS["NVLink 4 (of an H100)"].link
    node = two_levels.B200_ONE_NODE
    sum_s = node.times_s[size]
    sent = 2 * (node.gpus - 1) / node.gpus * size
    launches_s = LAUNCH_S * (LLAMA.layers * KERNELS_IN_A_LAYER + KERNELS_AROUND)
    assert fewest.read_bytes / STEP.read_bytes == pytest.approx(0.5, abs=0.01)
    assert launches_s > divided_s
    return [
        f"With 8-bit weights the step takes {ms(fewer.read_bytes / RATE)} ms",
        f"With 8-bit caches as well it takes {ms(fewest.read_bytes / RATE)} ms",
        (
            f"takes {gb(stored)} GB with its embedding table, and the caches take "
            f"{gb(STEP.cache_bytes)} GB"
        ),
        f"{gb(stored + STEP.cache_bytes)} of {H100.memory_bytes / 2**30:.0f} GB",
        f"each reads {gb(weights)} GB of weights",
        f"and {gb(caches)} GB of caches in {ms(divided_s)} ms",
        f"{sums} of {size // 2**10} KiB",
        f"NVLink's {nvlink.bandwidth_bytes_per_s / 1e9:.0f} GB/s would need "
        f"{1e6 * sent / nvlink.bandwidth_bytes_per_s:.1f} µs",
        "eight B200",
        f"one took {us(sum_s)} µs",
        "2026, published",
        f"All {sums} take {ms(sums * sum_s)} ms, so the step takes {ms(divided_s + sums * sum_s)} "
        f"ms and not an eighth of {ms(STEP_S)}.",
        f"cannot wait {ms(STEP_S)} ms",
    ]


def what_remains() -> list[str]:
    llama_2, measured = decoding.CONFIGS["Llama 2 7B"], decoding.GPT_FAST[0]
    assert (measured.model, measured.device, measured.bits, measured.gpus) == (
        llama_2.name,
        "A100",
        16,
        1,
    )
    a100 = hardware.device("A100 SXM 80 GB").memory_bandwidth_bytes_per_s
    share = measured.tokens_per_s * decoding.read_bytes(llama_2) / a100
    line = serving.gpu_step(
        LLAMA,
        bandwidth_bytes_per_s=RATE,
        flops_per_s=2 * TRAINING_RATE,
        bits=8,
        cache_number_bytes=1,
    )
    ratios = [
        row.h100_tokens_per_s
        * line.request_s(row.prompt_tokens, row.answer_tokens)
        / row.answer_tokens
        for row in serving.TENSORRT_LLM
    ]
    _, _, (up, _, _), _ = LLAMA.products
    keys = LLAMA.kv_heads * LLAMA.head_width
    assert not any(width % 128 for width in (LLAMA.width, keys, LLAMA.hidden, LLAMA.vocabulary))
    assert 2 * USERS * up < H100.l2_bytes
    return [
        f"reached {100 * share:.0f} % of its bound",
        f"our step would take {ms(STEP_S / share)} ms",
        f"expect {ms(STEP_S)} to {ms(STEP_S / share)} ms",
        f"with 8-bit weights are {min(ratios):.2f} to {max(ratios):.2f} times",
        f"has {USERS} × {up:,} elements, which are {2 * USERS * up / 1e6:.1f} MB",
        "multiples of 128,",
    ]


SAID = [
    *before_the_step(),
    *weights_and_caches(),
    *inside_the_gpu(),
    *what_would_change_it(),
    *what_remains(),
]


@pytest.mark.parametrize("phrase", SAID)
def test_the_page_has_the_computed_number(phrase):
    assert phrase in WORDS


def test_no_number_of_the_page_is_left_uncomputed():
    rest = prose()
    for phrase in sorted(SAID, key=len, reverse=True):
        rest = rest.replace(phrase, "")
    rest = re.sub(
        r"\]\([^)]*\)|[Ll]essons? \d\d|Llama \d( \d+B)?|[HAB]\d00|GH200|L2|bfloat16", "", rest
    )
    assert re.findall(r"\S*\d\S*", rest) == []


def test_its_program_runs_and_prints_the_two_sums():
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert (
        printed.getvalue()
        == f"{ms(STEP.read_bytes / RATE)} ms reading, {ms(STEP.flops / PEAK)} ms computing\n"
    )


def test_every_lesson_has_a_place_in_it_and_its_links_lead_somewhere():
    linked = set(re.findall(r"\((\d\d)_\w+\.ipynb\)", TEXT))
    assert linked == {lesson.number for lesson in HERE.lessons()}
    assert links.dead_links(TEXT, page=PAGE, root=HERE.root) == []


def test_it_stays_short():
    assert len(prose().split()) <= 1300
