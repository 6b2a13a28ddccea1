"""Random tiny Gemma 4 targets and assistants, as transformers writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch
import transformers
from drafting_toys import ToySequence
from model_toys import WithTargetCache
from safetensors.torch import load_file
from tiny_checkpoint import write_tokenizer

from headstart.backends.torch.backend import TorchBackend
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.loading.lending import draft_context
from headstart.loading.model import Model
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import FINAL_TAP, TapStates
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner, Span
from headstart.sampling.params import SamplingParams

WINDOW, HIDDEN = 8, 64
_ASIDE = 1 << 20
"""Id of a sequence that nobody drafts for."""
TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": HIDDEN,
    "intermediate_size": 80,
    "num_hidden_layers": len(TYPES),
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "max_position_embeddings": 512,
    "sliding_window": WINDOW,
    "layer_types": TYPES,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
ASSISTANT = {
    **SIZES,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 2,
}


def shaken(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Random weights that tell every input apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else noise * 1.5 * parameter.shape[-1] ** -0.5)
            if "post_" in name and parameter.dim() == 1:
                parameter.mul_(0.3)  # what layers add, beside what they read
    return model.eval()


def write_target(directory: Path, seed: int = 0, **changes: object) -> Path:
    """A Gemma 4 of five layers, the last two of which read others' keys."""
    directory.mkdir(parents=True, exist_ok=True)
    config = transformers.Gemma4TextConfig(**{**SIZES, "tie_word_embeddings": False, **changes})
    model = shaken(transformers.Gemma4ForCausalLM(config), seed)
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        # Mostly, each token has one that follows it.
        model.lm_head.weight.copy_(model.model.embed_tokens.weight[order])
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@contextmanager
def all_layers_read() -> Iterator[None]:
    """transformers 5.23 refuses to build a model whose layers all read others' keys: here it is told that they do."""
    all_read = property(lambda self: ["reuse"] * self.num_hidden_layers)
    with patch.object(transformers.Gemma4TextConfig, "kv_sharing_modes", all_read):
        yield


def write_assistant(
    directory: Path,
    target: Path,
    clusters: int = 0,
    backbone: int = SIZES["hidden_size"],
    seed: int = 1,
    **changes: Any,
) -> Path:
    """An assistant of two layers that knows what mostly follows each of a target's tokens.

    ``clusters``: of its output head, some of which are read at once; ``changes``: of sizes, which make it ignorant.
    """
    directory.mkdir(parents=True, exist_ok=True)
    text = transformers.Gemma4TextConfig(**{**ASSISTANT, **changes})
    config = transformers.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=backbone,
        use_ordered_embeddings=bool(clusters),
        num_centroids=clusters or 2048,
        centroid_intermediate_top_k=5,
    )
    with all_layers_read():
        model = shaken(transformers.Gemma4AssistantForCausalLM(config), seed)
    if not changes and backbone == text.hidden_size:
        head = load_file(target / "model.safetensors")["lm_head.weight"]
        with torch.no_grad():
            model.model.embed_tokens.weight.copy_(head)
            model.pre_projection.weight[:, :backbone] = torch.eye(backbone)
            model.pre_projection.weight[:, backbone:] *= 0.1
    if clusters:
        order = torch.randperm(text.vocab_size, generator=torch.Generator().manual_seed(seed))
        model.masked_embedding.token_ordering.copy_(order)
    model.save_pretrained(directory)
    return directory


def first_tree(target: Model, make: Callable[[DraftContext], Drafter], tokens: list[int]) -> DraftTree:
    """What a drafter that reads the target's last state guesses after a text that the target has read."""
    runner = ModelRunner(target.backend, 256)
    drafter = make(draft_context(target, runner))
    sequence = ToySequence(1, tokens, params=SamplingParams(temperature=0))
    drafter.begin(sequence)
    runner.cache.add(1)
    span = Span.chain(1, tokens[:-1])
    with runner.cache.reserve({1: len(span)}):
        (output,) = runner.forward([span], taps=(FINAL_TAP,))
        runner.cache.commit(1, range(len(span)))
    drafter.observe([RoundOutcome(sequence, 0, span.tokens, DraftTree.empty(), hidden=output.hidden)])
    return drafter.propose([sequence], [DraftBudget(60, 4)])[0]


def write_gguf_assistant(folder: Path, path: Path, backbone: int = SIZES["hidden_size"]) -> Path:
    """An assistant's folder as llama.cpp's converter writes it; ``backbone``: what it says of its target's size."""
    tensors = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    count, pairs = ASSISTANT["num_hidden_layers"], SIZES["global_head_dim"] // 2
    writer.add_block_count(count)
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", count)
    writer.add_uint32("gemma4-assistant.embedding_length_out", backbone)
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(len(tensors["model.norm.weight"]))
    writer.add_feed_forward_length(ASSISTANT["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    for add, size in (
        (writer.add_key_length, SIZES["global_head_dim"]),
        (writer.add_value_length, SIZES["global_head_dim"]),
        (writer.add_rope_dimension_count, SIZES["global_head_dim"]),
        (writer.add_key_length_swa, SIZES["head_dim"]),
        (writer.add_value_length_swa, SIZES["head_dim"]),
        (writer.add_rope_dimension_count_swa, SIZES["head_dim"]),
    ):
        add(size)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([each == "sliding_attention" for each in ASSISTANT["layer_types"]])
    writer.add_shared_kv_layers(count)
    writer.add_token_list([f"<{i}>" for i in range(SIZES["vocab_size"])])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, count)
    around = {
        "pre_projection.weight": "nextn.pre_projection.weight",
        "post_projection.weight": "nextn.post_projection.weight",
        "masked_embedding.centroids.weight": "masked_embd_centroids.weight",
        "masked_embedding.token_ordering": "masked_embd_ordering",
    }
    for name, tensor in tensors.items():
        whole = name if name.endswith(".weight") else f"{name}.weight"
        target = around.get(name) or names.get_name(whole, try_suffixes=(".weight",))
        assert target is not None, name
        writer.add_tensor(target, (tensor.int() if "ordering" in name else tensor).contiguous().numpy())
    turning = pairs // 4
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@cache
def toy_folders(vocab_size: int) -> tuple[Path, Path]:
    """A target of so few tokens and its assistant, for the contract suite."""
    root = Path(tempfile.mkdtemp(prefix="headstart-assistant-"))
    few = {"vocab_size": vocab_size, "bos_token_id": 1, "eos_token_id": 2}
    target = write_target(root / "target", **few)
    return target, write_assistant(root / "assistant", target, **few)


@cache
def _toy_backend(vocab_size: int) -> TorchBackend:
    return TorchBackend(*load_decoder(open_checkpoint(toy_folders(vocab_size)[0]), torch.float32))


def assistant_drafter(vocab_size: int, options: Mapping[str, object]) -> WithTargetPasses:
    """A drafter for the contract suite, over the passes of a real target, whose text is another one's."""
    runner = ModelRunner(_toy_backend(vocab_size), cache_tokens=4096, block_size=8)
    context = DraftContext(vocab_size=vocab_size, runner=runner)
    return WithTargetPasses(
        create_drafter("assistant", context, **{"model": str(toy_folders(vocab_size)[1]), **options}), runner
    )


class WithTargetPasses(WithTargetCache):
    """A drafter with the engine's part for the target's cache, and the states of the target's own rows."""

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self.drafter.observe([self._with_states(outcome) for outcome in outcomes if len(outcome.row_tokens)])

    def _with_states(self, outcome: RoundOutcome) -> RoundOutcome:
        """States of the rows that are kept, in their places; they are those of the text, which has been committed."""
        runner, taps = self._runner, self.needs.taps
        length = outcome.first_position + len(outcome.kept_rows)
        runner.cache.add(_ASIDE)
        span = Span.chain(_ASIDE, outcome.sequence.tokens[:length], "none")
        with runner.cache.reserve({_ASIDE: length}):
            (output,) = runner.forward([span], taps=taps)
        runner.cache.remove(_ASIDE)
        states = np.zeros((len(taps), len(outcome.row_tokens), HIDDEN), np.float32)
        states[:, list(outcome.kept_rows)] = output.hidden.at(taps)[:, outcome.first_position : length]
        return replace(outcome, hidden=TapStates(taps, states))
