"""What becomes of the answers of a run: text or JSON on stdout, a summary or a comparison after them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from headstart.backends.native.team import team_size
from headstart.cli.showing import json_row, labels
from headstart.cli.turns import explained
from headstart.common.machine_load import LoadWatch
from headstart.engine.outputs import RequestOutput, SequenceStats
from headstart.engine.usefulness import Usefulness
from headstart.errors import RequestError

if TYPE_CHECKING:
    from headstart.cli.answering import Answer, Clock
    from headstart.cli.comparing import Comparator, Comparison
    from headstart.cli.progress import Activity
    from headstart.cli.showing import Live
    from headstart.entrypoints.llm import LLM
    from headstart.entrypoints.request import StreamPiece


@dataclass
class Totals:
    """Sums over all samples of a run."""

    samples: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    beam_steps: int = 0
    passes_saved: int = 0
    prefill_seconds: float = 0.0
    stats: list[SequenceStats] = field(default_factory=list)

    def add(self, output: RequestOutput) -> None:
        for sample in output.outputs:
            self.samples += 1
            self.tokens += sample.stats.tokens
            self.rounds += sample.stats.rounds
            self.drafted += sample.stats.drafted
            self.accepted += sample.stats.accepted
            self.beam_steps += sample.stats.beam_steps
            self.passes_saved += sample.stats.passes_saved
            self.prefill_seconds += sample.stats.prefill_seconds
            self.stats.append(sample.stats)

    @property
    def acceptance(self) -> str:
        return f"{self.accepted / self.drafted:.1%}" if self.drafted else "–"

    @property
    def mean_accepted_length(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    def speed(self, seconds: float) -> float:
        return self.tokens / seconds if seconds > 0 else 0.0


class Report:
    """Takes the answers of a run (``answering.Taker``).

    Args:
        llm: has decoded them.
        activity: is told how it goes, and makes room for output.
        comparator: compares each answer with the plain one; None: there is none.
    """

    def __init__(self, llm: LLM, activity: Activity, comparator: Comparator | None) -> None:
        self.failures = 0
        self._amid_line = False
        self._answers = 0
        self._llm = llm
        self._activity = activity
        self._comparator = comparator
        self._totals = Totals()
        self._plain_totals = Totals()
        self._watch = LoadWatch(team_size())

    def begin(self, activity: str, samples: int) -> None:
        """Several samples are counted as they finish; a single one is not, since its length is not known."""
        self._activity.show(activity, samples if samples > 1 else None)

    def piece(self, piece: StreamPiece) -> None:
        self.plain_piece(piece)

    def plain_piece(self, piece: StreamPiece) -> None:
        self._activity.advance(int(piece.finish_reason is not None), len(piece.token_ids))

    def answer(self, answer: Answer) -> None:
        """Show an answer.

        Raises:
            RequestError: it is the command line's own prompt that has failed.
        """
        comparison = None
        self._answers += 1
        if answer.error is not None and answer.conversation.line is None:
            raise RequestError(answer.error)
        if answer.output is None:
            self.failures += 1
        else:
            self._totals.add(answer.output)
            if answer.plain is not None and self._comparator is not None:
                self._plain_totals.add(answer.plain)
                comparison = self._comparator.compare(answer.output, answer.plain, answer.ratio)
        with self._activity.aside():
            self._show(answer, comparison)

    def break_line(self) -> None:
        """Have what is said of an answer that broke off stand apart from its text."""
        if self._amid_line:
            print(flush=True)

    def close(self, clock: Clock, quiet: bool) -> None:
        """Everything has been answered."""
        if not quiet and (hint := self._hint(clock)) is not None:
            print(f"Hint: {hint}", file=sys.stderr)
        if self.failures:
            print(f"Error: {self.failures} of {self._answers} answers failed.", file=sys.stderr)

    def _hint(self, clock: Clock) -> str | None:
        """That the drafter was of no use."""
        usefulness = Usefulness(self._llm.drafter_name)
        for stats in self._totals.stats:
            usefulness.add(stats)
        ratio = clock.turns.ratio
        return usefulness.hint(None if ratio is None or ratio.uncertain else ratio.middle)

    def _show(self, answer: Answer, comparison: Comparison | None) -> None:
        raise NotImplementedError


class JsonReport(Report):
    """One object a line."""

    def _show(self, answer: Answer, comparison: Comparison | None) -> None:
        row = json_row(answer, self._llm.model.tokenizer)
        if comparison is not None:
            row |= {**asdict(comparison), "machine": self._watch.so_far().record()}
        print(json.dumps(row, ensure_ascii=False), flush=True)


class TextReport(Report):
    """Texts, with headings where there are several; then a summary on stderr, or the comparison.

    Args:
        live: shows the only sample while it is decoded; None: there are several.
    """

    def __init__(self, llm: LLM, activity: Activity, comparator: Comparator | None, live: Live | None) -> None:
        super().__init__(llm, activity, comparator)
        self._live = live
        self._started = False

    def piece(self, piece: StreamPiece) -> None:
        if self._live is None:
            super().piece(piece)
            return
        if not self._started:
            self._started = True
            self._activity.stop()
            if self._comparator is not None:
                print(_heading(self._llm.drafter_name))
        self._live.show(piece)
        self._amid_line = piece.finish_reason is None
        if not self._amid_line:
            print(flush=True)

    def close(self, clock: Clock, quiet: bool) -> None:
        if self._comparator is not None:
            self._print_comparison(clock)
        elif not quiet and self._totals.samples:
            print(self._summary(clock.speculative), file=sys.stderr)
        super().close(clock, quiet)

    def _show(self, answer: Answer, comparison: Comparison | None) -> None:
        if answer.output is None:
            print(f"Error: {answer.error}", file=sys.stderr)
            return
        if name := ", ".join(f"{label} {value}" for label, value in labels(answer).items()):
            print(_heading(name))
        if self._live is None:
            self._print_samples(answer.output)
        if comparison is not None and answer.plain is not None and self._comparator is not None:
            if not comparison.identical:
                print(_heading("plain"))
                self._print_samples(answer.plain)
            print(f"\n{self._comparator.explain(comparison)}")
        sys.stdout.flush()

    def _print_samples(self, output: RequestOutput) -> None:
        for place, sample in enumerate(output.outputs, start=1):
            if len(output.outputs) > 1:
                score = "" if sample.score is None else f", score {sample.score:.3f}"
                print(_heading(f"sample {place} of {len(output.outputs)}{score}"))
            print(sample.text)

    def _summary(self, seconds: float) -> str:
        """How much, how fast, how well guessed."""
        totals = self._totals
        line = f"{totals.tokens} tokens in {seconds:.2f} s, {totals.speed(seconds):.1f} tokens/s"
        if totals.beam_steps:
            line += f", {totals.passes_saved} of {totals.beam_steps} passes saved"
        elif totals.drafted:
            line += f", acceptance rate {totals.acceptance}, mean accepted length {totals.mean_accepted_length:.2f}"
        return line

    def _print_comparison(self, clock: Clock) -> None:
        from rich.console import Console
        from rich.table import Table

        if not clock.turns.plain:
            return
        table = Table(box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        for column in ("tokens", "prefill s", "decoding s", "tokens/s", "range", "tokens a round", "acceptance"):
            table.add_column(column, justify="right", overflow="fold")
        ways = (
            (self._llm.drafter_name, self._totals, clock.turns.speculative),
            ("plain", self._plain_totals, clock.turns.plain),
        )
        for name, totals, timed in ways:
            prefill = median(each.prefill_seconds for each in timed)
            speeds = [each.speed for each in timed]
            table.add_row(
                name,
                str(totals.tokens),
                f"{prefill:.2f}" if prefill else "within",
                f"{median(each.decoding_seconds for each in timed):.2f}",
                f"{median(speeds):.1f}",
                f"{min(speeds):.0f}–{max(speeds):.0f}" if len(speeds) > 1 else "–",
                f"{totals.mean_accepted_length:.2f}",
                totals.acceptance,
            )
        Console(highlight=False).print(table)
        if (ratio := clock.turns.ratio) is not None:
            acceptance = self._totals.accepted / self._totals.drafted if self._totals.drafted else None
            for line in explained(ratio, self._watch.so_far(), acceptance, self._llm.drafter_name):
                print(line)


def _heading(text: str) -> str:
    return f"--- {text} ---"
