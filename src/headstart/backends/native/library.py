"""The C interface of ``src/api.h`` as ctypes sees it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_void_p
from typing import TYPE_CHECKING

from headstart.backends.native.isa import InstructionSet


class Experts(Structure):
    """``HeadstartExperts``."""

    _fields_ = (
        *((name, c_int32) for name in ("count", "used", "size", "gated", "shared_gate", "score")),
        *((name, c_int32) for name in ("groups", "groups_used", "group_score", "normalised", "scales_input")),
        *((name, c_float) for name in ("scale", "clamp")),
    )


class Latent(Structure):
    """``HeadstartLatent``."""

    _fields_ = (
        *((name, c_int32) for name in ("kv_rank", "plain_dim", "rope_dim", "value_dim", "q_rank")),
        ("norm_eps", c_float),
    )


class Inputs(Structure):
    """``HeadstartInputs``."""

    _fields_ = tuple((name, c_int32) for name in ("count", "size", "tokens"))


class Convolution(Structure):
    """``HeadstartConvolution``."""

    _fields_ = (("length", c_int32),)


class Delta(Structure):
    """``HeadstartDelta``."""

    _fields_ = (
        *((name, c_int32) for name in ("key_heads", "value_heads", "key_dim", "value_dim", "length", "tiled")),
        ("norm_eps", c_float),
    )


class Mamba(Structure):
    """``HeadstartMamba``."""

    _fields_ = (
        *((name, c_int32) for name in ("inner", "state_size", "step_rank", "length")),
        ("norm_eps", c_float),
    )


class Mamba2(Structure):
    """``HeadstartMamba2``."""

    _fields_ = (
        *((name, c_int32) for name in ("heads", "head_dim", "state_size", "groups", "length", "norm")),
        *((name, c_float) for name in ("least_step", "most_step", "norm_eps")),
    )


class Layer(Structure):
    """``HeadstartLayer``."""

    _fields_ = (
        *((name, c_int32) for name in ("mixer", "channel", "window", "chunk", "rope", "head_dim", "kv_heads")),
        *((name, c_int32) for name in ("reads", "values_are_keys", "mlp", "input", "cuts")),
        ("cut", c_float),
    )


class Shape(Structure):
    """``HeadstartShape``."""

    _fields_ = (
        *((name, c_int32) for name in ("vocab", "hidden", "heads", "layers")),
        *((name, c_int32) for name in ("precision", "threads", "norm", "activation", "gated", "parallel_residual")),
        *((name, c_int32) for name in ("joint_head_norms", "head_norm", "own_head_norms", "rotated_head_norms")),
        ("attention_gate", c_int32),
        *((name, c_int32) for name in ("entry", "features", "tokens", "cross")),
        *((name, c_float) for name in ("norm_eps", "attention_scale", "attention_softcap", "logit_softcap")),
        *((name, c_float) for name in ("embedding_scale", "tap_scale", "qkv_clip", "growth")),
        *((name, c_int32) for name in ("growth_trained", "growth_everywhere")),
        ("experts", Experts),
        ("latent", Latent),
        ("convolution", Convolution),
        ("mamba", Mamba),
        ("mamba2", Mamba2),
        ("delta", Delta),
        ("inputs", Inputs),
        ("streams", c_int32),
        ("side_rank", c_int32),
    )


class Pass(Structure):
    """``HeadstartPass``."""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "sequences", "blocks_per_sequence", "pages_per_block")),
        *((name, c_int32) for name in ("wanted", "best", "layers", "taps")),
        *((name, c_void_p) for name in ("tokens", "positions", "parents", "row_starts", "cached_lengths")),
        *((name, c_void_p) for name in ("block_tables", "logit_rows", "best_rows", "tap_layers", "inputs")),
        *((name, c_int32) for name in ("true_features", "path_length")),
        *((name, c_void_p) for name in ("paths", "logits", "best_ids")),
        ("tap_rows", POINTER(c_void_p)),
        *((name, c_int32) for name in ("logit_stride", "lean", "memory_blocks")),
        *((name, c_void_p) for name in ("memory_lengths", "memory_tables")),
        ("experts", c_void_p),
        *((name, c_int32) for name in ("context_rows", "both_ways")),
        *((name, c_void_p) for name in ("states_before", "states_after")),
    )


class Rows(Structure):
    """``HeadstartRows``."""

    _fields_ = (
        *((name, c_void_p) for name in ("data", "order")),
        ("row_bytes", c_int64),
        *((name, c_int32) for name in ("kind", "rows")),
    )


class Noise(Structure):
    """``HeadstartNoise``."""

    _fields_ = (("key", c_uint32 * 2), ("counter", c_uint32 * 3))


class Sampling(Structure):
    """``HeadstartSampling``."""

    _fields_ = (
        ("temperature", c_double),
        ("depth", c_double),
        ("top_p", c_double),
        ("top_k", c_int32),
        ("noise", Noise),
    )


class TextVocabulary(Structure):
    """``HeadstartTextVocabulary``."""

    _fields_ = (
        ("inputs", c_int32),
        ("bias", c_float),
        *((name, c_void_p) for name in ("lacks", "table", "map")),
    )


class TextTokens(Structure):
    """``HeadstartTextTokens``."""

    _fields_ = (
        ("vocabulary", POINTER(TextVocabulary)),
        *((name, c_int32) for name in ("count", "room")),
        *((name, c_void_p) for name in ("tokens", "rows")),
    )


class Drafted(Structure):
    """``HeadstartDrafted``."""

    _fields_ = (
        *((name, c_int32) for name in ("cached", "unread", "depth", "nodes", "pages", "found", "beams", "root")),
        ("sampling", POINTER(Sampling)),
        ("text_tokens", POINTER(TextTokens)),
        *((name, c_void_p) for name in ("page_table", "tokens", "features")),
        *((name, c_void_p) for name in ("node_tokens", "node_parents", "node_scores")),
    )


class Block(Structure):
    """``HeadstartBlock``."""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "first_slot", "causal")),
        ("following", c_void_p),
        *((name, c_int32) for name in ("rank", "tokens")),
        *((name, c_void_p) for name in ("before", "draft_ids", "sureness")),
        ("sureness_bias", c_float),
        ("sureness_reads_token", c_int32),
    )


class Draft(Structure):
    """``HeadstartDraft``."""

    _fields_ = (
        *((name, c_int32) for name in ("sequences", "width", "state_tap", "columns")),
        *((name, c_float) for name in ("min_log_prob", "min_parent_log_prob")),
        *((name, c_void_p) for name in ("target_ids", "logits")),
        *((name, c_int32) for name in ("slots", "mask_token")),
        ("mask_features", c_void_p),
        ("block", POINTER(Block)),
        ("drafted", POINTER(Drafted)),
    )


class Suffix(Structure):
    """``HeadstartSuffix``."""

    _fields_ = (
        ("text", c_void_p),
        *((name, c_double) for name in ("factor", "offset", "min_probability")),
        *((name, c_int32) for name in ("nodes", "max_depth", "learnt")),
    )


class Head(Structure):
    """``HeadstartHead``."""

    _fields_ = (
        *((name, c_void_p) for name in ("model", "cache")),
        ("draft", POINTER(Draft)),
        *((name, c_int32) for name in ("asked", "depth", "nodes", "cached", "unread", "pages")),
        ("page_table", c_void_p),
        ("text_tokens", POINTER(TextTokens)),
        *((name, c_int32) for name in ("learnt", "held", "room")),
        *((name, c_void_p) for name in ("features", "tokens")),
        ("bounds", c_int32),
        ("bound", c_void_p),
    )


class Guesser(Structure):
    """``HeadstartGuesser``."""

    _fields_ = (
        ("suffix", POINTER(Suffix)),
        ("head", POINTER(Head)),
        *((name, c_void_p) for name in ("log_odds", "weights")),
        *((name, c_int32) for name in ("judged", "room")),
        *((name, c_void_p) for name in ("judgements", "clues")),
    )


class CutRule(Structure):
    """``HeadstartCutRule``."""

    _fields_ = (("merits", c_void_p), ("passes", c_int32), ("pass_seconds", c_void_p), ("other_seconds", c_double))


class Round(Structure):
    """``HeadstartRound``."""

    _fields_ = (
        ("draft_seconds", c_double * 2),
        *((name, c_double) for name in ("pass_seconds", "walk_seconds", "other_seconds")),
        *((name, c_double) for name in ("expected_tokens", "expected_seconds")),
        *((name, c_double) for name in ("row_seconds", "experts")),
    )


class Span(Structure):
    """``HeadstartSpan``."""

    _fields_ = (
        *((name, c_int32) for name in ("asked", "drafted", "accepted", "token")),
        *((name, c_int32 * 2) for name in ("verified", "judged")),
        ("gains", c_double * 2),
    )


class Stretched(Structure):
    """``HeadstartStretched``."""

    _fields_ = (
        *((name, c_int32) for name in ("cached", "root", "room", "nodes", "depth", "most_tokens", "ends")),
        ("end_tokens", c_void_p),
        ("sampling", POINTER(Sampling)),
        ("guessers", Guesser * 2),
        *((name, c_int32) for name in ("state", "free_states")),
        *((name, c_void_p) for name in ("state_slots", "states_after")),
    )


class Stretch(Structure):
    """``HeadstartStretch``."""

    _fields_ = (
        ("sequences", c_int32),
        ("stretched", POINTER(Stretched)),
        *((name, c_int32) for name in ("blocks", "pages_per_block")),
        ("block_tables", c_void_p),
        ("memory_blocks", c_int32),
        *((name, c_void_p) for name in ("memory_lengths", "memory_tables")),
        ("most_rounds", c_int32),
        ("most_seconds", c_double),
        ("taps", c_int32),
        ("tap_layers", c_void_p),
        ("cut_rule", POINTER(CutRule)),
        *((name, c_int32) for name in ("rounds", "at_fault")),
        ("round", POINTER(Round)),
        ("span", POINTER(Span)),
        ("nodes", c_int32),
        *((name, c_void_p) for name in ("node_tokens", "node_parents", "node_grades", "path")),
        ("node_chances", c_void_p),
    )


_SIGNATURES = {
    "enable": (c_int, ()),
    "create": (c_void_p, (POINTER(Shape), POINTER(Layer), c_void_p)),
    "packed_bytes": (None, (POINTER(Shape), POINTER(Layer), c_void_p, c_void_p)),
    "destroy": (None, (c_void_p,)),
    "set_norm": (None, (c_void_p, c_int, c_int, c_void_p, c_void_p, c_int)),
    "set_linear": (None, (c_void_p, c_int, c_int, POINTER(Rows), c_int, c_void_p)),
    "set_expert": (None, (c_void_p, c_int, c_int, c_int, POINTER(Rows), c_int, c_void_p)),
    "set_router": (None, (c_void_p, c_int, POINTER(Rows), c_int, c_void_p, c_void_p)),
    "set_sinks": (None, (c_void_p, c_int, c_void_p)),
    "set_constant": (None, (c_void_p, c_int, c_int, c_void_p, c_int)),
    "losses": (None, (c_void_p, c_void_p)),
    "set_distance_bias": (None, (c_void_p, c_int, c_void_p, c_int)),
    "set_alibi": (None, (c_void_p, c_void_p, c_float, c_int)),
    "set_rope": (None, (c_void_p, c_int, c_void_p, c_void_p, c_int, c_int)),
    "set_embedding": (None, (c_void_p, POINTER(Rows), c_int, c_void_p, c_int)),
    "set_inputs_table": (None, (c_void_p, POINTER(Rows))),
    "first_inputs": (None, (c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p)),
    "save": (c_char_p, (c_void_p, c_int, c_int64)),
    "restore": (c_char_p, (c_void_p, c_int, c_int64)),
    "bytes": (c_int64, (c_void_p,)),
    "cache_create": (c_void_p, (c_void_p, c_int, c_int)),
    "cache_destroy": (None, (c_void_p,)),
    "cache_data": (c_void_p, (c_void_p,)),
    "cache_bytes": (c_int64, (c_void_p,)),
    "cache_state_bytes": (c_int64, (c_void_p,)),
    "cache_move": (None, (c_void_p, c_void_p, c_void_p, c_int)),
    "cache_copy": (None, (c_void_p, c_void_p, c_void_p, c_int)),
    "write_memory": (None, (c_void_p, c_void_p, c_int, c_void_p, c_int, c_int, c_void_p)),
    "forward": (c_char_p, (c_void_p, c_void_p, POINTER(Pass))),
    "draft": (c_char_p, (c_void_p, c_void_p, POINTER(Draft), c_int, c_int)),
    "stretch": (c_char_p, (c_void_p, c_void_p, POINTER(Stretch))),
    "text_create": (c_void_p, (c_int, c_void_p, c_int, c_void_p, c_int)),
    "text_destroy": (None, (c_void_p,)),
    "text_start": (None, (c_void_p,)),
    "text_extend": (c_int, (c_void_p, c_void_p, c_int)),
    "text_guess": (c_int, (POINTER(Suffix), c_int, c_int, c_void_p, c_void_p, c_void_p)),
    "noise_words": (None, (POINTER(Noise), c_void_p, c_int64, c_void_p)),
    "contenders": (c_int, (c_void_p, c_int64, c_double, c_double, POINTER(Noise), c_void_p, c_int)),
    "ranked": (c_float, (c_void_p, c_int64, c_int64)),
    "mass": (c_double, (c_void_p, c_int64, c_float, c_double)),
    "linear_create": (c_void_p, (c_int, c_int, c_int, c_int, POINTER(Rows), c_int, c_void_p, c_int)),
    "linear_destroy": (None, (c_void_p,)),
    "linear_bytes": (c_int64, (c_void_p,)),
    "linear_run": (c_char_p, (c_void_p, c_int, c_void_p, c_void_p)),
    "set_codebook": (None, (c_int, c_void_p)),
    "read_rows": (None, (POINTER(Rows), c_int, c_int, c_int, c_void_p)),
    "text_rows": (None, (POINTER(TextVocabulary), c_int, c_int, c_void_p, c_int, c_void_p)),
    "best": (None, (c_void_p, c_int, c_int, c_int, c_void_p, c_void_p)),
    "read_seconds": (c_double, (c_void_p,)),
}


class Library:
    """One loaded library; each function of the interface is an attribute named without its prefix."""

    def __init__(self, handle: ctypes.CDLL, isa: InstructionSet, file_name: str) -> None:
        self.isa = isa.name
        self.file_name = file_name
        """Stands for everything that its behaviour depends on."""
        self.has_matrix_unit = isa.has_matrix_unit
        self.multiplies_bytes = isa.multiplies_bytes
        self.blocks_pay = isa.blocks_pay
        self.codebooks: set[str] = set()
        """Types whose codebooks it has been given."""
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(handle, f"headstart_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> ctypes._CFuncPtr: ...  # type: ignore[name-defined]
