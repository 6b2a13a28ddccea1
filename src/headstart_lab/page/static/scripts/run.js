// One answer: its rounds, its clock, and what follows from them.

export const STEPS = ["draft", "verify", "accept"];

export class Run {
  /** `plain`: decoded without a drafter. */
  constructor(plain) {
    this.plain = plain;
    this.drafter = null;
    this.rounds = [];
    this.tokens = 0;
    this.text = "";
    this.stats = null;
    this.finish = null;
    this.others = null;
  }

  /** An answer that was recorded. */
  static of(events, plain) {
    const run = new Run(plain);
    for (const event of events) run.take(event);
    return run;
  }

  /** The same as events, as far as it came. */
  get events() {
    const end = { event: "end", finish_reason: this.finish, text: this.text, stats: this.stats, others: this.others };
    return [{ event: "start", drafter: this.drafter }, ...this.rounds, ...(this.stats ? [end] : [])];
  }

  take(event) {
    if (event.event === "start") {
      this.drafter = event.drafter;
    } else if (event.event === "round") {
      this.rounds.push(event);
      this.tokens += event.tokens.length;
      for (const token of event.tokens) this.text += token.text;
    } else if (event.event === "end") {
      this.stats = event.stats;
      this.text = event.text;
      this.finish = event.finish_reason;
      this.others = event.others ?? null;
    }
  }

  /** On the answer's clock, when the first round began: the prompt had been read. */
  get begin() {
    const first = this.rounds[0];
    return first ? first.seconds - first.draft_seconds - first.pass_seconds : 0;
  }

  /** Seconds of decoding, reading the prompt left out. */
  get seconds() {
    return this.rounds.length ? this.rounds.at(-1).seconds - this.begin : 0;
  }

  /** Seconds of the target's encoder; 0 where it has none, or as long as the answer comes. */
  get encoderSeconds() {
    return this.stats?.encoder_seconds ?? 0;
  }

  /** Tokens a second; null as long as unknown. */
  get rate() {
    return this.seconds > 0 ? this.tokens / this.seconds : null;
  }

  /** Seconds after `begin` at which a round's tokens were there. */
  endOf(place) {
    return this.rounds[place].seconds - this.begin;
  }

  /** Seconds of a round's draft, of its pass, and of the rest: the verdict, and telling the drafter. */
  parts(place) {
    const { draft_seconds: draft, pass_seconds: pass } = this.rounds[place];
    const start = place ? this.endOf(place - 1) : 0;
    return [draft, pass, Math.max(0, this.endOf(place) - start - draft - pass)];
  }

  /** How many rounds were over at a time. */
  roundsBy(seconds) {
    const later = this.rounds.findIndex((_, place) => this.endOf(place) > seconds + 1e-9);
    return later < 0 ? this.rounds.length : later;
  }

  /** The round that brought the token of this number, or the last one. */
  roundOf(number) {
    let tokens = 0;
    const found = this.rounds.findIndex((round) => (tokens += round.tokens.length) > number);
    return found < 0 ? this.rounds.length - 1 : found;
  }

  /** The round that brought most tokens by guessing; the first of several. */
  get best() {
    let best = 0;
    this.rounds.forEach((round, place) => {
      if (kept(round) > kept(this.rounds[best])) best = place;
    });
    return best;
  }

  get meanLength() {
    return this.rounds.length ? this.tokens / this.rounds.length : null;
  }

  get guesses() {
    return this.rounds.reduce((sum, round) => sum + round.nodes.length, 0);
  }

  /** [depth] rounds in which a guess there could have been accepted, and in which it was. */
  get positions() {
    const counts = [];
    for (const round of this.rounds) {
      const parents = new Set(round.nodes.map((node) => node.parent));
      [-1, ...round.path].slice(0, round.tokens.length).forEach((node, depth) => {
        if (!parents.has(node)) return;
        counts[depth] ??= { tried: 0, accepted: 0 };
        counts[depth].tried += 1;
        counts[depth].accepted += round.tokens[depth].origin === "accepted";
      });
    }
    return counts;
  }

  /** Mean depth of the drafts, rounds without one included. */
  get meanDepth() {
    return this.rounds.reduce((sum, round) => sum + depthOf(round), 0) / (this.rounds.length || 1);
  }
}

/** How many guesses of a round became text. */
export const kept = (round) => round.tokens.filter((token) => token.origin === "accepted").length;

/**
 * The point that an answer and its plain twin make in the paper's figures; null where nothing was guessed.
 * alpha: accepted over tried positions. gamma: mean depth of a draft. c: time of a draft step over a plain pass.
 */
export function measuredPoint(run, plain) {
  const tried = run.positions.reduce((sum, { tried }) => sum + tried, 0);
  const accepted = run.positions.reduce((sum, { accepted }) => sum + accepted, 0);
  const depths = run.meanDepth * run.rounds.length;
  if (!tried || !run.stats || !plain.stats || run.rate === null || plain.rate === null) return null;
  return {
    drafter: run.drafter,
    alpha: accepted / tried,
    gamma: run.meanDepth,
    c: run.stats.draft_seconds / depths / (plain.stats.target_seconds / plain.stats.rounds),
    tokens: run.meanLength,
    speedup: run.rate / plain.rate,
  };
}

/** Levels of a round's draft. */
export function depthOf(round) {
  const depths = [];
  for (const { parent } of round.nodes) depths.push(parent < 0 ? 1 : depths[parent] + 1);
  return Math.max(0, ...depths);
}
