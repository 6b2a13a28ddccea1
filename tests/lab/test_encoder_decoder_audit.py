"""Models with an encoder under the audit: texts and the joint law of draws, against plain passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from thinning import thorough_but
from tiny_encoder_decoders import WIDE, make_model, save_model

from headstart import ConfigError, SamplingParams
from headstart.loading.model import Model, load_model
from headstart_lab.audit.joint_law import check_law, compute_law
from headstart_lab.audit.run import AuditSettings, run_audit
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.workbench import Contender, Workbench

TOKENS = [97, 98, 99, 100]
SOURCE = list(b"red blue red green blue red")


@pytest.fixture(scope="module", params=thorough_but([WIDE["t5"]], [{}, WIDE["t5"]]), ids=["torch", "wide"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The wide one runs on the native pass, where there is one."""
    torch.set_num_threads(1)
    return load_model(save_model(make_model("t5", seed=2, **request.param), tmp_path_factory.mktemp("t5")), "fp32")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("umt5", seed=3, num_layers=1, num_decoder_layers=1), tmp_path_factory.mktemp("draft"))


@pytest.mark.thorough
def test_draws_follow_the_law_of_plain_passes(model: Model, draft: Path) -> None:
    """All texts of three tokens out of four, enumerated; a draft model with an encoder of its own draws guesses."""
    bench = Workbench.of_model(model, 64, 64)
    law = compute_law(bench, SOURCE, TOKENS, 3, seed=1)
    assert sum(law.probabilities.values()) == pytest.approx(1.0)
    for contender in (f"draft-model:model={draft}", "early-exit:layers=2"):
        for found in check_law(bench, Contender.parse(contender), law, 400):
            assert found.goodness.p_value > 1e-4, (contender, found)
            assert found.drawn
            assert found.accepted > 0


def test_a_draft_of_another_source_shows(model: Model) -> None:
    """Or the law would tell nothing of what was read."""
    bench = Workbench.of_model(model, 64, 64)
    law = compute_law(bench, SOURCE, TOKENS, 3, seed=1)
    other = compute_law(bench, SOURCE[::-1], TOKENS, 3, seed=1)
    assert max(abs(law.probabilities[text] - other.probabilities[text]) for text in law.probabilities) > 0.01


@pytest.mark.thorough
def test_an_audit_finds_no_fault(model: Model) -> None:
    prompts = [BenchPrompt(str(place), "", (text,)) for place, text in enumerate(("one two", "three"))]
    settings = AuditSettings(max_tokens=12, samples=40, law_length=2, law_tokens=3, batch_size=2)
    contenders = [Contender.parse(name) for name in ("none", "suffix")]
    audit = run_audit(model, contenders, prompts, settings)
    assert not audit.faults
    assert not audit.skipped


def test_a_text_alone_is_refused(model: Model) -> None:
    bench = Workbench.of_model(model, 1, 64)
    with pytest.raises(ConfigError, match="name a model without one"):
        list(bench.read(SOURCE))
    assert bench.sequence(SOURCE, SamplingParams(temperature=0)).source is not None
