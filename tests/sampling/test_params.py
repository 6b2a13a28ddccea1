"""Sampling parameters: what is refused, and in which words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headstart.errors import RequestError
from headstart.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", 10**400),
        ("top_k", -2),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", -0.1),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: None}),
        ("logit_bias", {"one": 1.0}),
        ("allowed_token_ids", ()),
        ("banned_token_ids", (1.5,)),
        ("stop_token_ids", ("x",)),
        ("min_tokens", -1),
        ("max_tokens", 0),
        ("stop", ("",)),
        ("stop", (3,)),
        ("stop", 3),
        ("stop", b"end"),
        ("stop", {"end": 1}),
        ("logit_bias", [1]),
        ("logit_bias", "1"),
        ("banned_token_ids", 5),
        ("allowed_token_ids", "12"),
        ("ignore_eos", "no"),
        ("ignore_eos", None),
        ("n", 2**40),
        ("seed", -2),
        ("seed", 2**64),
        ("seed", "7"),
        ("n", 0),
        ("n", None),
        ("logprobs", 101),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
    ],
)
def test_a_bad_value_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(RequestError, match="min_tokens is 9, above max_tokens 8"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_values_come_out_as_plain_python():
    params = SamplingParams(
        temperature=1, seed=np.int64(3), top_p=np.float32(0.5), stop="end", logit_bias={"7": -math.inf}, n=np.int32(2)
    )
    assert (params.temperature, params.seed, params.top_p, params.n) == (1.0, 3, 0.5, 2)
    assert type(params.seed) is int
    assert type(params.top_p) is float
    assert params.stop == ("end",)
    assert params.logit_bias == {7: -math.inf}


def test_top_k_may_be_off_in_vllms_way():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_none_is_nothing_as_other_libraries_have_it():
    fields = ("banned_token_ids", "stop_token_ids", "stop", "logit_bias")
    assert SamplingParams(**dict.fromkeys(fields)) == SamplingParams()


def test_vocabulary_bounds_and_contradictions():
    SamplingParams(allowed_token_ids=(0, 9)).check_vocabulary(10)
    with pytest.raises(RequestError, match=r"allowed_token_ids names token 10; this model's ids go from 0 to 9"):
        SamplingParams(allowed_token_ids=(10,)).check_vocabulary(10)
    with pytest.raises(RequestError, match="all banned"):
        SamplingParams(allowed_token_ids=(1, 2), banned_token_ids=(2, 1)).check_vocabulary(10)


def test_minus_one_leaves_length_and_seed_open_as_elsewhere() -> None:
    assert SamplingParams(max_tokens=-1, seed=-1, top_k=-1) == SamplingParams(max_tokens=None, seed=None, top_k=0)
    for name in ("max_tokens", "seed"):
        with pytest.raises(RequestError, match=f"{name} is -2"):
            SamplingParams(**{name: -2})
