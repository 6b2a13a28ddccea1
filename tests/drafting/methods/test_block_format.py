"""Block heads in the files of z-lab, of DeepSpec and of speculators."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, MLP, TARGET, VOCAB, matrices, write
from safetensors.torch import load_file

from headstart.drafting.head_files.loading import is_whole_model, kind_in, load_head
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.errors import CheckpointError
from headstart_train.files.heads import export_head, save_head
from headstart_train.files.importing import import_head
from headstart_train.first_steps.block import block_config, block_taps

LAYER: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "layer_types": ["full_attention", "full_attention"],
}
Z_LAB = {
    "architectures": ["DFlashDraftModel"],
    **LAYER,
    "block_size": 8,
    "num_target_layers": 8,
    "dflash_config": {"mask_token_id": 15, "target_layer_ids": [1, 3, 5]},
}
SPECULATORS = {
    "speculators_model_type": "dflash",
    "speculators_version": "0.3.0",
    "architectures": ["DFlashSpeculator"],
    "aux_hidden_state_layer_ids": [2, 4, 6],
    "block_size": 8,
    "draft_vocab_size": 8,
    "mask_token_id": 15,
    "transformer_layer_config": LAYER,
}


def block_tensors() -> dict[str, torch.Tensor]:
    tensors = {
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN),
        "hidden_norm.weight": torch.rand(HIDDEN),
        "norm.weight": torch.rand(HIDDEN),
    }
    for layer in range(2):
        tensors |= matrices(f"layers.{layer}.", HIDDEN)
        for name, size in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):
            tensors[f"layers.{layer}.{name}.weight"] = torch.rand(size)
        for name in ("q_norm", "k_norm"):
            tensors[f"layers.{layer}.self_attn.{name}.weight"] = torch.rand(HEAD_DIM)
    return tensors


def reduced_tensors() -> dict[str, torch.Tensor]:
    """Draft id j is target id 2j."""
    said = torch.zeros(VOCAB, dtype=torch.bool)
    said[0:16:2] = True
    return block_tensors() | {"lm_head.weight": torch.randn(8, HIDDEN), "d2t": torch.arange(8), "t2d": said}


def block(directory: Path) -> BlockHead:
    head = load_head(directory, TARGET)
    assert isinstance(head, BlockHead)
    return head


def test_z_labs_number_layers_by_their_output(tmp_path: Path) -> None:
    tensors = block_tensors()
    head = block(write(tmp_path, Z_LAB, tensors))
    config = head.config
    assert (config.taps, config.block_size, config.slots, config.mask_token_id) == ((2, 4, 6), 8, 7, 15)
    assert not any((config.reduced, config.own_output, config.causal, config.root_speaks))
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, tensors[name])
    assert head.kind == "dflash"
    assert not is_whole_model(str(tmp_path))


def test_speculators_number_them_by_the_layer_that_reads(tmp_path: Path) -> None:
    head = block(write(tmp_path, SPECULATORS, reduced_tensors()))
    assert head.config.taps == (2, 4, 6)
    assert head.config.own_output
    assert head.target_ids.tolist() == list(range(0, 16, 2))


def test_windows_as_z_lab_and_speculators_have_them(tmp_path: Path) -> None:
    """z-lab's blocks look both ways in all layers, speculators' in layers without a window unless it says more."""
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 2048}
    config = block(write(tmp_path / "a", Z_LAB | sliding, block_tensors())).config
    assert (config.windows, config.causal_windows, config.causal) == ((2048, 0), False, False)
    swa = Z_LAB["dflash_config"] | {"swa_window_size": 512}
    nested = Z_LAB | sliding | {"sliding_window": None, "dflash_config": swa}
    assert block(write(tmp_path / "b", nested, block_tensors())).config.windows == (512, 0)
    theirs = SPECULATORS | {"transformer_layer_config": LAYER | sliding}
    looks = [
        block(write(tmp_path / name, theirs | more, reduced_tensors())).config
        for name, more in (("c", {}), ("d", {"sliding_window_non_causal": True}))
    ]
    assert [(each.windows, each.causal_windows) for each in looks] == [((2048, 0), True), ((2048, 0), False)]
    assert [looks[0].looks_back(layer) for layer in (0, 1)] == [True, False]
    tables = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    for place, form in enumerate(("speculators", "specforge")):
        head = block(tmp_path / "c") if form == "speculators" else block(tmp_path / "a")
        export_head(head, form, tmp_path / f"out{place}", tables, "org/target")
        assert block(tmp_path / f"out{place}").config == head.config
    several = random_head(windows=(64, 32))
    with pytest.raises(CheckpointError, match="one window for all layers"):
        save_head(several, tmp_path / "several")


def test_z_labs_form_since_june(tmp_path: Path) -> None:
    """The size of a block stands beside the mask, and the layers that are read may be left to the reader."""
    entries = {name: value for name, value in Z_LAB.items() if name != "block_size"}
    nested = {"mask_token_id": 15, "target_layer_ids": [1, 3, 5], "block_size": 6}
    assert block(write(tmp_path / "a", entries | {"dflash_config": nested}, block_tensors())).config.slots == 5
    usual = {"block_size": 6}
    narrow = block_tensors() | {"fc.weight": torch.randn(HIDDEN, 2 * HIDDEN)}
    config = block(write(tmp_path / "b", entries | {"mask_token_id": 9, "dflash_config": usual}, narrow)).config
    assert (config.mask_token_id, config.taps) == (9, (2, 6))
    with pytest.raises(CheckpointError, match="no entry 'block_size'"):
        block(write(tmp_path / "c", entries, block_tensors()))


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (Z_LAB | {"dflash_config": {**Z_LAB["dflash_config"], "projector_type": "domino"}}, "a head of Domino"),
        (Z_LAB | {"dflash_config": {**Z_LAB["dflash_config"], "lilicorr_factor_dim": 8}}, "a head of LiLiCorr"),
        (Z_LAB | {"dflash_config": {**Z_LAB["dflash_config"], "input_embedding_scale": 2.0}}, "input_embedding_scale"),
        ({"architectures": ["DFlashDraftModel"], **LAYER, "block_size": 8}, "no entry 'dflash_config'"),
        ({"architectures": ["Gemma4DSparkModel"], **LAYER}, "Qwen3DSparkModel: variants of it"),
    ],
)
def test_kin_of_dflash_are_refused_by_name(described: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        load_head(write(tmp_path, described, block_tensors()), TARGET)


def test_a_lora_is_no_head(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds a LoRA\..*added to the rows of noise tokens alone.*not built"):
        load_head(tmp_path, TARGET)


@pytest.mark.parametrize("name", ["DFlashDraftModel", "DSparkDraftModel"])
def test_speculators_as_save_pretrained_names_them(name: str, tmp_path: Path) -> None:
    described = SPECULATORS | {"architectures": [name]}
    tensors = reduced_tensors() | {"verifier_norm.weight": torch.rand(HIDDEN)}
    if name == "DSparkDraftModel":
        described |= {"speculators_model_type": "dspark", "markov_rank": 3, "enable_confidence_head": False}
        tensors |= {key: each for key, each in dspark_tensors(said=8).items() if key.startswith("markov_head")}
    head = block(write(tmp_path, described, tensors))
    assert head.config.root_speaks == (name == "DSparkDraftModel")
    assert head.config.markov_rank == (3 if name == "DSparkDraftModel" else 0)


SECOND = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 3, "selector_top_k": 5}


def second_tensors() -> dict[str, torch.Tensor]:
    convolutions = {
        f"layers.{layer}.{part}_conv.{name}": torch.randn(shape)
        for layer in range(2)
        for part in ("attention", "mlp")
        for name, shape in (("base_kernel", (2, 2, HIDDEN)), ("kernel_projection.weight", (16, HIDDEN)))
    }
    return block_tensors() | {
        **convolutions,
        "candidate_selector.predecessor_codebook": torch.randn(VOCAB, 3),
        "candidate_selector.successor_codebook": torch.randn(VOCAB, 3),
        "candidate_selector.hidden_projection.weight": torch.randn(3, HIDDEN),
    }


def test_dflash_2_of_z_lab_and_of_speculators(tmp_path: Path) -> None:
    described = Z_LAB | {"architectures": ["DFlash2DraftModel"], "dflash_config": Z_LAB["dflash_config"] | SECOND}
    head = block(write(tmp_path / "a", described, second_tensors()))
    config = head.config
    assert (config.conv_taps, config.conv_group, config.selector_rank, config.selector_top) == (2, 4, 3, 5)
    theirs = SPECULATORS | SECOND | {"speculators_model_type": "dflash2", "draft_vocab_size": VOCAB}
    found = block(write(tmp_path / "b", theirs | {"architectures": ["DFlash2DraftModel"]}, second_tensors()))
    assert found.config == config
    export_head(head, "speculators", tmp_path / "c", TargetTables(*[torch.randn(VOCAB, HIDDEN)] * 2), "org/target")
    assert block(tmp_path / "c").config == config
    with pytest.raises(CheckpointError, match="no Markov factor"):
        export_head(head, "specforge", tmp_path / "d", TargetTables(*[torch.randn(VOCAB, HIDDEN)] * 2), "org/target")
    lacking = {name: each for name, each in second_tensors().items() if "successor" not in name}
    with pytest.raises(CheckpointError, match="successor_codebook is missing"):
        block(write(tmp_path / "e", described, lacking))
    odd = Z_LAB | {"dflash_config": Z_LAB["dflash_config"] | SECOND | {"conv_group_size": 5}}
    with pytest.raises(CheckpointError, match="no groups of 5"):
        block(write(tmp_path / "f", odd, second_tensors()))


def test_options_of_both(tmp_path: Path) -> None:
    nested = Z_LAB["dflash_config"] | {"causal": True}
    assert block(write(tmp_path / "a", Z_LAB | {"dflash_config": nested}, block_tensors())).config.causal
    assert block(write(tmp_path / "b", Z_LAB | {"is_causal": True}, block_tensors())).config.causal
    rooted = block(write(tmp_path / "c", SPECULATORS | {"sample_from_anchor": True}, reduced_tensors()))
    assert (rooted.config.slots, rooted.config.speaking) == (8, slice(0, None))
    whole = SPECULATORS | {"draft_vocab_size": VOCAB}
    assert not block(write(tmp_path / "d", whole, block_tensors())).config.own_output
    with_table = block_tensors() | {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    assert block(write(tmp_path / "e", Z_LAB, with_table)).embedding is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block_size": 1}, "guesses 0 tokens"),
        ({"block_size": 900}, "block_size"),
        ({"aux_hidden_state_layer_ids": [2, 9]}, "layers of this target, which has 8"),
        ({"aux_hidden_state_layer_ids": None}, "layers of this target"),
        ({"mask_token_id": 16}, "mask_token_id"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"draft_vocab_size": 17}, "draft_vocab_size"),
        ({"speculators_model_type": "xpress"}, "speculator of type 'xpress'"),
        ({"architectures": ["DFlashLagunaForCausalLM"]}, "a head of Laguna"),
        ({"architectures": ["OtherSpeculator"]}, "variants of it are not supported"),
        ({"projector_type": "domino"}, "a head of Domino"),
        ({"lilicorr_factor_dim": 8}, "a head of LiLiCorr"),
        ({"attention_sink_bias": True}, "attention_sink_bias"),
        ({"transformer_layer_config": LAYER | {"layer_types": ["sliding_attention"] * 2}}, "'sliding_window'"),
        ({"transformer_layer_config": LAYER | {"layer_types": ["sliding_attention"]}}, "a list of 2, one for each"),
        (
            {"transformer_layer_config": LAYER | {"layer_types": ["chunked_attention"] * 2}},
            "and sliding_attention",
        ),
        ({"transformer_layer_config": LAYER | {"layer_types": 7}}, "layer_types is 7"),
        ({"transformer_layer_config": LAYER | {"hidden_size": 8}}, "a target of 8 elements"),
        ({"transformer_layer_config": LAYER | {"vocab_size": 15}}, "a vocabulary of 15"),
        ({"transformer_layer_config": None}, "transformer_layer_config"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        load_head(write(tmp_path, SPECULATORS | changes, reduced_tensors()), TARGET)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d2t": torch.zeros(8, dtype=torch.int64) - 1}, "distinct ids"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, "different tokens"),
        ({"conv.weight": torch.ones(1)}, "conv.weight is not part"),
        ({"embed_tokens.weight": torch.ones(3, 3)}, "embed_tokens"),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes: dict[str, torch.Tensor], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        load_head(write(tmp_path, SPECULATORS, reduced_tensors() | changes), TARGET)


def random_head(**changes: Any) -> BlockHead:
    head = BlockHead(replace(block_config(TARGET, 5, 2, 3, 8), **changes))
    if head.config.reduced:
        head.d2t.copy_(torch.arange(8))
    return head


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal": True},
        {"root_speaks": True},
        {"own_output": True},
        {"markov_rank": 3},
        {"confidence": True},
        {"markov_rank": 3, "confidence": True, "confidence_reads_token": True},
        {"windows": (0, 2048)},
        {"windows": (64, 64), "causal_windows": True},
        {"conv_taps": 2, "conv_group": 4, "selector_rank": 3, "selector_top": 5, "draft_vocab_size": VOCAB},
    ],
)
def test_own_folders_keep_everything(changes: dict[str, Any], tmp_path: Path) -> None:
    head = random_head(**changes)
    save_head(head, tmp_path, {"head": "dflash"})
    again = block(tmp_path)
    assert again.config == head.config
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, head.state_dict()[name])
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) == head.config.own_output


def test_speculators_are_written_with_the_targets_rows(tmp_path: Path) -> None:
    tables = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    head = random_head()
    export_head(head, "speculators", tmp_path, tables, "org/target")
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["aux_hidden_state_layer_ids"] == list(block_taps(8)) == [2, 3, 4, 5, 6]
    assert described["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert described["speculators_config"]["verifier"]["name_or_path"] == "org/target"
    assert (described["block_size"], described["mask_token_id"]) == (6, 3)
    tensors = load_file(tmp_path / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tables.head[0:16:2])
    assert tensors["t2d"].nonzero().flatten().tolist() == list(range(0, 16, 2))
    again = import_head(tmp_path, TARGET)
    assert isinstance(again, BlockHead)
    states = torch.randn(4, HIDDEN)
    assert torch.equal(again.logits(states, torch.zeros(VOCAB, HIDDEN)), head.logits(states, tables.head))
    with pytest.raises(CheckpointError, match="causal blocks"):
        export_head(random_head(causal=True), "speculators", tmp_path, tables, "org/target")
    with pytest.raises(
        CheckpointError, match="no form in the format 'eagle3'; choose speculators or specforge or deepspec"
    ):
        export_head(head, "eagle3", tmp_path, tables, "org/target")


DEEPSPEC = {
    "architectures": ["Qwen3DSparkModel"],
    **LAYER,
    "block_size": 7,
    "mask_token_id": 15,
    "num_anchors": 256,
    "target_layer_ids": [-1, 3, 5],
    "markov_rank": 3,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def dspark_tensors(before: int = VOCAB, said: int = VOCAB) -> dict[str, torch.Tensor]:
    return block_tensors() | {
        "markov_head.markov_w1.weight": torch.randn(before, 3),
        "markov_head.markov_w2.weight": torch.randn(said, 3),
        "confidence_head.proj.weight": torch.randn(1, HIDDEN + 3),
        "confidence_head.proj.bias": torch.randn(1),
    }


def test_deepspecs_repeat_the_targets_tables(tmp_path: Path) -> None:
    tables = {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN), "lm_head.weight": torch.randn(VOCAB, HIDDEN)}
    tensors = dspark_tensors() | tables
    head = block(write(tmp_path / "a", DEEPSPEC, tensors))
    config = head.config
    assert (config.taps, config.slots, config.root_speaks, config.markov_rank) == ((0, 4, 6), 7, True, 3)
    assert config.confidence
    assert config.confidence_reads_token
    assert head.kind == kind_in(tmp_path / "a") == "dflash"
    export_head(head, "deepspec", tmp_path / "b", TargetTables(*tables.values()), "org/target")
    again = load_file(tmp_path / "b" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert block(tmp_path / "b").config == config
    described = json.loads((tmp_path / "b" / "config.json").read_text())
    assert {key: described[key] for key in DEEPSPEC if key != "num_anchors"} == {
        key: value for key, value in DEEPSPEC.items() if key != "num_anchors"
    }


def test_dspark_of_speculators(tmp_path: Path) -> None:
    """What the factor knows of tokens goes by target ids; the head keeps those that it can say."""
    described = SPECULATORS | {
        "speculators_model_type": "dspark",
        "architectures": ["DSparkSpeculator"],
        **{name: DEEPSPEC[name] for name in DEEPSPEC if "markov" in name or "confidence" in name},
    }
    tensors = reduced_tensors() | dspark_tensors(said=8)
    head = block(write(tmp_path / "a", described, tensors))
    assert not head.config.root_speaks
    assert head.config.confidence
    assert torch.equal(head.markov_head.markov_w1.weight, tensors["markov_head.markov_w1.weight"][0:16:2])
    tables = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    export_head(head, "speculators", tmp_path / "b", tables, "org/target")
    again = block(tmp_path / "b")
    assert again.config == head.config
    assert all(torch.equal(own, again.get_parameter(name)) for name, own in head.named_parameters())
    assert load_file(tmp_path / "b" / "model.safetensors")["markov_head.markov_w1.weight"].shape == (VOCAB, 3)
    with_draft_ids = tensors | {"markov_head.markov_w1.weight": torch.randn(8, 3)}
    assert block(write(tmp_path / "c", described, with_draft_ids)).config.markov_rank == 3


def test_what_deepspec_has_no_place_for_is_said(tmp_path: Path) -> None:
    tables = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    whole = block_config(TARGET, 5, 2, 3)
    for head, said in (
        (random_head(), "a reduced vocabulary"),
        (BlockHead(replace(whole, causal=True)), "causal blocks"),
        (BlockHead(whole), "a root that is silent"),
    ):
        with pytest.raises(CheckpointError, match=f"DeepSpec has no heads with {said}"):
            export_head(head, "deepspec", tmp_path, tables, "org/target")
    with pytest.raises(CheckpointError, match="markov_head_type"):
        load_head(write(tmp_path / "gated", DEEPSPEC | {"markov_head_type": "gated"}, dspark_tensors()), TARGET)
    with pytest.raises(CheckpointError, match="reads what the Markov factor knows"):
        load_head(write(tmp_path / "none", DEEPSPEC | {"markov_rank": 0}, dspark_tensors()), TARGET)


@pytest.mark.parametrize(("layers", "taps"), [(1, (1,)), (2, (1,)), (5, (2, 3)), (30, (2, 8, 15, 22, 28))])
def test_taps_are_spread(layers: int, taps: tuple[int, ...]) -> None:
    assert block_taps(layers) == taps


def test_specforge_is_given_what_z_lab_has(tmp_path: Path) -> None:
    tables = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    whole = BlockHead(block_config(TARGET, 5, 2, 3))
    export_head(whole, "specforge", tmp_path / "a", tables, "org/target")
    described = json.loads((tmp_path / "a" / "config.json").read_text())
    assert described["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [1, 2, 3, 4, 5]}
    assert load_file(tmp_path / "a" / "model.safetensors").keys() == whole.state_dict().keys()
    assert block(tmp_path / "a").config == whole.config
    with pytest.raises(CheckpointError, match="train one with --draft-vocab 0"):
        export_head(random_head(), "specforge", tmp_path / "b", tables, "org/target")
