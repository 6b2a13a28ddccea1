"""``headstart transcribe``: what recordings say."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Asked, warn_of_losses
from headstart.cli.option_groups import Only, with_groups
from headstart.cli.options import OUTPUT
from headstart.cli.sampling import SamplingOptions
from headstart.entrypoints.engine_options import EngineOptions
from headstart_speech.enumerations import SpeechTask, TranscriptFormat

if TYPE_CHECKING:
    from headstart_speech.segments import Segment
    from headstart_speech.windows import Transcript

SPEECH_PANEL = "Speech"


@with_groups
def transcribe(
    *,
    recordings: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recordings of any length: WAV, FLAC, Ogg or MP3.")
    ],
    language: Annotated[
        str | None,
        typer.Option(
            help="What is spoken, as de. Left out: what the model finds likeliest.",
            metavar="CODE",
            rich_help_panel=SPEECH_PANEL,
        ),
    ] = None,
    task: Annotated[
        SpeechTask,
        typer.Option(help="Write it down as it is said, or in English.", rich_help_panel=SPEECH_PANEL),
    ] = SpeechTask.TRANSCRIBE,
    prompt: Annotated[
        str,
        typer.Option(
            help="A text that came before: names and spellings are taken over from it.",
            metavar="TEXT",
            rich_help_panel=SPEECH_PANEL,
        ),
    ] = "",
    condition_on_previous_text: Annotated[
        bool,
        typer.Option(
            "--condition-on-previous-text",
            help="Let each window read what the ones before it said.",
            rich_help_panel=SPEECH_PANEL,
        ),
    ] = False,
    engine: EngineOptions,
    sampling: Annotated[
        SamplingOptions,
        Only(
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "no_repeat_ngram_size",
            "seed",
            "beam_width",
            "length_penalty",
        ),
    ],
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Put its times before each segment.", rich_help_panel=OUTPUT)
    ] = False,
    form: Annotated[
        TranscriptFormat,
        typer.Option(
            "--format",
            help="text, subtitles (srt, vtt), or an object a line: json has the text, verbose_json segments as well.",
            rich_help_panel=OUTPUT,
        ),
    ] = TranscriptFormat.TEXT,
    word_timestamps: Annotated[
        bool,
        typer.Option(
            "--word-timestamps",
            help="Times of words: lines or subtitles of one word each, and with verbose_json a list beside the "
            "segments. One more pass for each window.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="The same as --format json; with --timestamps or --word-timestamps, as --format verbose_json.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Write down what recordings say, with a model whose encoder reads audio (a Whisper).

    The encoder reads 30 seconds. What is longer is read window after window, each from where the last one's speech was
    known to end. Several recordings are written down together. Needs the packages of headstart[audio].

    Examples:

        headstart transcribe --model openai/whisper-tiny.en speech.wav

        headstart transcribe -m openai/whisper-small interview.mp3 --language de --timestamps

        headstart transcribe -m openai/whisper-small rede.flac --task translate --format srt > rede.srt

        headstart transcribe -m openai/whisper-small talk.wav --word-timestamps --format vtt > talk.vtt

        headstart transcribe -m openai/whisper-large-v3 talk.wav --draft-model openai/whisper-tiny
    """
    if as_json:
        if form not in (TranscriptFormat.TEXT, TranscriptFormat.JSON):
            raise typer.BadParameter(f"--format {form} says otherwise; leave out one of the two.", param_hint="--json")
        timed_json = timestamps or word_timestamps
        form = TranscriptFormat.VERBOSE_JSON if timed_json else TranscriptFormat.JSON
        timestamps = False
    if len(recordings) > 1 and form in (TranscriptFormat.SRT, TranscriptFormat.VTT):
        raise typer.BadParameter(f"{form} holds one recording; give one file.", param_hint="--format")
    if timestamps and form is not TranscriptFormat.TEXT:
        raise typer.BadParameter("it is for texts; srt, vtt and verbose_json show times.", param_hint="--timestamps")
    if word_timestamps and form is TranscriptFormat.JSON:
        raise typer.BadParameter("json shows no times; ask for verbose_json.", param_hint="--word-timestamps")
    given = sampling.given()
    asked = Asked(engine, given)

    from headstart.cli.progress import Activity
    from headstart.engine.usefulness import Usefulness
    from headstart.entrypoints.prompts import naming
    from headstart_speech.params import TranscriptionParams, check_sampling
    from headstart_speech.recordings import file_content, read_recording
    from headstart_speech.vocabulary import SpeechTokens

    timed = timestamps or word_timestamps or form.timed
    verbose = form is TranscriptFormat.VERBOSE_JSON
    params = TranscriptionParams(language, task, prompt, timed, word_timestamps, condition_on_previous_text, verbose)
    with Activity(shown=not quiet) as activity:
        activity.show(f"Looking at {engine.model}")
        heard = []
        for path in recordings:
            with naming(path, len(recordings), "the recording"):
                heard.append(read_recording(file_content(path)))
        _, speculation, outline = asked.checked()
        SpeechTokens.of(outline.config, outline.tokenizer).check(language, task)
        drawing = outline.sampling_defaults.params(given, {"max_tokens": None})
        check_sampling(drawing)
        activity.stop()
        warn_of_losses(engine, speculation, drawing)
        llm = asked.load(activity, outline)
        seconds = sum(len(samples) / rate for samples, rate in heard)
        ends = [0.0] * len(heard)
        lines = timed and form is TranscriptFormat.TEXT
        live = lines and len(heard) == 1

        def on_segment(place: int, segment: Segment) -> None:
            ends[place] = segment.end
            activity.advance_saying(0, f"{sum(ends):.0f} of {seconds:.0f} s")
            if live:
                with activity.aside():
                    print("\n".join(_timed_lines([segment], word_timestamps)), flush=True)

        activity.show("Transcribing")
        begun = time.perf_counter()
        found = llm.transcribe(heard, params, drawing, speculation=speculation, on_segment=on_segment)
        taken = time.perf_counter() - begun
    for path, transcript in zip(recordings, found, strict=True):
        if len(recordings) > 1 and form is TranscriptFormat.TEXT:
            print(f"--- {path} ---")
        if not live:
            _show(transcript, path, form, task, lines, word_timestamps)
    if not quiet:
        print(_summary(found, seconds, taken), file=sys.stderr)
        usefulness = Usefulness(llm.drafter_name)
        for stats in (stats for transcript in found for stats in transcript.stats):
            usefulness.add(stats)
        if (hint := usefulness.hint()) is not None:
            print(f"Hint: {hint}", file=sys.stderr)


def _show(
    transcript: Transcript,
    path: Path,
    form: TranscriptFormat,
    task: SpeechTask,
    lines: bool,
    words: bool,
) -> None:
    from headstart_speech.formats import as_json, as_srt, as_verbose_json, as_vtt, timed_parts

    match form:
        case TranscriptFormat.TEXT:
            print("\n".join(_timed_lines(transcript.segments, words)) if lines else transcript.text)
        case TranscriptFormat.SRT:
            print(as_srt(timed_parts(transcript.segments, words)), end="")
        case TranscriptFormat.VTT:
            print(as_vtt(timed_parts(transcript.segments, words)), end="")
        case TranscriptFormat.JSON:
            print(json.dumps({"file": str(path), **as_json(transcript)}, ensure_ascii=False))
        case TranscriptFormat.VERBOSE_JSON:
            shown = {"file": str(path), **as_verbose_json(transcript, task, words)}
            windows = [stats.as_dict() for stats in transcript.stats]
            print(json.dumps({**shown, "windows": windows}, ensure_ascii=False))


def _timed_lines(segments: Sequence[Segment], words: bool) -> list[str]:
    from headstart_speech.formats import as_timed_line, timed_parts

    return [as_timed_line(part) for part in timed_parts(segments, words)]


def _summary(found: list[Transcript], seconds: float, taken: float) -> str:
    """How much, how fast, how well guessed."""
    each = [stats for transcript in found for stats in transcript.stats]
    tokens, rounds = sum(stats.tokens for stats in each), sum(stats.rounds for stats in each)
    drafted, accepted = sum(stats.drafted for stats in each), sum(stats.accepted for stats in each)
    line = f"{seconds:.1f} s of audio in {taken:.2f} s, {len(each)} windows, {tokens} tokens"
    if drafted:
        line += f", acceptance rate {accepted / drafted:.1%}, mean accepted length {tokens / max(rounds, 1):.2f}"
    return line
