"""A tiny target and what it said, for tests of training."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from tiny_checkpoint import write_tiny_model

from headstart.drafting.heads.tables import TargetTables
from headstart.entrypoints.llm import LLM
from headstart.loading.model import Model, load_model
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart.sampling.params import SamplingParams
from headstart_train.text.corpus import Document
from headstart_train.text.packs import Pack, make_packs


@cache
def target() -> Model:
    return load_model(write_tiny_model(Path(mkdtemp(prefix="headstart-tiny-"))), "fp32")


@cache
def weights() -> DecoderWeights:
    return load_decoder(target().checkpoint, torch.float32)[1]


def tables() -> TargetTables:
    return TargetTables(weights().embedding, weights().head.weight)


@cache
def prompts(count: int = 50, length: int = 6) -> tuple[tuple[int, ...], ...]:
    generator = np.random.default_rng(3)
    return tuple(tuple(generator.integers(32, 127, length).tolist()) for _ in range(count))


@cache
def documents(count: int = 50, tokens: int = 18) -> tuple[Document, ...]:
    """What the target says to the prompts, greedily."""
    llm = LLM(target(), "none", max_batch_size=count)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in prompts(count)], params)
    return tuple(
        Document(
            np.asarray([*output.prompt_token_ids, *output.outputs[0].token_ids], dtype=np.int32),
            np.arange(len(output.prompt_token_ids) + tokens) >= len(output.prompt_token_ids),
        )
        for output in outputs
    )


def packs(length: int = 96) -> list[Pack]:
    return make_packs(documents(), length)
