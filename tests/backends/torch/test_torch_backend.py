"""Every family's logits equal transformers', however the rows are cut into passes and whatever shares them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from devices import DEVICES, on
from thinning import thorough_but
from tiny_models import FAMILIES, make_model, reference_logits, save_model
from torch import Tensor
from transformers import PreTrainedModel

from headstart.backends.torch.backend import TorchBackend, TorchStorage
from headstart.backends.torch.linear import Linear
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.linear_weights import LinearWeights
from headstart.models.weight_loading import load_decoder
from headstart.passes.batch import FINAL_TAP, KVStorage, RowInputs
from passes import BLOCK_SIZE, Rows, make_pass, path_to, random_tokens, scattered, slot

TOLERANCE = 1e-4
TREE = [-1, 0, 0, 1, 1, 2, 4, 6, 3]
"""A root, then two branches down to depth 5."""


@dataclass(frozen=True)
class Case:
    model: PreTrainedModel
    config: ModelConfig
    backend: TorchBackend


@cache
def load(family: str, device: str = "cpu") -> Case:
    model = make_model(family)
    with TemporaryDirectory() as directory:
        checkpoint = open_checkpoint(save_model(model, Path(directory)))
        config, weights = load_decoder(checkpoint, torch.float32)
        return Case(model, config, TorchBackend(config, weights, device=device))


KINDS = (
    *("bloom", "falcon-alibi", "olmo2", "ministral3", "granite_swa", "gpt_oss", "mixtral", "deepseek_v3", "llama4"),
    *("gemma3n_text", "gemma4_text", "gemma4_text-experts", "glm_moe_dsa"),
)
"""One of each kind of mixer and channel part that the first families do not have."""
CASES = [(family, device) for device in DEVICES for family in (*FAMILIES, *KINDS)]


FEW = (
    *("llama", "llama3", "qwen3-yarn", "qwen2-window", "smollm3", "phi3-longrope", "granite4", "gemma2", "gemma3"),
    *("gpt2", "gpt-neox", "bloom", "gpt_oss", "mixtral", "deepseek_v3", "llama4", "gemma3n_text", "gemma4_text"),
    "glm_moe_dsa",
)
"""Those of ``make test``."""


@pytest.fixture(
    params=[it if it[0] in FEW else pytest.param(it, marks=pytest.mark.thorough) for it in CASES],
    ids=lambda it: "-".join(it),
)
def case(request: pytest.FixtureRequest) -> Case:
    """Every family on every device that is there."""
    return load(*request.param)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    assert (actual.cpu() - expected.cpu()).abs().max().item() <= TOLERANCE


def fill(case: Case, storage: KVStorage, tokens: list[int], table: list[int]) -> None:
    case.backend.forward(make_pass([Rows(tokens, 0, table)], logit_rows=[]), storage)


def test_a_whole_prompt_in_one_pass(case: Case) -> None:
    tokens = random_tokens(40)
    storage = case.backend.allocate_cache(12, BLOCK_SIZE)
    output = case.backend.forward(make_pass([Rows(tokens, 0, scattered(1, 12)[0])]), storage)
    assert_close(output.logits, reference_logits(case.model, tokens))


def test_chunks_and_single_steps_equal_the_whole(case: Case) -> None:
    tokens = random_tokens(40, seed=1)
    expected = reference_logits(case.model, tokens)
    storage = case.backend.allocate_cache(12, BLOCK_SIZE)
    table = scattered(1, 12, seed=1)[0]
    done = 0
    for count in [13, 1, 2, 17, 1, 1, 1, 4]:
        rows = Rows(tokens[done : done + count], done, table)
        assert_close(case.backend.forward(make_pass([rows]), storage).logits, expected[done : done + count])
        done += count


def test_trees_of_a_ragged_batch_equal_their_paths(case: Case) -> None:
    tables = scattered(5, 14)
    storage = case.backend.allocate_cache(5 * 14, BLOCK_SIZE)
    prompts = [random_tokens(count, seed=count) for count in (3, 30, 41, 17, 9)]
    trees: list[list[int] | None] = [TREE, None, [-1, 0, 0, 0], [-1], None]
    lengths = [len(TREE), 6, 4, 1, 30]
    parts = []
    for prompt, table, parents, length in zip(prompts, tables, trees, lengths, strict=True):
        fill(case, storage, prompt, table)
        parts.append(Rows(random_tokens(length, seed=length + 50), len(prompt), table, parents))
    logits = case.backend.forward(make_pass(parts), storage).logits

    start = 0
    for prompt, part in zip(prompts, parts, strict=True):
        parents = list(part.parents) if part.parents is not None else list(range(-1, len(part.tokens) - 1))
        leaves = set(range(len(parents))) - set(parents)
        for leaf in leaves:
            path = path_to(parents, leaf)
            expected = reference_logits(case.model, prompt + [part.tokens[row] for row in path])
            assert_close(logits[[start + row for row in path]], expected[len(prompt) :])
        start += len(parents)


def test_an_accepted_path_moved_in_place_is_the_context_of_the_next_step(case: Case) -> None:
    prompt = random_tokens(19, seed=3)
    table = scattered(1, 12, seed=3)[0]
    storage = case.backend.allocate_cache(12, BLOCK_SIZE)
    fill(case, storage, prompt, table)
    tree = random_tokens(len(TREE), seed=4)
    case.backend.forward(make_pass([Rows(tree, len(prompt), table, TREE)], logit_rows=[]), storage)
    path = path_to(TREE, 7)
    assert path != list(range(len(path)))
    source = [slot(table, len(prompt) + row) for row in path]
    target = [slot(table, len(prompt) + i) for i in range(len(path))]
    storage.move(source, target)
    text = prompt + [tree[row] for row in path]
    logits = case.backend.forward(make_pass([Rows([5], len(text), table)]), storage).logits
    assert_close(logits, reference_logits(case.model, [*text, 5])[-1:])


def test_foreign_and_freed_slots_are_never_read(case: Case) -> None:
    """Whatever they hold: NaN would spread through a masked product."""
    tables = scattered(2, 12, seed=5)
    storage = case.backend.allocate_cache(2 * 12, BLOCK_SIZE)
    storage.pages[0].fill_(torch.nan)  # type: ignore[attr-defined]
    prompts = [random_tokens(30, seed=6), random_tokens(5, seed=7)]
    for prompt, table in zip(prompts, tables, strict=True):
        fill(case, storage, prompt, table)
    parts = [Rows([4], 30, tables[0]), Rows(random_tokens(4, seed=8), 5, tables[1], [-1, 0, 0, 2])]
    logits = case.backend.forward(make_pass(parts), storage).logits
    assert_close(logits[:1], reference_logits(case.model, [*prompts[0], 4])[-1:])
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama3", "qwen3-yarn"])
def test_long_positions_with_scaling(family: str, device: str) -> None:
    case = load(family, device)
    tokens = random_tokens(300, seed=9)
    storage = case.backend.allocate_cache(75, BLOCK_SIZE)
    output = case.backend.forward(make_pass([Rows(tokens, 0, range(75))], logit_rows=[250, 299]), storage)
    assert_close(output.logits, reference_logits(case.model, tokens)[[250, 299]])


@pytest.mark.parametrize("device", DEVICES)
def test_long_and_short_contexts_share_a_pass(device: str) -> None:
    """Prompt chunk, decode rows and a tree with contexts of different orders of magnitude."""
    case = load("mistral", device)
    tables = scattered(4, 100, seed=10)
    storage = case.backend.allocate_cache(400, BLOCK_SIZE)
    prompts = [random_tokens(count, seed=count) for count in (380, 2, 20, 150)]
    for prompt, table in zip(prompts, tables, strict=True):
        fill(case, storage, prompt, table)
    chunks = [[7], random_tokens(120, seed=11), [8], random_tokens(7, seed=12)]
    parts = [Rows(c, len(p), t) for c, p, t in zip(chunks, prompts, tables, strict=True)]
    logits = case.backend.forward(make_pass(parts), storage).logits
    for prompt, chunk, rows in zip(prompts, chunks, logits.split([len(c) for c in chunks]), strict=True):
        assert_close(rows, reference_logits(case.model, prompt + chunk)[len(prompt) :])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_only_the_wanted_rows_have_logits(family: str) -> None:
    case = load(family)
    tokens = random_tokens(12)
    storage = case.backend.allocate_cache(3, BLOCK_SIZE)
    every = case.backend.forward(make_pass([Rows(tokens, 0, range(3))]), storage).logits
    some = case.backend.forward(make_pass([Rows(tokens, 0, range(3))], logit_rows=[2, 11]), storage).logits
    none = case.backend.forward(make_pass([Rows(tokens, 0, range(3))], logit_rows=[]), storage).logits
    assert_close(some, every[[2, 11]])
    assert none.shape == (0, 101)


@torch.inference_mode()
def test_taps_are_the_layers_inputs(case: Case) -> None:
    tokens = random_tokens(10)
    layers = case.config.num_layers
    hidden = case.model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    if case.config.residual.streams is not None:
        # Of several streams, the first; after the last layer transformers shows them, not their norm.
        normed = case.model.base_model(torch.tensor([tokens]), use_cache=False).last_hidden_state
        hidden = [*(streams[0] for streams in hidden), normed]
    storage = case.backend.allocate_cache(3, BLOCK_SIZE)
    taps = (0, 2, layers, FINAL_TAP)
    output = case.backend.forward(make_pass([Rows(tokens, 0, range(3))], taps=taps, logit_rows=[9]), storage)
    assert output.hidden.taps == taps
    final = hidden[-1][0] / getattr(case.model.config, "logits_scaling", 1.0)  # a part of Granite's final norm here
    assert_close(torch.from_numpy(output.hidden[0]), hidden[0][0])
    assert_close(torch.from_numpy(output.hidden[2]), hidden[2][0])
    assert_close(torch.from_numpy(output.hidden[FINAL_TAP]), final)
    assert output.hidden[layers].shape == (10, case.config.hidden_size)
    stream = torch.from_numpy(output.hidden[layers]).to(case.backend.device) / case.config.residual.tap_scale
    if case.config.residual.streams is None:
        assert_close(case.backend.decoder.final_norm(stream), final)
    else:
        assert_close(stream, hidden[layers][0])
    assert_close(output.logits, reference_logits(case.model, tokens)[9:])


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_early_exit_is_the_model_of_the_first_layers(family: str) -> None:
    case = load(family)
    tokens = random_tokens(11)
    depth = 2
    shallow = make_model(family)
    stack = shallow.get_decoder()
    name = "h" if family == "gpt2" else "layers"
    setattr(stack, name, getattr(stack, name)[:depth])
    storage = case.backend.allocate_cache(3, BLOCK_SIZE)
    batch = make_pass([Rows(tokens, 0, range(3))], num_layers=depth, taps=(depth,))
    output = case.backend.forward(batch, storage)
    shallow.config.num_hidden_layers = depth
    assert_close(output.logits, reference_logits(shallow, tokens))
    assert_close(
        case.backend.decoder.logits(case.backend.decoder.final_norm(torch.from_numpy(output.hidden[depth]))),
        output.logits,
    )


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_rows_may_read_something_else_than_their_token(family: str) -> None:
    """Given what the embedding of a token is, they say what that token's row says; the others read their tokens."""
    case = load(family)
    config, decoder = case.config, case.backend.decoder
    tokens, rows = random_tokens(9), np.array([0, 4, 5], np.int32)
    storage = case.backend.allocate_cache(4, BLOCK_SIZE)
    expected = case.backend.forward(make_pass([Rows(tokens, 0, [0, 1, 2])]), storage).logits
    values = decoder.embedding[[tokens[row] for row in rows]] * config.embedding.scale
    hidden = [0 if place in rows else token for place, token in enumerate(tokens)]
    batch = make_pass([Rows(hidden, 0, [0, 1, 2])], inputs=RowInputs(rows, values))
    torch.testing.assert_close(case.backend.forward(batch, storage).logits, expected)


@pytest.mark.parametrize("settings", [{"taps": (5,)}, {"taps": (3,), "num_layers": 2}, {"num_layers": 5}])
def test_layers_that_do_not_run_cannot_be_asked_for(settings: dict[str, object]) -> None:
    case = load("llama")
    with pytest.raises(ValueError, match="do not fit 4 layers"):
        case.backend.forward(make_pass([Rows([3], 0, [0])], **settings), case.backend.allocate_cache(1, BLOCK_SIZE))


@pytest.mark.parametrize("family", ["llama-tied-biased", "gpt2"])
def test_unpacked_matrices_compute_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without oneDNN."""
    case = load(family)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with TemporaryDirectory() as directory:
        checkpoint = open_checkpoint(save_model(case.model, Path(directory)))
        backend = TorchBackend(*load_decoder(checkpoint, torch.float32))
    assert not backend.decoder.head.packed
    tokens = random_tokens(9)
    output = backend.forward(make_pass([Rows(tokens, 0, range(3))]), backend.allocate_cache(3, BLOCK_SIZE))
    assert_close(output.logits, reference_logits(case.model, tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [5, 1024, 1025, 2500])
@torch.inference_mode()
def test_linears_of_any_width(inputs: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight, bias = torch.randn(7, inputs, generator=generator).to(dtype), torch.randn(7, generator=generator).to(dtype)
    x = torch.randn(3, inputs, generator=generator).to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    y = Linear(LinearWeights(weight, bias), dtype, torch.device("cpu"))(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(6))
def test_random_batches_of_random_trees(seed: int, device: str) -> None:
    """Rows may also be several roots beside each other, each after the last cached token."""
    case = load(["mistral", "llama", "gemma2"][seed % 3], device)
    random_ = random.Random(seed)
    tables = scattered(6, 12, seed)
    storage = case.backend.allocate_cache(6 * 12, BLOCK_SIZE)
    prompts = [random_tokens(random_.randrange(1, 28), seed=random_.randrange(1000)) for _ in tables]
    parts = []
    for prompt, table in zip(prompts, tables, strict=True):
        fill(case, storage, prompt, table)
        length = random_.randrange(1, 19)
        parents = [random_.randrange(-1, row) for row in range(length)]
        parts.append(Rows(random_.choices(range(3, 101), k=length), len(prompt), table, parents))
    logits = case.backend.forward(make_pass(parts), storage).logits
    start = 0
    for prompt, part in zip(prompts, parts, strict=True):
        assert part.parents is not None
        for row in set(range(len(part.tokens))) - set(part.parents):
            path = path_to(part.parents, row)
            expected = reference_logits(case.model, prompt + [part.tokens[each] for each in path])
            assert_close(logits[[start + each for each in path]], expected[len(prompt) :])
        start += len(part.tokens)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama3", "mistral", "gemma2", "gemma3", "gpt-neox"])
def test_bfloat16_stays_near_float32(family: str, device: str) -> None:
    case = load(family)
    with TemporaryDirectory() as directory:
        checkpoint = open_checkpoint(save_model(case.model, Path(directory)))
        config, weights = load_decoder(checkpoint, torch.bfloat16)
        backend = TorchBackend(config, weights, torch.bfloat16, device)
    assert backend.name == "torch-bf16"
    tokens = random_tokens(30)
    table = scattered(1, 10)[0]
    storage = backend.allocate_cache(10, BLOCK_SIZE)
    assert storage.nbytes == 10 * BLOCK_SIZE * config.num_layers * 2 * config.num_kv_heads * config.head_dim * 2
    backend.forward(make_pass([Rows(tokens[:20], 0, table)], logit_rows=[]), storage)
    parents = [-1, 0, 0, 1, 1, 2, 4, 6, 3, 8]
    tree = backend.forward(make_pass([Rows(tokens[20:], 20, table, parents)]), storage).logits
    path = path_to(parents, 7)
    expected = reference_logits(case.model, tokens[:20] + [tokens[20 + row] for row in path])[20:]
    assert tree.dtype == torch.float32
    error = (tree[path].cpu() - expected).abs().mean() / expected.abs().mean()
    assert error < 0.03


# The cache's memory


def numbered_storage() -> TorchStorage:
    storage = load("llama").backend.allocate_cache(8, BLOCK_SIZE)
    assert isinstance(storage, TorchStorage)
    assert not storage.pages[0].any()
    slots = torch.arange(8.0 * BLOCK_SIZE)[None, :, None, None, None]
    layers = 100 * torch.arange(float(len(storage.pages[0])))[:, None, None, None, None]
    storage.pages[0].copy_((slots + layers).expand(storage.pages[0].shape))
    return storage


@pytest.mark.parametrize("seed", range(5))
def test_moves_happen_in_order(seed: int) -> None:
    """A slot may be source and target, in whatever order; the meaning is one move after the other."""
    generator = np.random.default_rng(seed)
    slots = np.arange(8 * BLOCK_SIZE, dtype=np.int32)
    pairs = [generator.choice(slots, 12), generator.choice(slots, 12, replace=False)]
    storage = numbered_storage()
    expected = storage.pages[0].clone()
    for source, target in zip(*pairs, strict=True):
        expected[:, target] = expected[:, source]
    storage.move(*(slots.tolist() for slots in pairs))
    assert torch.equal(storage.pages[0], expected)


def test_an_ascending_path_moves_down() -> None:
    storage = numbered_storage()
    storage.move([9, 11, 12], [8, 9, 10])
    assert storage.pages[0][1, 8:13, 1, 0, 0].tolist() == [109, 111, 112, 111, 112]
    storage.move([], [])


def test_blocks_are_copied_whole() -> None:
    storage = numbered_storage()
    before = storage.pages[0].clone()
    storage.copy_blocks([1, 6], [4, 0])
    blocks, old = storage.pages[0].unflatten(1, (8, BLOCK_SIZE)), before.unflatten(1, (8, BLOCK_SIZE))
    assert torch.equal(blocks[:, [4, 0]], old[:, [1, 6]])
    assert torch.equal(blocks[:, [1, 2, 3, 5, 6, 7]], old[:, [1, 2, 3, 5, 6, 7]])


@pytest.mark.parametrize(
    "family", thorough_but(["llama3", "qwen2-window", "phi3-longrope", "granite4", "gemma2", "gpt2"], FAMILIES)
)
def test_nothing_is_left_on_the_processor(family: str) -> None:
    """A prompt, a chunk, a tree and a move on a simulated accelerator, where tensors of two devices cannot meet."""
    tokens, tree = random_tokens(30, seed=20), random_tokens(len(TREE), seed=21)
    said = []
    for place in ("cpu", "simulated"):
        with on(place) as device:
            case, table = load(family, device), scattered(1, 12, seed=20)[0]
            storage = case.backend.allocate_cache(12, BLOCK_SIZE)
            taps = (0, case.config.num_layers, FINAL_TAP)
            passes = [
                make_pass([Rows(tokens[:21], 0, table)], taps=taps),
                make_pass([Rows(tokens[21:], 21, table)]),
                make_pass([Rows(tree, 30, table, TREE)]),
                make_pass([Rows([5], 33, table)]),
            ]
            outputs = []
            for number, batch in enumerate(passes):
                if number == 3:
                    path = path_to(TREE, 3)
                    storage.move(
                        [slot(table, 30 + row) for row in path], [slot(table, 30 + i) for i in range(len(path))]
                    )
                output = case.backend.forward(batch, storage)
                assert output.logits.device == torch.device(device)
                outputs += [output.logits.cpu(), *(torch.from_numpy(output.hidden[tap]) for tap in batch.taps)]
            said.append(outputs)
    for here, there in zip(*said, strict=True):
        assert_close(there, here)
