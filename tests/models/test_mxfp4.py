"""gpt-oss as it was released: experts in MXFP4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_model, reference_logits

from headstart.backends.torch.backend import TorchBackend
from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from passes import BLOCK_SIZE, Rows, make_pass

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def value(nibble: int, scale: int) -> float:
    """As the specification spells it: sign, two bits of exponent, one of mantissa, times a power of two."""
    return (-1 if nibble & 8 else 1) * E2M1[nibble & 7] * 2.0 ** (scale - 127)


def stood_for(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[expert, out, block, 16] and [expert, out, block] -> [expert, in, out], byte by byte."""
    table = torch.tensor([[value(nibble, 127) for nibble in (byte & 15, byte >> 4)] for byte in range(256)])
    values = table[blocks.long()] * torch.exp2(scales.double() - 127).float()[..., None, None]
    return values.flatten(-3).transpose(1, 2)


def write_folder(directory: Path) -> torch.nn.Module:
    """A folder as it is released, and transformers' model of the numbers that it stands for."""
    model = make_model("gpt_oss", intermediate_size=64)
    model.save_pretrained(directory)
    file = directory / "model.safetensors"
    tensors, state = load_file(file), model.state_dict()
    generator = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 126, blocks.shape[:3], dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name].copy_(stood_for(blocks, scales))
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    return model


def test_a_released_folder_computes_what_its_numbers_stand_for(tmp_path: Path) -> None:
    model = write_folder(tmp_path)
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert max(linear.stored_bits for linear in weights.layers[0].channel.linears if linear.stored_bits < 16) == 4.25
    tokens = [3 + (7 * i) % 200 for i in range(30)]
    blocks = -(-len(tokens) // BLOCK_SIZE)
    backend = TorchBackend(config, weights)
    logits = backend.forward(
        make_pass([Rows(tokens, 0, range(blocks))]), backend.allocate_cache(blocks, BLOCK_SIZE)
    ).logits
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def test_blocks_without_scales_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="down_proj"):
        load_decoder(open_checkpoint(tmp_path), torch.float32)
