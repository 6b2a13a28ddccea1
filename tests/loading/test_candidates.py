"""Who could guess for a model: found, absent or refused, each with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from cli_runs import headstart, refusal
from head_toys import HIDDEN, head_target, random_eagle
from huggingface_hub import constants
from tiny_checkpoint import HEADS, write_tiny_model

from headstart import LLM, ConfigError, SamplingParams
from headstart.loading.published import PUBLISHED
from headstart.loading.roles import role_of
from headstart.models.config import LayerConfig
from headstart_train.files.heads import save_head

VOCAB = 259
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return write_tiny_model(tmp_path / "model", head_dim=HIDDEN // HEADS, layers=6)


def snapshot(hub: Path, name: str) -> Path:
    path = hub / f"models--{name.replace('/', '--')}" / "snapshots" / "0123"
    path.mkdir(parents=True)
    return path


def listed(model: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(headstart("drafters", "--model", model, "--json").stdout)
    return {each["where"]: each for each in found}


def write_gguf(path: Path, architecture: str, **metadata: int) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_heads_and_small_siblings_of_the_hubs_cache_are_found(hub: Path, target: Path) -> None:
    save_head(random_eagle(VOCAB), snapshot(hub, "org/head"))
    save_head(random_eagle(40), snapshot(hub, "org/stranger"))
    write_tiny_model(snapshot(hub, "org/small"), head_dim=HIDDEN // HEADS, layers=1)
    write_tiny_model(snapshot(hub, "org/large"), head_dim=HIDDEN // HEADS, layers=6)
    save_head(random_eagle(VOCAB), target / "beside")
    found = listed(target)
    assert (found["org/head"]["standing"], found["org/head"]["drafter"]) == ("found", "eagle3")
    assert found["org/head"]["nbytes"] == (snapshot_file(hub, "org/head")).stat().st_size
    assert found[str(target / "beside")]["standing"] == "found"
    assert found["org/stranger"]["standing"] == "refused"
    assert "40" in found["org/stranger"]["said"]
    assert (found["org/small"]["standing"], found["org/small"]["drafter"]) == ("found", "draft-model")
    assert "org/large" not in found
    assert "--draft-model org/small" in headstart("drafters", "-m", target, COLUMNS="300").stdout


def snapshot_file(hub: Path, name: str) -> Path:
    (file,) = hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/model.safetensors")
    return file


def test_the_default_drafter_takes_a_head_at_hand_and_says_so(hub: Path, target: Path) -> None:
    plain = LLM(target, "none").generate(["abc"], GREEDY)[0].text
    save_head(random_eagle(VOCAB), snapshot(hub, "org/head"))
    llm = LLM(target)
    assert any("eagle3 head in org/head" in notice for notice in llm.notices)
    assert llm.generate(["abc"], GREEDY)[0].text == plain


def test_a_head_at_hand_that_does_not_fit_is_named_and_decoding_goes_on(hub: Path, target: Path) -> None:
    save_head(random_eagle(40), snapshot(hub, "org/stranger"))
    llm = LLM(target)
    assert any("eagle3 head in org/stranger is not used" in notice for notice in llm.notices)
    assert llm.generate(["abc"], GREEDY)[0].text


def test_a_download_that_broke_off_is_refused_and_stops_nobody(hub: Path, target: Path) -> None:
    broken = snapshot(hub, "org/broken")
    (broken / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 9}')
    (broken / "model.safetensors").symlink_to(broken / "blob that never came")
    assert listed(target)["org/broken"]["standing"] == "refused"
    assert LLM(target).generate(["abc"], GREEDY)[0].text


def test_what_is_published_for_a_shape_is_named() -> None:
    llama = replace(head_target(128256), hidden_size=4096, layers=(LayerConfig(),) * 32)
    heads, small = ["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"], ["meta-llama/Llama-3.2-1B-Instruct"]
    assert [each.hub_id for each in PUBLISHED if each.fits(llama, 8 * 10**9)] == heads + small
    assert [each.hub_id for each in PUBLISHED if each.fits(llama, 2 * 10**9)] == heads


@pytest.mark.parametrize(
    ("architecture", "metadata", "role"),
    [
        ("clip", {}, "a projector of images or sound (mmproj)"),
        ("eagle3", {}, "a draft head (eagle3)"),
        ("nomic-bert", {}, "an embedding model"),
        ("qwen3", {"pooling_type": 3}, "an embedding model"),
        ("qwen3", {}, None),
    ],
)
def test_files_of_other_roles_are_named_for_what_they_are(
    tmp_path: Path, architecture: str, metadata: dict[str, int], role: str | None
) -> None:
    assert role_of(write_gguf(tmp_path / "file.gguf", architecture, **metadata)) == role


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("clip", "a projector of images or sound.*, no model that guesses by itself"),
        ("eagle3", "a draft head; use the drafter that runs it"),
    ],
)
def test_a_draft_model_of_another_role_is_refused_by_name(
    tmp_path: Path, hub: Path, target: Path, architecture: str, said: str
) -> None:
    path = write_gguf(tmp_path / "file.gguf", architecture)
    with pytest.raises(ConfigError, match=f"is {said}"):
        LLM(target, "draft-model", draft_model=path)


def test_a_drafters_name_and_a_model_do_not_go_together(target: Path) -> None:
    assert "leave NAME out" in refusal(headstart("drafters", "suffix", "--model", target))
