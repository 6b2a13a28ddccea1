"""What bodies have in common that are a chat in another API's form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from headstart.errors import RequestError
from headstart_server.chat_protocol import ChatBody
from headstart_server.protocol import GenerationBody


class ConversationBody(GenerationBody):
    """A conversation in another API's form; the fields of the other routes may stand beside its own."""

    @abstractmethod
    def as_chat(self) -> ChatBody:
        """The same request as a chat.

        Raises:
            RequestError: it asks for what this server does not have.
        """

    def chat(self, fields: Mapping[str, Any]) -> ChatBody:
        """A chat of these fields, but those that are None, and of what this body shares with chats.

        Raises:
            RequestError: a field has a value that it cannot have.
        """
        shared = {name: getattr(self, name) for name in GenerationBody.model_fields if name in self.model_fields_set}
        shared.pop("stream_options", None)
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            return ChatBody.model_validate({**(self.model_extra or {}), **shared, **given})
        except ValidationError as error:
            complaint = error.errors(include_url=False)[0]
            field = self.own_name(".".join(map(str, complaint["loc"])))
            raise RequestError(f"{field}: {complaint['msg']}.", field) from None
