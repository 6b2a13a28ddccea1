"""Training for a target without a chat template: it continues texts, given ones and its own."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tiny_checkpoint import write_tiny_model

from headstart.drafting.head_files.loading import load_head
from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError
from headstart.loading.model import Model, load_model
from headstart.sampling.params import SamplingParams
from headstart_train.making import HeadName, HeadSettings
from headstart_train.recipe import train_head
from headstart_train.text.synthesis import begin_texts, encode_asked, read_conversations
from headstart_train.text.text import TextSettings
from headstart_train.trainer import TrainSettings

SETTINGS = TrainSettings(steps=3, batch=2, micro_batch=1, evaluate_every=2, save_every=2)


def base_model(*missing: str) -> Model:
    """``missing``: marks ("bos", "eos") that neither the configuration nor the tokenizer names."""
    directory = write_tiny_model(Path(mkdtemp(prefix="headstart-base-")), chat=False, head_dim=32)
    for name in ("config.json", "tokenizer_config.json"):
        known = json.loads((directory / name).read_text())
        left = {key: value for key, value in known.items() if not key.startswith(missing)} if missing else known
        (directory / name).write_text(json.dumps(left))
    return load_model(directory, "fp32")


@cache
def base() -> LLM:
    return LLM(base_model(), "none", max_batch_size=4)


@pytest.mark.parametrize(("name", "with_prompts"), [("eagle3", True), ("medusa", False)])
def test_a_head_for_a_base_model_is_trained_and_drafts(name: HeadName, with_prompts: bool, tmp_path: Path) -> None:
    target = base().model
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps({"prompt": f"Once upon {i}"}) + "\n" for i in range(12)))
    prompts = (asked,) if with_prompts else ()
    text = TextSettings(tokens=400, prompts=prompts, temperatures=(0.0,), answer_tokens=16, batch_size=6)
    out, head = tmp_path / "head", HeadSettings(draft_vocab=100, slots=2 if name == "medusa" else None)
    result = train_head(name, target.name, out, text=text, head=head, settings=SETTINGS, length=128)
    assert result.progress.step == 3
    assert set(target.eos_token_ids) <= set(load_head(out, target.config).target_ids.tolist())
    # The same command again finds text and head as they are.
    again = train_head(name, target.name, out, text=text, head=head, settings=SETTINGS, length=128)
    assert again.record["text"] == result.record["text"]
    options = {"min_probability": 0.0}  # a head that has learnt next to nothing is sure of nothing
    drafting = LLM(target, name, draft_model=out, drafter_options=options)
    greedy = SamplingParams(temperature=0, max_tokens=12)
    drafted, plain = (llm.generate("Once upon", greedy)[0].outputs[0] for llm in (drafting, base()))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0


def test_texts_begin_at_the_first_mark_that_the_target_knows() -> None:
    tokenizer = base().model.tokenizer
    bos, eos = (tokenizer.vocabulary[mark] for mark in ("<|im_start|>", "<|im_end|>"))
    for missing, start in (((), bos), (("bos",), eos)):
        openings = begin_texts(LLM(base_model(*missing), "none", max_batch_size=4), 6, seed=0)
        assert {opening.token_ids[0] for opening in openings} == {start}
        assert not any(eos in opening.token_ids[1:] for opening in openings)
        assert len({tuple(opening.token_ids) for opening in openings}) == 6
    markless = LLM(base_model("bos", "eos"), "none", max_batch_size=4)
    openings = begin_texts(markless, 6, seed=0)
    starts = {opening.token_ids[0] for opening in openings}
    assert all(tokenizer.token_text(start).isalpha() for start in starts)
    assert len(starts) > 1
    assert begin_texts(markless, 0, seed=0) == []


def test_several_messages_are_refused_before_text_is_written(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    user, assistant = {"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}
    lines = [{"messages": [user]}, {"turns": ["One.", "Three."]}, {"messages": [user, assistant, user]}]
    path.write_text("\n".join(map(json.dumps, lines[:2])))
    texts = [encode_asked(base(), each).text for each in read_conversations(path, chats=False)]
    assert texts == ["One.", "One."]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert len(read_conversations(path)) == 3
    out = tmp_path / "head"
    with pytest.raises(ConfigError, match=r"line 3, has 3 messages, .* no chat template .* give one text as prompt"):
        train_head("medusa", base().model.name, out, text=TextSettings(tokens=10, prompts=(path,)), settings=SETTINGS)
    assert not out.exists()
