"""FP32 blocks of rows on a CPU on which sigmoid and SiLU have position-free bits.

torch computes an elementwise function with vector instructions and whatever is left over at the
end of a thread's share with a scalar version, whose last bit may differ; so an element's bits
would depend on where it lies. A Stage pads its memory so that every thread's share is a whole
number of vectors. `share_is_vectors` tests that on the running machine; where it does not hold,
the functions are put together from exp, which has no scalar version.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

VECTOR = 64
"""Elements; a multiple of what any CPU's inner loop takes at once."""

GRAIN = 32_768
"""Elements of a share below which torch starts no further thread."""


class Stage:
    """`rows` is float32 [rows, width], uninitialised; it may be written in any way."""

    def __init__(self, num_rows: int, width: int) -> None:
        used = num_rows * width
        self.flat = torch.empty(padded(used, torch.get_num_threads()))
        self.rows = self.flat[:used].view(num_rows, width)

    def silu_(self) -> None:
        silu_(self.flat)

    def sigmoid_(self) -> None:
        sigmoid_(self.flat)


def padded(size: int, num_threads: int) -> int:
    """The least length ≥ size that torch splits into shares of whole vectors."""
    shares = 0
    length = size
    while shares != (shares := max(1, min(num_threads, -(-length // GRAIN)))):
        step = VECTOR * shares
        length = -(-size // step) * step
    return length


def silu_(flat: Tensor) -> None:
    """x ← x · sigmoid(x), in place, on a Stage's memory."""
    if share_is_vectors(torch.get_num_threads()):
        functional.silu(flat, inplace=True)
    else:
        flat.div_(torch.exp(-flat).add_(1.0))


def sigmoid_(flat: Tensor) -> None:
    """x ← sigmoid(x), in place, on a Stage's memory."""
    if share_is_vectors(torch.get_num_threads()):
        torch.sigmoid_(flat)
    else:
        flat.neg_().exp_().add_(1.0).reciprocal_()


def silu_blocks_(blocks: Tensor) -> None:
    """x ← x · sigmoid(x) in place; blocks contiguous, position-free for any number of blocks."""
    threads = torch.get_num_threads()
    if share_is_vectors(threads) and all_even(blocks[0].numel(), threads):
        functional.silu(blocks, inplace=True)
    else:
        blocks.div_(torch.exp(-blocks).add_(1.0))


@cache
def all_even(size: int, num_threads: int) -> bool:
    """Whether any number of blocks of this size is split into shares of whole vectors."""
    most = num_threads * (GRAIN // size + 1) + 1
    return all(padded(size * n, num_threads) == size * n for n in range(1, most + 1)) and (
        size % (VECTOR * num_threads) == 0 or num_threads == 1
    )


@cache
def share_is_vectors(num_threads: int) -> bool:
    """Whether padding makes the bits of sigmoid and SiLU position-free here. About 10 ms."""
    generator = torch.Generator().manual_seed(0)
    for size in (GRAIN - 1, num_threads * GRAIN + 5, 3 * GRAIN + 1):
        x = torch.randn(padded(size, num_threads), generator=generator).mul_(4.0)
        for function in (torch.sigmoid, functional.silu):
            pieces = [function(piece.clone()) for piece in x.split(VECTOR)]
            if not torch.equal(function(x), torch.cat(pieces)):
                return False
    return True
