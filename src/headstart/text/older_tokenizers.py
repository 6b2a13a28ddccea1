"""Tokenizers of Hugging Face directories that are older than ``tokenizer.json``.

They are sentencepiece's ``tokenizer.model``, or ``vocab.json`` with ``merges.txt``. transformers knows how each class
of them reads text, and converts them; but for Marian's (``marian_tokenizer``) and M2M100's (``m2m_tokenizer``).
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

from headstart.errors import CheckpointError
from headstart.text.m2m_tokenizer import is_m2m, m2m_tokenizer
from headstart.text.marian_tokenizer import has_two_vocabularies, is_marian, marian_tokenizer

_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json")
_EXTRA = "install headstart with its extra: headstart[transformers]"


def converted_tokenizer(directory: Path) -> str:
    """What a ``tokenizer.json`` of the directory would hold.

    Raises:
        CheckpointError: it has no tokenizer, a damaged one, or one that nothing here can convert.
    """
    if is_marian(directory):
        return marian_tokenizer(directory, of_target=has_two_vocabularies(directory))
    if is_m2m(directory):
        return m2m_tokenizer(directory)
    found = next((name for name in _FILES if (directory / name).exists()), None)
    if found is None:
        raise CheckpointError(
            f"{directory} has no tokenizer.json; write one with transformers: "
            "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)."
        )
    try:
        import sentencepiece  # noqa: F401
        from transformers import AutoTokenizer
    except ImportError as error:
        raise CheckpointError(
            f"{directory} has no tokenizer.json but {found}, which {error.name} converts; {_EXTRA}."
        ) from error
    noisy = logging.getLogger("transformers")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    # A damaged file shows in whatever its reader stumbles over.
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{directory / found} cannot be converted ({reason:.200}); fetch it again.") from error
    finally:
        noisy.setLevel(level)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError(
            f"{directory / found} is read by Python code of transformers alone, which is not served; use a model "
            "with a tokenizer.json."
        )
    text: str = backend.to_str()
    return text
