// One answer on its way: its rounds, and what follows from them.

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
    }
  }

  /** Tokens a second behind the first round, which waited for the prompt to be read; null as long as unknown. */
  get rate() {
    if (this.rounds.length < 2) return null;
    const first = this.rounds[0];
    const seconds = this.rounds.at(-1).seconds - first.seconds;
    return seconds > 0 ? (this.tokens - first.tokens.length) / seconds : null;
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

function depthOf(round) {
  const depths = [];
  for (const { parent } of round.nodes) depths.push(parent < 0 ? 1 : depths[parent] + 1);
  return Math.max(0, ...depths);
}
