"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: what a recording says, by a model that hears it."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from headstart_server.models import Models
from headstart_server.routes import GENERATION, Here, SizedRouter, answers
from headstart_speech.enumerations import SpeechTask, TranscriptFormat
from headstart_speech.server import schemas
from headstart_speech.server.transcriptions import GRANULARITIES, SAMPLING, transcribed


class RecordingRouter(SizedRouter):
    """Bodies are read where a model may read audio."""

    def body_limit(self, models: Models) -> int:
        """See ``SizedRouter``."""
        if models.only is not None:
            encoder = models.only.llm.model.config.encoder
            if encoder is None or encoder.mel_bins is None:
                return 0
        return models.settings.max_audio_bytes


def _form(task: SpeechTask) -> dict[str, Any]:
    """The body, for the OpenAPI document."""
    texts = {
        "model": "",
        "language": "What is spoken, as de; left out: the model's choice.",
        "prompt": "A text that came before: names and spellings are taken over from it.",
    }
    kinds: dict[Any, str] = {float: "number", int: "integer"}
    properties: dict[str, Any] = {
        "file": {"type": "string", "format": "binary", "description": "WAV, FLAC, Ogg or MP3."},
        **{name: {"type": "string", **({"description": said} if said else {})} for name, said in texts.items()},
        "response_format": {"type": "string", "enum": list(TranscriptFormat)},
        "stream": {"type": "boolean", "description": "json and text: server-sent events, as the text comes."},
        **{name: {"type": kinds[kind]} for name, kind in SAMPLING.items()},
    }
    if task is SpeechTask.TRANSCRIBE:
        properties["timestamp_granularities[]"] = {
            "type": "array",
            "items": {"type": "string", "enum": list(GRANULARITIES)},
            "description": "With verbose_json: times of what is shown; left out: of segments.",
        }
    schema = {"type": "object", "required": ["file"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


router = RecordingRouter()


@router.post(
    "/v1/audio/transcriptions",
    response_model=None,
    tags=["generation"],
    responses=answers(
        schemas.TranscriptionReply,
        "What the recording says; with `stream`, server-sent events: `transcript.text.delta`, `transcript.text.done`.",
        *GENERATION,
        stream=True,
    ),
    openapi_extra=_form(SpeechTask.TRANSCRIBE),
)
async def transcriptions(request: Request, here: Here) -> Response:
    """Write down what a recording says, with a model whose encoder reads audio."""
    return await transcribed(SpeechTask.TRANSCRIBE, request, here)


@router.post(
    "/v1/audio/translations",
    response_model=None,
    tags=["generation"],
    responses=answers(
        schemas.TranscriptionReply,
        "What the recording says, in English; with `stream` as for transcriptions.",
        *GENERATION,
        stream=True,
    ),
    openapi_extra=_form(SpeechTask.TRANSLATE),
)
async def translations(request: Request, here: Here) -> Response:
    """Write down in English what a recording says, with a model that hears several languages."""
    return await transcribed(SpeechTask.TRANSLATE, request, here)
