"""Multi-token modules on the native library compute what they compute by PyTorch, whatever stands beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from module_drafts import LENGTHS, distance, native_pass, whole_draft
from multi_token_models import NATIVE_SIZES, write_modules
from native_cases import isa_params
from native_here import FASTEST, needs_native

from headstart.backends.native.module_chain import NativeModuleChain
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token_modules import MultiTokenModules, load_multi_token
from headstart.models.weight_loading import config_of, load_tables


def opened(family: str, modules: int, directory: Path, **sizes: object) -> tuple[MultiTokenModules, TargetTables]:
    """Modules of a tiny checkpoint whose numbers bf16 holds."""
    write_modules(family, directory, modules, **(NATIVE_SIZES[family] | sizes))
    checkpoint = open_checkpoint(directory)
    found = load_multi_token(checkpoint, config_of(checkpoint), torch.float32)
    assert found is not None
    return found, TargetTables(*load_tables(checkpoint, torch.float32))


@needs_native
@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(
    ("family", "count"),
    [(family, 1) for family in NATIVE_SIZES] + [("mimo", 3), ("deepseek_v3", 2), ("step3p7", 3), ("deepseek_v4", 2)],
)
def test_modules_agree_with_pytorch(family: str, count: int, isa: str, tmp_path: Path) -> None:
    modules, tables = opened(family, count, tmp_path)
    hidden = modules.state_size
    wanted = whole_draft(MultiTokenPass(modules, tables, torch.float32), hidden)
    native = native_pass(modules, tables, "fp32", isa)
    assert distance(whole_draft(native, hidden, chunks=3), wanted) < 2e-5


@needs_native
@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("count", [1, 2])
def test_fewer_bits_stay_near(count: int, isa: str, tmp_path: Path) -> None:
    modules, tables = opened("mimo", count, tmp_path)
    hidden = modules.state_size
    wanted = whole_draft(MultiTokenPass(modules, tables, torch.float32), hidden)
    for precision, tolerance in (("bf16", 0.03), ("int8", 0.1), ("int8-fast", 0.12), ("int4", 0.6)):
        native = native_pass(modules, tables, precision, isa)  # type: ignore[arg-type]
        assert distance(whole_draft(native, hidden), wanted) < tolerance, precision


@needs_native
@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(
    ("family", "count"),
    [("deepseek_v3", 1), ("glm4_moe", 1), ("qwen3_next", 1), ("mimo", 2), ("deepseek_v4", 1)],
)
def test_company_chunks_and_threads_change_no_bit(family: str, count: int, isa: str, tmp_path: Path) -> None:
    modules, tables = opened(family, count, tmp_path)
    hidden = modules.state_size
    for precision in ("bf16", "int8", "int4"):
        native = native_pass(modules, tables, precision, isa)  # type: ignore[arg-type]
        together = whole_draft(native, hidden)
        for i in range(len(LENGTHS)):
            assert torch.equal(whole_draft(native, hidden, [i], chunks=2)[0], together[i]), (precision, i)
        threads = native_pass(modules, tables, precision, isa, threads=2)  # type: ignore[arg-type]
        assert all(map(torch.equal, whole_draft(threads, hidden), together)), precision


@needs_native
@pytest.mark.parametrize("family", ["mimo", "step3p7"])
def test_rows_of_the_text_say_what_the_whole_head_does(family: str, tmp_path: Path) -> None:
    """Also where the states that are fed back were not normed."""
    modules, tables = opened(family, 1, tmp_path)
    cut, whole = (NativeModulePass(modules, tables, "fp32", vocabulary) for vocabulary in (60, 0))
    hidden = torch.randn(5, modules.config.hidden_size, generator=torch.Generator().manual_seed(2))
    tokens = np.arange(5, 10, dtype=np.int32)
    states, few = cut.read(tokens, hidden, [DraftRows(cut.new_cache(), 5)])
    _, wanted = whole.read(tokens, hidden, [DraftRows(whole.new_cache(), 5)])
    source = cut.text_rows(80)
    assert source is not None
    texts = cut.text_tokens(source, 40)
    texts.read([*range(58, 80)])
    said = texts.logits(states, modules.config.norms.eps if modules.feeds_unnormed else None)
    assert texts.tokens.tolist() == [*range(60, 80)]
    assert distance([few], [wanted[:, :60]]) < 1e-5
    assert distance([said], [wanted[:, 60:80]]) < 0.01  # rows in bf16


@needs_native
@pytest.mark.parametrize("family", ["mimo", "step3p7"])
def test_each_module_says_tokens_of_the_text_by_its_own_rows(family: str, tmp_path: Path) -> None:
    modules, tables = opened(family, 3, tmp_path)
    cut, whole = (NativeModuleChain(modules, tables, "fp32", vocabulary) for vocabulary in (60, 0))
    source = cut.text_rows(80)
    assert source is not None
    texts = cut.text_tokens(source, 40)
    texts.read([*range(58, 80)])
    hidden = torch.randn(5, modules.config.hidden_size, generator=torch.Generator().manual_seed(2))
    tokens, caches = np.arange(5, 10, dtype=np.int32), [each.new_cache() for each in (cut, whole)]
    drafts = [
        each.read(tokens, hidden, [DraftRows(cache, 5)]) for each, cache in zip((cut, whole), caches, strict=True)
    ]
    for level in range(1, 6):
        (states, few), (_, wanted) = drafts
        said = texts.logits(cut.said_states(states, level), cut.text_eps)
        assert distance([few], [wanted[:, :60]]) < 1e-5
        assert distance([said], [wanted[:, 60:80]]) < 0.01  # rows in bf16
        token, path = np.array([20 + level], np.int32), np.arange(level, dtype=np.int32)[None]
        groups = [[DraftRows(cache, 1, path)] for cache in caches]
        drafts = [
            each.step(token, states, own) for each, (states, _), own in zip((cut, whole), drafts, groups, strict=True)
        ]


@needs_native
@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_prefixes_are_taken_over(count: int, tmp_path: Path) -> None:
    modules, tables = opened("mimo", count, tmp_path)
    native = native_pass(modules, tables, "bf16", FASTEST)
    hidden = modules.state_size
    rng = np.random.default_rng(3)
    tokens, features = rng.integers(0, 90, 60).astype(np.int32), torch.from_numpy(rng.normal(size=(60, hidden))).float()
    whole, blocks = native.new_cache(), []
    wanted = native.read(tokens, features, [DraftRows(whole, 60)])
    for first, end in ((0, 19), (19, 39)):
        blocks.append(native.new_cache())
        blocks[-1].extend(whole, first, end - first)
    whole.release()
    again = native.new_cache()
    for block in blocks:
        again.extend(block, 0, block.rows)
    got = native.read(tokens[39:], features[39:], [DraftRows(again, 21)])
    assert all(map(torch.equal, got, wanted))
