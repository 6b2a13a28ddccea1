"""The table of docs/models.md, made from the registry; run as a script, it writes the page anew."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import transformers
from bailing_models import KIND as BAILING
from bailing_models import description as bailing_description
from more_families import MORE_FAMILIES
from tiny_encoder_decoders import FAMILIES as WITH_ENCODER
from tiny_encoder_decoders import WIDE as WIDE_WITH_ENCODER
from tiny_models import FAMILIES as FIRST_FAMILIES

from headstart.backends.native.supported import supports
from headstart.loading.published import guesses_for
from headstart.models.config import ModelConfig
from headstart.models.families import ENCODER_DECODER_FAMILIES, FAMILIES, config_from_hf

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
KINDS = {"dense": "dense", "experts": "mixture of experts"}
WIDE = {"hidden_size": 256, "n_embd": 256, "d_model": 256, "head_dim": 64} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_head": 4,
    "n_heads": 4,
    "rotary_dim": 32,
    "v_head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_head_dim": 32,
}
"""Heads of 64 dimensions, as most models have, in place of the tiny ones."""
WIDE_LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96}


def examples() -> dict[str, ModelConfig]:
    """One description of every ``model_type``, the plainest of those that the tests have."""
    found: dict[str, ModelConfig] = {}
    for name, settings in (*FIRST_FAMILIES.values(), *MORE_FAMILIES.values()):
        wide = widened(settings)
        described = getattr(transformers, f"{name}Config")(**deepcopy(wide)).to_dict()
        config = config_from_hf(described)
        if described["model_type"] == "glm4_moe":
            found[BAILING] = config_from_hf(bailing_description(described))
        kept = found.setdefault(described["model_type"], config)
        if supports(kept) is not None and supports(config) is None:
            found[described["model_type"]] = config
    found["kimi_k2"] = found["deepseek_v3"]  # transformers reads its text as such
    found["step3p5"] = found["step3p7"]  # which has it inside
    found["mimo_v2"] = found["mimo_v2_flash"]  # and is published in shards
    for family, (name, settings) in WITH_ENCODER.items():
        described = getattr(transformers, f"{name}Config")(**settings | WIDE_WITH_ENCODER[family]).to_dict()
        found.setdefault(described["model_type"], config_from_hf(described))
    return found


def widened(settings: dict[str, Any]) -> dict[str, Any]:
    """The same with wide heads."""
    wide = settings | {key: value for key, value in WIDE.items() if key in settings}
    if "kv_lora_rank" in settings:
        wide |= WIDE_LATENT | {"num_key_value_heads": 4}
        wide |= {} if settings.get("q_lora_rank") is None else {"q_lora_rank": 96}
        wide |= {} if settings["qk_rope_head_dim"] else {"qk_rope_head_dim": 0}
        wide |= {"head_dim": wide["qk_rope_head_dim"]} if "head_dim" in settings else {}
    if "o_lora_rank" in settings:
        wide |= {"q_lora_rank": 96, "o_lora_rank": 64, "index_head_dim": 64}
    if isinstance(wide.get("text_config"), dict):
        wide["text_config"] = widened(wide["text_config"])
    longrope = isinstance(wide.get("rope_parameters"), dict) and "short_factor" in wide["rope_parameters"]
    return {key: value for key, value in wide.items() if key != "rope_parameters"} if longrope else wide


def table() -> str:
    """Every ``model_type`` that is read and its GGUF architecture, by kind, by what computes it and by what guesses for
    it."""
    known = examples()
    groups: dict[tuple[str, str, str], list[str]] = {}
    for family in sorted(FAMILIES, key=lambda family: (family.kind, family.model_type)):
        if not family.model_type:
            continue
        config = known.get(family.model_type)
        where = "as the decoder inside" if config is None else _place(config)
        guesses = ", ".join(guesses_for(family.name if config is None else config.family)) or "–"
        kin = [other.gguf for other in (family, *FAMILIES) if other.read is family.read]
        groups.setdefault((KINDS[family.kind], where, guesses), []).append(
            _named(family.model_type, dict.fromkeys(each.architecture for each in kin if each is not None))
        )
    for other in sorted(ENCODER_DECODER_FAMILIES, key=lambda family: family.name):
        key = ("encoder and decoder", _place(known[other.name]), "–")
        groups.setdefault(key, []).append(_named(other.name, [other.architecture]))
    rows = [f"| {' | '.join(key)} | {', '.join(names)} |" for key, names in groups.items()]
    head = "| kind | runs on | what guesses for it | `model_type` (GGUF architectures) |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def _named(model_type: str, architectures: Iterable[str]) -> str:
    files = ", ".join(f"`{each}`" for each in architectures if each)
    return f"`{model_type}`" + (f" ({files})" if files else "")


def _place(config: ModelConfig) -> str:
    reason = supports(config)
    return "native, PyTorch" if reason is None else f"PyTorch ({reason.removeprefix('PyTorch alone has ')})"


def page_with(rows: str) -> str:
    """The page with its table replaced."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()), encoding="utf-8")
