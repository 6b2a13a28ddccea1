from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from model_toys import LayeredToy, blurred, coupled_texts, greedy_texts, model_context, model_engine
from native_cases import native, random_weights, small_config
from native_here import FASTEST, needs_native
from text_laws import CROWD, opposed_tables, p_value, sample_texts
from tiny_checkpoint import write_tiny_model
from toys import hashed_logits, run_all, table_logits, toy_sequence

from headstart import LLM
from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.precision import Precision
from headstart.backends.native.storage import NativeStorage
from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter, drafter_options
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError
from headstart.loading.model import Model, load_model
from headstart.loading.own_bits import lend_itself
from headstart.models.config import LayerConfig, ModelConfig, OutputHeadConfig
from headstart.models.state_config import ConvolutionConfig
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.runner import ModelRunner, Span
from headstart.sampling.params import SamplingParams

VOCAB = 10
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, size=1 + 9 * i % 31).tolist() for i in range(9)]
WISHES = [SpeculationParams(), SpeculationParams(draft_tokens=2), SpeculationParams(enabled=False)]
PLAIN = small_config(layers=(LayerConfig(),) * 4)
CONFIGS: dict[str, ModelConfig] = {
    "plain": PLAIN,
    "windows": replace(PLAIN, layers=(LayerConfig(window=16), LayerConfig()) * 2, head=OutputHeadConfig(tied=True)),
    "convolution": replace(
        PLAIN,
        layers=(LayerConfig(mixer="convolution"), LayerConfig()) * 2,
        convolution=ConvolutionConfig(length=3),
    ),
}


def layered(seed: int) -> LayeredToy:
    logits_of = hashed_logits(VOCAB, seed, order=3)
    return LayeredToy(VOCAB, logits_of, blurred(logits_of, seed, 1.0))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("limits", "target_tokens"),
    [(Limits(), 4096), (Limits(max_sequences=3, max_rows=20, draft_rows=5), 4096), (Limits(), 160)],
    ids=["plenty", "small passes", "preemption"],
)
def test_greedy_texts_are_those_of_plain_decoding(seed: int, limits: Limits, target_tokens: int, width: int) -> None:
    engine = model_engine(layered(seed), "self", limits=limits, target_tokens=target_tokens, width=width)
    assert greedy_texts(engine, PROMPTS, WISHES) == greedy_texts(model_engine(layered(seed), "none"), PROMPTS, WISHES)


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.8, "repetition_penalty": 1.3}])
@pytest.mark.parametrize(("width", "rule"), [(1, VerifyRule.AUTO), (1, VerifyRule.COUPLED), (2, VerifyRule.AUTO)])
def test_coupled_texts_do_not_depend_on_the_draft(changes: dict[str, object], width: int, rule: VerifyRule) -> None:
    plain, _ = coupled_texts(model_engine(layered(7), "none"), PROMPTS, **changes)
    texts, stats = coupled_texts(model_engine(layered(7), "self", width=width), PROMPTS, rule, **changes)
    assert texts == plain
    assert sum(each.accepted for each in stats) > 60


@pytest.mark.thorough
def test_texts_follow_the_targets_law() -> None:
    whole, early = opposed_tables()
    target = LayeredToy(4, table_logits(whole), table_logits(early))
    texts = sample_texts(model_engine(target, "self", limits=CROWD, draft_tokens=2), 1000, 3)
    assert p_value(texts, whole) > 1e-3
    assert p_value(texts, early) < 1e-12


def test_guesses_beside_the_chain_are_the_next_likeliest() -> None:
    target = layered(1)
    runner = ModelRunner(target, 256, block_size=8)
    drafter = create_drafter("self", model_context(runner, {}), width=3, draft_tokens=3)
    sequence = toy_sequence(model_engine(target, "none"), [1, 2, 3], sequence_id=1)
    runner.cache.add(1)
    with runner.cache.reserve({1: 2}):
        runner.forward([Span.chain(1, [1, 2])])
        runner.cache.commit(1, range(2))
    (tree,) = drafter.propose([sequence], [DraftBudget(8, 5)])
    # Of eight nodes three are the chain's, and five are beside it.
    assert tree.parents.tolist() == [-1, -1, -1, 0, 0, 0, 3, 3]
    path: list[int] = [1, 2, 3]
    for first, count in ((0, 3), (3, 3), (6, 2)):
        ranked = np.argsort(-np.asarray(target.early(tuple(path))), kind="stable")
        assert tree.tokens[first : first + count].tolist() == ranked[:count].tolist()
        path.append(int(ranked[0]))
    assert runner.cache.length(1) == 2


def own_engine(
    config: ModelConfig,
    precision: Precision,
    drafter: str,
    *,
    cache_tokens: int = 4096,
    own: Precision = "int4",
    prefixes: bool = False,
    limits: Limits | None = None,
    **options: object,
) -> Engine:
    """Of a random model, that may guess for itself in another precision."""
    target = native(config, precision, FASTEST)

    def lend(bits: int | str, layers: int | None) -> NativeBackend:
        backend = NativeBackend(config, random_weights(config), own, 1, FASTEST)
        backend.take_cache_of(target)
        return backend

    index = PrefixIndex("itself") if prefixes else None
    runner = ModelRunner(target, cache_tokens, prefixes=index)
    context = DraftContext(config.vocab_size, runner, lend_itself=lend)
    return Engine(runner, create_drafter(drafter, context, **options), limits or Limits(max_context=1024))


def native_prompts(count: int) -> list[list[int]]:
    return [np.random.default_rng(i).integers(0, 77, size=5 + 17 * i).tolist() for i in range(count)]


def said(engine: Engine, params: Callable[[int], SamplingParams], count: int = 4) -> list[list[int]]:
    return run_all(
        engine,
        [
            toy_sequence(engine, prompt, sequence_id=i, params=params(i))
            for i, prompt in enumerate(native_prompts(count))
        ],
    )


@needs_native
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("how", [{}, {"width": 3}, {"cache_tokens": 192}, {"prefixes": True}], ids=repr)
def test_a_native_targets_texts_are_those_of_plain_decoding(
    name: str, precision: Precision, how: dict[str, object]
) -> None:
    def params(place: int) -> SamplingParams:
        return SamplingParams(temperature=0 if place % 2 else 0.8, seed=place, max_tokens=24 + 7 * place)

    plain = said(own_engine(CONFIGS[name], precision, "none"), params)
    engine = own_engine(CONFIGS[name], precision, "self", **how)  # type: ignore[arg-type]
    greedy = [said(engine, params)[place] for place in (1, 3)]
    assert greedy == [plain[place] for place in (1, 3)]


@needs_native
def test_draws_are_coupled_in_one_call_as_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, stats = coupled_texts(own_engine(PLAIN, "bf16", "self"), native_prompts(3), temperature=0.7)
    monkeypatch.setattr(ModelRunner, "runs_stretches", False)
    one_by_one, counted = coupled_texts(own_engine(PLAIN, "bf16", "self"), native_prompts(3), temperature=0.7)
    assert texts == one_by_one
    assert [each.accepted for each in stats] == [each.accepted for each in counted]
    assert sum(each.accepted for each in stats) > 20


@needs_native
@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_keeps_the_targets_own_rows_alone(name: str) -> None:
    kept = []
    for drafter in ("none", "self"):
        engine = own_engine(CONFIGS[name], "bf16", drafter, own="int4-fast")
        sequences = [
            toy_sequence(engine, prompt, sequence_id=i, params=SamplingParams(temperature=0, max_tokens=200))
            for i, prompt in enumerate(native_prompts(2))
        ]
        for sequence in sequences:
            engine.add(sequence)
        while min(sequence.num_output for sequence in sequences) < 100:
            engine.step(0.0)
        kept.append([whole_blocks(engine, sequence.id, 96 // 32) for sequence in sequences])
    for plain, drafted in zip(*kept, strict=True):
        assert plain.any()
        np.testing.assert_array_equal(plain, drafted)


def whole_blocks(engine: Engine, sequence_id: int, count: int) -> np.ndarray:
    """uint8 [layer, block, byte] of a sequence's first blocks."""
    cache = engine.runner.cache
    assert isinstance(cache.storage, NativeStorage)
    config = engine.runner.backend.config
    layers = sum(layer.attends for layer in config.layers)
    pages = cache.storage.memory
    page = 32 * 2 * config.num_kv_heads * config.head_dim * 2
    bytes_of = pages[: layers * cache.storage.num_blocks * page].reshape(layers, cache.storage.num_blocks, page)
    return bytes_of[:, cache.tables([sequence_id]).blocks[0, :count]].copy()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=64), "bf16")


@needs_native
def test_a_model_lends_itself_in_fewer_bits(tiny: Model) -> None:
    sizes = [lend_itself(tiny, bits).layer_bits for bits in (4, 3, 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert lend_itself(tiny, 4).nbytes < 0.6 * tiny.backend.nbytes
    assert lend_itself(tiny, 4, layers=2).config.num_layers == 2


@needs_native
def test_what_cannot_guess_for_itself_is_refused_in_a_sentence(tiny: Model) -> None:
    with pytest.raises(ConfigError, match="the target has 3"):
        lend_itself(tiny, 4, layers=4)
    with pytest.raises(ConfigError, match=r"bits each as it is \(native-.*with bits=bf16 they would take 16"):
        lend_itself(tiny, "bf16")
    for precision, sentence in (
        ("int4", "a draft would cost as much as a pass"),
        ("fp32", "whose cache holds float32"),
    ):
        model = load_model(tiny.checkpoint.path, precision)
        with pytest.raises(ConfigError, match=sentence):
            lend_itself(model, 4)
    with pytest.raises(ConfigError, match="give 4, 3 or 2, or a precision: bf16"):
        drafter_options("self")(bits=5)
    with pytest.raises(ConfigError, match="width is 0"):
        drafter_options("self")(width=0)


@needs_native
def test_layers_that_keep_something_else_share_no_cache() -> None:
    other = replace(PLAIN, num_kv_heads=3)
    with pytest.raises(ConfigError, match="keep other keys and values"):
        native(other, "int4", FASTEST).take_cache_of(native(PLAIN, "bf16", FASTEST))


@needs_native
def test_beams_are_those_of_plain_decoding(tiny: Model) -> None:
    asked, found = SamplingParams(temperature=0, beam_width=3, n=3, max_tokens=14), []
    for drafter in ("none", "self"):
        with LLM(str(tiny.checkpoint.path), drafter, precision="bf16") as llm:
            outputs = llm.generate(["one two", "three"], asked)
            found.append([beam.token_ids for each in outputs for beam in each.outputs])
    assert found[0] == found[1]
