"""Run by an environment with SpecForge: its own model loads an exported head and says what it guesses.

    python specforge_trial.py HEAD_DIRECTORY INPUTS.pt LOGITS.pt

INPUTS: features [1, row, 3 * hidden] and tokens [1, row]. Prints, as JSON, the keys that did not match.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from transformers import AutoConfig


def main(folder: Path, inputs: Path, to: Path) -> dict[str, list[str]]:
    model = LlamaForCausalLMEagle3(AutoConfig.from_pretrained(folder)).float().eval()
    # Not by from_pretrained, which leaves tables that are in no file unmade with a newer transformers than its own.
    found = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    given = torch.load(inputs)
    features, tokens = given["features"], given["tokens"]
    rows = tokens.shape[1]
    with torch.no_grad():
        seen = model.prepare_decoder_attention_mask(torch.ones(1, rows, dtype=torch.bool), features, 1, rows, 0)
        said = model.backbone(
            input_embeds=model.embed_input_ids(tokens),
            hidden_states=model.project_hidden_states(features),
            cache_hidden=[[], []],
            attention_mask=seen,
            position_ids=torch.arange(rows)[None],
        )
        torch.save(model.compute_logits(said)[0], to)
    return {"missing": found.missing_keys, "surplus": found.unexpected_keys}


if __name__ == "__main__":
    print("\n" + json.dumps(main(*map(Path, sys.argv[1:]))))
