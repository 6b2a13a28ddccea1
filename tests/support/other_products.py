"""PyTorch's products rounded as another processor may round them: ``HEADSTART_TEST_PRODUCTS=N`` of the environment.

PyTorch promises no order of a product's sums: its libraries choose one by the processor, the number of rows, and for
rows at the edge of a block. A test that holds for one order alone fails on somebody's machine. N seeds an order for
each shape: the inner axis is summed in two parts, cut elsewhere for the last rows. A sound test passes for every N.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

VARIABLE = "HEADSTART_TEST_PRODUCTS"
_EDGE = 4
_LIBRARIES: list[torch.library.Library] = []
"""What they replace stays replaced while they live."""


def change_products(seed: int) -> None:
    """Replaces products of matrices on the CPU, for the rest of the process and on all its threads: plain ones, and
    those by matrices that oneDNN has packed (float32 alone: a part of a bfloat16 product would be rounded twice)."""

    def cuts(rows: int, inner: int, columns: int) -> Iterator[tuple[slice, int]]:
        """Rows, and where their sums are cut."""
        order = random.Random(f"{seed} {rows} {inner} {columns}")
        whole = rows - rows % _EDGE
        for first, last in ((0, whole), (whole, rows)):
            if last > first:
                yield slice(first, last), order.randrange(1, inner) if inner > 1 else 0

    def joined(made: list[Tensor]) -> Tensor:
        return made[0] if len(made) == 1 else torch.cat(made, -2)

    def product(left: Tensor, right: Tensor) -> Tensor:
        """Of matrices, or of batches of them; in float32 at least, as processors add."""
        plain = torch.ops.aten.mm.out if left.dim() == 2 else torch.ops.aten.bmm.out

        def multiplied(one: Tensor, other: Tensor) -> Tensor:
            out = torch.empty((*one.shape[:-1], other.shape[-1]), dtype=one.dtype)
            plain(one, other, out=out)
            return out

        if not left.dtype.is_floating_point or not left.shape[-2]:
            return multiplied(left, right)
        if left.dtype.itemsize < 4:
            left, right = left.float(), right.float()
        rows, inner = left.shape[-2:]
        return joined(
            [
                multiplied(left[..., part, :cut], right[..., :cut, :]).add_(
                    multiplied(left[..., part, cut:], right[..., cut:, :])
                )
                for part, cut in cuts(rows, inner, right.shape[-1])
            ]
        )

    def rounded(left: Tensor, right: Tensor) -> Tensor:
        return product(left, right).to(left.dtype)

    def added(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        found = product(left, right) if alpha == 1 else product(left, right) * alpha
        return (found if beta == 0 else found + bias * beta).to(left.dtype)

    def packed(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: object) -> Tensor:
        """What is cut off is zero: so much of a packed matrix is not multiplied."""
        add, columns = torch.ops.mkldnn._linear_pointwise.binary, weight.shape[0]
        if x.dtype != torch.float32 or not len(x):
            return add(x, x.new_zeros(len(x), columns), weight, bias, "add")
        made = []
        for part, cut in cuts(len(x), x.shape[1], columns):
            left = x[part].clone()
            right = left.clone()
            left[:, cut:], right[:, :cut] = 0, 0
            sums = add(left, x.new_zeros(len(left), columns), weight, None, "add")
            made.append(add(right, sums, weight, bias, "add"))
        return joined(made)

    by_library: list[tuple[str, str, dict[str, Callable[..., Tensor]]]] = [
        ("aten", "CPU", {"mm": rounded, "bmm": rounded, "addmm": added, "baddbmm": added}),
        ("mkldnn", "MkldnnCPU", {"_linear_pointwise": packed}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of what is meant here
        for namespace, key, kernels in by_library:
            library = torch.library.Library(namespace, "IMPL")
            _LIBRARIES.append(library)
            for name, kernel in kernels.items():
                library.impl(name, kernel, key)
