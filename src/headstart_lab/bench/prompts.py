"""Prompts in Spec-Bench's form or SPEED-Bench's, and how they become tokens.

A line is ``{"id": ..., "category": ..., "turns": [...]}`` (Xia et al. 2024, Spec-Bench, arXiv:2401.07851): what a user
says one after the other; a single ``prompt`` or ``question`` stands for one turn. MT-bench's eight categories are one
group, as in Spec-Bench's tables.

SPEED-Bench (NVIDIA 2026, huggingface.co/datasets/nvidia/SPEED-Bench) has the same fields and some of its own, by which
it is known. Each of its eleven categories, or in its throughput files of three entropies, is a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from headstart.errors import ConfigError, RequestError
from headstart.loading.model import Model
from headstart.text.prompt_lines import PromptLine, parse_lines, read_lines

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
GROUPS = {**dict.fromkeys(CHAT, "chat"), "math_reasoning": "math"}
"""Category -> group, where they differ."""
_SPEED_BENCH = {"src_id", "sub_category", "difficulty", "multiturn"}
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""What the published SPEED-Bench files have for texts whose licence forbids to pass them on."""


@dataclass(frozen=True)
class BenchPrompt:
    """A conversation of one or more user turns."""

    id: str
    category: str
    turns: tuple[str, ...]
    alone: bool = False
    """Its category is a group of its own."""

    @property
    def group(self) -> str:
        """What its figures are averaged with."""
        return self.category if self.alone else GROUPS.get(self.category, self.category)


def read_prompts(path: Path | None = None) -> list[BenchPrompt]:
    """The prompts of a JSONL file; None: those that come with Headstart, four in each of six groups.

    Raises:
        ConfigError: the file cannot be read, has no line, or a line is not in Spec-Bench's form.
    """
    if path is None:
        name = "the prompts of the package"
        lines = parse_lines((files(__package__) / "prompts.jsonl").read_bytes(), name)
    else:
        _refuse_parquet(path)
        name, lines = f"prompts file {path}", read_lines(path)
    prompts = [_prompt(line, name) for line in lines]
    repeated = [each for each, times in Counter(prompt.id for prompt in prompts).items() if times > 1]
    if repeated:
        raise ConfigError(f"{name} uses id {min(repeated)!r} more than once; give each prompt its own.")
    return prompts


def choose(prompts: Sequence[BenchPrompt], per_group: int | None) -> list[BenchPrompt]:
    """``per_group`` prompts of each group, evenly spread over it (and so over its categories); None: all."""
    if per_group is None:
        return list(prompts)
    chosen: set[str] = set()
    for group in groups_of(prompts):
        members = [prompt.id for prompt in prompts if prompt.group == group]
        count = min(per_group, len(members))
        chosen.update(members[i * len(members) // count] for i in range(count))
    return [prompt for prompt in prompts if prompt.id in chosen]


def groups_of(prompts: Iterable[BenchPrompt]) -> list[str]:
    """The groups in the order of their first prompt."""
    return list(dict.fromkeys(prompt.group for prompt in prompts))


def by_turns_of_groups(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """All of them, the first of each group first, then the second of each: wherever one stops, all groups had their
    turn."""
    members = [[prompt for prompt in prompts if prompt.group == group] for group in groups_of(prompts)]
    return [prompt for turn in zip_longest(*members) for prompt in turn if prompt is not None]


def encode_turns(model: Model, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
    """Token ids of a conversation up to where the model speaks: ``turns`` is one longer than ``answers``.

    Through the chat template; a model without one reads the turns and answers as paragraphs.

    Raises:
        RequestError: the template cannot render it.
    """
    said = [text for pair in zip(turns, (*answers, ""), strict=True) for text in pair][:-1]
    if not model.chat_template.available:
        return model.tokenizer.for_encoder.encode("\n\n".join(said))
    messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
    return model.tokenizer.encode(model.chat_template.render(messages), add_special_tokens=False)


def _prompt(line: PromptLine, name: str) -> BenchPrompt:
    where = f"line {line.number} of {name}"
    if line.error is not None:
        raise ConfigError(f"{where} {line.error}")
    try:
        turns = line.texts()
    except RequestError:
        turns = []
    if any(_PLACEHOLDER in turn for turn in turns):
        raise ConfigError(
            f"{where} has SPEED-Bench's placeholder in place of a text; give the file that its prepare.py writes (the "
            "data set's card says how)."
        )
    # Spec-Bench itself says question_id.
    match {"id": line.fields.get("question_id"), **line.fields}:
        case {"id": str() | int() as prompt_id, "category": str(category)} if turns and all(turns):
            return BenchPrompt(str(prompt_id), category, tuple(turns), line.fields.keys() >= _SPEED_BENCH)
    raise ConfigError(
        f"{where} needs an id (or question_id), a category and turns (a list of texts, at least one), prompt or "
        "question."
    )


def _refuse_parquet(path: Path) -> None:
    """The form in which data sets are downloaded."""
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
    except OSError:
        return  # Whoever reads the lines says why.
    if parquet:
        raise ConfigError(
            f"prompts file {path} is Parquet; write its rows as JSON lines, as with pandas: "
            "read_parquet(FILE).to_json(OUT, orient='records', lines=True)."
        )
