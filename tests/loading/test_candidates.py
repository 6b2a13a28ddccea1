"""Who could guess for a model: found, absent or refused, each with its reason."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from cli_runs import headstart, refusal
from gguf_blocks import write_llama
from head_toys import HIDDEN, head_target, random_block, random_eagle
from huggingface_hub import constants
from multi_token_models import NATIVE_SIZES, write_modules
from safetensors.torch import load_file, save_file
from thinning import thorough_but
from tiny_checkpoint import HEADS, write_tiny_model, write_tokenizer

from headstart import LLM, CheckpointError, ConfigError, SamplingParams
from headstart.backends.native.loader import load_library
from headstart.drafting.heads.formats import TrainedHead
from headstart.entrypoints.outline import Outline
from headstart.loading.candidates import candidates
from headstart.loading.model import load_model
from headstart.loading.published import PUBLISHED
from headstart.loading.roles import role_of
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import LayerConfig, RopeConfig
from headstart.models.families import FAMILIES
from headstart.models.locating import locate
from headstart.models.weight_loading import config_of
from headstart.text.tokenizer import Tokenizer
from headstart_train.files.heads import save_head

VOCAB = 259
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("HF_HUB_CACHE", str(tmp_path / "hub")), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(constants, name, value)
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


def test_heads_of_the_hubs_cache_are_found(hub: Path, target: Path) -> None:
    save_head(random_eagle(VOCAB), snapshot(hub, "org/head"))
    save_head(random_eagle(40), snapshot(hub, "org/stranger"))
    write_tiny_model(snapshot(hub, "org/large"), head_dim=HIDDEN // HEADS, layers=6)
    save_head(random_eagle(VOCAB), target / "beside")
    found = listed(target)
    assert (found["org/head"]["standing"], found["org/head"]["drafter"]) == ("found", "eagle3")
    assert found["org/head"]["nbytes"] == (snapshot_file(hub, "org/head")).stat().st_size
    assert found[str(target / "beside")]["standing"] == "found"
    assert found["org/stranger"]["standing"] == "refused"
    assert "40" in found["org/stranger"]["said"]
    assert "org/large" not in found
    without_files = [each["drafter"] for each in json.loads(headstart("drafters", "-m", target, "--json").stdout)]
    assert without_files.index("self") < without_files.index("suffix")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Q8_0", ""),
        ("BF16", ""),
        ("Q4_K", "take 4.5 bits each, and in 4 bits 5.0"),
        (None, "head_dim 4 is"),
    ],
)
def test_the_model_itself_is_listed_by_what_fewer_bits_would_save(
    kind: str | None, says: str, hub: Path, target: Path, tmp_path: Path
) -> None:
    """None: a model that PyTorch computes."""
    checkpoint = open_checkpoint(target if kind is None else write_llama(tmp_path / "model.gguf", {"": kind}))
    found = candidates(checkpoint, config_of(checkpoint), Tokenizer.from_checkpoint(open_checkpoint(target)))
    (itself,) = [each for each in found if each.drafter == "self"]
    says = says if load_library() else "there is none here"
    assert itself.standing == ("refused" if says else "found")
    assert says in itself.said


def test_modules_of_the_hubs_cache_guess(hub: Path, tmp_path: Path) -> None:
    """Those of a model of this shape, where a repository or a file of it is called so."""
    target, cached = tmp_path / "model", snapshot(hub, "org/tiny-NextN")
    target.mkdir()
    write_tokenizer(target)
    write_modules("qwen3_5_text", target, **NATIVE_SIZES["qwen3_5_text"])
    write_gguf(snapshot(hub, "org/another-GGUF") / "mtp-another.gguf", "llama")
    tensors = load_file(target / "model.safetensors")
    modules = {key for key in tensors if key.startswith("mtp.")}
    shutil.copy(target / "config.json", cached)
    save_file({key: tensors[key] for key in modules}, cached / "model.safetensors")
    save_file({key: tensors[key] for key in tensors.keys() - modules}, target / "model.safetensors")
    found = listed(target)
    assert (found[str(cached)]["standing"], found[str(cached)]["drafter"]) == ("found", "mtp")
    assert "in the hub's cache" in found[str(cached)]["said"]
    assert not any("another" in where for where in found)
    model = load_model(target, "fp32")
    plain = LLM(model, "none").generate([[*range(40, 60)]], GREEDY)[0]
    for llm in (LLM(model, "auto"), LLM(model, "mtp", drafter_options={"min_probability": 0.0})):
        assert any(f"{cached.name}, which lies in the hub's cache, guess" in notice for notice in llm.notices)
        output = llm.generate([[*range(40, 60)]], GREEDY)[0]
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert output.outputs[0].stats.drafted > 0


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A target that is more than four times as large as a model of one layer."""
    (tmp_path / "large").mkdir()
    return write_tiny_model(tmp_path / "large", head_dim=HIDDEN // HEADS, layers=24)


def write_stranger(folder: Path, change: dict[str, str]) -> Path:
    """A small model with a tokenizer that differs in one spelling."""
    write_tiny_model(folder, head_dim=HIDDEN // HEADS, layers=1)
    text = (folder / "tokenizer.json").read_text()
    for old, new in change.items():
        text = text.replace(old, new)
    (folder / "tokenizer.json").write_text(text)
    return folder


def test_small_siblings_of_the_hubs_cache_are_listed(hub: Path, large: Path) -> None:
    write_tiny_model(snapshot(hub, "org/small"), head_dim=HIDDEN // HEADS, layers=1)
    write_tiny_model(snapshot(hub, "org/half"), head_dim=HIDDEN // HEADS, layers=12)
    write_stranger(snapshot(hub, "org/speaks-otherwise"), {"<|im_start|>": "<|im_begin|>"})
    torn = write_tiny_model(snapshot(hub, "org/torn"), head_dim=HIDDEN // HEADS, layers=1) / "model.safetensors"
    save_file({name: each for name, each in load_file(torn).items() if "mlp.up" not in name}, torn)
    (snapshot(hub, "org/nothing") / "config.json").write_text("{}")
    found = listed(large)
    small, size = found["org/small"], snapshot_file(hub, "org/small").stat().st_size
    assert (small["standing"], small["drafter"], small["nbytes"]) == ("found", "draft-model", size)
    assert "--draft-model org/small" in small["said"]
    refused = {name: each["said"] for name, each in found.items() if each["standing"] == "refused"}
    assert refused.keys() == {"org/half", "org/speaks-otherwise", "org/torn"}
    assert "more than a quarter" in refused["org/half"]
    assert "has another tokenizer: token 257 is '<|im_start|>'" in refused["org/speaks-otherwise"]
    assert "lacks" in refused["org/torn"]


def test_a_sibling_that_merges_otherwise_is_refused(hub: Path, large: Path) -> None:
    joined = {'"Ā"': '"aa"'}
    write_stranger(snapshot(hub, "org/joins-nothing"), joined)
    text = (large / "tokenizer.json").read_text().replace('"Ā"', '"aa"')
    (large / "tokenizer.json").write_text(text.replace('"merges": []', '"merges": [["a", "a"]]'))
    assert "merges other pieces" in listed(large)["org/joins-nothing"]["said"]


def test_the_default_drafter_takes_a_small_sibling_and_says_so(hub: Path, large: Path) -> None:
    plain = LLM(large, "none").generate(["abc"], GREEDY)[0].text
    small = write_tiny_model(snapshot(hub, "org/small"), head_dim=HIDDEN // HEADS, layers=1)
    write_stranger(snapshot(hub, "org/speaks-otherwise"), {"<|im_start|>": "<|im_begin|>"})
    llm = LLM(large)
    assert any("Drafting with org/small (" in notice and "same tokenizer" in notice for notice in llm.notices)
    assert llm.generate(["abc"], GREEDY)[0].text == plain
    # Whether guesses pay depends on how busy this machine is: named, it guesses in any case.
    output = LLM(large, "draft-model", draft_model=small).generate(["abc"], GREEDY)[0]
    assert output.text == plain
    assert output.stats.drafted > 0


@pytest.mark.thorough
def test_a_sibling_that_finds_no_memory_is_named_and_decoding_goes_on(
    hub: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(snapshot(hub, "org/small"), head_dim=HIDDEN // HEADS, layers=1)
    model = load_model(large)

    def short(*arguments: object, **named: object) -> None:
        raise ConfigError("memory is short; choose a smaller model.")

    monkeypatch.setattr("headstart.loading.lending.load_model", short)
    llm = LLM(model)
    assert any("org/small" in notice and "is not used: memory is short" in notice for notice in llm.notices)
    assert llm.generate(["abc"], GREEDY)[0].text


def test_a_head_comes_before_a_small_sibling(hub: Path, large: Path) -> None:
    write_tiny_model(snapshot(hub, "org/small"), head_dim=HIDDEN // HEADS, layers=1)
    save_head(random_eagle(VOCAB), snapshot(hub, "org/head"))
    assert not any("org/small" in notice for notice in LLM(large).notices)


def snapshot_file(hub: Path, name: str) -> Path:
    (file,) = hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/model.safetensors")
    return file


def test_the_default_drafter_takes_a_head_at_hand_and_says_so(hub: Path, target: Path) -> None:
    plain = LLM(target, "none").generate(["abc"], GREEDY)[0].text
    save_head(random_eagle(VOCAB), snapshot(hub, "org/head"))
    llm = LLM(target)
    assert any("eagle3 head in org/head" in notice for notice in llm.notices)
    assert llm.generate(["abc"], GREEDY)[0].text == plain


@pytest.mark.parametrize(
    "makes", thorough_but([random_eagle], [random_eagle, random_block, partial(random_eagle, slots=4, mask_token_id=8)])
)
def test_where_a_head_runs_is_told(makes: Callable[..., TrainedHead], hub: Path, target: Path) -> None:
    """With heads of four numbers, in PyTorch; what lists candidates says the same."""
    for size, where in ((32, "the native pass"), (4, r"PyTorch, since head_dim 4 is no multiple of 32 up to 256")):
        save_head(makes(VOCAB, head_dim=size, rope=RopeConfig(10000.0, size)), folder := snapshot(hub, f"org/{size}"))
        where = where if load_library() else "PyTorch, since there is no native pass here"
        assert listed(target)[f"org/{size}"]["runs_in"] == where
        for named in (None, folder):
            llm = LLM(target, draft_model=named)
            assert sum(where in notice for notice in llm.notices) == 1
            assert llm.generate(["abc"], GREEDY)[0].text == LLM(target, "none").generate(["abc"], GREEDY)[0].text
        shutil.rmtree(folder)
    assert "in PyTorch, since head_dim" not in headstart("drafters", "--model", target).stdout


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
    assert "fetch it again" in listed(target)["org/broken"]["said"]
    loop = hub / "models--org--loop" / "snapshots" / "0123"
    loop.parent.mkdir(parents=True)
    loop.symlink_to(loop)
    assert "org/loop" not in listed(target)
    assert LLM(target).generate(["abc"], GREEDY)[0].text


def test_what_cannot_even_be_opened_is_told_once(hub: Path, target: Path) -> None:
    (snapshot(hub, "org/eagle3") / "model.safetensors").symlink_to(hub / "gone")
    (snapshot(hub, "org/torn") / "config.json").write_text('{"model_type": ')
    (blobs := hub / "models--org--eagle3" / "blobs").mkdir()
    for place in (target / "draft-\x1b[31mred.gguf", target / "notes.gguf"):
        place.symlink_to(target / "gone")
    for place in (target / "eagle3.gguf.incomplete", blobs / "0123.incomplete"):
        place.write_bytes(b"GG")
    refused = [
        each["said"] for each in listed(target).values() if each["standing"] == "refused" and each["nbytes"] == 0
    ]
    assert sum("link to nothing" in said for said in refused) == 2
    assert sum("download broke off" in said for said in refused) == 2
    assert sum("config.json is not valid JSON" in said for said in refused) == 1
    # However long the temporary path is, no cell is folded.
    shown = headstart("drafters", "--model", target, COLUMNS="9999").stdout
    assert "\x1b[31m" not in shown
    assert "x1b" in shown
    narrow = headstart("drafters", "--model", target, COLUMNS="60").stdout
    assert Counter("".join(narrow.split())) == Counter("".join(shown.split()))


def test_a_head_of_the_hubs_cache_is_named_by_its_repository(hub: Path, target: Path) -> None:
    """As the list says."""
    save_head(random_eagle(VOCAB), snapshot(hub, "org/head"))
    assert listed(target)["org/head"]["said"].endswith("--draft-model org/head")
    for drafter in (None, "auto", "eagle3"):
        output = LLM(target, drafter, draft_model="org/head").generate(["abc"], GREEDY)[0]
    assert output.stats.drafted > 0
    with pytest.raises(ConfigError, match="is a draft head"):
        LLM(target, "draft-model", draft_model="org/head")


def test_a_model_of_the_hubs_cache_is_named_by_its_repository(hub: Path, target: Path) -> None:
    """Without a network, whatever its revision was called when it was fetched; not where its weights are missing."""
    small = write_tiny_model(snapshot(hub, "org/small"), head_dim=HIDDEN // HEADS, layers=1)
    described = small.with_name("4567")
    described.mkdir()
    shutil.copy(small / "config.json", described)
    assert locate("org/small") == small
    output = LLM(target, "draft-model", draft_model="org/small").generate(["abc"], GREEDY)[0]
    assert output.stats.drafted > 0
    shutil.rmtree(small)
    with pytest.raises(CheckpointError, match="neither a local path nor cached, and the hub cannot be reached"):
        locate("org/small")


def test_gguf_files_beside_a_description_are_seen(hub: Path, target: Path) -> None:
    """Of a repository of which nothing else was fetched."""
    folder = snapshot(hub, "org/eagle3-GGUF")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "eagle3-Q8_0.gguf").write_bytes(b"GGUF")
    assert listed(target)[str(folder / "eagle3-Q8_0.gguf")]["standing"] == "refused"
    write_tiny_model(folder, head_dim=HIDDEN // HEADS, layers=6)
    assert str(folder / "eagle3-Q8_0.gguf") not in listed(target)


@pytest.mark.parametrize("fault", ["cut short", "pickled"])
def test_a_head_that_is_not_read_is_named_with_the_reason(fault: str, hub: Path, target: Path) -> None:
    file = save_and_find(snapshot(hub, "org/head"))
    if fault == "cut short":
        file.write_bytes(file.read_bytes()[:2000])
        assert listed(target)["org/head"]["standing"] == "refused"
    else:
        torch.save(load_file(file), file.with_name("pytorch_model.bin"))
        file.unlink()
        assert "weights are pickled" in listed(target)["org/head"]["said"]
        assert listed(target)["org/head"]["standing"] == "refused"
    llm = LLM(target)
    said = {"cut short": "model.safetensors is damaged", "pickled": "pickled, .* --draft-model org/head"}[fault]
    (notice,) = [each for each in llm.notices if "eagle3 head in org/head is not used" in each]
    assert re.search(said, notice)
    assert llm.generate(["abc"], GREEDY)[0].text


def save_and_find(folder: Path) -> Path:
    save_head(random_eagle(VOCAB), folder)
    return folder / "model.safetensors"


def test_a_damaged_file_beside_a_folder_is_named_where_it_is_called_like_a_head(hub: Path, target: Path) -> None:
    (target / "eagle3-Q8_0.gguf").write_bytes(b"GGUF")
    (target / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert listed(target)[str(target / "eagle3-Q8_0.gguf")]["standing"] == "refused"
    (notice,) = [each for each in LLM(target).notices if ".gguf" in each]
    assert "eagle3-Q8_0.gguf is not used" in notice


def test_what_is_published_for_a_shape_is_named() -> None:
    llama = replace(head_target(128256), hidden_size=4096, layers=(LayerConfig(),) * 32)
    small = "meta-llama/Llama-3.2-1B-Instruct"
    named = [each.hub_id for each in PUBLISHED if each.fits(llama, 8 * 10**9)]
    assert "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B" in named
    assert all("3.1" in name and "8B" in name for name in named if name != small)
    assert small in named
    assert small not in [each.hub_id for each in PUBLISHED if each.fits(llama, 4 * 10**9)]


def test_published_names_are_of_families_that_are_read() -> None:
    assert len({each.hub_id for each in PUBLISHED}) == len(PUBLISHED)
    known = {family.name for family in FAMILIES}
    assert {family for each in PUBLISHED for family in each.families} <= known
    assert all(each.hub_id in each.said and each.rates in each.said for each in PUBLISHED)


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


@pytest.mark.parametrize("drafter", ["auto", "eagle3"])
def test_a_head_of_another_role_is_refused_with_its_architecture(drafter: str, tmp_path: Path, target: Path) -> None:
    with pytest.raises(CheckpointError, match="holds 'clip', which as a draft head is of no known format"):
        LLM(target, drafter, draft_model=write_gguf(tmp_path / "mmproj.gguf", "clip"))


def test_a_head_has_no_modules(tmp_path: Path, target: Path) -> None:
    save_head(random_eagle(VOCAB), tmp_path / "head")
    with pytest.raises(ConfigError, match=r"is a draft head \(eagle3\), which has no multi-token modules"):
        LLM(target, "mtp", draft_model=tmp_path / "head")


def test_a_head_is_no_model_that_answers(tmp_path: Path) -> None:
    save_head(random_eagle(VOCAB), tmp_path / "head")
    said = r"is a draft head \(eagle3\), no model that answers; give it with --draft-model"
    for opened in (LLM, Outline.open):
        with pytest.raises(CheckpointError, match=said):
            opened(tmp_path / "head")


def test_a_drafters_name_and_a_model_do_not_go_together(target: Path) -> None:
    assert "leave NAME out" in refusal(headstart("drafters", "suffix", "--model", target))
