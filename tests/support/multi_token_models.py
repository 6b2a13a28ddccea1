"""Tiny checkpoints with multi-token modules, and what the modules say, by transformers' own decoder layers.

A model with a few layers too many is written; then its description forgets them, and the tensors that make modules of
them are added under the names of their family.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
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
}
"""Family -> what its modules' layers are called (n: after the model's, k: from 0), and the four parts around them."""


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

    def states(self, tokens: Sequence[int], hidden: Tensor) -> list[Tensor]:
        """[module][row, hidden] after each module's last norm, without any cache.

        Row i of module k (from 0) reads token i + k + 1, and row i of the module before; of the first, ``hidden`` i.
        """
        made: list[Tensor] = []
        for k, parts in enumerate(self.parts):
            before = made[-1] if made else hidden
            before = before[: len(tokens) - 1 - k]
            embeddings = self.model.get_input_embeddings()(torch.tensor(list(tokens[k + 1 : k + 1 + len(before)])))
            normed = [self._norm(parts["embedding"], embeddings), self._norm(parts["hidden"], before)]
            x = torch.cat(normed[::-1] if self.hidden_first else normed, dim=-1) @ parts["projection"].T
            made.append(self._norm(parts["final"], self._layer(k, x)))
        return made

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(states)
        return logits

    def _layer(self, k: int, x: Tensor) -> Tensor:
        decoder = self.model.get_decoder()
        positions = torch.arange(len(x))[None]
        kinds = getattr(self.model.config, "layer_types", None) if self.model.config.model_type == "mellum" else None
        more = {} if kinds is None else {"layer_type": kinds[self.num_layers + k]}
        seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        if kinds is not None and kinds[self.num_layers + k] == "sliding_attention":
            seen = seen.triu(1 - self.model.config.sliding_window)
        mask = torch.zeros(1, 1, len(x), len(x)).masked_fill(~seen, -torch.inf)
        output = decoder.layers[self.num_layers + k](
            x[None],
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=decoder.rotary_emb(x[None], position_ids=positions, **more),
        )
        found: Tensor = output[0] if isinstance(output, tuple) else output
        return found[0]

    def _norm(self, weight: Tensor, x: Tensor) -> Tensor:
        # Qwen3-Next stores its weights less 1.
        weight = weight + (self.model.config.model_type == "qwen3_next")
        return nn.functional.rms_norm(x, weight.shape, weight, self.model.config.rms_norm_eps)


def write_modules(family: str, directory: Path, modules: int = 1, layers: int = 3, **sizes: object) -> Reference:
    """A tiny checkpoint of ``family`` with modules, in ``directory``; ``sizes`` in place of its own."""
    settings: dict[str, object] = {**sizes, "num_hidden_layers": layers + modules}
    if family == "mellum":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        settings["layer_types"] = kinds[:layers] + ["sliding_attention"] * modules
    if family == "qwen3_next":
        kinds = ["linear_attention", "full_attention", "linear_attention"]
        settings["layer_types"] = kinds[:layers] + ["full_attention"] * modules
    model = make_model("qwen2" if family == "mimo" else family, **settings)
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    layer, *around = NAMES[family]
    generator = torch.Generator().manual_seed(3)
    hidden = model.config.hidden_size
    reference = Reference(model, layers, [], family == "mimo")
    for k in range(modules):
        own = layer.format(n=layers + k, k=k)
        old = f"model.layers.{layers + k}."
        for name in [name for name in tensors if name.startswith(old)]:
            tensors[own + name.removeprefix(old)] = tensors.pop(name)
        shapes = {"embedding": (hidden,), "hidden": (hidden,), "projection": (hidden, 2 * hidden), "final": (hidden,)}
        parts = {}
        for (part, shape), name in zip(shapes.items(), around, strict=True):
            random = torch.randn(shape, generator=generator)
            whole = f"{name}.weight" if name.startswith("mtp.") else f"{own}{name}.weight"
            parts[part] = tensors.setdefault(
                whole, random * (2 * hidden) ** -0.5 if len(shape) > 1 else 1 + random * 0.2
            )
        reference.parts.append(parts)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["num_hidden_layers"] = layers
    for key in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        if isinstance(config.get(key), list):
            config[key] = config[key][:layers]
    if family == "mimo":
        config["model_type"] = "mimo"
    config["num_nextn_predict_layers"] = modules
    (directory / "config.json").write_text(json.dumps(config))
    return reference


def write_tiny_mimo(directory: Path, seed: int = 0) -> Path:
    """The tiny chat model as a MiMo with one module."""
    write_tiny_model(directory, seed=seed, layers=4)
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
