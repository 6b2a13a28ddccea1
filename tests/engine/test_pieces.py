"""What a stream tells of a round: refused guesses, and the whole result at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import ToyBackend, hashed_logits, toy_engine, toy_sequence

from headstart import LLM, RequestError, SamplingParams
from headstart.engine.outputs import FinishReason, TokenOrigin

VOCAB = 12


@pytest.mark.parametrize("drafter", ["none", "ngram", "recycling", "random"])
def test_refused_guesses_stand_beside_corrections(drafter: str) -> None:
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB, order=2)), drafter)
    sequence = toy_sequence(engine, [1, 2, 1, 2, 3], params=SamplingParams(seed=1, max_tokens=60))
    engine.add(sequence)
    while not engine.idle:
        engine.step()
    assert len(sequence.rejected) == sequence.num_output
    for token, origin, rejected in zip(sequence.output, sequence.origins, sequence.rejected, strict=True):
        assert (rejected is not None) == (origin is TokenOrigin.CORRECTED)
        assert rejected != token
    assert (TokenOrigin.CORRECTED in sequence.origins) == (drafter != "none")


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    return LLM(tiny_model_dir, "ngram", precision="fp32")


def test_the_last_piece_brings_the_result(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20)
    *pieces, last = llm.stream("Hello", params)
    assert all(piece.completion is None for piece in pieces)
    (expected,) = llm.generate("Hello", params)
    assert last.completion is not None
    assert last.completion.token_ids == expected.token_ids
    assert last.completion.stats.rounds == expected.stats.rounds == len(pieces) + 1
    assert last.completion.stats.seconds > 0


def test_a_refused_prompt_stops_no_other_unless_strict(llm: LLM) -> None:
    prompts = ["Hello", "a" * 9999, "Bye"]
    params = SamplingParams(temperature=0, max_tokens=5)
    outputs = llm.generate(prompts, params, strict=False)
    assert [output.finish_reason for output in outputs] == [
        FinishReason.LENGTH,
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]
    assert "9999 tokens" in str(outputs[1].outputs[0].error)
    assert outputs[2].token_ids == llm.generate("Bye", params)[0].token_ids
    with pytest.raises(RequestError, match="prompt 1: the prompt has 9999 tokens"):
        llm.generate(prompts, params)


def test_an_encoded_prompt_is_taken_as_it_is(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5)
    (encoded,) = llm.generate(llm.encode("Hello"), params)
    (text,) = llm.generate("Hello", params)
    assert (encoded.prompt, encoded.prompt_token_ids, encoded.token_ids) == (
        text.prompt,
        text.prompt_token_ids,
        text.token_ids,
    )
