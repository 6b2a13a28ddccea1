"""Whatever the entries of a model's files say, loading and a first request work or end with one sentence."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from more_families import MORE_FAMILIES
from mutations import STRANGE, mutate_value
from small_tokenizers import byte_level_metadata, sentencepiece_metadata
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model

from headstart.drafting.head_files.loading import load_head
from headstart.entrypoints.llm import LLM
from headstart.errors import CheckpointError, ConfigError, RequestError
from headstart.loading.model import load_model
from headstart.models.families import config_from_hf
from headstart.models.gguf_file import GgufFile
from headstart.sampling.params import SamplingParams

TOOLS = [{"type": "function", "function": {"name": "f"}}]
REFUSED = (CheckpointError, ConfigError)


def use(path: Path) -> None:
    """Load a model, read, write and chat a little with it."""
    model = load_model(path)
    model.tokenizer.decode(model.tokenizer.encode("Hello <|im_end|> wörld 123"))
    model.tokenizer.fingerprint()
    for tools in (None, TOOLS) if model.chat_template.available else ():
        try:
            model.chat_template.render([{"role": "user", "content": "x"}], tools=tools)
        except RequestError:
            continue
    try:
        llm = LLM(model, "none", cache_tokens=64, max_context=min(64, model.config.max_positions))
        llm.generate("hello", SamplingParams(max_tokens=3, temperature=0))
    except RequestError:
        return


PARTS = 3
"""What is changed is tried in so many tests."""


def works(path: Path) -> bool:
    try:
        use(path)
    except REFUSED as error:
        said = str(error)
    else:
        return True
    assert "\n" not in said
    assert len(said) < 700
    return False


def directory_files(directory: Path) -> dict[str, Any]:
    """The JSON files of a tiny model, with all that such files may have."""
    write_tiny_model(directory)
    files = {path.name: json.loads(path.read_text()) for path in directory.glob("*.json")}
    files["generation_config.json"] = {"eos_token_id": [258, 257], "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    files["special_tokens_map.json"] = {"bos_token": {"content": "<|im_start|>", "lstrip": False}}
    files["tokenizer_config.json"]["chat_template"] = [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools | length }}"},
    ]
    files["config.json"]["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    one = {"Sequence": {"id": "A", "type_id": 0}}
    steps = [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "q"}, "content": "Q"}]
    files["tokenizer.json"] |= {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "post_processor": {"type": "TemplateProcessing", "single": [one], "pair": [one], "special_tokens": {}},
    }
    return files


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("part", thorough_but([0], range(PARTS)))
def test_strange_entries_of_a_directory_are_refused_or_harmless(tmp_path: Path, part: int) -> None:
    files = directory_files(tmp_path)
    rng = random.Random(0)
    outcomes = []
    for number in range(250):
        strange = rng.choice(list(files))
        changed = files | {strange: mutate_value(files[strange], rng)}
        if number % PARTS != part:
            continue
        for name, value in changed.items():
            (tmp_path / name).write_text(json.dumps(value))
        outcomes.append(works(tmp_path))
    assert 0.2 < sum(outcomes) / len(outcomes) < 0.92


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("part", thorough_but([0], range(PARTS)))
@pytest.mark.parametrize("kind", thorough_but(["llama"], ["gpt2", "llama"]))
def test_strange_entries_of_a_gguf_file_are_refused_or_harmless(tmp_path: Path, kind: str, part: int) -> None:
    from tiny_models import make_model

    from models.gguf_models import write_gguf

    if kind == "gpt2":
        own = byte_level_metadata("ab abc", pre="llama-bpe")
    else:
        own = sentencepiece_metadata({"▁": 0.0, "a": -1.0, "ab": -3.0})
    model = make_model("llama", vocab_size=len(own["tokenizer.ggml.tokens"]))
    file = GgufFile(write_gguf(model, tmp_path / "whole.gguf"))
    tensors = {name: file.read(name).numpy() for name in file.tensors}
    metadata = dict(file.metadata) | own
    metadata |= {f"tokenizer.ggml.{key}": True for key in ("add_bos_token", "add_space_prefix")}
    metadata |= {"general.type": "model", "general.name": "tiny", "general.alignment": 32, "split.count": 1}
    metadata |= {"tokenizer.chat_template": "{{ messages[0].content }}", "tokenizer.chat_templates": ["tool_use"]}
    metadata |= {"tokenizer.chat_template.tool_use": "T", "tokenizer.ggml.eot_token_id": 3}
    metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0, "llama.expert_count": 0}
    path = tmp_path / "strange.gguf"
    outcomes = []
    for changed in islice(strange_metadata(metadata, random.Random(1), 200), part, None, PARTS):
        write_metadata(path, changed, tensors)
        outcomes.append(works(path))
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.75


_WIDE = (2**31, 2**63 - 1)
"""Numbers that lists of a file cannot hold."""


def strange_metadata(metadata: dict[str, Any], rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    values = [value for value in STRANGE if storable(value)]
    for _ in range(count):
        changed = dict(metadata)
        key = rng.choice(list(metadata))
        value = metadata[key]
        match rng.randrange(4):
            case 0:
                del changed[key]
            case 1 if isinstance(value, list):
                same = [other for other in values if type(other) is type(value[0]) and other not in _WIDE]
                changed[key] = [rng.choice(same) if rng.random() < 0.01 else each for each in value]
            case 2 if isinstance(value, list):
                changed[key] = value[: rng.randint(1, len(value))]
            case _:
                changed[key] = rng.choice(values)
        yield changed


def storable(value: Any) -> bool:
    """Whether a GGUF file can hold it: a scalar, or a list of scalars of one kind."""
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, list) and bool(value) and not isinstance(value[0], list | None)
    )


def write_metadata(path: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].clear()
    for key, value in metadata.items():
        wide = isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31
        writer.add_key_value(key, value, gguf.GGUFValueType.INT64 if wide else gguf.GGUFValueType.get_type(value))
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


MODEL_FILES = [
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("model.safetensors", "model.safetensors.index.json", "chat_template.jinja"),
]


@pytest.mark.parametrize("make", [make_pipe, make_socket, make_device, Path.mkdir])
@pytest.mark.parametrize("name", [*MODEL_FILES, "additional_chat_templates/tool_use.jinja"])
def test_what_is_no_regular_file_is_refused_in_place_of_one(tmp_path: Path, name: str, make: Any) -> None:
    write_tiny_model(tmp_path)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises(CheckpointError, match=rf"{path.name} is no regular file"):
        load_model(tmp_path)


@pytest.mark.parametrize("make", [make_pipe, make_socket, make_device])
def test_a_gguf_file_that_is_no_file_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match=r"x\.gguf is no regular file"):
        load_model(tmp_path / "x.gguf")


@pytest.mark.parametrize("make", [make_pipe, make_device])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"])
def test_the_same_holds_for_heads(tmp_path: Path, tiny_model_dir: Path, name: str, make: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name} is no regular file"):
        load_head(tmp_path, load_model(tiny_model_dir).config)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-of-this-name/model"])
def test_names_that_no_file_can_have_are_one_sentence(name: str) -> None:
    with pytest.raises(CheckpointError):
        load_model(name)


@pytest.mark.filterwarnings("ignore:.*")
def test_strange_descriptions_of_many_families_are_refused_or_harmless() -> None:
    rng = random.Random(3)
    outcomes = []
    for name, settings in rng.sample(list(MORE_FAMILIES.values()), 30):
        described = json.loads(
            json.dumps(getattr(transformers, f"{name}Config")(**deepcopy(settings)).to_dict(), default=str)
        )
        changed = [mutate_value(described, rng) for _ in range(60)]
        outcomes += [is_read(each) for each in changed if isinstance(each, dict)]
    assert 300 < sum(outcomes) < len(outcomes) - 100


def is_read(description: dict[str, Any]) -> bool:
    """Nothing is computed or taken up for what it says."""
    try:
        config_from_hf(description)
    except CheckpointError as error:
        said = str(error)
    else:
        return True
    assert "\n" not in said
    return False
