"""Beam search through the front doors, against transformers' own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoint import write_tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from headstart import AsyncLLM, BeamSearchParams, SpeculationParams
from headstart.engine.outputs import FinishReason, RequestOutput
from headstart.entrypoints.llm import LLM
from headstart.errors import RequestError
from headstart.loading.model import Model, load_model
from headstart.sampling.params import SamplingParams
from headstart.sampling.structured import StructuredOutputsParams

PROMPTS = ["Hello there", "a b a b a b a b", "x"]
ENDS = (98, 55, 70)
"""Tokens that the tiny model says often, so that paths end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("beams"), seed=3, head_dim=32)


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module", params=["native", "torch"])
def target(request: pytest.FixtureRequest, folder: Path) -> Model:
    if request.param == "torch":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headstart.loading.model.load_library", lambda: None)
            return load_model(folder, "fp32")
    return load_model(folder, "fp32")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(load_model(folder, "fp32"), "recycling", max_batch_size=8)


def expected(
    reference: PreTrainedModel, prompt: Sequence[int], width: int, ends: Sequence[int], **settings: Any
) -> list[tuple[list[int], float]]:
    """Outputs and scores of transformers, up to the padding."""
    ids = torch.tensor([list(prompt)])
    found = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        eos_token_id=list(ends),
        pad_token_id=0,
        **settings,
    )
    outputs = []
    for row, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True):
        end = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
        outputs.append((row[: end + 1], score))
    return outputs


def require_equal(output: RequestOutput, wanted: list[tuple[list[int], float]]) -> None:
    assert [beam.token_ids for beam in output.outputs] == [tokens for tokens, _ in wanted]
    assert [beam.score for beam in output.outputs] == pytest.approx([score for _, score in wanted], rel=1e-5)


@pytest.mark.parametrize("stopping", [False, True, "never"])
@pytest.mark.parametrize("drafter", ["none", "recycling"])
def test_beams_and_scores_are_those_of_transformers(
    target: Model, reference: PreTrainedModel, drafter: str, stopping: Any
) -> None:
    llm = LLM(target, drafter)
    ended = 0
    for width, penalty in ((2, 1.0), (3, -0.7), (4, 0.0), (7, 2.0)):
        params = SamplingParams(
            beam_width=width, n=width, length_penalty=penalty, early_stopping=stopping, max_tokens=10, ignore_eos=True,
            stop_token_ids=ENDS,
        )  # fmt: skip
        for output in llm.generate(PROMPTS, params):
            settings = {"length_penalty": penalty, "early_stopping": stopping, "max_new_tokens": 10}
            require_equal(output, expected(reference, output.prompt_token_ids, width, ENDS, **settings))
            ended += sum(beam.finish_reason is FinishReason.STOP for beam in output.outputs)
    assert ended


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 2.5}, {"repetition_penalty": 2.5}),
        ({"min_tokens": 6}, {"min_new_tokens": 6}),
        ({"banned_token_ids": (102, 111)}, {"suppress_tokens": [102, 111]}),
        ({"logit_bias": {70: 3.0}}, {"sequence_bias": [[[70], 3.0]]}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
        ({"encoder_no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram_size": 1}),
    ],
)
def test_processors_act_on_log_probabilities_as_in_transformers(
    llm: LLM, reference: PreTrainedModel, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    params = SamplingParams(beam_width=3, n=3, max_tokens=9, ignore_eos=True, stop_token_ids=ENDS, **ours)
    plain = SamplingParams(beam_width=3, n=3, max_tokens=9, ignore_eos=True, stop_token_ids=ENDS)
    changed = False
    for prompt in PROMPTS:
        (output,), (other,) = llm.generate(prompt, params), llm.generate(prompt, plain)
        require_equal(output, expected(reference, output.prompt_token_ids, 3, ENDS, max_new_tokens=9, **theirs))
        changed |= output.token_ids != other.token_ids
    assert changed


@pytest.mark.parametrize("drafter", ["none", "recycling"])
@pytest.mark.parametrize("stopping", [False, True])
def test_stop_strings_end_paths_as_in_transformers(
    folder: Path, target: Model, reference: PreTrainedModel, drafter: str, stopping: bool
) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), clean_up_tokenization_spaces=False
    )
    llm = LLM(target, drafter)
    (free,) = llm.generate(PROMPTS[0], SamplingParams(beam_width=3, max_tokens=10, ignore_eos=True))
    letters = [free.text[2], free.text[4:6]]
    ended = 0
    for width in (2, 4):
        params = SamplingParams(
            beam_width=width, n=width, early_stopping=stopping, max_tokens=10, ignore_eos=True, stop=letters
        )
        for output in llm.generate(PROMPTS, params):
            ids = torch.tensor([output.prompt_token_ids])
            found = reference.generate(
                ids, attention_mask=torch.ones_like(ids), num_beams=width, num_return_sequences=width, do_sample=False,
                max_new_tokens=10, early_stopping=stopping, eos_token_id=None, pad_token_id=0, output_scores=True,
                return_dict_in_generate=True, stop_strings=letters, tokenizer=tokenizer,
            )  # fmt: skip
            rows = found.sequences[:, ids.shape[1] :].tolist()
            for beam, row, score in zip(output.outputs, rows, found.sequences_scores.tolist(), strict=True):
                assert beam.token_ids == row[: len(beam.token_ids)]
                assert set(row[len(beam.token_ids) :]) <= {0, -1}  # what transformers fills up with
                assert beam.score == pytest.approx(score, rel=1e-5)
                if beam.finish_reason is FinishReason.STOP:
                    ended += 1
                    assert beam.stop_reason in letters
                    said = llm.get_tokenizer().decode(beam.token_ids)
                    assert said.startswith(beam.text)
                    assert said.endswith(str(beam.stop_reason))
                    assert not any(letter in beam.text for letter in letters)
    assert ended


def test_stop_strings_that_nearly_all_tokens_complete_leave_beams(llm: LLM) -> None:
    letters = [chr(code) for code in range(32, 127) if chr(code) not in "ab"]
    params = SamplingParams(beam_width=3, n=3, max_tokens=6, ignore_eos=True, stop=letters, early_stopping="never")
    (output,) = llm.generate("Hello", params)
    assert [beam.error for beam in output.outputs] == [None] * 3
    kept = SamplingParams(
        beam_width=3, n=3, max_tokens=6, ignore_eos=True, stop=letters, early_stopping="never",
        include_stop_str_in_output=True, min_tokens=3,
    )  # fmt: skip
    (output,) = llm.generate("Hello", kept)
    for beam in output.outputs:
        assert len(beam.token_ids) > 3
        if beam.finish_reason is FinishReason.STOP:
            assert beam.text.endswith(str(beam.stop_reason))


def test_a_batch_of_transformers_with_padding_agrees(llm: LLM, reference: PreTrainedModel) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(beam_width=3, n=3, max_tokens=8, ignore_eos=True))
    longest = max(len(output.prompt_token_ids) for output in outputs)
    padding = [longest - len(output.prompt_token_ids) for output in outputs]
    ids = torch.tensor([[0] * pad + output.prompt_token_ids for pad, output in zip(padding, outputs, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    found = reference.generate(
        ids, attention_mask=mask, num_beams=3, num_return_sequences=3, do_sample=False, max_new_tokens=8,
        eos_token_id=None, pad_token_id=0, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    rows, scores = found.sequences[:, longest:].tolist(), found.sequences_scores.tolist()
    for i, output in enumerate(outputs):
        require_equal(output, list(zip(rows[3 * i : 3 * i + 3], scores[3 * i : 3 * i + 3], strict=True)))


def test_the_form_of_vllm(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=7, length_penalty=0.5, ignore_eos=True)
    (found,) = llm.beam_search([{"prompt": "Hello there"}], params)
    (output,) = llm.generate("Hello there", SamplingParams(use_beam_search=True, n=3, max_tokens=7, length_penalty=0.5))
    assert [each.tokens for each in found.sequences] == [
        [*output.prompt_token_ids, *beam.token_ids] for beam in output.outputs
    ]
    assert [each.text for each in found.sequences] == [beam.text for beam in output.outputs]
    for each in found.sequences:
        assert each.score == pytest.approx(each.cum_logprob / 7**0.5, rel=1e-5)
        assert [next(iter(said)) for said in each.logprobs] == each.tokens[-7:]
        assert each.finish_reason == "length"
    with pytest.raises(RequestError, match="give BeamSearchParams"):
        llm.beam_search("Hello", SamplingParams())  # type: ignore[arg-type]


def test_pieces_come_when_the_search_has_ended(llm: LLM) -> None:
    params = SamplingParams(beam_width=2, n=2, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate("Hello there", params)
    pieces = list(llm.stream("Hello there", params))
    assert [(piece.sample, piece.token_ids) for piece in pieces] == [
        (beam.index, beam.token_ids) for beam in output.outputs
    ]
    assert [piece.completion.score for piece in pieces if piece.completion] == [beam.score for beam in output.outputs]


def test_asyncio(folder: Path, llm: LLM) -> None:
    params = SamplingParams(beam_width=3, n=2, max_tokens=6)

    async def ask() -> list[RequestOutput]:
        async with AsyncLLM(load_model(folder, "fp32"), "suffix") as door:

            async def one(prompt: str) -> RequestOutput:
                last = None
                async for output in door.generate(prompt, params):
                    last = output
                assert last is not None
                return last

            return await asyncio.gather(*map(one, PROMPTS))

    for mine, wanted in zip(asyncio.run(ask()), llm.generate(PROMPTS, params), strict=True):
        assert [(beam.token_ids, beam.score) for beam in mine.outputs] == [
            (beam.token_ids, beam.score) for beam in wanted.outputs
        ]


def test_guesses_change_neither_beams_nor_scores(llm: LLM) -> None:
    params = SamplingParams(beam_width=4, n=4, max_tokens=12, ignore_eos=True)
    plain = llm.generate(PROMPTS, params, speculation=SpeculationParams(enabled=False))
    for one, other in zip(llm.generate(PROMPTS, params), plain, strict=True):
        assert [(beam.token_ids, beam.score) for beam in one.outputs] == [
            (beam.token_ids, beam.score) for beam in other.outputs
        ]
        assert other.stats.passes_saved == 0


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"beam_width": 0}, "beam_width", "must lie in"),
    ({"beam_width": 257}, "beam_width", "must lie in"),
    ({"beam_width": 2.5}, "beam_width", "must be an integer"),
    ({"beam_width": 2, "n": 3}, "n", "raise beam_width"),
    ({"beam_width": 2, "temperature": 0.5}, "temperature", "draws nothing"),
    ({"beam_width": 2, "top_k": 5}, "top_k", "draws nothing"),
    ({"beam_width": 2, "top_p": 0.5}, "top_p", "draws nothing"),
    ({"beam_width": 2, "min_p": 0.5}, "min_p", "draws nothing"),
    ({"beam_width": 2, "structured_outputs": StructuredOutputsParams(regex="a+")}, "structured_outputs", "no grammar"),
    ({"beam_width": 2, "length_penalty": 9}, "length_penalty", "must lie in"),
    ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping", "True, False or 'never'"),
    ({"length_penalty": 2}, "length_penalty", "give a beam_width"),
    ({"early_stopping": True}, "early_stopping", "give a beam_width"),
    ({"use_beam_search": 1}, "use_beam_search", "True or False"),
]


@pytest.mark.parametrize(("fields", "field", "words"), BAD)
def test_what_does_not_go_with_beams_is_refused(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        SamplingParams(**fields)
    assert caught.value.field == field


def test_a_request_that_cannot_be_searched_loses_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError, match="beam_width is 9, and this engine decodes 8"):
        llm.generate("Hello", SamplingParams(beam_width=9))
    with pytest.raises(RequestError, match="lenience is a rule for sampling"):
        llm.generate("Hello", SamplingParams(beam_width=2), speculation=SpeculationParams(lenience=0.5))
    outputs = llm.generate(["", "Hello"], SamplingParams(beam_width=9, n=2), strict=False)
    assert {beam.finish_reason for output in outputs for beam in output.outputs} == {FinishReason.ERROR}
    assert llm.engine.idle
    (output,) = llm.generate("Hello", SamplingParams(beam_width=2, max_tokens=3))
    assert len(output.outputs) == 1


def test_defaults_of_sampling_do_not_shape_a_search(llm: LLM) -> None:
    asked = llm.sampling_defaults.params({"beam_width": 3})
    assert (asked.temperature, asked.top_k, asked.top_p, asked.min_p) == (0, 0, 1, 0)
    assert llm.sampling_defaults.params({}).temperature > 0
