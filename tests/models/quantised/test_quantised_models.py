"""Whole folders with quantised matrices: decoded as the model with the values that they define."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from multi_token_models import NATIVE_SIZES, write_modules
from packers import awq, gptq, named, packed, write
from safetensors.torch import load_file
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model, write_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from headstart import LLM, SamplingParams
from headstart.backends.native.backend import NativeBackend
from headstart.errors import CheckpointError
from headstart.loading.model import load_model
from headstart.loading.reading import USUAL, Reading
from headstart.passes.runner import ModelRunner, Span

FLOAT4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
TOKENS = [65, 66, 67, 120, 99, 100]


def quantised(directory: Path, method: str, mixed: bool = False) -> tuple[Path, Path]:
    """A tiny model whose layers are quantised, and the same with the values that they define. ``mixed``: in groups that
    mix inputs, beside biases of zeros, as AutoGPTQ writes them."""
    plain, other = directory / "plain", directory / method
    for path in (plain, other):
        path.mkdir()
        write_tiny_model(path, head_dim=32, layers=2)
    tensors = load_file(plain / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    stored: dict[str, Tensor] = {}
    for name, tensor in list(tensors.items()):
        if "_proj" not in name:
            stored[name] = tensor
            continue
        outputs, inputs = tensor.shape
        group = 16 if inputs % 32 else 32
        if method == "gptq":
            parts, tensors[name] = gptq(generator, outputs, inputs, 4, group, mixed, size=0.2)
            if mixed:
                parts["bias"] = torch.zeros(outputs, dtype=torch.float16)
        elif method == "awq":
            parts, tensors[name] = awq(generator, outputs, inputs, group, size=0.2)
        else:
            parts, tensors[name] = packed(generator, outputs, inputs, 4, group, False, size=0.2)
        stored |= named(name.removesuffix(".weight"), parts)
    write(plain, tensors)
    config = json.loads((other / "config.json").read_text())
    settings: dict[str, Any] = {"quant_method": method, "bits": 4, "version": "gemm"}
    if method == "compressed-tensors":
        settings = {"quant_method": method, "format": "pack-quantized"}
    write(other, stored, config | {"quantization_config": settings})
    return other, plain


def logits_of(directory: Path, precision: str = "fp32", reading: Reading = USUAL) -> Tensor:
    runner = ModelRunner(load_model(directory, precision, reading=reading).backend, 64)
    runner.cache.add(0)
    with runner.cache.reserve({0: len(TOKENS)}):
        return runner.forward([Span.chain(0, TOKENS)])[0].logits


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_a_quantised_folder_is_the_model_with_its_values(tmp_path: Path, method: str) -> None:
    folder, plain = quantised(tmp_path, method)
    reference = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.inference_mode():
        wanted = reference(torch.tensor([TOKENS])).logits[0]
    for reading in (USUAL, Reading("transformers")):
        torch.testing.assert_close(logits_of(folder, reading=reading), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["headstart", "transformers"])
def test_groups_that_mix_inputs_are_read_exactly(tmp_path: Path, backend: Literal["headstart", "transformers"]) -> None:
    folder, plain = quantised(tmp_path, "gptq", mixed=True)
    assert torch.equal(logits_of(folder, reading=Reading(backend)), logits_of(plain, reading=Reading(backend)))


def test_biases_that_add_something_are_not_left_out(tmp_path: Path) -> None:
    folder, _ = quantised(tmp_path, "gptq", mixed=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.bias"][3] = 0.5
    write(folder, tensors)
    with pytest.raises(CheckpointError, match=r"has surplus model.layers.1.mlp.up_proj.bias \[48\];"):
        load_model(folder, "fp32")


@pytest.mark.parametrize(("method", "mixed"), [("gptq", False), ("gptq", True), ("compressed-tensors", False)])
def test_no_precision_that_is_chosen_by_itself_is_further_from_it_than_bf16(
    tmp_path: Path, method: str, mixed: bool
) -> None:
    """And 4-bit groups are kept in 4 bits, where the native pass has blocks of them."""
    folder, plain = quantised(tmp_path, method, mixed)
    backend = load_model(folder).backend
    if not isinstance(backend, NativeBackend):
        pytest.skip("the native pass does not run here")
    assert backend.rounding.packed <= backend.rounding.in_bf16
    exact = logits_of(plain)
    chosen, bf16 = logits_of(folder, "auto"), logits_of(folder, "bf16")
    assert float((chosen - exact).norm()) <= 1.05 * float((bf16 - exact).norm())


def test_it_says_the_same_with_a_drafter(tmp_path: Path) -> None:
    folder, _ = quantised(tmp_path, "gptq")
    model = load_model(folder)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    said = []
    for drafter in ("none", "suffix"):
        with LLM(model, drafter, max_context=64) as llm:
            said.append(llm.generate([TOKENS], params)[0].outputs[0].token_ids)
    assert said[0] == said[1]


def mimo(directory: Path, block: tuple[int, int] = (96, 128)) -> tuple[Path, Path]:
    """A tiny MiMo-V2.5 with a module as it is published, attention in shards, and the same in one piece."""
    plain, folder = directory / "plain", directory / "published"
    for path in (plain, folder):
        path.mkdir()
        write_tokenizer(path)
    write_modules("mimo_v2_flash", plain, **NATIVE_SIZES["mimo_v2_flash"])
    tensors = load_file(plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    shards, generator = config["num_key_value_heads"], torch.Generator().manual_seed(3)
    assert shards > 1
    stored: dict[str, Tensor] = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        if not name.endswith(("k_proj.weight", "v_proj.weight", "o_proj.weight", "eh_proj.weight")):
            parts = [name] if "q_proj" not in name else [name.replace("q_proj", f"{each}_proj") for each in "qkv"]
            split = [tensors[part].chunk(shards if len(parts) > 1 else 1) for part in parts]
            numbers, scales, values = [], [], []
            for pieces in zip(*split, strict=True):
                own, scale, value = in_blocks(torch.cat(pieces), block, generator)
                numbers, scales, values = [*numbers, own], [*scales, scale], [*values, value]
            whole = name.replace("q_proj", "qkv_proj")
            stored[whole], stored[f"{whole}_scale_inv"] = torch.cat(numbers), torch.cat(scales)
            sizes = [len(pieces[0]) for pieces in split]
            for part, *pieces in zip(parts, *(value.split(sizes) for value in values), strict=True):
                tensors[part] = torch.cat(pieces)
    write(plain, tensors, config)
    others = {name: tensor for name, tensor in tensors.items() if not name.endswith("_proj.weight")}
    kept = {name: tensor for name, tensor in tensors.items() if name.endswith(("o_proj.weight", "eh_proj.weight"))}
    towers = {f"{each}.0.weight": torch.ones(2, 2) for each in ("visual", "audio_encoder", "speech_embeddings")}
    config |= {"model_type": "mimo_v2", "attention_projection_layout": "fused_qkv"}
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(block)}
    write(folder, {**others, **kept, **towers, **stored}, config)
    return folder, plain


def in_blocks(matrix: Tensor, block: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, scales and what they stand for."""
    (rows, columns), (outputs, inputs) = block, matrix.shape
    scales = 0.5 + torch.rand(-(-outputs // rows), -(-inputs // columns), generator=generator)
    spread = torch.empty_like(matrix)
    for i in range(outputs):
        for j in range(inputs):
            spread[i, j] = scales[i // rows, j // columns]
    numbers = (matrix / spread).to(torch.float8_e4m3fn)
    return numbers, scales, numbers.float() * spread


@pytest.mark.parametrize("precision", thorough_but(["bf16"], ["fp32", "bf16", "int8"]))
def test_attention_of_mimo_in_shards(tmp_path: Path, precision: str) -> None:
    folder, plain = mimo(tmp_path)
    assert torch.equal(logits_of(folder, precision), logits_of(plain, precision))
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    model = load_model(folder, precision)
    chain = {"drafter_options": {"min_probability": 0.0}}
    llms = LLM(model, "none"), LLM(model, "mtp", **chain), LLM(model, "auto")
    wanted, *found = (llm.generate([TOKENS], params)[0].outputs[0] for llm in llms)
    assert [each.token_ids for each in found] == [wanted.token_ids] * 2
    assert found[0].stats.drafted > 0


_IN_8_BITS = re.compile(r".*\.(attn\.(indexer\.)?w(q_a|q_b|kv|o_a|o_b)|ffn\.shared_experts\.w[123]|[eh]_proj)\.weight")


def deepseek_v4(directory: Path) -> tuple[Path, Path]:
    """A tiny DeepSeek-V4 with a module as it was released, its experts in 4 bits and most others in 8, and the same
    with the values that they define, described as transformers does."""
    plain, folder = directory / "plain", directory / "released"
    for path in (plain, folder):
        path.mkdir()
        write_tokenizer(path)
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    sizes = {**NATIVE_SIZES["deepseek_v4"], "moe_intermediate_size": 64, "compress_rates": rates}
    write_modules("deepseek_v4", plain, **sizes)
    tensors, stored = load_file(plain / "model.safetensors"), dict[str, Tensor]()
    config, generator = json.loads((plain / "config.json").read_text()), torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        experts = ".experts." in name
        if not experts and not _IN_8_BITS.fullmatch(name):
            stored[name] = tensor
            continue
        rows = 1 if experts else 32
        exponents = torch.randint(122, 126, (-(-len(tensor) // rows), -(-tensor.shape[1] // 32)), generator=generator)
        spread = (2.0 ** (exponents - 127)).repeat_interleave(rows, 0).repeat_interleave(32, 1)
        spread = spread[: len(tensor), : tensor.shape[1]]
        if experts:
            codes = (tensor / spread)[..., None].sub(FLOAT4).abs().argmin(-1)
            stored[name] = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
            tensors[name] = FLOAT4[codes] * spread
        else:
            stored[name] = (tensor / spread).to(torch.float8_e4m3fn)
            tensors[name] = stored[name].float() * spread
        stored[name.replace(".weight", ".scale")] = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
    write(plain, tensors, config)
    kinds, turned = config.pop("layer_types"), config.pop("rope_parameters")
    config["compress_ratios"] = [*(rates[kind] for kind in kinds), 0]
    config["num_hash_layers"] = config.pop("mlp_layer_types").count("hash_moe")
    config["qk_rope_head_dim"] = int(config["head_dim"] * config.pop("partial_rotary_factor"))
    config |= {"rope_theta": turned["main"]["rope_theta"], "compress_rope_theta": turned["compress"]["rope_theta"]}
    scaling = {key: turned["compress"][key] for key in ("factor", "original_max_position_embeddings")}
    config |= {"rope_scaling": {"type": "yarn", **scaling}, "expert_dtype": "fp4"}
    settings = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}
    del config["compress_rates"]
    write(folder, stored, config | {"quantization_config": settings | {"weight_block_size": [32, 32]}})
    return folder, plain


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "auto"])
def test_deepseek_v4_as_it_was_released(tmp_path: Path, precision: str) -> None:
    folder, plain = deepseek_v4(tmp_path)
    model, prompts = load_model(folder, precision), [TOKENS, [*range(40, 150)]]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    llms = [LLM(model, "none"), LLM(model, "mtp", drafter_options={"min_probability": 0.0}), LLM(model, "auto")]
    if precision != "auto":  # which computes the numbers as they are stored
        assert torch.equal(logits_of(folder, precision), logits_of(plain, precision))
        llms.append(LLM(load_model(plain, precision), "mtp"))
    outputs = [[each.outputs[0] for each in llm.generate(prompts, params)] for llm in llms]
    assert all([each.token_ids for each in of] == [each.token_ids for each in outputs[0]] for of in outputs)
    assert all(each.stats.drafted > 0 for each in outputs[1])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("head_dim", 48, "fit the heads of config.json in no known way"),
        ("num_key_value_heads", 0, "fit the heads of config.json in no known way"),
        ("num_attention_heads", None, "fit the heads of config.json in no known way"),
        ("num_key_value_heads", 1, "has weight_scale_inv of shape"),
    ],
)
def test_shards_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: object, said: str) -> None:
    folder, _ = mimo(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(CheckpointError, match=said):
        load_model(folder, "fp32")
