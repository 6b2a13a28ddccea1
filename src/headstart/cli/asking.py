"""What the options of ``generate`` and ``chat`` ask for: a model to load, and how it is to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.option_groups import Only
from headstart.common.enumerations import CacheType, Numerics, named
from headstart.entrypoints.engine_options import EngineOptions
from headstart.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from headstart.cli.progress import Activity
    from headstart.cli.prompts import Conversation
    from headstart.drafting.base import SpeculationParams
    from headstart.engine.schedule import Limits
    from headstart.entrypoints.llm import LLM
    from headstart.entrypoints.outline import Outline
    from headstart.sampling.params import SamplingParams

MAX_TOKENS = 256
"""Most output tokens, where neither the command nor the model says."""


READING = ("revision", "precision", "device", "backend", "trust_remote_code", "lora", "cuda_graphs")
"""How a model is read that a command measures."""
Measured = Annotated[EngineOptions, Only("model", *READING)]
Named = Annotated[EngineOptions, Only("model", "revision")]
"""A model of which the weights or the configuration are wanted."""


@dataclass(frozen=True)
class Asked:
    """A model, how it is to be run, and how it is to answer."""

    engine: EngineOptions
    sampling: Mapping[str, Any]
    """Fields of ``SamplingParams`` that were given."""

    def checked(self, conversations: Sequence[Conversation] = ()) -> tuple[SamplingParams, SpeculationParams, Outline]:
        """What the options come to, and what was read of the model for it. Everything that can be refused without the
        model's weights is refused here; a conversation that cannot be answered gets its ``error``, unless it is the
        command line's own.

        Raises:
            ConfigError, RequestError, CheckpointError: naming it.
        """
        from headstart.engine.schedule import Limits
        from headstart.entrypoints.outline import Outline, context_length, source_length
        from headstart.entrypoints.request import require_lossless
        from headstart.sampling.params import SamplingParams

        engine = self.engine
        SamplingParams(**self.sampling)
        speculation = engine.requests_speculation()
        engine.check()
        outline = Outline.open(str(engine.model), engine.revision, engine.generation_config, engine.reading)
        params = outline.sampling_defaults.params(self.sampling, {"max_tokens": MAX_TOKENS})
        params.check_vocabulary(outline.config.vocab_size)
        require_lossless(named(Numerics, "numerics", engine.numerics), speculation, params)
        context = context_length(outline.config, engine.max_context)
        limits = Limits(max_context=context, max_source=source_length(outline.config, context))
        for conversation in conversations:
            _check_prompt(conversation, outline, params, limits)
        return params, speculation, outline

    def load(self, activity: Activity, outline: Outline) -> LLM:
        """The model with its drafter; ``activity`` shows what is being done."""
        from headstart.common import phases
        from headstart.entrypoints.llm import LLM

        with phases.heard(activity.phase):
            with phases.phase(f"Loading {self.engine.model}"):
                model = outline.load(self.engine.precision, self.engine.device)
            llm = LLM.from_options(self.engine.changed(model=model))
            if len(llm.adapters) == 1:  # here nobody else could name it
                llm = llm.adapted(*llm.adapters)
        activity.stop()
        for sentence in (*llm.notices, llm.memory.sentence()):
            activity.say(sentence)
        return llm


def require_template(engine: EngineOptions) -> None:
    """Refuse, before anything heavy is imported, to converse with a model that has no chat template and is given none.

    Raises:
        CheckpointError, ConfigError: naming it, and what to do instead.
    """
    from headstart.models.locating import locate, require_model
    from headstart.text.template_files import brings_template, given_template, no_template

    if engine.chat_template is not None:
        given_template(str(engine.chat_template))
        return
    name = str(engine.model)
    path = locate(name, engine.revision)
    require_model(path)
    if not brings_template(path):
        raise ConfigError(no_template(name))


def warn_of_losses(engine: EngineOptions, speculation: SpeculationParams, params: SamplingParams) -> None:
    """Say on stderr that the output will not be the target's own."""
    cache = None if engine.cache_type == CacheType.AUTO else "cache-type"
    for lossy in filter(None, (speculation.lossy_for(params), cache)):
        typer.echo(f"Warning: --{lossy} is LOSSY; the output no longer follows the target's own law.", err=True)


def _check_prompt(conversation: Conversation, outline: Outline, params: SamplingParams, limits: Limits) -> None:
    """The first turn of a conversation, without adding it."""
    from headstart.engine.servable import require_fit, require_source_fit

    if conversation.error is not None:
        return
    try:
        prompt = deepcopy(conversation).request(outline, 0).cut(params, limits.max_context, limits.max_source)
        require_fit(len(prompt.token_ids), limits.max_context)
        require_source_fit(prompt.source, limits)
    except RequestError as error:
        if conversation.line is None:
            raise
        conversation.error = f"line {conversation.line}: {error}"


def refuse_if_none(conversations: Sequence[Conversation], quiet: bool) -> None:
    """Say before anything slow is done which lines of a prompts file cannot be answered.

    Raises:
        RequestError: none of them can.
    """
    errors = [conversation.error for conversation in conversations if conversation.error is not None]
    if not errors:
        return
    count = f"{len(errors)} of {len(conversations)} lines cannot be answered"
    if len(errors) == len(conversations):
        raise RequestError(errors[0] if len(errors) == 1 else f"{count}; the first: {errors[0]}")
    if not quiet:
        typer.echo(f"Warning: {count} and will be passed over; the first: {errors[0]}", err=True)
