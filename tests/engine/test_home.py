"""A process that was forked after a model was loaded says so, where it would wait for threads that it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, os, sys, warnings
from headstart import LLM, AsyncLLM, ConfigError, SamplingParams

warnings.simplefilter("ignore")
params = SamplingParams(temperature=0, max_tokens=4)
llm = LLM(sys.argv[1], "none")
text = llm.generate("hello", params)[0].text
served = AsyncLLM(sys.argv[1], "none")
child = os.fork()
if not child:
    said = []
    try:
        said.append(llm.generate("hello", params)[0].text == text)
    except ConfigError as error:
        said.append(str(error))

    async def ask():
        async for _ in served.generate("hello", params):
            pass

    try:
        asyncio.run(ask())
    except ConfigError as error:
        said.append(str(error))
    print(*said, sep="\\n", flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert llm.generate("hello", params)[0].text == text
served.close() if not asyncio.iscoroutinefunction(served.close) else asyncio.run(served.close())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_says_what_it_lacks(threads: int, tiny_model_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_model_dir)],
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    own, served = done.stdout.splitlines()
    assert (own == "True") if threads == 1 else "forked from the one that loaded the model" in own
    assert "load the model in this process" in served
    assert done.returncode == 0, done.stderr
