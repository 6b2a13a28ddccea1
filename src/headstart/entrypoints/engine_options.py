"""What an engine is told: the one declaration of its options. ``LLM``, ``AsyncLLM``, commands, servers and their files
read names, types, defaults, bounds and help from here; a new option is a field of ``EngineOptions`` and the line that
uses it.

Importing this imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, runtime_checkable

from headstart.common import other_names
from headstart.common.enumerations import BackendChoice, CacheType, Numerics, Precision, VerifyRule
from headstart.common.option_values import separated
from headstart.common.options import Option, Options, declares
from headstart.drafting import DEFAULT_DRAFTER, STORE_BYTES
from headstart.drafting.options import parse_drafter
from headstart.drafting.speculation import GROUP, VERIFY, DraftTokens, Lenience, SpeculationParams, TreeNodes, Typical
from headstart.errors import ConfigError
from headstart.loading.reading import Reading
from headstart.models.aliases import DEFAULT_MODEL

if TYPE_CHECKING:
    from headstart.loading.model import Model
    from headstart.sampling.params import SamplingParams
else:
    # ``other_names.model`` looks at what is given in Python.
    Model = object

MODEL, QUEUE = "Model", "Queue"
_of_model, _of_drafting = partial(Option, group=MODEL), partial(Option, group=GROUP)
_SPECULATION = ("draft_tokens", "tree_nodes", "verify", "lenience", "typical")


TOOL_PARSER = Option(
    "How calls of tools are found in answers, by vLLM's names (hermes, qwen3_coder, mistral ...); hf: by the model's "
    "own response_template; none: not at all. Left out: as the model's templates show.",
    MODEL,
    elsewhere=("tool_call_parser",),
    metavar="NAME",
)
REASONING_PARSER = Option(
    "How thoughts are told from answers, by vLLM's names (deepseek_r1, qwen3, openai_gptoss ...); none: they stay "
    "text. Left out: as the model's templates show.",
    MODEL,
    metavar="NAME",
)


@runtime_checkable
class LoadedLLM(Protocol):
    """An ``LLM``, which ``AsyncLLM`` takes in place of a model."""

    def get_default_sampling_params(self) -> SamplingParams: ...


@declares
class EngineOptions(Options):
    """A model, a drafter, and how the two are run.

    Raises:
        ConfigError: an option is unknown, given twice, out of bounds, or does not go with another.
    """

    _foreign: ClassVar = other_names.FOREIGN_OPTIONS
    _directories: ClassVar[tuple[str, ...]] = ("drafter_store", "prefix_cache_dir")

    model: Annotated[
        str | Path | Model | LoadedLLM,
        _of_model(
            "The target model: an alias (smollm2), a Hugging Face directory, a hub id (org/name) or a .gguf file. In "
            "Python also a loaded model, to share it.",
            flags=("-m",),
            metavar="M",
            read=other_names.model,
        ),
    ] = field(default=DEFAULT_MODEL, kw_only=False)
    drafter: Annotated[
        str | type[Any] | None,
        _of_drafting(
            "The drafter (`headstart drafters` lists them), with options after its name, like ngram:max_order=2; none: "
            f"no speculation. Left out: {DEFAULT_DRAFTER}, or what runs the draft model if that is a whole model. In "
            "Python also a drafter's class.",
            flags=("-d",),
            metavar="NAME",
        ),
    ] = field(default=None, kw_only=False)
    revision: Annotated[str | None, _of_model("Branch, tag or commit of a model on the hub.", metavar="REV")] = None
    precision: Annotated[
        Precision | str,
        _of_model(
            "Number format to compute in. auto: where the native pass runs a quantised file's own blocks, of others "
            "bf16; else fp32.",
            elsewhere=("dtype", "torch_dtype"),
            read=other_names.precision,
        ),
    ] = Precision.AUTO
    numerics: Annotated[
        Numerics | str,
        _of_model(
            "exact: refuse to run unless a token's logits are the same bits in every pass (native pass only), and "
            "refuse requests that are LOSSY. auto: exact where the native pass runs; elsewhere rounding may decide "
            "between nearly equal logits."
        ),
    ] = Numerics.AUTO
    device: Annotated[
        str,
        _of_model(
            "Where target, heads and draft models are computed: cpu, or by PyTorch an accelerator, as cuda, cuda:1 or "
            "mps.",
            metavar="DEVICE",
        ),
    ] = "cpu"
    backend: Annotated[
        BackendChoice | str,
        _of_model(
            "Whose code computes the model. transformers: that of the package, which runs any decoder that it knows, "
            "slower. auto: Headstart's own where it has a description of the model, else transformers'.",
            elsewhere=("model_impl",),
            read=other_names.backend,
        ),
    ] = BackendChoice.AUTO
    trust_remote_code: Annotated[
        bool, _of_model("Run Python code that comes with a model, where transformers needs it. Read it first.")
    ] = False
    lora: Annotated[
        str | Path | Mapping[str, str] | None,
        _of_model(
            "LoRA adapters that requests may name, NAME=PATH: folders as peft saves them, or .gguf files. A folder "
            "without a name is merged into the model.",
            elsewhere=("lora_modules",),
            metavar="[NAME=]PATH",
            read=other_names.adapters,
            repeated=True,
        ),
    ] = None
    cuda_graphs: Annotated[
        bool,
        _of_model(
            "On an NVIDIA card, record passes of shapes that come again as CUDA graphs and replay them: faster, for up "
            "to 1 GiB of the card's memory. Other devices take no notice.",
            opposites=("enforce_eager",),
        ),
    ] = True
    chat_template: Annotated[
        str | Path | None,
        _of_model(
            "How messages are written, in place of the model's own template: a file of Jinja, or the template itself.",
            metavar="FILE",
        ),
    ] = None
    tool_parser: Annotated[str | None, replace(TOOL_PARSER, written=False)] = None
    reasoning_parser: Annotated[str | None, replace(REASONING_PARSER, written=False)] = None
    max_context: Annotated[
        int | None,
        _of_model(
            "Most tokens of a sequence, prompt and output together. Left out: what the model was made for, at most "
            "8192.",
            names=("max_model_len",),
            metavar="N",
            least=2,
        ),
    ] = None
    max_batch_size: Annotated[
        int,
        _of_model(
            "How many sequences decode together.",
            names=("batch_size", "max_num_seqs"),
            flags=("--batch-size",),
            metavar="N",
            least=1,
        ),
    ] = 16
    cache_tokens: Annotated[
        int | None,
        _of_model(
            "Tokens that the key-value cache holds. Left out: about 1 GiB, but at least one whole context.",
            metavar="N",
            least=2,
        ),
    ] = None
    cache_type: Annotated[
        CacheType | str,
        _of_model(
            "How keys and values are kept. auto: as they are computed. q8_0 and fp8 are LOSSY: 8 bits a number, so "
            "that nearly twice the tokens take the same memory; fp8 (without units) where PyTorch computes.",
            elsewhere=("kv_cache_dtype",),
            read=other_names.cache_type,
        ),
    ] = CacheType.AUTO
    draft_cache_type: Annotated[
        CacheType | str,
        _of_drafting(
            "The same of a draft model's own cache, which decides no answer. Trained heads keep theirs as computed.",
            read=other_names.cache_type,
        ),
    ] = CacheType.AUTO
    max_rows: Annotated[
        int,
        _of_model(
            "Most rows of a pass: decoding comes first, chunks of prompts share the rest.",
            names=("max_rows_per_pass", "max_num_batched_tokens"),
            flags=("--max-rows-per-pass",),
            metavar="N",
            least=1,
        ),
    ] = 512
    prefix_caching: Annotated[
        bool,
        _of_model(
            "Keep what was computed, for later requests that begin with the same tokens.",
            elsewhere=("enable_prefix_caching",),
        ),
    ] = False
    prefix_cache_dir: Annotated[
        str | Path | None,
        _of_model(
            "Directory where prefix_caching, which it turns on, keeps what was computed over restarts, and for other "
            "processes of the same model. It is read by its cache_salt alone, and may be deleted at any time.",
            metavar="DIR",
        ),
    ] = None
    prefix_cache_bytes: Annotated[
        int, _of_model("Most bytes of prefix_cache_dir; what is oldest goes first.", metavar="N", least=1 << 20)
    ] = 4 << 30
    generation_config: Annotated[
        str | Path,
        _of_model(
            "Where sampling parameters that a request leaves out come from. auto: the model's own defaults, modest "
            "ones if it has none; none: temperature 1 and no cuts; or a generation_config.json, or its folder.",
            metavar="auto|none|PATH",
        ),
    ] = "auto"
    seed: Annotated[
        int | None,
        _of_model(
            "What requests without a seed of their own get theirs from. Left out: chance.", least=0, written=False
        ),
    ] = None
    quantization: Annotated[
        str | None,
        _of_model(
            "What the model's files are quantised by (vLLM's names), to be sure of it: it is read off them.",
            metavar="METHOD",
        ),
    ] = None
    draft_model: Annotated[
        str | Path | None,
        _of_drafting("The draft model or trained head that the drafter runs; named like the model.", metavar="M"),
    ] = None
    draft_precision: Annotated[
        Precision | str | None,
        _of_drafting("Number format of the draft model. Left out: the target's.", read=other_names.precision),
    ] = None
    draft_tokens: DraftTokens = None
    drafter_store: Annotated[
        str | Path | None,
        _of_drafting(
            "Directory of texts that drafters copy from: what requests said, and what the engine was given, apart for "
            "each cache_salt. It outlasts restarts, and may be deleted at any time. Left out: only what is given, in "
            "memory.",
            metavar="DIR",
        ),
    ] = None
    drafter_options: Annotated[
        Mapping[str, object] | None,
        _of_drafting(
            "Options of the drafter, like max_order=3 (`headstart drafters NAME` lists them).",
            names=("drafter_option",),
            flags=("--drafter-option",),
            metavar="KEY=VALUE",
            read=other_names.assignments,
            repeated=True,
        ),
    ] = None
    more_drafters: Annotated[
        Sequence[str] | None,
        _of_drafting(
            "Further drafters, with their default options, that requests may name. In `headstart serve`, left out: "
            "those that need no model, and the trained heads that come with Headstart for the target.",
            names=("also",),
            flags=("--also",),
            metavar="NAME",
            read=separated,
            repeated=True,
        ),
    ] = ()
    tree_nodes: TreeNodes = None
    verify: Annotated[VerifyRule | str, VERIFY] = VerifyRule.AUTO
    lenience: Lenience = None
    typical: Typical = None
    drafter_store_bytes: Annotated[
        int,
        _of_drafting(
            "Most bytes of drafter_store, a sixteenth of which is for one cache_salt; what is oldest goes first.",
            metavar="N",
            least=1 << 20,
        ),
    ] = STORE_BYTES
    speculation: Annotated[
        SpeculationParams | None,
        _of_drafting(
            "How requests are drafted and verified that do not say so themselves; the options of these names are "
            "shorter.",
            written=False,
        ),
    ] = None
    speculative_config: Annotated[
        Mapping[str, Any] | None,
        _of_drafting(
            'vLLM\'s way to name a drafter: {"method": NAME, "model": M, "num_speculative_tokens": K}; other keys are '
            "options of the drafter.",
            metavar="JSON",
            read=other_names.speculative_config,
        ),
    ] = None
    tolerant: Annotated[
        bool,
        _of_drafting(
            "If a drafter raises an exception, log it and decode its requests plainly instead of raising it.",
            written=False,
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.speculative_config is not None:
            for name, value in other_names.speculation(self.speculative_config).items():
                if getattr(self, name) is not None:
                    raise ConfigError(f"speculative_config says the same as {name}; give one of the two.")
                object.__setattr__(self, name, value)
            object.__setattr__(self, "speculative_config", None)

    @property
    def reading(self) -> Reading:
        """How the model is read, beside its name."""
        merged = None if isinstance(self.lora, Mapping) else self.lora
        return Reading(self.backend, self.trust_remote_code, merged, self.cuda_graphs, self.chat_template)

    @property
    def adapters(self) -> Mapping[str, str]:
        """Paths of those that requests may name; by "" of the one that all have."""
        return self.lora if isinstance(self.lora, Mapping) else {}

    def load_target(self) -> Model:
        """The target without drafters.

        Raises:
            ConfigError, CheckpointError: as ``loading.load_model``.
        """
        from headstart.loading.model import Model, load_model

        if isinstance(self.model, Model):
            return self.model
        if not isinstance(self.model, str | Path):
            raise ConfigError("model is an LLM already; use it, or give its model.")
        model = load_model(self.model, self.precision, self.revision, self.device, self.reading)
        method = model.checkpoint.quantization
        if self.quantization is not None and not other_names.quantised(self.quantization, method):
            comes = f"quantised by {method}" if method else "not quantised"
            raise ConfigError(
                f"quantization is {self.quantization!r}, but {self.model} is {comes}; leave it out, and choose what is "
                "computed in with precision."
            )
        return model

    def chosen_drafter(self) -> tuple[str | type[Any], dict[str, object]]:
        """The drafter, and its options with the common ones among them; what shows without the target is refused.

        Raises:
            ConfigError, CheckpointError: as ``registry.checked_options``.
        """
        from headstart.drafting.registry import checked_options, chosen_drafter

        name, options = parse_drafter(self.drafter) if isinstance(self.drafter, str) else (self.drafter, {})
        options |= self.drafter_options or {}
        drafter = chosen_drafter(name, self.draft_model)
        return drafter, checked_options(drafter, self.draft_model, self.draft_tokens or None, options)

    def requests_speculation(self) -> SpeculationParams:
        """How requests are drafted and verified, unless they choose otherwise.

        Raises:
            RequestError: two of its options do not go together.
        """
        given = {name: getattr(self, name) for name in _SPECULATION}
        asked = {name: value for name, value in given.items() if value not in (None, VerifyRule.AUTO)}
        return replace(self.speculation or SpeculationParams(), **asked)

    def check(self) -> tuple[str | type[Any], dict[str, object]]:
        """Refuse what can be refused without the target; returns the ``chosen_drafter``.

        Raises:
            ConfigError, CheckpointError, RequestError: naming it.
        """
        from headstart.drafting.registry import checked_options
        from headstart.models.generation_config import named_file
        from headstart.text.answers.choosing import check_names

        if self.numerics == Numerics.EXACT and self.cache_type != CacheType.AUTO:
            raise ConfigError(f"cache_type {self.cache_type} is LOSSY, but numerics is 'exact'; leave one out.")
        check_names(self.tool_parser, self.reasoning_parser)
        named_file(self.generation_config)
        for name in self._directories:
            given = getattr(self, name)
            if given is not None and (not str(given) or (Path(given).exists() and not Path(given).is_dir())):
                raise ConfigError(f"{name} is {str(given)!r}, which is no directory; name one, or one to be made.")
        self.requests_speculation()
        chosen = self.chosen_drafter()
        for other in self.more_drafters or ():
            checked_options(other)
        return chosen


@declares
class AsyncEngineOptions(EngineOptions):
    """The same for an engine on a thread of its own."""

    max_waiting: Annotated[
        int,
        Option("Samples that may wait besides those that are being decoded; further ones are refused.", QUEUE, least=0),
    ] = 1 << 16
    max_seconds: Annotated[
        float | None,
        Option("Longest wall time of a request in seconds, waiting included. Left out: no limit.", QUEUE, above=0),
    ] = None


EngineArgs, AsyncEngineArgs = EngineOptions, AsyncEngineOptions
"""vLLM's names."""
