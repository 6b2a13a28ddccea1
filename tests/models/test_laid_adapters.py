"""Adapters that are laid onto a model's matrices: against the same merged, whatever file either comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_models import ARCHITECTURES, _converted, write_gguf
from native_here import needs_native
from safetensors.torch import save_file
from tiny_models import make_model, save_model
from torch import Tensor
from transformers import PreTrainedModel

from headstart.backends.native.backend import NativeBackend
from headstart.backends.torch.backend import TorchBackend
from headstart.errors import CheckpointError
from headstart.models.adapters import adaptable, load_adapter
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.passes.runner import ModelRunner, Span

RANK, ALPHA = 2, 3
Pairs = Mapping[str, tuple[Tensor, Tensor]]


def pairs_of(
    model: PreTrainedModel, modules: tuple[str, ...], transposed: bool = False, strength: float = 1.0
) -> Pairs:
    """Matrices for every module of these names."""
    generator, pairs = torch.Generator().manual_seed(1), {}
    for name, weight in model.state_dict().items():
        if name.endswith(tuple(f"{module}.weight" for module in modules)) and weight.ndim == 2:
            outputs, inputs = weight.shape[::-1] if transposed else weight.shape
            ranks = (torch.randn(RANK, inputs, generator=generator), torch.randn(outputs, RANK, generator=generator))
            ranks = (ranks[0] * strength, ranks[1])
            pairs[name.removesuffix(".weight")] = ranks
    return pairs


def write_folder(directory: Path, pairs: Pairs, **settings: Any) -> Path:
    directory.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA} | settings
    (directory / "adapter_config.json").write_text(json.dumps(config))
    tensors = {f"base_model.model.{name}.lora_A.weight": down for name, (down, _) in pairs.items()}
    tensors |= {f"base_model.model.{name}.lora_B.weight": up for name, (_, up) in pairs.items()}
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def write_file(path: Path, model: PreTrainedModel, pairs: Pairs, kind: str = "adapter") -> Path:
    """As llama.cpp's converter does: rows of ``up`` in the order of the model's own file."""
    arch = ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_type(kind)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    for module, (down, up) in pairs.items():
        name = names.get_name(module)
        writer.add_tensor(f"{name}.weight.lora_a", down.numpy())
        writer.add_tensor(f"{name}.weight.lora_b", _converted(module, up, model.config).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def products(adapter: Path, checkpoint: Checkpoint) -> dict[tuple[int, int], Tensor]:
    return {key: up @ down for key, (down, up) in load_adapter(adapter, checkpoint).changes.items()}


ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("family", "modules", "transposed"),
    [
        ("llama", ATTENTION + MLP, False),
        ("qwen3", ("v_proj", "up_proj"), False),
        ("phi3", ("qkv_proj", "gate_up_proj"), False),
        ("gpt2", ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"), True),
    ],
)
def test_changes_are_the_same_as_merged_ones(
    tmp_path: Path, family: str, modules: tuple[str, ...], transposed: bool
) -> None:
    model = make_model(family)
    save_model(model, tmp_path / "model")
    pairs = pairs_of(model, modules, transposed)
    folder = write_folder(tmp_path / "folder", pairs, fan_in_fan_out=transposed)
    file = write_file(tmp_path / "adapter.gguf", model, pairs)
    base = open_checkpoint(tmp_path / "model")
    found = products(folder, base)
    _, before = load_decoder(base, torch.float32)
    _, after = load_decoder(open_checkpoint(tmp_path / "model", lora=folder), torch.float32)
    for index, layers in enumerate(zip(before.layers, after.layers, strict=True)):
        for place, (old, new) in enumerate(zip(*map(adaptable, layers), strict=True)):
            if old is None or new is None:
                assert place == 4, "there is no gate"
                continue
            change = found.get((index, place), torch.zeros(()))
            torch.testing.assert_close(new.weight - old.weight, change.expand_as(old.weight), atol=1e-5, rtol=1e-4)
    converted = open_checkpoint(write_gguf(model, tmp_path / "model.gguf"))
    for adapter, checkpoint in ((file, base), (folder, converted), (file, converted)):
        for key, product in products(adapter, checkpoint).items():
            torch.testing.assert_close(product, found[key], atol=1e-5, rtol=1e-4)


GATED = {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}


@pytest.mark.parametrize("kind", [pytest.param(NativeBackend, marks=needs_native), TorchBackend])
@pytest.mark.parametrize(
    ("family", "modules", "changes"),
    [
        ("qwen3_5_text", ("q_proj", "v_proj", "out_proj", "down_proj"), GATED),
        ("gpt2", ("c_attn", "mlp.c_proj"), {"n_embd": 192}),
    ],
)
def test_passes_change_rows_as_the_merged_model_has_them(
    tmp_path: Path, kind: type[NativeBackend | TorchBackend], family: str, modules: tuple[str, ...], changes: Any
) -> None:
    model = make_model(family, **changes)
    save_model(model, tmp_path / "model")
    transposed = family == "gpt2"
    adapter = write_folder(tmp_path / "adapter", pairs_of(model, modules, transposed, 0.1), fan_in_fan_out=transposed)
    base = open_checkpoint(tmp_path / "model")

    def logits(checkpoint: Checkpoint, adapters: Sequence[Path | None], together: bool) -> list[Tensor]:
        precision = {"precision": "fp32"} if kind is NativeBackend else {}
        backend: Any = kind(*load_decoder(checkpoint, torch.float32), **precision)
        runner = ModelRunner(backend, 256)
        for number, each in enumerate(adapters):
            compiled = None if each is None else backend.compiled_adapter(load_adapter(each, checkpoint))
            runner.cache.add(number, adapter=compiled)
        spans = [Span.chain(number, [5, 17, 3, 99, 42 + number]) for number in range(len(adapters))]
        with runner.cache.reserve({span.sequence_id: len(span) for span in spans}):
            passes = [spans] if together else [[span] for span in spans]
            return [output.logits for each in passes for output in runner.forward(each)]

    mixed = logits(base, [adapter, None, adapter], together=True)
    plain = logits(base, [None] * 3, together=True)
    merged = logits(open_checkpoint(tmp_path / "model", lora=adapter), [None] * 3, together=True)
    for found, wanted, other in zip(
        mixed, (merged[0], plain[1], merged[2]), (plain[0], merged[1], plain[2]), strict=True
    ):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
        assert not torch.allclose(found, other, atol=1e-2)
    if kind is NativeBackend:
        alone = logits(base, [adapter, None, adapter], together=False)
        assert all(torch.equal(a, b) for a, b in zip(mixed, alone, strict=True))


def test_each_module_has_its_own_scale(tmp_path: Path) -> None:
    model = make_model("qwen3")
    save_model(model, tmp_path / "model")
    pairs = pairs_of(model, ("q_proj", "down_proj"))
    checkpoint = open_checkpoint(tmp_path / "model")
    plain = products(write_folder(tmp_path / "plain", pairs), checkpoint)
    settings = {"use_rslora": True, "alpha_pattern": {"down_proj": 12}}
    found = products(write_folder(tmp_path / "found", pairs, **settings), checkpoint)
    for key, product in found.items():
        ratio = RANK**0.5 * (4.0 if key[1] == 3 else 1.0)
        torch.testing.assert_close(product, plain[key] * ratio)


def test_a_shared_expert_is_changed_and_others_are_refused(tmp_path: Path) -> None:
    model = make_model("qwen2_moe")
    save_model(model, tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    shared = pairs_of(model, ("shared_expert.up_proj", "shared_expert.down_proj"))
    assert {place for _, place in products(write_folder(tmp_path / "shared", shared), checkpoint)} == {2, 3}
    gates = pairs_of(model, ("mlp.gate",))
    with pytest.raises(CheckpointError, match=r"changes 'model\.layers\.\d+\.mlp\.gate', which requests cannot have"):
        load_adapter(write_folder(tmp_path / "gates", gates), checkpoint)


def wide(pairs: Pairs) -> Pairs:
    return {name: (torch.cat((down, down), dim=1), up) for name, (down, up) in pairs.items()}


def unlike(pairs: Pairs) -> Pairs:
    return {name: (torch.cat((down, down)), up) for name, (down, up) in pairs.items()}


def infinite(pairs: Pairs) -> Pairs:
    return {name: (down / 0, up) for name, (down, up) in pairs.items()}


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (wide, {}, "give the adapter of this very model"),
        (unlike, {}, "do not fit each other"),
        (infinite, {}, "not finite"),
        (lambda pairs: {"model.layers.9.mlp.up_proj": next(iter(pairs.values()))}, {}, "this model does not have"),
        (lambda pairs: {"lm_head": (torch.ones(2, 36), torch.ones(101, 2))}, {}, "changes 'lm_head', which requests"),
        (lambda pairs: {}, {}, "holds no LoRA matrices"),
        (lambda pairs: pairs, {"use_dora": True}, "DoRA"),
        (lambda pairs: pairs, {"peft_type": "IA3"}, "only LORA"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[Pairs], Pairs], settings: dict[str, Any], message: str
) -> None:
    model = make_model("qwen3")
    save_model(model, tmp_path / "model")
    adapter = write_folder(tmp_path / "adapter", change(pairs_of(model, ("up_proj",))), **settings)
    with pytest.raises(CheckpointError, match=message) as refused:
        load_adapter(adapter, open_checkpoint(tmp_path / "model"))
    assert str(refused.value).count(". ") == 0


def test_modules_that_were_saved_whole_are_refused(tmp_path: Path) -> None:
    model = make_model("qwen3")
    save_model(model, tmp_path / "model")
    adapter = write_folder(tmp_path / "adapter", {})
    save_file({"base_model.model.lm_head.weight": torch.ones(2, 2)}, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight', which requests cannot have of their own"):
        load_adapter(adapter, open_checkpoint(tmp_path / "model"))


def test_files_that_are_no_adapters_of_the_model_are_refused(tmp_path: Path) -> None:
    model, other = make_model("llama"), make_model("qwen3")
    checkpoint = open_checkpoint(write_gguf(model, tmp_path / "model.gguf"))
    pairs = pairs_of(other, ("up_proj",))
    with pytest.raises(CheckpointError, match="adapts 'qwen3', but this model is 'llama'"):
        load_adapter(write_file(tmp_path / "other.gguf", other, pairs), checkpoint)
    with pytest.raises(CheckpointError, match="is no LoRA adapter"):
        load_adapter(write_file(tmp_path / "none.gguf", model, pairs, kind="model"), checkpoint)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(write_file(tmp_path / "whole.gguf", model, pairs).read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        load_adapter(cut, checkpoint)
