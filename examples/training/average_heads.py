"""The mean of trained heads: of trainings that began from one another, it often guesses better than any of them.

    python examples/training/average_heads.py --out heads/mean heads/third=0.5 heads/fourth=0.5

The heads must be of one kind and shape, with the same draft vocabulary (Wortsman et al. 2022, arXiv:2203.05482, "model
soups"). Their shares are divided by their sum. The mean's ``config.json`` records what each of them was trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def average(heads: list[tuple[Path, float]], out: Path) -> None:
    """Write the mean of these heads, with their shares, into the directory ``out``.

    Raises:
        ValueError: the heads differ in more than their weights.
    """
    total = sum(share for _, share in heads)
    first, _ = heads[0]
    config, records = _described(first)
    like = load_file(first / "model.safetensors")
    mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in like.items()}
    averaged = []
    for head, share in heads:
        its_config, its_record = _described(head)
        tensors = load_file(head / "model.safetensors")
        if its_config != config or {name: part.shape for name, part in tensors.items()} != {
            name: part.shape for name, part in like.items()
        }:
            raise ValueError(f"{head} and {first} are heads of different shapes or settings")
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                mean[name] += tensor.double() * (share / total)
            elif not torch.equal(tensor, like[name]):
                raise ValueError(f"{head} and {first} have different draft vocabularies ({name})")
        averaged.append({"share": share / total, **its_record})
    out.mkdir(parents=True, exist_ok=True)
    written = {
        name: mean[name].to(part.dtype) if part.is_floating_point() else part.clone() for name, part in like.items()
    }
    save_file(written, out / "model.safetensors", metadata={"format": "pt"})
    of_all = {key: records[key] for key in ("head", "target", "target_digest") if key in records}
    (out / "config.json").write_text(
        json.dumps({**config, "headstart": {**of_all, "averaged": averaged}}, indent=2) + "\n"
    )


def _described(head: Path) -> tuple[dict[str, object], dict[str, object]]:
    """What a head is, and the record of its training."""
    config = json.loads((head / "config.json").read_text())
    return config, config.pop("headstart", {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heads", nargs="+", metavar="DIR=SHARE", help="a head and its share of the mean")
    parser.add_argument("--out", type=Path, required=True, help="directory of the mean")
    options = parser.parse_args()
    try:
        pairs = [each.rpartition("=") for each in options.heads]
        average([(Path(path), float(share)) for path, _, share in pairs], options.out)
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
