"""Chat in the terminal; answers appear as they are decoded. An empty line, Ctrl-D or Ctrl-C ends it."""

import sys

from headstart import LLM, SamplingParams


def asked() -> str:
    """What the user says; empty: nothing more."""
    try:
        return input("you: ").strip()
    except EOFError:
        print()
        return ""


def main() -> None:
    llm = LLM("smollm2", drafter="prompt-lookup")
    messages = [{"role": "system", "content": "You are a helpful assistant. Keep answers short."}]
    while question := asked():
        messages.append({"role": "user", "content": question})
        answer = ""
        print("model: ", end="")
        for piece in llm.stream(messages=messages, sampling_params=SamplingParams(temperature=0, max_tokens=256)):
            print(piece, end="", flush=True)
            answer += piece.text
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
