"""The examples run, on the tiny model instead of the default one."""

from __future__ import annotations

import builtins
import json
import random
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import headstart
from headstart import LLM, SamplingParams
from headstart.loading.model import load_model
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_train.files.heads import save_head
from headstart_train.text.corpus import Corpus
from headstart_train.text.synthesis import read_conversations

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


TRAINING = EXAMPLES[0].parent / "training"


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes find what they share in their own folder, as when Python runs them."""
    monkeypatch.syspath_prepend(TRAINING)


@pytest.fixture
def on_the_tiny_model(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TinyLLM(LLM):
        def __init__(self, model: Any = "smollm2", *args: Any, **kwargs: Any) -> None:
            super().__init__(tiny_model_dir if model == "smollm2" else model, *args, **kwargs)

    monkeypatch.setattr(headstart, "LLM", TinyLLM, raising=False)
    said = iter(["Hello", "And then?", ""])
    monkeypatch.setattr(builtins, "input", lambda _: next(said))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.usefixtures("on_the_tiny_model")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out) > 100


ALL_EXAMPLES = sorted(path for path in EXAMPLES[0].parent.rglob("*.py") if path.stem != "pair_training")


@pytest.mark.parametrize("path", ALL_EXAMPLES, ids=lambda path: path.stem)
def test_ctrl_c_ends_an_example_without_a_traceback(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(headstart, "LLM", interrupted, raising=False)
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", interrupted)
    monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(OpenAI=interrupted))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 130


@pytest.mark.usefixtures("on_the_tiny_model")
def test_ctrl_d_ends_the_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = iter(["Hello"])

    def typed(prompt: str) -> str:
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", typed)
    runpy.run_path(str(EXAMPLES[0].parent / "chat_stream.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("model: ")


def test_documents_become_prompts_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    english, german, out = tmp_path / "rivers.txt", tmp_path / "fluesse.html", tmp_path / "prompts.jsonl"
    english.write_text(
        "The river Amazon flows through Brazil. It is long.\n\nIn 1540 a man called Orellana sailed it.\n"
    )
    german.write_text("<html><p>Der Rhein ist ein langer Fluss in der Mitte von Europa.</p></html>", encoding="utf-8")
    run = ["x", "--english", str(english), "--german", str(german), "--longest", "60", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", run)
    script = EXAMPLES[0].parent / "training" / "prompts_from_documents.py"
    runpy.run_path(str(script), run_name="__main__")
    prompts = [conversation[0]["content"] for conversation in read_conversations(out)]
    assert "Translate German to English: Der Rhein ist ein langer Fluss in der Mitte von Europa." in prompts
    assert "Summarize: In 1540 a man called Orellana sailed it." in prompts
    assert any(prompt.startswith("The river Amazon") and prompt.endswith(("?", ".")) for prompt in prompts)
    assert any(len(prompt) < 50 and "Orellana" in prompt for prompt in prompts)


def test_heads_are_averaged_and_what_they_learnt_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ParallelConfig("medusa", hidden_size=16, vocab_size=40, draft_vocab_size=20, slots=2)
    heads = []
    for seed, offset in ((0, 0), (1, 0), (2, 7)):
        torch.manual_seed(seed)
        heads.append(ParallelHeads(config))
        for parameter in heads[-1].parameters():
            torch.nn.init.normal_(parameter)
        heads[-1].d2t.fill_(offset)
        save_head(heads[-1], tmp_path / str(seed), {"step": seed})

    def average(*parts: str) -> None:
        monkeypatch.setattr(
            sys, "argv", ["x", *(f"{tmp_path}/{part}" for part in parts), "--out", str(tmp_path / "mean")]
        )
        runpy.run_path(str(TRAINING / "average_heads.py"), run_name="__main__")

    average("0=1", "1=3")
    mean = load_file(tmp_path / "mean" / "model.safetensors")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in "01")
    for name, tensor in mean.items():
        torch.testing.assert_close(
            tensor, (one[name] + 3 * other[name]) / 4 if tensor.is_floating_point() else one[name]
        )
    record = json.loads((tmp_path / "mean" / "config.json").read_text())["headstart"]
    assert [(each["share"], each["step"]) for each in record["averaged"]] == [(0.25, 0), (0.75, 1)]
    with pytest.raises(SystemExit, match="different draft vocabularies"):
        average("0=1", "2=1")


def test_tasks_become_prompts_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, out = tmp_path / "self-instruct", tmp_path / "prompts.jsonl"
    templates = repository / "data" / "finetuning" / "t0_train_50k" / "data_per_template"
    passage = "A passage on the town of Lucerne by the river Reuss. " + "It tells more. " * 20
    prompts = {
        "multi_news_summarize": "Sum up:\n\nDocument: " + "A long article. " * 40 + "\n\nDocument: Too short.",
        "cnn_dailymail_summarize": "Summarize: " + "Not this one. " * 40,
        "wiki_hop_original_choose": "Information:\n\n" + "\n".join(f"- {passage[: 300 - i]}" for i in range(4)),
        "quoref_Answer": "A text.\n\nWho did it?",
        "trec_what": "Classify this.\nWho is Snoopy 's arch-enemy ?",
        "samsum_Summarize": "Summarize the dialogue: A: Hi. B: Hi.",
    }
    templates.mkdir(parents=True)
    for name, prompt in prompts.items():
        (templates / f"{name}.jsonl").write_text(json.dumps({"prompt": prompt, "completion": ""}) + "\n")
    for name in ("human_eval/user_oriented_instructions.jsonl", "data/seed_tasks.jsonl"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(json.dumps({"instruction": "Translate.", "instances": [{"input": name}]}) + "\n")
    monkeypatch.setattr(sys, "argv", ["x", str(repository), "--out", str(out)])
    runpy.run_path(str(TRAINING / "prompts_from_tasks.py"), run_name="__main__")
    asked = [conversation[0]["content"] for conversation in read_conversations(out)]
    assert [prompt[:26] for prompt in asked if prompt.startswith("Summarize: ")] == ["Summarize: A long article."]
    assert {"A text.\n\nWho did it?", "Who is Snoopy 's arch-enemy?", prompts["samsum_Summarize"]} <= set(asked)
    assert "Translate.\n\ndata/seed_tasks.jsonl" in asked
    assert any(prompt.startswith("A passage on the town") and prompt.endswith("?") for prompt in asked)
    assert not any("Not this one" in prompt for prompt in asked)


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_t5_pair_is_trained_and_decoded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    file, out = tmp_path / ("text.txt" if kind == "text" else "pairs.jsonl"), tmp_path / "pair"
    said = [f"The quick brown fox number {place} jumps over the lazy dog." for place in range(30)]
    pairs = [{"question": f"Who jumps, {text}", "answer": text} for text in said[:-1]]
    pairs.append({"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The fox."}]})
    file.write_text("\n\n".join(said) if kind == "text" else "\n".join(map(json.dumps, pairs)))
    sizes = ["--target", "32,2", "--draft", "32,1", "--vocabulary", "300", "--steps", "3", "--batch", "2"]
    script = str(TRAINING / "train_t5_pair.py")
    monkeypatch.setattr(sys, "argv", ["x", str(file), "--out", str(out), *sizes])
    runpy.run_path(script, run_name="__main__")
    assert "prompts that neither has seen" in capsys.readouterr().out
    (prompt,) = [json.loads(line) for line in (out / "prompts.jsonl").read_text().splitlines()]
    assert prompt["category"] == ("editing" if kind == "text" else "answers")
    plain = LLM(out / "target", "none", precision="fp32")
    pair = LLM(out / "target", "draft-model", draft_model=out / "draft", precision="fp32")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    texts = [llm.generate(prompt["turns"][0], params)[0] for llm in (plain, pair)]
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[1].stats.drafted
    assert plain.encode(prompt["turns"][0]).source is not None


def test_a_t5_pair_of_two_tasks_tells_them_apart_by_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    text, pairs, out = tmp_path / "text.txt", tmp_path / "pairs.jsonl", tmp_path / "pair"
    text.write_text("\n\n".join(f"Sentence number {place} of a text to be put right." for place in range(20)))
    pairs.write_text("\n".join(json.dumps({"prompt": f"Say {n}.", "completion": f"It is {n}."}) for n in range(20)))
    sizes = ["--target", "32,1", "--draft", "32,1", "--vocabulary", "300", "--steps", "2", "--batch", "2"]
    script = str(TRAINING / "train_t5_pair.py")
    monkeypatch.setattr(sys, "argv", ["x", str(text), str(pairs), "--out", str(out), "--only", "draft", *sizes])
    runpy.run_path(script, run_name="__main__")
    prompts = [json.loads(line) for line in (out / "prompts.jsonl").read_text().splitlines()]
    assert [(each["category"], each["turns"][0].split()[0]) for each in prompts] == [
        ("editing", "editing:"),
        ("answers", "answers:"),
    ]
    assert not (out / "target").exists()
    monkeypatch.setattr(sys, "argv", ["x", str(text), str(text), "--out", str(out), *sizes])
    with pytest.raises(SystemExit, match="two files hold the same task"):
        runpy.run_path(script, run_name="__main__")


def test_a_gpt_pair_is_trained_and_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    file, out = tmp_path / "book.txt", tmp_path / "pair"
    said = [f"The quick brown fox number {place} jumps over the lazy dog. " * 4 for place in range(30)]
    file.write_text("\n\n".join(["A short one.", *said]))
    sizes = ["--target", "64,2", "--draft", "32,1", "--vocabulary", "300", "--length", "24"]
    script = str(TRAINING / "train_gpt_pair.py")
    monkeypatch.setattr(sys, "argv", ["x", str(file), "--out", str(out), *sizes, "--steps", "3", "--batch", "2"])
    runpy.run_path(script, run_name="__main__")
    assert "million weights" in capsys.readouterr().out
    (prompt,) = [json.loads(line) for line in (out / "prompts.jsonl").read_text().splitlines()]
    assert len(prompt["turns"][0].split()) == 10
    plain = LLM(out / "target", "none")
    pair = LLM(out / "target", "draft-model", draft_model=out / "draft")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    texts = [llm.generate(prompt["turns"][0], params)[0] for llm in (plain, pair)]
    assert texts[0].prompt_token_ids[0] == 1  # as every paragraph began in training
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[1].stats.drafted
    file.write_text("Too little to read.")
    with pytest.raises(SystemExit, match="have 0 paragraphs of 20 words"):
        runpy.run_path(script, run_name="__main__")


def test_slips_leave_most_of_a_text() -> None:
    with_slips = runpy.run_path(str(TRAINING / "train_t5_pair.py"))["with_slips"]
    text = " ".join(f"word{place:03}" for place in range(400))
    slipped = with_slips(text, random.Random(0))
    same = sum(word in set(text.split()) for word in slipped.split())
    assert slipped != text
    assert 0.9 * 400 < same < 1.05 * 400
    assert 0.9 * 400 < len(slipped.split()) < 1.1 * 400


@pytest.mark.parametrize(
    ("lines", "said"), [('{"prompt": "x"}\n', "line 1 has no prompt or question with"), ("", "has 0 examples")]
)
def test_what_is_no_example_is_refused(lines: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pairs.jsonl").write_text(lines)
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(str(TRAINING / "train_t5_pair.py"), run_name="__main__")
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_text_written_on_an_accelerator_goes_on_where_it_ended(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All prompts are answered once, turns one after the other, and the corpus is one to train on."""
    lines = [{"prompt": "Name a river."}, {"turns": ["Hello.", "And now?", "Go on."]}, {"question": "Why?"}]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [str(tiny_model_dir), str(prompts), "--out", str(tmp_path / "corpus"), "--device", "cpu"]
    given += ["--batch", "1", "--answer-tokens", "5", "--temperature", "0"]
    for more in (["--seconds", "0"], [], []):
        monkeypatch.setattr(sys, "argv", ["write_on_accelerator.py", *given, *more])
        runpy.run_path(str(TRAINING / "write_on_accelerator.py"), run_name="__main__")
    model = load_model(tiny_model_dir, "fp32")
    corpus = Corpus.existing(tmp_path / "corpus", model.checkpoint.digest())
    assert len(corpus) == 3
    texts = [model.tokenizer.decode(each.tokens.tolist()) for each in corpus]
    for words in (["Name a river."], ["Hello.", "And now?", "Go on."], ["Why?"]):
        assert sum(all(word in text for word in words) for text in texts) == 1
    begun = sorted(np.count_nonzero(np.diff(each.answers.astype(int)) == 1) for each in corpus)
    assert begun == [1, 1, 3]
    assert all(each.answers[-1] and not each.answers[0] for each in corpus)
