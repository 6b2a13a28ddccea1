"""Every layout of multi-token modules, as a folder and as a GGUF file: found by the default drafter, run by the native
pass, and the text is the target's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf_modules import WRITERS, alone, in_blocks, written
from multi_token_models import NATIVE_SIZES, write_modules
from native_here import needs_native
from safetensors.torch import load_file, save_file
from thinning import thorough_but
from tiny_checkpoint import write_tokenizer

from headstart.entrypoints.llm import LLM
from headstart.errors import HeadstartError
from headstart.loading.beside import sound_modules
from headstart.loading.candidates import Standing, candidates
from headstart.loading.model import Model, load_model, load_opened
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import config_of
from headstart.sampling.params import SamplingParams
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer

pytestmark = needs_native
IN_FOLDERS = ("mimo", "exaone4_5", "hy_v4", "longcat_flash")
"""Those that llama.cpp has no architecture for, or leaves without modules."""
FAMILIES = (*WRITERS, *IN_FOLDERS)
FEW = ("deepseek_v3", "qwen3_5_text", "bailing_moe", "glm5_next", "cohere2_moe", "ernie4_5_moe", "nemotron_h")
"""Those of ``make test``: of each kind of layer."""
RUNS_NATIVELY = "Multi-token modules run in the native pass"
PROMPTS = [[5, 17, 3, 44, 9], [5, 17, 3, 44, 9, 61, 30, 31, 30, 31, 30]]
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
CHAIN = {"min_probability": 0.0}


def texts(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]


def model_of(path: Path, folder: Path, precision: str) -> Model:
    """Of a folder, or of a GGUF file with the folder's tokenizer."""
    if path == folder:
        return load_model(folder, precision)
    described = open_checkpoint(folder)
    tokenizer, template = Tokenizer.from_checkpoint(described), ChatTemplate.from_checkpoint(described)
    return load_opened(open_checkpoint(path), tokenizer, template, precision)


def written_both_ways(family: str, folder: Path) -> list[Path]:
    """The folder, and the GGUF file beside it, of sizes that the native pass takes."""
    folder.mkdir()
    files = folder.parent / "files"
    files.mkdir()
    write_tokenizer(folder)
    if family in IN_FOLDERS:
        write_modules(family, folder, 1, **NATIVE_SIZES[family])
        return [folder]
    return [folder, written(family, folder, to=files / "tiny.gguf", **NATIVE_SIZES[family])[1]]


def check(path: Path, folder: Path, precision: str) -> None:
    model = model_of(path, folder, precision)
    plain = texts(LLM(model, "none"))
    llm = LLM(model, "auto")
    assert any(RUNS_NATIVELY in notice for notice in llm.notices)
    assert texts(llm) == plain
    llm = LLM(model, "mtp", drafter_options=CHAIN, max_batch_size=2)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.mark.parametrize("family", thorough_but(FEW, FAMILIES))
def test_auto_finds_them_and_the_native_pass_runs_them(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for path, precision in zip(written_both_ways(family, folder), ("bf16", "int8"), strict=False):
        check(path, folder, precision)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_so_they_do_in_every_precision(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for path in written_both_ways(family, folder):
        for precision in ("fp32", "int8-fast", "int4", "int4-fast"):
            check(path, folder, precision)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_sequences_go_on_as_if_they_were_not(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = model_of(written_both_ways(family, folder)[-1], folder, "bf16")
    prompts, params = [[*range(40, 43)], [*range(40, 70)]], replace(GREEDY, max_tokens=70)
    plain = LLM(model, "none", max_context=110).generate(prompts, params)
    options = {**CHAIN, "tree_nodes": 6}
    outputs = LLM(model, "mtp", drafter_options=options, max_context=110, cache_tokens=97).generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in plain]
    assert sum(output.outputs[0].stats.preemptions for output in outputs) > 0
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_are_those_of_plain_decoding_with_the_same_seed(family: str, tmp_path: Path) -> None:
    folder, params = tmp_path / "model", replace(GREEDY, temperature=0.8, top_p=0.9, seed=7)
    for path, precision in zip(written_both_ways(family, folder), ("int8", "bf16"), strict=False):
        model = model_of(path, folder, precision)
        plain = texts(LLM(model, "none"), params)
        assert plain != texts(LLM(model, "none"))
        assert texts(LLM(model, "auto"), params) == plain
        assert texts(LLM(model, "mtp", drafter_options=CHAIN, max_batch_size=2), params) == plain


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("family", ["qwen3_5_text", "exaone_moe", "deepseek_v3"])
def test_so_they_do_in_a_files_own_blocks(family: str, kind: str, tmp_path: Path) -> None:
    """Beside states, dense behind experts, and with latent attention."""
    folder = tmp_path / "model"
    path = in_blocks(written_both_ways(family, folder)[1], tmp_path / kind / "tiny.gguf", kind)
    check(path, folder, "blocks")


@pytest.mark.thorough
def test_texts_go_beyond_what_deepseek_v4_compresses_at_once(tmp_path: Path) -> None:
    """128 tokens."""
    folder = tmp_path / "model"
    prompts = [[5 + (7 * i) % 90 for i in range(length)] for length in (120, 97)]
    params = replace(GREEDY, max_tokens=44)
    for path in written_both_ways("deepseek_v4", folder):
        for precision in ("bf16", "int8"):
            model, said = model_of(path, folder, precision), []
            for drafter, options in (("none", {}), ("auto", {}), ("mtp", CHAIN), ("suffix", {})):
                llm = LLM(model, drafter, drafter_options=options, max_batch_size=2)
                said.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
            assert said[1:] == said[:1] * 3


SEVERAL = (
    "bailing_moe",
    "bailing_hybrid",
    "deepseek_v4",
    "glm5_next",
    "glm_moe_dsa",
    "hy_v3",
    "mellum",
    "mimo_v2_flash",
    "step3p7",
)


@pytest.mark.parametrize("family", thorough_but(("bailing_moe",), SEVERAL))
def test_two_modules_guess_in_turn(family: str, tmp_path: Path) -> None:
    folder, file = tmp_path, tmp_path / "files" / "tiny.gguf"
    file.parent.mkdir()
    write_tokenizer(folder)
    written(family, folder, 2, to=file, **NATIVE_SIZES[family])
    for path in (folder, file):
        check(path, folder, "bf16")
    model = load_model(folder, "bf16")
    # Each module says tokens that the text alone holds.
    outputs = LLM(model, "mtp", drafter_options=CHAIN | {"draft_vocabulary": 16}).generate(PROMPTS, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == texts(LLM(model, "none"))
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.mark.parametrize(
    "family", thorough_but(("qwen3_5_text",), ("qwen3_5_text", "deepseek_v3", "hy_v3", "deepseek_v4"))
)
def test_a_file_of_modules_alone_guesses_for_a_folder_and_a_file(family: str, tmp_path: Path) -> None:
    """It lies beside a file without them, or in a folder; by name it serves as draft model."""
    folder = tmp_path / "model"
    whole = written_both_ways(family, folder)[1]
    sidecar = alone(whole, whole.with_name("mtp-tiny.gguf"))
    drop_modules(folder, family)
    trunk = alone(whole, tmp_path / "trunk" / "tiny.gguf", modules=False)
    named = LLM(model_of(trunk, folder, "bf16"), "mtp", draft_model=sidecar, drafter_options=CHAIN)
    assert named.generate(PROMPTS[:1], GREEDY)[0].outputs[0].stats.drafted > 0
    for drafter in (None, "auto"):
        llm = LLM(model_of(trunk, folder, "bf16"), drafter, draft_model=sidecar)
        assert any(RUNS_NATIVELY in notice for notice in llm.notices)
    with pytest.raises(HeadstartError, match="is a file of multi-token modules alone"):
        LLM(model_of(trunk, folder, "bf16"), "draft-model", draft_model=sidecar)
    (trunk.parent / "MTP").mkdir()
    for path, beside in ((folder, folder / "mtp-tiny.gguf"), (trunk, trunk.parent / "MTP" / "tiny-Q8_0.gguf")):
        beside.write_bytes(sidecar.read_bytes())
        model = model_of(path, folder, "bf16")
        plain, llm = texts(LLM(model, "none")), LLM(model, "auto")
        assert any(beside.name in notice for notice in llm.notices)
        assert any(RUNS_NATIVELY in notice for notice in llm.notices)
        assert texts(llm) == plain


def drop_modules(folder: Path, family: str) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if not is_module(name)}
    save_file(tensors, path, metadata={"format": "pt"})


def is_module(name: str) -> bool:
    return name.startswith(("mtp.", "model.layers.3.", "model.language_model.layers.3."))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_modules("glm4_moe", tmp_path, 1, **NATIVE_SIZES["glm4_moe"])
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("missing", r"lacks model\.layers\.3\.eh_proj\.weight"),
        ("narrow", r"mis-shaped model\.layers\.3\.eh_proj\.weight"),
    ],
)
def test_damaged_modules_are_told_and_decoding_goes_on(fault: str, said: str, folder: Path) -> None:
    """An error where they were asked for by name."""
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.3.eh_proj.weight"
    tensors.update({name: tensors[name][:, :-32].contiguous()} if fault == "narrow" else {})
    if fault == "missing":
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_model(folder, "bf16")
    llm = LLM(model, "auto")
    assert sum("multi-token modules are not used" in notice for notice in llm.notices) == 1
    assert texts(llm) == texts(LLM(model, "none"))
    with pytest.raises(HeadstartError, match=said):
        LLM(model, "mtp")
    found = candidates(model.checkpoint, model.config, model.tokenizer)
    assert next(each for each in found if each.drafter == "mtp").standing is Standing.REFUSED


def test_modules_like_no_layer_of_the_model_are_told_and_decoding_goes_on(tmp_path: Path) -> None:
    """They attend, and nothing else does."""
    write_modules("qwen3_5_text", tmp_path, 1, layers=1, **NATIVE_SIZES["qwen3_5_text"])
    write_tokenizer(tmp_path)
    model = load_model(tmp_path, "bf16")
    llm = LLM(model, "auto")
    assert sum("no layer of its qwen3_5_text decoder is like" in notice for notice in llm.notices) == 1
    assert texts(llm) == texts(LLM(model, "none"))
    with pytest.raises(HeadstartError, match="no layer of its qwen3_5_text decoder is like"):
        LLM(model, "mtp")


def test_modules_that_hold_no_numbers_are_told_and_decoding_goes_on(folder: Path) -> None:
    """An expert that few rows come to, say."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.mlp.experts.2.up_proj.weight"][-1, -1] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_model(folder, "bf16")
    llm = LLM(model, "auto")
    assert sum("hold infinities or NaN in model.layers.3.mlp.experts.2" in notice for notice in llm.notices) == 1
    assert texts(llm) == texts(LLM(model, "none"))
    with pytest.raises(HeadstartError, match="hold infinities or NaN"):
        LLM(model, "mtp")
    found = candidates(model.checkpoint, model.config, model.tokenizer)
    assert next(each for each in found if each.drafter == "mtp").standing is Standing.REFUSED


@pytest.mark.parametrize("family", thorough_but(("deepseek_v3",), FAMILIES))
def test_every_tensor_of_modules_is_looked_at(family: str, tmp_path: Path) -> None:
    write_modules(family, tmp_path, 1, **NATIVE_SIZES[family])
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    read = [name for name in whole if (is_module(name) or ".mtp" in name) and ".indexer." not in name]
    assert len(read) > 10
    for name in read:
        tensor = whole[name].clone()
        tensor.view(-1)[-1] = torch.inf
        save_file(whole | {name: tensor}, path, metadata={"format": "pt"})
        checkpoint = open_checkpoint(tmp_path)
        with pytest.raises(HeadstartError, match="hold infinities or NaN"):
            sound_modules(checkpoint, config_of(checkpoint), torch.bfloat16)


@pytest.mark.parametrize(("family", "prefix"), [("glm4_moe", ""), ("qwen3_5_text", "model."), ("mimo_v2_flash", "")])
def test_names_of_modules_may_begin_otherwise(family: str, prefix: str, tmp_path: Path) -> None:
    write_modules(family, tmp_path, 1, **NATIVE_SIZES[family])
    write_tokenizer(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    with_mtp = {name: f"{prefix}{name.removeprefix('model.')}" for name in tensors if not prefix or "mtp." in name}
    save_file({with_mtp.get(name, name): each for name, each in tensors.items()}, path, metadata={"format": "pt"})
    check(tmp_path, tmp_path, "bf16")


@pytest.mark.parametrize("family", ["qwen3_5_text", "glm4_moe"])
def test_a_gguf_file_need_not_count_its_modules(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    whole = written_both_ways(family, folder)[1]
    path = tmp_path / "uncounted.gguf"
    path.write_bytes(whole.read_bytes().replace(b".nextn_predict_layers", b".nextn_unknown_layers"))
    check(path, folder, "bf16")


@pytest.mark.parametrize("family", thorough_but(("qwen3_5_text",), ("qwen3_5_text", "deepseek_v3", "mimo")))
def test_a_safetensors_file_that_no_index_lists_guesses(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_modules(family, folder, 1, **NATIVE_SIZES[family])
    write_tokenizer(folder)
    shards = split(folder, family)
    names = [*shards["model-00001-of-00002.safetensors"], *shards["model-00002-of-00002.safetensors"]]
    index = {"weight_map": {name: shard for shard, names in list(shards.items())[:2] for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check(folder, folder, "bf16")
    sidecar = folder / "mtp.safetensors"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("mtp.safetensors", "config.json"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    sidecar.write_bytes(sidecar.read_bytes()[:300])
    model = load_model(folder, "bf16")
    llm = LLM(model, "auto")
    assert any("mtp.safetensors, which lies beside the model, are not used" in notice for notice in llm.notices)
    plain = texts(llm)
    assert len(names) == len(model.checkpoint.shapes())
    for drafter in (None, "mtp"):
        llm = LLM(model, drafter, draft_model=elsewhere / "mtp.safetensors")
        assert any(RUNS_NATIVELY in notice for notice in llm.notices)
        assert texts(llm) == plain


def split(folder: Path, family: str) -> dict[str, list[str]]:
    """Two files of the model, and one of its modules."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    of_model = [name for name in whole if not is_module(name) and ".mtp" not in name]
    shards = {
        "model-00001-of-00002.safetensors": of_model[::2],
        "model-00002-of-00002.safetensors": of_model[1::2],
        "mtp.safetensors": [name for name in whole if name not in of_model],
    }
    for shard, names in shards.items():
        save_file({name: whole[name] for name in names}, folder / shard, metadata={"format": "pt"})
    return shards


def test_a_folder_of_a_module_as_sglang_exports_it_guesses(tmp_path: Path) -> None:
    """Its layer is the only one there, and has the number 0."""
    folder, alone = tmp_path / "model", tmp_path / "model" / "Tiny-NextN"
    folder.mkdir()
    write_modules("deepseek_v3", folder, 1, **NATIVE_SIZES["deepseek_v3"])
    write_tokenizer(folder)
    alone.mkdir()
    write_tokenizer(alone)
    whole = load_file(folder / "model.safetensors")
    module = {name.replace(".3.", ".0.", 1): each for name, each in whole.items() if is_module(name)}
    save_file(module, alone / "nextn_layer_parameters.safetensors")
    index = {"weight_map": dict.fromkeys(module, "nextn_layer_parameters.safetensors")}
    (alone / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "architectures": ["DeepseekV3ForCausalLMNextN"]}
    (alone / "config.json").write_text(json.dumps(config))
    described = load_model(folder, "bf16")
    came_with = LLM(described, "mtp", drafter_options=CHAIN).generate(PROMPTS, GREEDY)
    drop_modules(folder, "deepseek_v3")
    check(folder, folder, "bf16")
    model = load_model(folder, "bf16")
    plain = texts(LLM(model, "none"))
    for drafter in (None, "mtp"):
        llm = LLM(model, drafter, draft_model=alone)
        assert any(RUNS_NATIVELY in notice for notice in llm.notices)
        assert texts(llm) == plain
    outputs = LLM(model, "mtp", draft_model=alone, drafter_options=CHAIN).generate(PROMPTS, GREEDY)
    accepted = [[each.outputs[0].stats.accepted for each in of] for of in (outputs, came_with)]
    assert accepted[0] == accepted[1]
    with pytest.raises(HeadstartError, match="holds multi-token modules alone"):
        LLM(alone)
    found = {each.where: each for each in candidates(model.checkpoint, model.config, model.tokenizer)}
    assert (found[str(alone)].standing, found[str(alone)].runs_in) == (Standing.FOUND, "the native pass")
    (alone / "config.json").write_text(json.dumps(config | {"hidden_size": 96}))
    assert any("hidden_size 96 (here 64)" in notice for notice in LLM(model, "auto").notices)
    with pytest.raises(HeadstartError, match="hidden_size 96"):
        LLM(model, "mtp", draft_model=alone)


@pytest.mark.parametrize("fault", ["another model", "cut short"])
def test_a_sidecar_that_does_not_fit_is_told_and_decoding_goes_on(fault: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    whole = written_both_ways("qwen3_5_text", folder)[1]
    drop_modules(folder, "qwen3_5_text")
    beside = folder / "mtp-other.gguf"
    if fault == "another model":
        sizes = NATIVE_SIZES["qwen3_5_text"] | {"hidden_size": 96}
        alone(written("qwen3_5_text", other, to=tmp_path / "wide.gguf", **sizes)[1], beside)
    else:
        beside.write_bytes(alone(whole, tmp_path / "mtp.gguf").read_bytes()[:400])
    model = load_model(folder, "bf16")
    llm = LLM(model, "auto")
    told = [notice for notice in llm.notices if beside.name in notice]
    assert len(told) == 1
    assert "are not used" in told[0]
    found = {each.where: each for each in candidates(model.checkpoint, model.config, model.tokenizer)}
    assert found[str(beside)].standing is Standing.REFUSED
    assert fault == "cut short" or "hidden_size 96 (here 64)" in told[0]
    assert texts(llm) == texts(LLM(model, "none"))
    with pytest.raises(HeadstartError):
        LLM(model, "mtp", draft_model=beside)
