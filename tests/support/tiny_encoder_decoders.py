"""Random tiny encoder-decoder checkpoints of every family, made with transformers' own classes, the reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny_checkpoint import tiny_tokenizer
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel

VOCAB, START, END = 259, 256, 258
"""Bytes, and the special tokens of ``tiny_checkpoint``."""
T5 = {
    "vocab_size": VOCAB,
    "d_model": 36,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "d_kv": 8,
    "d_ff": 52,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
BART = {
    "vocab_size": VOCAB,
    "d_model": 36,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 52,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 257,
    "forced_eos_token_id": None,
}
MARIAN = {**BART, "decoder_vocab_size": VOCAB}
WHISPER = {key: value for key, value in BART.items() if key != "max_position_embeddings"} | {
    "num_mel_bins": 6,
    "max_source_positions": 20,
    "max_target_positions": 128,
    "begin_suppress_tokens": None,
    "suppress_tokens": None,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", T5),
    "t5-unscaled-gated": ("T5", T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    "t5-silu": ("T5", T5 | {"feed_forward_proj": "gated-silu"}),
    "mt5": ("MT5", T5),
    "umt5": ("UMT5", T5),
    "bart": ("Bart", BART),
    "bart-scaled": ("Bart", BART | {"scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("MBart", BART | {"scale_embedding": True}),
    "pegasus": ("Pegasus", BART | {"scale_embedding": True}),
    "marian": ("Marian", MARIAN | {"scale_embedding": True, "activation_function": "swish"}),
    "m2m-100": ("M2M100", BART),
    "whisper": ("Whisper", WHISPER),
}
WIDE: dict[str, dict[str, Any]] = {
    family: {"d_kv": 32}
    if "T5" in name
    else {"d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 2}
    for family, (name, _) in FAMILIES.items()
}
"""What makes a family's heads as wide as the native pass needs them."""
_MODELS = {"Marian": "MarianMTModel"}
LOUD = 1.5
"""Weights of layers are so much larger than usual: outputs follow from what was read, and do not repeat a token."""


def make_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model in which every part shows in the logits."""
    name, settings = FAMILIES[family]
    tokens = {"decoder_start_token_id": START, "eos_token_id": END}
    config = getattr(transformers, f"{name}Config")(**{**tokens, **settings, **changes})
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, _MODELS.get(name, f"{name}ForConditionalGeneration"))(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "embed_positions" in key and not parameter.requires_grad:
                continue
            if parameter.ndim >= 2:
                # Wider rows are scaled up by more of the families, and would drown the layers.
                table = "shared" in key or "embed" in key
                spread = 0.5 * T5["d_model"] / config.d_model if table else LOUD * parameter[0].numel() ** -0.5
                parameter.normal_(0, 1.0 if "relative" in key else spread)
                if key.endswith("Attention.q.weight"):  # a T5 scales no scores: those of wide heads spread as far
                    parameter.mul_((T5["d_kv"] / config.d_kv) ** 0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.3)
    return model


def save_model(model: PreTrainedModel, directory: Path) -> Path:
    """With a tokenizer that puts nothing around a text."""
    model.save_pretrained(directory)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def name_languages(directory: Path, languages: Sequence[str]) -> dict[str, int]:
    """Spell tokens 1, 2, ... of a saved model as languages, of which the first stands before every text."""
    path = directory / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    ids = {language: place for place, language in enumerate(languages, start=1)}
    kept = {token: place for token, place in described["model"]["vocab"].items() if place not in ids.values()}
    described["model"]["vocab"] = ids | kept
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_special_tokens([AddedToken(language, special=True, normalized=False) for language in languages])
    first = (languages[0], 1)
    tokenizer.post_processor = TemplateProcessing(single=f"{languages[0]} $A", special_tokens=[first])
    tokenizer.save(str(path))
    return ids


def features(seed: int = 0, frames: int = 40) -> np.ndarray:
    """float32 [mel bin, frame] for the tiny Whisper."""
    return np.random.default_rng(seed).standard_normal((6, frames)).astype(np.float32)


def inputs_of(model: PreTrainedModel, source: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
    """What the encoder reads, by the name that transformers has for it."""
    if isinstance(source, np.ndarray):
        return {"input_features": torch.from_numpy(source)[None]}
    return {"input_ids": torch.tensor([list(source)])}


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, source: Sequence[int] | np.ndarray, tokens: Sequence[int]) -> Tensor:
    """[token, vocab] of one output, without cache."""
    begun = torch.tensor([list(tokens)])
    logits: Tensor = model(**inputs_of(model, source), decoder_input_ids=begun, use_cache=False).logits[0]
    return logits


@torch.inference_mode()
def reference_tokens(
    model: PreTrainedModel, source: Sequence[int] | np.ndarray, count: int, **settings: Any
) -> list[int]:
    """What transformers' greedy ``generate`` says, the start token left out."""
    # Whisper has a ``generate`` of its own, which looks for languages.
    said = GenerationMixin.generate(
        model,
        **inputs_of(model, source),
        max_new_tokens=count,
        do_sample=False,
        num_beams=1,
        use_cache=False,
        **settings,
    )
    tokens: list[int] = said[0].tolist()
    return tokens[1:]
