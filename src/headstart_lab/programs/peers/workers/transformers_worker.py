"""transformers in bf16: plain, prompt lookup, and assisted by ten of the target's own layers."""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from protocol import Decode, OnToken, serve
from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig
from transformers.generation.streamers import BaseStreamer

LOOKUP_TOKENS = 5


class FirstToken(BaseStreamer):
    """Tells when the first token is out; the first call hands over the prompt."""

    def __init__(self, on_token: OnToken) -> None:
        self._on_token = on_token
        self._calls = 0

    def put(self, value: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self._on_token()

    def end(self) -> None: ...


def load(options: argparse.Namespace) -> dict[str, Decode]:
    torch.set_num_threads(options.threads)
    path = options.model
    where: dict[str, Any] = {}
    directory = path
    if path.suffix == ".gguf":
        # As plain bf16 weights: packed ones need kernels from the hub.
        where = {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}
        directory = path.parent
    model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.bfloat16, **where).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def mode(**settings: Any) -> Decode:
        def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
            ids = torch.tensor([prompt])
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                streamer=FirstToken(on_token),
                **settings,
            )
            return output[0, len(prompt) :].tolist()

        return decode

    return {
        "plain": mode(),
        f"prompt lookup {LOOKUP_TOKENS}": mode(prompt_lookup_num_tokens=LOOKUP_TOKENS),
        "assisted": mode(assistant_model=assistant(model)),
    }


def assistant(model: Any) -> Any:
    """A third of the target's layers, evenly spread: what ``draft-model`` drafts with if no model is named."""
    small = copy.deepcopy(model)
    available = model.config.num_hidden_layers
    count = max(2, round(available / 3))
    chosen = [round(i * (available - 1) / (count - 1)) for i in range(count)]
    small.model.layers = torch.nn.ModuleList(small.model.layers[i] for i in chosen)
    for place, layer in enumerate(small.model.layers):
        layer.self_attn.layer_idx = place
    small.config.num_hidden_layers = count
    if getattr(small.config, "layer_types", None):
        small.config.layer_types = [model.config.layer_types[i] for i in chosen]
    small.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return small


if __name__ == "__main__":
    serve(load, ["transformers", "torch"], "the GGUF in bf16")
