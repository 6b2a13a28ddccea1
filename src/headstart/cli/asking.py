"""What the options of ``generate`` and ``chat`` ask for: sampling, speculation, a model to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from headstart import enumerations
from headstart.cli import options
from headstart.drafting.options import option_value, parse_drafter
from headstart.errors import ConfigError, RequestError
from headstart.models.aliases import DEFAULT_MODEL
from headstart.reading import Reading

if TYPE_CHECKING:
    from headstart.cli.progress import Activity
    from headstart.cli.prompts import Conversation
    from headstart.drafting.base import SpeculationParams
    from headstart.engine.schedule import Limits
    from headstart.llm import LLM
    from headstart.outline import Outline
    from headstart.sampling.params import SamplingParams

MAX_TOKENS = 256
"""Most output tokens, where neither the command nor the model says."""


@dataclass(frozen=True)
class Running:
    """Which model a command runs, and how: options of the command (``option_groups``)."""

    model: options.Model = DEFAULT_MODEL
    revision: options.Revision = None
    precision: options.Precision = enumerations.Precision.AUTO
    numerics: options.Numerics = enumerations.Numerics.AUTO
    device: options.Device = "cpu"
    backend: options.Backend = enumerations.BackendChoice.AUTO
    trust_remote_code: options.TrustRemoteCode = False
    lora: options.Lora = None
    cuda_graphs: options.CudaGraphs = True
    chat_template: options.ChatTemplate = None
    max_context: options.MaxContext = None

    @property
    def reading(self) -> Reading:
        return Reading(self.backend, self.trust_remote_code, self.lora, self.cuda_graphs, self.chat_template)


@dataclass(frozen=True)
class Reader:
    """Where and by whose code the model is computed that a command measures, and what is added to it, likewise."""

    device: options.Device = "cpu"
    backend: options.Backend = enumerations.BackendChoice.AUTO
    trust_remote_code: options.TrustRemoteCode = False
    lora: options.Lora = None
    cuda_graphs: options.CudaGraphs = True

    @property
    def reading(self) -> Reading:
        return Reading(self.backend, self.trust_remote_code, self.lora, self.cuda_graphs)


@dataclass(frozen=True)
class Guessing:
    """How a command wants to be drafted for, likewise."""

    drafter: options.AskedDrafter = None
    draft_model: options.DraftModel = None
    draft_precision: options.DraftPrecision = None
    draft_tokens: options.DraftTokens = None
    tree_nodes: options.TreeNodes = None
    drafter_option: options.DrafterOptions = None
    verify: options.Verify = enumerations.VerifyRule.AUTO
    lenience: options.Lenience = None
    typical: options.Typical = None

    def chosen(self) -> tuple[str, dict[str, object]]:
        """The drafter's name and its options; whatever shows without the target is refused.

        Raises:
            ConfigError, CheckpointError: as ``registry.checked_options``.
        """
        from headstart.drafting.registry import checked_options, chosen_drafter

        name, options = (None, {}) if self.drafter is None else parse_drafter(self.drafter)
        options |= dict(_drafter_option(text) for text in self.drafter_option or ())
        drafter = str(chosen_drafter(name, self.draft_model))
        checked_options(drafter, self.draft_model, self.draft_tokens or None, options)
        return drafter, options

    def params(self) -> SpeculationParams:
        """The same for the engine.

        Raises:
            RequestError: a value is out of range, or two do not go together.
        """
        from headstart.drafting.base import SpeculationParams

        return SpeculationParams(
            draft_tokens=self.draft_tokens,
            tree_nodes=self.tree_nodes,
            verify=self.verify,
            lenience=self.lenience,
            typical=self.typical,
        )


@dataclass(frozen=True)
class Asked:
    """A model, and how it is to be run."""

    running: Running
    guessing: Guessing
    sampling: Mapping[str, Any]
    """Fields of ``SamplingParams`` that were given."""
    generation_config: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else ``LLM`` takes."""

    def checked(self, conversations: Sequence[Conversation] = ()) -> tuple[SamplingParams, SpeculationParams, Outline]:
        """What the options come to, and what was read of the model for it. Everything that can be refused without the
        model's weights is refused here; a conversation that cannot be answered gets its ``error``, unless it is the
        command line's own.

        Raises:
            ConfigError, RequestError, CheckpointError: naming it.
        """
        from headstart.engine.schedule import Limits
        from headstart.loading import parse_numerics, parse_precision
        from headstart.outline import Outline, context_length, source_length
        from headstart.request import require_lossless
        from headstart.sampling.params import SamplingParams

        SamplingParams(**self.sampling)
        speculation = self.guessing.params()
        self.guessing.chosen()
        parse_precision(self.running.precision)
        outline = Outline.open(self.running.model, self.running.revision, self.generation_config, self.running.reading)
        params = outline.sampling_defaults.params(self.sampling, {"max_tokens": MAX_TOKENS})
        params.check_vocabulary(outline.config.vocab_size)
        require_lossless(parse_numerics(self.running.numerics), speculation, params)
        context = context_length(outline.config, self.running.max_context)
        limits = Limits(max_context=context, max_source=source_length(outline.config, context))
        for conversation in conversations:
            _check_prompt(conversation, outline, params, limits)
        return params, speculation, outline

    def load(self, activity: Activity, outline: Outline, speculation: SpeculationParams) -> LLM:
        """The model with its drafter; ``activity`` shows what is being done."""
        from headstart import phases
        from headstart.llm import LLM

        drafter, drafter_options = self.guessing.chosen()
        with phases.heard(activity.phase):
            with phases.phase(f"Loading {self.running.model}"):
                model = outline.load(self.running.precision, self.running.device)
            llm = LLM(
                model,
                drafter,
                draft_model=self.guessing.draft_model,
                draft_tokens=self.guessing.draft_tokens or None,
                drafter_options=drafter_options,
                speculation=speculation,
                draft_precision=self.guessing.draft_precision,
                numerics=self.running.numerics,
                max_context=self.running.max_context,
                generation_config=self.generation_config,
                **self.settings,
            )
        activity.stop()
        for sentence in (*llm.notices, llm.memory.sentence()):
            activity.say(sentence)
        return llm


def require_template(running: Running) -> None:
    """Refuse, before anything heavy is imported, to converse with a model that has no chat template and is given none.

    Raises:
        CheckpointError, ConfigError: naming it, and what to do instead.
    """
    from headstart.models.locating import locate, require_model
    from headstart.text.template_files import brings_template, given_template, no_template

    if running.chat_template is not None:
        given_template(running.chat_template)
        return
    path = locate(running.model, running.revision)
    require_model(path)
    if not brings_template(path):
        raise ConfigError(no_template(running.model))


def given(**values: Any) -> dict[str, Any]:
    """The options that were given: neither None nor an empty list."""
    return {name: value for name, value in values.items() if value is not None and value not in ([], ())}


def warn_of_losses(speculation: SpeculationParams, params: SamplingParams) -> None:
    """Say on stderr that the output will not be the target's own."""
    lossy = speculation.lossy_for(params)
    if lossy is not None:
        typer.echo(f"Warning: --{lossy} is LOSSY; the output no longer follows the target's own law.", err=True)


def token_bias(text: str) -> tuple[int, float]:
    """``ID=BIAS``.

    Raises:
        BadParameter: it is something else.
    """
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form ID=BIAS, like 42=-1.5.", param_hint="--logit-bias"
        ) from None


def _drafter_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(
            f"{text!r} is not of the form KEY=VALUE, like max_order=3.", param_hint="--drafter-option"
        )
    return name, option_value(value)


def _check_prompt(conversation: Conversation, outline: Outline, params: SamplingParams, limits: Limits) -> None:
    """The first turn of a conversation, without adding it."""
    from headstart.engine.schedule import require_fit, require_source_fit

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
