"""Multi-token modules of a GGUF file on the native pass, in the file's own blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_hybrids import write_hybrid
from module_drafts import distance, native_pass, whole_draft
from multi_token_models import NATIVE_SIZES, write_modules
from native_cases import isa_params
from native_here import needs_native

from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token_modules import load_multi_token
from headstart.models.weight_loading import config_of, load_tables


@needs_native
@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("quantised", ["Q4_0", "Q8_0"])
def test_a_files_own_blocks(quantised: str, isa: str, tmp_path: Path) -> None:
    """They are multiplied as they are; of the output head as many rows as are asked for."""
    sizes = NATIVE_SIZES["qwen3_5_text"] | {"hidden_size": 256, "intermediate_size": 256}
    reference = write_modules("qwen3_5_text", tmp_path, 1, **sizes)
    theirs = {"embedding": "enorm", "hidden": "hnorm", "projection": "eh_proj", "final": "shared_head_norm"}
    around = [{theirs[part]: tensor for part, tensor in parts.items()} for parts in reference.parts]
    checkpoint = open_checkpoint(write_hybrid(reference.model, tmp_path / "tiny.gguf", quantised, modules=around))
    modules = load_multi_token(checkpoint, config_of(checkpoint), torch.float32)
    assert modules is not None
    tables = TargetTables(*load_tables(checkpoint, torch.float32))
    wanted = whole_draft(MultiTokenPass(modules, tables, torch.float32), 256)
    native = native_pass(modules, tables, "blocks", isa)
    assert distance(whole_draft(native, 256), wanted) < 5e-3
    cut = NativeModulePass(modules, tables, "blocks", 70, threads=1, isa=isa)
    tokens, hidden = np.arange(5, 9, dtype=np.int32), torch.randn(4, 256)
    whole, few = (each.read(tokens, hidden, [DraftRows(each.new_cache(), 4)])[1] for each in (native, cut))
    assert distance(few, whole[:, :70]) < 0.2  # in 4 bits
    rows = cut.text_rows(259)
    assert rows is not None
    assert torch.equal(rows.rows(np.array([90, 200], np.int32)), tables.head[[90, 200]].bfloat16())
