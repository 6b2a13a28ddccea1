"""Routes in the forms of other APIs than OpenAI's: Anthropic's, Ollama's, llama.cpp's and Mistral's."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, HTTPException, Request, Response

from headstart.errors import RequestError
from headstart_server import client_schemas, ollama_lists
from headstart_server.infill import FimForm, InfillForm
from headstart_server.infill_protocol import FimBody, InfillBody
from headstart_server.json_body import JsonRoute
from headstart_server.messages import MessageForm
from headstart_server.messages_protocol import CountTokensBody, MessagesBody
from headstart_server.models import Models
from headstart_server.ollama import OllamaChatForm, OllamaGenerateForm, now
from headstart_server.ollama_protocol import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaShowBody
from headstart_server.protocol import SlotBody
from headstart_server.replies import Reply
from headstart_server.routes import GENERATION, OF_A_MODEL, Here, Named, answer, answers
from headstart_server.schemas import ChatReply

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/messages",
    response_model=None,
    tags=["Anthropic"],
    responses=answers(
        client_schemas.MessageReply,
        "The message; with `stream`, server-sent events from `message_start` to `message_stop`.",
        *GENERATION,
        stream=True,
        error=client_schemas.AnthropicError,
    ),
)
async def messages(body: MessagesBody, request: Request, here: Here) -> Response:
    """Answer a conversation in the form of Anthropic's API."""
    return await answer(MessageForm, body, request, here)


@router.post(
    "/v1/messages/count_tokens",
    response_model=None,
    tags=["Anthropic"],
    responses=answers(
        client_schemas.CountReply,
        "How many tokens the conversation takes.",
        *(400, 413, *OF_A_MODEL),
        error=client_schemas.AnthropicError,
    ),
)
async def count_tokens(body: CountTokensBody, request: Request, here: Here) -> Response:
    """How many tokens a conversation takes, in the form of Anthropic's API."""
    chat = body.as_chat()
    llm = (await here.held(body.model, request)).llm
    tools = None if chat.tool_choice == "none" else chat.shown_tools()
    prompt = await asyncio.to_thread(llm.encode_chat, chat.messages, tools, chat.template_variables())
    return Reply({"input_tokens": len(prompt.token_ids)})


async def _loaded(body: OllamaBody, request: Request, here: Models) -> str:
    """Load the model that a request without a prompt names, or unload it; its name."""
    served = await here.held(body.model, request, body.keep_alive)
    return served.settings.served_name


def _of_loading(body: OllamaBody, name: str) -> dict[str, object]:
    reason = "unload" if body.keep_alive == 0 else "load"
    return {"model": name, "created_at": now(), "done": True, "done_reason": reason}


@router.post(
    "/api/chat",
    response_model=None,
    tags=["Ollama"],
    responses=answers(
        client_schemas.OllamaChatReply,
        "The answer; unless `stream` is false, objects of the same form, one a line. Without messages the model is "
        "loaded, or unloaded if `keep_alive` is 0.",
        *GENERATION,
        error=client_schemas.OllamaError,
    ),
)
async def ollama_chat(body: OllamaChatBody, request: Request, here: Here) -> Response:
    """Answer a conversation in the form of Ollama's API."""
    if not body.messages:
        name = await _loaded(body, request, here)
        return Reply(_of_loading(body, name) | {"message": {"role": "assistant", "content": ""}})
    return await answer(OllamaChatForm, body, request, here, body.keep_alive)


@router.post(
    "/api/generate",
    response_model=None,
    tags=["Ollama"],
    responses=answers(
        client_schemas.OllamaGenerateReply,
        "The text; unless `stream` is false, objects of the same form, one a line. Without a prompt the model is "
        "loaded, or unloaded if `keep_alive` is 0.",
        *GENERATION,
        error=client_schemas.OllamaError,
    ),
)
async def ollama_generate(body: OllamaGenerateBody, request: Request, here: Here) -> Response:
    """Answer a prompt, continue a text or fill one in, in the form of Ollama's API."""
    if not body.prompt and not body.suffix:
        return Reply(_of_loading(body, await _loaded(body, request, here)) | {"response": ""})
    return await answer(OllamaGenerateForm, body, request, here, body.keep_alive)


@router.get(
    "/api/tags",
    response_model=None,
    tags=["Ollama"],
    responses=answers(client_schemas.OllamaTags, "All models.", error=client_schemas.OllamaError),
)
async def ollama_tags(here: Here) -> Response:
    """The models that are served, in the form of Ollama's API."""
    return Reply(await asyncio.to_thread(ollama_lists.tags, here.listed()))


@router.get(
    "/api/ps",
    response_model=None,
    tags=["Ollama"],
    responses=answers(client_schemas.OllamaTags, "The models that are loaded.", error=client_schemas.OllamaError),
)
async def ollama_running(here: Here) -> Response:
    """The models that are loaded, in the form of Ollama's API."""
    return Reply(await asyncio.to_thread(ollama_lists.running, here.listed()))


@router.post(
    "/api/show",
    response_model=None,
    tags=["Ollama"],
    responses=answers(
        client_schemas.OllamaShow, "What is known of it.", 400, 404, 413, 503, error=client_schemas.OllamaError
    ),
)
async def ollama_show(body: OllamaShowBody, here: Here) -> Response:
    """What is known of a model, loaded or not, in the form of Ollama's API."""
    listed = here.known(body.model or body.name)
    return Reply(await asyncio.to_thread(ollama_lists.shown, listed, bool(body.verbose)))


@router.get(
    "/api/version",
    response_model=None,
    tags=["Ollama"],
    responses=answers(client_schemas.OllamaVersion, "The versions.", error=client_schemas.OllamaError),
)
async def ollama_version() -> Response:
    """The version of Ollama's API that is spoken here, and Headstart's own."""
    return Reply({"version": ollama_lists.VERSION, "headstart": version("headstart")})


@router.post(
    "/infill",
    response_model=None,
    tags=["infill"],
    responses=answers(
        client_schemas.InfillReply,
        "The text; with `stream`, server-sent events of the same form, the last with `stop` true.",
        *GENERATION,
        stream=True,
    ),
)
async def infill(body: InfillBody, request: Request, here: Here) -> Response:
    """Fill in a text in the form of llama.cpp's server, with a model whose tokenizer has tokens for it."""
    return await answer(InfillForm, body, request, here)


@router.post(
    "/v1/fim/completions",
    response_model=None,
    tags=["infill"],
    responses=answers(
        ChatReply, "The texts; with `stream`, server-sent events, ended by `[DONE]`.", *GENERATION, stream=True
    ),
)
async def fim_completions(body: FimBody, request: Request, here: Here) -> Response:
    """Fill in a text in the form of Mistral's API, with a model whose tokenizer has tokens for it."""
    return await answer(FimForm, body, request, here)


@router.get(
    "/slots",
    response_model=None,
    tags=["slots"],
    responses=answers(list[client_schemas.SlotState], "The slots of this key.", *OF_A_MODEL),
)
async def slots(request: Request, here: Here, model: Named = None, fail_on_no_slot: int = 0) -> Response:
    """What llama.cpp's server tells of its slots. Here a slot is the last request of its number."""
    served = await here.held(model, request)
    now = served.engine.gauges()
    if fail_on_no_slot and now["vllm:num_requests_running"] >= served.llm.engine.limits.max_sequences:
        raise HTTPException(503, "all slots are at work; try again later.")
    return Reply(served.generator.slots.told(request))


@router.post(
    "/slots/{id_slot}",
    response_model=None,
    tags=["slots"],
    responses=answers(client_schemas.SlotReply, "What was done.", 400, 413, *OF_A_MODEL, 501),
)
async def slot(id_slot: int, request: Request, here: Here, action: str = "", body: SlotBody | None = None) -> Response:
    """Save what the cache holds of a slot's text to a file (`action=save`), let requests find there what a file holds
    (`restore`), or forget a slot (`erase`), in the form of llama.cpp's server."""
    told = body or SlotBody()
    kept = (await here.held(told.model, request)).generator.slots
    match action:
        case "erase":
            return Reply(await kept.erase(id_slot, request))
        case "save" | "restore" if told.filename is None:
            raise RequestError("filename is missing; give the file's name.", "filename")
        case "save":
            return Reply(await kept.save(id_slot, str(told.filename), request))
        case "restore":
            return Reply(await kept.restore(id_slot, str(told.filename), request))
    raise RequestError(f"action is {action!r:.40}; it is save, restore or erase.", "action")
