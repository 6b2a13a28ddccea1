"""Draft models with another tokenizer: what is common, how texts are cut, and that nothing of it changes the law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from model_toys import blurred, model_context
from small_tokenizers import byte_level, sentencepiece
from text_laws import CROWD, p_value, random_table, sample_texts
from tiny_checkpoint import SPECIAL_TOKENS, write_tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, table_logits, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, Drafter, SpeculationParams
from headstart.drafting.context import LoadedModel
from headstart.drafting.registry import create_drafter
from headstart.drafting.second_models.translation import Translation
from headstart.engine.engine import Engine
from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError
from headstart.models.encoder_decoder import EncoderConfig
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.text.token_bytes import BYTE_ALPHABET
from headstart_lab.audit.oracle import Tokens, largest_error, output_law, product_law


@dataclass(frozen=True)
class Letters:
    """A tokenizer of a few spellings; a text is cut at the longest one that fits."""

    spellings: tuple[str, ...]
    special_ids: frozenset[int] = frozenset()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        return len(self.spellings)

    def token_bytes(self, token_id: int) -> bytes:
        return self.spellings[token_id].encode()

    def without_leading_space(self, first: bytes) -> bytes:
        return first

    def compatible_with(self, other: Letters) -> str | None:
        return None if self == other else "their spellings differ"

    def encode(self, text: str) -> list[int]:
        tokens = []
        while text:
            fitting = [token for token in range(self.vocab_size) if text.startswith(self.spellings[token])]
            tokens.append(max(fitting, key=lambda token: len(self.spellings[token]), default=0))
            text = text[max(len(self.spellings[tokens[-1]]), 1) :]
        return tokens


TARGET = Letters(("a", "b", "c", "ab"))
DRAFT = Letters(("c", "d", "b", "a", "bc"))
"""Has a, b and c, under other ids."""


def drafter_of(target: LogitsOf, draft: LogitsOf, **options: object) -> tuple[Drafter, ModelRunner, list[str]]:
    said: list[str] = []
    runner = ModelRunner(ToyBackend(TARGET.vocab_size, target), 4096, block_size=8)
    context = replace(
        model_context(runner, {}),
        tokenizer=TARGET,
        load_model=lambda name: LoadedModel(ToyBackend(DRAFT.vocab_size, draft), DRAFT),
        tell=said.append,
    )
    return create_drafter("draft-model", context, model="small", **options), runner, said


def engine_of(target: LogitsOf, draft: LogitsOf, **options: object) -> Engine:
    drafter, runner, _ = drafter_of(target, draft, **options)
    return Engine(runner, drafter, CROWD)


def test_what_spells_the_same_is_common() -> None:
    translation = Translation(TARGET, DRAFT, 4, 5)
    pairs = dict(zip(translation.target_ids.tolist(), translation.draft_ids.tolist(), strict=True))
    assert pairs == {0: 3, 1: 2, 2: 0}
    assert translation.share == 0.75
    assert translation.to_draft([3, 2, 0]) == [3, 4, 3]  # ab c a -> a bc a
    logits = translation.logits(torch.tensor([0.5, 9.0, 1.5, 2.5, 9.0]))
    assert logits.tolist() == [2.5, 1.5, 0.5, -torch.inf]
    # The draft's law, given that it says a common token.
    law = torch.tensor([0.5, 9.0, 1.5, 2.5, 9.0]).softmax(-1)
    torch.testing.assert_close(logits.softmax(-1)[:3], law[[3, 2, 0]] / law[[3, 2, 0]].sum())


def test_what_ends_a_text_is_common_whatever_it_is_called() -> None:
    target = Letters(("a", "<end>"), frozenset({1}), eos_token_ids=(1,))
    draft = Letters(("</s>", "a", "<end>"), frozenset({0}), eos_token_ids=(0,))
    translation = Translation(target, draft, 2, 3)
    pairs = dict(zip(translation.target_ids.tolist(), translation.draft_ids.tolist(), strict=True))
    # The draft's <end> is ordinary text.
    assert pairs == {0: 1, 1: 0}


def test_a_text_is_cut_by_the_other_tokenizer() -> None:
    """Byte-level and SentencePiece vocabularies, with their beginnings and special tokens."""
    target, draft = byte_level("the_ th he_ in er ing"), sentencepiece()
    translation = Translation(target, draft, target.vocab_size, draft.vocab_size)
    tokens = target.encode("the abc")
    assert draft.decode(translation.to_draft(tokens) or []) == "the abc"
    written = draft.encode(" the abc")[1:]  # behind its begin-of-sequence token
    guesses = translation.to_target(tokens, written)
    assert target.decode(guesses).strip() == "the abc"
    back = Translation(draft, target, draft.vocab_size, target.vocab_size)
    sequence = draft.encode("the abc")
    assert target.decode(back.to_draft(sequence) or []) == "the abc"
    assert draft.decode([*sequence, *back.to_target(sequence, target.encode(" a the"))]) == "the abc a the"
    # What marks structure ends what is written.
    end = target.eos_token_ids[0]
    assert back.to_target(sequence, [*target.encode(" a"), end, *target.encode(" the")]) == back.to_target(
        sequence, target.encode(" a")
    )


def test_a_text_that_ends_inside_a_character_waits() -> None:
    target = byte_level("☃")
    translation = Translation(target, sentencepiece(), target.vocab_size, 270)
    bytes_of_it = [target.encode("é")[0], target.encode("é")[-1]]
    assert len(set(bytes_of_it)) == 2
    assert translation.to_draft([*target.encode("a"), bytes_of_it[0]]) is None
    assert translation.to_draft([*target.encode("a"), *bytes_of_it]) is not None
    # A stray byte elsewhere is replaced.
    assert translation.to_draft([bytes_of_it[1], *target.encode("a")]) is not None


LAWS = [random_table(4, seed) for seed in (1, 2)]
DRAFT_LOGITS = hashed_logits(5, seed=3, order=2)


@pytest.mark.parametrize("rule", [VerifyRule.AUTO, VerifyRule.REJECTION, VerifyRule.BLOCK])
@pytest.mark.parametrize(
    ("matching", "options"),
    [
        ("tokens", {}),
        ("tokens", {"temperature": 0.6, "top_k": 2}),
        ("tokens", {"min_confidence": 0.4}),
        ("strings", {}),
        ("strings", {"min_confidence": 0.2}),
    ],
    ids=str,
)
def test_the_law_is_the_targets_by_enumeration(matching: str, rule: VerifyRule, options: dict[str, Any]) -> None:
    """Every outcome of every draw of two rounds, with the production drafter and rules."""
    drafter, _, _ = drafter_of(table_logits(LAWS[0]), DRAFT_LOGITS, draft_tokens=2, matching=matching, **options)
    drafted: list[int] = []

    def target(tokens: Tokens) -> torch.Tensor:
        return torch.from_numpy(LAWS[0][tokens[-1] if tokens else 0])

    def propose(noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree:
        sequence = ToySequence(1, [0, *tokens], prompt_length=1, params=SamplingParams(temperature=1), noise=noise)
        (tree,) = drafter.propose([sequence], [DraftBudget(2, 2)])
        assert (tree.draft_probs is None) == (matching == "strings" or not len(tree))
        drafted.append(len(tree))
        drafter.end(1)
        return tree

    law = output_law(target, propose, 3, rounds=2, rule=rule)
    assert max(drafted) == 2
    assert largest_error(law.probs, product_law(target, 3)) < 1e-12
    assert law.accepted > 0.1


def test_a_law_that_keeps_its_other_tokens_would_be_found_out() -> None:
    """The mutant: draws from the renormalised law, of which verification is told without it."""
    drafter, _, _ = drafter_of(table_logits(LAWS[0]), DRAFT_LOGITS, draft_tokens=1, matching="tokens")

    def propose(noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree:
        sequence = ToySequence(1, [0, *tokens], prompt_length=1, params=SamplingParams(temperature=1), noise=noise)
        (tree,) = drafter.propose([sequence], [DraftBudget(2, 2)])
        drafter.end(1)
        assert tree.draft_probs is not None
        return replace(tree, draft_probs=tree.draft_probs * 0.7)

    def target(tokens: Tokens) -> torch.Tensor:
        return torch.from_numpy(LAWS[0][tokens[-1] if tokens else 0])

    assert largest_error(output_law(target, propose, 2).probs, product_law(target, 2)) > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("matching", ["tokens", "strings"])
def test_texts_through_the_engine_have_the_targets_law(matching: str) -> None:
    engine = engine_of(table_logits(LAWS[1]), DRAFT_LOGITS, draft_tokens=2, matching=matching)
    texts = sample_texts(engine, 900, 3)
    assert p_value(texts, LAWS[1]) > 1e-4
    assert p_value(texts, LAWS[0]) < 1e-9


@pytest.mark.parametrize("matching", ["tokens", "strings"])
@pytest.mark.parametrize(("rule", "temperature"), [(VerifyRule.AUTO, 0.0), (VerifyRule.COUPLED, 1.0)])
def test_greedy_and_coupled_texts_are_those_of_plain_decoding(
    matching: str, rule: VerifyRule, temperature: float
) -> None:
    logits_of = hashed_logits(4, seed=5, order=2)
    # The draft says much the same, in its own tokens.
    plain_ids = {TARGET.spellings.index(text): DRAFT.spellings.index(text) for text in "abc"}
    to_target = {draft: target for target, draft in plain_ids.items()}

    def draft_logits(context: Sequence[int]) -> np.ndarray:
        known = blurred(logits_of, 1, 0.3)(tuple(to_target.get(token, 3) for token in context))
        logits = np.full(5, -3.0)
        for target, draft in plain_ids.items():
            logits[draft] = known[target]
        return logits

    prompts = [[0], [1, 2, 3], [3, 3, 0, 1, 2, 0, 1], [2, 2]]

    def texts(engine: Engine) -> list[list[int]]:
        sequences = [
            toy_sequence(
                engine,
                prompt,
                sequence_id=number,
                params=SamplingParams(temperature=temperature, max_tokens=20 + number, seed=number),
                speculation=SpeculationParams(verify=rule),
            )
            for number, prompt in enumerate(prompts)
        ]
        said = run_all(engine, sequences)
        accepted.append(sum(sequence.stats.accepted for sequence in sequences))
        return said

    accepted: list[int] = []
    translated = texts(engine_of(logits_of, draft_logits, draft_tokens=3, matching=matching))
    runner = ModelRunner(ToyBackend(4, logits_of), 4096, block_size=8)
    assert translated == texts(Engine(runner, create_drafter("none", model_context(runner, {})), CROWD))
    assert accepted[0] > 10


def test_it_says_how_and_how_much_is_common() -> None:
    for options, how in (({}, "token-level"), ({"matching": "strings"}, "string-level")):
        _, _, said = drafter_of(table_logits(LAWS[0]), DRAFT_LOGITS, **options)
        (sentence,) = said
        assert sentence.startswith(
            "Draft model small has another tokenizer than the target: 75% of the target's tokens"
        )
        assert how in sentence


def test_without_a_common_token_strings_are_left() -> None:
    runner = ModelRunner(ToyBackend(4, table_logits(LAWS[0])), 4096, block_size=8)
    said: list[str] = []
    context = replace(
        model_context(runner, {}),
        tokenizer=TARGET,
        load_model=lambda name: LoadedModel(ToyBackend(2, hashed_logits(2)), Letters(("aa", "bb"))),
        tell=said.append,
    )
    create_drafter("draft-model", context, model="small")
    assert "0% of the target's tokens" in said[0]
    assert "string-level" in said[0]
    with pytest.raises(ConfigError, match="no token in common with the target; use matching=strings"):
        create_drafter("draft-model", context, model="small", matching="tokens")


ENCODER = EncoderConfig(1, 1, 1, 1, max_positions=8, positions="relative")


def test_an_encoder_does_not_read_another_tokenizers_tokens() -> None:
    runner = ModelRunner(ToyBackend(4, table_logits(LAWS[0])), 4096, block_size=8)
    runner.backend.config = replace(runner.backend.config, encoder=ENCODER)
    draft = ToyBackend(5, DRAFT_LOGITS)
    draft.config = replace(draft.config, encoder=ENCODER)
    context = replace(model_context(runner, {}), tokenizer=TARGET, load_model=lambda name: LoadedModel(draft, DRAFT))
    with pytest.raises(ConfigError, match="encoder that would read the target's tokens as its own"):
        create_drafter("draft-model", context, model="small")


def write_other_tokenizer(directory: Path) -> None:
    """The same bytes under other ids, and words of several letters in place of some of them."""
    words = ["th", "he", "in", "Th"]
    letters = [letter for letter in sorted(BYTE_ALPHABET, reverse=True) if letter not in "QXZ~"]
    vocabulary = {token: number for number, token in enumerate([*letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(word[0], word[1]) for word in words]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.mark.parametrize("matching", ["auto", "strings"])
def test_real_models_of_different_tokenizers(matching: str, tmp_path: Path) -> None:
    for name, seed in (("target", 0), ("draft", 1)):
        (tmp_path / name).mkdir()
        write_tiny_model(tmp_path / name, seed=seed)
    write_other_tokenizer(tmp_path / "draft")
    params = [SamplingParams(temperature=0, max_tokens=20), SamplingParams(temperature=1, max_tokens=20, seed=2)] * 2
    prompts = ["Then in the end", "abc", "日本", "x"]
    options = {"matching": matching, "draft_tokens": 3}
    llm = LLM(tmp_path / "target", "draft-model", draft_model=tmp_path / "draft", drafter_options=options)
    plain = LLM(tmp_path / "target", "none").generate(prompts, params)
    outputs = llm.generate(prompts, params)
    assert any("98% of the target's tokens are in both vocabularies" in notice for notice in llm.notices)
    for output, alone, asked in zip(outputs, plain, params, strict=True):
        assert output.outputs[0].stats.drafted > 0
        if asked.greedy or matching == "strings":
            assert output.outputs[0].token_ids == alone.outputs[0].token_ids
