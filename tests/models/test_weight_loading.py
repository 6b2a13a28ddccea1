"""Strict loading: nothing missing, nothing surplus, nothing of another shape, and no reading before that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.families import config_from_hf
from headstart.models.stored import StoredTensor
from headstart.models.weight_loading import load_decoder, load_tables, load_weights

NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.float8_e4m3fn: "F8_E4M3",
}


@dataclass
class Tensors:
    """A source in memory that notes what was read."""

    tensors: dict[str, Tensor]
    read_names: list[str] = field(default_factory=list)
    bits: dict[str, float] = field(default_factory=dict)
    """Of tensors that are not in 16."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str, index: int | None = None) -> Tensor:
        self.read_names.append(name)
        return self.tensors[name] if index is None else self.tensors[name][index]

    def stored(self, name: str) -> StoredTensor:
        tensor = self.tensors[name]
        data = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
        return StoredTensor(NAMES[tensor.dtype], tuple(tensor.shape), data)

    def stored_bits(self, name: str) -> float:
        return self.bits.get(name, 16.0)


def checkpoint(family: str) -> tuple[ModelConfig, Tensors]:
    model = make_model(family)
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if family == "gpt-neox":
        tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return config_from_hf(model.config.to_dict(), name="tiny"), Tensors(tensors)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "gpt-neox"])
def test_every_tensor_is_read_once_and_matrices_when_they_are_asked_for(family: str) -> None:
    config, source = checkpoint(family)
    weights = load_weights(source, config, "hf", torch.float32)
    assert all(source.tensors[name].dim() == 1 or "wpe" in name for name in source.read_names)
    for layer in weights.layers:
        for linear in (*layer.mixer.linears, *layer.channel.linears):
            assert linear.weight.dtype is torch.float32
    assert weights.embedding is weights.embedding
    assert weights.head.weight is weights.head.weight
    assert sorted(source.read_names) == sorted(source.tensors)


@pytest.mark.parametrize("tied", [False, True])
def test_tables_are_read_without_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    make_model("llama-tied-biased" if tied else "llama").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    opened = open_checkpoint(tmp_path)
    _, weights = load_decoder(opened, torch.bfloat16)
    wanted = weights.embedding, weights.head.weight
    read, names = type(opened).read, []
    monkeypatch.setattr(type(opened), "read", lambda self, name, *index: names.append(name) or read(self, name, *index))
    embedding, head = load_tables(opened, torch.bfloat16)
    assert torch.equal(embedding.tensor(), wanted[0])
    assert torch.equal(head.tensor(), wanted[1])
    assert (head is embedding) == tied
    assert names == ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not tied)


def test_all_faults_are_named_before_anything_is_read() -> None:
    config, source = checkpoint("llama")
    del source.tensors["model.layers.3.mlp.up_proj.weight"]
    source.tensors["model.layers.1.self_attn.q_proj.bias"] = torch.zeros(36)
    source.tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(36, 12)
    with pytest.raises(CheckpointError) as caught:
        load_weights(source, config, "hf", torch.float32)
    message = str(caught.value)
    assert "model 'tiny'" in message
    assert "lacks model.layers.3.mlp.up_proj.weight [52, 36]" in message
    assert "surplus model.layers.1.self_attn.q_proj.bias [36]" in message
    assert "mis-shaped model.layers.0.self_attn.k_proj.weight [36, 12] instead of [12, 36]" in message
    assert source.read_names == []


def test_a_long_list_of_faults_is_cut_short() -> None:
    config, source = checkpoint("llama")
    source.tensors = {name: tensor for name, tensor in source.tensors.items() if ".mlp." not in name}
    with pytest.raises(CheckpointError, match=r"and 8 more"):
        load_weights(source, config, "hf", torch.float32)


def test_an_untied_head_must_be_there() -> None:
    config, source = checkpoint("llama")
    del source.tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight \[101, 36\]"):
        load_weights(source, config, "hf", torch.float32)


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("llama", "model.layers.2.self_attn.rotary_emb.inv_freq"),
        ("llama", "model.rotary_emb.original_inv_freq"),
        ("llama", "model.layers.0.self_attn.k_scale"),
        ("llama", "model.layers.0.self_attn.kv_scale"),
        ("llama", "model.layers.1.self_attn.attn.v_scale"),
        ("llama", "model.layers.1.self_attn.k_proj.k_scale"),
        ("llama", "model.layers.3.self_attn.v_proj.output_scale"),
        ("qwen2", "model.layers.3.self_attn.q_scale"),
        ("gemma3", "model.layers.3.self_attn.prob_scale"),
        ("phi3", "model.layers.0.self_attn.v_zero_point"),
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
        ("gpt-neox", "gpt_neox.layers.0.attention.bias"),
        ("gpt-neox", "gpt_neox.layers.0.attention.masked_bias"),
        ("gpt-neox", "gpt_neox.layers.3.attention.rotary_emb.inv_freq"),
    ],
)
def test_buffers_of_older_versions_and_scales_of_a_cache_do_no_harm(family: str, extra: str) -> None:
    config, source = checkpoint(family)
    source.tensors[extra] = torch.full((3, 3), torch.nan)
    load_weights(source, config, "hf", torch.float32)
    assert extra not in source.read_names


@pytest.mark.parametrize("name", ["q_proj.weight_scale", "q_proj.input_scale", "k_proj.bias", "k_proj.scale_inv"])
def test_what_would_change_the_numbers_is_never_passed_over(name: str) -> None:
    config, source = checkpoint("llama")
    source.tensors[f"model.layers.0.self_attn.{name}"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=rf"surplus model\.layers\.0\.self_attn\.{name}"):
        load_weights(source, config, "hf", torch.float32)


TIED = ["llama-tied-biased", "gemma3", "gpt2", "phi3-longrope"]


@pytest.mark.parametrize("stored", ["both, equal", "both, different", "head alone"])
@pytest.mark.parametrize("family", TIED)
def test_a_head_beside_a_tie_is_what_transformers_takes_it_for(family: str, stored: str, tmp_path: Path) -> None:
    """Equal tables are one, a different head is the head, and one table serves both under either name."""
    model = make_model(family, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (table,) = (name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight")))
    embedding = tensors[table].clone()
    head = embedding if stored != "both, different" else embedding.flip(0).contiguous()
    tensors["lm_head.weight"] = head.clone()
    if stored == "head alone":
        del tensors[table]
    save_file(tensors, file, metadata={"format": "pt"})
    reference = AutoModelForCausalLM.from_pretrained(tmp_path)
    config, weights = load_decoder(opened := open_checkpoint(tmp_path), torch.float32)
    assert config.head.tied == (stored != "both, different")
    assert torch.equal(weights.embedding, reference.get_input_embeddings().weight)
    assert torch.equal(weights.head.weight, reference.get_output_embeddings().weight)
    assert (weights.head.matrix is weights.table) == config.head.tied
    tables = load_tables(opened, torch.float32)
    assert torch.equal(tables[0].tensor(), embedding)
    assert torch.equal(tables[1].tensor(), head)


def test_a_head_of_another_shape_beside_a_tie_is_named(tmp_path: Path) -> None:
    make_model("llama-tied-biased").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": torch.zeros(100, 36)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"mis-shaped lm_head\.weight \[100, 36\] instead of \[101, 36\]"):
        load_decoder(open_checkpoint(tmp_path), torch.float32)


def test_one_familys_buffer_is_anothers_surplus() -> None:
    config, source = checkpoint("llama")
    source.tensors["model.layers.0.self_attn.bias"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"surplus model\.layers\.0\.self_attn\.bias"):
        load_weights(source, config, "hf", torch.float32)


def test_matrices_remember_how_many_bits_the_file_has_of_them() -> None:
    """Of those that are stacked, the most."""
    config, source = checkpoint("llama")
    layers = (f"model.layers.{index}." for index in range(config.num_layers))
    source.bits = {f"{layer}self_attn.{name}_proj.weight": 4.5 for layer in layers for name in "qkvo"}
    source.bits["model.layers.1.self_attn.v_proj.weight"] = 6.5625
    weights = load_weights(source, config, "hf", torch.float32)
    assert [layer.mixer.qkv.stored_bits for layer in weights.layers] == [4.5, 6.5625] + [4.5] * (config.num_layers - 2)
    assert {layer.mixer.output.stored_bits for layer in weights.layers} == {4.5}
    assert {layer.channel.down.stored_bits for layer in weights.layers} == {16.0}


def test_files_of_the_bare_model_leave_the_prefix_out() -> None:
    """As the first GPT-2 files on the hub do."""
    config, source = checkpoint("gpt2")
    whole = load_weights(source, config, "hf", torch.float32).layers[2].mixer.qkv.weight
    source.tensors = {name.removeprefix("transformer."): tensor for name, tensor in source.tensors.items()}
    source.tensors["h.0.attn.bias"] = torch.ones(1)
    bare = load_weights(source, config, "hf", torch.float32)
    assert torch.equal(whole, bare.layers[2].mixer.qkv.weight)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.int32])
def test_quantised_numbers_are_not_taken_for_weights(dtype: torch.dtype) -> None:
    config, source = checkpoint("llama")
    name = "model.layers.0.mlp.down_proj.weight"
    source.tensors[name] = source.tensors[name].to(dtype)
    with pytest.raises(CheckpointError, match=rf"down_proj.weight' holds {NAMES[dtype]} "):
        load_weights(source, config, "hf", torch.float32)


def test_matrices_take_the_dtype_and_vectors_stay_float32() -> None:
    config, source = checkpoint("gpt2")
    weights = load_weights(source, config, "hf", torch.bfloat16)
    layer = weights.layers[0]
    assert weights.head.weight is weights.embedding
    assert weights.positions is not None
    matrices = (weights.embedding, weights.positions, layer.mixer.qkv.weight, layer.channel.down.weight)
    vectors = (
        layer.mixer.qkv.bias,
        layer.channel.down.bias,
        layer.mlp_norm.weight,
        layer.mlp_norm.bias,
        weights.final_norm.weight,
    )
    assert {matrix.dtype for matrix in matrices} == {torch.bfloat16}
    assert {vector.dtype for vector in vectors if vector is not None} == {torch.float32}
    assert layer.mixer.qkv.weight.shape == (108, 36)
    assert layer.channel.up.weight.shape == (52, 36)


def test_half_precision_files_are_read_in_full() -> None:
    config, source = checkpoint("qwen3")
    expected = load_weights(source, config, "hf", torch.bfloat16).layers[1].channel.up.weight
    source.tensors = {name: tensor.bfloat16() for name, tensor in source.tensors.items()}
    weights = load_weights(source, config, "hf", torch.float32)
    assert torch.equal(weights.layers[1].channel.up.weight, expected.float())
