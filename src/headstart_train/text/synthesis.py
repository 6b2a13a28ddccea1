"""Text that the target writes itself, through Headstart's own engine (self-synthesis, as in Xu et al. 2024, Magpie,
arXiv:2406.08464: a chat model that is given the user's header writes a question).

A drafter must guess what its target says, in its chat template and at its temperatures; no other text teaches it as
well (Zhou et al. 2024, DistillSpec, arXiv:2310.08461).
A base model, which has no chat template, continues texts instead of answering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt
from headstart.errors import ConfigError, RequestError
from headstart.sampling.params import SamplingParams
from headstart.text.chat import ChatTemplate
from headstart.text.prompt_lines import PromptLine, read_lines
from headstart.text.tokenizer import Tokenizer
from headstart_train.text.corpus import Document

Conversation = Sequence[Mapping[str, Any]]

_QUESTION_TOKENS = 128
_OPENING_TOKENS = 12
"""Sampled at the start of a text that a base model begins itself; without them all greedy texts would be the same."""
_COMMON_TOKENS = 1000
_PLAIN = ChatTemplate("{{ messages[0].content }}")
_MARK = "question"
_ANSWER_MARK = "<the answer>"
_PASSAGE_TOKENS = 240
_TASKS = (
    "Summarize the following text: {passage}",
    "{passage}\n\nWhat is the text above about? Answer in a few sentences.",
    "Translate the following text to {language}: {passage}",
    "Rewrite this text so that a child understands it:\n\n{passage}",
    "List the key points of this text.\n\n{passage}",
    "Use the documents to answer the question.\n\nDocument 1: {passage}\n\nDocument 2: {other}\n\n"
    "Question: What do these documents tell us, and how do they differ?",
    "Continue this text:\n\n{passage}",
    "Extract the names, places and numbers from this text as a list: {passage}",
)
_LANGUAGES = ("German", "French", "Spanish", "English", "Italian")
_OPENINGS = (
    "",
    "",
    "",
    "Who ",
    "When did ",
    "Where ",
    "What is ",
    "Why ",
    "How many ",
    "How do ",
    "Write ",
    "Explain ",
)
"""First words of questions: left to itself, a model asks few kinds of questions, and hardly any short ones."""
_FOLLOW_UPS = (
    "Can you say that again in simpler words?",
    "Rewrite your answer in half as many words.",
    "Give an example.",
    "Turn your answer into a list.",
    "What did you take for granted, and is it true?",
    "Explain it again as if I were five.",
    "Check your answer and correct what is wrong.",
    "Write it again as JSON.",
    "Start every sentence with the same letter.",
    "Why does it matter?",
    "What would change if the opposite were true?",
    "Go on.",
)


def encode_asked(llm: LLM, conversation: Conversation) -> EncodedPrompt:
    """What the target answers: a conversation in its chat template or, without one, the first message as plain text.

    Raises:
        RequestError: it cannot be rendered.
    """
    if llm.model.chat_template.available:
        return llm.encode_chat(conversation)
    return llm.encode(_PLAIN.render(conversation))


def begin_texts(llm: LLM, count: int, seed: int, after: int = 0) -> list[EncodedPrompt]:
    """Openings of texts that the target begins unasked: a few tokens at temperature 1. ``after``: how many it began
    before.

    It starts from its begin-of-sequence token; if it has none, from an end-of-sequence token, which separated the
    documents that it was trained on; without either, from a common word or a part of one.
    """
    if count == 0:
        return []
    model = llm.model
    marks = [model.config.bos_token_id, *model.eos_token_ids]
    start = llm.encode("").token_ids or [mark for mark in marks if mark is not None][:1]
    if start:
        starts = [start] * count
    else:
        random = np.random.default_rng([seed, 2])
        starts = [[int(each)] for each in random.choice(_common_words(model.tokenizer), after + count)[after:]]
    numbers = range(after, after + count)
    params = [SamplingParams(temperature=1.0, max_tokens=_OPENING_TOKENS, seed=seed + i) for i in numbers]
    ends = set(model.eos_token_ids)
    openings = []
    for output in llm.generate(starts, params):
        said = output.outputs[0].token_ids
        openings.append(llm.encode([*output.prompt_token_ids, *(token for token in said if token not in ends)]))
    return openings


def _common_words(tokenizer: Tokenizer) -> list[int]:
    """Tokens of letters alone, the lowest ids first: vocabularies begin with what is most frequent.

    Raises:
        ConfigError: there is none.
    """
    words = (token for token in range(tokenizer.vocab_size) if tokenizer.token_text(token).strip().isalpha())
    common = list(islice(words, _COMMON_TOKENS))
    if not common:
        raise ConfigError(f"the tokenizer {tokenizer.name!r} has no token that a text could begin with; give prompts.")
    return common


def ask(llm: LLM, count: int, seed: int, after: int = 0) -> list[list[dict[str, str]]]:
    """Questions that the target makes up, each as a conversation of one message; most begin with a word or two that it
    is given. ``after``: how many it made up before.

    Raises:
        ConfigError: the chat template does not show the user's message.
        RequestError: it has no chat template.
    """
    if count == 0:
        return []
    text = llm.model.chat_template.render([{"role": "user", "content": _MARK}], add_generation_prompt=False)
    header, found, _ = text.rpartition(_MARK)
    if not found:
        raise ConfigError(f"the chat template of {llm.model.name!r} hides the user's message, so it cannot ask itself.")
    numbers = range(after, after + count)
    openings = [_OPENINGS[i % len(_OPENINGS)] for i in numbers]
    prompts = [
        EncodedPrompt(begun, llm.model.tokenizer.encode(begun, add_special_tokens=False))
        for begun in (header + opening for opening in openings)
    ]
    # Temperature 1: the more questions differ, the more they teach.
    params = [SamplingParams(temperature=1.0, max_tokens=_QUESTION_TOKENS, seed=seed + i) for i in numbers]
    said = [output.outputs[0].text for output in llm.generate(prompts, params)]
    questions = [(opening + text).strip() for opening, text in zip(openings, said, strict=True)]
    return [[{"role": "user", "content": question or _MARK}] for question in questions]


def follow_up(llm: LLM, documents: Sequence[Document], count: int, seed: int) -> list[EncodedPrompt]:
    """Conversations with a second question; none if the template does not show answers."""
    random = np.random.default_rng([seed, count, 1])
    ends = set(llm.model.eos_token_ids)
    prompts = []
    for _ in range(count):
        document = documents[int(random.integers(len(documents)))]
        said = document.tokens.tolist()
        if said[-1] in ends:
            said.pop()
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _ANSWER_MARK},
            {"role": "user", "content": _FOLLOW_UPS[random.integers(len(_FOLLOW_UPS))]},
        ]
        _, shown, tail = llm.model.chat_template.render(messages).rpartition(_ANSWER_MARK)
        if not shown:
            return []
        tokens = [*said, *llm.model.tokenizer.encode(tail, add_special_tokens=False)]
        prompts.append(EncodedPrompt(llm.model.tokenizer.decode(tokens), tokens))
    return prompts


def task(llm: LLM, documents: Sequence[Document], count: int, seed: int) -> list[list[dict[str, str]]]:
    """Tasks on passages of answers, each as a conversation of one message; none where there are none."""
    if not documents:
        return []
    random = np.random.default_rng([seed, count])

    def passage() -> str:
        document = documents[int(random.integers(len(documents)))]
        return llm.model.tokenizer.decode(document.tokens[document.answers][:_PASSAGE_TOKENS].tolist()).strip()

    tasks = []
    for _ in range(count):
        form, language = _TASKS[random.integers(len(_TASKS))], _LANGUAGES[random.integers(len(_LANGUAGES))]
        tasks.append([{"role": "user", "content": form.format(passage=passage(), other=passage(), language=language)}])
    return tasks


def answer(
    llm: LLM,
    prompts: Sequence[EncodedPrompt],
    temperatures: Sequence[float],
    max_tokens: int,
    seed: int,
    after: int = 0,
) -> list[Document]:
    """The target's answers behind their prompts; a prompt that is too long stays alone. ``after``: how many were
    answered before."""
    params = [
        SamplingParams(temperature=temperatures[i % len(temperatures)], max_tokens=max_tokens, seed=seed + i)
        for i in range(after, after + len(prompts))
    ]
    documents = []
    for output in llm.generate(prompts, params, strict=False):
        said = output.outputs[0].token_ids
        tokens = np.asarray([*output.prompt_token_ids, *said], dtype=np.int32)
        documents.append(Document(tokens, np.arange(len(tokens)) >= len(output.prompt_token_ids)))
    return documents


def read_conversations(path: Path, chats: bool = True) -> list[list[dict[str, Any]]]:
    """The conversations of a JSONL file (``text.prompt_lines``): ``messages`` as they are, else a user's first text.

    ``chats``: whether the target has a chat template, which several messages need.

    Raises:
        ConfigError: the file cannot be read or is empty, or a line asks nothing or has messages that need a template.
    """
    return [_conversation(line, f"{path}, line {line.number},", chats) for line in read_lines(path)]


def _conversation(line: PromptLine, where: str, chats: bool) -> list[dict[str, Any]]:
    if line.error is not None:
        raise ConfigError(f"{where} {line.error}")
    try:
        messages = line.messages() if "messages" in line.forms else [{"role": "user", "content": line.texts()[0]}]
        if not chats and len(messages) > 1:
            raise RequestError(
                f"has {len(messages)} messages, but the model has no chat template to read them in; "
                "give one text as prompt."
            )
    except RequestError as error:
        raise ConfigError(f"{where} {error}") from error
    return messages
