"""Trained heads on the native library compute what they compute by PyTorch, and rows do not depend on their company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from mapped_heads import map_rows, output_rows
from native_cases import isa_params, make_random, on_grids, small_config
from native_here import needs_native
from torch import Tensor

from headstart.backends.native.heads import NativeEaglePass, supports_head
from headstart.backends.native.linear import NativeLinear, best_tokens, native_kit
from headstart.backends.native.loader import load_library
from headstart.backends.native.masked_pass import NativeMaskedPass
from headstart.backends.native.precision import Precision
from headstart.backends.torch.eagle_pass import EaglePass
from headstart.backends.torch.head_kit import best_tokens as best_by_torch
from headstart.backends.torch.masked_pass import MaskedPass
from headstart.drafting.heads.head_pass import DraftCache, DraftRows, HeadPass, MaskedHeadPass
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.heads.text_vocabulary import text_vocabulary
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import ConfigError
from headstart.models.linear_weights import LinearWeights
from headstart_train.first_steps.eagle import eagle_config

VOCAB, DRAFT_VOCAB = 77, 45
VARIANTS = {
    "eagle3": {},
    "normed residual": {"norm_before_residual": True},
    "no norm before fusing, state not normed": {"fc_norm": False, "norm_output": False},
    "one norm before fusing": {"fc_norm": False, "norm_before_fc": True},
    "biases": {"attention_bias": True, "fc_bias": True},
    "odd sizes": {"hidden_size": 83, "mlp_size": 77},
    "eagle1": {"variant": "eagle"},
    "the target's output rows": {"borrows_output": True},
    "two layers": {"num_layers": 2},
    "normed residual, three layers with biases": {
        "norm_before_residual": True,
        "num_layers": 3,
        "attention_bias": True,
    },
    "two layers, state not normed": {"num_layers": 2, "norm_output": False},
    "eagle1, two layers": {"variant": "eagle", "num_layers": 2},
    "queries and keys normed, two layers": {"head_norms": True, "num_layers": 2},
    "windows": {"windows": (9, 0), "num_layers": 2, "norm_output": False},
    "a window narrower than a path": {"windows": (3,), "head_norms": True},
}


def random_head(hidden_size: int = 96, variant: str = "eagle3", **changes: object) -> EagleHead:
    target = small_config(hidden_size=hidden_size, vocab_size=VOCAB, layers=small_config().layers * 3)
    config = eagle_config(target, variant, DRAFT_VOCAB if variant == "eagle3" else None)  # type: ignore[arg-type]
    head = EagleHead(replace(config, **changes))
    make_random(head)
    if head.config.reduced:
        head.d2t.copy_(torch.arange(DRAFT_VOCAB) // 2)
    return head


def tables(head: EagleHead) -> TargetTables:
    generator = torch.Generator().manual_seed(2)
    shape = (VOCAB, head.config.hidden_size)
    embedding, output = (torch.randn(shape, generator=generator).bfloat16().float() for _ in range(2))
    return TargetTables(embedding, output * shape[1] ** -0.5)


class Draft:
    """Hand-made drafts of sequences of random tokens: what a head answers, pass by pass."""

    def __init__(self, head: HeadPass, lengths: Sequence[int], taps: int, hidden: int) -> None:
        self.head = head
        self.taps, self.hidden = taps, hidden
        self.lengths = lengths
        self.caches: list[DraftCache] = [head.new_cache() for _ in lengths]

    def read(self, which: Sequence[int], chunks: int = 1) -> list[tuple[Tensor, Tensor]]:
        """(states, logits) after the last row of each sequence, read side by side."""
        answers = []
        for chunk in range(chunks):
            tokens, features, parts = [], [], []
            for i in which:
                rng = np.random.default_rng(i)
                part = np.array_split(np.arange(self.lengths[i]), chunks)[chunk]
                tokens.append(rng.integers(0, VOCAB, self.lengths[i]).astype(np.int32)[part])
                all_features = rng.normal(size=(self.lengths[i], self.taps * self.hidden))
                features.append(torch.from_numpy(all_features[part]).float())
                parts.append(DraftRows(self.caches[i], len(part)))
            states, logits = self.head.read(np.concatenate(tokens), torch.cat(features), parts)
            answers = list(zip(states, logits, strict=True))
        return answers

    def step(self, which: Sequence[int], level: int, beams: Sequence[int] = (0, 1, 2)) -> list[tuple[Tensor, Tensor]]:
        """Rows of level ``level``: three beams a sequence, of which ``beams`` run; beam b stands below beam b // 2."""
        tokens, states, parts = [], [], []
        for i in which:
            for beam in beams:
                rng = np.random.default_rng([i, level, beam])
                tokens.append(rng.integers(0, VOCAB))
                states.append(torch.from_numpy(rng.normal(size=self.hidden)).float())
            paths = [[(b >> (level - up)) + 3 * up for up in range(level)] + [3 * level + b] for b in beams]
            parts.append(DraftRows(self.caches[i], len(beams), np.array(paths, dtype=np.int32)))
        answers = self.head.step(np.array(tokens, dtype=np.int32), torch.stack(states), parts)
        return list(zip(*answers, strict=True))


def whole_draft(head: HeadPass, config: object, lengths: Sequence[int]) -> list[Tensor]:
    """Everything a head says over prompts, three levels, a rejection and another draft."""
    draft = Draft(head, lengths, len(config.taps), config.hidden_size)  # type: ignore[attr-defined]
    which = range(len(lengths))
    answers = draft.read(which)
    for _ in range(2):
        for level in range(3):
            answers += draft.step(which, level)
        for cache, length in zip(draft.caches, lengths, strict=True):
            cache.truncate(length)
    return [part for answer in answers for part in answer]


def distance(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of two answers, relative to the size of what is compared."""
    return max(float((g - w).norm() / w.norm()) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", VARIANTS)
def test_heads_agree_with_pytorch(name: str, isa: str) -> None:
    head = random_head(**VARIANTS[name])  # type: ignore[arg-type]
    lengths = (70, 5)
    wanted = whole_draft(EaglePass(head, tables(head), torch.float32), head.config, lengths)
    for precision, tolerance in (
        ("fp32", 1e-5),
        ("bf16", 0.02),
        ("int8", 0.1),
        ("int8-fast", 0.12),
    ):
        native = NativeEaglePass(head, tables(head), precision, 1, isa)  # type: ignore[arg-type]
        assert distance(whole_draft(native, head.config, lengths), wanted) < tolerance, precision


def guesses(head: MaskedHeadPass, lengths: Sequence[int], slots: Sequence[int]) -> list[Tensor]:
    """States and logits of two drafts, with so many slots, each with new true rows first; side by side."""
    taps, hidden = len(head.config.taps), head.config.hidden_size  # type: ignore[attr-defined]
    caches = [head.new_cache() for _ in lengths]
    said: list[Tensor] = []
    for turn, asked in enumerate(slots):
        counts = [length if turn == 0 else 2 for length in lengths]
        rngs = [np.random.default_rng([length, turn]) for length in lengths]
        tokens = [rng.integers(0, VOCAB, count).astype(np.int32) for rng, count in zip(rngs, counts, strict=True)]
        features = [rng.normal(size=(count, taps * hidden)) for rng, count in zip(rngs, counts, strict=True)]
        rows = [DraftRows(cache, count) for cache, count in zip(caches, counts, strict=True)]
        said += head.guess(np.concatenate(tokens), torch.from_numpy(np.concatenate(features)).float(), rows, asked)
        assert [cache.rows for cache in caches] == [length + 2 * turn for length in lengths]
    return said


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", [name for name in VARIANTS if "eagle1" not in name])
def test_masks_agree_with_pytorch(name: str, isa: str) -> None:
    head = random_head(**VARIANTS[name], slots=5, mask_token_id=6)  # type: ignore[arg-type]
    wanted = guesses(MaskedPass(head, tables(head), torch.float32), (70, 5), (5, 3))
    for precision, tolerance in (("fp32", 1e-5), ("bf16", 0.02), ("int8", 0.1)):
        native = NativeMaskedPass(head, tables(head), precision, 1, isa)  # type: ignore[arg-type]
        assert distance(guesses(native, (70, 5), (5, 3)), wanted) < tolerance, precision


@needs_native
@pytest.mark.parametrize("precision", ["bf16", "int8-fast", "int4-fast", "fp32"])
def test_masks_do_not_depend_on_their_company(precision: Precision) -> None:
    """Other sequences, further masks, threads."""
    head = random_head(slots=5, mask_token_id=6)
    together = guesses(NativeMaskedPass(head, tables(head), precision, 1), (40, 7, 90), (5, 5))
    for i, length in enumerate((40, 7, 90)):
        alone = guesses(NativeMaskedPass(head, tables(head), precision, 2), (length,), (4, 2))
        for turn, (got, beside) in enumerate(zip(alone, together, strict=True)):
            assert torch.equal(got[0], beside[i, : (4, 4, 2, 2)[turn]])


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", VARIANTS)
def test_heads_on_grids_of_sixteen_levels_are_kept(name: str, isa: str) -> None:
    head = random_head(**VARIANTS[name])  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 2:
                parameter.copy_(on_grids(parameter))
    of_target = tables(head)
    said_by = TargetTables(of_target.embedding, on_grids(of_target.head))
    lengths = (70, 5)
    wanted = whole_draft(EaglePass(head, said_by, torch.float32), head.config, lengths)
    for precision, tolerance in (("int4", 0.01), ("int4-fast", 0.05)):
        native = NativeEaglePass(head, said_by, precision, 1, isa)  # type: ignore[arg-type]
        # Keys and values are rounded in every layer.
        allowed = tolerance * head.config.num_layers
        assert distance(whole_draft(native, head.config, lengths), wanted) < allowed, precision


@needs_native
@pytest.mark.parametrize("precision", ["bf16", "int8-fast", "int4-fast", "fp32"])
def test_a_row_does_not_depend_on_its_company(precision: Precision) -> None:
    """Chunks, batches, threads, and the beams beside it."""
    head = random_head()
    taps, hidden, lengths = len(head.config.taps), head.config.hidden_size, (40, 7, 90)
    together = Draft(NativeEaglePass(head, tables(head), precision, 1), lengths, taps, hidden)
    said = together.read(range(3))
    said_next = together.step(range(3), 0)
    said_last = together.step(range(3), 1)
    for i in range(3):
        alone = Draft(NativeEaglePass(head, tables(head), precision, 2), lengths, taps, hidden)
        for got, wanted in zip(alone.read([i], chunks=3), said[i : i + 1], strict=True):
            assert all(map(torch.equal, got, wanted))
        next_rows = [row for beam in range(3) for row in alone.step([i], 0, [beam])]
        last_rows = [row for beam in range(3) for row in alone.step([i], 1, [beam])]
        for got, wanted in zip(next_rows + last_rows, said_next[3 * i :][:3] + said_last[3 * i :][:3], strict=True):
            assert all(map(torch.equal, got, wanted))


@needs_native
@pytest.mark.parametrize("num_layers", [1, 2])
def test_long_and_many_sequences_find_pages(num_layers: int) -> None:
    """Far more rows than the first pages hold; pages given back are used again, and show nothing of what was there."""
    head = random_head(num_layers=num_layers)
    taps, hidden = len(head.config.taps), head.config.hidden_size
    native = NativeEaglePass(head, tables(head), "bf16", 1)
    lengths = (1500, 30, 900)
    draft = Draft(native, lengths, taps, hidden)
    said = [draft.read([i])[0] + draft.step([i], 0)[1] for i in range(3)]
    for cache in draft.caches:
        cache.release()
    again = Draft(native, lengths, taps, hidden)
    for i in (2, 0, 1):
        assert all(map(torch.equal, again.read([i])[0] + again.step([i], 0)[1], said[i]))


@needs_native
@pytest.mark.parametrize("isa", isa_params())
def test_rows_know_their_place_in_the_text(isa: str) -> None:
    """Where the first rows were freed, what follows is what a head says that has read the rest alone, by either pass;
    how far into the text it all stands is nothing that rows can tell."""
    head = random_head()
    lengths, taps, hidden = (100, 70), len(head.config.taps), head.config.hidden_size
    said: dict[str, list[Tensor]] = {}
    for name, running in (
        ("torch", EaglePass(head, tables(head), torch.float32)),
        ("native", NativeEaglePass(head, tables(head), "fp32", 1, isa)),
    ):
        for first in (0, 900):
            draft = Draft(running, lengths, taps, hidden)
            for cache in draft.caches:
                cache.begin(first)
            draft.read([0, 1])
            assert [cache.drop(rows) for cache, rows in zip(draft.caches, (75, 31), strict=True)] == [64, 0]
            assert [(cache.first, cache.rows) for cache in draft.caches] == [(first + 64, 36), (first, 70)]
            copied = running.new_cache()
            copied.extend(draft.caches[0], 4, 32)
            assert copied.first == first + 68
            draft.caches[0] = copied
            answers = draft.step([0, 1], 0) + draft.step([0, 1], 1)
            said[f"{name} {first}"] = [part for answer in answers for part in answer]
    wanted = said.pop("torch 0")
    assert distance(said["native 0"], wanted) < 1e-5
    assert all(distance(got, wanted) < 1e-3 for got in said.values())


@needs_native
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("precision", ["bf16", "int8-fast", "int4-fast", "fp32"])
def test_copied_rows_are_the_rows(precision: Precision, num_layers: int) -> None:
    """In pieces that lie across pages, by way of caches in between; what is given back is free again."""
    head = random_head(num_layers=num_layers)
    native = NativeEaglePass(head, tables(head), precision, 1)
    draft = Draft(native, (1200, 1200), len(head.config.taps), head.config.hidden_size)
    draft.read([0])
    source, target = draft.caches
    for first, count in ((0, 31), (31, 32), (63, 1000), (1063, 137)):
        between = native.new_cache()
        between.extend(source, first, count)
        target.extend(between, 0, count)
        between.release()
    assert target.rows == 1200
    draft.caches = [source, source]
    wanted = draft.step([1], 0)
    draft.caches = [source, target]
    for got, expected in zip(draft.step([1], 0), wanted, strict=True):
        assert all(map(torch.equal, got, expected))
    source.release()
    target.release()
    storage = native._pages.storage
    assert sorted(native._pages.take(storage.num_blocks)) == list(range(storage.num_blocks))
    assert native.row_bytes * 32 * storage.num_blocks == storage.nbytes


@needs_native
def test_what_cannot_be_stepped_is_refused() -> None:
    head = random_head()
    native = NativeEaglePass(head, tables(head), "bf16", 1)
    cache = native.new_cache()
    hidden, true_width = head.config.hidden_size, head.config.hidden_size * len(head.config.taps)
    tokens = np.array([3, 4], np.int32)
    native.read(tokens, torch.zeros(2, true_width), [DraftRows(cache, 2)])
    with pytest.raises(ValueError, match="features are"):
        native.step(tokens, torch.zeros(2, true_width), [DraftRows(cache, 2, np.array([[0], [1]], np.int32))])
    with pytest.raises(ValueError, match="own row"):
        native.step(tokens, torch.zeros(2, hidden), [DraftRows(cache, 2, np.array([[0], [0]], np.int32))])
    with pytest.raises(ValueError, match="outside the draft"):
        native.step(tokens[:1], torch.zeros(1, hidden), [DraftRows(cache, 1, np.array([[5, 0]], np.int32))])
    with pytest.raises(ValueError, match="vocabulary"):
        native.read(np.array([VOCAB], np.int32), torch.zeros(1, true_width), [DraftRows(cache, 1)])
    assert cache.rows == 2
    config = replace(head.config, head_dim=24)
    assert "head_dim 24" in (supports_head(config) or "")
    with pytest.raises(ConfigError, match="head_dim 24"):
        NativeEaglePass(EagleHead(config), tables(head))


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(("outputs", "inputs"), [(50, 96), (33, 83), (1, 16)])
def test_a_linear_layer_by_itself(outputs: int, inputs: int, isa: str) -> None:
    library = load_library(isa)
    assert library is not None
    generator = torch.Generator().manual_seed(3)
    weight = (torch.randn(outputs, inputs, generator=generator) * inputs**-0.5).bfloat16()
    bias = torch.randn(outputs, generator=generator)
    x = torch.randn(300, inputs, generator=generator)
    wanted = torch.nn.functional.linear(x, weight.float(), bias)
    for precision, tolerance in (
        ("fp32", 1e-5),
        ("bf16", 0.02),
        ("int8", 0.03),
        ("int8-fast", 0.05),
        ("int4", 0.12),
        ("int4-fast", 0.12),
    ):
        layer = NativeLinear(library, LinearWeights(weight, bias), precision, 2)  # type: ignore[arg-type]
        assert distance([layer(x)], [wanted]) < tolerance
        assert torch.equal(layer(x)[7:8], layer(x[7:8]))
    with pytest.raises(ValueError, match="rows x inputs"):
        layer(x[:, :-1])


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("inputs", [64, 576, 1536])
def test_int8_is_integer_arithmetic(inputs: int, planes: int, isa: str) -> None:
    """Bit for bit on every instruction set, however many rows there are: the units and the integers they stand for are
    written down here, sums of products are exact, and only what follows them rounds."""
    library = load_library(isa)
    assert library is not None
    generator = torch.Generator().manual_seed(inputs)
    weight, x = torch.randn(70, inputs, generator=generator).bfloat16(), torch.randn(40, inputs, generator=generator)
    x[3] *= 1e-3
    x[5, 0], x[6, 1] = 50.0, -50.0  # all others far below the largest
    limit = torch.tensor(32512.0 if planes == 2 else 127.0)
    top = x.abs().amax(1, keepdim=True)
    numbers = (x * (limit / top)).round().long()
    high = (numbers + 128).div(256, rounding_mode="floor") if planes == 2 else numbers
    low = numbers - 256 * high if planes == 2 else torch.zeros_like(numbers)
    units = weight.float().abs().amax(1) / 127
    rounded = (weight.float() / units[:, None]).round().long()
    sums = [(plane @ rounded.T).float() for plane in (high, low)]
    both = (sums[0].double() * 256 + sums[1].double()).float() if planes == 2 else sums[0]
    wanted = both * (units * (top / limit))
    layer = NativeLinear(library, LinearWeights(weight), "int8" if planes == 2 else "int8-fast", 1)
    for rows in (1, 2, 6, 7, 8, 9, 15, 16, 17, 24, 32, 33, 40):
        assert torch.equal(layer(x[:rows]), wanted[:rows]), rows


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("size", [7, 64, 100, 4096])
def test_the_likeliest_tokens(size: int, isa: str) -> None:
    library = load_library(isa)
    assert library is not None
    logits = torch.randn(5, size, generator=torch.Generator().manual_seed(size)) * 4
    log_probs, ids = best_tokens(library, logits, 6)
    wanted_log_probs, wanted_ids = best_by_torch(logits, 6)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(log_probs, wanted_log_probs, atol=1e-5)


@needs_native
def test_the_likeliest_of_odd_rows() -> None:
    library = load_library()
    assert library is not None
    logits = torch.zeros(3, 70)
    logits[1, 40], logits[2] = torch.nan, -torch.inf
    logits[2, 66] = 2.0
    log_probs, ids = best_tokens(library, logits, 3)
    assert ids[0].tolist() == [0, 1, 2]  # equals in order
    assert np.isnan(log_probs[1]).all()
    assert ids[2, 0] == 66
    assert log_probs[2, 0] == 0
    assert np.isneginf(log_probs[2, 1:]).all()


def test_a_kit_where_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_NATIVE", "0")
    assert native_kit() is None
    with pytest.raises(ConfigError, match="use PyTorch"):
        NativeEaglePass(random_head(), tables(random_head()))


@needs_native
def test_rows_of_text_tokens_do_not_depend_on_each_other() -> None:
    """A stretch makes the rows of what it says one by one."""
    head, rows = random_head(hidden_size=83), output_rows(VOCAB, 83, torch.Generator().manual_seed(2))
    map_rows(head, rows)
    vocabulary = text_vocabulary(head, TargetTables(rows, rows), VOCAB)
    assert vocabulary is not None
    native = NativeEaglePass(head, TargetTables(rows, rows), "bf16", 2)
    text = [token for token in range(VOCAB) if vocabulary.lacks[token]]
    assert len(text) > 20
    whole, grown = native.text_tokens(vocabulary, 64), native.text_tokens(vocabulary, 64)
    whole.read(text)
    for end in range(1, len(text) + 1):
        grown.read(text[:end])
    assert torch.equal(whole.rows, grown.rows)
    torch.testing.assert_close(whole.rows, vocabulary.rows(whole.tokens), rtol=0.01, atol=1e-3)
