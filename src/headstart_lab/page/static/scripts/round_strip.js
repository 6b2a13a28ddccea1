// All rounds of an answer in a row: a bar for each, as high as the tokens it brought.

import { shape } from "./dom.js";

const HEIGHT = 26;

export class RoundStrip {
  constructor(host) {
    this.host = host;
    this.bars = [];
  }

  show(run) {
    const most = Math.max(2, ...run.rounds.map((round) => round.tokens.length));
    this.bars = run.rounds.map((round, place) => {
      const unit = HEIGHT / most;
      const parts = round.tokens.map((token, height) =>
        shape("rect", { class: `stripe ${token.origin}`, x: place + 0.12, y: HEIGHT - (height + 1) * unit + 0.5, width: 0.76, height: unit - 0.5 }),
      );
      return shape("g", {}, ...parts);
    });
    const size = { viewBox: `0 0 ${run.rounds.length || 1} ${HEIGHT}`, preserveAspectRatio: "none" };
    this.host.replaceChildren(shape("svg", size, ...this.bars));
    this.marked = undefined;
  }

  mark(place) {
    if (place === this.marked) return;
    this.marked = place;
    this.bars.forEach((bar, at) => bar.setAttribute("class", at === place ? "here" : at < place ? "past" : ""));
  }
}
