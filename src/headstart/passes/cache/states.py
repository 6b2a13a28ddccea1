"""Which slot holds a state, and which token it follows.

A *state* is what the layers that are not attention know of a text after one of its tokens. It has one size, however
long the text is, and it cannot be taken back token by token. So nobody changes one: a pass reads the state before its
rows and writes those after them to slots of their own. Whoever holds a slot may share it, and a rejected guess leaves
nothing behind but a slot that is free again.

States that nobody holds are kept for later, known by the physical slot of the token that they follow, until their own
slot or that of the token is needed. Those after a block's last token serve other sequences; the others serve a sequence
that is rolled back, and go first. The bytes belong to the backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headstart.errors import CacheError
from headstart.passes.cache.blocks import BlockAllocator

NO_STATE = -1
"""In place of a slot: a row after which no state is wanted, or a text of which nothing has been read."""
_SPACING = 8
"""A prompt's states are kept after every so many blocks, where there is room, and after its last whole one."""


@dataclass
class HeldStates:
    """Those of one sequence."""

    current: int = NO_STATE
    """The slot of the state after its tokens."""
    pending: list[int] = field(default_factory=list)
    """[reserved row] that of the state after it."""
    pool: list[int] = field(default_factory=list)
    """Slots of states after reserved rows of which it is not known yet which ones."""

    @property
    def stands(self) -> bool:
        """Whether it has read anything."""
        return self.current != NO_STATE

    @property
    def slots(self) -> list[int]:
        return [slot for slot in (self.current, *self.pending, *self.pool) if slot != NO_STATE]


@dataclass(frozen=True)
class Mark:
    """Where a sequence has stood."""

    length: int
    held: HeldStates


class StateSlots:
    """Slots of states, held or kept.

    Args:
        num_states: how many there are; 0: the model has no states.
        block_size: tokens of a cache block.
    """

    def __init__(self, num_states: int, block_size: int) -> None:
        self.allocator = BlockAllocator(num_states, self._forget_state, "slot of a state")
        self._block_size = block_size
        self._after: dict[int, int] = {}
        """Physical slot of a token -> the state that follows it."""
        self._token_of: dict[int, int] = {}
        """The same the other way round."""

    @property
    def num_states(self) -> int:
        return self.allocator.num_blocks

    def after(self, token: int) -> int | None:
        """The state after the token in a physical slot, if it is still there."""
        return self._after.get(token)

    def after_block(self, block: int) -> int | None:
        """The same after a block's last token."""
        return self._after.get(self._last_token(block))

    def keeps(self, state: int) -> bool:
        """Whether a slot's contents may be asked for again."""
        return state in self._token_of

    def move(self, block: int, other: int) -> None:
        """The same tokens are known by another block from now on; a state after it that is there already stays."""
        token, to = self._last_token(block), self._last_token(other)
        state = self._after.get(token)
        if state is not None and to not in self._after:
            del self._after[token]
            self._after[to], self._token_of[state] = state, to

    def forget_tokens(self, tokens: Iterable[int]) -> None:
        """Other tokens will stand in these physical slots."""
        if self._after:
            for token in tokens:
                self._forget_token(token)

    def forget_blocks(self, blocks: Iterable[int]) -> None:
        """The same for whole blocks."""
        size = self._block_size
        self.forget_tokens(block * size + offset for block in blocks for offset in range(size))

    def allocate(self, rows: int, final: bool) -> list[int]:
        """[row] slots of the states after rows that are reserved; ``final``: after the last one alone.

        Raises:
            OutOfBlocksError: too few are free; nothing was taken.
        """
        if not final or not rows:
            return self.allocator.allocate(rows)
        return [NO_STATE] * (rows - 1) + self.allocator.allocate(1)

    def allocate_spare(self, held: HeldStates, length: int, rows: int) -> None:
        """More of them, as far as there is room: after rows with which others may begin.

        Args:
            held: of a sequence of ``length`` tokens.
            rows: that are reserved after them.
        """
        size, end = self._block_size, length + rows
        last, step = end // size * size, size * _SPACING
        for place in sorted({last, *range((length // step + 1) * step, last, step)}):
            row = place - length - 1
            if 0 <= row < rows and held.pending[row] == NO_STATE and self.allocator.num_free:
                (held.pending[row],) = self.allocator.allocate(1)

    def keep(self, block: int) -> int:
        """A slot, to be filled, for the state after a block's last token; nobody holds it. One must be free."""
        (state,) = self.allocator.allocate(1)
        self._learn(state, self._last_token(block))
        self._release([state])
        return state

    def place(self, held: HeldStates, after: Sequence[int]) -> None:
        """Say which slots of its pool are after which reserved rows: [row], ``NO_STATE``: none."""
        for row, slot in enumerate(after):
            if slot != NO_STATE:
                held.pool.remove(slot)
                held.pending[row] = slot

    def commit(self, held: HeldStates, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """A sequence stands after the last of some reserved rows, which have become its tokens.

        Args:
            tokens: [row] their physical slots.
        """
        last = held.pending[rows[-1]]
        if last == NO_STATE:
            raise CacheError(f"no state was reserved after row {rows[-1]}.")
        for row, token in zip(rows, tokens, strict=True):
            if held.pending[row] != NO_STATE:
                self._learn(held.pending[row], token)
        self.share(held, last)
        self.drop_pending(held)

    def go_back(self, held: HeldStates, tokens: Sequence[int]) -> int:
        """Let a sequence stand after the last of its tokens, by their physical slots, whose state is kept; how many
        tokens that leaves."""
        for length in range(len(tokens), 0, -1):
            state = self.after(tokens[length - 1])
            if state is not None:
                self.share(held, state)
                return length
        self.leave(held)
        return 0

    def share(self, held: HeldStates, state: int) -> None:
        """A sequence stands after a state that is held or kept."""
        self.allocator.share([state])
        self.replace(held, HeldStates(state))

    def fork(self, held: HeldStates) -> HeldStates:
        """One more holder of where a sequence stands."""
        if held.stands:
            self.allocator.share([held.current])
        return HeldStates(held.current)

    def replace(self, held: HeldStates, by: HeldStates) -> None:
        """A sequence stands where another holder did."""
        if held.stands:
            self._release([held.current])
        held.current = by.current

    def leave(self, held: HeldStates) -> None:
        """A sequence has read nothing any more."""
        self.replace(held, HeldStates())
        self.drop_pending(held)

    def drop_pending(self, held: HeldStates) -> None:
        """Its rows are no longer reserved."""
        if held.pending:
            self._release([state for state in (*held.pending, *held.pool) if state != NO_STATE])
            held.pending, held.pool = [], []

    def check(self, holders: Sequence[HeldStates]) -> None:
        """Integrity.

        Raises:
            CacheError: naming the first fault.
        """
        self.allocator.check([held.slots for held in holders])
        for token, state in self._after.items():
            if self._token_of.get(state) != token:
                raise CacheError(f"the state in slot {state} is known by a token that it does not follow.")

    def _last_token(self, block: int) -> int:
        return (block + 1) * self._block_size - 1

    def _learn(self, state: int, token: int) -> None:
        """A state follows the token in a physical slot. One that is known already stays where it is."""
        if state not in self._token_of:
            self._forget_token(token)
            self._after[token], self._token_of[state] = state, token

    def _release(self, states: Sequence[int]) -> None:
        """One holder less; those that are known are kept for later."""
        self.allocator.release(states, self.keeps, self._ends_no_block)

    def _ends_no_block(self, state: int) -> bool:
        return (self._token_of[state] + 1) % self._block_size != 0

    def _forget_token(self, token: int) -> None:
        state = self._after.pop(token, None)
        if state is not None:
            del self._token_of[state]
            self.allocator.discard(state)

    def _forget_state(self, state: int) -> None:
        """A kept state's slot is handed out again."""
        del self._after[self._token_of.pop(state)]
