"""Structured outputs as languages over tokens, followed by llguidance (docs/decisions/0009)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.foreseeing import BlankHabits, Foresight, first_bytes
from headstart.text.grammar_trial import GrammarTrial, TooCostlyError
from headstart.text.tokenizer import Tokenizer

_LIMITS = {"initial_lexer_fuel": 200_000, "verbose_errors": False}
"""A tenth of a second at most for a regular expression, where llguidance's own limit allows seconds."""

_CACHED_GRAMMARS = 32
"""Of up to 10 MB each."""
_FIELD = "structured_outputs"
_FEWEST, _MOST_AT_FIRST, _MOST = 2, 8, 32
"""Tokens that are foreseen at once: twice as many after all have held, few after a miss (a model may cut texts
otherwise, or want other white space), so that rows of the pass are not spent in vain."""


class Constraint:
    """Implements ``engine.constraint.TokenConstraint`` with one matcher that stands after the committed output.

    A matcher that fails stays so, and guesses may take it where the output never comes. So after a failure a new one is
    led along the output alone: what it says then, it says without guesses, too.

    Args:
        matcher: at the beginning of the output; it is left there.
        foresight: of the vocabulary; None: nothing is foreseen.
    """

    def __init__(
        self, matcher: Any, vocab_size: int, end_tokens: frozenset[int], foresight: Foresight | None = None
    ) -> None:
        self._foresight = foresight
        self._habits = BlankHabits()
        self._most = _MOST_AT_FIRST
        """Tokens that are foreseen, by how many held lately."""
        self._expected: list[int] = []
        self._held = 0
        self._first = matcher
        self._matcher = matcher.deep_copy()
        self._said: list[int] = []
        self._vocab_size = vocab_size
        self._end_tokens = end_tokens

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """As ``TokenConstraint.mask``. The matcher walks down the path and back."""
        bits = self._bits(path)
        if self._matcher.is_error() and not path:
            self._begin_again()
            bits = self._bits(path)
        self._check()
        if bits is None:
            return np.ones(self._vocab_size, dtype=np.bool_)
        allowed = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=self._vocab_size, bitorder="little")
        return allowed.view(np.bool_)

    def allowed(self, path: Sequence[int]) -> int:
        """As ``TokenConstraint.allowed``. A token that would end the output counts wherever it stands first."""
        end = self._before_end(path)
        valid: int = self._matcher.validate_tokens(path[:end])
        self._check()
        return valid + (valid == end < len(path))

    def foreseen(self, path: Sequence[int], most: int) -> list[int]:
        """As ``Foreseeing.foreseen``."""
        if self._foresight is None or self._matcher.is_error():
            return []
        matcher, habits = self._matcher.deep_copy(), self._habits.copy()
        if path and (self._before_end(path) < len(path) or not matcher.consume_tokens(list(path))):
            return []
        habits.read(b"".join([self._foresight.spell(token) for token in path]))
        found = self._foresight.tokens(matcher, habits, min(most, self._most))
        if not path:
            self._expected, self._held = found[::-1], 0
        return found

    def advance(self, token: int) -> None:
        """As ``TokenConstraint.advance``."""
        self._said.append(token)
        if self._expected:
            held = self._expected.pop() == token
            self._held += held
            if not held:
                self._most, self._expected = max(self._held + 1, _FEWEST), []
            elif not self._expected:
                self._most = min(2 * max(self._most, self._held), _MOST)
        if self._foresight is not None:
            self._habits.read(self._foresight.spell(token))
        self._matcher.consume_token(token)

    def _bits(self, path: Sequence[int]) -> bytes | None:
        """What may follow, a bit for each token; None: anything, after a forbidden token or the end."""
        if path and (self._before_end(path) < len(path) or self._matcher.validate_tokens(path) < len(path)):
            return None
        if path and not self._matcher.consume_tokens(path):
            return None
        bits: bytes = self._matcher.compute_bitmask()
        if not self._matcher.is_error():
            self._matcher.rollback(len(path))
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _reason(self._matcher.get_error())
            self._begin_again()
            raise RequestError(f"structured_outputs cannot be followed any further: {reason}.", _FIELD)

    def _begin_again(self) -> None:
        self._matcher = self._first.deep_copy()
        for token in self._said:
            self._matcher.consume_token(token)

    def _before_end(self, path: Sequence[int]) -> int:
        return next((i for i, token in enumerate(path) if token in self._end_tokens), len(path))


class GrammarCompiler:
    """Makes constraints for one model.

    Args:
        tokenizer: spells the tokens.
        vocab_size: of the model's logits, which may have more rows than the tokenizer has tokens.
        end_tokens: what ends an output; at least one.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_tokens: Sequence[int]) -> None:
        self._library = _llguidance()
        if not end_tokens:
            raise RequestError(
                "structured_outputs is given, but this model has no end-of-sequence token to end with.", _FIELD
            )
        self._vocab_size = vocab_size
        self._end_tokens = frozenset(end_tokens)
        spelling = _Spelling(tokenizer, vocab_size, end_tokens[0])
        self._trial = GrammarTrial(spelling.vocabulary, end_tokens, _LIMITS)
        self._tokens = self._library.LLTokenizer(spelling, n_vocab=vocab_size, eos_token=list(end_tokens))
        self._foresight = Foresight(spelling, tokenizer.token_bytes, self._tokens.greedy_tokenize, spelling.first_bytes)
        self._matcher = lru_cache(maxsize=_CACHED_GRAMMARS)(self._compiled)

    def constraint(self, wanted: StructuredOutputsParams) -> Constraint:
        """A constraint at the beginning of its output.

        Raises:
            RequestError: schema or expression are wrong, cannot be enforced, or are too complex.
        """
        matcher = self._matcher(wanted)
        if isinstance(matcher, RequestError):
            raise RequestError(str(matcher), matcher.field)
        return Constraint(matcher, self._vocab_size, self._end_tokens, self._foresight)

    def _compiled(self, wanted: StructuredOutputsParams) -> Any:
        """A matcher; or why there is none, which is remembered as well."""
        try:
            complaint, grammar = self._trial.grammar(wanted)
        except RequestError as error:
            return error
        except TooCostlyError:
            return RequestError(
                "structured_outputs takes too long or too much memory to compile; give a simpler one.", _FIELD
            )
        except OSError as error:
            raise RequestError(f"structured_outputs cannot be compiled now: {error.strerror}.", _FIELD) from error
        matcher = None
        if not complaint:
            limits = self._library.LLParserLimits(**_LIMITS)
            matcher = self._library.LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
            complaint = matcher.get_error() if matcher.is_error() else ""
        return (
            RequestError(f"structured_outputs cannot be enforced: {_reason(complaint)}.", _FIELD)
            if complaint
            else matcher
        )


class _Spelling:
    """A tokenizer as llguidance wants to see it (``llguidance.TokenizerWrapper``)."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token: int) -> None:
        self.eos_token_id = end_token
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    @property
    def first_bytes(self) -> NDArray[np.int16]:
        """[vocab] as ``foreseeing.first_bytes``."""
        return first_bytes(self.tokens, self.special_token_ids)

    @property
    def vocabulary(self) -> dict[str, object]:
        """What llguidance reads of it, but for its texts."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def _llguidance() -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise RequestError(
            "structured_outputs is given, which needs llguidance; install headstart with its extra: "
            "headstart[structured].",
            _FIELD,
        ) from error
    return llguidance


def _reason(message: str) -> str:
    """What is wrong, in one line: parsers point at the place on the lines around it."""
    _, found, reason = message.rpartition("error: ")
    lines = (reason if found else message).strip().splitlines() or ["no reason is given"]
    return re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", lines[0]).strip().rstrip(".")
