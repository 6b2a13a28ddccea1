"""Transforms against independent references, along each path's own history."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import RequestError
from headstart.sampling.history import TokenHistory
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms, logprobs

V = 40


def logits_of(seed: int, vocab_size: int = V, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def law_of(logits: torch.Tensor, history: TokenHistory | None = None, path=(), eos=(), **params) -> torch.Tensor:
    transforms = Transforms(SamplingParams(**params), len(logits), eos)
    return transforms.law(logits, None if history is None else history.along(path))


def reference_law(logits, params: SamplingParams, prompt=(), output=(), eos=()) -> np.ndarray:
    """Token by token, in float64, straight from the documented order."""
    z = [float(logit) for logit in logits]
    for token in range(len(z)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            z[token] = -math.inf
        if token in params.banned_token_ids:
            z[token] = -math.inf
        if any(
            token == tokens[-1]
            and (len(tokens) == 1 or list(tokens[:-1]) == list(output[len(output) + 1 - len(tokens) :]))
            for tokens in params.banned_sequences
            if len(tokens) <= len(output) + 1
        ):
            z[token] = -math.inf
        if len(output) < params.min_tokens and token in {*eos, *params.stop_token_ids}:
            z[token] = -math.inf
        z[token] += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            z[token] = z[token] * params.repetition_penalty if z[token] < 0 else z[token] / params.repetition_penalty
        z[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty * (token in output)
    law = np.zeros(len(z))
    if params.temperature == 0:
        law[z.index(max(z))] = 1
        return law
    peak = max(z)
    weights = [math.exp((value - peak) / params.temperature) for value in z]
    kept = [token for token in range(len(z)) if weights[token] >= params.min_p * max(weights)]
    if params.top_k:
        kth = sorted((z[token] for token in range(len(z))), reverse=True)[min(params.top_k, len(z)) - 1]
        kept = [token for token in kept if z[token] >= kth]
    ranked = sorted(kept, key=lambda token: (-weights[token], token))
    total, above, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in ranked:
        if params.top_p == 1 or above < params.top_p * total:
            nucleus.append(token)
        above += weights[token]
    for token in nucleus:
        law[token] = weights[token]
    return law / law.sum()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, V, 100]),
    top_p=st.sampled_from([0.05, 0.6, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.04, 0.5]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    presence=st.sampled_from([0.0, 0.7, -0.5]),
    frequency=st.sampled_from([0.0, 0.4]),
    bias=st.dictionaries(st.integers(0, V - 1), st.sampled_from([-math.inf, -3.0, 2.5]), max_size=4),
    allowed=st.sampled_from([None, tuple(range(0, V, 2))]),
    banned=st.lists(st.integers(0, V - 1), max_size=3).map(tuple),
    sequences=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), max_size=12),
    min_tokens=st.integers(0, 6),
    output=st.lists(st.one_of(st.integers(0, 6), st.integers(0, V - 1)), max_size=8),
    path_length=st.integers(0, 4),
)
def test_every_combination_follows_the_documented_order(
    seed, temperature, top_k, top_p, min_p, repetition, presence, frequency, bias, allowed, banned, sequences,
    min_tokens, output, path_length,
):  # fmt: skip
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        allowed_token_ids=allowed,
        banned_token_ids=banned,
        banned_sequences=sequences,
        min_tokens=min_tokens,
        stop_token_ids=(4,),
    )
    logits, prompt, eos = logits_of(seed), [3, 3, 17, 8], [2]
    cut = max(len(output) - path_length, 0)
    history = TokenHistory(prompt, output[:cut])
    law = Transforms(params, V, eos).law(logits, history.along(output[cut:]))
    expected = reference_law(logits, params, prompt, output, eos)
    assert law.dtype == torch.float64
    np.testing.assert_allclose(law.numpy(), expected, atol=3e-6)
    assert law.sum().item() == pytest.approx(1, abs=1e-12)
    assert ((law.numpy() > 0) == (expected > 0)).all()


def test_banned_sequences_are_those_of_transformers():
    """Its processor looks at the prompt, too: here there is none."""
    from transformers.generation import NoBadWordsLogitsProcessor

    generator = np.random.default_rng(0)
    for seed in range(60):
        sequences = [generator.integers(0, 5, size=generator.integers(1, 5)).tolist() for _ in range(8)]
        output = generator.integers(0, 5, size=10).tolist()
        logits = logits_of(seed)
        expected = NoBadWordsLogitsProcessor(sequences, eos_token_id=V)(torch.tensor([output]), logits[None].clone())
        transforms = Transforms(SamplingParams(banned_sequences=sequences), V)
        for cut in (0, 3, 9, 10):
            found = transforms.processed_logits(logits, TokenHistory([], output[:cut]).along(output[cut:]))
            torch.testing.assert_close(found, expected[0], rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_repeated_n_grams_are_those_of_transformers(size):
    from transformers.generation import EncoderNoRepeatNGramLogitsProcessor, NoRepeatNGramLogitsProcessor

    generator = np.random.default_rng(0)
    for seed in range(40):
        prompt, output, source = (generator.integers(0, 4, size=generator.integers(1, 9)).tolist() for _ in range(3))
        logits, ids = logits_of(seed), torch.tensor([[*prompt, *output]])
        said = NoRepeatNGramLogitsProcessor(size)(ids, logits[None].clone())[0]
        read = EncoderNoRepeatNGramLogitsProcessor(size, torch.tensor([source]))(ids, logits[None].clone())[0]
        cut = int(generator.integers(0, len(output) + 1))
        along = TokenHistory(prompt, output[:cut], source).along(output[cut:])
        for name, expected in (("no_repeat_ngram_size", said), ("encoder_no_repeat_ngram_size", read)):
            found = Transforms(SamplingParams(**{name: size}), V).processed_logits(logits, along)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_hugging_face_processors_give_the_same_law():
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    # One truncation at a time: their order differs from ours (top-p before min-p there).
    for warper, params in [
        (TopKLogitsWarper(top_k=7), {"top_k": 7}),
        (TopPLogitsWarper(top_p=0.8), {"top_p": 0.8}),
        (MinPLogitsWarper(min_p=0.1), {"min_p": 0.1}),
    ]:
        for seed in range(20):
            logits, prompt = logits_of(seed), [1, 5, 5, 9, 30]
            processors = LogitsProcessorList(
                [RepetitionPenaltyLogitsProcessor(penalty=1.4), TemperatureLogitsWarper(0.8), warper]
            )
            expected = processors(torch.tensor([prompt]), logits[None].double())[0].softmax(-1)
            law = law_of(logits, TokenHistory(prompt), temperature=0.8, repetition_penalty=1.4, **params)
            torch.testing.assert_close(law, expected, atol=1e-6, rtol=0)


def test_ties_with_the_kth_logit_stay():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    assert (law_of(logits, top_k=2) > 0).tolist() == [False, True, True, True, True, False]
    assert (law_of(logits, top_k=1) > 0).tolist() == [False, True, False, False, False, False]


def test_top_p_keeps_the_crossing_token_and_ranks_ties_by_id():
    logits = torch.log(torch.tensor([0.25, 0.125, 0.5, 0.125]))
    for top_p, kept in [(0.4, {2}), (0.51, {0, 2}), (0.76, {0, 1, 2}), (0.9, {0, 1, 2, 3}), (1e-9, {2}), (0, {2})]:
        assert set(torch.nonzero(law_of(logits, top_p=top_p)).flatten().tolist()) == kept
    uniform = torch.zeros(8)
    assert (law_of(uniform, top_p=0.5) > 0).tolist() == [True] * 4 + [False] * 4
    assert (law_of(uniform, top_p=0.51) > 0).tolist() == [True] * 5 + [False] * 3


def test_top_p_acts_on_the_law_that_min_p_and_top_k_leave():
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert (law_of(logits, top_k=2, top_p=0.55) > 0).tolist() == [True, False, False, False]
    assert (law_of(logits, min_p=0.6, top_p=0.55) > 0).tolist() == [True, False, False, False]
    assert (law_of(logits, top_p=0.55) > 0).tolist() == [True, True, False, False]


def test_min_p_keeps_the_boundary():
    logits = torch.tensor([0.0, math.log(0.5), math.log(0.25)])
    assert (law_of(logits, min_p=1.0) > 0).tolist() == [True, False, False]
    assert (law_of(logits, min_p=0.49) > 0).tolist() == [True, True, False]
    assert (law_of(torch.zeros(3), min_p=1.0) > 0).all()


@pytest.mark.parametrize("scale", [0.001, 0.5, 4.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_top_p_of_a_large_vocabulary_does_not_depend_on_where_it_looks_first(scale, top_p):
    logits = logits_of(1, 9000, scale).round(decimals=1)  # many ties
    law = law_of(logits, top_p=top_p)
    weights = (logits.double() - logits.max().double()).exp()
    ranking = torch.sort(weights, descending=True, stable=True).indices
    above = weights[ranking].cumsum(0) - weights[ranking]
    # The reference cannot settle the one token whose mass above equals the bound up to rounding.
    margin = (above - top_p * weights.sum()) / weights.sum()
    sure = margin.abs() > 1e-12
    assert ((law[ranking] > 0) == (margin < 0))[sure].all()


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 100.0, 1e30])
def test_extreme_temperatures_give_laws(temperature):
    logits = torch.tensor([300.0, -300.0, 299.0, -math.inf])
    law = law_of(logits, temperature=temperature, top_p=0.9999)
    assert torch.isfinite(law).all()
    assert law.sum().item() == pytest.approx(1)
    assert law.argmax().item() == 0
    assert law[3] == 0


def test_greedy_takes_the_lowest_id_among_equals_and_ignores_truncation():
    logits = torch.tensor([1.0, 5.0, 5.0, 2.0])
    transforms = Transforms(SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=0.9), 4)
    assert transforms.law(logits).tolist() == [0, 1, 0, 0]
    assert transforms.sample(logits, SequenceNoise(1), 3) == 1
    assert Transforms(SamplingParams(temperature=0, banned_token_ids=(1,)), 4).sample(logits, SequenceNoise(1), 3) == 2
    assert Transforms(SamplingParams(temperature=0, logit_bias={3: 9.0}), 4).sample(logits, SequenceNoise(1), 3) == 3


def test_penalties_see_the_path_but_no_sibling():
    history = TokenHistory([7], [5, 5])
    transforms = Transforms(SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=2.0), 10)
    logits = torch.full((10,), 4.0)
    at_root = transforms.processed_logits(logits, history.along()).tolist()
    assert at_root == [4, 4, 4, 4, 4, 0, 4, 2, 4, 4]  # 5: 4/2 - 2*0.5 - 1; 7 in the prompt alone: 4/2
    below = transforms.processed_logits(logits, history.along([5, 9])).tolist()
    assert below == [4, 4, 4, 4, 4, -0.5, 4, 2, 4, 0.5]
    sibling = transforms.processed_logits(logits, history.along([8])).tolist()
    assert sibling == [4, 4, 4, 4, 4, 0, 4, 2, 0.5, 4]
    assert transforms.processed_logits(logits, history.along()).tolist() == at_root
    assert logits.tolist() == [4.0] * 10


def test_min_tokens_counts_the_path_and_holds_back_every_end():
    history = TokenHistory([1, 2], [3])
    transforms = Transforms(SamplingParams(min_tokens=3, stop_token_ids=(4,)), 6, eos_token_ids=(0, 5))
    for path, ends_allowed in [((), False), ((1,), False), ((1, 2), True), ((1, 2, 3), True)]:
        law = transforms.law(torch.zeros(6), history.along(path))
        assert [(law[token] > 0).item() for token in (0, 4, 5)] == [ends_allowed] * 3
        assert (law[1:4] > 0).all()


def test_a_plain_request_touches_no_logit():
    logits = logits_of(0)
    plain = Transforms(SamplingParams(temperature=0.5, top_k=3), V)
    assert not plain.needs_history
    assert plain.processed_logits(logits).data_ptr() == logits.data_ptr()
    before = logits.clone()
    Transforms(SamplingParams(banned_token_ids=(1,), logit_bias={2: 3.0}), V).law(logits)
    assert torch.equal(logits, before)


def test_half_precision_logits_are_raised_to_float32():
    logits = logits_of(3).bfloat16()
    assert torch.equal(law_of(logits), law_of(logits.float()))


@pytest.mark.parametrize("params", [{}, {"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 0.4, "top_k": 9}])
def test_samples_are_the_argmin_race_over_the_law(params):
    transforms = Transforms(SamplingParams(**params), V)
    for seed in range(50):
        noise, logits = SequenceNoise(seed), logits_of(seed)
        race = noise.position_exponentials(seed, V) / transforms.law(logits)
        assert transforms.sample(logits, noise, seed) == race.argmin().item()


def test_a_missing_history_is_refused_where_the_law_needs_it():
    for params in (SamplingParams(repetition_penalty=1.1), SamplingParams(min_tokens=2)):
        with pytest.raises(ValueError, match="history"):
            Transforms(params, V).law(logits_of(0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_fail_the_request(temperature, bad):
    logits = logits_of(0)
    logits[5] = bad
    transforms = Transforms(SamplingParams(temperature=temperature, top_k=3), V)
    with pytest.raises(RequestError, match="not a finite number"):
        transforms.law(logits)
    with pytest.raises(RequestError, match="not a finite number"):
        transforms.sample(logits, SequenceNoise(0), 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_left_fails_the_request(temperature):
    bans = {token: -math.inf for token in range(V)}
    transforms = Transforms(SamplingParams(temperature=temperature, logit_bias=bans), V)
    with pytest.raises(RequestError, match="no token is left"):
        transforms.law(logits_of(0))
    ends_only = Transforms(SamplingParams(allowed_token_ids=(2,), min_tokens=1, temperature=temperature), V, (2,))
    with pytest.raises(RequestError, match="no token is left"):
        ends_only.sample(logits_of(0), SequenceNoise(0), 0, TokenHistory([1]).along())


def test_token_ids_outside_the_vocabulary_never_reach_a_logit():
    for params in ({"logit_bias": {V: 1.0}}, {"banned_token_ids": (-1,)}, {"stop_token_ids": (V,)}):
        with pytest.raises(RequestError, match="ids go from 0"):
            Transforms(SamplingParams(**params), V)


def test_a_row_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match="one row of 40"):
        Transforms(SamplingParams(), V).law(logits_of(0, V + 1))


def test_peak_ratio_is_that_of_the_processed_softmax():
    logits = logits_of(2)
    transforms = Transforms(SamplingParams(temperature=0, logit_bias={4: 1.5}), V)
    processed = logits.clone()
    processed[4] += 1.5
    law = processed.double().softmax(-1)
    for token in (0, 4, 11):
        assert transforms.peak_ratio(logits, token) == pytest.approx((law[token] / law.max()).item(), rel=1e-6)


def test_logprobs_are_those_of_the_raw_law():
    logits = torch.tensor([2.0, 5.0, 1.0, 5.0, 3.0])
    expected = logits.log_softmax(-1)
    logprob, best, rank = logprobs(logits, 2, 3)
    assert rank == 5
    assert logprob == pytest.approx(expected[2].item())
    assert list(best) == [1, 3, 4]
    assert list(best.values()) == pytest.approx(expected[[1, 3, 4]].tolist())
    assert logprobs(logits, 0, 0)[1] == {}
    assert len(logprobs(logits, 0, 99)[1]) == 5
    assert list(logprobs(logits, 0, -1)[1].items()) == list(logprobs(logits, 0, 5)[1].items())
    with pytest.raises(RequestError, match="not a finite number"):
        logprobs(torch.tensor([math.nan, 1.0]), 1, 1)
