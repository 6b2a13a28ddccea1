// The paper's figures around a point of one's own (`headstart theory` prints them).

import { byId, entries } from "./dom.js";
import { times } from "./format.js";
import { Plot } from "./plot.js";
import { bestLength, operations, speedup, tokensPerRound } from "./theory.js";

const ALPHA = { label: "acceptance rate α", from: 0, to: 0.99, ticks: [0, 0.2, 0.4, 0.6, 0.8].map((a) => [a, String(a)]) };
const ALPHAS = Array.from({ length: 100 }, (_, i) => i / 100);
/** Draft lengths and costs that the paper's figures show. */
const [GAMMAS, COSTS] = [[1, 3, 5, 7, 10], [0.01, 0.02, 0.05, 0.1]];

export class Calculator {
  /** `ask` decodes something twice and gives the measured point. */
  constructor(ask) {
    this.plots = { tokens: new Plot(byId("plot-tokens")), speed: new Plot(byId("plot-speed")), best: new Plot(byId("plot-best")) };
    this.point = null;
    byId("dials").addEventListener("input", () => this.refresh());
    byId("dials").addEventListener("submit", (event) => event.preventDefault());
    byId("adopt").addEventListener("click", () => this.#adopt());
    byId("measure").addEventListener("click", async () => {
      byId("measure").disabled = true;
      byId("measured-note").textContent = "Decoding with speculation, then plainly …";
      const point = await ask();
      byId("measure").disabled = false;
      if (!point) byId("measured-note").textContent = "Nothing was guessed, or the answer failed; the first tab says more.";
    });
  }

  /** An answer has been measured. */
  measured(point) {
    this.point = point;
    byId("adopt").disabled = false;
    byId("measured-note").textContent =
      `${point.drafter}: α = ${point.alpha.toFixed(2)}, drafts of ${point.gamma.toFixed(1)} levels, c = ${point.c.toFixed(3)}. ` +
      `${point.tokens.toFixed(2)} tokens a round; ${times(point.speedup)} the speed of plain decoding.`;
    this.refresh();
  }

  #adopt() {
    const { alpha, gamma, c } = this.point;
    byId("alpha").value = alpha;
    byId("gamma").value = Math.max(1, Math.round(gamma));
    byId("cost").value = c;
    this.refresh();
  }

  refresh() {
    showDials();
    const { alpha, gamma, c, cHat } = dials();
    const best = bestLength(alpha, c);
    const point = { tokens: tokensPerRound(alpha, gamma), speedup: speedup(alpha, gamma, c), operations: operations(alpha, gamma, cHat) };
    const lines = (values, own, of) =>
      [...new Set([...values, own])].sort((a, b) => a - b).map((value) => ({ value, own: value === own, y: ALPHAS.map((a) => of(a, value)) }));
    const speeds = lines(GAMMAS, gamma, (a, g) => speedup(a, g, c));
    const work = ALPHAS.map((a) => operations(a, gamma, cHat));
    const measured = (y) => (this.point ? [{ x: this.point.alpha, y, class: "measured-point", label: "measured" }] : []);
    const here = (y) => ({ x: alpha, y, class: "point" });
    const named = (curves, sign) =>
      curves.map(({ y, own, value }, rank) => ({ x: ALPHAS, y, rank, class: own ? "own" : "context", label: `${sign} ${value}` })).sort(ownLast);

    this.plots.tokens.show({
      title: `Expected tokens a round against the acceptance rate; ${point.tokens.toFixed(2)} at α = ${alpha}, γ = ${gamma}`,
      x: ALPHA,
      y: linear("tokens", 0, 12),
      lines: named(lines(GAMMAS, gamma, tokensPerRound), "γ"),
      marks: [here(point.tokens), ...measured(this.point?.tokens)],
      guide: alpha,
    });
    const highest = Math.max(2, point.speedup, this.point?.speedup ?? 0, ...work, ...speeds.map((line) => line.y.at(-1)));
    this.plots.speed.show({
      title: `Speed-up against the acceptance rate; ${point.speedup.toFixed(2)} at your point, with ${point.operations.toFixed(2)} times the operations`,
      x: ALPHA,
      y: linear("factor", 0, Math.min(12, Math.ceil(highest / 2) * 2)),
      lines: [...named(speeds, "γ"), { x: ALPHAS, y: work, class: "own dashed" }],
      marks: [here(point.speedup), here(point.operations), ...measured(this.point?.speedup)],
      guide: alpha,
    });
    this.plots.best.show({
      title: `Best draft length against the acceptance rate; ${best} at your point`,
      x: ALPHA,
      y: { from: 0.7, to: 64, log: true, ticks: [[0.7, "0"], ...[1, 2, 4, 8, 16, 32, 64].map((g) => [g, String(g)])] },
      lines: named(lines(COSTS, c, bestLength).toReversed(), "c").map((line) => ({ ...line, y: line.y.map((length) => Math.max(length, 0.7)) })),
      marks: [here(Math.max(best, 0.7))],
      guide: alpha,
    });
    byId("outcome").replaceChildren(
      ...entries([
        ["tokens a round", point.tokens.toFixed(2)],
        ["speed-up", times(point.speedup), "lead"],
        ["operations", times(point.operations)],
        ["best γ", String(best)],
      ]),
    );
    byId("advice").textContent = alpha > c
      ? `With the best γ, ${best}, decoding would be ${times(speedup(alpha, best, c))} as fast as without guesses.`
      : "α is not above c: no draft length pays (Corollary 3.9).";
  }
}

const ownLast = (a, b) => (a.class === "own") - (b.class === "own");

function linear(label, from, to) {
  const step = to - from > 6 ? 2 : to - from > 2 ? 1 : 0.5;
  const count = Math.floor((to - from) / step);
  return { label, from, to, ticks: Array.from({ length: count + 1 }, (_, i) => [from + i * step, String(from + i * step)]) };
}

function dials() {
  const value = (id) => Number(byId(id).value);
  return { alpha: value("alpha"), gamma: value("gamma"), c: value("cost"), cHat: value("operations") };
}

function showDials() {
  const { alpha, gamma, c, cHat } = dials();
  byId("alpha-value").textContent = alpha.toFixed(2);
  byId("gamma-value").textContent = gamma;
  byId("cost-value").textContent = c.toFixed(3);
  byId("operations-value").textContent = cHat.toFixed(3);
}
