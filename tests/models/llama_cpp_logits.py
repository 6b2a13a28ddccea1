"""Logits of llama.cpp for one text, run by the Python that has it: FILE TOKENS OUT (JSON list; .npy to write)."""

from __future__ import annotations

import json
import sys

import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama

if __name__ == "__main__":
    path, tokens, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    model = Llama(path, n_ctx=64, logits_all=True, flash_attn=False, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32)
    model.eval(tokens)
    np.save(out, np.array(model.scores[: len(tokens)], dtype=np.float32))
    print(json.dumps(out))
