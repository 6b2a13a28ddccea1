"""Decoders of models with an encoder in the native pass: transformers' logits, and the same bits in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from memory_bench import Bench, Memory, random_tokens
from native_cases import FUSED, has_isa, isa_params, random_tree
from native_here import needs_native
from tiny_encoder_decoders import FAMILIES, WIDE, features, make_model, reference_logits, save_model
from torch import Tensor
from transformers import PreTrainedModel

from headstart.backends.native.encoder_decoder import NativeEncoderDecoder
from headstart.backends.native.precision import PRECISIONS, Precision
from headstart.backends.native.supported import supports
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart.models.encoder_decoder_weights import EncoderDecoderWeights
from headstart.passes.batch import FINAL_TAP, RowInputs
from passes import Rows, make_pass, path_to

pytestmark = needs_native
BLOCK = 32
TREE = [-1, 0, 0, 1, 1, 2, 4, 6, 3]
FOLDERS = ExitStack()
"""Of checkpoints: matrices are read when they are packed."""


@pytest.fixture(scope="module", autouse=True)
def folders() -> Iterator[None]:
    with FOLDERS:
        yield


@cache
def reference(family: str) -> PreTrainedModel:
    return make_model(family, **WIDE[family])


@cache
def weights_of(family: str) -> tuple[ModelConfig, EncoderDecoderWeights]:
    directory = Path(FOLDERS.enter_context(TemporaryDirectory()))
    return load_encoder_decoder(open_checkpoint(save_model(reference(family), directory)), torch.float32)


@cache
def native(
    family: str, precision: Precision = "fp32", isa: str | None = None, threads: int = 1
) -> NativeEncoderDecoder:
    return NativeEncoderDecoder(*weights_of(family), precision, threads, isa)


def bench_of(family: str, precision: Precision = "fp32", isa: str | None = None, threads: int = 1) -> Bench:
    return Bench(native(family, precision, isa, threads), 80, BLOCK)


def source_of(family: str, seed: int, length: int) -> Sequence[int] | np.ndarray:
    return features(seed) if family == "whisper" else random_tokens(length, seed)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """As near as float32 comes to logits that spread as far as one; T5 without a tied head does not scale them down."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-4 * max(1.0, expected.std().item())


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def run_chunks(
    bench: Bench, memory: Memory, table: Sequence[int], tokens: Sequence[int], sizes: Sequence[int], start: int = 0
) -> Tensor:
    """Logits of ``tokens`` from position ``start`` on, in chunks of these sizes, the last of which repeats."""
    logits, done = [], 0
    while done < len(tokens):
        size = sizes[min(len(logits), len(sizes) - 1)]
        logits.append(bench.run([Rows(tokens[done : done + size], start + done, table)], [memory]))
        done += size
    return torch.cat(logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str) -> None:
    """A prompt in chunks, then a tree of one sequence beside plain rows of another."""
    bench, model = bench_of(family), reference(family)
    assert supports(bench.backend.config) is None
    prompts = [random_tokens(count, seed=count) for count in (41, 7)]
    sources = [source_of(family, seed, length) for seed, length in ((1, 60), (2, 9))]
    memories, tables = [bench.encode(source) for source in sources], [bench.take(64), bench.take(64)]
    for prompt, source, memory, table in zip(prompts, sources, memories, tables, strict=True):
        logits = run_chunks(bench, memory, table, prompt, [13, 1, 2, 17])
        assert_close(logits, reference_logits(model, source, prompt))
    tree, chain = random_tokens(len(TREE), seed=3), random_tokens(4, seed=4)
    logits = bench.run([Rows(tree, 41, tables[0], TREE), Rows(chain, 7, tables[1])], memories)
    for leaf in set(range(len(TREE))) - set(TREE):
        path = path_to(TREE, leaf)
        expected = reference_logits(model, sources[0], prompts[0] + [tree[row] for row in path])
        assert_close(logits[path], expected[41:])
    expected = reference_logits(model, sources[1], prompts[1] + chain)
    assert_close(logits[len(TREE) :], expected[7:])


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_rows_have_the_same_bits_in_every_pass(family: str, precision: Precision, isa: str) -> None:
    check_bits(family, precision, isa)


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each not in ("fp32", "bf16")])
def test_rows_have_the_same_bits_in_every_precision(precision: Precision) -> None:
    check_bits("t5", precision, None)


def check_bits(family: str, precision: Precision, isa: str | None) -> None:
    bench = bench_of(family, precision, isa)
    source, tokens = random_tokens(45, seed=1), random_tokens(60, seed=2)
    memory, table = bench.encode(source), bench.take(96)
    expected = run_chunks(bench, memory, table, tokens, [1])
    for sizes in ([60], [3, 30, 7], [17, 40]):
        assert torch.equal(run_chunks(bench, memory, table, tokens, sizes), expected), sizes
    # A tree beside another sequence of the same memory, and one of another.
    parents = random_tree(14, seed=3)
    nodes, other = random_tokens(14, seed=4), random_tokens(5, seed=5)
    paths = {
        leaf: run_chunks(bench, memory, table, [nodes[row] for row in path_to(parents, leaf)], [1], start=60)
        for leaf in set(range(14)) - set(parents)
    }
    second, elsewhere = bench.take(32), bench.encode(random_tokens(9, seed=6))
    alone = [run_chunks(bench, each, second, other, [5]) for each in (memory, elsewhere)]
    logits = bench.run(
        [Rows(other, 0, second), Rows(nodes, 60, table, parents), Rows(other, 0, bench.take(32))],
        [memory, memory, elsewhere],
    )
    for leaf, rows in paths.items():
        assert torch.equal(logits[5:19][path_to(parents, leaf)], rows), leaf
    assert torch.equal(logits[:5], alone[0])
    assert torch.equal(logits[19:], alone[1])


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_any_team_and_any_way_of_the_same_arithmetic(precision: Precision) -> None:
    """Over borders of panels and of chunks: texts and memories of more than 512 positions."""
    tokens, source = random_tokens(600, seed=1), random_tokens(530, seed=2)
    logits = []
    for isa, threads in [(None, 1), (None, 2), (None, 3), *((isa, 1) for isa in FUSED if has_isa(isa))]:
        bench = bench_of("t5", precision, isa, threads)
        memory, table = bench.encode(source), bench.take(640)
        logits.append((isa, run_chunks(bench, memory, table, tokens, [590, 1])))
    same = [rows for isa, rows in logits if isa is None], [rows for isa, rows in logits if isa is not None]
    for group in same:
        for rows in group[1:]:
            assert torch.equal(rows, group[0])
    if precision == "fp32":
        assert_close(logits[0][1], reference_logits(reference("t5"), source, tokens))


def test_few_finished_rows_of_a_pass_are_those_of_all() -> None:
    """The last layer is computed of rows that somebody asks for alone."""
    for family in FAMILIES:
        bench = bench_of(family)
        memory, table, tokens = bench.encode(source_of(family, 1, 20)), bench.take(64), random_tokens(40, seed=3)
        whole = bench.run([Rows(tokens, 0, table)], [memory])
        some = bench.run([Rows(tokens, 0, table)], [memory], logit_rows=[3, 4, 17, 39])
        assert torch.equal(some, whole[[3, 4, 17, 39]])


@pytest.mark.parametrize("family", ["t5", "bart", "whisper"])
def test_early_exit_taps_and_best_tokens(family: str) -> None:
    bench = bench_of(family)
    memory, table, tokens = bench.encode(source_of(family, 1, 20)), bench.take(32), random_tokens(12, seed=3)
    tables = {
        "memory_lengths": np.array([memory.length], np.int32),
        "memory_tables": np.array([memory.blocks], np.int32),
    }
    taps = (0, 2, FINAL_TAP)
    early = bench.backend.forward(make_pass([Rows(tokens, 0, table)], num_layers=2, taps=taps, **tables), bench.storage)
    config, weights = weights_of(family)
    head = weights.head
    logits = torch.from_numpy(early.hidden[FINAL_TAP]) @ head.weight.T + (0 if head.bias is None else head.bias)
    assert_close(early.logits, logits)
    # What reads the first layer's input in place of tokens gets the same.
    values = weights.embedding[tokens].float() * config.embedding.scale
    given = RowInputs(np.arange(12, dtype=np.int32), values)
    batch = make_pass([Rows([0] * 12, 0, table)], num_layers=2, taps=taps, inputs=given, **tables)
    again = bench.backend.forward(batch, bench.storage)
    assert torch.equal(again.logits, early.logits)
    best = make_pass([Rows(tokens, 0, table)], logit_rows=[], best_rows=np.arange(12, dtype=np.int32), **tables)
    found = bench.backend.forward(best, bench.storage).best
    assert found is not None
    assert found.tolist() == bench.run([Rows(tokens, 0, table)], [memory]).argmax(-1).tolist()


def test_foreign_slots_of_pages_are_never_read() -> None:
    bench = bench_of("t5")
    bench.storage.memory.view(np.float32).fill(np.nan)  # type: ignore[attr-defined]
    source, tokens = random_tokens(9, seed=1), random_tokens(3, seed=2)
    logits = bench.run([Rows(tokens, 0, bench.take(3))], [bench.encode(source)])
    assert_close(logits, reference_logits(reference("t5"), source, tokens))


def test_bf16_and_levels_of_bits_are_near() -> None:
    """Of the reference's spread: or rounding would be the only thing that is right."""
    source, tokens = random_tokens(30, seed=1), random_tokens(20, seed=2)
    expected = reference_logits(reference("bart"), source, tokens)
    for precision, share in (("bf16", 0.03), ("int8", 0.06), ("int4", 0.5)):
        bench = bench_of("bart", precision)  # type: ignore[arg-type]
        logits = bench.run([Rows(tokens, 0, bench.take(32))], [bench.encode(source)])
        assert (logits - expected).std() < share * expected.std(), precision


@pytest.mark.parametrize(
    ("lengths", "tables", "message"),
    [
        (None, None, "names no encoder memories"),
        ([0], [[1]], "an encoder memory is empty"),
        ([33], [[1]], "a block table is shorter"),
        ([3], [[80]], "a block outside the cache"),
        ([3, 3], [[1], [1]], "do not fit 1 sequences"),
    ],
)
def test_bad_memories_get_a_sentence(lengths: list[int] | None, tables: list[list[int]] | None, message: str) -> None:
    bench = bench_of("t5")
    named = {} if lengths is None else {"memory_lengths": np.array(lengths, np.int32)}
    named |= {} if tables is None else {"memory_tables": np.array(tables, np.int32)}
    with pytest.raises(ValueError, match=message):
        bench.backend.forward(make_pass([Rows([5, 6], 0, [0])], **named), bench.storage)
