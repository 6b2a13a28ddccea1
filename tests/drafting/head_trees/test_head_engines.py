"""Heads in the engine: whatever they guess, in batches, chunks and after preemptions, the text is the target's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from devices import DEVICES
from head_toys import shake
from mapped_heads import map_rows
from native_here import needs_native
from reruns import RECORDED_PLACES, recording_on
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model

from headstart.backends.native.heads import NativeEaglePass
from headstart.backends.native.packing import read_matrix
from headstart.drafting.base import SpeculationParams
from headstart.drafting.heads.text_vocabulary import TextTokens
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.drafter import Eagle3Drafter
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.engine.outputs import Completion
from headstart.entrypoints.llm import LLM
from headstart.loading.model import Model, load_model
from headstart.models.weight_loading import load_tables
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_train.files.heads import save_head
from headstart_train.first_steps.block import block_config
from headstart_train.first_steps.eagle import eagle_config

PROMPTS = [list(range(40, 40 + length)) for length in (1, 3, 30, 12)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=20, seed=1),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, max_tokens=24, seed=2),
    SamplingParams(temperature=0, logit_bias={50: 3.0}, min_tokens=4, max_tokens=10),
]


@pytest.mark.model
@pytest.mark.thorough
@needs_native
def test_prompts_asked_again_are_guessed_alike() -> None:
    """The native pass is exact: with the prefix found in the cache, alone or in a batch, every guess is as before.

    The first test here: in the fixture below all of PyTorch's operations are simulated, until the last one ends."""
    llm = LLM("smollm2", "eagle3", prefix_caching=True, max_context=256, max_batch_size=3)
    texts = ["List the planets of the solar system. ", "Why is the sky blue at noon and red at dusk? ", "One, two, "]
    prompts = [text * (36 // len(text.split())) for text in texts]
    params, wishes = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), SpeculationParams(tree_nodes=8)
    first = [llm.generate([prompt], params, speculation=wishes)[0].outputs[0] for prompt in prompts]
    assert all(output.stats.cached_tokens == 0 for output in first)
    for again in (llm.generate(prompts, params, speculation=wishes), llm.generate(prompts, params, speculation=wishes)):
        assert all(output.outputs[0].stats.cached_tokens > 0 for output in again)
        assert [output.outputs[0].token_ids for output in again] == [output.token_ids for output in first]
        assert [guesses(output.outputs[0]) for output in again] == [guesses(output) for output in first]
    drafter = llm.engine.drafter
    assert isinstance(drafter, Eagle3Drafter)
    reader = drafter.reader
    assert isinstance(reader.running, NativeEaglePass)
    pages = reader.running._pages
    assert len(pages._free) == pages.storage.num_blocks - len(reader.prefixes) < pages.storage.num_blocks


@pytest.fixture(
    scope="module", params=thorough_but([place for place in RECORDED_PLACES if place != "simulated"], RECORDED_PLACES)
)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """On every device that is there, and on one that is simulated: heads are computed where their target is. There
    passes and drafts are recorded, too."""
    with recording_on(request.param) as device:
        yield load_model(write_tiny_model(tmp_path_factory.mktemp("model")), "fp32", device=device)


@pytest.fixture(scope="module")
def plain(target: Model) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in LLM(target, "none").generate(PROMPTS, PARAMS)]


RUN_BY = {"deep eagle3": "eagle3", "dflash 2": "dflash"}
"""Heads that are something special -> who runs them."""


def write_random_head(target: Model, name: str, directory: Path) -> Path:
    config, said = target.config, torch.arange(0, target.config.vocab_size, 2)
    head: EagleHead | BlockHead | ParallelHeads | LookaheadEmbeddings
    if name == "pass":
        head = LookaheadEmbeddings(3, config.hidden_size)
    elif name in ("medusa", "blockwise"):
        kind = ParallelConfig(name, config.hidden_size, config.vocab_size, len(said), slots=3)  # type: ignore[arg-type]
        head = ParallelHeads(kind)
    elif name == "dflash":
        head = BlockHead(block_config(config, 5, 2, 0, len(said)))
    elif name == "dflash 2":
        second = {"conv_taps": 2, "conv_group": 8, "selector_rank": 6, "selector_top": 9}
        head = BlockHead(replace(block_config(config, 5, 2, 0), **second))  # type: ignore[arg-type]
    elif name == "deep eagle3":
        deep = {"head_norms": True, "windows": (9, 0, 9)}
        head = EagleHead(replace(eagle_config(config, "eagle3", len(said), 3), **deep))  # type: ignore[arg-type]
    elif name == "p-eagle":
        head = EagleHead(eagle_config(config, "eagle3", len(said), slots=5, mask_token_id=1))
    else:
        head = EagleHead(eagle_config(config, "eagle3" if name == "eagle3" else "eagle", len(said)))
    shake(head, 4)
    if not isinstance(head, LookaheadEmbeddings) and head.config.reduced:
        head.d2t.copy_(said - torch.arange(len(said)))
    if isinstance(head, EagleHead) and name == "eagle3":
        # It may say tokens of the text beyond its vocabulary, too.
        map_rows(head, read_matrix(load_tables(target.checkpoint, torch.float32)[1], torch.float32))
    save_head(head, directory)
    return directory


@pytest.mark.parametrize(
    "name",
    thorough_but(
        ["eagle3", "dflash", "medusa", "pass", *RUN_BY],
        ["eagle3", "eagle2", "eagle", "dflash", "p-eagle", "medusa", "blockwise", "pass", *RUN_BY],
    ),
)
def test_the_text_is_the_targets_own(
    target: Model, plain: list[list[int]], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[TextTokens] = []
    read_text = TextTokens.read
    monkeypatch.setattr(TextTokens, "read", lambda own, text: [read.append(own), read_text(own, text)][1])
    directory = write_random_head(target, name, tmp_path)
    options = {} if name == "pass" else {"precision": "fp32"}
    llm = LLM(target, RUN_BY.get(name, name), draft_model=directory, drafter_options=options, max_batch_size=3)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)
    if name == "eagle3":
        assert any(len(each) for each in read), "no tokens of the text"


@pytest.mark.thorough
@pytest.mark.parametrize("target", DEVICES, indirect=True)
@pytest.mark.parametrize(
    ("name", "caching"),
    thorough_but(
        [("eagle3", True), ("dflash", True), ("pass", False), ("deep eagle3", True), ("dflash 2", True)],
        [
            *(("eagle3", False), ("eagle3", True), ("dflash", True), ("p-eagle", True), ("medusa", False)),
            *(("pass", False), ("deep eagle3", True), ("dflash 2", True)),
        ],
    ),
)
def test_chunks_and_preemptions(target: Model, name: str, caching: bool, tmp_path: Path) -> None:
    """Prompts in chunks of a few rows, and a cache that two growing texts do not fit in."""
    prompts, params = PROMPTS[1:3], [replace(each, max_tokens=70, ignore_eos=True) for each in PARAMS[:2]]
    directory = write_random_head(target, name, tmp_path)
    options: dict[str, object] = {"tree_nodes": 6} | ({} if name == "pass" else {"precision": "fp32"})
    llm = LLM(
        target,
        RUN_BY.get(name, name),
        draft_model=directory,
        drafter_options=options,
        max_context=110,
        cache_tokens=97,
        prefix_caching=caching,
    )
    llm.engine.limits = replace(llm.engine.limits, max_rows=18, draft_rows=8)
    outputs = llm.generate(prompts, params)
    plain = LLM(target, "none", max_context=110).generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in plain]
    assert sum(output.outputs[0].stats.preemptions for output in outputs) > 0
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.mark.parametrize("target", DEVICES, indirect=True)
@pytest.mark.parametrize("name", ["eagle3", "dflash", "p-eagle", "medusa", "pass"])
def test_behind_a_cached_prefix(target: Model, name: str, tmp_path: Path) -> None:
    prompts, params = [list(range(40, 110))], SamplingParams(temperature=0, max_tokens=24)
    directory = write_random_head(target, name, tmp_path)
    options = {} if name == "pass" else {"precision": "fp32"}
    llm = LLM(target, RUN_BY.get(name, name), draft_model=directory, drafter_options=options, prefix_caching=True)
    first, second = (llm.generate(prompts, params)[0].outputs[0] for _ in range(2))
    assert second.stats.cached_tokens > 0
    assert second.stats.drafted > 0
    assert second.token_ids == first.token_ids == LLM(target, "none").generate(prompts, params)[0].outputs[0].token_ids
    if name in ("eagle3", "dflash", "p-eagle"):
        assert guesses(second) == guesses(first)


def guesses(output: Completion) -> tuple[int, int, int]:
    return output.stats.rounds, output.stats.drafted, output.stats.accepted
