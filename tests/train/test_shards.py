"""A text in shards: the same however it is written, with every kind of question in every shard."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from test_base_models import base
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart.loading.model import Model, load_model
from headstart_train.text import shards
from headstart_train.text.corpus import Corpus, Document
from headstart_train.text.shards import Shard, Writing, append, write_answers, write_shard

WRITING = Writing(answer_tokens=8)
GIVEN = [[{"role": "user", "content": f"Say {i}."}] for i in range(13)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PART", 4)
    monkeypatch.setattr(shards, "SHARD", 16)


@cache
def target() -> Model:
    """Of a shape that the native pass computes, quickly."""
    return load_model(write_tiny_model(Path(mkdtemp(prefix="headstart-shards-")), head_dim=32), "fp32")


def small() -> LLM:
    return LLM(target(), "none", max_batch_size=4)


def bytes_of(corpus: Corpus) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in corpus.directory.iterdir()}


def tokens_of(documents: list[Document]) -> list[list[int]]:
    return [document.tokens.tolist() for document in documents]


def test_a_text_is_the_same_in_one_go_in_pieces_and_by_shards(tmp_path: Path) -> None:
    llm, told = small(), list[tuple[int, int]]()
    one = Corpus(tmp_path / "one", {})
    write_answers(llm, one, 280, WRITING, prompts=GIVEN, progress=lambda *done: told.append(done))
    assert len(one) > 32
    assert (sum(each for each, _ in told), sum(each for _, each in told)) == (len(one), one.num_answer_tokens)
    two = Corpus(tmp_path / "two", {})
    for tokens, documents in ((10, None), (90, None), (400, 5), (150, None), (280, None)):
        write_answers(llm, two, tokens, WRITING, prompts=GIVEN, batch_size=2, documents=documents)
    assert bytes_of(two) == bytes_of(one)
    # Shards in any order, by another engine.
    other = small()
    whole = {number: write_shard(other, Shard.of(number, GIVEN), WRITING) for number in (2, 0, 1)}
    three = Corpus(tmp_path / "three", {})
    for number in range(3):
        append(three, whole[number], 280)
    assert bytes_of(three) == bytes_of(one)


def test_a_text_ends_with_the_document_that_has_enough(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, {})
    write_answers(small(), corpus, 100, WRITING, prompts=GIVEN)
    assert corpus.num_answer_tokens - corpus[len(corpus) - 1].answers.sum() < 100 <= corpus.num_answer_tokens


def test_every_shard_holds_prompts_own_questions_and_what_builds_on_its_answers() -> None:
    llm = small()
    for number, given in ((0, range(8)), (1, range(8, 13))):
        documents = write_shard(llm, Shard.of(number, GIVEN), WRITING)
        assert len(documents) == 16
        prompts = [document.tokens[~document.answers].tolist() for document in documents]
        places = [place for place in range(12) if place // 4 != 1][: len(given)]
        for place, index in zip(places, given, strict=True):
            assert prompts[place] == llm.encode_chat(GIVEN[index]).token_ids
        asked = [prompt for place, prompt in enumerate(prompts[:12]) if place not in places]
        assert len(asked) == 12 - len(given)
        assert len({tuple(prompt) for prompt in asked}) > 1
        # Second turns stand behind conversations of the same shard, tasks hold its answers.
        before = [document.tokens.tolist() for document in documents[:12]]
        ends = set(llm.model.eos_token_ids)
        for prompt in prompts[12:14]:
            assert any(
                prompt[: len(each) - (each[-1] in ends)] == each[: len(each) - (each[-1] in ends)] for each in before
            )
        answers = [llm.model.tokenizer.decode(d.tokens[d.answers].tolist()).strip() for d in documents[:12]]
        for prompt in prompts[14:]:
            text = llm.model.tokenizer.decode(prompt)
            assert any(each in text for each in answers)


def test_another_seed_is_another_text() -> None:
    llm, shard = small(), Shard.of(0, GIVEN)
    one, two = (write_shard(llm, shard, Writing(answer_tokens=8, seed=seed), stop=8) for seed in (0, 1))
    # Greedy answers to the same prompts are the same; the rest differs.
    assert [a == b for a, b in zip(tokens_of(one)[:4], tokens_of(two)[:4], strict=True)] == [True, False, True, False]
    assert tokens_of(one)[4:] != tokens_of(two)[4:]


def test_a_base_model_continues_prompts_and_begins_texts_itself(tmp_path: Path) -> None:
    llm = base()
    one = Corpus(tmp_path / "one", {})
    write_answers(llm, one, 200, WRITING, prompts=GIVEN[:3])
    for document, (message,) in zip(one, GIVEN[:3], strict=False):
        assert document.tokens[~document.answers].tolist() == llm.model.tokenizer.encode(message["content"])
        assert document.answers.sum() <= 8
    own = [one[index] for index in range(3, len(one))]
    assert len(own) > 16
    assert {int(document.tokens[0]) for document in own} == {llm.model.tokenizer.bos_token_id}
    assert len({tuple(document.tokens.tolist()) for document in own}) > len(own) // 2
    two = Corpus(tmp_path / "two", {})
    for tokens in (10, 80, 200):
        write_answers(llm, two, tokens, WRITING, prompts=GIVEN[:3], batch_size=2)
    assert bytes_of(two) == bytes_of(one)
