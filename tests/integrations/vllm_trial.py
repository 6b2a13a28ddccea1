"""Run by vLLM's environment: decodes prompts greedily and prints what was said and what was accepted, as JSON.

    python vllm_trial.py MODEL_DIRECTORY TASK

TASK, as JSON: prompts (lists of token ids), tokens, speculative_config, additional_config.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams


def main(model: str, task: dict[str, Any]) -> dict[str, Any]:
    llm = LLM(
        model, dtype="float32", max_model_len=1024, max_num_seqs=4, enforce_eager=True, enable_prefix_caching=False,
        disable_log_stats=False, speculative_config=task.get("speculative_config"),
        additional_config=task.get("additional_config", {}),
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=task["tokens"], ignore_eos=True, logprobs=2)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in task["prompts"]], params, use_tqdm=False)
    said = [output.outputs[0] for output in outputs]
    counts = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    return {
        "texts": [list(each.token_ids) for each in said],
        "gaps": [[_gap(place) for place in each.logprobs] for each in said],
        "rounds": counts.get("vllm:spec_decode_num_drafts", 0),
        "drafted": counts.get("vllm:spec_decode_num_draft_tokens", 0),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
    }


def _gap(place: dict[int, Any]) -> float:
    """Between the log-probabilities of the two likeliest tokens."""
    best = sorted((each.logprob for each in place.values()), reverse=True)
    return float(best[0] - best[1])


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
