"""Writing a model's tokenizer and chat template into a folder in Hugging Face's form."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from headstart.models.checkpoint import Checkpoint
from headstart.text.chat import DEFAULT, gguf_templates
from headstart.text.gguf_tokenizer import read_gguf_tokenizer
from headstart.text.template_files import TEMPLATE_FILE, TEMPLATE_FOLDER

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", TEMPLATE_FILE)
_FILE_NAME = re.compile(r"[\w-]{1,100}")
"""Names of templates that may name a file."""


def save_tokenizer(checkpoint: Checkpoint, directory: Path) -> None:
    """Write what ``Tokenizer`` and ``ChatTemplate`` read of a checkpoint; files of the same names are replaced.

    What ends a sequence beyond its end-of-sequence token stands in ``config.json``, which is not written here.

    Raises:
        CheckpointError: the checkpoint's own tokenizer is missing or damaged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if checkpoint.kind == "hf":
        for name in _FILES:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, directory / name)
        for path in (checkpoint.path / TEMPLATE_FOLDER).glob("*.jinja"):
            (directory / TEMPLATE_FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(path, directory / TEMPLATE_FOLDER / path.name)
        return
    parts = read_gguf_tokenizer(checkpoint.metadata, source=str(checkpoint.path))
    parts.backend.save(str(directory / "tokenizer.json"))
    settings = json.dumps(dict(parts.special_tokens), ensure_ascii=False, indent=2)
    (directory / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")
    for name, template in gguf_templates(checkpoint.metadata).items():
        path = directory / (TEMPLATE_FILE if name == DEFAULT else f"{TEMPLATE_FOLDER}/{name}.jinja")
        if _FILE_NAME.fullmatch(name):
            path.parent.mkdir(exist_ok=True)
            path.write_text(template, encoding="utf-8")
