"""Which drafters the contract suite runs over, and what it builds them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from assistant_models import assistant_drafter
from devices import DEVICES
from drafting_toys import CONTRACT_VOCAB
from head_toys import head_drafter
from model_toys import contract_context, with_target_cache
from thinning import thorough_but

from headstart.drafting.base import Drafter
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import available_drafters, create_drafter
from headstart_train.text.corpus import Corpus, Document


@dataclass(frozen=True)
class Case:
    """A drafter and the options it is checked with."""

    name: str
    options: dict[str, object] = field(default_factory=dict)
    remembers: bool = False
    """Learns from rejected rows or other sequences on purpose, so its guesses do not follow from the tokens alone."""
    device: str = "cpu"
    """Where its head is computed."""

    def __str__(self) -> str:
        place = [] if self.device == "cpu" else [self.device]
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items()), *place])


VARIANTS = [
    Case("ngram", {"window": 5, "draft_tokens": 9}),
    Case("prompt-lookup", {"match": "leftmost"}),
    Case("suffix", {"tree_nodes": 40, "offset": 2.0, "max_depth": 6}),
    Case("suffix", {"shared_tokens": 40}, remembers=True),
    Case("recycling", {"tree_nodes": 80}, remembers=True),
    Case("rest", {"tree_nodes": 40, "max_match": 2, "draft_tokens": 3, "min_probability": 0.0}),
    Case("copy", {"from_start": False, "min_match": 2}),
    Case("unigram", {"sample": True}),
    Case("bigram", {"sample": True}),
    Case("random", {"sample": True}),
    Case("draft-model", {"model": "small", "temperature": 0.5, "top_k": 4, "min_confidence": 0.3}),
    Case("multi-draft", {"model": "small", "branching": (2, 2, 2), "replacement": False}),
    Case("hierarchical", {"model": "small", "inner": "suffix"}),
    Case("self", {"width": 3, "draft_tokens": 3}),
    Case("lookahead", {"ngram": 2, "width": 3, "from_prompt": False}, remembers=True),
    Case("medusa", {"shape": ((0,), (0, 0), (1,), (0, 1)), "draft_tokens": 2}),
    Case("auto", {"drafters": "ngram+bigram", "drafter_options": {"bigram": {"sample": True}}}, remembers=True),
    Case("dflash", {"draws": 3, "tree_nodes": 8}),
    Case("pass", {"draft_tokens": 2, "tree_nodes": 40}, remembers=True),
]
THOROUGH = [
    Case("multi-draft", {"models": ("small", "other"), "temperature": 0.0}),
    Case("hierarchical", {"inner": "draft-model", "inner_options": {"model": "other", "draft_tokens": 2}}),
    Case("hierarchical", {"model": "deep", "inner": "early-exit", "inner_options": {"layers": 2}}),
    Case("early-exit", {"layers": 4, "top_p": 0.8}),
    Case("self", {"top_p": 0.8, "min_confidence": 0.2}),
    Case("lookahead", {"ngram": 3, "width": 2, "guesses": 2}, remembers=True),
    Case("eagle3", {"width": 2, "draft_tokens": 3, "tree_nodes": 40}),
    Case("dflash", {"width": 1, "draft_tokens": 3, "text_vocabulary": 0}),
    Case("dflash", {"model": "windows", "draft_tokens": 3}),
    Case("dflash", {"model": "dflash 2", "draft_tokens": 3}),
    Case("dflash", {"model": "dflash 2", "draws": 2, "tree_nodes": 8}),
    Case("eagle3", {"model": "borrowing", "draft_tokens": 3}),
    Case("assistant", {"width": 3, "draft_tokens": 3, "min_probability": 0.0}),
    Case("mtp", {"model": "1", "draft_tokens": 3, "min_probability": 0.0}),
]
"""Further options, left out by ``make test``."""
REMEMBERING = {"synthetic", "recycling", "auto", "lookahead", "pass"}
WITH_HEAD = {"eagle3", "eagle2", "eagle", "dflash", "p-eagle", "mtp", "medusa", "blockwise", "pass"}
ON_CPU = [*(Case(name, remembers=name in REMEMBERING) for name in available_drafters()), *VARIANTS, *THOROUGH]
CASES = [
    *ON_CPU,
    *(replace(case, device=device) for device in DEVICES[1:] for case in ON_CPU if case.name in WITH_HEAD),
]

FEW = [case for case in CASES if replace(case, device="cpu") not in THOROUGH]

WITHOUT_MODEL = {
    "none",
    "ngram",
    "prompt-lookup",
    "suffix",
    "recycling",
    "copy",
    "unigram",
    "bigram",
    "random",
    "auto",
    "lookahead",
}
WITH_MODEL = {"draft-model", "multi-draft", "hierarchical", "early-exit", "self"}
WITH_PASSES = {"assistant"}
WITH_RATES = {"synthetic"}
WITH_TEXTS = {"rest"}


@cache
def texts() -> TemporaryDirectory[str]:
    """A corpus of random texts."""
    directory, random = TemporaryDirectory(), np.random.default_rng(0)
    lengths = random.integers(1, 30, 40)
    documents = [random.integers(CONTRACT_VOCAB, size=length, dtype=np.int32) for length in lengths]
    corpus = Corpus(Path(directory.name), {})
    corpus.extend([Document(tokens, np.ones(len(tokens), dtype=np.bool_)) for tokens in documents])
    return directory


def new_drafter_of(case: Case) -> Callable[[], Drafter]:
    """Builds the case's drafter, a new one in new surroundings at each call; skips what has no context yet."""
    if case.name in WITHOUT_MODEL:
        return lambda: create_drafter(case.name, DraftContext(CONTRACT_VOCAB), **case.options)
    if case.name in WITH_RATES:
        return lambda: create_drafter(
            case.name, DraftContext(CONTRACT_VOCAB), **{"rates": [0.8, 0.6], "recorded_tokens": 30, **case.options}
        )
    if case.name in WITH_TEXTS:
        options = {"texts": texts().name, **case.options}
        return lambda: create_drafter(case.name, DraftContext(CONTRACT_VOCAB), **options)
    if case.name in WITH_MODEL:
        return lambda: with_target_cache(case.name, contract_context(CONTRACT_VOCAB), case.options)
    if case.name in WITH_PASSES:
        return lambda: assistant_drafter(CONTRACT_VOCAB, case.options)
    if case.name in WITH_HEAD:
        return lambda: head_drafter(case.name, CONTRACT_VOCAB, case.options, device=case.device)
    pytest.skip(f"drafter {case.name} needs more than a vocabulary: give tests/drafting/conftest.py a context for it")


@pytest.fixture
def drafter_with() -> Callable[[str, dict[str, object]], Drafter]:
    """Builds a drafter by its name with some options."""
    return lambda name, options: new_drafter_of(Case(name, options))()


@pytest.fixture(params=thorough_but(FEW, CASES), ids=str)
def new_drafter(request: pytest.FixtureRequest) -> Callable[[], Drafter]:
    """Builds one of the registered drafters, with its own options or others."""
    return new_drafter_of(request.param)


@pytest.fixture(
    params=thorough_but([case for case in FEW if not case.remembers], [case for case in CASES if not case.remembers]),
    ids=str,
)
def new_token_drafter(request: pytest.FixtureRequest) -> Callable[[], Drafter]:
    """Builds a drafter whose guesses follow from its sequence's tokens and noise alone."""
    return new_drafter_of(request.param)
