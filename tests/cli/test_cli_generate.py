"""``headstart generate`` as a user meets it, on a tiny random model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

import pytest
from cli_runs import headstart, refusal, rows
from tiny_checkpoint import MAX_POSITIONS, write_tiny_model
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_encoder_decoders import save_model as save_encoder_decoder
from typer.testing import Result

from headstart import LLM, RequestOutput, SamplingParams, SpeculationParams, VerifyRule
from headstart.drafting import DEFAULT_DRAFTER
from headstart.entrypoints import llm as llm_module
from headstart.sampling.defaults import MODEST

STATS = {
    "prompt_tokens",
    "tokens",
    "rounds",
    "target_passes",
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_accepted_length",
    "accepted_per_position",
    "seconds",
    "tokens_per_second",
    "prefill_seconds",
}
PROMPT = "Hello wörld 🎉"
GREEDY = SamplingParams(temperature=0, max_tokens=40)
MESSAGES = [{"role": "user", "content": PROMPT}]


class Generate(Protocol):
    def __call__(self, *arguments: object, stdin: str | bytes | None = None, **env: str) -> Result: ...


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    """The library, which says what the command has to print."""
    return LLM(tiny_model_dir, "ngram", precision="fp32")


@pytest.fixture
def generate(tiny_model_dir: Path) -> Generate:
    """Greedy ``headstart generate`` with the tiny model, 40 tokens and a drafter whose guesses do not depend on the
    clock, whatever else is given."""

    def call(*arguments: object, stdin: str | bytes | None = None, **env: str) -> Result:
        base = ("generate", "-m", tiny_model_dir, "--precision", "fp32", "--max-tokens", 40, "--drafter", "ngram")
        return headstart(*base, "--temperature", 0, *arguments, stdin=stdin, **env)

    return call


class TestText:
    def test_it_is_the_librarys_and_the_summary_goes_to_stderr(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, GREEDY)
        result = generate(PROMPT)
        assert result.exit_code == 0
        assert result.stdout == output.text + "\n"
        (summary,) = result.stderr.splitlines()
        assert "40 tokens in" in summary
        assert f"acceptance rate {output.stats.acceptance_rate:.1%}" in summary
        assert f"mean accepted length {output.stats.mean_accepted_length:.2f}" in summary

    def test_a_terminal_is_told_what_memory_it_takes(
        self, generate: Generate, llm: LLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[str] = []
        monkeypatch.setattr("headstart.cli.progress.Activity.say", lambda _, line: said.append(line))
        generate(PROMPT)
        (line,) = said
        assert line.startswith("Memory: ")
        assert "cache" in line

    def test_quiet_says_nothing_else(self, generate: Generate) -> None:
        assert generate(PROMPT, "--quiet").stderr == ""

    def test_a_chat_goes_through_the_template(self, generate: Generate, llm: LLM) -> None:
        assert generate(PROMPT, "--chat").stdout == llm.chat(MESSAGES, GREEDY)[0].text + "\n"

    def test_a_system_message_makes_it_a_chat(self, generate: Generate, llm: LLM) -> None:
        messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
        assert generate(PROMPT, "--system", "Be brief.").stdout == llm.chat(messages, GREEDY)[0].text + "\n"

    def test_stdin_is_the_prompt_less_its_last_newline(self, generate: Generate) -> None:
        assert generate("-", stdin=f"{PROMPT}\n").stdout == generate(PROMPT).stdout
        assert generate("-", stdin=f"{PROMPT}\n\n").stdout != generate(PROMPT).stdout

    def test_what_is_piped_in_needs_no_name(self, generate: Generate) -> None:
        assert generate(stdin=f"{PROMPT}\n").stdout == generate(PROMPT).stdout
        assert (
            generate("--system", "Be brief.", stdin=PROMPT).stdout == generate(PROMPT, "--system", "Be brief.").stdout
        )
        assert "PROMPT" in refusal(generate(stdin=""))

    def test_beams_come_with_their_scores_and_passes_saved(self, generate: Generate, llm: LLM) -> None:
        params = SamplingParams(beam_width=4, n=2, max_tokens=9, length_penalty=0.5, early_stopping="never")
        (output,) = llm.generate(PROMPT, params)
        options = ("--beams", 4, "--n", 2, "--max-tokens", 9, "--length-penalty", 0.5, "--early-stopping", "never")
        result = generate(PROMPT, *options)
        assert result.exit_code == 0, result.stderr
        for place, beam in enumerate(output.outputs, start=1):
            assert f"--- sample {place} of 2, score {beam.score:.3f} ---\n{beam.text}\n" in result.stdout
        (summary,) = result.stderr.splitlines()
        stats = output.stats
        assert f"{stats.passes_saved} of {stats.beam_steps} passes saved" in summary
        (row,) = rows(generate(PROMPT, *options, "--json"))
        assert [each["score"] for each in row["outputs"]] == [beam.score for beam in output.outputs]
        assert "raise beam_width" in refusal(generate(PROMPT, "--beams", 2, "--n", 3))

    def test_samples_have_headings(self, generate: Generate) -> None:
        result = generate(PROMPT, "--n", 2, "--temperature", 1, "--seed", 5)
        assert "--- sample 1 of 2 ---" in result.stdout
        assert "--- sample 2 of 2 ---" in result.stdout

    def test_a_stop_string_ends_before_itself(self, generate: Generate) -> None:
        whole = generate(PROMPT).stdout
        stop = whole[7:9]
        end = whole.index(stop)
        assert generate(PROMPT, "--stop", stop).stdout == whole[:end] + "\n"
        assert generate(PROMPT, "--stop", stop, "--include-stop").stdout == whole[:end] + stop + "\n"

    def test_a_stop_token_is_no_text_with_its_drafts_shown_either(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, GREEDY)
        for more in ([], ["--include-stop"]):
            stopped = [PROMPT, "--stop-token", output.token_ids[5], *more]
            said, shown = generate(*stopped).stdout, generate(*stopped, "--show-drafts").stdout
            assert output.text.startswith(said.rstrip("\n"))
            for mark in TestDrafts.MARKED:
                shown = shown.replace(mark, "")
            assert re.sub(r"\[-.*?-\]", "", shown, flags=re.DOTALL) == said

    def test_a_bad_word_is_not_said(self, generate: Generate) -> None:
        word = generate(PROMPT).stdout[7:9].strip()
        assert word not in generate(PROMPT, "--bad-word", word).stdout


class TestDrafts:
    MARKED = ("{=", "=}", "{+", "+}")

    def test_marks_show_what_was_guessed_where_there_is_no_colour(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, GREEDY)
        result = generate(PROMPT, "--show-drafts")
        assert result.stdout.count("{=") == output.stats.accepted
        assert result.stdout.count("[-") > 0
        kept = result.stdout
        while "[-" in kept:
            start = kept.index("[-")
            kept = kept[:start] + kept[kept.index("-]", start) + 2 :]
        for mark in self.MARKED:
            kept = kept.replace(mark, "")
        assert kept == output.text + "\n"

    def test_what_marks_and_colours_mean_is_said_aside(self, generate: Generate) -> None:
        assert generate(PROMPT, "--show-drafts").stderr.startswith("{=guessed and accepted=}")
        assert generate(PROMPT, "--show-drafts", FORCE_COLOR="1").stderr.startswith("green: guessed and accepted")
        assert generate(PROMPT, "--show-drafts", "--quiet").stderr == ""

    def test_colours_show_it_where_there_is_colour(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, GREEDY)
        shown = generate(PROMPT, "--show-drafts", FORCE_COLOR="1").stdout
        assert shown.count("\x1b[32m") == output.stats.accepted
        assert shown.count("\x1b[9;31m") > 0
        assert shown.count("\x1b[34m") >= shown.count("\x1b[9;31m")
        assert not any(mark in shown for mark in self.MARKED)

    def test_no_color_is_respected(self, generate: Generate) -> None:
        shown = generate(PROMPT, "--show-drafts", FORCE_COLOR="1", NO_COLOR="1").stdout
        assert "\x1b" not in shown
        assert "{=" in shown

    def test_a_refused_newline_keeps_the_line(self, generate: Generate) -> None:
        # Only a newline and a letter may be said, so that the drafter guesses newlines that are refused.
        arguments = ["--allow-token", 10, "--allow-token", 97, "--temperature", 1, "--seed", 1, "--show-drafts"]
        assert "[-↵-]" in generate("\n\na\n\na\n", *arguments).stdout

    @pytest.mark.parametrize("other", [["--json"], ["--n", "2"]])
    def test_it_shows_one_sample_of_one_prompt(self, generate: Generate, other: list[str]) -> None:
        assert "--show-drafts" in refusal(generate(PROMPT, "--show-drafts", *other), status=2)


class TestJson:
    def test_one_object_with_the_names_that_scripts_rely_on(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, GREEDY)
        result = generate(PROMPT, "--json")
        assert result.stderr == ""
        (row,) = rows(result)
        assert set(row) == {"text", "token_ids", "finish_reason", "stats"}
        assert (row["text"], row["token_ids"], row["finish_reason"]) == (output.text, output.token_ids, "length")
        assert set(row["stats"]) >= STATS
        expected = output.stats.as_dict()
        for name in STATS - {"seconds", "prefill_seconds", "tokens_per_second"}:
            assert row["stats"][name] == expected[name]

    def test_samples(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, SamplingParams(temperature=1, seed=5, n=3, max_tokens=40))
        (row,) = rows(generate(PROMPT, "--n", 3, "--temperature", 1, "--seed", 5, "--json"))
        assert [sample["text"] for sample in row["outputs"]] == [sample.text for sample in output.outputs]
        assert row["text"] == row["outputs"][0]["text"]
        assert all(set(sample) == {"text", "token_ids", "finish_reason", "stats"} for sample in row["outputs"])

    def test_logprobs(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=40, logprobs=2))
        (row,) = rows(generate(PROMPT, "--logprobs", 2, "--json"))
        assert output.logprobs is not None
        assert [entry["logprob"] for entry in row["logprobs"]] == [entry.logprob for entry in output.logprobs]
        for entry, token in zip(row["logprobs"], row["token_ids"], strict=True):
            assert entry["token_id"] == entry["top"][0]["token_id"] == token
            assert entry["top"][0]["logprob"] >= entry["top"][1]["logprob"]

    def test_logprobs_of_the_prompt(self, generate: Generate, llm: LLM) -> None:
        (output,) = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=1))
        (row,) = rows(generate(PROMPT, "--prompt-logprobs", 1, "--max-tokens", 4, "--json"))
        assert output.prompt_logprobs is not None
        assert row["prompt_logprobs"][0] is None
        assert [entry["logprob"] for entry in row["prompt_logprobs"][1:]] == [
            entry.logprob for entry in output.prompt_logprobs if entry is not None
        ]
        (cut,) = rows(generate(PROMPT, "--prompt-logprobs", 1, "--truncate-prompt", 3, "--json"))
        assert [entry and entry["token_id"] for entry in cut["prompt_logprobs"]] == [
            None,
            *output.prompt_token_ids[-2:],
        ]

    @pytest.mark.parametrize("option", ["--logprobs", "--prompt-logprobs"])
    def test_logprobs_need_it(self, generate: Generate, option: str) -> None:
        assert option in refusal(generate(PROMPT, option, 2), status=2)


class TestPromptsFile:
    LINES = (
        json.dumps({"prompt": PROMPT, "id": 7, "category": "plain", "other": 1}),
        "this is not JSON",
        "",
        json.dumps({"turns": [PROMPT, "And then?"], "id": "two"}),
        json.dumps({"messages": MESSAGES}),
        json.dumps([1]),
        json.dumps({"prompt": "long " * MAX_POSITIONS, "id": 8}),
        json.dumps({"turns": ["Hi", "long " * MAX_POSITIONS, "never"]}),
        json.dumps({"messages": [{"role": "user"}]}),
        json.dumps({"prompt": "a", "turns": ["b"]}),
        json.dumps({"prompt": 5}),
        json.dumps({"turns": []}),
        json.dumps({"turns": [5]}),
        json.dumps({"id": 9}),
        '{"prompt": "\\ud800"}',
    )

    def test_each_line_is_answered_and_bad_ones_stop_no_other(self, generate: Generate, llm: LLM) -> None:
        result = generate("--prompts", "-", "--json", stdin="\n".join(self.LINES))
        assert result.exit_code == 1
        found = rows(result)
        good = {(row["line"], row.get("turn")): row for row in found if "error" not in row}
        bad = {(row["line"], row.get("turn")): row["error"] for row in found if "error" in row}
        assert list(good) == [(1, None), (4, 0), (4, 1), (5, None), (8, 0)]
        assert list(bad) == [(2, None), (6, None), (7, None), (8, 1), (8, 2), *((line, None) for line in range(9, 16))]
        assert [row["line"] for row in found] == sorted(row["line"] for row in found)
        warning, *errors = result.stderr.splitlines()
        assert "10 of 14 lines cannot be answered" in warning
        assert "the first: line 2 is not JSON" in warning
        assert errors == [f"Error: {len(bad)} of {len(found)} answers failed."]
        for (line, _), error in bad.items():
            assert error.startswith(f"line {line}")
            assert error.endswith(".")

        assert good[1, None]["text"] == llm.generate(PROMPT, GREEDY)[0].text
        assert (good[1, None]["id"], good[1, None]["category"]) == (7, "plain")
        assert "other" not in good[1, None]
        assert good[5, None]["text"] == llm.chat(MESSAGES, GREEDY)[0].text

        first = llm.chat(MESSAGES, GREEDY)[0].text
        dialogue = [*MESSAGES, {"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
        assert [good[4, turn]["text"] for turn in (0, 1)] == [first, llm.chat(dialogue, GREEDY)[0].text]
        assert good[4, 1]["id"] == "two"

    def test_text_has_headings_and_errors_go_to_stderr(self, generate: Generate, llm: LLM) -> None:
        result = generate("--prompts", "-", stdin="\n".join(self.LINES[:4]))
        assert result.exit_code == 1
        assert f"--- line 1, id 7, category plain ---\n{llm.generate(PROMPT, GREEDY)[0].text}\n" in result.stdout
        assert "--- line 4, id two, turn 1 ---" in result.stdout
        assert "Error: line 2 is not JSON" in result.stderr
        assert "Error: 1 of 4 answers failed." in result.stderr

    def test_chat_and_system_reach_every_line(self, generate: Generate, llm: LLM) -> None:
        lines = [json.dumps(line) for line in ({"prompt": PROMPT}, {"turns": [PROMPT]}, {"messages": MESSAGES})]
        found = rows(generate("--prompts", "-", "--system", "Be brief.", "--json", stdin="\n".join(lines)))
        messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
        assert [row["text"] for row in found] == [llm.chat(messages, GREEDY)[0].text] * 3

    def test_a_system_message_of_its_own_stays_alone(self, generate: Generate, llm: LLM) -> None:
        messages = [{"role": "system", "content": "Be long."}, *MESSAGES]
        line = json.dumps({"messages": messages})
        (row,) = rows(generate("--prompts", "-", "--system", "Be brief.", "--json", stdin=line))
        assert row["text"] == llm.chat(messages, GREEDY)[0].text

    @pytest.mark.parametrize("batch_size", [1, 2, 16])
    def test_answers_do_not_depend_on_the_batch(self, generate: Generate, tmp_path: Path, batch_size: int) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in ("a b a b", "Hello", "x")), "utf-8")
        found = rows(generate("--prompts", path, "--batch-size", batch_size, "--json"))
        alone = [rows(generate(text, "--json"))[0] for text in ("a b a b", "Hello", "x")]
        assert [row["token_ids"] for row in found] == [row["token_ids"] for row in alone]

    @pytest.mark.parametrize("prompts", [None, 20, 40])
    def test_many_at_once_where_trial_passes_were_cut_short(
        self, tiny_model_dir: Path, tmp_path: Path, prompts: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a busy machine: no pass of more than six rows was timed before they begin."""
        monkeypatch.setattr("headstart.drafting.planning.constants.TRIED_ROWS", (1, 2, 4, 6))
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(f"{json.dumps({'prompt': f'{i} Hello'})}\n" for i in range(prompts or 1)), "utf-8")
        what = ("--prompts", path) if prompts else ("Hello", "-n", 16)
        base = ("generate", "-m", tiny_model_dir, "--precision", "fp32", "--max-tokens", 4, "--batch-size", 64)
        outputs = [
            [row["token_ids"] for row in rows(headstart(*base, *what, "-t", 1, "--seed", 5, "--json", *drafter))]
            for drafter in ((), ("--drafter", "none"))
        ]
        assert outputs[0] == outputs[1]
        assert len(outputs[0]) == (prompts or 1)

    @pytest.mark.parametrize(("content", "named"), [(b"\n \n", "is empty"), (None, "cannot be read")])
    def test_a_file_without_prompts_is_refused(
        self, generate: Generate, tmp_path: Path, content: bytes | None, named: str
    ) -> None:
        path = tmp_path / "prompts.jsonl"
        if content is not None:
            path.write_bytes(content)
        assert named in refusal(generate("--prompts", path))

    def test_what_is_there_is_handed_on_at_ctrl_c(self, generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = LLM.generate

        def interrupted(self: LLM, *args: Any, on_commit: Any, **kwargs: Any) -> list[RequestOutput]:
            def watch(piece: Any) -> None:
                on_commit(piece)
                if piece.prompt_index == 1 and piece.finish_reason is not None:
                    raise KeyboardInterrupt

            return whole(self, *args, on_commit=watch, **kwargs)

        monkeypatch.setattr(LLM, "generate", interrupted)
        lines = "\n".join(json.dumps(line) for line in ({"turns": ["a", "b"]}, {"prompt": "c"}, {"prompt": "d"}))
        result = generate("--prompts", "-", "--json", "--batch-size", 1, stdin=lines)
        assert result.exit_code == 130
        assert [(row["line"], row["finish_reason"]) for row in rows(result)] == [(1, "length"), (2, "length")]


def never(*_: object) -> None:
    """In place of what must not be reached."""
    raise RuntimeError("the weights were asked for")


class TestOptions:
    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What the command has asked the library for."""
        seen: dict[str, Any] = {}

        class Recording(LLM):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                seen.update(kwargs, drafter=self.drafter_name)

            def generate(self, prompts: Any, params: Any = None, **kwargs: Any) -> list[RequestOutput]:
                seen.update(params=params, speculation=kwargs["speculation"])
                return super().generate(prompts, params, **kwargs)

        monkeypatch.setattr(llm_module, "LLM", Recording)
        return seen

    def test_every_sampling_field_arrives(self, generate: Generate, seen: dict[str, Any]) -> None:
        result = generate(
            PROMPT, "--json",
            "--temperature", 0.5, "--top-k", 9, "--top-p", 0.9, "--min-p", 0.01,
            "--repetition-penalty", 1.1, "--presence-penalty", -0.5, "--frequency-penalty", 0.25,
            "--logit-bias", "65=-inf", "--logit-bias", "66=1.5",
            "--allow-token", 66, "--allow-token", 67, "--ban-token", 68,
            "--min-tokens", 3, "--max-tokens", 7, "--stop", "\n", "--stop", "end", "--stop-token", 69,
            "--ignore-eos", "--seed", 11, "--n", 2, "--logprobs", 4,
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        assert seen["params"] == SamplingParams(
            temperature=0.5,
            top_k=9,
            top_p=0.9,
            min_p=0.01,
            repetition_penalty=1.1,
            presence_penalty=-0.5,
            frequency_penalty=0.25,
            logit_bias={65: float("-inf"), 66: 1.5},
            allowed_token_ids=(66, 67),
            banned_token_ids=(68,),
            min_tokens=3,
            max_tokens=7,
            stop=("\n", "end"),
            stop_token_ids=(69,),
            ignore_eos=True,
            seed=11,
            n=2,
            logprobs=4,
        )

    def test_every_setting_of_model_and_speculation_arrives(
        self, generate: Generate, seen: dict[str, Any], tiny_model_dir: Path
    ) -> None:
        result = generate(
            PROMPT, "-q", "--drafter", "multi-draft", "--draft-model", tiny_model_dir, "--draft-precision", "bf16",
            "--draft-tokens", 3, "--tree-nodes", 6, "--verify", "rejection", "--lenience", 0.5,
            "--drafter-option", "branching=[2, 1]", "--drafter-option", "replacement=false",
            "--batch-size", 3, "--max-context", 99,
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        assert seen["speculation"] == SpeculationParams(
            draft_tokens=3, tree_nodes=6, verify=VerifyRule.REJECTION, lenience=0.5
        )
        assert (seen["model"].name, seen["drafter"]) == (str(tiny_model_dir), "multi-draft")
        assert (seen["model"].precision, seen["draft_precision"]) == ("fp32", "bf16")
        assert (seen["draft_model"], seen["draft_tokens"]) == (str(tiny_model_dir), 3)
        assert seen["drafter_options"] == {"branching": [2, 1], "replacement": False}
        assert (seen["max_batch_size"], seen["max_context"]) == (3, 99)

    def test_defaults_are_the_models(self, seen: dict[str, Any], tmp_path: Path) -> None:
        model = write_tiny_model(tmp_path)
        assert headstart("generate", "-m", model, PROMPT).exit_code == 0
        assert seen["params"] == SamplingParams(**MODEST, max_tokens=256)
        assert headstart("generate", "-m", model, PROMPT, "--generation-config", "none").exit_code == 0
        assert seen["params"] == SamplingParams(max_tokens=256)
        (model / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 9}')
        assert headstart("generate", "-m", model, PROMPT).exit_code == 0
        assert seen["params"] == SamplingParams(temperature=0.6, top_p=0.9, max_tokens=9)
        assert headstart("generate", "-m", model, PROMPT, "--temperature", 0, "--max-tokens", 3).exit_code == 0
        assert seen["params"] == SamplingParams(temperature=0, top_p=0.9, max_tokens=3)
        assert seen["speculation"] == SpeculationParams()
        assert seen["drafter"] == DEFAULT_DRAFTER

    def test_no_draft_tokens_is_plain_decoding(self, generate: Generate) -> None:
        (row,) = rows(generate(PROMPT, "--draft-tokens", 0, "--json"))
        assert row["stats"]["drafted"] == 0

    def test_lenience_warns_that_it_is_lossy(self, generate: Generate) -> None:
        result = generate(PROMPT, "--quiet", "--lenience", 0.5)
        (warning,) = result.stderr.splitlines()
        assert "LOSSY" in warning
        assert "LOSSY" in headstart("generate", "--help-all").stdout

    def test_typical_acceptance_warns_where_it_loses_something(self, generate: Generate) -> None:
        (warning,) = generate(PROMPT, "--quiet", "--typical", 0.09, "--temperature", 1).stderr.splitlines()
        assert "--typical is LOSSY" in warning
        assert generate(PROMPT, "--quiet", "--typical", 0.09).stderr == ""

    def test_what_has_no_effect_is_said(self, generate: Generate) -> None:
        assert "--top-p" in generate(PROMPT, "--top-p", 0.5).stderr
        assert "--top-p" not in generate(PROMPT, "--top-p", 0.5, "--temperature", 1).stderr


class TestHints:
    def test_a_drafter_of_no_use_is_named_at_the_end(self, generate: Generate) -> None:
        result = generate(PROMPT, "-d", "random", "--max-tokens", 60, "--ignore-eos")
        hint = result.stderr.splitlines()[-1]
        assert hint.startswith("Hint: random guessed right in ")
        assert hint.endswith("use --drafter auto, which guesses only where that pays.")
        assert "Hint" in generate(PROMPT, "-d", "random", "--max-tokens", 60, "--ignore-eos", "--json").stderr
        assert generate(PROMPT, "-d", "random", "--max-tokens", 60, "--ignore-eos", "-q").stderr == ""
        assert "Hint" not in generate(PROMPT, "-d", "none", "--max-tokens", 60, "--ignore-eos").stderr

    def test_a_draft_model_chooses_who_runs_it(self, tiny_model_dir: Path) -> None:
        arguments = (
            PROMPT,
            "-m",
            tiny_model_dir,
            "--precision",
            "fp32",
            "--max-tokens",
            12,
            "--temperature",
            0,
            "--json",
        )
        (row,) = rows(headstart("generate", *arguments, "--draft-model", tiny_model_dir))
        assert row["stats"]["acceptance_rate"] == 1
        assert "no draft model" in refusal(headstart("generate", *arguments, "-d", "draft-model"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ([PROMPT, "--ban-token", "99999"], "99999"),
            ([PROMPT, "--logit-bias", "-1=2"], "-1"),
            ([PROMPT, "--max-context", "100000"], "max_context"),
            (["a" * MAX_POSITIONS], f"the context holds {MAX_POSITIONS}"),
            ([PROMPT, "--truncate-prompt", "-1", "--max-context", "30"], "truncate_prompt_tokens"),
            ([PROMPT, "--numerics", "exact", "--lenience", "0.5"], "lenience 0.5 is LOSSY, but numerics is 'exact'"),
            ([PROMPT, "--numerics", "exact", "--typical", "0.1", "--temperature", "1"], "typical 0.1 is LOSSY"),
            ([PROMPT, "--lenience", "0.5", "--typical", "0.1"], "lenience is 0.5 and typical 0.1; choose one"),
            ([PROMPT, "--max-tokens", "-5"], "max_tokens is -5"),
            ([PROMPT, "--generation-config", "/no/such"], "generation_config is '/no/such'"),
            ([PROMPT, "--drafter", "eagle3", "--draft-model", "/no/such"], "/no/such"),
        ],
        ids=str,
    )
    def test_what_shows_without_the_weights_is_refused_before_they_are_read(
        self, generate: Generate, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
    ) -> None:
        monkeypatch.setattr("headstart.entrypoints.outline.load_opened", never)
        assert named in refusal(generate(*arguments))

    def test_lines_that_cannot_be_answered_are_named_before_anything_is_loaded(
        self, generate: Generate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headstart.entrypoints.outline.load_opened", never)
        bad = ("no JSON", json.dumps({"prompt": "x" * 600}), json.dumps({"messages": [{"role": "user"}]}))
        sentence = refusal(generate("--prompts", "-", stdin="\n".join(bad)))
        assert "3 of 3 lines cannot be answered; the first: line 1 is not JSON" in sentence
        assert "line 1: the prompt has 600 tokens" in refusal(generate("--prompts", "-", stdin=bad[1]))
        result = generate("--prompts", "-", stdin="\n".join((*bad, json.dumps({"prompt": "good"}))))
        assert result.stderr.startswith("Warning: 3 of 4 lines cannot be answered and will be passed over; the first: ")
        assert "the weights were asked for" in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["--drafter", "clairvoyant"], "'clairvoyant'"),
            (["-m", "/no/such/model"], "/no/such/model"),
            (["--drafter", "ngram", "--draft-model", "smollm2"], "'ngram' runs no model"),
            (["--drafter-option", "depth=3"], "'depth'"),
            (["--drafter", "ngram", "--drafter-option", "max_order=deep"], "'deep'"),
            (["--drafter", "ngram:max_order=deep"], "'deep'"),
            (["--drafter", "ngram:max_order"], "write it as option=value"),
            (["--logit-bias", "99999=1"], "99999"),
            (["--ban-token", "99999"], "99999"),
            (["--temperature", "-1"], "temperature"),
            (["--top-p", "2"], "top_p"),
            (["--min-tokens", "50"], "min_tokens"),
            (["--stop", ""], "stop"),
            (["--seed", "-2"], "seed"),
            (["--lenience", "2"], "lenience"),
            (["--typical", "1"], "typical"),
            (["--max-context", "100000"], "max_context"),
            (["--max-context", "5"], "the context holds 5"),
        ],
    )
    def test_bad_values_are_one_sentence(self, generate: Generate, arguments: list[str], named: str) -> None:
        assert named in refusal(generate(PROMPT, *arguments))

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["--logit-bias", "a=1"], "--logit-bias"),
            (["--logit-bias", "5"], "--logit-bias"),
            (["--drafter-option", "5"], "--drafter-option"),
            (["--batch-size", "0"], "--batch-size"),
            (["--prompts", "x.jsonl"], "PROMPT"),
        ],
    )
    def test_misuse_is_one_sentence(self, generate: Generate, arguments: list[str], named: str) -> None:
        assert named in refusal(generate(PROMPT, *arguments), status=2)

    def test_a_prompt_that_is_too_long(self, generate: Generate) -> None:
        assert f"the context holds {MAX_POSITIONS}" in refusal(generate("a" * MAX_POSITIONS))

    def test_a_prompt_that_is_no_text(self, generate: Generate) -> None:
        assert "not UTF-8" in refusal(generate("-", stdin=b"\xff\xfe"))

    def test_an_empty_prompt_for_a_model_that_cannot_begin(self, generate: Generate, tmp_path: Path) -> None:
        assert generate("").exit_code == 0
        model = write_tiny_model(tmp_path)
        (model / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
        assert "no tokens" in refusal(generate("", "-m", model))

    def test_a_chat_with_a_model_that_does_not_chat(self, generate: Generate, tmp_path: Path) -> None:
        assert "no chat template" in refusal(generate(PROMPT, "--chat", "-m", write_tiny_model(tmp_path, chat=False)))


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"decoder_start_token_id": None, "bos_token_id": None}, ("Hello",), "give a decoder_prompt"),
        ({}, ("x" * 200,), "the encoder reads at most 128"),
        ({}, ("Hello", "--beams", 2, "--n", 3), "more than the 2 beams that are searched"),
        ({}, ("Hello", "--beams", 20), "this engine decodes 16 sequences together"),
        ({}, ("Hello", "--no-repeat-ngram", -1), "no_repeat_ngram_size is -1; it must be 0 (off) or more"),
    ],
)
def test_what_a_model_with_an_encoder_cannot_do_gets_a_sentence(
    changes: dict[str, Any], arguments: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    folder = save_encoder_decoder(make_encoder_decoder("bart", **changes), tmp_path)
    said = headstart("generate", "-m", folder, "-q", "--max-tokens", 4, *arguments)
    assert said.exit_code == 2
    assert message in said.stderr
    assert said.stdout == ""


def test_n_grams_are_barred(tmp_path: Path) -> None:
    folder = save_encoder_decoder(make_encoder_decoder("bart"), tmp_path)
    params = SamplingParams(temperature=0, max_tokens=20, no_repeat_ngram_size=1, encoder_no_repeat_ngram_size=2)
    (expected,) = LLM(folder, "suffix", precision="fp32").generate("Hello", params)
    asked = ("--no-repeat-ngram", 1, "--encoder-no-repeat-ngram", 2, "--temperature", 0, "--max-tokens", 20, "--json")
    (row,) = rows(headstart("generate", "-m", folder, "--precision", "fp32", "-d", "suffix", "Hello", *asked))
    assert row["token_ids"] == expected.token_ids
    assert len(set(expected.token_ids)) == len(expected.token_ids)
