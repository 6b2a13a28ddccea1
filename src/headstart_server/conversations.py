"""Forms of conversations in other APIs: read as a chat, and told as what an answer consists of, event by event."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from headstart.engine.outputs import Completion
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.sampling.params import SamplingParams
from headstart.text.answers.events import Answer, Call, Event, Thought, told
from headstart_server.chats import ChatForm
from headstart_server.conversations_protocol import ConversationBody
from headstart_server.forms import Form


def fields_of(call: Call) -> dict[str, Any]:
    """A call's arguments as an object; what was cut short is told as it is."""
    try:
        found = json.loads(call.arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": call.arguments}


C = TypeVar("C", bound=ConversationBody)


class ConversationForm(Form[C]):
    """A conversation that is answered as the same chat would be."""

    def read(self) -> SamplingParams:
        """As for every form."""
        self.chat = ChatForm(self.body.as_chat(), self.llm, self.settings)
        return self.chat.params

    def make_samples(self, salt: str) -> list[Sample]:
        """As for every form."""
        self.chat.samples = self.chat.make_samples(salt)
        return self.chat.samples

    def events(self, place: int, piece: StreamPiece) -> tuple[list[Event], list[Any]]:
        """What became certain with a piece, and log-probabilities of its tokens where they are wanted."""
        logprobs = self.chat.beside(piece).get("logprobs")
        return self._shown(self.chat.events(place, piece)), [] if logprobs is None else list(logprobs["content"])

    def answer(self, done: Completion) -> tuple[Answer, list[Any]]:
        """The whole answer of the one sample, and log-probabilities of its tokens where they are wanted."""
        return told(self._shown(self.chat.all_events(0, done))), self.chat.logprobs_of(done)

    def _shown(self, events: list[Event]) -> list[Event]:
        """Without thoughts, where they are not to be told."""
        return events if self.chat.tells_thoughts else [each for each in events if not isinstance(each, Thought)]
