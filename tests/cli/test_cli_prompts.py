"""Prompts files of the command line: what may stand beside a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstart.cli.prompts import Conversation, read_prompts


class Reader:
    """Keeps what it is asked to encode."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def encode(self, prompt: Any) -> Any:
        self.seen.append(prompt)
        return prompt


def read(tmp_path: Path, **fields: Any) -> Conversation:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(fields) + "\n", encoding="utf-8")
    (conversation,) = read_prompts(str(path), chat=False, system=None)
    return conversation


@pytest.mark.parametrize(
    "beside",
    [{}, {"decoder_prompt": "x"}, {"src_lang": "de"}, {"src_lang": "de", "tgt_lang": "fr", "decoder_prompt": "x"}],
)
def test_what_stands_beside_a_text_goes_with_it(beside: dict[str, str], tmp_path: Path) -> None:
    reader = Reader()
    read(tmp_path, prompt="Hallo", **beside).request(reader, 0)  # type: ignore[arg-type]
    assert reader.seen == ([{"encoder_prompt": "Hallo", **beside}] if beside else ["Hallo"])


@pytest.mark.parametrize("name", ["decoder_prompt", "src_lang", "tgt_lang"])
def test_what_is_no_text_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, prompt="Hallo", **{name: 7}).error == f"line 1 has a {name} that is no text; give a text."
