"""From a model's directory to a head that drafts, with text that the target writes itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from devices import DEVICES, PLACES, on
from safetensors.torch import load_file
from thinning import thorough_but
from training_toys import documents, target

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.entrypoints.llm import LLM
from headstart.errors import ConfigError
from headstart.loading.model import load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_train import recipe
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.making import HEAD_NAMES, HeadName, HeadSettings
from headstart_train.progressing import Progressing
from headstart_train.recipe import train_head
from headstart_train.text.corpus import Corpus
from headstart_train.text.synthesis import answer, ask, follow_up, read_conversations, task
from headstart_train.text.text import Text, TextSettings
from headstart_train.trainer import StepReport, TrainSettings
from headstart_train.warm_start import begin_from

TEXT = TextSettings(tokens=400, temperatures=(0.0,), answer_tokens=16, batch_size=6)
SETTINGS = TrainSettings(steps=3, batch=2, micro_batch=1, evaluate_every=2, save_every=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that the tests share; the first training writes it."""
    return tmp_path_factory.mktemp("corpus")


def two_slots(name: HeadName, draft_vocab: int = 200, init: Path | None = None) -> HeadSettings:
    """Two future tokens, where the kind of head takes a number of them."""
    takes = ("p-eagle", "dflash", "dspark", "jetspec", "medusa", "blockwise", "pass")
    return HeadSettings(draft_vocab, 2 if name in takes else None, init=init)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", thorough_but(["eagle3", "medusa"], HEAD_NAMES))
def test_every_head_is_trained_reported_and_drafts(name: HeadName, device: str, tmp_path: Path, corpus: Path) -> None:
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    result = train_head(
        name, target().name, tmp_path, text=text, head=two_slots(name), settings=SETTINGS, length=320, device=device
    )
    assert result.progress.step == 3
    known = json.loads((tmp_path / "config.json").read_text())["headstart"]
    assert known["target_digest"] == target().checkpoint.digest()
    assert known["text"]["answer_tokens"] >= 300
    assert known["held_out_accepted_length"] == result.progress.best >= 1
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "training.json").read_text())["step"] == 3
    if name not in ("draft-model", "mtp"):
        load_head(tmp_path, target().config)
    # A head that has learnt next to nothing is sure of nothing.
    unsure = ("eagle3", "p-eagle", "dflash", "dspark", "jetspec", "medusa", "mtp")
    options: dict[str, object] = {"min_probability": 0.0} if name in unsure else {}
    if name == "dspark":
        options["confidence"] = False
    served = target() if device == "cpu" else load_model(target().name, "fp32", device=device)
    llm = LLM(served, name, draft_model=tmp_path, drafter_options=options)
    plain = LLM(served, "none")
    said = [
        each.generate("Once upon", SamplingParams(temperature=0, max_tokens=12)).pop().outputs[0]
        for each in (llm, plain)
    ]
    assert said[0].token_ids == said[1].token_ids
    assert said[0].stats.drafted > 0


def test_the_draft_vocabulary_knows_what_ends_a_turn(tmp_path: Path, corpus: Path) -> None:
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    result = train_head(
        "eagle3", target().name, tmp_path, text=text, head=HeadSettings(draft_vocab=30), settings=SETTINGS
    )
    head = load_head(tmp_path, target().config)
    assert set(target().eos_token_ids) <= set(head.target_ids.tolist())
    assert len(head.target_ids) == 30
    assert 0.2 < result.coverage <= 1


@pytest.mark.thorough
def test_the_target_asks_and_answers_itself() -> None:
    llm = LLM(target(), "none", max_batch_size=4)
    questions = ask(llm, 3, seed=5)
    assert len(questions) == 3
    assert questions != ask(llm, 3, seed=6)
    asked = [llm.encode_chat(question) for question in questions]
    documents = answer(llm, asked, (0.0, 0.9), 8, 0)
    prompt = asked[0].token_ids
    assert documents[0].tokens[: len(prompt)].tolist() == prompt
    assert documents[0].answers.tolist() == [False] * len(prompt) + [True] * (len(documents[0].tokens) - len(prompt))
    other_seed = answer(llm, asked, (0.0, 0.9), 8, 1)
    assert [one.tokens.tolist() == other.tokens.tolist() for one, other in zip(documents, other_seed, strict=True)] == [
        True,
        False,
        True,
    ]


def test_tasks_are_about_what_the_target_wrote() -> None:
    llm = LLM(target(), "none", max_batch_size=4)
    assert task(llm, [], 3, seed=0) == []
    documents = answer(llm, [llm.encode_chat(each) for each in ask(llm, 1, seed=5)], (0.9,), 8, 0)
    written = llm.model.tokenizer.decode(documents[0].tokens[documents[0].answers].tolist()).strip()
    tasks = [message["content"] for (message,) in task(llm, documents, 12, seed=0)]
    assert all(written in content for content in tasks)
    assert len(set(tasks)) > 3


def test_a_second_question_stands_behind_a_whole_conversation() -> None:
    llm = LLM(target(), "none", max_batch_size=4)
    first = llm.encode_chat([{"role": "user", "content": "Say one."}])
    documents = answer(llm, [first], (0.9,), 8, 0)
    whole = documents[0].tokens.tolist()
    said = whole[:-1] if whole[-1] in target().eos_token_ids else whole
    second = follow_up(llm, documents, 6, seed=0)
    assert all(each.token_ids[: len(said)] == said for each in second)
    tails = {tuple(each.token_ids[len(said) :]) for each in second}
    assert len(tails) > 2
    assert all(llm.model.tokenizer.decode(list(tail)).strip() for tail in tails)


@pytest.mark.parametrize(("name", "vocabulary"), [("eagle3", 300), ("eagle3", 200), ("eagle", 200), ("medusa", 150)])
def test_a_training_may_begin_from_a_head(name: HeadName, vocabulary: int, tmp_path: Path, corpus: Path) -> None:
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    train_head(name, target().name, tmp_path / "a", text=text, head=two_slots(name), settings=SETTINGS, length=320)
    unmoved = replace(SETTINGS, steps=1, lr=1e-12)
    again = two_slots(name, vocabulary, tmp_path / "a")
    train_head(name, target().name, tmp_path / "b", text=text, head=again, settings=unmoved, length=320)
    one, two = (load_head(tmp_path / each, target().config) for each in "ab")
    assert isinstance(one, EagleHead | ParallelHeads)
    assert isinstance(two, EagleHead | ParallelHeads)
    theirs = dict(two.named_parameters())
    shared = sorted(set(one.target_ids.tolist()) & set(two.target_ids.tolist()))
    assert len(shared) == min(len(head.target_ids) for head in (one, two))
    for key, parameter in one.named_parameters():
        if key == "lm_head.weight":
            rows = [torch.searchsorted(head.target_ids, torch.tensor(shared)) for head in (one, two)]
            assert torch.allclose(parameter[rows[0]], theirs[key][rows[1]], rtol=0, atol=1e-9)
        else:
            assert torch.allclose(parameter, theirs[key], rtol=0, atol=1e-9)


@pytest.mark.parametrize("place", PLACES)
def test_a_head_on_a_device_begins_from_one_of_the_processor(place: str) -> None:
    shape = eagle_config(target().config, draft_vocab_size=200)
    torch.manual_seed(0)
    known, head = EagleHead(shape), EagleHead(shape)
    with on(place) as device:
        placed = head.to(device)
        begin_from(placed, known)
        for (name, parameter), (_, theirs) in zip(placed.named_parameters(), known.named_parameters(), strict=True):
            assert torch.equal(parameter.cpu(), theirs), name


@pytest.mark.thorough
def test_text_of_earlier_trainings_is_learnt_from_as_well(tmp_path: Path, corpus: Path) -> None:
    text, head = TextSettings(**{**TEXT.__dict__, "directory": corpus}), HeadSettings(200, 2)
    train_head("medusa", target().name, tmp_path / "a", text=text, head=head, settings=SETTINGS, length=320)
    new = replace(TEXT, earlier=(corpus,), tokens=100)
    settings = replace(SETTINGS, seed=1)
    train_head("medusa", target().name, tmp_path / "b", text=new, head=head, settings=settings, length=320)
    known = json.loads((tmp_path / "b" / "config.json").read_text())["headstart"]
    assert [each["answer_tokens"] for each in known["earlier_text"]] == [
        Corpus.existing(corpus, target().checkpoint.digest()).num_answer_tokens
    ]
    # What the target shows while it reads the earlier text is not computed again.
    earlier, written = ({path.name for path in each.glob("states-*/*")} for each in (corpus, tmp_path / "b" / "corpus"))
    assert written
    assert not written & earlier
    with pytest.raises(ConfigError, match="holds no text of a training"):
        train_head("medusa", target().name, tmp_path / "c", text=replace(TEXT, earlier=(tmp_path,)), head=head)
    assert not (tmp_path / "c").exists()


def test_prompts_are_learnt_from_where_one_says_so(tmp_path: Path) -> None:
    """All of what is learnt, and no more of what is held out; the packs are the same text."""
    kept = Corpus(tmp_path, {})
    kept.extend(documents())
    (answers, held_out), (whole, also_held_out) = (Text([kept], prompts).packs(320) for prompts in (False, True))
    assert [[d.tokens.tolist() for d in p.documents] for p in whole] == [
        [d.tokens.tolist() for d in p.documents] for p in answers
    ]
    assert all(document.answers.all() for pack in whole for document in pack.documents)
    assert not all(document.answers.all() for pack in answers for document in pack.documents)
    for pack, other in zip(held_out, also_held_out, strict=True):
        for document, its in zip(pack.documents, other.documents, strict=True):
            assert document.answers.tolist() == its.answers.tolist()


def test_text_of_another_target_is_refused(tmp_path: Path) -> None:
    Corpus(tmp_path, {"target_digest": "of another"})
    with pytest.raises(ConfigError, match="holds other text"):
        train_head("medusa", target().name, tmp_path / "out", text=replace(TEXT, earlier=(tmp_path,)))


def test_a_medusa_head_of_other_blocks_is_trained_on_as_it_is(tmp_path: Path, corpus: Path) -> None:
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    heads = ParallelHeads(ParallelConfig("medusa", target().config.hidden_size, *2 * (target().config.vocab_size,), 2))
    save_head(heads, tmp_path / "a")
    again = HeadSettings(200, init=tmp_path / "a")
    train_head("medusa", target().name, tmp_path / "b", text=text, head=again, settings=SETTINGS, length=320)
    trained = load_head(tmp_path / "b", target().config)
    assert isinstance(trained, ParallelHeads)
    assert (trained.config.slots, trained.config.num_layers, trained.config.output_maps) == (2, 1, False)
    # But a head may begin to read the last token, or leave that off again.
    assert trained.config.reads_token
    without = HeadSettings(200, init=tmp_path / "b", reads_token=False)
    train_head("medusa", target().name, tmp_path / "c", text=text, head=without, settings=SETTINGS, length=320)
    left_off = load_head(tmp_path / "c", target().config)
    assert isinstance(left_off, ParallelHeads)
    assert not left_off.config.reads_token


@torch.no_grad()
def test_a_head_that_begins_to_read_tokens_says_what_it_said() -> None:
    config = ParallelConfig("medusa", 16, 40, 40, slots=2, output_maps=True)
    known, head = ParallelHeads(config), ParallelHeads(replace(config, reads_token=True))
    for parameter in known.parameters():
        torch.nn.init.normal_(parameter)
    begin_from(head, known)
    states, tokens = torch.randn(2, 5, 16)
    assert torch.equal(head(states, tokens), known(states))


@pytest.mark.parametrize("variant", ["eagle3", "eagle"])
def test_further_layers_change_nothing_at_first_but_learn(variant: Literal["eagle3", "eagle"]) -> None:
    config = eagle_config(target().config, variant, num_layers=2)
    known, head = EagleHead(config), EagleHead(replace(config, num_layers=4))
    begin_from(head, known)
    embeddings, features = torch.randn(2, 5, config.hidden_size)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.flatten(-2) + layer

    said, before = (each(embeddings, features, torch.sin, attend) for each in (head, known))
    assert torch.equal(said, before)
    said.sum().backward()
    for layer in head.layers[2:]:
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            assert weight.grad is not None
            assert weight.grad.any()


def test_states_leave_memory_for_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, wanted in ((None, 4 << 30), (6 << 30, 3 << 30), (100 << 30, 4 << 30)):
        monkeypatch.setattr(recipe, "free_bytes", lambda free=free: free)
        assert recipe._states_bytes(4.0) == wanted


@pytest.mark.thorough
def test_an_eagle_head_may_grow_layers(tmp_path: Path, corpus: Path) -> None:
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})

    def trained(out: str, init: str | None, layers: int | None) -> EagleHead:
        settings = HeadSettings(200, init=None if init is None else tmp_path / init, layers=layers)
        train_head("eagle3", target().name, tmp_path / out, text=text, head=settings, settings=SETTINGS, length=320)
        head = load_head(tmp_path / out, target().config)
        assert isinstance(head, EagleHead)
        return head

    assert trained("a", None, None).config.num_layers == 1
    grown = trained("b", "a", 2)
    assert grown.config.num_layers == 2
    assert trained("c", "b", None).config.num_layers == 2
    with pytest.raises(ConfigError, match="the head to begin from has 2 layers, the one to be trained 1"):
        trained("d", "b", 1)


def test_a_head_may_have_a_window(tmp_path: Path, corpus: Path) -> None:
    """One that is begun from another has that one's, unless it is told otherwise."""
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    wishes = replace(SETTINGS, steps=1)

    def windows(kind: HeadName, window: int | None, init: str | None = None) -> tuple[int, ...]:
        out = tmp_path / f"{kind}-{window}-{init}"
        head = HeadSettings(50, window=window, init=None if init is None else tmp_path / init)
        train_head(kind, target().name, out, text=text, head=head, settings=wishes, length=320)
        found = load_head(out, target().config)
        assert isinstance(found, EagleHead)
        return found.config.windows

    assert windows("eagle3", 16) == (16,)
    assert windows("eagle3", None, "eagle3-16-None") == (16,)
    assert windows("p-eagle", 0, "eagle3-16-None") == ()
    llm = LLM(target(), "eagle3", draft_model=tmp_path / "eagle3-16-None", drafter_options={"min_probability": 0.0})
    params = SamplingParams(temperature=0, max_tokens=24)
    said = llm.generate("Once upon a time there was", params).pop().outputs[0]
    assert said.stats.drafted > 0
    assert (
        said.token_ids == LLM(target(), "none").generate("Once upon a time there was", params)[0].outputs[0].token_ids
    )


def test_a_training_begins_only_from_its_own_kind_of_head(tmp_path: Path, corpus: Path) -> None:
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    train_head(
        "medusa", target().name, tmp_path / "a", text=text, head=HeadSettings(200, 2), settings=SETTINGS, length=320
    )
    train_head(
        "pass", target().name, tmp_path / "pass", text=text, head=HeadSettings(200, 2), settings=SETTINGS, length=320
    )
    with pytest.raises(ConfigError, match="nothing that a training can begin from"):
        train_head("eagle3", target().name, tmp_path / "b", text=text, head=HeadSettings(init=tmp_path / "pass"))
    others: list[tuple[HeadName, int | None, str]] = [("eagle3", None, "of kind medusa"), ("medusa", 3, "shape")]
    for name, slots, reason in others:
        other = HeadSettings(200, slots, init=tmp_path / "a")
        with pytest.raises(ConfigError, match=reason):
            train_head(name, target().name, tmp_path / "b", text=text, head=other, settings=SETTINGS, length=320)


@pytest.mark.parametrize(
    ("name", "head", "reason"),
    [
        (
            "eagle3",
            HeadSettings(slots=6),
            "slots is a setting of blockwise, dflash, dspark, jetspec, medusa, p-eagle, pass; leave it out for eagle3",
        ),
        ("draft-model", HeadSettings(slots=6), "slots is a setting of blockwise, dflash, dspark, jetspec"),
        (
            "medusa",
            HeadSettings(layers=2),
            "layers is a setting of dflash, draft-model, dspark, eagle, eagle3, jetspec, p-eagle",
        ),
        ("eagle", HeadSettings(layers=0), "layers is 0; give a number from 1 to 64"),
        ("eagle3", HeadSettings(layers=(0, 1)), "eagle3 has layers of its own; give their number"),
        ("blockwise", HeadSettings(residual_blocks=2), "residual_blocks is a setting of medusa"),
        ("blockwise", HeadSettings(reads_token=True), "reads_token is a setting of medusa"),
        ("medusa", HeadSettings(unroll=2), "unroll is a setting of eagle, eagle3, mtp, p-eagle"),
        ("medusa", HeadSettings(dropout=0.1), "dropout is a setting of eagle, eagle3, p-eagle"),
        ("eagle3", HeadSettings(causal=True), "causal is a setting of dflash"),
        ("pass", HeadSettings(init=Path("head")), "init is a setting of"),
        ("eagle3", HeadSettings(spacing=3), "spacing is a setting of dflash, dspark, jetspec"),
        ("dflash", HeadSettings(spacing=0), "spacing is 0; give a number of tokens"),
        ("dflash", HeadSettings(window=512), "window is a setting of eagle3, p-eagle"),
        ("eagle3", HeadSettings(window=8), "window is 8; give 16 positions or more"),
        ("eagle3", HeadSettings(loss="dpace"), "dpace weighs the guesses of a block; for eagle3 choose ce, tv or lk"),
    ],
)
def test_a_setting_that_a_head_does_not_use_is_refused_before_the_target_is_loaded(
    name: HeadName, head: HeadSettings, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason):
        train_head(name, tmp_path / "no-target", tmp_path / "out", text=TEXT, head=head, settings=SETTINGS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "head", "reason"),
    [
        ("draft-model", HeadSettings(layers=99), "this model has 3"),
        ("draft-model", HeadSettings(layers=(0, 99)), "0 to 2"),
        ("mtp", None, "no multi-token module to begin from"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_text_is_written(
    name: HeadName, head: HeadSettings | None, reason: str, tmp_path: Path
) -> None:
    """None: a head that is to begin from the target, which has none."""
    head = head or HeadSettings(init=Path(target().name))
    with pytest.raises(ConfigError, match=reason):
        train_head(name, target().name, tmp_path, text=TEXT, head=head, settings=SETTINGS)
    assert not list(tmp_path.iterdir())


def test_a_training_killed_before_its_first_step_was_kept_goes_on(tmp_path: Path, corpus: Path) -> None:
    text, head = TextSettings(**{**TEXT.__dict__, "directory": corpus}), HeadSettings(200, 2)

    def kill(_: StepReport) -> None:
        raise KeyboardInterrupt

    def train(out: Path, told: Progressing | None = None) -> None:
        settings = replace(SETTINGS, save_every=3)
        train_head("medusa", target().name, out, text=text, head=head, settings=settings, length=320, on_progress=told)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", Progressing(trained=kill))
    assert (tmp_path / "killed" / "config.json").exists()
    for name in ("killed", "whole"):
        train(tmp_path / name)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole"))
    assert all(torch.equal(one[key], two[key]) for key in one.keys() | two.keys())


def test_questions_from_files(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    lines = [{"turns": ["a", "b"]}, {"prompt": "c"}, {"question": "d", "answer": "e"}, {"messages": [{"role": "user"}]}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert [conversation[0].get("content") for conversation in read_conversations(path)] == ["a", "c", "d", None]
    for bad in ("{}", "[1]", "{"):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="line 1"):
            read_conversations(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_conversations(tmp_path / "nothing")


def test_coarser_products_end_with_the_training() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    for device, precision, inside in (
        ("cuda", "bf16", "high"),
        ("cuda", "fp32", "highest"),
        ("cpu", "bf16", "highest"),
    ):
        with recipe._products(torch.device(device), precision):
            assert torch.get_float32_matmul_precision() == inside
        assert torch.get_float32_matmul_precision() == "highest"


def test_of_several_processes_each_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(recipe._place(device)) for device in (None, "cuda", "cuda:1", "cpu")] == [
        "cuda",
        "cuda",
        "cuda:1",
        "cpu",
    ]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [str(recipe._place(device)) for device in (None, "cuda", "cuda:0", "cpu")] == [
        *["cuda:1"] * 2,
        "cuda:0",
        "cpu",
    ]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="cuda:0 to cuda:1"):
        recipe._place(None)


TWO_PROCESSES = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from headstart_train.making import HeadSettings
from headstart_train.recipe import train_head
from headstart_train.text.text import Text, TextSettings
from headstart_train.trainer import TrainSettings
model, out, corpus = sys.argv[1:]
text = TextSettings(tokens=400, temperatures=(0.0,), answer_tokens=16, batch_size=6, directory=Path(corpus))
settings = TrainSettings(steps=3, batch=2, micro_batch=1, evaluate_every=2, save_every=2)
head = HeadSettings(200, 2)
train_head("medusa", model, Path(out), text=text, head=head, settings=settings, length=320, device="cpu")
"""


@pytest.mark.thorough
def test_two_processes_learn_what_one_does(tmp_path: Path, corpus: Path) -> None:
    """torchrun with gloo: the mean of two halves' gradients is the whole's."""
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    given = [str(target().name), str(tmp_path / "two"), str(corpus)]
    done = subprocess.run([*run, *given], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    text = TextSettings(**{**TEXT.__dict__, "directory": corpus})
    head = HeadSettings(draft_vocab=200, slots=2)
    train_head(
        "medusa", target().name, tmp_path / "one", text=text, head=head, settings=SETTINGS, length=320, device="cpu"
    )
    one, two = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith("head."):
            torch.testing.assert_close(one[name], two[name], atol=2e-4, rtol=1e-3)
