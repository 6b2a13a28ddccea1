"""Decode one prompt with several drafters: the text is the same each time, the number of rounds is not."""

import sys

from headstart import LLM, SamplingParams

PROMPT = """\
def area_of_square(side):
    \"""Return the area of a square.\"""
    return side * side


def area_of_rectangle("""


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=96)
    model = LLM("smollm2", drafter="none").model
    texts = set()
    for drafter in ("none", "ngram", "prompt-lookup", "suffix", "recycling", "early-exit"):
        llm = LLM(model, drafter)
        (output,) = llm.generate(PROMPT, params)
        stats = output.stats
        texts.add(output.text)
        print(
            f"{drafter:14} {stats.rounds:3} rounds, {stats.mean_accepted_length:.2f} tokens a round, "
            f"{stats.tokens_per_second:.1f} tokens/s"
        )
    print(f"\n{len(texts)} different text(s):", *texts, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
