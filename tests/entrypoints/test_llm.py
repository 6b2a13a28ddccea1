"""The library's front door, on a tiny model with random weights."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_checkpoint import write_tiny_model

import headstart
from headstart import LLM, ConfigError, FinishReason, RequestError, SamplingParams, SpeculationParams, VerifyRule
from headstart.drafting import DEFAULT_DRAFTER
from headstart.drafting.head_files.shipped import shipped_heads
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.engine.stretch import SHOWN_SECONDS, UNSEEN_SECONDS
from headstart.entrypoints.request import StreamPiece
from headstart.errors import CheckpointError
from headstart.loading.lending import identity_of
from headstart.loading.model import Model, load_model
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config

PROMPTS = ["Once upon a time", "a b a b a b a b a", "🙂 emoji", "x"]
GREEDY = SamplingParams(temperature=0, max_tokens=20)
CHAT = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture(scope="module")
def llm(model: Model) -> LLM:
    return LLM(model, drafter="suffix")


def test_a_batch_says_what_each_prompt_says_alone_and_plainly(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    plain = llm.generate(PROMPTS, GREEDY, speculation=SpeculationParams(enabled=False))
    assert [out.token_ids for out in together] == [out.token_ids for out in alone] == [out.token_ids for out in plain]
    assert all(out.stats.drafted == 0 for out in plain)
    assert any(out.stats.drafted for out in together)


def test_outputs_carry_text_ids_and_counts(llm: LLM) -> None:
    (out,) = llm.generate("abc abc abc", GREEDY)
    tokenizer = llm.model.tokenizer
    whole = tokenizer.decode([*out.prompt_token_ids, *out.token_ids])
    assert whole == tokenizer.decode(out.prompt_token_ids) + out.text
    assert out.stats.prompt_tokens == len(out.prompt_token_ids)
    assert out.stats.tokens == len(out.token_ids)
    assert out.stats.seconds >= out.stats.prefill_seconds > 0
    assert out.prompt == "abc abc abc"


def test_streams_join_to_the_text_and_close_early_without_a_trace(llm: LLM) -> None:
    (expected,) = llm.generate("Once upon", GREEDY)
    pieces = list(llm.stream("Once upon", GREEDY))
    assert "".join(map(str, pieces)) == expected.text
    assert [token for piece in pieces for token in piece.token_ids] == expected.token_ids
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason is expected.finish_reason
    stream = llm.stream("Once upon", GREEDY)
    next(stream)
    stream.close()
    assert llm.engine.idle
    llm.engine.check()
    assert llm.generate("Once upon", GREEDY)[0].token_ids == expected.token_ids


def test_streams_take_turns_and_wait_for_nobody(llm: LLM) -> None:
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in PROMPTS[:2]]
    long = llm.stream(PROMPTS[2], replace(GREEDY, max_tokens=None, ignore_eos=True))
    next(long)
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    texts = ["", ""]
    for pieces in zip_longest(*streams, fillvalue=""):
        texts = [text + str(piece) for text, piece in zip(texts, pieces, strict=True)]
    assert texts == alone
    (left,) = llm.engine.running
    assert not left.finished
    long.close()
    assert llm.engine.idle


def test_threads_may_share_a_model(llm: LLM) -> None:
    params = replace(GREEDY, max_tokens=60, ignore_eos=True)
    alone = [llm.generate(prompt, params)[0].token_ids for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        for _ in range(3):
            together = list(threads.map(lambda prompt: llm.generate(prompt, params)[0].token_ids, PROMPTS))
            streamed = threads.map(lambda prompt: [t for p in llm.stream(prompt, params) for t in p.token_ids], PROMPTS)
            assert together == list(streamed) == alone
    assert llm.engine.idle
    llm.engine.check()


def test_rounds_run_longer_where_nobody_is_shown_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else either: a text that is streamed meanwhile keeps its pace."""
    engine, asked = llm.engine, list[float]()
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda seconds: asked.append(seconds) or step(seconds))
    for _ in llm.stream(PROMPTS[0], GREEDY):
        pass
    llm.generate(PROMPTS, GREEDY, on_commit=lambda piece: None)
    assert set(asked) == {SHOWN_SECONDS}
    asked.clear()
    llm.generate(PROMPTS, GREEDY)
    assert set(asked) == {UNSEEN_SECONDS}
    asked.clear()
    streamed = llm.stream(PROMPTS[0], replace(GREEDY, max_tokens=60, ignore_eos=True))
    next(streamed)
    llm.generate(PROMPTS[1], GREEDY)
    streamed.close()
    assert set(asked) == {SHOWN_SECONDS}


def test_chats_go_through_the_template(llm: LLM) -> None:
    (out,) = llm.chat(CHAT, GREEDY)
    assert "hello there" in out.prompt
    assert out.prompt != "hello there"
    two = llm.chat([CHAT, CHAT], GREEDY)
    assert [each.token_ids for each in two] == [out.token_ids] * 2
    assert "".join(map(str, llm.stream(messages=CHAT, sampling_params=GREEDY))) == out.text


@pytest.mark.parametrize("messages", [None, 5, "hello", {"role": "user", "content": "hello"}, [5]])
def test_what_is_no_conversation_is_refused_in_a_sentence(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match="messages is of type"):
        llm.chat(messages, GREEDY)


def test_samples_differ_and_seeds_repeat(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, n=3, seed=4)
    (first,), (second,) = llm.generate("abc", params), llm.generate("abc", params)
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]
    assert len({tuple(o.token_ids) for o in first.outputs}) == 3
    unseeded = {tuple(llm.generate("abc", replace(params, seed=None, n=1))[0].token_ids) for _ in range(4)}
    assert len(unseeded) > 1


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("head_dim", [8, 32], ids=["torch", "native"])
def test_samples_share_one_reading_of_the_prompt_and_stay_the_same(
    tmp_path: Path, head_dim: int, prefix_caching: bool
) -> None:
    """Bit for bit where rows are exact; PyTorch may round three rows together otherwise than one."""
    model = load_model(write_tiny_model(tmp_path, head_dim=head_dim), "fp32")
    if head_dim == 32 and not model.backend.exact_rows:
        pytest.skip("no native pass on this machine")
    llm = LLM(model, "suffix", prefix_caching=prefix_caching)
    params = SamplingParams(temperature=1.0, max_tokens=12, n=3, seed=4, logprobs=2)
    (together,) = llm.generate("a long prompt of several words, " * 4, params)
    assert [o.stats.cached_tokens for o in together.outputs] == [0, *2 * [len(together.prompt_token_ids) - 1]]
    samples = LLM(model, "suffix").samples(llm.encode(together.prompt), params)
    for sample, shared in zip(samples, together.outputs, strict=True):
        sample.sequence.leader = None
        engine = LLM(model, "suffix").engine
        engine.add(sample.sequence)
        while not engine.idle:
            engine.step()
        assert sample.sequence.output == shared.token_ids
        assert shared.logprobs is not None
        if model.backend.exact_rows:
            assert sample.sequence.logprobs == shared.logprobs
        said, expected = ([each.logprob for each in some] for some in (sample.sequence.logprobs, shared.logprobs))
        assert said == pytest.approx(expected, abs=1e-5)


def test_sampled_text_is_the_same_for_every_coupled_drafter(model: Model) -> None:
    params = SamplingParams(temperature=0.9, max_tokens=24, seed=9, presence_penalty=0.5)
    wishes = SpeculationParams(verify=VerifyRule.COUPLED)
    texts = {
        name: [out.text for out in LLM(model, name, drafter_options=own, speculation=wishes).generate(PROMPTS, params)]
        for name, own in (
            *((name, {}) for name in ("none", "ngram", "suffix", "early-exit")),
            *((name, {"layers": 1}) for name in ("draft-model", "multi-draft")),
        )
    }
    assert all(text == texts["none"] for text in texts.values())


def test_stop_strings_cut_the_text_and_are_named(llm: LLM) -> None:
    (free,) = llm.generate("Once upon a time", GREEDY)
    stop = free.text[4:6]
    (out,) = llm.generate("Once upon a time", replace(GREEDY, stop=(stop,)))
    assert out.text == free.text[: free.text.index(stop)]
    assert out.finish_reason is FinishReason.STOP
    assert out.outputs[0].stop_reason == stop
    assert free.token_ids[: len(out.token_ids)] == out.token_ids
    assert "".join(map(str, llm.stream("Once upon a time", replace(GREEDY, stop=(stop,))))) == out.text


def test_logprobs_name_the_chosen_and_the_best(llm: LLM) -> None:
    (out,) = llm.generate("abc", replace(GREEDY, logprobs=3))
    assert out.logprobs is not None
    assert [entry.token_id for entry in out.logprobs] == out.token_ids
    for entry in out.logprobs:
        assert len(entry.top) == 3
        assert list(entry.top.values()) == sorted(entry.top.values(), reverse=True)
        assert entry.top[entry.token_id] == entry.logprob == max(entry.top.values())


def test_logprobs_of_the_whole_vocabulary_sum_to_one(llm: LLM) -> None:
    (out,) = llm.generate("abc", replace(GREEDY, max_tokens=3, logprobs=-1, prompt_logprobs=-1))
    assert out.logprobs is not None
    assert out.prompt_logprobs is not None
    assert out.prompt_logprobs[0] is None
    entries = [*out.logprobs, *filter(None, out.prompt_logprobs)]
    assert len(entries) == 3 + len(out.prompt_token_ids) - 1
    for entry in entries:
        assert sorted(entry.top) == list(range(llm.model.config.vocab_size))
        assert sum(map(math.exp, entry.top.values())) == pytest.approx(1)
        assert entry.top[entry.token_id] == entry.logprob


def test_an_empty_prompt_starts_from_the_beginning_of_a_text(llm: LLM) -> None:
    (out,) = llm.generate("", GREEDY)
    assert out.prompt_token_ids == [llm.model.tokenizer.bos_token_id]
    assert len(out.token_ids) > 0


def test_token_ids_may_be_arrays(llm: LLM) -> None:
    (wanted,) = llm.generate([70, 71], GREEDY)
    for prompt in (np.array([70, 71]), [np.int64(70), np.int64(71)], torch.tensor([70, 71]), (70, 71)):
        (out,) = llm.generate(prompt, GREEDY)  # type: ignore[arg-type]
        assert out.prompt_token_ids == [70, 71]
        assert out.token_ids == wanted.token_ids
    first, second = llm.generate(np.array([[70, 71], [71, 70]]), GREEDY)  # type: ignore[arg-type]
    assert (first.prompt_token_ids, second.prompt_token_ids) == ([70, 71], [71, 70])


@pytest.mark.parametrize("prompt", [None, 5, b"Once", [1.5], [b"Once"], [{"prompt": 5}], [["Once"]]])
def test_what_is_no_prompt_is_refused_in_a_sentence(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="give a text, a list of token ids, or what encode returns"):
        llm.generate(prompt, GREEDY)
    with pytest.raises(RequestError, match="give SamplingParams"):
        llm.generate("Once", {"temperature": 0})  # type: ignore[arg-type]


def test_one_bad_prompt_is_named_and_nothing_is_lost(llm: LLM) -> None:
    long = "word " * 5000
    with pytest.raises(RequestError, match="prompt 1: the prompt has"):
        llm.generate(["abc", long], GREEDY)
    assert llm.engine.idle
    pieces: list[StreamPiece] = []
    good, bad = llm.generate(["abc", long], GREEDY, strict=False, on_commit=pieces.append)
    assert {piece.prompt_index for piece in pieces} == {0}
    assert good.finish_reason is not FinishReason.ERROR
    assert bad.finish_reason is FinishReason.ERROR
    assert "the context holds" in (bad.outputs[0].error or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "nothing"}, "there is no drafter 'nothing'"),
        ({"drafter": "ngram", "draft_model": "x"}, "runs no model"),
        ({"precision": "fp4"}, "precision is 'fp4'"),
        ({"numerics": "fast"}, "numerics is 'fast'"),
        ({"max_context": 1}, "max_context is 1"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"drafter_options": {"colour": 1}}, "no option 'colour'"),
    ],
)
def test_bad_settings_are_one_sentence(tiny_model_dir: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(tiny_model_dir, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("draft-model", {"draft_model": "/missing/draft"}),
        ("multi-draft", {"drafter_options": {"models": ["/missing/draft"]}}),
        ("hierarchical", {"draft_model": "/missing/draft"}),
        ("eagle3", {"draft_model": "/missing/draft"}),
        ("medusa", {"draft_model": "/missing/draft"}),
        ("pass", {"draft_model": "/missing/draft"}),
        ("auto", {"draft_model": "/missing/draft"}),
        ("auto", {"drafter_options": {"drafters": "ngram+draft-model", "model": "/missing/draft"}}),
        ("none", {"more_drafters": ["/missing/draft"]}),
    ],
)
def test_what_a_drafter_lacks_is_said_before_the_target_is_read(drafter: str, options: dict[str, Any]) -> None:
    with pytest.raises((CheckpointError, ConfigError), match="/missing/draft"):
        LLM("/missing/target", drafter, **options)


def test_exact_numerics_are_had_or_the_model_is_refused(
    tiny_model_dir: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = next((each for each in (load_model(tiny_model_dir), model) if each.backend.exact_rows), None)
    if native is not None:
        LLM(native, "none", numerics="exact")
    monkeypatch.setattr("headstart.loading.model.load_library", lambda: None)
    by_torch = load_model(tiny_model_dir)
    LLM(by_torch, "none", numerics="auto")
    for given in (by_torch, tiny_model_dir):
        with pytest.raises(ConfigError, match="numerics is 'exact', which needs the native pass"):
            LLM(given, "none", numerics="exact")


def test_prompts_may_be_vllms_dictionaries(llm: LLM) -> None:
    ids = llm.encode("Once").token_ids
    forms = ["Once", {"prompt": "Once"}, {"prompt_token_ids": ids}, {"prompt": "ignored", "prompt_token_ids": ids}]
    outputs = llm.generate(forms, sampling_params=GREEDY)
    assert len({tuple(out.token_ids) for out in outputs}) == 1
    assert [out.token_ids for out in llm.generate({"prompt_token_ids": ids}, GREEDY)] == [outputs[0].token_ids]
    for prompt, held in (({"prompt": "Once", "multi_modal_data": {}}, "prompt, multi_modal_data"), ({}, "nothing")):
        with pytest.raises(RequestError, match=f"a prompt holds {held}; give it as prompt or as prompt_token_ids"):
            llm.generate(prompt, GREEDY)


@pytest.mark.thorough
def test_a_start_does_not_import_what_only_compilers_need(tiny_model_dir: Path) -> None:
    """These take longer to import than a small model to load."""
    script = f"""
import sys
from headstart import LLM
LLM({str(tiny_model_dir)!r}, "suffix").generate(["a"])
heavy = {{"torch._dynamo", "torch._inductor", "sympy", "transformers", "torch.distributed.tensor"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_drafts_may_be_as_large_as_the_drafters_options_say(model: Model) -> None:
    assert LLM(model, "prompt-lookup", drafter_options={"draft_tokens": 40}).engine.limits.draft_rows == 40


@pytest.mark.parametrize("drafter", ["ngram", "auto"])
def test_a_closed_model_is_freed_and_says_so(tiny_model_dir: Path, drafter: str) -> None:
    with LLM(tiny_model_dir, drafter, precision="fp32", prefix_caching=True) as llm:
        parts = [weakref.ref(part) for part in (llm.model.backend, llm.engine.runner.cache, llm.engine.drafter)]
        assert llm.generate("Once upon", GREEDY)[0].token_ids
        tokenizer = llm.get_tokenizer()
    assert not any(part() for part in parts)
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    for call in (
        lambda: llm.generate("x"),
        lambda: llm.chat(CHAT),
        lambda: next(llm.stream("x")),
        lambda: llm.encode("x"),
        llm.get_tokenizer,
        lambda: llm.memory,
    ):
        with pytest.raises(ConfigError, match="this LLM is closed; make a new one"):
            call()
    llm.close()


def test_closing_ends_what_is_being_decoded(model: Model) -> None:
    llm = LLM(model, "ngram")
    stream = llm.stream("Once upon", replace(GREEDY, max_tokens=None, ignore_eos=True))
    next(stream)
    engine = llm.engine
    llm.close()
    assert [piece.finish_reason for piece in stream] == [FinishReason.ABORT]
    assert engine.idle
    engine.check()
    assert LLM(model, "none").generate("x", GREEDY)[0].token_ids


def test_parameters_must_match_the_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 sampling parameters were given for 1 prompts"):
        llm.generate(["a"], [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="logit_bias names token"):
        llm.generate(["a"], replace(GREEDY, logit_bias={10**6: 1.0}))
    with pytest.raises(RequestError, match="either a prompt or messages"):
        next(llm.stream())


def test_every_public_name_can_be_had() -> None:
    assert set(headstart.__all__) <= set(dir(headstart))
    own = {name for name in headstart.__all__ if getattr(headstart, name).__name__ == name}
    # vLLM's names for what has another one here.
    assert set(headstart.__all__) - own == {"AsyncEngineArgs", "AsyncLLMEngine", "EngineArgs", "GuidedDecodingParams"}


def test_a_stream_can_be_stopped_between_passes(model: Model) -> None:
    llm = LLM(model, "none")
    asked = []

    def stopped() -> bool:
        asked.append(True)
        return True

    pieces = list(llm.stream("Once upon", replace(GREEDY, max_tokens=60, ignore_eos=True), stopped=stopped))
    assert len(asked) == 1
    assert sum(len(piece.token_ids) for piece in pieces) < 60
    assert llm.engine.idle


def test_a_whole_model_chooses_the_drafter_that_runs_it(tiny_model_dir: Path) -> None:
    llm = LLM(tiny_model_dir, draft_model=tiny_model_dir, precision="fp32")
    assert llm.drafter_name == "draft-model"
    (out,) = llm.generate("Once upon", GREEDY)
    assert out.stats.accepted
    assert LLM(tiny_model_dir).drafter_name == DEFAULT_DRAFTER


@pytest.mark.parametrize("drafter", ["draft-model", "multi-draft", "hierarchical"])
def test_a_drafter_that_is_nothing_without_a_model_says_so(drafter: str) -> None:
    with pytest.raises(ConfigError, match=r"no draft model.*--draft-model"):
        LLM("/not/even/looked/at", drafter)


@pytest.mark.parametrize("lossy", [{"lenience": 0.5}, {"typical": 0.1}])
def test_exact_numerics_refuse_lossy_rules(lossy: dict[str, float], tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path, head_dim=32))
    if not model.backend.exact_rows:
        pytest.skip("needs the native pass")
    exact = LLM(model, "ngram", numerics="exact")
    wishes = SpeculationParams(**lossy)  # type: ignore[arg-type]
    (field,) = lossy
    with pytest.raises(RequestError, match=f"{field} .* is LOSSY, but numerics is 'exact'"):
        exact.generate("abc", SamplingParams(temperature=1), speculation=wishes)
    assert exact.generate("abc", SamplingParams(temperature=1), speculation=SpeculationParams(lenience=1))
    if field == "typical":
        # Greedy requests lose nothing by it.
        assert exact.generate("abc", GREEDY, speculation=wishes)
    else:
        with pytest.raises(RequestError, match="LOSSY"):
            LLM("/not/even/looked/at", numerics="exact", speculation=wishes)


@pytest.mark.parametrize("drafter", ["auto", "eagle3", "medusa", "pass"])
def test_a_whole_model_is_no_head_and_that_shows_before_anything_is_loaded(drafter: str, tiny_model_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="of no known format"):
        LLM("/not/even/looked/at", drafter, draft_model=tiny_model_dir)


@pytest.mark.parametrize("drafter", ["draft-model", "multi-draft", "hierarchical"])
def test_a_head_is_no_whole_model_and_names_what_runs_it(drafter: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    config = load_model(tiny_model_dir).config
    save_head(EagleHead(eagle_config(config, "eagle3", None, slots=4)), tmp_path / "head")
    with pytest.raises(ConfigError, match=r"is a draft head; use the drafter that runs it \(--drafter p-eagle\)"):
        LLM("/not/even/looked/at", drafter, draft_model=tmp_path / "head")


def test_it_says_which_head_drafts_and_why(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, though the default drafter asks before the drafter that runs it."""
    model = load_model(tiny_model_dir)
    head = EagleHead(eagle_config(model.config, "eagle3", None))
    save_head(head, tmp_path / "head", record={"head": "eagle3", "target": "tiny", **identity_of(model).record()})
    monkeypatch.setattr("headstart.loading.lending.shipped_heads", lambda target: shipped_heads(target, [tmp_path]))
    (notice,) = LLM(model).notices
    assert notice.startswith("Drafting with the eagle3 head that comes with Headstart, trained for the weights of tiny")
    assert LLM(model, "suffix").notices == ()
    assert re.search("in (the native pass|PyTorch, since .*); name another as draft model", notice)
    (named,) = LLM(model, draft_model=tmp_path / "head").notices
    assert named.startswith("The eagle3 head runs in ")
    narrow = replace(model, config=replace(model.config, mlp_size=7))
    monkeypatch.setattr(model.checkpoint.weights, "digest", lambda: "another")
    assert LLM(narrow).notices == (
        "No eagle3 head is used: the one for tiny wants mlp_size 48 (here 7).",
        "No head and no multi-token module guesses for this model; headstart drafters --model lists more.",
    )
