"""Hand-made EAGLE files, key for key as the projects write them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import (
    EAGLE1,
    EAGLE3,
    HEAD_DIM,
    HIDDEN,
    KV,
    MLP,
    TARGET,
    VOCAB,
    Q,
    eagle1_tensors,
    eagle3_tensors,
    matrices,
    write,
)
from safetensors.torch import load_file

from headstart.drafting.head_files.loading import kind_in, load_head
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.drafting.methods.eagle.written_formats import EagleFormat
from headstart.errors import CheckpointError
from headstart_train.files.heads import export_head, save_head

TABLES = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))


def test_eagle3(tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    head = load_head(write(tmp_path, EAGLE3, tensors), TARGET)
    assert isinstance(head, EagleHead)
    assert (head.config.variant, head.config.taps, head.config.draft_vocab_size) == ("eagle3", (2, 3, 5), 8)
    assert head.target_ids.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert torch.equal(head.layers[0].self_attn.q_proj.weight, tensors["midlayer.self_attn.q_proj.weight"])
    assert head.embedding is None
    assert not head.config.norm_before_residual


def test_a_layer_that_counts_twice_is_to_be_named(tmp_path: Path) -> None:
    """Of few layers the usual three are fewer."""
    small = replace(TARGET, layers=TARGET.layers[:4])
    unnamed = {key: value for key, value in EAGLE3.items() if "layer_ids" not in key and key != "eagle_config"}
    with pytest.raises(CheckpointError, match=r"of 3 layers, and this target of 4 layers has 2 .* twice what"):
        load_head(write(tmp_path, unnamed, eagle3_tensors()), small)
    described = EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [2, 2, 1]}
    head = load_head(write(tmp_path, described, eagle3_tensors()), small)
    assert isinstance(head, EagleHead)
    assert head.config.taps == (2, 2, 1)


MASKED = {"mask_hidden": torch.arange(3.0 * HIDDEN)}
IN_SPECULATORS = {
    "speculators_model_type": "peagle",
    "architectures": ["PEagleSpeculator"],
    "draft_vocab_size": EAGLE3["draft_vocab_size"],
    "eagle_aux_hidden_state_layer_ids": [2, 3, 5],
    "norm_before_residual": True,
    "mask_token_id": 3,
    "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 6}]},
    "transformer_layer_config": EAGLE3,
}


@pytest.mark.parametrize(
    ("described", "slots"),
    [
        (IN_SPECULATORS, 6),
        (IN_SPECULATORS | {"speculators_config": {}, "para_depths": 7}, 7),
        (EAGLE3 | {"ptd_token_id": 3}, 8),
    ],
)
def test_p_eagle(described: dict[str, Any], slots: int, tmp_path: Path) -> None:
    """speculators' form, and SafeAILab's with masks as vLLM reads it."""
    renames = "layers.0." if "transformer_layer_config" in described else "midlayer."
    tensors = {name.replace("midlayer.", renames): tensor for name, tensor in eagle3_tensors().items()}
    head = load_head(write(tmp_path, described, tensors | MASKED), TARGET)
    assert isinstance(head, EagleHead)
    assert (head.config.kind, head.config.slots, head.config.mask_token_id) == ("p-eagle", slots, 3)
    assert torch.equal(head.mask_hidden.flatten(), MASKED["mask_hidden"])
    assert head.config.norm_before_residual == ("transformer_layer_config" in described)
    for name in ("own", "speculators", "eagle3"):
        if name == "own":
            save_head(head, tmp_path / name)
        else:
            export_head(head, name, tmp_path / name, TABLES, "target")  # type: ignore[arg-type]
        again = load_head(tmp_path / name, TARGET)
        assert isinstance(again, EagleHead)
        assert again.config == head.config
        assert all(torch.equal(own, again.get_parameter(key)) for key, own in head.named_parameters())
        assert kind_in(tmp_path / name) == "p-eagle"


def test_p_eagle_that_speculators_has_no_place_for_or_that_is_damaged(tmp_path: Path) -> None:
    tensors = eagle3_tensors() | MASKED
    described = EAGLE3 | {"ptd_token_id": 3, "fc_norm": True}
    normed = tensors | {f"fc_norm.{i}.weight": torch.ones(HIDDEN) for i in range(3)}
    head = load_head(write(tmp_path / "normed", described, normed), TARGET)
    with pytest.raises(CheckpointError, match="norm for each layer that is read"):
        export_head(head, "speculators", tmp_path / "out", TABLES, "target")
    with pytest.raises(CheckpointError, match="no form in the format 'sglang'; choose eagle3 or speculators"):
        export_head(head, "sglang", tmp_path / "out", TABLES, "target")
    with pytest.raises(CheckpointError, match=f"ptd_token_id.*below {VOCAB}"):
        load_head(write(tmp_path / "beyond", EAGLE3 | {"ptd_token_id": VOCAB}, tensors), TARGET)
    with pytest.raises(CheckpointError, match=r"para_depths.*at most 64"):
        load_head(write(tmp_path / "deep", EAGLE3 | {"ptd_token_id": 3, "para_depths": 65}, tensors), TARGET)
    with pytest.raises(CheckpointError, match="mask_hidden is missing"):
        load_head(write(tmp_path / "bare", EAGLE3 | {"ptd_token_id": 3}, eagle3_tensors()), TARGET)


def test_eagle3_names_its_layers_and_flags(tmp_path: Path) -> None:
    described = EAGLE3 | {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 6], "use_aux_hidden_state": True},
        "fc_norm": True,
        "norm_output": True,
        "norm_before_residual": True,
    }
    tensors = eagle3_tensors() | {f"fc_norm.{i}.weight": torch.ones(HIDDEN) for i in range(3)}
    head = load_head(write(tmp_path, described, tensors), TARGET)
    assert isinstance(head, EagleHead)
    assert head.config.taps == (1, 4, 6)
    assert head.config.fc_norm
    assert head.config.norm_output
    assert head.config.norm_before_residual


@pytest.mark.parametrize(("kind", "first"), [("eagle3", "midlayer."), ("speculators", "layers.0.")])
def test_eagle3_of_several_layers(kind: EagleFormat, first: str, tmp_path: Path) -> None:
    """The further ones read the layer below them, as vLLM computes them."""
    further = matrices("layers.1.", HIDDEN) | {
        f"layers.1.{name}.weight": torch.rand(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")
    }
    tensors = eagle3_tensors() | further
    head = load_head(write(tmp_path / "in", EAGLE3 | {"num_hidden_layers": 2}, tensors), TARGET)
    assert isinstance(head, EagleHead)
    assert head.config.num_layers == 2
    assert torch.equal(head.layers[1].self_attn.k_proj.weight, tensors["layers.1.self_attn.k_proj.weight"])
    export_head(head, kind, tmp_path / "out", TABLES, "org/target")
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(written[name.replace("midlayer.", first)].to(tensor.dtype), tensor)
    again = load_head(tmp_path / "out", TARGET)
    assert isinstance(again, EagleHead)
    assert again.config == head.config


def test_eagle1_of_several_layers(tmp_path: Path) -> None:
    """SafeAILab's: the first layer alone has no norm of its input. speculators' has one layer."""
    norms = ("input_layernorm", "post_attention_layernorm")
    further = {f"layers.1.{name}.weight": torch.rand(HIDDEN) for name in norms} | matrices("layers.1.", HIDDEN)
    described = EAGLE1 | {"num_hidden_layers": 2}
    head = load_head(write(tmp_path / "in", described, eagle1_tensors() | further), TARGET)
    assert isinstance(head, EagleHead)
    assert torch.equal(head.layers[1].input_layernorm.weight, further["layers.1.input_layernorm.weight"])
    with pytest.raises(CheckpointError, match="one layer"):
        export_head(head, "speculators", tmp_path / "out", TABLES, "org/target")
    speculators, tensors = speculators_eagle1_files()
    speculators["transformer_layer_config"] |= {"num_hidden_layers": 2}
    with pytest.raises(CheckpointError, match="num_hidden_layers is 2"):
        load_head(write(tmp_path / "theirs", speculators, tensors), TARGET)


def test_eagle3_without_tables_says_every_token(tmp_path: Path) -> None:
    tensors = eagle3_tensors(draft_vocab=VOCAB)
    del tensors["d2t"], tensors["t2d"]
    head = load_head(write(tmp_path, EAGLE3 | {"draft_vocab_size": VOCAB}, tensors), TARGET)
    assert head.target_ids.tolist() == list(range(VOCAB))


@pytest.mark.parametrize("whole", [True, False])
def test_eagle3_without_output_rows_borrows_the_targets(whole: bool, tmp_path: Path) -> None:
    """As ModelOpt writes heads whose output is the target's; what is exported has the rows."""
    tensors = eagle3_tensors(draft_vocab=VOCAB if whole else 8)
    for name in ("lm_head.weight", *(("d2t", "t2d") if whole else ())):
        del tensors[name]
    named = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    described = EAGLE3 | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB if whole else 8}
    head = load_head(write(tmp_path / "in", described, named), TARGET)
    assert isinstance(head, EagleHead)
    assert head.config.borrows_output
    states, rows = torch.randn(3, HIDDEN), TABLES.head[head.target_ids]
    torch.testing.assert_close(head.logits(states, TABLES.head), head.norm(states) @ rows.T)
    save_head(head, tmp_path / "own")
    assert load_head(tmp_path / "own", TARGET).config == head.config
    for form in ("eagle3", "speculators", "sglang", "specforge"):
        export_head(head, form, tmp_path / form, TABLES, "org/target")
        written = load_head(tmp_path / form, TARGET)
        assert isinstance(written, EagleHead)
        assert torch.equal(written.lm_head.weight, rows)
    narrow = described | {"target_hidden_size": HIDDEN, "hidden_size": 2 * HIDDEN}
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight, which a head of"):
        load_head(write(tmp_path / "narrow", narrow, named), TARGET)


def test_eagle3_whose_output_is_its_own_embedding(tmp_path: Path) -> None:
    tensors = eagle3_tensors(draft_vocab=VOCAB) | {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    for name in ("lm_head.weight", "d2t", "t2d"):
        del tensors[name]
    described = EAGLE3 | {"draft_vocab_size": None, "tie_word_embeddings": True}
    head = load_head(write(tmp_path, described, tensors), TARGET)
    assert isinstance(head, EagleHead)
    assert torch.equal(head.lm_head.weight, tensors["embed_tokens.weight"])


def test_eagle3_norms_by_their_older_names(tmp_path: Path) -> None:
    norms = {f"aux_norm_{name}.weight": torch.rand(HIDDEN) for name in ("low", "mid", "high")}
    head = load_head(write(tmp_path / "a", EAGLE3 | {"use_aux_norm": True}, eagle3_tensors() | norms), TARGET)
    assert isinstance(head, EagleHead)
    assert torch.equal(head.fc_norm[2].weight, norms["aux_norm_high.weight"])
    nested = EAGLE3 | {"eagle_config": {"norm_before_fc": True}}
    one = eagle3_tensors() | {"input_norm.weight": torch.rand(3 * HIDDEN)}
    found = load_head(write(tmp_path / "b", nested, one), TARGET)
    assert isinstance(found, EagleHead)
    assert found.config.norm_before_fc
    last = EAGLE3 | {"eagle_config": {"use_aux_hidden_state": False}}
    with pytest.raises(CheckpointError, match="read the last state alone"):
        load_head(write(tmp_path / "c", last, eagle3_tensors()), TARGET)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("bias", [None, True, False])
def test_eagle1(tmp_path: Path, file: str, bias: bool | None) -> None:
    tensors = eagle1_tensors(bias=bias is not False)
    described = EAGLE1 if bias is None else EAGLE1 | {"bias": bias}
    head = load_head(write(tmp_path, described, tensors, file), TARGET)
    assert isinstance(head, EagleHead)
    assert head.config.variant == "eagle"
    assert head.config.fc_bias is (bias is not False)
    assert torch.equal(head.layers[0].mlp.down_proj.weight, tensors["layers.0.mlp.down_proj.weight"])
    assert head.embedding is not None
    assert torch.equal(head.embedding, tensors["embed_tokens.weight"])


def speculators_files() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    layer = {key: value for key, value in EAGLE3.items() if key not in ("draft_vocab_size", "architectures")}
    described = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": 8,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 5],
        "speculators_config": {"algorithm": "eagle3"},
        "transformer_layer_config": layer,
    }
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in eagle3_tensors().items()}
    return described, tensors | {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}


def test_speculators(tmp_path: Path) -> None:
    described, tensors = speculators_files()
    head = load_head(write(tmp_path, described, tensors), TARGET)
    assert isinstance(head, EagleHead)
    assert head.config.norm_before_residual
    assert torch.equal(head.layers[0].hidden_norm.weight, tensors["layers.0.hidden_norm.weight"])
    with pytest.raises(CheckpointError, match="hydra"):
        load_head(write(tmp_path, described | {"speculators_model_type": "hydra"}, tensors), TARGET)


def test_speculators_of_qwen_3s_layers_with_windows(tmp_path: Path) -> None:
    """As speculators trains them by default: queries and keys are normed, and some layers may have a window."""
    described, tensors = speculators_files()
    layer = described["transformer_layer_config"] | {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 7,
        "use_sliding_window": True,
    }
    described |= {"norm_before_fc": True, "norm_output": True, "transformer_layer_config": layer}
    norms = ("input_layernorm", "post_attention_layernorm")
    tensors |= matrices("layers.1.", HIDDEN) | {f"layers.1.{name}.weight": torch.rand(HIDDEN) for name in norms}
    tensors |= {f"layers.{i}.self_attn.{each}_norm.weight": torch.rand(HEAD_DIM) for i in (0, 1) for each in "qk"}
    tensors["input_norm.weight"] = torch.rand(3 * HIDDEN)
    head = load_head(write(tmp_path / "in", described, tensors), TARGET)
    assert isinstance(head, EagleHead)
    config = head.config
    assert (config.head_norms, config.windows, config.norm_before_fc, config.norm_output) == (True, (7, 0), True, True)
    assert torch.equal(head.layers[1].self_attn.k_norm.weight, tensors["layers.1.self_attn.k_norm.weight"])
    save_head(head, tmp_path / "own")
    export_head(head, "speculators", tmp_path / "out", TABLES, "org/target")
    for written in ("own", "out"):
        again = load_head(tmp_path / written, TARGET)
        assert again.config == config
        assert all(torch.equal(own, again.get_parameter(name)) for name, own in head.named_parameters())
    told = json.loads((tmp_path / "out" / "config.json").read_text())["transformer_layer_config"]
    assert told["model_type"] == "qwen3"
    for form in ("eagle3", "sglang", "specforge"):
        with pytest.raises(CheckpointError, match="choose speculators"):
            export_head(head, form, tmp_path / "no", TABLES, "org/target")
    repeats = described | {"transformer_layer_config": layer | {"layer_types": ["sliding_attention"] * 8}}
    assert load_head(write(tmp_path / "repeats", repeats, tensors), TARGET).config.windows == ()
    del tensors["layers.1.self_attn.k_norm.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_norm\.weight is missing"):
        load_head(write(tmp_path / "lacking", described, tensors), TARGET)


def speculators_eagle1_files(bias: bool = True) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """As EagleSpeculatorConfig and EagleConverter of speculators 0.4 write them: no embedding, no output head."""
    described = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "speculators_version": "0.3.0",
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "layernorms": False,
        "fusion_bias": bias,
        "speculators_config": {
            "algorithm": "eagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 5,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {key: value for key, value in EAGLE1.items() if key != "architectures"},
    }
    matrices = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    plain = eagle1_tensors(bias)
    tensors = {f"transformer.{name}.weight": plain[f"layers.0.{name}.weight"] for name in matrices}
    tensors["transformer.post_attention_layernorm.weight"] = plain["layers.0.post_attention_layernorm.weight"]
    tensors["fusion_fc.weight"] = plain["fc.weight"]
    return described, tensors | ({"fusion_fc.bias": plain["fc.bias"]} if bias else {})


@pytest.mark.parametrize("bias", [True, False])
def test_speculators_eagle1(tmp_path: Path, bias: bool) -> None:
    described, tensors = speculators_eagle1_files(bias)
    head = load_head(write(tmp_path / "in", described, tensors), TARGET)
    assert isinstance(head, EagleHead)
    assert (head.config.variant, head.config.fc_bias, head.embedding) == ("eagle", bias, None)
    assert torch.equal(head.fc.weight, tensors["fusion_fc.weight"])
    assert torch.equal(head.layers[0].self_attn.o_proj.weight, tensors["transformer.self_attn.o_proj.weight"])
    export_head(head, "speculators", tmp_path / "out", TABLES, "org/target")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    layer = described.pop("transformer_layer_config")
    assert layer.items() <= written.pop("transformer_layer_config").items()
    assert written == described


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({"layernorms": True}, {}, "layernorms is True, but must be false"),
        ({"transformer_layer_architecture": "Gemma2DecoderLayer"}, {}, "Gemma2DecoderLayer"),
        ({"fusion_bias": False}, {}, "fc.bias is not part"),
        ({}, {"pre_lm_head_layernorm.weight": torch.ones(HIDDEN)}, "pre_lm_head_layernorm.weight is not part"),
    ],
)
def test_other_eagle1_speculators_are_refused(
    tmp_path: Path, changes: dict[str, Any], more: dict[str, torch.Tensor], words: str
) -> None:
    described, tensors = speculators_eagle1_files()
    with pytest.raises(CheckpointError, match=words):
        load_head(write(tmp_path, described | changes, tensors | more), TARGET)


def test_every_wrong_tensor_is_named(tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    del tensors["midlayer.hidden_norm.weight"], tensors["d2t"]
    tensors["midlayer.self_attn.q_proj.weight"] = torch.zeros(Q, HIDDEN)
    tensors["layers.7.mlp.up_proj.weight"] = torch.zeros(MLP, HIDDEN)
    with pytest.raises(CheckpointError) as caught:
        load_head(write(tmp_path, EAGLE3, tensors), TARGET)
    message = str(caught.value)
    for fault in (
        "layers.0.hidden_norm.weight is missing",
        "d2t is missing",
        f"layers.0.self_attn.q_proj.weight is [{Q}, {HIDDEN}], not [{Q}, {2 * HIDDEN}]",
        "layers.7.mlp.up_proj.weight is not part of such a head",
    ):
        assert fault in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d2t": torch.full((8,), 20)}, "d2t"),
        ({"d2t": -torch.arange(8)}, "d2t"),
        ({"t2d": torch.ones(VOCAB, dtype=torch.bool)}, "t2d and d2t"),
        ({"d2t": torch.zeros(8)}, "d2t holds torch.float32"),
        ({"embed_tokens.weight": torch.zeros(3, HIDDEN)}, "embed_tokens"),
    ],
)
def test_senseless_tables_are_refused(tmp_path: Path, changes: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_head(write(tmp_path, EAGLE3, eagle3_tensors() | changes), TARGET)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32, "target_hidden_size": 32}, "32 elements"),
        ({"vocab_size": 7}, "vocabulary of 7"),
        ({"head_dim": 5}, "heads of 5 elements turn 5 of them, which are no pairs"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 kv heads evenly"),
        ({"num_hidden_layers": 2}, r"layers\.1\.mlp\.up_proj\.weight is missing"),
        ({"num_hidden_layers": 65}, "num_hidden_layers is 65"),
        ({"draft_vocab_size": VOCAB + 1}, "draft_vocab_size"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}}, "layer_ids"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_senseless_descriptions_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_head(write(tmp_path, EAGLE3 | changes, eagle3_tensors()), TARGET)


def test_a_pickle_that_is_more_than_tensors_is_refused(tmp_path: Path) -> None:
    write(tmp_path, EAGLE1, {}, "pytorch_model.bin")
    torch.save({"fc.weight": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than"):
        load_head(tmp_path, TARGET)


@pytest.mark.parametrize(("kind", "variant"), [("eagle", 1), ("eagle3", 3), ("speculators", 3), ("speculators", 1)])
def test_exports_hold_the_formats_keys(tmp_path: Path, kind: str, variant: int) -> None:
    """What is written has the names and shapes of the hand-made files, and reads back as the same head."""
    if kind == "speculators":
        described, tensors = speculators_files() if variant == 3 else speculators_eagle1_files()
    else:
        described = {"eagle": EAGLE1, "eagle3": EAGLE3}[kind]
        tensors = eagle1_tensors() if kind == "eagle" else eagle3_tensors()
    head = load_head(write(tmp_path / "in", described, tensors), TARGET)
    export_head(head, kind, tmp_path / "out", TABLES, "org/target")  # type: ignore[arg-type]
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in written.items()} == {
        name: tensor.shape for name, tensor in tensors.items()
    }
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)
    description = json.loads((tmp_path / "out" / "config.json").read_text())
    assert set(description) >= set(described) - {"target_hidden_size"}
    again = load_head(tmp_path / "out", TARGET)
    assert again.config == head.config
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), head.state_dict().values(), strict=True))


def test_a_kind_that_a_format_does_not_hold(tmp_path: Path) -> None:
    head = load_head(write(tmp_path, EAGLE3, eagle3_tensors()), TARGET)
    for kind in ("medusa", "eagle"):
        with pytest.raises(CheckpointError, match="no form"):
            export_head(head, kind, tmp_path / "out", TABLES, "x")  # type: ignore[arg-type]


def test_a_saved_head_records_its_making(tmp_path: Path) -> None:
    head = load_head(write(tmp_path / "in", EAGLE3, eagle3_tensors()), TARGET)
    save_head(head, tmp_path / "out", {"steps": 7}, torch.bfloat16)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["headstart"] == {"steps": 7}
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["fc.weight"].dtype is torch.bfloat16
    assert tensors["norm.weight"].dtype is torch.float32
    assert load_head(tmp_path / "out", TARGET).config == head.config


def test_what_is_no_head(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_head(tmp_path / "nowhere", TARGET)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_head(tmp_path, TARGET)
    with pytest.raises(CheckpointError, match="no known format"):
        load_head(write(tmp_path, {}, {"x.weight": torch.zeros(KV)}), TARGET)
