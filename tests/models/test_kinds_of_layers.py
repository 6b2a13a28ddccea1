"""Every kind of layer, whoever guesses: greedy tokens are those of plain decoding, and those are transformers'.

Prompts of different lengths are decoded together, with too little room for all of them, and again from cached prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from model_document import widened
from more_families import MORE_FAMILIES
from thinning import thorough_but
from tiny_checkpoint import write_tokenizer
from tiny_models import make_model, reference_logits

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.backends.native.loader import load_library
from headstart.loading.model import Model, load_model

KINDS = {
    "attention": "smollm3",
    "windows": "mistral",
    "chunks": "llama4",
    "ALiBi": "bloom",
    "sinks": "gpt_oss",
    "latent attention": "deepseek_v3",
    "compressed keys": "deepseek_v4",
    "streams": "gemma3n_text",
    "keys of earlier layers": "gemma4_text",
    "short convolution": "lfm3",
    "Mamba": "jamba",
    "Mamba-2": "nemotron_h",
    "attention beside Mamba-2": "falcon_h1",
    "gated delta rule": "qwen3_next",
    "decays by key": "bailing_hybrid",
    "hyper-connections": "glm5_next",
    "hyper-connections alone": "hy_v4",
    "chosen tokens": "glm_moe_dsa",
    "delayed experts": "longcat_flash",
}
"""Some have experts, too."""
NATIVE = {
    "short convolution, native": "lfm2_moe",
    "Mamba, native": "jamba",
    "Mamba-2, native": "nemotron_h",
    "attention beside Mamba-2, native": "falcon_h1",
    "gated delta rule, native": "qwen3_next",
    "decays by key, native": "kimi_linear",
    "hyper-connections, native": "glm5_next",
    "hyper-connections alone, native": "hy_v4",
    "chosen tokens, native": "glm_moe_dsa",
    "delayed experts, native": "longcat_flash",
    "compressed keys, native": "deepseek_v4",
    "keys of earlier layers, native": "gemma4_text",
    "streams, native": "gemma3n_text",
}
"""Those of layers that differ from each other, with heads as wide as the native pass needs."""
FEW = ("chunks", "Mamba-2", "Mamba, native", "hyper-connections, native")
"""Those of ``make test``."""
DRAFTERS = ("suffix", "early-exit", "draft-model", "auto")
PROMPTS = [[5 + length, *range(10, 10 + length)] for length in (26, 25, 2, 33)]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SLOWLY = SpeculationParams(draft_tokens=3)
"""Lest a sequence be ready before another one needs its room."""
SHORT = {"max_context": 64, "cache_tokens": 64, "prefix_caching": True}
"""Three blocks of 32 tokens: the first two prompts fit in one each, and their answers end in the next."""


@dataclass(frozen=True)
class Case:
    """A model with a kind of layer, and what it says."""

    directory: Path
    model: Model
    tokens: list[list[int]]


@pytest.fixture(scope="module", params=thorough_but(FEW, [*KINDS, *NATIVE]), ids=lambda kind: kind.replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    is_native = request.param in NATIVE
    if is_native and load_library() is None:
        pytest.skip("no native path on this machine")
    family = {**KINDS, **NATIVE}[request.param]
    changes = widened(MORE_FAMILIES[family][1]) if is_native else {}
    changes |= {"vocab_size": 259} if family in ("mistral", "smollm3") else {}
    reference = make_model(family, **changes)
    directory: Path = tmp_path_factory.mktemp(family)
    reference.save_pretrained(directory)
    write_tokenizer(directory)
    model = load_model(directory, "fp32")
    assert not is_native or model.backend.name.startswith("native")
    with LLM(model, "none", max_context=96) as llm:
        tokens, _ = said(llm)
    for prompt, own in zip(PROMPTS, tokens, strict=True):
        best = reference_logits(reference, [*prompt, *own]).argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == own
    return Case(directory, model, tokens)


def said(llm: LLM) -> tuple[list[list[int]], int]:
    """Tokens of all prompts together, and how often a sequence gave way to the others and read again."""
    outputs = llm.generate(PROMPTS, GREEDY, speculation=SLOWLY)
    llm.engine.check()
    assert llm.engine.runner.cache.free == llm.engine.runner.cache.size
    return [list(output.outputs[0].token_ids) for output in outputs], sum(each.stats.preemptions for each in outputs)


@pytest.mark.parametrize("drafter", thorough_but(["suffix", "auto"], DRAFTERS))
def test_no_drafter_changes_a_token(case: Case, drafter: str) -> None:
    assert not case.model.notice  # by Headstart's own code
    draft_model = case.directory if drafter == "draft-model" else None
    with LLM(case.model, drafter, draft_model=draft_model, **SHORT) as llm:
        tokens, preemptions = said(llm)
        assert tokens == case.tokens
        assert preemptions > 0
        for cached in (None, 32):
            (again,) = llm.generate([PROMPTS[3]], GREEDY)
            assert list(again.outputs[0].token_ids) == case.tokens[3]
            assert cached in (None, again.stats.cached_tokens)
