"""Names that options have in llama.cpp, Ollama and vLLM: taken where they mean the same, else explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any

from headstart.common.other_names import NO_SHIFT

SAME: Mapping[str, tuple[str, ...]] = {
    "--max-tokens": ("-n", "--n-predict", "--predict", "--num-predict"),
    "--max-context": ("-c", "--ctx-size", "--num-ctx"),
    "--threads": ("--num-thread",),
    "--temperature": ("--temp",),
    "--repetition-penalty": ("--repeat-penalty",),
    "--seed": ("-s",),
    "--chat-template": ("--chat-template-file",),
    "--system": ("-sys", "--system-prompt"),
    "--draft-model": ("-md", "--model-draft", "--spec-draft-model"),
    "--draft-tokens": ("--draft", "--draft-max", "--draft-n", "--spec-draft-n-max"),
    "--batch-size": ("-np", "--parallel"),
    "--stop": ("-r", "--reverse-prompt"),
    "--served-name": ("-a", "--alias"),
    "--allow-origin": ("--allowed-origins",),
}
"""A name here -> what it is called elsewhere, besides the names that stand beside the options of the engine."""

_LAYERS = "a model is computed on one device; choose it with --device (cuda, cpu)"
_MEMORY = "how weights lie in memory is Headstart's own business; leave it out"
_CACHE_TYPE = "keys and values of the cache have the precision of the pass (--precision); leave it out"
_BATCH = "how many rows a pass has is chosen by itself (of serve: --max-rows-per-pass); leave it out"
_ONE_DEVICE = "a model runs on one device; of replicas, see --ray of headstart serve"
_KEY = "others can read a command line; put keys into a file (--api-key-file) or into HEADSTART_API_KEYS"
_TALK = "headstart chat converses, headstart generate --chat answers one message"
_ALWAYS = "it is so already; leave it out"
_DRAFTS = "drafters decide it by themselves; see headstart drafters NAME for the options of one, --drafter-option"
_TEXT_FILE = "pipe the text in: headstart generate < FILE"
_JSON = "ask a server for structured output (response_format); --json prints the command's own results so"
_SAMPLER = "there is no such sampler; see the options under Sampling in --help-all"

HINTS: Mapping[str, str] = {
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers", "-ngld", "--n-gpu-layers-draft", "--num-gpu"), _LAYERS),
    **dict.fromkeys(("-dev", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"), _LAYERS),
    **dict.fromkeys(("--mlock", "--mmap", "--no-mmap", "--numa", "-nr", "--no-repack", "--swap-space"), _MEMORY),
    **dict.fromkeys(("-fa", "--flash-attn", "-cb", "--cont-batching", "--log-disable", "--no-warmup"), _ALWAYS),
    **dict.fromkeys(("--jinja", "--enable-chunked-prefill", "--disable-log-requests", "--color"), _ALWAYS),
    **dict.fromkeys(("--enable-auto-tool-choice", "--enable-reasoning"), _ALWAYS),
    **dict.fromkeys(("--disable-log-stats", "--no-display-prompt", "--simple-io"), _ALWAYS),
    **dict.fromkeys(("-ctk", "-ctv", "--cache-type-k", "--cache-type-v", "--kv-cache-dtype"), _CACHE_TYPE),
    **dict.fromkeys(("-b", "-ub", "--ubatch-size"), _BATCH),
    **dict.fromkeys(("-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "-dp"), _ONE_DEVICE),
    **dict.fromkeys(("--data-parallel-size", "--num-gpus"), _ONE_DEVICE),
    **dict.fromkeys(("-cnv", "--conversation", "-no-cnv", "--no-conversation", "-i", "--interactive"), _TALK),
    **dict.fromkeys(("-st", "--single-turn", "-if", "--interactive-first"), _TALK),
    **dict.fromkeys(("--draft-min", "--draft-n-min", "--draft-p-min", "--draft-p-split"), _DRAFTS),
    **dict.fromkeys(("-f", "--file", "-bf", "--binary-file"), _TEXT_FILE),
    **dict.fromkeys(("-j", "--json-schema", "--grammar", "--grammar-file"), _JSON),
    **dict.fromkeys(("--mirostat", "--typical-p", "--xtc-probability", "--dry-multiplier", "--samplers"), _SAMPLER),
    **dict.fromkeys(("-p", "--prompt"), "a prompt is given to headstart generate"),
    "-t": "threads are of the commands that run a model; a temperature is given with --temperature",
    **dict.fromkeys(("-tb", "--threads-batch"), "all passes have the same threads (--threads)"),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo"), "give the repository as --model ORG/NAME"),
    **dict.fromkeys(("-mu", "--model-url"), "fetch the file, and give it as --model FILE.gguf"),
    "--api-key": _KEY,
    "--quantization": "how a file is quantised is read off it; what passes are computed in is --precision",
    "--gpu-memory-utilization": "the cache's size is given in tokens: --cache-tokens of headstart serve",
    **dict.fromkeys(("--repeat-last-n", "--repeat-last"), "the penalty looks at the whole text; leave it out"),
    "--keep": "the oldest turns of a chat are left out where room is short, the system message stays; leave it out",
    "--context-shift": NO_SHIFT,
    "--no-context-shift": _ALWAYS,
    "--keepalive": "a server keeps its model until it ends; leave it out",
    "--verbose": "a summary is shown unless --quiet is given",
    "--verbose-prompt": "--json shows prompts' counts; leave it out",
    "--think": "give it in a request of a server: chat_template_kwargs",
    "--logit-bias-file": "it is given as --logit-bias ID=BIAS",
}
"""What is called so elsewhere and cannot be had by this name -> what to do instead."""

COMMANDS: Mapping[str, str] = {
    "run": "headstart chat --model M talks with a model, headstart generate continues one text",
    "cli": "headstart generate continues a text, headstart chat talks",
    "complete": "headstart generate continues a text",
    "completion": "headstart generate continues a text",
    "server": "it is called headstart serve here",
    "start": "it is called headstart serve here",
    "pull": "a model is fetched when it is first used: headstart generate --model ORG/NAME",
    "download": "a model is fetched when it is first used: headstart generate --model ORG/NAME",
    "list": "models lie where --model says, or in the hub's cache (HF_HOME)",
    "ls": "models lie where --model says, or in the hub's cache (HF_HOME)",
    "ps": "a server tells its model at /v1/models",
    "show": "headstart drafters shows drafters; what a model is, its files say",
    "run-batch": "headstart generate --prompts FILE.jsonl works through a file",
    "eval": "headstart quality measures quality, headstart audit exactness",
    "perplexity": "headstart quality measures it",
    "quantize": "--precision chooses what a model is computed in; nothing has to be made",
    "help": "headstart --help shows all commands, headstart COMMAND --help one of them",
}
"""Commands of other programs -> what to call instead."""


def take_other_names(params: Sequence[Any]) -> None:
    """Let options be given by what they are called elsewhere, unless another one is called so here."""
    taken = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    for param in params:
        for names in (param.opts, param.secondary_opts):
            others = [other for name in tuple(names) for other in SAME.get(name, ()) if other not in taken]
            names += others
            taken.update(others)


def own_names(names: Sequence[str]) -> list[str]:
    """Without what they are called elsewhere."""
    others = {other for name in names for other in SAME.get(name, ())}
    long = [name for name in names if name.startswith("--")]
    if len(long) > 1 or any(name.startswith("--no-") for name in long):
        others |= _elsewhere()
    return [name for name in names if name not in others]


def _elsewhere() -> set[str]:
    """What declared options are called in other programs, and switches that turn off what is off."""
    # Imported here: the page of all commands has no such options, and is quick without.
    from headstart.cli.commands import every

    return _declared_elsewhere(tuple(each.arguments for each in every().values() if each.arguments))


@cache
def _declared_elsewhere(kinds: tuple[str, ...]) -> set[str]:
    """The same of the options that these ``module:class`` declare."""
    from headstart.common.option_values import dashed
    from headstart.common.options import declared

    options = [option for kind in kinds for option in declared(resolve_name(kind))]
    names = {name for each in options for name in (*each.option.elsewhere, *each.option.opposites)}
    off = {dashed(f"no_{each.name}") for each in options if each.default is False}
    return off | {dashed(name) for name in names} | {dashed(f"no_{name}") for name in names}


def hints(words: Sequence[str], params: Sequence[Any]) -> dict[str, str]:
    """Names among a call's words that only other programs know -> what to do instead."""
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    given = (word.partition("=")[0] for word in words if word.startswith("-"))
    return {name: HINTS[name] for name in given if name in HINTS and name not in known}
