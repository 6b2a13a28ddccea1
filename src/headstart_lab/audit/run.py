"""The audit: does speculation change what this model says on this machine?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headstart.errors import CheckpointError, ConfigError
from headstart.loading.model import Model
from headstart.sampling.params import SamplingParams
from headstart_lab.audit.goodness import WEAK
from headstart_lab.audit.joint_law import PROMPT, LawFindings, check_law, choose_tokens, compute_law
from headstart_lab.audit.rules import RuleFindings, check_rules
from headstart_lab.audit.texts import PlainTexts, TextFindings, check_texts, decode_plainly
from headstart_lab.bench.prompts import BenchPrompt, encode_turns
from headstart_lab.differences import Numerics, numerics_of
from headstart_lab.workbench import PLAIN, Contender, Workbench, most_rows
from headstart_lab.workload import Workload

FAMILY_ERROR = 1e-3
"""Chance that any of the law tests of an audit fails though nothing is wrong (Bonferroni)."""
TURNS_OF_TEXTS = 3
"""How often the texts are decoded with a drafter: watched, alone and together."""
_LAW_BATCH = 16
_LAW_ROOM = 64


@dataclass(frozen=True)
class AuditSettings:
    """How much is checked."""

    max_tokens: int = 64
    """Of each compared text."""
    batch_size: int = 4
    """Texts that decode together."""
    samples: int = 1000
    """Texts drawn for each law test."""
    law_tokens: int = 12
    """Tokens that are allowed in law tests."""
    law_length: int = 3
    """Tokens of a text in law tests."""
    seed: int = 0

    def text_work(self, prompts: int) -> int:
        """Tokens of all texts, greedy and sampled, at most."""
        return 2 * prompts * self.max_tokens

    @property
    def law_work(self) -> int:
        """Tokens of the texts that are drawn with a drafter."""
        return self.samples * self.law_length

    def planned_work(self, prompts: int, contenders: int) -> int:
        """Units of work of a whole audit: tokens, as far as they can be foreseen."""
        texts = self.text_work(prompts)
        return texts + contenders * (texts * TURNS_OF_TEXTS + self.law_work)


@dataclass
class Audit:
    """Everything that was found."""

    numerics: Numerics
    rules: RuleFindings
    texts: list[TextFindings] = field(default_factory=list)
    laws: list[LawFindings] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Drafter or prompt -> why it was left out."""
    cut_short: bool = False
    """Not everything was checked that was to be."""

    @classmethod
    def begin(cls, model: Model) -> Audit:
        """The rules are checked, nothing else yet."""
        return cls(numerics_of(model.backend), check_rules())

    @property
    def checks(self) -> int:
        """How often a drafter's texts or its law were checked."""
        return len(self.texts) + len({law.drafter for law in self.laws})

    @property
    def least_p_value(self) -> float:
        """What no law test may fall below."""
        return FAMILY_ERROR / max(len(self.laws), 1)

    def detectable(self, law: LawFindings) -> float | None:
        """How far off a drafter's law had to be for its test to find it nine times in ten (total variation); None: too
        few samples to find it, however far."""
        return law.goodness.detectable(self.least_p_value)

    @property
    def faults(self) -> list[str]:
        """What must not be, a sentence each; empty: the audit is passed."""
        faults = [f"the law of {name} is wrong" for name in self.rules.broken]
        if not self.rules.broken and not self.rules.passed:
            faults.append("a lossy rule went unnoticed in the enumeration")
        faults += [f"{text.drafter}: {fault}" for text in self.texts for fault in text.faults(self.numerics)]
        faults += [
            f"{law.drafter} ({law.rule}): its samples do not follow the target's law (p = {law.goodness.p_value:.1e})"
            for law in self.laws
            if law.goodness.p_value < self.least_p_value
        ]
        return faults

    @property
    def passed(self) -> bool:
        """Everything was checked, and nothing is wrong."""
        return not self.faults and not self.cut_short

    @property
    def idle(self) -> list[str]:
        """Drafters of whose guesses none was accepted, so that little was put to the test."""
        accepted = {text.drafter: text.accepted for text in self.texts}
        for law in self.laws:
            accepted[law.drafter] = accepted.get(law.drafter, 0) + law.accepted
        return [name for name, count in accepted.items() if not count and name != PLAIN]

    @property
    def verdict(self) -> str:
        """One line."""
        if self.faults:
            more = len(self.faults) - 1
            return f"FAIL: {self.faults[0]}" + (f", and {more} more." if more else ".")
        word = "UNFINISHED, nothing wrong so far" if self.cut_short else "WEAK PASS" if self.weakness else "PASS"
        texts, tokens = sum(text.texts for text in self.texts), sum(text.tokens for text in self.texts)
        rows, equal = sum(text.rows for text in self.texts), sum(text.equal_rows for text in self.texts)
        ties = sum(text.ties(self.numerics) for text in self.texts)
        parts = [f"{texts} texts of {len(self.texts)} drafters ({tokens} tokens) are plain decoding's own"]
        if ties:
            parts[0] += f" but for {ties} float ties"
        if equal == rows:
            parts.append(f"all {rows} verified rows are bit-identical")
        else:
            furthest = max(text.largest_row_difference for text in self.texts)
            parts.append(f"{rows} verified rows are within {furthest:.0e} of their range")
        if self.laws:
            parts.append(self._law_sentence())
        parts.append(f"rules exact to {self.rules.largest_error:.0e}")
        if self.weakness:
            parts.append(self.weakness)
        return f"{word}: {'; '.join(parts)}."

    @property
    def weakness(self) -> str:
        """Why a verdict in which nothing is wrong says little, in a few words; empty: it does not."""
        found = [self.detectable(law) for law in self.laws]
        if not found or all(distance is None for distance in found):
            return "weak, since no test of samples would find anything: give more --samples"
        furthest = max(distance for distance in found if distance is not None)
        if furthest > WEAK:
            return f"weak, since a law less than {furthest:.2f} off would not be seen: give more --samples"
        return ""

    def _law_sentence(self) -> str:
        found = [self.detectable(law) for law in self.laws]
        known = [distance for distance in found if distance is not None]
        if not known:
            samples = max(law.goodness.samples for law in self.laws)
            return f"whether samples follow the law is not known: {samples} of each are too few to find anything"
        least = min(law.goodness.p_value for law in self.laws)
        furthest = f"a law {max(known):.2f} off would be found"
        said = f"samples follow the law (least p = {least:.2g} of {len(self.laws)}; {furthest}"
        return said + (f", but in {len(found) - len(known)} nothing)" if len(known) < len(found) else ")")


def run_audit(
    model: Model,
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    settings: AuditSettings,
    on_step: Callable[[int, int], None] = lambda units, tokens: None,
    audit: Audit | None = None,
) -> Audit:
    """Check the rules, then every drafter's texts, rows and laws.

    Args:
        contenders: plain decoding first: it is checked too, in a batch, and against its own law.
        prompts: their first turns are used.
        on_step: called as it goes on with units of work, of which there are ``planned_work``, and tokens decoded.
        audit: just begun; filled as it goes, so that a run that is cut short keeps what was found.

    Raises:
        ConfigError, CheckpointError: a drafter that was asked for by name cannot be built.
        ConfigError: no prompt fits the model's context.
        RequestError: a prompt cannot be rendered, or a sequence failed.
    """
    audit = Audit.begin(model) if audit is None else audit
    work = Workload(on_step)
    bench = Workbench.of_model(model, settings.batch_size, draft_rows=most_rows(contenders))
    bench.on_tokens = work.done
    encoded = {prompt.id: encode_turns(model, prompt.turns[:1], []) for prompt in prompts}
    fitting = [tokens for tokens in encoded.values() if bench.fits(tokens, settings.max_tokens)]
    for name, tokens in encoded.items():
        if not bench.fits(tokens, settings.max_tokens):
            audit.skipped[f"prompt {name}"] = f"{len(tokens)} tokens are too many"
    if not fitting:
        raise ConfigError("no prompt fits the model's context; give shorter ones.")
    greedy = SamplingParams(temperature=0, seed=settings.seed, max_tokens=settings.max_tokens)
    texts = settings.text_work(len(prompts))
    with work.part(texts):
        plain = decode_plainly(bench, contenders[0], fitting, greedy)
    for contender in contenders:
        with work.part(texts * TURNS_OF_TEXTS):
            _check_texts(audit, bench, contender, plain)
    prompt = model.tokenizer.for_encoder.encode(PROMPT)
    law_bench = Workbench.of_model(model, _LAW_BATCH, len(prompt) + _LAW_ROOM)
    law_bench.on_tokens = work.done
    avoid = {*model.tokenizer.special_ids, *model.eos_token_ids}
    tokens = choose_tokens(law_bench, prompt, settings.law_tokens, avoid)
    law = compute_law(law_bench, prompt, tokens, settings.law_length, settings.seed)
    for contender in contenders:
        with work.part(settings.law_work):
            if contender.name not in audit.skipped:
                audit.laws += check_law(law_bench, contender, law, settings.samples)
    return audit


def _check_texts(audit: Audit, bench: Workbench, contender: Contender, plain: PlainTexts) -> TextFindings | None:
    try:
        findings = check_texts(bench, contender, plain)
    except (ConfigError, CheckpointError) as error:
        if not contender.optional:
            raise
        audit.skipped[contender.name] = str(error)
        return None
    audit.texts.append(findings)
    return findings
