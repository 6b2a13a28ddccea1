"""vLLM on processors with EAGLE-3, by the head that comes with Headstart for the model: chains of three guesses."""

from __future__ import annotations

from functools import partial

from vllm_worker import PACKAGES, WEIGHTS, load_eagle3, serve

if __name__ == "__main__":
    serve(partial(load_eagle3, guesses=3), PACKAGES, WEIGHTS)
