"""The workbench: one target, engines over it, and passes of one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import ToyBackend, hashed_logits, repeating_logits

from headstart.drafting.registry import available_drafters
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError, HeadstartError, RequestError
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.run import RecordingDrafter
from headstart_lab.workbench import PLAIN, Contender, Workbench, contenders, most_rows

VOCAB = 11
PROMPT = [1, 2, 3, 4, 2, 3]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def bench() -> Workbench:
    return Workbench(ToyBackend(VOCAB, hashed_logits(VOCAB, order=3)), max_context=400)


class TestContenders:
    def test_plain_decoding_comes_first_whatever_is_named(self):
        assert [each.name for each in contenders("ngram, suffix,none")] == [PLAIN, "ngram", "suffix"]

    def test_all_are_all_registered_ones_and_may_be_left_out(self):
        listed = contenders("ngram,all")
        assert {each.name for each in listed} == set(available_drafters())
        assert [each.name for each in listed if not each.optional] == [PLAIN, "ngram"]

    @pytest.mark.parametrize("levels", [1, 2])
    def test_options_follow_the_name(self, levels):
        bench = Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3])), max_context=100)
        engine = bench.open(Contender.parse(f"prompt-lookup:draft_tokens={levels}"), RecordingDrafter)
        bench.decode(engine, bench.sequence([1, 2, 3] * 4, GREEDY))
        assert max(engine.drafter.take_depths()) == levels

    def test_there_is_room_for_as_many_guesses_as_any_of_them_asks_for(self):
        listed = contenders("ngram,prompt-lookup:draft_tokens=40:match=leftmost")
        assert most_rows(contenders("ngram")) == Limits.draft_rows < 40 == most_rows(listed)
        toy = ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3]))
        bench = Workbench(toy, max_context=200, draft_rows=most_rows(listed))
        engine = bench.open(listed[-1], RecordingDrafter)
        bench.decode(engine, bench.sequence([1, 2, 3] * 20, replace(GREEDY, max_tokens=90)))
        assert max(engine.drafter.take_depths()) == 40

    def test_a_value_of_json_keeps_its_commas_and_colons(self):
        inner = 'auto:drafter_options={"prompt-lookup":{"draft_tokens":2,"max_ngram":3}}:drafters=prompt-lookup'
        assert [each.name for each in contenders(f"ngram,{inner},suffix")] == [PLAIN, "ngram", inner, "suffix"]
        bench = Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3])), max_context=100)
        engine = bench.open(Contender.parse(inner), RecordingDrafter)
        bench.decode(engine, bench.sequence([1, 2, 3] * 4, GREEDY))
        assert max(engine.drafter.take_depths()) == 2

    @pytest.mark.parametrize("text", ["", " , "])
    def test_an_empty_list_is_refused(self, text):
        with pytest.raises(ConfigError, match="names with commas"):
            contenders(text)

    @pytest.mark.parametrize("text", ["eagle3:model=/nowhere", "draft-model:model=/nowhere", "ngram:colour=1"])
    def test_what_cannot_be_built_is_refused_before_any_model_is_read(self, text):
        with pytest.raises(HeadstartError, match=r"nowhere|colour"):
            contenders(text)

    def test_an_option_without_a_value_is_refused(self):
        with pytest.raises(ConfigError, match="option=value"):
            contenders("ngram:draft_tokens")

    def test_an_unknown_drafter_is_refused_when_it_is_opened(self, bench):
        with pytest.raises(ConfigError, match="no drafter 'nonesuch'"):
            bench.open(Contender.parse("nonesuch"))


class TestWorkbench:
    def test_engines_share_the_cache_and_leave_it_empty(self, bench):
        texts = []
        for contender in contenders("ngram,recycling"):
            sequence = bench.sequence(PROMPT, GREEDY)
            bench.decode(bench.open(contender), sequence)
            texts.append(sequence.output)
            bench.runner.cache.check()
            assert bench.runner.cache.num_free_tokens == bench.runner.cache.allocator.num_blocks * 32
        assert texts[0] == texts[1] == texts[2]
        assert len(texts[0]) == 12

    def test_reading_and_stepping_see_what_a_row_sees(self, bench):
        def logits_after(tokens):
            return torch.tensor(bench.backend.logits_of(tuple(tokens)), dtype=torch.float32)

        text = list(range(10)) * 20
        for place, row in enumerate(bench.read(text, first=150), start=150):
            assert torch.equal(row, logits_after(text[: place + 1]))
        assert place == len(text) - 1
        paths = [(), (5,), (5, 6), (5, 6), (5, 7, 1), (7,), ()]
        for path, row in zip(paths, bench.steps_after(PROMPT, paths), strict=True):
            assert torch.equal(row, logits_after([*PROMPT, *path]))

    def test_stepping_is_one_row_a_pass(self, bench):
        shapes = []
        with bench.runner.watched(lambda span, cached, logits: shapes.append((cached, len(span), len(logits)))):
            list(bench.steps_after(PROMPT, [(5, 6), (5, 7), (5, 7)]))
        assert shapes == [(0, 5, 0), (5, 1, 1), (6, 1, 1), (7, 1, 1), (7, 1, 1), (7, 1, 1)]

    def test_what_cannot_be_served_is_an_error_and_leaves_nothing_behind(self, bench):
        with pytest.raises(RequestError, match="no tokens"):
            bench.decode(bench.open(Contender.parse(PLAIN)), bench.sequence(PROMPT, GREEDY), bench.sequence([], GREEDY))
        assert bench.runner.cache.num_free_tokens == bench.runner.cache.allocator.num_blocks * 32

    def test_a_sequence_that_fails_is_an_error(self):
        bench = Workbench(ToyBackend(VOCAB, lambda context: [float("nan")] * VOCAB), max_context=40)
        with pytest.raises(RequestError, match="not a finite number"):
            bench.decode(bench.open(Contender.parse(PLAIN)), bench.sequence(PROMPT, GREEDY))

    def test_room_for_a_prompt_and_its_answer(self, bench):
        assert bench.fits([1] * 390, 10)
        assert not bench.fits([1] * 391, 10)
