"""Models whose layers keep states: what is said depends on no chunks, company, draws or beams.

(``test_kinds_of_layers`` has every drafter on every kind of layer.)
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_document import widened
from more_families import MORE_FAMILIES
from thinning import thorough_but
from tiny_checkpoint import write_tokenizer
from tiny_models import make_model

from headstart import LLM, SamplingParams
from headstart.backends.native.loader import load_library
from headstart.loading.model import Model, load_model
from headstart.passes.runner import state_bytes

KINDS = ("lfm2", "jamba", "granitemoehybrid-h", "qwen3_next")
"""One for each kind of state; the heads of all of them are too small for the native pass."""
NATIVE = ("lfm2", "granitemoehybrid-h", "qwen3_next")
"""Those that it has, with wider heads."""
FEW = ("jamba", "qwen3_next, native")
"""Those of ``make test``."""
PROMPTS = [list(range(10, 10 + length)) for length in (3, 37, 70)] + [[7, 8, 9] * 5, [7, 8, 9] * 5]
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module", params=thorough_but(FEW, [*KINDS, *(f"{kind}, native" for kind in NATIVE)]))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.endswith("native") and load_library() is None:
        pytest.skip("no native path on this machine")
    return name


@pytest.fixture(scope="module")
def directory(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, _, native = kind.partition(", ")
    path: Path = tmp_path_factory.mktemp(family)
    wide = widened(MORE_FAMILIES[family][1]) if native else {}
    make_model(family, **wide | {"max_position_embeddings": 512}).save_pretrained(path)
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def model(kind: str, directory: Path) -> Model:
    torch.set_num_threads(1)
    loaded = load_model(directory, "fp32" if kind in KINDS else "int8")
    assert loaded.backend.name.startswith("torch" if kind in KINDS else "native")
    return loaded


@pytest.fixture(scope="module")
def plain(model: Model) -> list[list[int]]:
    with LLM(model, "none", max_context=128) as llm:
        return ids(llm)


def ids(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    found = [list(sample.token_ids) for output in llm.generate(PROMPTS, params) for sample in output.outputs]
    llm.engine.check()
    assert llm.engine.runner.cache.free == llm.engine.runner.cache.size
    return found


def test_chunks_and_company_change_nothing(model: Model, plain: list[list[int]]) -> None:
    for settings in ({"max_rows": 19}, {"max_batch_size": 2, "max_rows": 33}):
        with LLM(model, "suffix", max_context=128, **settings) as llm:
            assert ids(llm) == plain, settings


def test_who_gives_way_and_is_read_again_says_the_same(model: Model) -> None:
    """Where the cache is too small for all, with guesses: states are computed anew."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with LLM(model, "none", max_context=256) as llm:
        wanted = ids(llm, params)
    with LLM(model, "suffix", max_context=256, cache_tokens=384) as llm:
        outputs = llm.generate(PROMPTS, params)
        assert [list(output.outputs[0].token_ids) for output in outputs] == wanted
        assert sum(output.stats.preemptions for output in outputs)
        assert sum(output.stats.drafted for output in outputs)
        llm.engine.check()


def test_long_prompts_and_prefixes_change_nothing(model: Model) -> None:
    """Prompts in pieces: read at once, in several passes beside others, and from a prefix that is there already."""
    text = torch.randint(3, 250, (420,), generator=torch.Generator().manual_seed(1)).tolist()
    prompts = [text[:260], [*text[:300], 9, 8, 7], text[:290] + text[:100], text[100:150]]
    found = []
    for settings in ({}, {"max_rows": 100}, {"prefix_caching": True, "cache_tokens": 2048, "max_batch_size": 1}):
        with LLM(model, "suffix", max_context=512, **settings) as llm:
            outputs = llm.generate(prompts, GREEDY)
            found.append([list(sample.token_ids) for output in outputs for sample in output.outputs])
            llm.engine.check()
            cached = [output.stats.cached_tokens for output in outputs]
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert cached[1] >= 256


def test_prefixes_on_disk_change_nothing(model: Model, tmp_path: Path) -> None:
    text = torch.randint(3, 250, (330,), generator=torch.Generator().manual_seed(2)).tolist()
    with LLM(model, "none", max_context=512) as llm:
        (plain,) = llm.generate([text], GREEDY)
    for found in (0, 320):
        with LLM(model, "suffix", max_context=512, prefix_cache_dir=tmp_path / "kept") as llm:
            (output,) = llm.generate([text], GREEDY)
            llm.engine.check()
        assert output.token_ids == plain.token_ids
        assert output.stats.cached_tokens == found


def test_draws_do_not_depend_on_who_guesses(model: Model) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=12, seed=3, ignore_eos=True, n=3)
    with LLM(model, "none", max_context=128) as llm:
        drawn = ids(llm, params)
    with LLM(model, "suffix", max_context=128, cache_tokens=256, prefix_caching=True) as llm:
        assert ids(llm, params) == drawn


@pytest.mark.parametrize("drafter", ["draft-model", "multi-draft", "hierarchical"])
def test_drawn_drafts_run(model: Model, directory: Path, drafter: str) -> None:
    """Their law is the rules' affair, which see logits alone; here: that nothing is lost or mixed up on the way."""
    params = SamplingParams(temperature=1.0, max_tokens=12, seed=3, ignore_eos=True)
    with LLM(model, drafter, draft_model=directory, max_context=128) as llm:
        outputs = llm.generate(PROMPTS, params)
        llm.engine.check()
        # A draft of the model itself is never rejected.
        drafted = sum(output.stats.drafted for output in outputs)
        accepted = sum(output.stats.accepted for output in outputs)
        assert accepted > 0
        assert drafter != "draft-model" or accepted >= 0.7 * drafted


def test_beams_are_the_same_with_guesses(model: Model) -> None:
    params = SamplingParams(beam_width=3, n=3, max_tokens=8, temperature=0)
    found = []
    for drafter in ("none", "suffix"):
        with LLM(model, drafter, max_context=128) as llm:
            found.append(ids(llm, params))
    assert found[0] == found[1]


def test_their_memory_is_counted(model: Model) -> None:
    size = state_bytes(model.backend)
    assert size > 0
    with LLM(model, "none", max_context=64, max_batch_size=2) as llm:
        cache = llm.engine.runner.cache
        pages = model.backend.allocate_cache(cache.allocator.num_blocks, cache.block_size).nbytes
        assert llm.memory.cache == pages + cache.states.num_states * size
        assert cache.states.num_states >= 2 * 2 + llm.engine.limits.draft_rows
