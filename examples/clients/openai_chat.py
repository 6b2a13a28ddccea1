"""Stream an answer of ``headstart serve`` through OpenAI's own client (``pip install openai``)."""

import os
import sys

from openai import OpenAI


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("HEADSTART_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("HEADSTART_API_KEY", "none"),
    )
    (model,) = client.models.list().data
    stream = client.chat.completions.create(
        model=model.id,
        messages=[{"role": "user", "content": "Repeat after me: one, two, three, one, two, three."}],
        max_tokens=60,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"speculation": {"draft_tokens": 6}},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            details = chunk.usage.completion_tokens_details
            accepted = details.accepted_prediction_tokens if details is not None else None
            print(f"\n{chunk.usage.completion_tokens} tokens, {accepted} of them guessed.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
