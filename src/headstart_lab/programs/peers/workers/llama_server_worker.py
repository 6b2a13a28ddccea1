"""llama.cpp's server through xllamacpp, the GGUF as it is: plain, and its kinds of speculation that guess anything.

``ngram-cache`` and ``ngram-mod`` are left out: they drafted nothing on single requests of this length.
"""

from __future__ import annotations

import argparse
import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import gguf
import xllamacpp
from protocol import Decode, OnToken, serve

NGRAM, DRAFT_TOKENS = 3, 4
"""The defaults, 12 and 48, hardly ever find a match, and rows are dear for llama.cpp on a CPU."""
KINDS = xllamacpp.common_speculative_type


def load(options: argparse.Namespace) -> dict[str, Decode]:
    def params() -> xllamacpp.CommonParams:
        chosen = xllamacpp.CommonParams()
        chosen.model.path = str(options.model)
        chosen.n_ctx = options.max_context
        chosen.n_parallel = 1
        chosen.cache_ram_mib = 0
        chosen.verbosity = -1
        for team in (chosen.cpuparams, chosen.cpuparams_batch):
            team.n_threads = options.threads
        return chosen

    simple, mapped, assisted = params(), params(), params()
    simple.speculative.types = [KINDS.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    mapped.speculative.types = [KINDS.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K]
    for ngram in (simple.speculative.ngram_simple, mapped.speculative.ngram_map_k):
        ngram.size_n, ngram.size_m = NGRAM, DRAFT_TOKENS
    assisted.speculative.types = [KINDS.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    assisted.speculative.draft.mparams.path = str(third_of_layers(options.model, options.work / "third-of-layers.gguf"))
    for team in (assisted.speculative.draft.cpuparams, assisted.speculative.draft.cpuparams_batch):
        team.n_threads = options.threads
    return {
        "plain": mode(params()),
        f"ngram-simple {DRAFT_TOKENS}": mode(simple),
        f"ngram-map {DRAFT_TOKENS}": mode(mapped),
        "draft model": mode(assisted),
    }


def mode(params: xllamacpp.CommonParams) -> Decode:
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address).netloc

    def decode(prompt: list[int], count: int, on_token: OnToken) -> list[int]:
        # The native endpoint, since the others do not hand out token ids; a stream would take time from decoding.
        request = {
            "prompt": prompt,
            "n_predict": count,
            "samplers": ["top_k"],
            "top_k": 1,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        connection = http.client.HTTPConnection(address)
        connection.request("POST", "/completion", json.dumps(request), {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        connection.close()
        if "tokens" not in reply:
            raise RuntimeError(str(reply))
        on_token(reply["timings"]["prompt_ms"] / 1e3)
        assert server.listening_address  # the server lives as long as this function
        return reply["tokens"]

    return decode


def third_of_layers(model: Path, path: Path) -> Path:
    """A draft model of a third of the target's layers, evenly spread, their tensors as they are: what the worker of
    transformers and ``draft-model`` of Headstart draft with if no model is named.
    """
    if path.exists():
        return path
    source = gguf.GGUFReader(model)
    family = source.fields[gguf.Keys.General.ARCHITECTURE].contents()
    count_key = gguf.Keys.LLM.BLOCK_COUNT.format(arch=family)
    available = source.fields[count_key].contents()
    count = max(2, round(available / 3))
    place = {round(i * (available - 1) / (count - 1)): i for i in range(count)}
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, family)
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == gguf.Keys.General.ARCHITECTURE:
            continue
        value = count if name == count_key else field.contents()
        kinds = field.types
        writer.add_key_value(name, value, kinds[0], kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None)
    for tensor in source.tensors:
        room, *rest = tensor.name.split(".")
        if room == "blk":
            if int(rest[0]) not in place:
                continue
            rest[0] = str(place[int(rest[0])])
        writer.add_tensor(".".join((room, *rest)), tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)
    return path


if __name__ == "__main__":
    serve(load, ["xllamacpp"], "the GGUF as it is, AVX2")
