"""Whatever goes wrong while a request is computed ends that request alone."""

from __future__ import annotations

import logging

from headstart.common.memory import is_lack_of_memory
from headstart.engine.beams import BeamGroup
from headstart.engine.sequence import Sequence
from headstart.errors import LogitsError, RequestError

_log = logging.getLogger(__name__)


def end_alone(whose: Sequence | BeamGroup, error: Exception) -> None:
    """End a sequence, or a search, with an error. What is no fault of the request's is told in the log."""
    if isinstance(error, RequestError):
        whose.fail(str(error), refused=not isinstance(error, LogitsError), field=error.field)
        return
    first = (whose if isinstance(whose, Sequence) else whose.head).id
    if is_lack_of_memory(error):
        _log.error("there was no memory to compute request %d, which ends with an error.", first)
        whose.fail("there was no memory for the pass that computed this request.", out_of_memory=True)
        return
    _log.error("the pass that computed request %d failed; it ends with an error.", first, exc_info=error)
    whose.fail("the pass that computed this request failed.")


def owner(sequence: Sequence) -> Sequence | BeamGroup:
    """What ends together with a sequence: the search whose beam it is, or it alone."""
    return sequence if sequence.group is None else sequence.group
