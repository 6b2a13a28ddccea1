"""Decode several prompts together, each with its own sampling, and see what speculation did for each."""

import sys

from headstart import LLM, SamplingParams

PROMPTS = {
    "The capital of France is": SamplingParams(temperature=0, max_tokens=24),
    "Once upon a time": SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=48),
    "def fibonacci(n):": SamplingParams(temperature=0, max_tokens=64, stop=("\n\n\n",)),
}


def main() -> None:
    llm = LLM("smollm2", drafter="ngram")
    for output in llm.generate(list(PROMPTS), list(PROMPTS.values())):
        stats = output.stats
        print(f"--- {output.prompt} ({output.finish_reason})\n{output.text}")
        print(
            f"[{stats.tokens} tokens in {stats.rounds} rounds, acceptance rate {stats.acceptance_rate:.0%}, "
            f"mean accepted length {stats.mean_accepted_length:.2f}]\n"
        )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
