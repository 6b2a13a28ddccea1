"""Tiny checkpoints with multi-token modules, and what the modules say, by transformers' own decoder layers.

A model with a few layers too many is written; then its description forgets them, and the tensors that make modules of
them are added under the names of their family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bailing_models import as_bailing, rename
from more_families import MORE_FAMILIES
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_model
from tiny_models import make_model
from torch import Tensor, nn
from transformers import PreTrainedModel

NAMES = {
    "deepseek_v3": ("model.layers.{n}.", "enorm", "hnorm", "eh_proj", "shared_head.norm"),
    "glm4_moe": ("model.layers.{n}.", "enorm", "hnorm", "eh_proj", "shared_head.norm"),
    "mimo": ("model.mtp_layers.{k}.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    "qwen3_next": ("mtp.layers.{k}.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"),
    "mellum": ("mtp.layers.{k}.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"),
    "nemotron_h": ("mtp.layers.{k}.", "enorm", "hnorm", "eh_proj", "mtp.layers.1.final_layernorm"),
}
NAMES |= dict.fromkeys(("glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "cohere2_moe"), NAMES["deepseek_v3"])
NAMES["bailing_moe"] = NAMES["deepseek_v3"]  # renamed afterwards
NAMES["hy_v3"] = ("model.layers.{n}.", "enorm", "hnorm", "eh_proj", "final_layernorm")
NAMES["bailing_hybrid"] = NAMES["hy_v3"]
NAMES["longcat_flash"] = ("model.mtp.layers.{k}.", "enorm.m", "hnorm.m", "eh_proj", "model.mtp.norm")
NAMES["deepseek_v4"] = ("mtp.{k}.", "enorm", "hnorm", "eh_proj", "norm")
NAMES["hy_v4"] = ("model.mtp_layers.{k}.", *NAMES["hy_v3"][1:])
NAMES["glm5_next"] = ("model.language_model.layers.{n}.", *NAMES["deepseek_v3"][1:])
NAMES["ernie4_5_moe"] = (
    *("model.mtp_block.{k}.", "model.mtp_emb_norm.{k}", "model.mtp_hidden_norm.{k}", "model.mtp_linear_proj.{k}"),
    "model.norm",
)
NAMES["mimo_v2_flash"] = ("model.mtp.layers.{k}.", "enorm", "hnorm", "eh_proj", "final_layernorm")
NAMES["step3p7"] = ("model.layers.{n}.", "enorm", "hnorm", "eh_proj", "transformer.shared_head.norm")
NAMES |= dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "exaone_moe", "exaone4_5"), NAMES["mellum"])
_SLIDING = ("mellum", "exaone_moe", "exaone4_5", "mimo_v2_flash", "step3p7")
_SEEING = ("exaone4_5", "step3p7", "glm5_next")
_TWO_ROTATIONS = ("mellum", "mimo_v2_flash", "step3p7")
_FIRST_DENSE = (
    "glm4_moe_lite",
    "bailing_hybrid",
    "glm5_next",
    "deepseek_v32",
    "glm_moe_dsa",
    "hy_v3",
    "cohere2_moe",
    "hy_v4",
)
_HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Family -> what its modules' layers are called (n: after the model's, k: from 0), and the four parts around them."""
NATIVE_SIZES: dict[str, dict[str, object]] = {
    "deepseek_v3": {"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96}
    | {"q_lora_rank": 96, "num_key_value_heads": 4},
    **{each: {"head_dim": 32} for each in ("glm4_moe", "bailing_moe", "hy_v3", "cohere2_moe", "ernie4_5_moe")},
    **{each: {"head_dim": 32} for each in ("exaone_moe", "exaone4_5")},
    "nemotron_h": {"head_dim": 32, "n_group": 1, "topk_group": 1},
    "mimo": {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1},
    "mellum": {"head_dim": 32},
    "mimo_v2_flash": {"head_dim": 64, "v_head_dim": 32},
    "step3p7": {"head_dim": 32},
    **{each: {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32} for each in _HYBRID},
}
NATIVE_SIZES["bailing_hybrid"] = {"linear_head_dim": 32} | {
    size: value for size, value in NATIVE_SIZES["deepseek_v3"].items() if size != "q_lora_rank"
}
NATIVE_SIZES["glm5_next"] = {"linear_head_dim": 32, **NATIVE_SIZES["deepseek_v3"], "qk_rope_head_dim": 0}
NATIVE_SIZES |= dict.fromkeys(("glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "hy_v4"), NATIVE_SIZES["deepseek_v3"])
NATIVE_SIZES["deepseek_v4"] = {"q_lora_rank": 32, "o_lora_rank": 32, "index_head_dim": 32}
NATIVE_SIZES["longcat_flash"] = {"head_dim": 32, **NATIVE_SIZES["deepseek_v3"]}
"""Family -> sizes that the native pass takes."""


def _causal(rows: int) -> Tensor:
    return torch.zeros(1, 1, rows, rows).masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)


@dataclass
class Reference:
    """Modules in plain PyTorch."""

    model: PreTrainedModel
    """With the modules' layers behind its own."""
    num_layers: int
    """Of its own."""
    parts: list[dict[str, Tensor]]
    """[module] weights of its norms and its projection."""
    hidden_first: bool
    feeds_unnormed: bool = False

    @property
    def width(self) -> int:
        """Of what modules read and feed: of DeepSeek-V4's all streams."""
        config = self.model.config.get_text_config()
        return int(config.hidden_size) * (config.hc_mult if config.model_type == "deepseek_v4" else 1)

    def states(self, tokens: Sequence[int], hidden: Tensor) -> list[Tensor]:
        """[module][row, hidden] what each module feeds to the next, without any cache.

        Row i of module k (from 0) reads token i + k + 1, and row i of the module before; of the first, ``hidden`` i.
        """
        made: list[Tensor] = []
        for k, parts in enumerate(self.parts):
            before = made[-1] if made else hidden
            before = before[: len(tokens) - 1 - k]
            embeddings = self.model.get_input_embeddings()(torch.tensor(list(tokens[k + 1 : k + 1 + len(before)])))
            if self.width > embeddings.shape[-1]:
                before = before.reshape(len(before), -1, embeddings.shape[-1])
                embeddings = embeddings[:, None].expand(before.shape)
            normed = [self._norm(parts["embedding"], embeddings), self._norm(parts["hidden"], before)]
            x = torch.cat(normed[::-1] if self.hidden_first else normed, dim=-1) @ parts["projection"].T
            x = self._layer(k, x)
            made.append(x if self.feeds_unnormed else self._norm(parts["final"], x))
        return made

    def logits(self, states: Tensor, k: int = 0) -> Tensor:
        """After what module k feeds."""
        own = self.parts[min(k, len(self.parts) - 1)]
        if self.width > len(own["final"]):
            head = deepcopy(self.model.get_decoder().hc_head)
            if "fn" in own:
                head.hc_fn.data, head.hc_base.data, head.hc_scale.data = own["fn"], own["base"], own["scale"]
            states = head(states.view(1, 1, -1, len(own["final"])))[0, 0]
        states = self._norm(own["final"], states) if self.feeds_unnormed else states
        return nn.functional.linear(states, own.get("head", self.model.get_output_embeddings().weight))

    def _layer(self, k: int, x: Tensor) -> Tensor:
        decoder = self.model.get_decoder()
        positions = torch.arange(len(x))[None]
        kind, config = self.model.config.model_type, self.model.config.get_text_config()
        if kind == "nemotron_h":
            return self._two_parts(x)
        if kind == "longcat_flash":
            return self._second_half(decoder.layers[self.num_layers // 2 + k], x[None])
        if kind == "deepseek_v4":
            turned = {"main": decoder.rotary_emb(x, position_ids=positions, layer_type="main")}
            near = _causal(len(x)).masked_fill(
                torch.ones(len(x), len(x)).tril(-config.sliding_window).bool(), -torch.inf
            )
            layer = decoder.layers[self.num_layers + k]
            made: Tensor = layer(x[None], position_embeddings=turned, position_ids=positions, attention_mask=near)
            return made[0].flatten(1)
        if kind in ("glm5_next", "hy_v4"):
            return self._unconnected(decoder.layers[self.num_layers + k], x[None])
        kinds = config.layer_types if kind in _SLIDING else None
        more = {"layer_type": kinds[self.num_layers + k]} if kind in _TWO_ROTATIONS and kinds is not None else {}
        seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        if kinds is not None and kinds[self.num_layers + k] == "sliding_attention":
            seen = seen.triu(1 - config.sliding_window)
        mask = torch.zeros(1, 1, len(x), len(x)).masked_fill(~seen, -torch.inf)
        output = decoder.layers[self.num_layers + k](
            x[None],
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=decoder.rotary_emb(x[None], position_ids=positions, **more),
        )
        found: Tensor = output[0] if isinstance(output, tuple) else output
        return found[0]

    def _second_half(self, layer: Any, x: Tensor) -> Tensor:
        """That of a pair, without what its experts give."""
        turned = self.model.get_decoder().rotary_emb(x, position_ids=torch.arange(x.shape[1])[None])
        normed = layer.input_layernorm[1](x)
        seen, *_ = layer.self_attn[1](normed, attention_mask=_causal(x.shape[1]), position_embeddings=turned)
        x = x + seen
        found: Tensor = x + layer.mlps[1](layer.post_attention_layernorm[1](x))
        return found[0]

    def _unconnected(self, layer: Any, x: Tensor) -> Tensor:
        """A layer around one stream."""
        more: dict[str, Any] = {"attention_mask": torch.ones(x.shape[:2], dtype=torch.bool)}
        if self.model.config.model_type == "hy_v4":
            turned = self.model.get_decoder().rotary_emb(x, position_ids=torch.arange(x.shape[1])[None])
            more = {"attention_mask": _causal(x.shape[1]), "position_embeddings": turned}
        seen, *_ = layer.self_attn(layer.input_layernorm(x), **more)
        x = x + seen
        found: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return found[0]

    def _two_parts(self, x: Tensor) -> Tensor:
        """Nemotron-H's layers have one part each."""
        mask = _causal(len(x))
        attention, experts = self.model.get_decoder().layers[self.num_layers :]
        output = attention(x[None], attention_mask=mask)
        output = experts(output[0] if isinstance(output, tuple) else output)
        found: Tensor = output[0] if isinstance(output, tuple) else output
        return found[0]

    def _norm(self, weight: Tensor, x: Tensor) -> Tensor:
        # Qwen3-Next and those after it store their weights less 1, as Step does.
        config = self.model.config.get_text_config()
        weight = weight + (config.model_type in (*_HYBRID, "step3p5"))
        eps = config.layer_norm_epsilon if config.model_type == "nemotron_h" else config.rms_norm_eps
        return nn.functional.rms_norm(x, weight.shape, weight, eps)


def _halves(tensors: Mapping[str, Tensor], pairs: int) -> Iterator[tuple[str, Tensor]]:
    """Pairs of LongCat-Flash beyond the first ones as its modules have them: the second half, without experts."""
    for name, tensor in tensors.items():
        place = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if place is None or int(place[1]) < pairs:
            yield name, tensor
        elif part := re.fullmatch(r"(self_attn|mlps|input_layernorm|post_attention_layernorm)\.1\.(.*)", place[2]):
            kind = part[1].replace("mlps", "transformer_layer.mlp")
            yield f"model.mtp.layers.{int(place[1]) - pairs}.{kind}.{part[2]}", tensor


def _released(name: str) -> str:
    """Names of HY-V4 as they were published, which transformers does not get back when it saves a model."""
    name = re.sub(r"\.hc_pre\.hc_(attn|mlp)_layer\.", r".hc_\1_layer.hc_pre.", name).replace(
        ".hc_pre.hc_head.", ".hc_head."
    )
    return re.sub(r"\.(mlp|shared_experts)\.linear_gate\.", r".\1.gate_proj.", name)


def _released_v4(name: str) -> str:
    """The same of DeepSeek-V4."""
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
    return name.replace(".attn.norm.", ".attn.kv_norm.")


def write_modules(family: str, directory: Path, modules: int = 1, layers: int = 3, **sizes: object) -> Reference:
    """A tiny checkpoint of ``family`` with modules, in ``directory``; ``sizes`` in place of its own."""
    settings: dict[str, object] = {**sizes, "num_hidden_layers": layers + modules}
    if family == "longcat_flash":
        layers = 4  # in pairs; a module is half of one
        settings["num_hidden_layers"] = layers + 2 * modules
    if family in _SLIDING:
        kinds = ["full_attention" if family == "mimo_v2_flash" else "sliding_attention", "full_attention"]
        kinds.append("sliding_attention")
        settings["layer_types"] = kinds[:layers] + ["sliding_attention"] * modules
    if family in ("exaone_moe", "mimo_v2_flash", "step3p7"):
        settings["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1) + ["dense"] * modules
    if family in _FIRST_DENSE:
        settings["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1 + modules)
    if family == "cohere2_moe":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        settings["layer_types"] = kinds[:layers] + ["sliding_attention"] * modules
    if family in ("glm_moe_dsa", "hy_v4"):
        settings["indexer_types"] = ["full", "shared", "full"][:layers] + ["full"] * modules
    if family == "glm5_next":
        kinds = ["linear_attention", "indexed_attention", "linear_attention"]
        settings["layer_types"] = kinds[:layers] + ["indexed_attention"] * modules
        settings["indexer_types"] = ["full"] * (layers + modules)
    if family == "deepseek_v4":
        kinds = ["compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
        settings["layer_types"] = kinds[:layers] + ["sliding_attention"] * modules
        settings["mlp_layer_types"] = ["hash_moe"] + ["moe"] * (layers - 1 + modules)
    if family == "ernie4_5_moe":
        settings["moe_layer_end_index"] = layers - 1
    if family == "nemotron_h":
        kinds = ["linear_attention", "moe", "full_attention"]
        settings["layers_block_type"] = [*kinds, "full_attention", "moe"]
        del settings["num_hidden_layers"]
    if family in (*_HYBRID, "bailing_hybrid"):
        kinds = ["linear_attention", "full_attention", "linear_attention"]
        settings["layer_types"] = kinds[:layers] + ["full_attention"] * modules
    like = {"mimo": "qwen2", "bailing_moe": "glm4_moe"}.get(family, family)
    if family in _SEEING:
        text = MORE_FAMILIES[family][1]["text_config"]
        limits = {key: [*text[key][:layers], *[None] * modules] for key in text if key.startswith("swiglu_limits")}
        settings = {"text_config": {**text, **limits, **settings}}
    model = make_model(like, **settings)
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    layer, *around = NAMES[family]
    generator = torch.Generator().manual_seed(3)
    hidden = model.config.get_text_config().hidden_size
    reference = Reference(model, layers, [], family == "mimo", family in ("step3p7", "deepseek_v4"))
    if family == "longcat_flash":
        tensors = dict(_halves(tensors, layers // 2))
    for k in range(modules):
        own = layer.format(n=layers + k, k=k)
        for part in range(2 if family == "nemotron_h" else 1):
            moved = own if part == 0 else layer.format(k=1)
            for before in ("model.", "backbone.", "model.language_model."):
                old = f"{before}layers.{layers + k + part}."
                for name in [name for name in tensors if name.startswith(old)]:
                    tensors[moved + name.removeprefix(old)] = tensors.pop(name)
        shapes = {"embedding": (hidden,), "hidden": (hidden,), "projection": (hidden, 2 * hidden), "final": (hidden,)}
        parts = {}
        for (part, shape), name in zip(shapes.items(), around, strict=True):
            random = torch.randn(shape, generator=generator)
            apart = name.startswith(("mtp.", "model."))
            whole = f"{name.format(k=k)}.weight" if apart else f"{own}{name}.weight"
            made = random * (2 * hidden) ** -0.5 if len(shape) > 1 else 1 + random * 0.2
            parts[part] = tensors.setdefault(whole, made)
        if family == "step3p7":
            head = torch.randn(model.get_input_embeddings().weight.shape, generator=generator) * hidden**-0.5
            parts["head"] = tensors[f"{own}transformer.shared_head.output.weight"] = head
        if family == "deepseek_v4":
            halves = zip("eh", tensors.pop(f"{own}eh_proj.weight").chunk(2, dim=1), strict=True)
            tensors |= {f"{own}{part}_proj.weight": half.contiguous() for part, half in halves}
            for part in ("fn", "base", "scale"):
                ours = tensors[f"model.hc_head.hc_{part}"]
                made = ours + 0.2 * torch.randn(ours.shape, generator=generator)
                parts[part] = tensors[f"{own}hc_head_{part}"] = made
        reference.parts.append(parts)
        if family == "mimo_v2_flash":
            tensors[f"{own}pre_mlp_layernorm.weight"] = tensors.pop(f"{own}post_attention_layernorm.weight")
    modules_of = tuple(layer.format(n=layers + k, k=k) + "hc_" for k in range(modules))
    if family == "deepseek_v4":
        tensors = {_released_v4(name): tensor for name, tensor in tensors.items()}
    else:
        tensors = {_released(name): tensor for name, tensor in tensors.items() if not name.startswith(modules_of)}
    save_file(tensors, path, metadata={"format": "pt"})
    whole_config = json.loads((directory / "config.json").read_text())
    config = whole_config["text_config"] if family in _SEEING else whole_config
    config["num_layers" if family == "longcat_flash" else "num_hidden_layers"] = (
        layers // 2 if family == "longcat_flash" else layers
    )
    for key in ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type", "indexer_types"):
        if isinstance(config.get(key), list) and family != "step3p7":  # whose lists have those of modules, too
            config[key] = config[key][:layers]
    if family == "mimo":
        config["model_type"] = "mimo"
    config["num_nextn_predict_layers"] = modules
    (directory / "config.json").write_text(json.dumps(whole_config))
    if family == "bailing_moe":
        rename(directory)
        as_bailing(model)
    return reference


def write_tiny_mimo(directory: Path, seed: int = 0, head_dim: int = 8) -> Path:
    """The tiny chat model as a MiMo with one module; the native pass computes it with a ``head_dim`` of 32."""
    write_tiny_model(directory, seed=seed, layers=4, head_dim=head_dim)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.startswith("model.layers.3.")]:
        tensors[name.replace("layers.3.", "mtp_layers.0.")] = tensors.pop(name)
    hidden = tensors["model.norm.weight"].shape[0]
    generator = torch.Generator().manual_seed(seed)
    own = "model.mtp_layers.0."
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{own}{name}.weight"] = 1 + 0.1 * torch.randn(hidden, generator=generator)
    tensors[f"{own}input_proj.weight"] = torch.randn(hidden, 2 * hidden, generator=generator) * (2 * hidden) ** -0.5
    save_file(tensors, path, metadata={"format": "pt"})
    config = (directory / "config.json").read_text().replace('"llama"', '"mimo"')
    config = config.replace('"num_hidden_layers": 4', '"num_hidden_layers": 3, "attention_bias": false')
    (directory / "config.json").write_text(config)
    return directory
