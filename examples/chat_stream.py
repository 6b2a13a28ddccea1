"""Chat in the terminal; answers appear as they are decoded. An empty line ends it."""

from headstart import LLM, SamplingParams


def main() -> None:
    llm = LLM("smollm2", drafter="prompt-lookup")
    messages = [{"role": "system", "content": "You are a helpful assistant. Keep answers short."}]
    while question := input("you: ").strip():
        messages.append({"role": "user", "content": question})
        answer = ""
        print("model: ", end="")
        for piece in llm.stream(messages=messages, sampling_params=SamplingParams(temperature=0, max_tokens=256)):
            print(piece, end="", flush=True)
            answer += piece.text
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
