"""Stand-ins: what a drafter would run, of the right shape for a target and with random weights, to know what it costs.

Nobody has to train or download anything before it is known whether that would pay. What guesses such a drafter makes
says nothing; what they cost is the truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from headstart.drafting.base import Drafter
from headstart.drafting.context import DraftContext, LoadedModel
from headstart.drafting.methods.assistant.files import reading_target, require_target
from headstart.drafting.methods.assistant.head import KIND as ASSISTANT
from headstart.drafting.methods.assistant.head import AssistantHead, Clusters
from headstart.drafting.methods.dflash.head import KIND, BlockHead
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, THIRD, EagleHead
from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError
from headstart.loading.model import Model, create_backend, weights_dtype
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig
from headstart.models.families.module_layouts import multi_token_layout
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.multi_token_modules import MultiTokenModule, MultiTokenModules
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import AttentionWeights, DecoderWeights, LayerWeights, MlpWeights
from headstart.passes.backend import Backend
from headstart_train.first_steps.block import block_config
from headstart_train.first_steps.eagle import eagle_config

_SAID = 32_000
"""Tokens that published heads say of vocabularies of 100,000 and more (EAGLE-3's, speculators')."""
_SHARE = 6
"""One of so many of smaller vocabularies: what the default model's heads say."""
_PARALLEL_SLOTS, _BLOCK_SLOTS, _BLOCK_LAYERS = 8, 15, 5
"""Of P-EAGLE's and DFlash's published heads (arXiv:2602.01469, arXiv:2602.06036, section 4.1)."""
_ASSISTANT_WINDOWED = 3
"""Layers of Gemma 4's assistants that have windows; one more sees everything (huggingface.co/google)."""
_ASSISTANT_SIZE, _SMALL_ASSISTANT_SIZE = 1024, 256
_ASSISTANT_MLP = 8
"""Of an assistant: numbers between the two matrices of a gated MLP, for each of the stream's."""
_CLUSTERS, _CLUSTERS_READ = 2048, 32
"""Of the output head of small ones."""
_UNITS = {"m": 1e6, "b": 1e9}
_MOST, _LEAST = 20e9, 1e6
"""Parameters of a draft model."""
_MLP = 4
"""Of a made-up draft model: numbers between the two matrices of a gated MLP, for each of the stream's."""
_WIDTH = 64
"""Numbers of its stream for each of its layers, and what they come in multiples of."""


def stand_in(context: DraftContext, named: str, length: int) -> Drafter:
    """A drafter that guesses chains of ``length`` tokens with random weights.

    Args:
        context: of a loaded target.
        named: "eagle3", say; a draft model with its size, as "draft-model=0.5B".

    Raises:
        ConfigError: it runs nothing that can be made up, or of no size that can, or there is no target.
    """
    require_known(named)
    name, _, size = named.partition("=")
    model = context.require_target()
    assert isinstance(model, Model)
    context, options = _surroundings(model, context, name, size)
    return create_drafter(name, context, draft_tokens=length, **options)


def _surroundings(model: Model, context: DraftContext, name: str, size: str) -> tuple[DraftContext, dict[str, object]]:
    """Those in which a drafter finds random weights where it would look for trained ones, and its options."""
    # What knows nothing is sure of nothing, and would end its drafts at once.
    chain: dict[str, object] = {"width": 1, "min_probability": 0.0}
    if name == "draft-model":
        loaded = LoadedModel(_draft_model(model, parameters_of(size)), model.tokenizer)
        return replace(context, load_model=lambda _: loaded), {"model": "a stand-in"}
    if name in _HEADS:
        head = _randomly(lambda: _HEADS[name](model.config))
        return replace(context, stand_in=lambda: head), chain
    if name == "mtp":
        modules = _modules(model)
        return replace(context, lend_modules=lambda _: modules), chain
    return context, {}  # the target itself, whose weights are there


def require_known(named: str) -> None:
    """Refuse what no target has a stand-in for.

    Raises:
        ConfigError: there is none of this name, or of no such size.
    """
    name, _, size = named.partition("=")
    if name == "draft-model":
        parameters_of(size)
    elif name not in (*_HEADS, "mtp", "self"):
        known = ", ".join((*_HEADS, "mtp", "self", "draft-model=SIZE"))
        raise ConfigError(f"there is no stand-in for drafter {name!r:.40}; there are some for {known}.")
    elif size:
        raise ConfigError(f"a stand-in for {name} has the size that the target gives it; leave {size!r:.40} out.")


def parameters_of(size: str) -> float:
    """How many 135M or 0.5B are.

    Raises:
        ConfigError: it is no such size.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([mb])", size.strip().lower())
    count = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not size:
        raise ConfigError("a stand-in for a draft model needs its size; give draft-model=0.5B, say.")
    if not _LEAST <= count <= _MOST:
        raise ConfigError(f"the size of a draft model is {size!r:.40}; give it as 135M or 0.5B, from 1M to 20B.")
    return count


def _said(config: ModelConfig) -> int:
    """Tokens that a head says."""
    return _SAID if config.vocab_size > 2 * _SAID else max(1, config.vocab_size // _SHARE)


def _randomly(make: Callable[[], nn.Module]) -> nn.Module:
    """The same at each call, whatever else draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def _parallel_head(config: ModelConfig) -> EagleHead:
    return EagleHead(eagle_config(config, THIRD, _said(config), slots=_PARALLEL_SLOTS))


def _block_head(config: ModelConfig) -> BlockHead:
    layers = min(_BLOCK_LAYERS, config.num_layers)
    return BlockHead(block_config(config, _BLOCK_SLOTS, layers, 0, _said(config)))


def _assistant(target: ModelConfig) -> AssistantHead:
    """One for a Gemma 4."""
    require_target(target.hidden_size, target, "a stand-in")
    small = target.layer_inputs is not None
    hidden = _SMALL_ASSISTANT_SIZE if small else _ASSISTANT_SIZE
    windowed = [layer for layer in target.layers if layer.window is not None][:1] * _ASSISTANT_WINDOWED
    full = [layer for layer in target.layers if layer.window is None][:1]
    config = replace(
        target,
        layers=tuple(
            replace(layer, reads=None, channel="mlp", mlp_size=None, input=None) for layer in (*windowed, *full)
        ),
        hidden_size=hidden,
        mlp_size=_ASSISTANT_MLP * hidden,
        layer_inputs=None,
        experts=None,
    )
    config = reading_target(config, target, "a stand-in")
    norm = NormWeights(torch.ones(hidden) - config.norms.offset)
    layers = []
    for layer in config.layers:
        size = config.head_dim_of(layer)
        queries = NormWeights(torch.ones(size) - config.norms.offset)
        width = config.heads_of(layer) * size
        layers.append(
            LayerWeights(
                mixer=AttentionWeights(_linear(width, hidden), _linear(hidden, width), q_norm=queries),
                channel=MlpWeights(_linear(2 * config.mlp_size, hidden), _linear(hidden, config.mlp_size)),
                attention_norm=norm,
                mlp_norm=norm,
                attention_post_norm=norm,
                mlp_post_norm=norm,
                scale=torch.ones(1),
            )
        )
    head, clusters = _linear(config.vocab_size, hidden).weight, None
    if small and config.vocab_size % _CLUSTERS == 0:
        tokens = torch.arange(config.vocab_size).view(_CLUSTERS, -1)
        clusters = Clusters(_linear(_CLUSTERS, hidden).weight, tokens, _CLUSTERS_READ, head)
        config, head = replace(config, vocab_size=_CLUSTERS_READ), head[:_CLUSTERS_READ]
    weights = DecoderWeights(embedding=head, layers=tuple(layers), final_norm=norm, head=LinearWeights(head))
    before, after = (
        _linear(*shape).weight for shape in ((hidden, 2 * target.hidden_size), (target.hidden_size, hidden))
    )
    return AssistantHead(config, weights, before, after, clusters)


def _modules(model: Model) -> MultiTokenModules:
    """A module whose layer is the target's last one of the kind that its family's modules have."""
    config, weights = load_decoder(model.checkpoint, weights_dtype(model.precision))
    names = multi_token_layout(config, "hf")
    place = names.place(config)
    if place is None:
        raise ConfigError(f"{model.name} has no layer like a multi-token module's, which both attends and has an MLP.")
    flat = NormWeights(torch.full((config.hidden_size,), 1.0 - config.norms.offset))
    projection = _linear(config.hidden_size, 2 * config.hidden_size)
    hyper = config.residual.hyper if names.streams else None
    layer = weights.layers[place] if names.streams else replace(weights.layers[place], hyper=None)
    module = MultiTokenModule(flat, flat, flat, projection, layer, None if hyper is None else weights.hyper_end)
    return MultiTokenModules(
        replace(config, layers=(config.layers[place],), residual=replace(config.residual, hyper=hyper)),
        (module,),
        names.hidden_first,
        feeds_unnormed=names.feeds_unnormed,
    )


def _draft_model(model: Model, parameters: float) -> Backend:
    config = shape_of_size(model.config, parameters)
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    norm = NormWeights(torch.ones(hidden))
    keys = 2 * config.num_kv_heads * config.head_dim
    layer = LayerWeights(
        mixer=AttentionWeights(_linear(width + keys, hidden), _linear(hidden, width)),
        channel=MlpWeights(_linear(2 * config.mlp_size, hidden), _linear(hidden, config.mlp_size)),
        attention_norm=norm,
        mlp_norm=norm,
    )
    head = _linear(config.vocab_size, hidden)
    weights = DecoderWeights(embedding=head.weight, layers=(layer,) * config.num_layers, final_norm=norm, head=head)
    return create_backend(config, weights, model.precision, model.device, model.cuda_graphs)


def shape_of_size(target: ModelConfig, parameters: float) -> ModelConfig:
    """A llama of about so many parameters that says the target's tokens.

    Raises:
        ConfigError: the target's vocabulary alone takes more.
    """
    head_dim, hidden = 64, 0
    while True:
        hidden += _WIDTH
        layers = max(2, hidden // _WIDTH)
        heads = hidden // head_dim
        kv_heads = next(count for count in (heads // 4, heads // 2, heads) if count and heads % count == 0)
        of_layer = hidden * (2 * hidden + 2 * kv_heads * head_dim + 3 * _MLP * hidden)
        if target.vocab_size * hidden + layers * of_layer >= parameters:
            break
    if hidden == _WIDTH and target.vocab_size * hidden > 2 * parameters:
        raise ConfigError(
            f"a draft model of {parameters / 1e6:.0f}M parameters cannot say the target's {target.vocab_size} tokens; "
            f"give at least {target.vocab_size * _WIDTH / 1e6:.0f}M."
        )
    return ModelConfig(
        family="llama",
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_size=_MLP * hidden,
        max_positions=target.max_positions,
        layers=(LayerConfig(),) * layers,
        ropes=(RopeConfig(theta=1e5, dim=head_dim),),
        name="a stand-in",
    )


def _linear(outputs: int, inputs: int) -> LinearWeights:
    generator = torch.Generator().manual_seed(outputs + inputs)
    weight: Tensor = torch.randn(outputs, inputs, generator=generator).mul_(inputs**-0.5).bfloat16()
    return LinearWeights(weight)


_HEADS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    THIRD: lambda config: EagleHead(eagle_config(config, THIRD, _said(config))),
    PARALLEL_KIND: _parallel_head,
    KIND: _block_head,
    ASSISTANT: _assistant,
}
