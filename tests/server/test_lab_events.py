"""What the lab page is told of tokens that hold but a part of a character."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from small_tokenizers import byte_level

from headstart.engine.outputs import FinishReason, TokenOrigin
from headstart.engine.trace import RoundTrace, TracedNode
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.passes.draft_tree import ROOT
from headstart_lab.page.events import LabEvents

TOKENIZER = byte_level("")


def told(text: str, cut: int = 0) -> list[dict[str, Any]]:
    """The tokens of a text's bytes less the last ``cut``, each a round of its own; the guesses were right."""
    ids = TOKENIZER.encode(text)
    ids = ids[: len(ids) - cut]
    sequence = SimpleNamespace(tokens=[], prompt_length=0, stats=SimpleNamespace(prompt_tokens=0))
    events = LabEvents(cast(Sample, SimpleNamespace(sequence=sequence)), "suffix", TOKENIZER)
    rounds = [
        RoundTrace(token, (), (), TracedNode(token, ROOT, 1.0, 1.0), 0.1 * place, 0.0, 0.1)
        for place, token in enumerate(ids)
    ]
    piece = StreamPiece(
        "",
        ids,
        [TokenOrigin.PLAIN] * len(ids),
        [None] * len(ids),
        rounds=rounds,
        finish_reason=FinishReason.LENGTH,
    )
    seen = list(events.of(piece))
    assert [each["answer"]["label"] for each in seen] == [each["tokens"][0]["label"] for each in seen]
    return [token for each in seen for token in each["tokens"]]


def test_a_token_inside_of_a_character_says_so_and_names_its_bytes() -> None:
    tokens = told("a你🎉")
    assert [token["text"] for token in tokens] == ["a", "", "", "你", "", "", "", "🎉"]
    assert [token["part"] for token in tokens] == [False, True, True, False, True, True, True, False]
    assert [token["label"] for token in tokens[:4]] == ["a", "\\xe4", "\\xbd", "\\xa0"]


def test_a_character_that_stays_a_part_is_marked_in_the_end() -> None:
    *_, last = told("a🎉", cut=1)
    assert (last["text"], last["part"]) == ("\ufffd", False)
