from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence, read_prompt, verify_greedily
from head_toys import head_context, random_block, random_eagle
from planned_toys import (
    BUDGET,
    PREDICTABLE,
    VOCAB,
    Clock,
    Cost,
    Oracle,
    begin,
    decode,
    unpredictable,
    with_oracles,
)
from thinning import thorough_but

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import Drafter, RoundOutcome, SpeculationParams, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning import constants as c
from headstart.drafting.registry import create_drafter
from headstart.errors import CheckpointError, ConfigError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams
from headstart_train.files.heads import save_head


def auto(drafters: str = "suffix+recycling", **options: object) -> Drafter:
    return create_drafter("auto", DraftContext(VOCAB), drafters=drafters, **options)


def test_where_rows_are_free_it_guesses_all_it_can() -> None:
    drafter = auto()
    nodes, speedup = decode(drafter, [begin(drafter)], PREDICTABLE, lambda rows: 1000.0, 200)
    assert np.median(nodes[50:]) >= 8
    assert speedup > 3


@pytest.mark.parametrize("batch", thorough_but([1], [1, 4]))
def test_where_every_row_costs_a_pass_and_guesses_fail_it_decodes_plainly(batch: int) -> None:
    drafter = auto()
    sequences = [begin(drafter, number) for number in range(batch)]
    nodes, speedup = decode(drafter, sequences, unpredictable, lambda rows: 1000.0 * rows, 600)
    assert np.mean([count == 0 for count in nodes[50:]]) > 0.95
    assert speedup > 0.9


@pytest.mark.parametrize(("wrong", "fewer"), [(0, 3), (3, 2)], ids=["right", "edited"])
def test_a_predicted_output_is_guessed_from(wrong: int, fewer: int) -> None:
    drafter = auto("suffix")
    plain = begin(drafter)
    decode(drafter, [plain], unpredictable, lambda rows: 1000.0 * rows**3, 60)
    text = plain.tokens[plain.prompt_length :][:40]
    edited = (*text[:20], *[0] * wrong, *text[20 + wrong :])
    drafter = auto("suffix")
    sequence = begin(drafter, speculation=SpeculationParams(prediction=edited))
    decode(drafter, [sequence], unpredictable, lambda rows: 1000.0, 40 // fewer)
    assert sequence.tokens[sequence.prompt_length :][:40] == text


def test_it_turns_back_on_when_guesses_begin_to_hold() -> None:
    drafter = auto()
    sequence = begin(drafter)

    def cost(rows: int) -> float:
        return 1000.0 * (1 + 0.4 * rows)

    off, _ = decode(drafter, [sequence], unpredictable, cost, 300)
    _, speedup = decode(drafter, [sequence], PREDICTABLE, cost, 400)
    assert np.mean(off[100:]) < 2
    assert speedup > 2


@pytest.mark.thorough
def test_it_turns_back_on_when_rows_become_cheap() -> None:
    drafter = auto()
    sequence = begin(drafter)
    decode(drafter, [sequence], PREDICTABLE, lambda rows: 1000.0 * (1 + 0.9 * (rows - 1)), 200)
    _, speedup = decode(drafter, [sequence], PREDICTABLE, lambda rows: 1000.0, 1500)
    assert speedup > 2


def test_it_stops_at_the_end_of_a_step() -> None:
    drafter = auto()

    def seconds(rows: int) -> float:
        return 1000.0 if rows <= 8 else 9000.0

    for rows in c.TRIED_ROWS:
        drafter.costs.passes.add(rows, seconds(rows))
    nodes, _ = decode(drafter, [begin(drafter)], PREDICTABLE, seconds, 200)
    assert np.mean([count <= 7 for count in nodes[50:]]) > 0.95
    assert max(nodes[50:]) >= 5


def test_a_batch_spends_its_rows_on_the_sequence_that_repeats_itself() -> None:
    drafter = auto("suffix")
    sequences = [begin(drafter, number) for number in range(2)]
    mixed: list[tuple[int, int]] = []
    for _ in range(150):
        trees = drafter.propose(sequences, [BUDGET] * 2)
        rows = 2 + sum(map(len, trees))
        drafter.observe(
            [
                replace(verify_greedily(sequence, tree, target, 0), pass_rows=rows, pass_seconds=1000.0 + 60.0 * rows)
                for sequence, tree, target in zip(sequences, trees, (PREDICTABLE, unpredictable), strict=True)
            ]
        )
        mixed.append((len(trees[0]), len(trees[1])))
    first, second = np.mean(mixed[50:], axis=0)
    assert first > 4 * second


def test_a_pass_that_also_reads_a_prompt_teaches_no_cost() -> None:
    drafter = auto()
    sequence = begin(drafter)
    outcome = replace(read_prompt(ToySequence(9, [1, 2])), pass_rows=3, pass_seconds=1.0)
    reader = ToySequence(9, [1, 2])
    drafter.begin(reader)
    for _ in range(5):
        (tree,) = drafter.propose([sequence], [BUDGET])
        judged = verify_greedily(sequence, tree, PREDICTABLE, drafter.needs.top_ids)
        drafter.observe([replace(judged, pass_rows=3, pass_seconds=1.0), replace(outcome, sequence=reader)])
    assert isinstance(drafter, AutoDrafter)
    assert not drafter.costs.passes.known


class Listening:
    """Draws unless it is asked to share the target's noise; keeps what it hears."""

    def __init__(self) -> None:
        self.inner = create_drafter("bigram", DraftContext(VOCAB), sample=True)
        self.needs = self.inner.needs
        self.outcomes: list[RoundOutcome] = []
        self.begin, self.end = self.inner.begin, self.inner.end

    def propose(self, sequences, budgets) -> list[DraftTree]:
        assert all(sequence.speculation.verify is VerifyRule.COUPLED for sequence in sequences)
        trees = self.inner.propose(sequences, budgets)
        assert all(tree.draws is None for tree in trees)
        return trees

    def observe(self, outcomes) -> None:
        self.outcomes += outcomes
        self.inner.observe(outcomes)


def test_drafters_that_draw_are_asked_for_point_masses(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = Listening()
    monkeypatch.setattr(
        "headstart.drafting.methods.auto.drafter.create_drafter", lambda name, context, **options: listening
    )
    drafter = AutoDrafter(DraftContext(VOCAB), AutoDrafter.Options("bigram"))
    sequence = ToySequence(1, [1, 2, 1, 2], params=SamplingParams(temperature=1.0, seed=3))
    drafter.begin(sequence)
    drafter.observe([read_prompt(sequence)])
    decode(drafter, [sequence], PREDICTABLE, lambda rows: 1000.0, 20)
    assert all(outcome.sequence.tokens is sequence.tokens for outcome in listening.outcomes)
    assert sequence.speculation.verify is VerifyRule.AUTO


def flat(rows: int) -> float:
    return 1.0


def test_a_dear_drafter_rests_while_a_cheap_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, dear=(3, 4.0), cheap=(2, 0.01))
    nodes, _ = decode(drafter, [begin(drafter)], PREDICTABLE, flat, 400)
    assert oracles["cheap"].asked > 380
    assert oracles["dear"].asked < 10
    assert np.mean([count >= 2 for count in nodes[50:]]) > 0.95


def test_drafters_hear_how_likely_a_path_must_be_to_pay_for_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for per_row in (0.02, 0.1):
        drafter, oracles = with_oracles(monkeypatch, only=(3, 0.0))
        decode(drafter, [begin(drafter)], PREDICTABLE, lambda rows, each=per_row: 1 + each * (rows - 1), 50)
        assert oracles["only"].min_probabilities[0] is None
        lines.append(oracles["only"].min_probabilities[-1])
    assert 0.025 < lines[0] < lines[1] <= 0.2


@pytest.mark.thorough
def test_drafters_that_agree_do_not_both_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, first=(3, 0.08), second=(3, 0.04))
    _, speedup = decode(drafter, [begin(drafter)], PREDICTABLE, flat, 300)
    assert speedup > 3.5
    # What both guess is the first one's.
    assert oracles["first"].asked > 280
    assert oracles["second"].asked < 150


def test_a_dear_drafter_is_asked_where_it_brings_more_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, dear=(8, 0.5), cheap=(1, 0.01))
    decode(drafter, [begin(drafter)], PREDICTABLE, flat, 200)
    assert oracles["dear"].asked > 180


def test_a_rested_drafter_comes_back_when_its_guesses_begin_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, dear=(8, 0.3))
    sequence = begin(drafter)
    oracles["dear"].right = False
    decode(drafter, [sequence], PREDICTABLE, flat, 300)
    rested = oracles["dear"].asked
    assert rested < 30
    oracles["dear"].right = True
    decode(drafter, [sequence], PREDICTABLE, flat, 1000)
    assert oracles["dear"].asked - rested > 500


def test_a_large_batch_in_which_nothing_pays_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, cheap=(1, 0.2))
    sequences = [begin(drafter, number) for number in range(16)]
    decode(drafter, sequences, PREDICTABLE, lambda rows: rows**1.5, 300)
    learning = oracles["cheap"].asked
    nodes, _ = decode(drafter, sequences, PREDICTABLE, lambda rows: rows**1.5, 250)
    # Half a percent of the time pays for a question about all in ten rounds, what guesses bring for some more.
    assert oracles["cheap"].asked - learning <= 700
    assert sum(nodes) < 0.02 * 250 * 16


def test_new_sequences_rest_where_their_like_do_not_pay_in_batches_of_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter, oracles = with_oracles(monkeypatch, cheap=(1, 0.2))

    def wave(first: int, count: int, cost: Cost) -> int:
        before = oracles["cheap"].asked
        sequences = [begin(drafter, number) for number in range(first, first + count)]
        decode(drafter, sequences, PREDICTABLE, cost, 20)
        for sequence in sequences:
            drafter.end(sequence.id)
        return oracles["cheap"].asked - before

    for place in range(8):
        wave(place * 16, 16, lambda rows: rows**1.5)
    # In a round or two of twenty.
    assert wave(128, 16, lambda rows: rows**1.5) <= 32
    # Whoever decodes alone has nothing to do with that.
    assert wave(144, 1, flat) >= 17, "plain rounds are timed first"


def test_among_others_a_guess_must_save_more_than_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def drafted(batch: int, row: float) -> float:
        drafter, _ = with_oracles(monkeypatch, right=(1, 0.0))
        sequences = [begin(drafter, number) for number in range(batch)]
        nodes, _ = decode(drafter, sequences, PREDICTABLE, lambda rows: 1.0 + row * (rows - batch), 200)
        return float(np.mean(nodes[100:])) / batch

    assert drafted(1, row=0.8) > 0.9
    assert drafted(4, row=1.5 / 4) < 0.1
    assert drafted(4, row=0.8 / 4) > 0.9


def test_a_drafter_that_reads_states_is_left_out_of_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, head=(3, 0.01), free=(2, 0.01))
    oracles["head"].needs = TargetSignals(taps=(1,))
    one = begin(drafter)
    decode(drafter, [one], PREDICTABLE, flat, 20)
    alone = oracles["head"].asked
    assert alone == 17, "plain rounds are timed first"
    others = [begin(drafter, number) for number in range(2, 10)]
    decode(drafter, [one, *others], PREDICTABLE, flat, 50)
    assert oracles["head"].asked == alone
    assert oracles["free"].asked > 60


@pytest.mark.parametrize(("found", "asked"), [(True, 2), (False, 1)])
def test_left_to_itself_it_asks_the_head_that_comes_along(
    found: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def create(name: str, context: DraftContext, **options: object) -> Drafter:
        built.append(name)
        return Oracle(PREDICTABLE, 1, 0.0, Clock())

    monkeypatch.setattr("headstart.drafting.methods.auto.drafter.create_drafter", create)
    AutoDrafter(DraftContext(VOCAB, find_head=lambda kind: (Path(kind), "") if found else None), AutoDrafter.Options())
    assert len(built) == asked


def test_what_was_found_and_cannot_be_made_is_told_and_left_out(tmp_path: Path) -> None:
    """A head, and modules, that are damaged; those that were asked for end the start."""
    heard: list[str] = []
    context = replace(head_context(VOCAB), tell=heard.append)
    head = random_eagle(VOCAB)
    with torch.no_grad():
        head.norm.weight[3] = torch.nan
    save_head(head, tmp_path)
    found = replace(context, find_head=lambda kind: (tmp_path, "") if kind == "eagle3" else None)
    damaged = replace(context, find_head=lambda kind: None, lend_modules=damaged_modules)
    for each, said in ((found, "eagle3 does not guess"), (damaged, "multi-token modules are not used: no tensor")):
        heard.clear()
        drafter = create_drafter("auto", replace(each, runner=None) if each is damaged else each)
        assert isinstance(drafter, AutoDrafter)
        assert [type(member.drafter).__name__ for member in drafter._members] == ["SuffixDrafter"]
        assert any(said in sentence for sentence in heard)
    with pytest.raises(CheckpointError, match="infinities or NaN in norm"):
        create_drafter("auto", context, drafters="suffix+eagle3", model=str(tmp_path))
    with pytest.raises(CheckpointError, match="no tensor"):
        create_drafter("auto", damaged, drafters="suffix+mtp")


def damaged_modules(name: str | None) -> None:
    raise CheckpointError("no tensor named 'eh_proj'")


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"model": "mine"}, {"suffix": None, "eagle3": "mine"}),
        ({"drafter_options": {"eagle3": {"model": "mine"}}}, {"suffix": None, "eagle3": "mine"}),
        ({"drafters": "ngram+medusa", "model": "mine"}, {"ngram": None, "medusa": "mine"}),
    ],
)
def test_a_head_of_ones_own_is_asked(
    options: dict[str, object], asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: dict[str, object] = {}

    def create(name: str, context: DraftContext, **given: object) -> Drafter:
        built[name] = given.get("model")
        return Oracle(PREDICTABLE, 1, 0.0, Clock())

    monkeypatch.setattr("headstart.drafting.methods.auto.drafter.create_drafter", create)
    AutoDrafter(DraftContext(VOCAB), AutoDrafter.Options(**options))
    assert built == asked


def test_a_head_of_ones_own_is_run_by_the_drafter_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def create(name: str, context: DraftContext, **given: object) -> Drafter:
        built.append(name)
        return Oracle(PREDICTABLE, 1, 0.0, Clock())

    save_head(random_block(VOCAB), tmp_path / "block")
    save_head(random_eagle(VOCAB), tmp_path / "eagle")
    monkeypatch.setattr("headstart.drafting.methods.auto.drafter.create_drafter", create)
    for name in ("block", "eagle"):
        options = AutoDrafter.Options(model=str(tmp_path / name))
        options.check_files()
        AutoDrafter(DraftContext(VOCAB), options)
    assert built == ["suffix", "dflash", "suffix", "eagle3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafters": ""}, "drafters is ''; give names"),
        ({"drafters": "suffix+"}, "give names with"),
        ({"drafters": "suffix+suffix"}, "name each drafter once"),
        ({"drafters": "suffix+auto"}, "auto cannot plan for itself"),
        ({"drafters": "suffix+sufix"}, "no drafter 'sufix'"),
        ({"drafter_options": {"recycling": {}}}, "drafter_options has 'recycling'"),
        ({"drafters": "suffix+ngram", "model": "mine"}, "none of suffix, ngram runs one"),
        ({"drafter_options": {"suffix": 3}}, "drafter_options has 'suffix': 3"),
        ({"drafter_options": {"suffix": {"size": 3}}}, "'suffix' has no option 'size'"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_in_words(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_drafter("auto", DraftContext(VOCAB), **options)
