"""Whole models that transformers runs: what is said is what it says, with any drafter, in batches, under pressure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from devices import DEVICES
from foreign_models import greedy, tiny_model, write_foreign
from safetensors.torch import load_file, save_file
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from typer.testing import CliRunner

from headstart import LLM, SamplingParams
from headstart.cli.main import app
from headstart.errors import CheckpointError, ConfigError
from headstart.loading.model import load_model, require_numerics
from headstart.loading.reading import USUAL, Reading

PROMPTS = [list(range(10, 10 + length)) for length in (3, 37, 50)] + [[7, 8, 9] * 9]
FOREIGN = Reading("transformers")
"""Headstart's own code may know the model, too."""
ALONE = "openai-gpt"
"""A kind that it does not know."""
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def ids(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", thorough_but(["cohere2"], ["cohere2", "bloom", "granitemoehybrid", "openai-gpt"]))
def test_every_drafter_says_what_transformers_says(kind: str, device: str, tmp_path: Path) -> None:
    """Prompts of different lengths together, with too little room for all of them, and again from cached prefixes."""
    reference = tiny_model(kind)
    directory = write_foreign(reference, tmp_path)
    said: list[list[int]] = []
    model = load_model(directory, "fp32", device=device, reading=FOREIGN)
    for drafter, draft_model in (("none", None), ("suffix", None), ("auto", None), ("draft-model", directory)):
        with LLM(model, drafter, draft_model=draft_model, max_context=96, cache_tokens=128, prefix_caching=True) as llm:
            assert f"({kind}) is run by transformers' own code" in llm.notices[0]
            found = ids(llm)
            assert ids(llm) == found
            llm.engine.check()
            llm.engine.runner.cache.check()
        said = said or found
        assert found == said
    for prompt, tokens in zip(PROMPTS, said, strict=True):
        assert tokens[:6] == greedy(reference, prompt, 6)


def test_sampled_tokens_do_not_depend_on_the_drafter(tmp_path: Path) -> None:
    directory = write_foreign(tiny_model("olmo2"), tmp_path)
    model = load_model(directory, reading=FOREIGN)
    params = SamplingParams(temperature=0.8, max_tokens=16, seed=3, ignore_eos=True)
    with LLM(model, "none", max_context=128) as plain, LLM(model, "suffix", max_context=128) as guessing:
        assert ids(plain, params) == ids(guessing, params)


def test_headstarts_own_code_comes_first(tmp_path: Path) -> None:
    """And transformers' can be asked for: the same tokens."""
    write_tiny_model(tmp_path)
    own, foreign = load_model(tmp_path, "fp32"), load_model(tmp_path, "fp32", reading=Reading("transformers"))
    assert not own.notice
    assert "since it was asked for" in foreign.notice
    assert foreign.backend.name == "transformers-fp32"
    with LLM(own, "suffix", max_context=128) as first, LLM(foreign, "suffix", max_context=128) as second:
        assert ids(first) == ids(second)
    with pytest.raises(ConfigError, match="transformers' code computes this model"):
        require_numerics(foreign, "exact")


def test_what_needs_the_layers_is_refused(tmp_path: Path) -> None:
    model = load_model(write_foreign(tiny_model("olmo2"), tmp_path), reading=FOREIGN)
    with pytest.raises(ConfigError, match="cannot stop at a layer"):
        LLM(model, "early-exit", max_context=64)
    with pytest.raises(ConfigError, match="lends no layers or tables"):
        LLM(model, "draft-model", drafter_options={"layers": 2}, max_context=64)
    with pytest.raises(ConfigError, match="bf16 or fp32"):
        load_model(tmp_path, "int8", reading=FOREIGN)


def test_headstart_alone_can_be_asked_for(tmp_path: Path) -> None:
    directory = write_foreign(tiny_model(ALONE), tmp_path)
    with pytest.raises(CheckpointError, match="not supported"):
        load_model(directory, reading=Reading("headstart"))
    with pytest.raises(ConfigError, match="did you mean 'transformers'"):
        Reading("transformer")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "unheard-of", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"model_type": "prophetnet"}, "an encoder with a decoder"),
        ({"model_type": "vit"}, "no language model that decodes"),
        ({"model_type": "unheard-of"}, "neither Headstart nor the installed transformers knows"),
        ({"model_type": "its-own", "auto_map": {"AutoConfig": "own.Config"}}, "--trust-remote-code"),
        ({"num_hidden_layers": "many"}, "refused by transformers"),
        ({"hidden_size": 52}, "cannot be loaded by transformers|does not hold what its configuration promises"),
    ],
)
def test_what_cannot_be_decoded_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    known = changes.keys() <= {"num_hidden_layers", "hidden_size"}
    directory = write_foreign(tiny_model("olmo2"), tmp_path)
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message) as error:
        load_model(directory, reading=FOREIGN if known else USUAL)
    assert str(error.value).count(". ") <= 1


def test_a_lacking_tensor_is_named(tmp_path: Path) -> None:
    directory = write_foreign(tiny_model("olmo2"), tmp_path)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(directory, reading=FOREIGN)


def test_without_the_package_the_refusal_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_foreign(tiny_model(ALONE), tmp_path)
    reason = "the package transformers is missing or too old; install headstart with its extra: headstart[transformers]"
    monkeypatch.setattr("headstart_integrations.transformers.description.missing", lambda: reason)
    with pytest.raises(CheckpointError, match=r"not supported.*headstart\[transformers\]"):
        load_model(directory)
    with pytest.raises(ConfigError, match=r"headstart\[transformers\]"):
        load_model(directory, reading=Reading("transformers"))


def test_code_that_comes_with_a_model_is_run_on_request_only(tmp_path: Path) -> None:
    directory = write_foreign(tiny_model("olmo2"), tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "its-own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text(
        "from transformers import Olmo2Config, Olmo2ForCausalLM\n\n\n"
        "class OwnConfig(Olmo2Config):\n    model_type = 'its-own'\n\n\n"
        "class OwnModel(Olmo2ForCausalLM):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(CheckpointError, match="brings code of its own"):
        load_model(directory)
    reference = tiny_model("olmo2")
    with LLM(directory, "none", max_context=64, trust_remote_code=True) as llm:
        found = llm.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        assert list(found[0].outputs[0].token_ids) == greedy(reference, PROMPTS[0], 5)


def test_the_command_takes_whose_code_computes(tmp_path: Path) -> None:
    directory = write_foreign(tiny_model(ALONE), tmp_path)
    run = CliRunner().invoke(
        app, ["generate", "abc", "--model", str(directory), "--max-tokens", "4", "--temperature", "0"]
    )
    assert run.exit_code == 0, run.output
    run = CliRunner().invoke(app, ["generate", "abc", "--model", str(directory), "--backend", "headstart"])
    assert run.exit_code != 0


def test_gpt_oss_is_read_in_its_own_four_bits(tmp_path: Path) -> None:
    model = tiny_model("gpt_oss", hidden_size=64, intermediate_size=64)
    directory = write_foreign(model, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator).to(torch.uint8)
        scales = torch.randint(121, 124, (experts, outputs, inputs // 32), generator=generator).to(torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        model.get_parameter(name).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    with LLM(directory, "suffix", max_context=64, backend="transformers") as llm:
        found = llm.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert list(found[0].outputs[0].token_ids) == greedy(model, PROMPTS[0], 8)
