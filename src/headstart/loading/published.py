"""Draft heads and small siblings that are published for well-known models: names to download, never fetched unasked."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.loading.siblings import SMALLER
from headstart.models.config import ModelConfig
from headstart.models.families.module_layouts import comes_with_modules

_RATES = {
    "lmsys/sglang-EAGLE3-Llama-4-Maverick-17B-128E-Instruct-v1": "2.45 tokens a round of 3 guesses (its card)",
    "z-lab/Qwen3-8B-DFlash-b16": "3.11 tokens a round of 7 guesses (MT-Bench, arXiv:2607.05147)",
    "amazon/gpt-oss-120b-p-eagle": "2.68 tokens a round of 5 guesses (MT-Bench, arXiv:2602.01469)",
    "google/gemma-4-31B-it-assistant": "66 to 89 % of 4 guesses accepted (code, llama.cpp #23398)",
    "nvidia/Kimi-K2.6-Eagle3": "2.62 tokens a round of 3 guesses (MT-Bench, its card)",
}
"""How often guesses hold, as published, with the source."""


@dataclass(frozen=True)
class Published:
    """Something that guesses for models of one shape."""

    hub_id: str
    what: str
    nbytes: int
    """About."""
    families: tuple[str, ...]
    hidden_size: int | None = None
    """With ``num_layers`` the target's; None: any of that vocabulary and four times as large, for a draft model."""
    num_layers: int | None = None
    vocab_size: int | None = None

    @property
    def rates(self) -> str:
        """How often its guesses hold; empty: nobody says."""
        return _RATES.get(self.hub_id, "")

    @property
    def said(self) -> str:
        """What it is, how it may be had, and what is known of it."""
        return f"{self.what}: hf download {self.hub_id}" + (f"; {self.rates}" if self.rates else "")

    def fits(self, config: ModelConfig, parameters: int) -> bool:
        """Whether it was made for models of this shape; ``parameters``: how many the model has."""
        wanted = (self.hidden_size, self.num_layers, self.vocab_size)
        shape = (config.hidden_size, config.num_layers, config.vocab_size)
        same = all(each is None or each == has for each, has in zip(wanted, shape, strict=True))
        # In 16 bits it has two bytes for each of its own parameters.
        small = self.hidden_size is not None or self.nbytes / 2 * SMALLER <= parameters
        return same and small and config.family in self.families


_EAGLE3, _BLOCKS, _SMALL = "an EAGLE-3 head", "a DFlash head", "a small model of the same tokenizer"
_ASSISTANT = "Google's assistant"
_GEMMA4 = ("gemma4", "gemma4_seeing", "gemma4_unified", "gemma4_unified_seeing")
_QWEN35, _QWEN35_MOE = ("qwen3_5", "qwen3_5_text"), ("qwen3_5_moe", "qwen3_5_moe_text")
_LLAMA4 = ("llama4", "llama4_seeing")
PUBLISHED = (
    Published("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", _EAGLE3, 850 << 20, ("llama",), 4096, 32, 128256),
    Published("lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge", _EAGLE3, 800 << 20, ("llama",), 4096, 32, 128256),
    Published("z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", _BLOCKS, 2000 << 20, ("llama",), 4096, 32, 128256),
    Published("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", _EAGLE3, 3100 << 20, ("llama",), 8192, 80, 128256),
    Published(
        "lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge", _EAGLE3, 2680 << 20, ("llama",), 8192, 80, 128256
    ),
    Published("lmsys/SGLang-EAGLE3-Llama-4-Scout-17B-16E-Instruct-SpecForge", _EAGLE3, 1600 << 20, _LLAMA4, 5120, 48),
    Published("lmsys/sglang-EAGLE3-Llama-4-Maverick-17B-128E-Instruct-v1", _EAGLE3, 1600 << 20, _LLAMA4, 5120, 48),
    Published("AngelSlim/Qwen3-1.7B_eagle3", _EAGLE3, 330 << 20, ("qwen3",), 2048, 28),
    Published("AngelSlim/Qwen3-4B_eagle3", _EAGLE3, 440 << 20, ("qwen3",), 2560, 36),
    Published("z-lab/Qwen3-4B-DFlash-b16", _BLOCKS, 1100 << 20, ("qwen3",), 2560, 36),
    Published("AngelSlim/Qwen3-8B_eagle3", _EAGLE3, 800 << 20, ("qwen3",), 4096, 36),
    Published("z-lab/Qwen3-8B-DFlash-b16", _BLOCKS, 2100 << 20, ("qwen3",), 4096, 36),
    Published("RedHatAI/Qwen3-8B-speculator.peagle", "a P-EAGLE head", 2000 << 20, ("qwen3",), 4096, 36),
    Published("RedHatAI/Qwen3-32B-speculator.eagle3", _EAGLE3, 3000 << 20, ("qwen3",), 5120, 64),
    Published("RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3", _EAGLE3, 1000 << 20, ("qwen3_moe",), 2048, 48),
    Published("z-lab/Qwen3-Coder-30B-A3B-DFlash", _BLOCKS, 1000 << 20, ("qwen3_moe",), 2048, 48),
    Published("z-lab/Qwen3-Coder-Next-DFlash", _BLOCKS, 1000 << 20, ("qwen3_next",), 2048, 48),
    Published("z-lab/Qwen3.5-4B-DFlash", _BLOCKS, 1000 << 20, _QWEN35, 2560),
    Published("z-lab/Qwen3.5-9B-DFlash", _BLOCKS, 2000 << 20, _QWEN35, 4096),
    Published("z-lab/Qwen3.5-27B-DFlash", _BLOCKS, 8000 << 20, _QWEN35, 5120, 64),
    Published("z-lab/Qwen3.5-35B-A3B-DFlash", _BLOCKS, 1000 << 20, _QWEN35_MOE, 2048, 40),
    Published("RedHatAI/gpt-oss-20b-speculator.eagle3", _EAGLE3, 1800 << 20, ("gpt_oss",), 2880, 24),
    Published("z-lab/gpt-oss-20b-DFlash", _BLOCKS, 1600 << 20, ("gpt_oss",), 2880, 24),
    Published("nvidia/gpt-oss-120b-Eagle3-short-context", _EAGLE3, 1600 << 20, ("gpt_oss",), 2880, 36),
    Published("z-lab/gpt-oss-120b-DFlash", _BLOCKS, 1600 << 20, ("gpt_oss",), 2880, 36),
    Published("amazon/gpt-oss-120b-p-eagle", "a P-EAGLE head", 1600 << 20, ("gpt_oss",), 2880, 36),
    Published("google/gemma-4-E2B-it-assistant", _ASSISTANT, 150 << 20, _GEMMA4, 1536),
    Published("google/gemma-4-E4B-it-assistant", _ASSISTANT, 156 << 20, _GEMMA4, 2560),
    Published("google/gemma-4-12B-it-assistant", _ASSISTANT, 837 << 20, _GEMMA4, 3840),
    Published("google/gemma-4-26B-A4B-it-assistant", _ASSISTANT, 840 << 20, _GEMMA4, 2816),
    Published("google/gemma-4-31B-it-assistant", _ASSISTANT, 945 << 20, _GEMMA4, 5376),
    Published("RedHatAI/gemma-4-31B-it-speculator.eagle3", _EAGLE3, 4000 << 20, _GEMMA4, 5376),
    Published("nvidia/MiniMax-M2.7-DFlash", _BLOCKS, 2510 << 20, ("minimax_m2",), 3072, vocab_size=200064),
    Published("nvidia/Kimi-K2.6-Eagle3", _EAGLE3, 3510 << 20, ("kimi_k2", "deepseek_v3"), 7168, vocab_size=163840),
    Published("meta-llama/Llama-3.2-1B-Instruct", _SMALL, 2500 << 20, ("llama",), vocab_size=128256),
    Published("Qwen/Qwen3-0.6B", _SMALL, 1500 << 20, ("qwen3", "qwen3_moe"), vocab_size=151936),
    Published("HuggingFaceTB/SmolLM2-135M-Instruct", _SMALL, 270 << 20, ("llama",), vocab_size=49152),
)
"""Sizes by their parameters in the files' precision, names as their publishers' pages had them in 2026. DeepSeek V3,
GLM-4.5 and later, Nemotron 3 and Qwen3.5 have multi-token modules of their own besides."""


def guesses_for(family: str) -> tuple[str, ...]:
    """What is known to guess for models of a family, beside what guesses for any: ``modules`` of their own
    checkpoints, published ``assistants`` and ``heads``."""
    published = {each.what for each in PUBLISHED if family in each.families} - {_SMALL}
    known = {
        "modules": comes_with_modules(family),
        "assistants": _ASSISTANT in published,
        "heads": bool(published - {_ASSISTANT}),
    }
    return tuple(name for name, is_so in known.items() if is_so)
