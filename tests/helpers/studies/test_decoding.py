import itertools
import math

import pytest
import torch
from hypothesis import given, strategies as st

from helpers.models import Decoder
from helpers.operations import profile_ops
from helpers.studies import decoding
from helpers.studies.decoding import CONFIGS, GPT_FAST, PAGED_ATTENTION
from tests.properties import repeatable

VOCABULARY = 7


def make_model(**sizes) -> Decoder:
    torch.manual_seed(0)
    given = {"width": 16, "layers": 2, "heads": 4, "context": 40} | sizes
    return Decoder(VOCABULARY, **given)


# --- counts ---


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[name]
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocabulary,
                hidden_size=config.width,
                intermediate_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                tie_word_embeddings=False,
            )
        )
    assert config.parameters == sum(weight.numel() for weight in model.parameters())


def test_the_lessons_model_by_hand():
    config = decoding.config_of(Decoder(256, width=512, layers=8, heads=8))
    assert decoding.read_bytes(config, bits=32) == 101_222_400
    assert config.cache_bytes(number_bytes=4) == 32_768
    shared = decoding.config_of(Decoder(256, width=512, layers=8, heads=8, kv_heads=2))
    assert decoding.read_bytes(shared, bits=32) == 88_639_488
    assert shared.cache_bytes(number_bytes=4) == 8_192


@st.composite
def decoders(draw) -> Decoder:
    """Draw a small decoder: layers, and groups of heads that share their keys and values."""
    kv_heads, sharing, head_width = (draw(st.integers(1, 3)) for _ in range(3))
    heads = kv_heads * sharing
    return make_model(
        width=2 * heads * head_width, layers=draw(st.integers(1, 3)), heads=heads, kv_heads=kv_heads
    )


@repeatable(examples=12)
@given(decoders(), st.integers(1, 4), st.integers(1, 40))
def test_a_step_is_what_profile_ops_counts(model, batch, tokens):
    cache, new = model.new_cache(batch), torch.zeros(batch, 1, dtype=torch.int64)
    counted = profile_ops(model, (new, cache, tokens - 1))
    step = decoding.count_step(decoding.config_of(model), batch=batch, tokens=tokens, bits=32)
    assert step.flops == 2 * counted.forward_macs
    assert step.cache_bytes == cache[:, :, :, :, :tokens].numel() * 4
    tables = model.tokens.weight.nbytes + model.positions.weight.nbytes
    assert step.weight_bytes == sum(weight.nbytes for weight in model.parameters()) - tables
    assert step.read_bytes == step.weight_bytes + step.cache_bytes


def test_gpt_fasts_bandwidths_are_stored_bytes_times_rate():
    """Twelve of the fifteen rows to 0.01 %, with the rounding of the printed rate; three rows are
    off by more.
    """
    ratios = {}
    for row in GPT_FAST:
        stored = decoding.stored_bytes(CONFIGS[row.model], bits=row.bits, gpus=row.gpus)
        rounding = 0.005 / row.tokens_per_s + 1e-5
        off = stored * row.tokens_per_s / row.bandwidth_bytes_per_s - 1
        if abs(off) > rounding:
            ratios[row.model, row.bits, row.gpus] = round(100 * off, 2)
    assert ratios == {
        ("Llama 2 7B", 16, 1): 1.17,
        ("Llama 2 7B", 4, 1): 0.19,
        ("Llama 2 70B", 8, 1): 0.17,
    }


def test_two_published_rows_of_tensor_parallelism_predict_the_third():
    rows = {row.gpus: row for row in GPT_FAST if (row.model, row.bits) == ("Llama 2 70B", 16)}
    step_s = {gpus: 1 / row.tokens_per_s for gpus, row in rows.items()}
    divided = (step_s[2] - step_s[8]) / (1 / 2 - 1 / 8)
    assert divided / 4 + step_s[8] - divided / 8 == pytest.approx(step_s[4], rel=1e-3)


def test_paged_attentions_cache_of_a_token_and_of_a_text():
    opt_13b = decoding.Config("OPT-13B", 40, 5120, 40, 40, 20_480, 50_272, gated=False)
    assert opt_13b.cache_bytes() == 800 * 1024  # printed: 800 KB
    assert opt_13b.cache_bytes(2048) == pytest.approx(1.6e9, rel=0.05)  # printed: 1.6 GB
    assert [row.token_states_share for row in PAGED_ATTENTION] == [0.204, 0.268, 0.382, 0.963]


def test_known_caches_and_where_they_weigh_as_much_as_the_weights():
    per_token = {name: config.cache_bytes() for name, config in CONFIGS.items()}
    assert per_token == {
        "Llama 2 7B": 524_288,
        "Llama 2 13B": 819_200,
        "Llama 2 70B": 327_680,
        "Llama 3 8B": 131_072,
        "Llama 3 70B": 327_680,
    }
    without_table = 8_030_261_248 - 128_256 * 4096
    assert decoding.read_bytes(CONFIGS["Llama 3 8B"]) == 2 * without_table
    assert decoding.read_bytes(CONFIGS["Llama 3 8B"]) // 131_072 == 114_516


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: decoding.read_bytes(CONFIGS["Llama 2 7B"], bits=5), ValueError, "bits"),
        (
            lambda: decoding.read_bytes(CONFIGS["Llama 2 7B"], gpus=3),
            ValueError,
            "3 GPUs do not divide a matrix",
        ),
        (lambda: decoding.count_step(CONFIGS["Llama 2 7B"], batch=0), ValueError, "batch=0"),
        (lambda: decoding.config_of(torch.nn.Linear(2, 2)), TypeError, "Decoder"),
        (lambda: decoding.count_pages([], 16), ValueError, "lengths is empty"),
        (lambda: decoding.schedule([3], places=2, policy="eager"), ValueError, "policy"),
        (
            lambda: decoding.generate(None, [1], 3),
            TypeError,
            "model=None is .*; give a helpers.models.Decoder",
        ),
        (
            lambda: decoding.generate(make_model(), [], 3),
            ValueError,
            "prompt is empty; give at least one token",
        ),
        (
            lambda: decoding.generate(make_model(), [1], 3, temperature=-1),
            ValueError,
            "temperature",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- writing ---


def test_generate_writes_the_same_with_and_without_a_cache():
    model = make_model()
    cached = decoding.generate(model, [1, 2, 3], 20)
    whole = decoding.generate(model, [1, 2, 3], 20, cached=False)
    assert cached.tokens == whole.tokens
    assert (cached.through, whole.through) == (3 + 19, sum(range(3, 23)))
    assert cached.calls == whole.calls == 20
    drawn = decoding.generate(model, [1, 2, 3], 20, temperature=1.0, seed=1)
    assert (
        drawn.tokens
        == decoding.generate(model, [1, 2, 3], 20, temperature=1.0, seed=1, cached=False).tokens
    )
    assert drawn.tokens != cached.tokens


TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8)


@repeatable(examples=20)
@given(TOKENS, st.integers(1, 25), st.integers(0, 30), st.integers(1, 4), st.integers(0, 25))
def test_guesses_leave_the_greedy_text_as_it_is(prompt, count, ahead, order, known):
    model = make_model()
    expected = decoding.generate(model, prompt, count)
    draft = decoding.NGram([*prompt, *expected.tokens[:known]], order, vocabulary=VOCABULARY)
    guessed = decoding.speculate(model, draft, prompt, count, ahead=ahead)
    assert guessed.tokens == expected.tokens
    assert sum(guessed.written) == count
    assert guessed.kept == count - guessed.calls <= guessed.guessed


def test_a_draft_that_is_always_right_and_one_that_is_always_wrong():
    model = make_model()
    text = decoding.generate(model, [3], 20).tokens
    right = lambda past: torch.eye(VOCABULARY)[text[len(past) - 1]]  # noqa: E731
    wrong = lambda past: torch.eye(VOCABULARY)[(text[len(past) - 1] + 1) % VOCABULARY]  # noqa: E731
    assert decoding.speculate(model, right, [3], 20, ahead=4).written == (5, 5, 5, 5)
    assert decoding.speculate(model, wrong, [3], 20, ahead=4).written == (1,) * 20
    whole = decoding.speculate(model, right, [3], 18, ahead=4)
    assert (whole.written, whole.guessed, whole.through) == (
        (5, 5, 5, 3),
        4 + 4 + 4 + 2,
        5 + 5 + 5 + 3,
    )


TARGET = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
DRAFT = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def written_distribution(verify, ahead):
    """The exact distribution of the first ``ahead + 1`` tokens, all guesses and all chances
    enumerated.
    """
    keep, rest = verify(TARGET, DRAFT)
    found = torch.zeros((4,) * (ahead + 1), dtype=torch.float64)

    def write(text, chance):  # one call's tokens; then the target itself fills the rest
        if len(text) <= ahead:
            for token, p in enumerate(TARGET):
                write((*text, token), chance * p)
        else:
            found[text] += chance

    for guesses in itertools.product(range(4), repeat=ahead):
        chance = math.prod(float(DRAFT[guess]) for guess in guesses)
        for place, guess in enumerate(guesses):
            for token, p in enumerate(rest):
                write((*guesses[:place], token), chance * float(1 - keep[guess]) * p)
            chance *= float(keep[guess])
        write(guesses, chance)
    return found


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_what_verify_lets_through_is_distributed_as_the_target(ahead):
    expected = TARGET
    for _ in range(ahead):
        expected = expected[..., None] * TARGET
    torch.testing.assert_close(
        written_distribution(decoding.verify, ahead), expected, rtol=0, atol=1e-15
    )
    wrong = written_distribution(
        lambda target, draft: (decoding.verify(target, draft)[0], target), ahead
    )
    assert (wrong - expected).abs().max() > 0.01


def distribution_of(model, verify, runs=1500):
    draft = decoding.NGram([0, 1, 1, 2, 0, 0, 2], 2, vocabulary=3)
    counts = torch.zeros(3, 3, dtype=torch.float64)
    for seed in range(runs):
        text = decoding.speculate(
            model, draft, [0], 2, ahead=2, temperature=1.0, seed=seed, verify=verify
        ).tokens
        counts[text] += 1
    return counts / runs


def test_speculate_draws_from_the_models_distribution():
    torch.manual_seed(3)
    model = Decoder(3, width=8, layers=1, heads=1, context=4)
    with torch.inference_mode():
        model.head.weight.mul_(3)
        first = model(torch.tensor([[0]]))[0, -1].softmax(0).double()
        second = torch.stack(
            [model(torch.tensor([[0, token]]))[0, -1].softmax(0).double() for token in range(3)]
        )
    expected = first[:, None] * second
    error = (expected * (1 - expected) / 1500).sqrt()
    assert ((distribution_of(model, decoding.verify) - expected).abs() < 4 * error).all()
    wrong = distribution_of(
        model, lambda target, draft: (decoding.verify(target, draft)[0], target)
    )
    assert not ((wrong - expected).abs() < 4 * error).all()


def test_tokens_a_call_are_the_geometric_sum():
    """Leviathan and others, 2023, equation 1, with an acceptance that is the shared part of both
    distributions.
    """
    kept = float(torch.minimum(TARGET, DRAFT).sum())
    keep, _ = decoding.verify(TARGET, DRAFT)
    assert float((DRAFT * keep).sum()) == pytest.approx(kept)
    assert sum(kept**guess for guess in range(5)) == pytest.approx((1 - kept**5) / (1 - kept))


def test_ngram_counts_by_hand_and_backs_off():
    draft = decoding.NGram([0, 1, 2, 0, 1, 1], 3, vocabulary=4)
    assert draft([0, 1]).tolist() == [0, 0.5, 0.5, 0]
    assert draft([3, 0]).tolist() == [0, 1, 0, 0]
    assert draft([3]).tolist() == pytest.approx([2 / 6, 3 / 6, 1 / 6, 0])
    assert draft([2, 0, 1]).tolist() == [0, 1 / 2, 1 / 2, 0]
    assert decoding.NGram([0, 1], 1, vocabulary=2)([0, 1]).tolist() == [0.5, 0.5]


# --- serving ---


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def test_pages_by_hand():
    assert decoding.count_pages([1, 16, 17], 16) == decoding.Pages(16, 34, 4, 1 - 34 / 64)


@repeatable(examples=100)
@given(LENGTHS, st.integers(1, 50))
def test_a_page_has_one_text_and_its_places_are_the_texts_or_empty(lengths, page_tokens):
    """A token stands in the page of its text to which its position belongs."""
    pages = {
        (text, position // page_tokens)
        for text, length in enumerate(lengths)
        for position in range(length)
    }
    counted = decoding.count_pages(lengths, page_tokens)
    assert (counted.pages, counted.tokens) == (len(pages), sum(lengths))
    assert counted.empty_share == pytest.approx(1 - sum(lengths) / (len(pages) * page_tokens))


def played(lengths, places, policy):
    """Steps, one after another, by what is left to write in each place."""
    waiting, left, steps = list(lengths), [0] * places, 0
    while waiting or any(left):
        all_done = not any(left)
        for place in range(places):
            if waiting and not left[place] and (policy == "continuous" or all_done):
                left[place] = waiting.pop(0)
        left, steps = [max(0, each - 1) for each in left], steps + 1
    return steps


@repeatable(examples=100)
@given(LENGTHS, st.integers(1, 20), st.sampled_from(["static", "continuous"]))
def test_schedules_take_as_many_steps_as_when_they_are_played(lengths, places, policy):
    schedule = decoding.schedule(lengths, places=places, policy=policy)
    assert schedule.steps == played(lengths, places, policy)
    assert schedule.used_share == pytest.approx(sum(lengths) / (places * schedule.steps))
    assert [end - start for _, start, end in schedule.spans] == lengths
    for place in range(places):  # one text at a time in a place
        spans = sorted((start, end) for where, start, end in schedule.spans if where == place)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_schedules_by_hand():
    assert decoding.schedule([5, 1, 1, 5], places=2, policy="static").steps == 10
    assert decoding.schedule([5, 1, 1, 5], places=2, policy="continuous").steps == 7
