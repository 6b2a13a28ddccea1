"""A whole audit of a model."""

from __future__ import annotations

import pytest

from headstart.backends.native.loader import load_library
from headstart.errors import ConfigError
from headstart.loading.model import load_model
from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart_lab.audit import run
from headstart_lab.audit.cases import cases
from headstart_lab.audit.rules import check_rules
from headstart_lab.audit.run import AuditSettings, run_audit
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.workbench import Contender, contenders

SMALL = AuditSettings(max_tokens=8, batch_size=2, samples=30, law_tokens=4, law_length=2)
PROMPTS = [BenchPrompt(str(i), "qa", (f"{'one two ' * i}?",)) for i in range(1, 4)]


@pytest.fixture(autouse=True)
def few_rules(monkeypatch):
    monkeypatch.setattr(run, "check_rules", lambda: check_rules(toys=list(cases())[:1]))


def test_everything_is_checked_for_every_drafter(torch_model_dir):
    units = []
    listed = contenders("ngram,draft-model:layers=1")
    audit = run_audit(
        load_model(torch_model_dir, "fp32"), listed, PROMPTS, SMALL, lambda work, tokens: units.append(work)
    )
    assert audit.passed, audit.faults
    assert [text.drafter for text in audit.texts] == [each.name for each in listed]
    assert {(law.drafter, law.rule) for law in audit.laws} == {
        ("none", "auto"),
        ("ngram", "auto"),
        ("draft-model:layers=1", "auto"),
        ("draft-model:layers=1", "rejection"),
    }
    assert all(law.goodness.samples == 30 for law in audit.laws)
    assert sum(units) == SMALL.planned_work(len(PROMPTS), len(listed))
    assert not audit.numerics.exact


@pytest.mark.thorough
def test_what_cannot_be_built_or_does_not_fit_is_left_out_and_named(torch_model_dir):
    model = load_model(torch_model_dir, "fp32")
    prompts = [*PROMPTS, BenchPrompt("long", "qa", ("word " * 200,))]
    listed = [*contenders("none"), Contender.parse("draft-model:layers=99", optional=True)]
    audit = run_audit(model, listed, prompts, SMALL)
    assert set(audit.skipped) == {"prompt long", "draft-model:layers=99"}
    assert len(audit.texts) == 1
    with pytest.raises(ConfigError, match="layers is 99"):
        run_audit(model, contenders("draft-model:layers=99"), PROMPTS, SMALL)
    with pytest.raises(ConfigError, match="no prompt fits"):
        run_audit(model, listed, prompts[3:], SMALL)


@pytest.mark.thorough
@pytest.mark.model
def test_the_default_model_keeps_its_bits_in_the_native_pass():
    if ALIASES[DEFAULT_MODEL].installed_file() is None:
        pytest.skip(f"the package {ALIASES[DEFAULT_MODEL].package!r} with the default model is not installed")
    if load_library() is None:
        pytest.skip("there is no native pass on this machine")
    audit = run_audit(load_model(DEFAULT_MODEL), contenders("ngram"), PROMPTS, SMALL)
    assert audit.numerics.exact
    assert audit.passed, audit.faults
    assert sum(text.rows for text in audit.texts) > 0
