"""How many of the kinds of model that a trial from outside made (2026-11-25) are decoded, and by whose code.

    python tests/models/count_models.py --json counted.json
    python tests/models/count_models.py --only zamba2,mamba

Every kind is made with transformers as a random tiny checkpoint and loaded as a user would. Of a decoder, greedy
tokens for three prompts must be those that follow from transformers' logits, every row of logits must be transformers'
within 1e-4 (float32), and each drafter's tokens those of plain decoding. Of a model with an encoder only the loading is
tried here; its own tests hold the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import torch
from foreign_models import tiny_model
from more_families import MORE_FAMILIES, TINY
from safetensors.torch import save_file
from tiny_checkpoint import write_tokenizer
from tiny_configs import OVERRIDES, VOCAB
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_models import FAMILIES, make_model, reference_logits
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.errors import HeadstartError
from headstart.loading.model import Model, load_model
from headstart.passes.runner import ModelRunner, Span

TOLERANCE = 1e-4
PROMPTS = [random.Random(length).choices(range(3, 250), k=length) for length in (5, 23, 60)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
DRAFTERS = ("suffix", "early-exit", "auto")
Make = Callable[[], PreTrainedModel]
LLAMA_LIKE: dict[str, dict[str, Any]] = {
    **{f"llama-headdim{size}": {"head_dim": size} for size in (16, 32, 64, 80, 96, 112, 128, 192, 256)},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-attention-bias": {"attention_bias": True},
    "llama-mlp-bias": {"mlp_bias": True},
    "llama-mqa": {"num_key_value_heads": 1},
    "llama-mha": {"num_key_value_heads": 4},
    "llama-gelu": {"hidden_act": "gelu"},
    "llama-gelu-tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "llama-relu": {"hidden_act": "relu"},
    "llama-odd-sizes": {"hidden_size": 60, "intermediate_size": 77, "head_dim": 14},
    "llama-two-layers": {"num_hidden_layers": 2},
    "llama-large-theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral-headdim32": ("Mistral", {"head_dim": 32, "sliding_window": None}),
    "mistral-mqa": ("Mistral", {"num_key_value_heads": 1, "sliding_window": 5}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3-headdim64": ("Qwen3", {"head_dim": 64}),
    "qwen3-headdim128": ("Qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    "smollm3-tied": ("SmolLM3", {"tie_word_embeddings": True}),
}
KNOWN_THEN = (*FAMILIES, *LLAMA_LIKE, *OTHERS)
"""Variants of the families that the trial found loading; it did not list its own one by one."""
REFUSED_THEN = (
    *("afmoe", "apertus", "arcee", "bamba", "bart", "bert", "biogpt", "bitnet", "bloom", "codegen", "cohere"),
    *("cohere2", "ctrl", "cwm", "dbrx", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "diffllama"),
    *("doge", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon", "falcon-new", "falcon_h1"),
    *("falcon_mamba", "flan-t5", "flex_olmo", "gemma", "gemma3n", "gemma4", "gemma4_unified", "glm", "glm4"),
    *("glm4_moe", "gpt_bigcode", "gpt_neo", "gpt_oss", "gptj", "granite_swa", "granitemoe", "granitemoeshared"),
    *("helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hyperclovax", "jais2", "jamba", "jetmoe", "kimi_linear"),
    *("laguna", "lfm2", "llama4", "llava", "longcat_flash", "m2m_100", "mamba", "mamba2", "marian", "mbart"),
    *("mellum", "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2", "ministral", "ministral3", "mistral3"),
    *("mixtral", "modernbert-decoder", "mpt", "mt5", "nanochat", "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3"),
    *("olmoe", "openai-gpt", "opt", "pegasus", "persimmon", "phi", "phi4_multimodal", "phimoe", "qwen2_5_vl"),
    *("qwen2_moe", "qwen2_vl", "qwen3_5", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen4_exp", "recurrent_gemma"),
    *("rwkv", "seed_oss", "solar_open", "stablelm", "starcoder2", "t5", "t5gemma", "umt5", "vaultgemma", "whisper"),
    *("xglm", "xlstm", "youtu", "zamba2"),
    *("gpt2-relu", "granitemoehybrid-h", "llama-partial", "llama-relu2"),
)
"""By ``model_type``, or as ``more_families`` calls them."""
WITH_ENCODER = {"flan-t5": "t5-unscaled-gated", "m2m_100": "m2m-100"} | {
    name: name for name in ("bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper")
}
NO_DECODERS = ("bert", "t5gemma")
"""An encoder alone, and one with an encoder that nobody here reads; tried with a configuration and a dummy tensor."""


@dataclass(frozen=True)
class Outcome:
    """What became of one kind."""

    kind: str
    run_by: str
    """"headstart", "transformers", "headstart, with an encoder", "refused" or "no decoder, refused"."""
    logits_apart: float | None = None
    """Largest difference from transformers' logits."""
    faults: tuple[str, ...] = ()
    remark: str = ""


def kinds() -> dict[str, Make | None]:
    """What makes a model of every kind; None: no class of transformers decodes with it."""
    further = {name: ("Llama", {**TINY, **changes}) for name, changes in LLAMA_LIKE.items()}
    further |= {name: (kind, {**TINY, **changes}) for name, (kind, changes) in OTHERS.items()}
    made: dict[str, Make | None] = {}
    for name, (kind, settings) in (FAMILIES | further).items():
        MORE_FAMILIES[name] = (kind, _with_vocabulary(settings))
        made[name] = partial(make_model, name)
    for name in REFUSED_THEN:
        if name in WITH_ENCODER:
            made[name] = partial(make_encoder_decoder, WITH_ENCODER[name])
        elif name in MORE_FAMILIES:
            made[name] = partial(make_model, name)
        elif name in NO_DECODERS:
            made[name] = None
        else:
            made[name] = partial(tiny_model, f"{name}_text" if f"{name}_text" in OVERRIDES else name)
    return made


def _with_vocabulary(settings: dict[str, Any]) -> dict[str, Any]:
    """As large as the tokenizer's."""
    if "text_config" in settings:
        return settings | {"text_config": _with_vocabulary(settings["text_config"])}
    return settings | {"vocab_size": VOCAB}


def judge(kind: str, make: Make | None) -> Outcome:
    """One kind, from its making to its tokens."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if make is None:
            return _refused(kind, directory)
        reference = make()
        reference.save_pretrained(directory)
        write_tokenizer(directory)
        try:
            model = load_model(directory, "fp32")
        except HeadstartError as error:
            return Outcome(kind, "refused", remark=str(error))
        if model.config.encoder is not None:
            return Outcome(kind, "headstart, with an encoder")
        apart, faults = _compare(reference, model)
        return Outcome(kind, "transformers" if model.notice else "headstart", apart, tuple(faults), model.notice)


def _refused(kind: str, directory: Path) -> Outcome:
    CONFIG_MAPPING[kind]().save_pretrained(directory)
    save_file({"x": torch.zeros(1)}, directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(directory)
    try:
        load_model(directory, "fp32")
    except HeadstartError as error:
        return Outcome(kind, "no decoder, refused", remark=str(error))
    return Outcome(kind, "no decoder", faults=("it loads",))


def _compare(reference: PreTrainedModel, model: Model) -> tuple[float, list[str]]:
    faults: list[str] = []
    with LLM(model, "suffix", max_context=96) as llm:
        plain = _tokens(llm, SpeculationParams(enabled=False))
        if _tokens(llm) != plain:
            faults.append("suffix says other tokens")
    apart = 0.0
    for prompt, tokens in zip(PROMPTS, plain, strict=True):
        text = [*prompt, *tokens]
        expected = reference_logits(reference, text)
        apart = max(apart, (_logits(model, text) - expected).abs().max().item())
        if expected.argmax(-1)[len(prompt) - 1 : -1].tolist() != tokens:
            faults.append(f"other tokens than transformers' after {len(prompt)}")
    for drafter in DRAFTERS[1:]:
        try:
            with LLM(model, drafter, max_context=96) as llm:
                if _tokens(llm) != plain:
                    faults.append(f"{drafter} says other tokens")
        except HeadstartError as error:
            if drafter != "early-exit" or not model.notice:
                faults.append(f"{drafter} is refused: {error}")
    return apart, faults


def _tokens(llm: LLM, speculation: SpeculationParams | None = None) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY, speculation=speculation)]


def _logits(model: Model, text: list[int]) -> Tensor:
    """float32 [token, vocab] of one pass."""
    runner = ModelRunner(model.backend, 128)
    runner.cache.add(0)
    with runner.cache.reserve({0: len(text)}, final={0}):
        (output,) = runner.forward([Span.chain(0, text)])
    return output.logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="kinds, with commas between them")
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    all_kinds = kinds()
    chosen = list(all_kinds) if arguments.only is None else arguments.only.split(",")
    outcomes: list[Outcome] = []
    for place, kind in enumerate(chosen, 1):
        start = time.monotonic()
        try:
            outcome = judge(kind, all_kinds[kind])
        except Exception as error:  # a kind that breaks is counted, too
            outcome = Outcome(kind, "broken", faults=(f"{type(error).__name__}: {error}",))
        outcomes.append(outcome)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
        bad = outcome.faults or (outcome.logits_apart or 0) > TOLERANCE
        words = "; ".join(outcome.faults) or outcome.remark
        apart = "" if outcome.logits_apart is None else f"{outcome.logits_apart:.1e}"
        print(
            f"{place:3}/{len(chosen)} {'NO ' if bad else 'yes'} {kind:24} {outcome.run_by:12} {apart:8} "
            f"{time.monotonic() - start:5.1f} s  {words}",
            flush=True,
        )
    for run_by, count in Counter(outcome.run_by for outcome in outcomes).items():
        print(f"{count:4} {run_by}")


if __name__ == "__main__":
    main()
