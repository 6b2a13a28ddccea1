// The pairs of answers that can be played: recorded ones, and those that were asked for here.

import { byId, calm, element } from "./dom.js";
import { showHeadline } from "./headline.js";
import { showMeters } from "./meters.js";
import { Run } from "./run.js";

const TITLE = 24;

export class Gallery {
  constructor(player) {
    this.player = player;
    this.pairs = [];
    this.pair = null;
  }

  /** Add a pair to those that can be chosen. */
  add(pair) {
    const title = pair.title.length > TITLE ? `${pair.title.slice(0, TITLE - 1)}…` : pair.title;
    pair.chip = element("button", { type: "button", "aria-pressed": "false" }, title);
    pair.chip.addEventListener("click", () => {
      this.open(pair);
      if (!pair.live) this.begin();
    });
    byId(pair.recorded ? "recorded" : "asked-here").append(pair.chip);
    this.pairs.push(pair);
  }

  open(pair) {
    this.pair = pair;
    for (const other of this.pairs) other.chip.setAttribute("aria-pressed", String(other === pair));
    byId("player").hidden = false;
    this.player.show(pair, pair.live);
    this.refresh();
  }

  /** More of the pair that is shown has come. */
  grown(pair) {
    if (pair !== this.pair) return;
    this.player.follow();
    showMeters(pair.run, pair.plain);
  }

  /** A pair's answers are complete: play them. */
  finish(pair) {
    pair.live = false;
    if (!pair.run.rounds.length) this.#drop([pair]);
    else if (pair === this.pair) {
      this.open(pair);
      this.begin();
    }
  }

  /** Play, where motion is welcome. */
  begin() {
    if (calm() || byId("watch").hidden) this.player.seek(this.player.place, "accept", 1);
    else this.player.play();
  }

  refresh() {
    showHeadline(this.pair, this.pair.live);
    showMeters(this.pair.run, this.pair.plain);
  }

  /** Forget what was asked here. */
  clear() {
    this.#drop(this.pairs.filter((each) => !each.recorded));
  }

  #drop(pairs) {
    for (const pair of pairs) pair.chip.remove();
    this.pairs = this.pairs.filter((each) => !pairs.includes(each));
    if (!pairs.includes(this.pair)) return;
    this.player.pause();
    if (this.pairs.length) this.open(this.pairs[0]);
    else byId("player").hidden = true;
  }
}

/** A recorded pair. */
export function recordedPair({ title, prompt, settings, speculating, plain, ...recorded }) {
  return {
    title,
    prompt,
    recorded,
    temperature: settings.temperature,
    seed: null,
    live: false,
    run: Run.of(speculating, false),
    plain: Run.of(plain, true),
  };
}
