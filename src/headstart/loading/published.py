"""Draft heads and small siblings that are published for well-known models: names to download, never fetched unasked."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.models.config import ModelConfig


@dataclass(frozen=True)
class Published:
    """Something that guesses for models of one shape."""

    hub_id: str
    what: str
    nbytes: int
    """About."""
    families: tuple[str, ...]
    hidden_size: int | None = None
    """With ``num_layers`` the target's; None: any of that vocabulary, for a draft model, if it is twice as large."""
    num_layers: int | None = None
    vocab_size: int | None = None

    def fits(self, config: ModelConfig, parameters: int) -> bool:
        """Whether it was made for models of this shape; ``parameters``: how many the model has."""
        wanted = (self.hidden_size, self.num_layers, self.vocab_size)
        shape = (config.hidden_size, config.num_layers, config.vocab_size)
        same = all(each is None or each == has for each, has in zip(wanted, shape, strict=True))
        # In 16 bits it has two bytes for each of its own parameters.
        return same and config.family in self.families and (self.hidden_size is not None or self.nbytes <= parameters)


_EAGLE3, _BLOCKS, _SMALL = "an EAGLE-3 head", "a DFlash head", "a small model of the same tokenizer"
PUBLISHED = (
    Published("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", _EAGLE3, 850 << 20, ("llama",), 4096, 32, 128256),
    Published("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", _EAGLE3, 3100 << 20, ("llama",), 8192, 80, 128256),
    Published("AngelSlim/Qwen3-1.7B_eagle3", _EAGLE3, 330 << 20, ("qwen3",), 2048, 28),
    Published("AngelSlim/Qwen3-4B_eagle3", _EAGLE3, 440 << 20, ("qwen3",), 2560, 36),
    Published("z-lab/Qwen3-4B-DFlash-b16", _BLOCKS, 1100 << 20, ("qwen3",), 2560, 36),
    Published("AngelSlim/Qwen3-8B_eagle3", _EAGLE3, 800 << 20, ("qwen3",), 4096, 36),
    Published("z-lab/Qwen3-8B-DFlash-b16", _BLOCKS, 2100 << 20, ("qwen3",), 4096, 36),
    Published("RedHatAI/Qwen3-32B-speculator.eagle3", _EAGLE3, 3000 << 20, ("qwen3",), 5120, 64),
    Published("meta-llama/Llama-3.2-1B-Instruct", _SMALL, 2500 << 20, ("llama",), vocab_size=128256),
    Published("Qwen/Qwen3-0.6B", _SMALL, 1500 << 20, ("qwen3", "qwen3_moe"), vocab_size=151936),
    Published("HuggingFaceTB/SmolLM2-135M-Instruct", _SMALL, 270 << 20, ("llama",), vocab_size=49152),
)
"""Sizes by their parameters, in the files' own precision."""
