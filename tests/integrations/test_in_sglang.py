"""SGLang's own code finds the algorithm, resolves its settings, builds its worker and follows its trees.

Its kernels for processors are on no package index and its wheel's are CUDA's, so no model is run in it here.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from engine_environments import ROOT, SGLANG, needs, run_in

pytestmark = [pytest.mark.engines, needs(SGLANG)]
PROMPT = [3, 9, 4, 1, 5, 9, 2, 6]


def test_sglang_takes_the_algorithm_for_its_own(tmp_path: Path) -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    installed = tmp_path / "headstart-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: headstart\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in own.items()) for group, own in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    model = tmp_path / "model"
    model.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 512,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    found = run_in(SGLANG, Path(__file__).parent / "sglang_trial.py", [model], tmp_path)

    assert found["algorithm"] == "CustomSpecAlgo('HEADSTART')"
    assert found["base"] == "NGRAMWorker"
    assert found["differences"] == {"speculative_algorithm": ["'NGRAM'", "'HEADSTART'"]}
    assert found["left"] == 0
    for name, first in (("a", []), ("b", [7]), ("c", [7, 8])):
        tokens = [*first, *PROMPT]
        while len(tokens) < len(found["texts"][name]):
            tokens.append(tokens[-5] if len(tokens) % 11 else (tokens[-1] * 7 + len(tokens)) % 64)
        assert found["texts"][name] == tokens
        assert sum(found["accepted"][name]) > len(found["accepted"][name])
