"""A tokenizer with its model's chat template, under the names that transformers has for what the two do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.errors import RequestError
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer


class ChatTokenizer(Tokenizer):
    """The tokenizer of a loaded model, as ``LLM.get_tokenizer`` hands it out."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        # One vocabulary, read once: what the two know of it is shared.
        vars(self).update(vars(tokenizer))
        self._template = template

    @property
    def chat_template(self) -> str | None:
        """The template's own text; None: the model does not chat."""
        return self._template.default

    @property
    def eos_token_id(self) -> int | None:
        """What ends a sequence, the first where there are several (``eos_token_ids``); None: nothing does."""
        return (
            self._id_of("eos_token") if self._id_of("eos_token") is not None else next(iter(self.eos_token_ids), None)
        )

    @property
    def eos_token(self) -> str | None:
        """The spelling of ``eos_token_id``."""
        return None if self.eos_token_id is None else self.convert_ids_to_tokens(self.eos_token_id)

    @property
    def bos_token(self) -> str | None:
        """What a text begins with; None: nothing special."""
        return self.special_tokens.get("bos_token")

    @property
    def pad_token(self) -> str | None:
        """What fills up the rows of a batch elsewhere; None: the model names none."""
        return self.special_tokens.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of ``pad_token``."""
        return self._id_of("pad_token")

    @property
    def all_special_ids(self) -> list[int]:
        """Tokens that mark structure."""
        return sorted(self.special_ids)

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """``input_ids`` and ``attention_mask`` of one text.

        Raises:
            RequestError: as ``encode``.
        """
        ids = self.encode(text, add_special_tokens)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def get_vocab(self) -> dict[str, int]:
        """Every token's spelling -> id."""
        return dict(self.vocabulary)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or of each in a list; None for what is no token."""
        return (
            self.vocabulary.get(tokens) if isinstance(tokens, str) else [self.vocabulary.get(each) for each in tokens]
        )

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """The spelling of a token in the vocabulary, or of each in a list; None for an id that no token has."""
        if isinstance(ids, int):
            return self._backend.id_to_token(ids) if 0 <= ids < 1 << 32 else None
        return [self.convert_ids_to_tokens(each) for each in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """A conversation as the model was trained on it: token ids, or the text if not ``tokenize``.

        ``chat_template``: another template, as text. ``variables``: what else the template knows; ``padding``,
        ``truncation``, ``return_tensors`` and ``return_dict`` are taken where they ask for nothing.

        Raises:
            RequestError: there is no template, or it cannot render these messages.
        """
        for name in ("padding", "truncation", "return_tensors", "return_dict", "max_length"):
            if variables.pop(name, None):
                raise RequestError(f"{name} is given, but token ids are returned as a list; leave it out.", name)
        template = self._template if chat_template is None else ChatTemplate(chat_template, self.special_tokens)
        text = template.render(conversation, tools, add_generation_prompt, continue_final_message, variables)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _id_of(self, role: str) -> int | None:
        spelling = self.special_tokens.get(role)
        found: int | None = None if spelling is None else self._backend.token_to_id(spelling)
        return found
