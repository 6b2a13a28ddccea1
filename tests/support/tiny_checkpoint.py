"""A random tiny chat model in a directory, as a hub would hold it: for tests of everything above the decoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headstart.text.token_bytes import BYTE_ALPHABET

HIDDEN, HEADS, KV_HEADS, MLP, LAYERS = 32, 4, 2, 48, 3
MAX_POSITIONS = 512
SPECIAL_TOKENS = ("<|end|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    chat: bool = True,
    head_dim: int = HIDDEN // HEADS,
    layers: int = LAYERS,
    specials: Sequence[str] = (),
) -> Path:
    """A llama-like model of 3 layers and 259 tokens (bytes and special tokens) that says printable ASCII.

    The native pass computes it with a ``head_dim`` of 32. ``specials``: further special tokens.
    """
    tokenizer = write_tokenizer(directory, chat, specials)
    vocab_size = tokenizer.get_vocab_size()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": HEADS * head_dim,
        "intermediate_size": MLP,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id("<|im_start|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }
    _write_json(directory / "config.json", config)
    save_file(
        _weights(tokenizer, seed, HEADS * head_dim, layers), directory / "model.safetensors", metadata={"format": "pt"}
    )
    return directory


def write_tokenizer(directory: Path, chat: bool = True, specials: Sequence[str] = ()) -> Tokenizer:
    """The files of a tokenizer of 259 tokens, bytes and special ones."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    _write_json(directory / "tokenizer_config.json", settings | ({"chat_template": CHAT_TEMPLATE} if chat else {}))
    return tokenizer


def tiny_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=dict(BYTE_ALPHABET), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def _weights(tokenizer: Tokenizer, seed: int, hidden: int, layers: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    vocab_size = tokenizer.get_vocab_size()
    head = 4.0 * matrix(vocab_size, hidden)
    head[[token for token in range(vocab_size) if not 32 <= token < 127]] *= 0.1
    weights = {
        "model.embed_tokens.weight": torch.randn(vocab_size, hidden, generator=generator),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": head,
    }
    kv_size = hidden // HEADS * KV_HEADS
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": torch.ones(hidden),
            prefix + "post_attention_layernorm.weight": torch.ones(hidden),
            prefix + "self_attn.q_proj.weight": matrix(hidden, hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv_size, hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv_size, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, hidden),
            prefix + "mlp.gate_proj.weight": matrix(MLP, hidden),
            prefix + "mlp.up_proj.weight": matrix(MLP, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, MLP),
        }
    return weights


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
