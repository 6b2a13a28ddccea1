"""llama.cpp through llama-cpp-python, plain alone: one copy of the weights."""

from __future__ import annotations

from llama_cpp_worker import mode
from protocol import serve

if __name__ == "__main__":
    serve(
        lambda options: {"plain": mode(options, None)},
        ["llama-cpp-python"],
        "the GGUF as it is, AVX-512 where there is one",
    )
