"""Assistants of Gemma 4: as transformers computes them, exact in the engine, found by themselves, refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from assistant_models import (
    SIZES,
    WINDOW,
    all_layers_read,
    first_tree,
    write_assistant,
    write_gguf_assistant,
    write_target,
)
from damaged_heads import check_entries, check_tensors
from devices import DEVICES, on
from huggingface_hub import constants
from native_here import needs_native
from safetensors.torch import load_file, save_file
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model

from headstart.drafting.heads.files import read_description, read_tensors
from headstart.drafting.registry import create_drafter
from headstart.entrypoints.llm import LLM
from headstart.errors import CheckpointError, ConfigError
from headstart.loading.model import Model, load_model
from headstart.loading.roles import role_of
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import config_of
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.params import SamplingParams

NATIVE = pytest.param("native", marks=needs_native)
PROMPTS = [list(range(40, 40 + length)) for length in (1, 3, 30, 12)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.5, top_p=0.9, max_tokens=20, seed=1, ignore_eos=True),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, max_tokens=24, seed=2, ignore_eos=True),
    SamplingParams(temperature=0, logit_bias={50: 3.0}, min_tokens=4, max_tokens=10),
]
OPTIONS = {"min_probability": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, and assistants that know it or not, with a whole output head or one in clusters."""
    root = tmp_path_factory.mktemp("gemma")
    target = write_target(root / "target")
    return {
        "target": target,
        "whole": write_assistant(root / "whole", target),
        "clusters": write_assistant(root / "clusters", target, clusters=7),
        "ignorant": write_assistant(root / "ignorant", target, hidden_size=32),
        "ignorant clusters": write_assistant(root / "ignorant clusters", target, clusters=7, hidden_size=32),
    }


@pytest.fixture(scope="module", params=[*DEVICES, pytest.param("simulated", marks=pytest.mark.thorough), NATIVE])
def target(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Model]:
    if request.param == "native":
        yield load_model(folders["target"], "bf16")
        return
    with on(request.param) as device:
        # On a processor PyTorch is chosen where the native pass is not; here it is asked for.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADSTART_NATIVE", "0")
            model = load_model(folders["target"], "fp32", device=device)
        yield model


def said_by_transformers(folders: dict[str, Path], assistant: str, tokens: list[int], guesses: int) -> torch.Tensor:
    """[guess, vocab] logits of a chain of its best tokens."""
    target = transformers.Gemma4ForCausalLM.from_pretrained(folders["target"]).eval()
    with all_layers_read():
        model = transformers.Gemma4AssistantForCausalLM.from_pretrained(folders[assistant]).eval()
    with torch.no_grad():
        seen = target(torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
        state, token = seen.hidden_states[-1][:, -1:], torch.tensor([[tokens[-1]]])
        keys = dict(seen.shared_kv_states.items())
        keys["sliding_attention"] = tuple(each[:, :, -WINDOW:] for each in keys["sliding_attention"])
        said = []
        for _ in range(guesses):
            inputs = torch.cat([target.get_input_embeddings()(token), state], dim=-1)
            place = torch.tensor([[len(tokens) - 1]])
            output = model(inputs_embeds=inputs, position_ids=place, shared_kv_states=keys)
            state, token = output.last_hidden_state, output.logits.argmax(-1)
            said.append(output.logits[0, 0])
    return torch.stack(said)


@pytest.mark.parametrize("assistant", thorough_but(["ignorant clusters"], ["ignorant", "ignorant clusters"]))
def test_it_says_what_transformers_does(target: Model, folders: dict[str, Path], assistant: str) -> None:
    if target.backend.name.startswith("native"):
        target = load_model(folders["target"], "fp32")
    for length in (2, 5, 40):
        tokens = [int(each) for each in np.random.default_rng(length).integers(3, 256, length)]
        said = said_by_transformers(folders, assistant, tokens, 4)
        assert drafted(target, folders[assistant], tokens, width=1).tokens.tolist() == said.argmax(-1).tolist()
        tree = drafted(target, folders[assistant], tokens, width=3)
        assert tree.tokens[tree.parents == ROOT].tolist() == said[0].topk(3).indices.tolist()


def drafted(target: Model, assistant: Path, tokens: list[int], width: int) -> DraftTree:
    """What is guessed after a text that the target has read."""
    options: dict[str, Any] = {"width": width, "draft_tokens": 4, "tree_nodes": 60, **OPTIONS}
    return first_tree(
        target, lambda context: create_drafter("assistant", context, model=str(assistant), **options), tokens
    )


@pytest.mark.parametrize("assistant", thorough_but(["clusters"], ["whole", "clusters"]))
def test_the_text_is_the_targets_own(target: Model, folders: dict[str, Path], assistant: str) -> None:
    plain = [output.outputs[0].token_ids for output in LLM(target, "none").generate(PROMPTS, PARAMS)]
    llm = LLM(target, "assistant", draft_model=folders[assistant], drafter_options=OPTIONS, max_batch_size=3)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)
    assert sum(output.outputs[0].stats.accepted for output in outputs) > 20


@pytest.mark.parametrize("target", [*DEVICES, NATIVE], indirect=True)
def test_beams_are_those_without_guesses(target: Model, folders: dict[str, Path]) -> None:
    beams = SamplingParams(beam_width=3, n=3, max_tokens=14)
    plain = LLM(target, "none").generate(PROMPTS[1:3], beams)
    found = LLM(target, "assistant", draft_model=folders["whole"], drafter_options=OPTIONS)
    for output, expected in zip(found.generate(PROMPTS[1:3], beams), plain, strict=True):
        assert [beam.token_ids for beam in output.outputs] == [beam.token_ids for beam in expected.outputs]


@pytest.mark.parametrize("target", [*DEVICES, NATIVE], indirect=True)
@pytest.mark.parametrize("caching", thorough_but([True], [False, True]))
def test_chunks_and_preemptions(target: Model, folders: dict[str, Path], caching: bool) -> None:
    prompts, params = PROMPTS[1:3], [replace(each, max_tokens=70) for each in PARAMS[:2]]
    options = {**OPTIONS, "tree_nodes": 6}
    llm = LLM(
        target,
        "assistant",
        draft_model=folders["whole"],
        drafter_options=options,
        max_context=110,
        cache_tokens=97,
        prefix_caching=caching,
    )
    llm.engine.limits = replace(llm.engine.limits, max_rows=18, draft_rows=8)
    outputs = llm.generate(prompts, params)
    plain = LLM(target, "none", max_context=110).generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in plain]
    assert sum(output.outputs[0].stats.preemptions for output in outputs) > 0
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub: Path, name: str) -> Path:
    return hub / f"models--{name.replace('/', '--')}" / "snapshots" / "0123"


def test_the_default_drafter_finds_one_in_the_hubs_cache(hub: Path, folders: dict[str, Path]) -> None:
    write_assistant(cached(hub, "google/tiny-assistant"), folders["target"])
    llm = LLM(folders["target"])
    assert any("assistant head in google/tiny-assistant" in notice for notice in llm.notices)
    plain = LLM(folders["target"], "none").generate(PROMPTS[:2], PARAMS[0])
    outputs = llm.generate(PROMPTS[:2], PARAMS[0])
    assert [each.outputs[0].token_ids for each in outputs] == [each.outputs[0].token_ids for each in plain]


def test_one_that_does_not_fit_is_named_and_decoding_goes_on(hub: Path, folders: dict[str, Path]) -> None:
    write_assistant(cached(hub, "google/other-assistant"), folders["target"], backbone=96)
    llm = LLM(folders["target"])
    assert any("hidden size 96, and this one has 64" in notice for notice in llm.notices)
    assert llm.generate(PROMPTS[:1], PARAMS[0])[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backbone": 96}, "hidden size 96, and this one has 64; name the assistant of this model"),
        ({"vocab_size": 300}, "says 300 tokens, and this model has 259"),
        (
            {"global_head_dim": 128},
            "heads of size 128 in layers with full attention, and this model keeps 2 of size 64",
        ),
    ],
)
def test_those_of_other_targets_are_refused(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, int], said: str
) -> None:
    other = write_assistant(tmp_path, folders["target"], **changes)
    with pytest.raises(CheckpointError, match=said):
        LLM(folders["target"], "assistant", draft_model=other)


def test_other_kinds_of_targets_and_drafters_refuse_it(folders: dict[str, Path], tmp_path: Path) -> None:
    llama = write_tiny_model(tmp_path)
    with pytest.raises(CheckpointError, match="is an assistant of Gemma 4, and this model is of another kind"):
        LLM(llama, "assistant", draft_model=folders["whole"])
    with pytest.raises(ConfigError, match="is a draft head"):
        LLM(folders["target"], "draft-model", draft_model=folders["whole"])
    with pytest.raises(ConfigError, match="no assistant head is installed"):
        LLM(folders["target"], "assistant")
    assert role_of(folders["whole"]) == "a draft head (assistant)"


@pytest.mark.parametrize(
    ("assistant", "name", "said"),
    [
        ("whole", "pre_projection.weight", "lacks pre_projection.weight"),
        ("whole", "model.layers.1.self_attn.q_proj.weight", "lacks model.layers.1.self_attn.q_proj.weight"),
        ("clusters", "masked_embedding.token_ordering", "lacks masked_embedding.token_ordering"),
    ],
)
def test_missing_tensors_are_named(
    folders: dict[str, Path], tmp_path: Path, assistant: str, name: str, said: str
) -> None:
    tensors = load_file(folders[assistant] / "model.safetensors")
    save_file({key: each for key, each in tensors.items() if key != name}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folders[assistant] / "config.json").read_text())
    with pytest.raises(CheckpointError, match=said):
        LLM(folders["target"], "assistant", draft_model=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("assistant", ["whole", "clusters"])
def test_whatever_is_wrong_with_its_files_is_one_sentence(assistant: str, folders: dict[str, Path]) -> None:
    description, tensors = read_description(folders[assistant]), read_tensors(folders[assistant])
    target = config_of(open_checkpoint(folders["target"]))
    check_entries(description, tensors, target)
    check_tensors(description, tensors, target)


@pytest.mark.parametrize("assistant", ["whole", "clusters"])
def test_one_in_gguf_guesses_as_its_folder_does(folders: dict[str, Path], assistant: str, tmp_path: Path) -> None:
    """It is found beside the model's file, and one of another size is refused in a sentence."""
    path = write_gguf_assistant(folders[assistant], tmp_path / "mtp-assistant.gguf")
    target = load_model(folders["target"], "fp32")
    tokens = [int(each) for each in np.random.default_rng(7).integers(3, 256, 40)]
    from_folder, from_file = (drafted(target, each, tokens, width=3) for each in (folders[assistant], path))
    if assistant == "whole":  # of clusters no file says how many are read
        assert from_file.tokens.tolist() == from_folder.tokens.tolist()
    plain = [output.outputs[0].token_ids for output in LLM(target, "none").generate(PROMPTS[2:], PARAMS[0])]
    llm = LLM(target, "assistant", draft_model=path, drafter_options=OPTIONS)
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS[2:], PARAMS[0])]
    assert [output.token_ids for output in outputs] == plain
    assert all(output.stats.accepted > 0 for output in outputs)
    other = write_gguf_assistant(folders[assistant], tmp_path / "other.gguf", backbone=96)
    with pytest.raises(CheckpointError, match="an assistant for a model with hidden size 96, and this one has 64"):
        LLM(target, "assistant", draft_model=other)


def test_clusters_must_name_each_token_once(folders: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(folders["clusters"] / "model.safetensors")
    tensors["masked_embedding.token_ordering"].zero_()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folders["clusters"] / "config.json").read_text())
    with pytest.raises(CheckpointError, match="does not name each token once"):
        LLM(folders["target"], "assistant", draft_model=tmp_path)


def test_the_models_of_this_file_are_what_they_are_taken_for(folders: dict[str, Path]) -> None:
    description = json.loads((folders["whole"] / "config.json").read_text())
    assert description["architectures"] == ["Gemma4AssistantForCausalLM"]
    assert description["backbone_hidden_size"] == SIZES["hidden_size"]


def test_models_without_assistants_are_told_who_lists_what_they_have(tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"Gemma 4's models alone have assistants, .* drafters --model lists"):
        LLM(tiny_model_dir, "assistant")
