"""``prefix_cache_dir``: what a restart finds, on every backend and beside drafters of all kinds; what is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from adapter_toys import write_adapter

from headstart import LLM, SamplingParams
from headstart.errors import ConfigError

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PROMPT = [(i * i + 5 * i) % 200 + 3 for i in range(150)]


@pytest.fixture(scope="module", params=["native", "torch"])
def directory(request: pytest.FixtureRequest, tiny_model_dir: Path, torch_model_dir: Path) -> Path:
    """Of a model of one of the backends."""
    return tiny_model_dir if request.param == "native" else torch_model_dir


@pytest.mark.parametrize("drafter", ["suffix", "draft-model", "auto"])
def test_a_restart_finds_a_long_beginning(directory: Path, tmp_path: Path, drafter: str) -> None:
    with LLM(directory, "none", precision="fp32") as llm:
        plain = llm.generate([PROMPT], GREEDY)[0].token_ids
    options = {"draft_model": directory} if drafter == "draft-model" else {}
    for found in (0, 128):
        with LLM(directory, drafter, precision="fp32", prefix_cache_dir=tmp_path / "kept", **options) as llm:
            for salt in ("mine", "yours") if found else ("mine",):
                (output,) = llm.generate([PROMPT], GREEDY, cache_salt=salt)
                assert output.token_ids == plain
                assert output.stats.cached_tokens == (found if salt == "mine" else 0)
            llm.engine.check()


def test_other_weights_and_formats_find_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(tiny_model_dir, changed)
    with (changed / "model.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        byte = file.read(1)
        file.seek(-2, 2)
        file.write(bytes([byte[0] ^ 1]))
    found = []
    for path, precision in (
        (tiny_model_dir, "fp32"),
        (tiny_model_dir, "bf16"),
        (changed, "fp32"),
        (tiny_model_dir, "fp32"),
    ):
        with LLM(path, "none", precision=precision, prefix_cache_dir=tmp_path / "kept") as llm:
            found.append(llm.generate([PROMPT], GREEDY)[0].stats.cached_tokens)
    assert found == [0, 0, 0, 128]


@pytest.mark.thorough
def test_another_process_finds_it_and_writes_before_it_ends(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Names of files depend on no chance of a process; and one that ends without ``close`` has written."""
    script = f"""
from headstart import LLM, SamplingParams
llm = LLM({str(tiny_model_dir)!r}, "none", precision="fp32", prefix_cache_dir={str(tmp_path)!r})
(output,) = llm.generate([{PROMPT}], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
print(output.stats.cached_tokens)
"""
    said = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    assert [each.stdout.strip() for each in said] == ["0", "128"]


def test_what_cannot_be_kept_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("", tmp_path / "file"):
        with pytest.raises(ConfigError, match=r"prefix_cache_dir is .* which is no directory"):
            LLM(tiny_model_dir, prefix_cache_dir=path)
    with pytest.raises(ConfigError, match=r"prefix_cache_bytes is 1048576; blocks of .* need 1572864 or more"):
        LLM(tiny_model_dir, prefix_cache_dir=tmp_path, prefix_cache_bytes=1 << 20, precision="fp32")
    with pytest.raises(ConfigError, match="is run by transformers' code, which has no prefix_cache_dir"):
        LLM(tiny_model_dir, backend="transformers", prefix_cache_dir=tmp_path)


def test_adapters_find_their_own_alone(tiny_model_dir: Path, tmp_path: Path) -> None:
    """After a restart, too, and whatever they are called there; the same matrices with another weight are others."""
    red = write_adapter(tmp_path / "red", tiny_model_dir, 1)
    blue = write_adapter(tmp_path / "blue", tiny_model_dir, 2)
    louder = write_adapter(tmp_path / "louder", tiny_model_dir, 1, settings={"lora_alpha": 12})

    def said(lora: dict[str, Path], keeps: bool = True) -> dict[str | None, tuple[list[int], int]]:
        kept = {"prefix_cache_dir": tmp_path / "kept"} if keeps else {}
        with LLM(tiny_model_dir, "suffix", precision="fp32", lora=lora, **kept) as llm:
            outputs = {name: llm.generate([PROMPT], GREEDY, lora_request=name)[0] for name in [*lora, None]}
        return {name: (list(output.token_ids), output.stats.cached_tokens) for name, output in outputs.items()}

    first = said({"a": red, "b": blue})
    assert [found for _, found in first.values()] == [0, 0, 0]
    again = said({"b": red, "a": blue, "c": louder})
    assert [found for _, found in again.values()] == [128, 128, 0, 128]
    assert [again["b"][0], again["a"][0], again[None][0]] == [first[name][0] for name in ("a", "b", None)]
    assert again["c"] == said({"c": louder}, keeps=False)["c"]
