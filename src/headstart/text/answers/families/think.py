"""``<think>...</think>``."""

from headstart.text.answers.forms import ThoughtForm

THOUGHTS = (
    ThoughtForm(
        names=(
            *("deepseek_r1", "qwen3", "deepseek_v3", "deepseek_v31", "deepseek_v32", "glm45", "glm47"),
            *("kimi_k2", "minimax_m2", "nemotron_v3", "olmo3", "step3", "holo2", "exaone4", "smollm3"),
        ),
        models="DeepSeek, Qwen3, GLM, MiniMax, Nemotron 3, Kimi K2, SmolLM3, EXAONE and others",
        opening="<think>",
        closing="</think>",
    ),
)
