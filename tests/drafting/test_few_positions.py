"""Every drafter on targets with learned positions, which have no more of them than they were trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from head_toys import shake
from safetensors.torch import save_file
from tiny_checkpoint import write_tiny_model

from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.drafting.registry import available_drafters
from headstart.engine.outputs import RequestOutput
from headstart.entrypoints.llm import LLM
from headstart.loading.model import Model, load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_train.files.heads import save_head
from headstart_train.first_steps.block import block_config
from headstart_train.first_steps.eagle import eagle_config

POSITIONS = 44
HIDDEN, VOCAB = 64, 259


def write_gpt2(directory: Path, positions: int, seed: int) -> Path:
    """GPT-2 with random weights, whose heads of 32 dimensions the native pass computes, too."""
    directory.mkdir()
    write_tiny_model(directory)
    tokens = {name: id for name, id in (("bos_token_id", 257), ("eos_token_id", 258))}
    sizes = {"vocab_size": VOCAB, "n_positions": positions, "n_embd": HIDDEN, "n_layer": 3, "n_head": 2}
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes, **tokens}))
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCAB, HIDDEN), "wpe.weight": (positions, HIDDEN)}
    for layer in range(3):
        for name, shape in (("attn.c_attn", (64, 192)), ("attn.c_proj", (64, 64)), ("mlp.c_fc", (64, 256))):
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
        shapes |= {f"h.{layer}.mlp.c_proj.weight": (256, 64), f"h.{layer}.mlp.c_proj.bias": (64,)}
        shapes |= {f"h.{layer}.ln_{k}.{part}": (64,) for k in (1, 2) for part in ("weight", "bias")}
    shapes |= {f"ln_f.{part}": (64,) for part in ("weight", "bias")}
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else shape[0] ** -0.5)
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, draft models with as many positions and with fewer, a head of each kind, and a text."""
    folder = tmp_path_factory.mktemp("few-positions")
    write_gpt2(folder / "target", POSITIONS, seed=0)
    write_gpt2(folder / "shorter", POSITIONS // 2, seed=1)
    write_gpt2(folder / "equal", POSITIONS, seed=1)
    config = load_model(folder / "target").config
    heads = {
        "eagle": EagleHead(eagle_config(config, "eagle", None)),
        "eagle3": EagleHead(eagle_config(config, "eagle3", None)),
        "dflash": BlockHead(block_config(config, 4, 2, 0)),
        "p-eagle": EagleHead(eagle_config(config, slots=4)),
        "medusa": ParallelHeads(ParallelConfig("medusa", HIDDEN, VOCAB, VOCAB, slots=3)),
        "blockwise": ParallelHeads(ParallelConfig("blockwise", HIDDEN, VOCAB, VOCAB, slots=3)),
        "pass": LookaheadEmbeddings(3, HIDDEN),
    }
    for name, head in heads.items():
        shake(head, 3)
        save_head(head, folder / name)
    (folder / "text.txt").write_text("hello world, hello again. " * 9)
    return folder


@pytest.fixture(scope="module", params=["native", "torch"])
def target(request: pytest.FixtureRequest, folder: Path) -> Model:
    if request.param == "torch":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headstart.loading.model.load_library", lambda: None)
            return load_model(folder / "target", "fp32")
    return load_model(folder / "target")


PROMPTS = ["he", "hello world, hello ag"]
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
BEAMS = SamplingParams(beam_width=3, n=3, max_tokens=14, stop_token_ids=(111, 32))


@pytest.fixture(scope="module")
def plain(target: Model) -> LLM:
    """Who decodes without guesses."""
    return LLM(target, "none", cache_tokens=4 * POSITIONS)


@pytest.fixture(scope="module")
def plain_texts(plain: LLM) -> list[list[int]]:
    return [output.token_ids for output in plain.generate(PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def plain_beams(plain: LLM) -> list[RequestOutput]:
    return plain.generate(PROMPTS, BEAMS)


VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("draft-model", {"model": "shorter"}),
    ("draft-model", {"model": "equal"}),
    ("multi-draft", {"model": "shorter"}),
    ("multi-draft", {"models": ["equal", "shorter"]}),
    ("hierarchical", {"model": "shorter", "inner": "auto"}),
    ("hierarchical", {"model": "equal", "inner": "lookahead"}),
    ("hierarchical", {"model": "equal", "inner": "early-exit"}),
    ("auto", {"drafters": "suffix+recycling+lookahead+early-exit"}),
]
HEADS = {"eagle": "eagle", "eagle2": "eagle", "eagle3": "eagle3"} | {
    name: name for name in ("dflash", "p-eagle", "medusa", "blockwise", "pass")
}
MADE_FOR_ITS_TARGET = ("mtp", "assistant")
"""Run what came with a target; GPT-2 has nothing of the kind (``methods/test_mtp.py``, ``test_assistant.py``)."""
OWN = ("draft-model", "multi-draft", "hierarchical")
"""They run the target's own layers where they are given no model."""


def options_of(name: str) -> dict[str, object]:
    if name == "synthetic":
        return {"rates": "0.9,0.8"}
    return {"model": HEADS[name]} if name in HEADS else {"layers": 2} if name in OWN else {}


CASES = [(name, options_of(name)) for name in available_drafters() if name not in MADE_FOR_ITS_TARGET] + VARIANTS


def in_folder(folder: Path, options: dict[str, object]) -> dict[str, object]:
    def place(value: object) -> object:
        if isinstance(value, list):
            return [str(folder / name) for name in value]
        return str(folder / value) if isinstance(value, str) else value

    return {key: place(value) if key in ("model", "models") else value for key, value in options.items()}


def opened(target: Model, name: str, options: dict[str, object]) -> LLM:
    if name == "self" and target.backend.name.startswith("torch"):
        pytest.skip("needs the native path")
    return LLM(target, name, drafter_options=options, cache_tokens=4 * POSITIONS)


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: value if isinstance(value, str) else str(value))
def test_decoding_goes_on_to_the_last_position(
    folder: Path, target: Model, plain_texts: list[list[int]], name: str, options: dict[str, object]
) -> None:
    given = in_folder(folder, options) | ({"texts": str(folder / "text.txt")} if name == "rest" else {})
    llm = opened(target, name, given)
    assert [output.token_ids for output in llm.generate(PROMPTS, GREEDY)] == plain_texts
    assert [len(prompt) + len(said) for prompt, said in zip(PROMPTS, plain_texts, strict=True)] == [POSITIONS] * 2
    sampled = SamplingParams(temperature=0.8, seed=1, ignore_eos=True)
    assert {len(output.token_ids) for output in llm.generate(PROMPTS[:1], sampled)} == {POSITIONS - 2}


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: value if isinstance(value, str) else str(value))
def test_beams_are_those_without_guesses(
    folder: Path, target: Model, plain_beams: list[RequestOutput], name: str, options: dict[str, object]
) -> None:
    given = in_folder(folder, options) | ({"texts": str(folder / "text.txt")} if name == "rest" else {})
    found = opened(target, name, given).generate(PROMPTS, BEAMS)
    for output, expected in zip(found, plain_beams, strict=True):
        assert [beam.token_ids for beam in output.outputs] == [beam.token_ids for beam in expected.outputs]
        scores, others = [beam.score for beam in output.outputs], [beam.score for beam in expected.outputs]
        # Where rows do not depend on their pass, not a bit of a score differs.
        assert scores == others if target.backend.exact_rows else scores == pytest.approx(others, rel=1e-5)
        assert output.stats.beam_steps == expected.stats.beam_steps == expected.stats.rounds
