"""Load testers of others against Headstart's server, unchanged: they end well, count answers, and read the guesses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_environments import AIPERF, GUIDELLM, VLLM, Environment, needs

VLLM_BENCH = """
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
"""What ``vllm bench serve`` calls; the command itself looks for a package named vllm, which the CPU's is not."""
REQUESTS = 6

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_checkpoint import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("loaded"), head_dim=32)


@pytest.fixture(scope="module")
def url(model_dir: Path) -> Iterator[str]:
    from endpoint_servers import served

    from headstart import LLM

    with served(LLM(str(model_dir), "suffix", prefix_caching=True), spec_decode_metrics=True) as address:
        yield address


def run(environment: Environment, *arguments: object, work: Path) -> None:
    """A program of an environment, to its good end."""
    program = [str(environment.directory / "bin" / str(arguments[0])), *map(str, arguments[1:])]
    done = subprocess.run(program, cwd=work, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@needs(GUIDELLM)
def test_guidellm(url: str, model_dir: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"one two one {i}"} for i in range(REQUESTS)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {
        "--backend": f"kind=openai_http,target={url}",
        "--profile": "kind=concurrent,streams=2",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--tokenizer": f"kind=hf_auto,model={model_dir}",
        "--data": "kind=json_file,path=data.jsonl",
        "--output": "kind=json,path=out.json",
    }
    flat = [word for pair in options.items() for word in pair]
    run(GUIDELLM, "guidellm", "run", *flat, "--disable-progress", work=tmp_path)
    (measured,) = read(tmp_path / "out.json")["benchmarks"]
    assert len(measured["requests"]["successful"]) == REQUESTS
    assert not measured["requests"]["errored"]
    assert all(request["output_tokens"] > 0 for request in measured["requests"]["successful"])


@needs(AIPERF)
def test_aiperf_reads_how_guesses_fared(url: str, model_dir: Path, tmp_path: Path) -> None:
    options: dict[str, object] = {
        "--model": "tiny",
        "--url": url,
        "--endpoint-type": "chat",
        "--tokenizer": model_dir,
        "--request-count": REQUESTS,
        "--concurrency": 2,
        "--synthetic-input-tokens-mean": 40,
        "--output-tokens-mean": 40,
        "--extra-inputs": json.dumps({"temperature": 0, "ignore_eos": True}),
        "--ui": "none",
        "--artifact-dir": "out",
    }
    flat = [word for pair in options.items() for word in pair]
    run(AIPERF, "aiperf", "profile", *flat, "--streaming", work=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "out" / "profile_export.jsonl").read_text().splitlines()]
    assert len(records) == REQUESTS
    assert not any(record.get("error") for record in records)
    lengths = [record["metrics"]["spec_decode_acceptance_length"]["value"] for record in records]
    assert all(length >= 1 for length in lengths)
    assert max(lengths) > 1


@needs(VLLM)
def test_vllm_bench_serve(url: str, model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(VLLM_BENCH)
    options: dict[str, object] = {
        "--backend": "openai-chat",
        "--endpoint": "/v1/chat/completions",
        "--base-url": url,
        "--model": "tiny",
        "--tokenizer": model_dir,
        "--dataset-name": "random",
        "--random-input-len": 32,
        "--random-output-len": 40,
        "--num-prompts": REQUESTS,
        "--max-concurrency": 2,
        "--temperature": 0,
        "--result-filename": "out.json",
    }
    flat = [word for pair in options.items() for word in pair]
    run(VLLM, "python", "bench.py", *flat, "--save-result", "--ignore-eos", work=tmp_path)
    measured = read(tmp_path / "out.json")
    assert measured["completed"] == REQUESTS
    assert measured["total_output_tokens"] >= 40 * REQUESTS
    # It reads vLLM's counters, which Headstart has under the same names.
    assert measured["spec_decode_num_drafts"] > 0
