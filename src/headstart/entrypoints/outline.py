"""What is known of a model before its weights are read, so that a request can be refused at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headstart.common.enumerations import Precision
from headstart.entrypoints.encoder_prompt import encoded_for
from headstart.entrypoints.prompts import EncodedPrompt, Message, Prompt, encoded_chat
from headstart.errors import ConfigError
from headstart.loading.describing import describe
from headstart.loading.model import Model, load_opened
from headstart.loading.reading import USUAL, Reading
from headstart.loading.roles import tokenizer_of
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.generation_config import AUTO, sampling_defaults
from headstart.sampling.defaults import SamplingDefaults
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer

LONGEST_CONTEXT = 8192
"""Tokens of the context of a model that could have more, unless more are asked for."""
LONGEST_RELATIVE = 2048
"""The same of a model that tells places by distance alone, and so sets no limit: four times what T5 was trained on."""


def context_length(config: ModelConfig, max_context: int | None) -> int:
    """Most tokens of a sequence; None: what the model was made for, within ``LONGEST_CONTEXT`` or ``LONGEST_RELATIVE``.

    Raises:
        ConfigError: the model has no such context.
    """
    context = min(config.max_positions, _usual(config)) if max_context is None else max_context
    if not 2 <= context <= config.max_positions:
        raise ConfigError(f"max_context is {context}; this model serves 2 to {config.max_positions} tokens.")
    return context


def source_length(config: ModelConfig, context: int) -> int:
    """Most positions that the model's encoder reads: what it was made for, within the usual context or a longer
    ``context``; 0 without an encoder."""
    return 0 if config.encoder is None else min(config.encoder.max_positions, max(_usual(config), context))


def _usual(config: ModelConfig) -> int:
    relative = config.encoder is not None and config.encoder.relative is not None
    return LONGEST_RELATIVE if relative else LONGEST_CONTEXT


@dataclass(frozen=True)
class Outline:
    """A model without its weights."""

    checkpoint: Checkpoint
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: SamplingDefaults
    reading: Reading = USUAL

    @classmethod
    def open(
        cls,
        model: str | Path,
        revision: str | None = None,
        generation_config: str | Path = AUTO,
        reading: Reading = USUAL,
    ) -> Self:
        """Read everything but the weights.

        Raises:
            CheckpointError, ConfigError: as loading the model does.
        """
        checkpoint = open_checkpoint(model, revision, reading.lora)
        tokenizer = tokenizer_of(checkpoint)
        return cls(
            checkpoint,
            describe(checkpoint, reading).config,
            tokenizer,
            ChatTemplate.from_checkpoint(checkpoint, reading.chat_template),
            sampling_defaults(checkpoint, generation_config),
            reading,
        )

    def load(self, precision: Precision | str = Precision.AUTO, device: str = "cpu") -> Model:
        """The whole model; what has been read is not read again.

        Raises:
            CheckpointError, ConfigError: as ``load_model``.
        """
        return load_opened(self.checkpoint, self.tokenizer, self.chat_template, precision, device, self.reading)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """As ``LLM.encode``."""
        return encoded_for(self.config, prompt, self.tokenizer)

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> EncodedPrompt:
        """As ``LLM.encode_chat``."""
        chat = encoded_chat(messages, self.tokenizer, self.chat_template, tools)
        return encoded_for(self.config, chat, self.tokenizer)
