"""``headstart transcribe`` as a user meets it, on a tiny random Whisper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import headstart, refusal, rows
from tiny_speech import as_file, limit_tokens, make_speech_model, save_speech_model, sound

from headstart import LLM, SamplingParams, TranscriptionParams
from headstart_speech.formats import as_srt, as_timed_line, as_vtt

pytestmark = pytest.mark.usefixtures("polyglot")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_speech_model(make_speech_model(seed=5), tmp_path_factory.mktemp("speech"))
    for name, seconds in (("long", 1.0), ("short", 0.3)):
        (directory / f"{name}.wav").write_bytes(as_file(sound(seconds)))
    return limit_tokens(directory, 30)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, "suffix", precision="fp32")


@pytest.mark.thorough
def test_a_drafter_that_is_of_no_use_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.engine.usefulness.ENOUGH", 1)
    call = ("transcribe", "-m", folder, "--precision", "fp32", "-d", "random", folder / "long.wav", "--language", "de")
    # Guesses are drawn with the request's noise: one or another of them may be right.
    call += ("--seed", 1)
    assert re.search(r"Hint: random guessed right in \d of \d+ rounds", headstart(*call).stderr)
    assert "Hint" not in headstart(*call, "-q").stderr


@pytest.mark.thorough
def test_texts_subtitles_and_objects(folder: Path, llm: LLM) -> None:
    def call(*arguments: object) -> Any:
        base = ("transcribe", "-m", folder, "--precision", "fp32", "-d", "suffix", folder / "long.wav")
        return headstart(*base, "--language", "de", *arguments)

    (said,) = llm.transcribe(folder / "long.wav", TranscriptionParams(language="de"))
    (timed,) = llm.transcribe(folder / "long.wav", TranscriptionParams(language="de", timestamps=True))
    plain = call()
    assert plain.stdout == said.text + "\n"
    assert "1.0 s of audio in" in plain.stderr
    assert call("--timestamps", "-q").stdout == "".join(f"{as_timed_line(each)}\n" for each in timed.segments)
    assert call("--format", "srt").stdout == as_srt(timed.segments)
    assert call("--format", "vtt").stdout == as_vtt(timed.segments)
    (worded,) = llm.transcribe(folder / "long.wav", TranscriptionParams(language="de", word_timestamps=True))
    assert call("--word-timestamps", "-q").stdout == "".join(f"{as_timed_line(each)}\n" for each in worded.words)
    assert call("--word-timestamps", "--format", "srt").stdout == as_srt(worded.words)
    (row,) = rows(call("--word-timestamps", "--format", "verbose_json", "-q"))
    assert [each["word"] for each in row["words"]] == [each.word for each in worded.words]
    assert call("--json", "-q").stdout == call("--format", "json", "-q").stdout
    assert rows(call("--json", "--timestamps", "-q"))[0]["segments"]
    assert call("--json", "--format", "srt").exit_code == 2
    (row,) = rows(call("--format", "verbose_json", "-q"))
    assert (row["file"], row["language"], row["task"]) == (str(folder / "long.wav"), "de", "transcribe")
    assert [each["text"] for each in row["segments"]] == [each.text for each in timed.segments]
    assert sum(window["tokens"] for window in row["windows"]) == sum(stats.tokens for stats in timed.stats)
    (drawn,) = llm.transcribe(
        folder / "long.wav", TranscriptionParams(language="de"), SamplingParams(temperature=0.8, seed=2, max_tokens=30)
    )
    assert call("--temperature", 0.8, "--seed", 2).stdout == drawn.text + "\n"
    (beams,) = llm.transcribe(
        folder / "long.wav",
        TranscriptionParams(language="de", task="translate"),
        SamplingParams(beam_width=2, max_tokens=30),
    )
    assert call("--task", "translate", "--beams", 2).stdout == beams.text + "\n"


@pytest.mark.thorough
def test_several_files(folder: Path, llm: LLM) -> None:
    base = ("transcribe", "-m", folder, "--precision", "fp32", "-d", "none", folder / "long.wav", folder / "short.wav")
    texts = [transcript.text for transcript in llm.transcribe([folder / "long.wav", folder / "short.wav"])]
    heads = [f"--- {folder / name}.wav ---" for name in ("long", "short")]
    assert headstart(*base).stdout == "".join(f"{head}\n{text}\n" for head, text in zip(heads, texts, strict=True))
    assert [row["text"] for row in rows(headstart(*base, "--format", "json"))] == texts
    assert "srt holds one recording; give one file" in refusal(headstart(*base, "--format", "srt"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.wav",), "nowhere.wav cannot be read"),
        (("config.json",), "holds no audio that can be read; give WAV, FLAC, Ogg or MP3"),
        (("short.wav", "--language", "xx"), "language is 'xx', which the model does not know"),
        (("short.wav", "--task", "sing"), "'sing' is not one of"),
        (("short.wav", "--timestamps", "--format", "srt"), "it is for texts"),
        (("short.wav", "--word-timestamps", "--format", "json"), "json shows no times; ask for verbose_json"),
        (("short.wav", "config.json"), "the recording config.json: the file holds no audio"),
        (("short.wav", "--beams", 3, "--temperature", 0.5), "beam search draws nothing"),
    ],
)
def test_what_is_wrong_gets_a_sentence(
    arguments: tuple[object, ...], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert message in refusal(headstart("transcribe", "-m", folder, *arguments))


def test_a_model_that_reads_texts_is_refused(folder: Path, tiny_model_dir: Path) -> None:
    said = refusal(headstart("transcribe", "-m", tiny_model_dir, folder / "short.wav"))
    assert "this model reads no audio; use a Whisper" in said
