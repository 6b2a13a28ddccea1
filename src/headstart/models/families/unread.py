"""What is known of models that have no description here: the mechanisms that no decoder of this package has.

Sources: transformers' models of these names, and llama.cpp's src/models.
"""

from __future__ import annotations

from collections.abc import Mapping

LACKING: Mapping[str, str] = dict.fromkeys(
    ("deepseek_v4", "deepseek4"), "attention to compressed keys, and experts chosen by a table of tokens"
)
"""``model_type`` or ``general.architecture`` -> what its layers need that is not built."""
