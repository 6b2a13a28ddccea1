"""A queue of sequences over one target and its drafters. Knows token ids, never text."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace

from headstart.drafting.base import Drafter
from headstart.drafting.planning.pass_costs import PassCosts
from headstart.engine.beams import BeamGroup
from headstart.engine.counts import Counts
from headstart.engine.faults import end_alone, owner
from headstart.engine.home import Home
from headstart.engine.outputs import FinishReason
from headstart.engine.pool import DrafterPool
from headstart.engine.round import decode_round
from headstart.engine.schedule import Limits, PassSchedule, schedule_pass, unread
from headstart.engine.sequence import Sequence
from headstart.engine.servable import require_servable, slots
from headstart.engine.stretch import SHOWN_SECONDS, run_stretch
from headstart.engine.work import Work
from headstart.errors import CacheError
from headstart.passes.cache.blocks import Room
from headstart.passes.runner import ModelRunner

_log = logging.getLogger(__name__)


class Engine:
    """Admits sequences up to the batch limit and runs passes until they finish.

    Args:
        runner: the target and its cache.
        drafter: guesses for every sequence; or a pool, of which each sequence names one.
        limits: bounds of passes and sequences.
    """

    def __init__(self, runner: ModelRunner, drafter: Drafter | DrafterPool, limits: Limits) -> None:
        self.runner = runner
        self.drafters = drafter if isinstance(drafter, DrafterPool) else DrafterPool({"default": drafter}, "default")
        self.limits = limits
        self.home = Home()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.counts = Counts()
        self.costs = PassCosts()
        """Of passes that read prompts."""
        self.work: Work | None = None
        """What it is at, for whoever watches it from another thread."""
        self._suspects: set[Sequence | BeamGroup] = set()
        """Of which one may have failed what was computed together; each is decoded alone until it has done a round."""

    @property
    def drafter(self) -> Drafter:
        """The one that guesses for sequences that name none."""
        return self.drafters.drafters[self.drafters.default]

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            ConfigError: this process is a fork of the engine's.
            RequestError: it can never be served.
        """
        self.home.require()
        require_servable(sequence, self.limits, self.runner.cache, self.runner.backend.config.vocab_size)
        self.drafters.name_for(sequence)
        room = self.limits.max_context - sequence.prompt_length
        sequence.stops = replace(sequence.stops, max_tokens=min(sequence.stops.max_tokens, room))
        if sequence.group is None or sequence is sequence.group.head:
            self.waiting.append(sequence)

    def step(self, seconds: float = SHOWN_SECONDS) -> list[Sequence]:
        """One pass; or a few rounds of all sequences, where they can be run at once.

        What raises ends the request that it belongs to, and no other; only what a drafter raises in a pool that is not
        tolerant comes out here.

        Args:
            seconds: after which no further round is begun; meanwhile nobody is admitted, aborted or shown tokens.

        Returns:
            The sequences that took part; those that finished have left the engine. Empty when idle, or files are read.
        """
        try:
            return self._step(seconds)
        except Exception as error:
            if error is self.drafters.raised:
                raise
            self._part(error)
            return self._leave()
        finally:
            self.work = None
            if self.runner.cache.pool.files is not None:
                self.runner.cache.pool.files.step(self.idle)

    def _step(self, seconds: float) -> list[Sequence]:
        began = time.perf_counter()
        self._admit()
        schedule = self._schedule()
        if schedule is None or not self._encode(schedule):
            return self._leave()
        self._begin("a pass", schedule.riding)
        if not self._run_stretch(schedule, seconds):
            timed = decode_round(self.runner, self.drafters, schedule, self._begin, began)
            if schedule.reading:
                self.costs.add(*timed)
            for group in schedule.groups:
                self._regroup(group)
        took_part = schedule.riding
        for sequence in took_part:
            if sequence.error is None and sequence.id in self.runner.cache:
                self.runner.cache.publish(sequence.id, sequence.tokens)
        for sequence, _ in schedule.decoding:
            self._suspects.discard(owner(sequence))
        self._leave()
        return took_part

    def _begin(self, what: str, whose: Seq[Sequence]) -> None:
        heads = [each if each.group is None else each.group.head for each in whose]
        self.work = Work(what, list(dict.fromkeys([head.id for head in heads])))

    def _part(self, error: Exception) -> None:
        """What is decoded together has failed, and not while a single request was looked at: put all of them off, and
        let each decode by itself for a round. Whoever fails alone is the one."""
        self._leave()
        together = list(dict.fromkeys(owner(sequence) for sequence in self.running))
        if not together:
            raise error
        if len(together) == 1:
            end_alone(together[0], error)
            return
        _log.warning("%d requests failed together (%s); each is read again by itself.", len(together), error)
        for whose in reversed(together):
            self._put_off(whose)
            self._suspects.add(whose)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence wherever it stands; what it has committed stays with it. A beam search ends with any of its
        results."""
        if sequence.group is not None:
            sequence.group.abort()
            sequence = sequence.group.head
        if not sequence.finished:
            sequence.finish_reason = FinishReason.ABORT
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            self._suspects.discard(owner(sequence))
        self._leave()

    def runs(self, sequence: Sequence) -> bool:
        """Whether a sequence, or the search of which it will hold a result, is being decoded."""
        group = sequence.group
        return sequence in self.running or any(group is not None and beam.group is group for beam in self.running)

    def abort_all(self) -> None:
        """End every sequence."""
        for sequence in (*self.running, *self.waiting):
            self.abort(sequence)

    def close(self) -> None:
        """End every sequence, and write what is not on disk yet of their prefixes."""
        self.abort_all()
        if self.runner.cache.pool.files is not None:
            self.runner.cache.pool.files.close()

    def check(self) -> None:
        """Integrity between rounds: cache lengths follow the committed tokens, and no block is lost.

        Raises:
            CacheError: a length is off, or a block is leaked, over-freed or aliased.
        """
        cache = self.runner.cache
        cache.check()
        for sequence in self.running:
            cached, committed = cache.length(sequence.id), len(sequence.tokens)
            # Short of the root only while the prompt (or, after a preemption, everything) is being read.
            reading = not sequence.stats.rounds or bool(sequence.stats.preemptions)
            if not (cached == committed - 1 or (reading and cached < committed - 1)):
                raise CacheError(f"sequence {sequence.id} has {cached} of its {committed} tokens in the cache.")

    def _encode(self, schedule: PassSchedule) -> bool:
        """Compute the encoder memories that the schedule's sequences read, where nobody has yet; False: that failed for
        a sequence, which has ended."""
        computed = True
        for sequence in schedule.riding:
            if sequence.source is not None and not sequence.finished:
                start = time.perf_counter()
                self._begin("the encoder", [sequence])
                try:
                    if not self.runner.encode(sequence.id):
                        continue
                except Exception as error:
                    end_alone(owner(sequence), error)
                    computed = False
                sequence.stats.encoder_seconds = time.perf_counter() - start
                sequence.stats.prefill_seconds += sequence.stats.encoder_seconds
        return computed

    def _admit(self) -> None:
        while self.waiting and self._may_enter(self.waiting[0]):
            head = self.waiting[0]
            try:
                if not self._enter(head):
                    break
            except Exception as error:
                if error is self.drafters.raised:
                    raise
                end_alone(owner(head), error)
                self.waiting.popleft()

    def _enter(self, head: Sequence) -> bool:
        """Let the first that waits decode; False: there is no room for it yet."""
        cache = self.runner.cache
        sequence = head if head.group is None else head.group.first_beam()
        # Its tokens must fit beside those of the others, with one more block for each, lest it push them out.
        needed = self._ahead(sequence)
        for other in self.running:
            needed += self._ahead(other) + Room(1, int(cache.has_states))
        if self.running and not cache.free.holds(needed):
            return False
        if head.started is None:
            head.started = sequence.started = time.perf_counter()
        cache.add(sequence.id, sequence.cache_salt, sequence.source, sequence.adapter and sequence.adapter.compiled)
        self.waiting.popleft()
        self.running.append(sequence)
        self.drafters.begin(sequence)
        return True

    def _may_enter(self, sequence: Sequence) -> bool:
        """Whether it can decode beside those that do; a group takes the room of all its beams from the beginning."""
        if self.running and (owner(sequence) in self._suspects or owner(self.running[0]) in self._suspects):
            return False
        groups = {id(each.group): slots(each) for each in self.running if each.group is not None}
        taken = sum(groups.values()) + sum(each.group is None for each in self.running)
        return taken + slots(sequence) <= self.limits.max_sequences

    def _regroup(self, group: BeamGroup) -> None:
        """Let those run that are a group's beams now, in the place of those that were."""
        if group.finished:
            return
        place = next(place for place, sequence in enumerate(self.running) if sequence.group is group)
        others = [sequence for sequence in self.running if sequence.group is not group]
        self.running = [*others[:place], *group.beams, *others[place:]]

    def _schedule(self) -> PassSchedule | None:
        """The next pass; the youngest sequences give way until there is room for one (recomputed later)."""
        while self.running:
            ready, listening = self._ready()
            if not ready and any(self.runner.cache.reads_on(sequence.id) for sequence in self.running):
                return None
            schedule = schedule_pass(ready, self.runner.cache, self.limits, listening, self.costs)
            if schedule is not None:
                return schedule
            youngest = self.running[-1]
            group = youngest.group
            if group is not None:
                if all(sequence.group is group for sequence in self.running):
                    group.cut()
                    return None
            elif len(self.running) == 1:
                youngest.finish_reason = FinishReason.LENGTH
                return None
            self._put_off(owner(youngest))
        return None

    def _put_off(self, whose: Sequence | BeamGroup) -> None:
        """Forget what is computed of a request, which will be read again."""
        for sequence in [sequence for sequence in self.running if owner(sequence) is whose]:
            self._forget(sequence)
        if isinstance(whose, BeamGroup):
            whose.suspend()
            self.waiting.appendleft(whose.head)
        else:
            whose.stats.preemptions += 1
            self.waiting.appendleft(whose)

    def _run_stretch(self, schedule: PassSchedule, seconds: float) -> bool:
        """Whether the scheduled sequences, where they are all that run, decoded some rounds at once."""
        may_enter = self.waiting and self._may_enter(self.waiting[0])
        if schedule.reading or len(schedule.decoding) < len(self.running) or may_enter:
            return False
        if not all([sequence.num_output for sequence in self.running]):  # a first token is waited for
            return False
        return run_stretch(self.runner, self.drafters, schedule.decoding, self.limits.max_context, seconds)

    def _ready(self) -> tuple[list[Sequence], dict[int, list[Sequence]]]:
        """Who may ride in the next pass: all but those whose next block another sequence is about to compute for them.

        And those that wait for a leader to read their prompt, by the leader's id.
        """
        ready, listening = self._begun()
        while self._wake_groups():
            ready, listening = self._begun()
        # A search goes on once all its beams stand in the cache.
        cache = self.runner.cache
        ready = [each for each in ready if each.group is None or unread(each, cache) or each.group.is_read(cache)]
        return ready, listening

    def _begun(self) -> tuple[list[Sequence], dict[int, list[Sequence]]]:
        """The same, with beams that have to wait for others of their search. Whoever finds tokens in the cache has them
        from here on."""
        cache = self.runner.cache
        ready = []
        listening: dict[int, list[Sequence]] = {}
        computed = set()
        for sequence in self.running:
            leader = self._leader(sequence)
            if leader is not None and leader.num_output == 0 and unread(leader, cache):
                listening.setdefault(leader.id, []).append(sequence)
                continue
            if leader is not None:
                self._take_over(leader, sequence)
            # A sequence that wants the target's logits over its prompt must have every row computed.
            if cache.pool.prefixes is not None and sequence.params.prompt_logprobs is None and unread(sequence, cache):
                sequence.stats.cached_tokens += cache.adopt(sequence.id, sequence.tokens[:-1])
                if cache.reads_on(sequence.id):  # others ride meanwhile
                    continue
                block = cache.next_block(sequence.id, sequence.tokens[:-1])
                if block is not None and block in computed:
                    continue
                computed.add(block)
            ready.append(sequence)
        return ready, listening

    def _wake_groups(self) -> bool:
        """Groups whose first beam has read again, after a preemption, get their other beams back; whether any has."""
        woken = False
        for sequence in tuple(self.running):
            group = sequence.group
            if group is not None and group.asleep and not unread(sequence, self.runner.cache):
                group.wake(self.runner.cache, self.drafters)
                self._regroup(group)
                woken = True
        return woken

    def _leader(self, sequence: Sequence) -> Sequence | None:
        """The sequence that reads, or has read, the prompt for this one; None: it has begun, or must read by itself."""
        cache, leader = self.runner.cache, sequence.leader
        begun = sequence.num_output or (sequence.id in cache and cache.length(sequence.id))
        if leader is None or begun or leader not in self.running:
            return None
        # After a preemption a leader reads its own output, too, which others must not take over.
        return leader if not leader.num_output or cache.length(leader.id) >= leader.prompt_length - 1 else None

    def _take_over(self, leader: Sequence, sequence: Sequence) -> None:
        """Let a sequence begin after the prompt that its leader has read."""
        cache, length = self.runner.cache, sequence.prompt_length - 1
        cache.remove(sequence.id)
        cache.fork(leader.id, sequence.id)
        length = cache.truncate(sequence.id, length)
        sequence.stats.cached_tokens += length
        sequence.prompt_logprobs = leader.prompt_logprobs.copy()

    def _ahead(self, sequence: Sequence) -> Room:
        """What the tokens of a sequence will still take."""
        cache = self.runner.cache
        first = Room(0, int(cache.has_states))
        if self._leader(sequence) is not None:
            return first + Room(1)
        if sequence.id in cache:
            length = cache.length(sequence.id)
            blocks = Room(cache.blocks_needed(sequence.id, len(sequence.tokens) - length))
            return blocks if length else first + blocks
        memory = cache.memory_blocks_needed(sequence.source, sequence.cache_salt)
        return first + Room(memory + -(-len(sequence.tokens) // cache.block_size))

    def _leave(self) -> list[Sequence]:
        finished = [sequence for sequence in self.running if sequence.finished]
        for sequence in finished:
            self._forget(sequence)
            self._suspects.discard(owner(sequence))
            assert sequence.started is not None
            sequence.stats.seconds = time.perf_counter() - sequence.started
            self.counts.add(sequence.stats)
        return finished

    def _forget(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence.id in self.runner.cache:
            self.runner.cache.remove(sequence.id)
        self.drafters.end(sequence.id)
