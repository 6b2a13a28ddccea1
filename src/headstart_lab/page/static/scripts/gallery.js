// The pairs of answers that can be played: recorded ones, or those that were asked for here.

import { byId, element } from "./dom.js";
import { showHeadline } from "./headline.js";
import { showMeters } from "./meters.js";
import { Run } from "./run.js";

export class Gallery {
  constructor(player) {
    this.player = player;
    this.pairs = [];
    this.pair = null;
    /** Model, format and machine of this server, as soon as they are known. */
    this.served = null;
  }

  /** Add a pair to those that can be chosen. */
  add(pair) {
    pair.chip = element("button", { type: "button", "aria-pressed": "false" }, pair.title);
    pair.chip.addEventListener("click", () => this.open(pair));
    byId(pair.recorded ? "recorded" : "asked-here").append(pair.chip);
    this.pairs.push(pair);
  }

  open(pair) {
    this.pair = pair;
    for (const other of this.pairs) other.chip.setAttribute("aria-pressed", String(other === pair));
    this.#shown(true);
    this.player.show(pair);
    this.refresh();
  }

  /** More of the pair that is shown has come. */
  grown(pair) {
    if (pair !== this.pair) return;
    this.player.follow();
    showMeters(pair.run, pair.plain);
  }

  /** No more of a pair comes. What there is of it stays. */
  finish(pair) {
    pair.live = false;
    if (!pair.run.rounds.length) this.#drop([pair]);
    else if (pair === this.pair) {
      this.player.finish();
      this.refresh();
    }
  }

  refresh() {
    if (!this.pair) return;
    showHeadline(this.pair, this.served);
    showMeters(this.pair.run, this.pair.plain);
  }

  clear() {
    this.#drop(this.pairs);
  }

  #drop(pairs) {
    for (const pair of pairs) pair.chip.remove();
    this.pairs = this.pairs.filter((each) => !pairs.includes(each));
    if (!pairs.includes(this.pair)) return;
    this.player.pause();
    if (this.pairs.length) {
      this.open(this.pairs.at(-1));
    } else {
      this.pair = this.player.pair = null;
      this.player.look("race");
      this.#shown(false);
    }
  }

  /** Show a pair, or the sketch of one. */
  #shown(asked) {
    for (const part of document.querySelectorAll("[data-asked]")) part.hidden = !asked;
    byId("sketch").hidden = asked;
    byId("asked-here").hidden = this.pairs.length < 2;
  }
}

/** A recorded pair. */
export function recordedPair({ title, prompt, settings, speculating, plain, ...recorded }) {
  const { name, backend } = recorded.model;
  return {
    title,
    prompt,
    recorded,
    where: place(name, backend, recorded.provenance),
    temperature: settings.temperature,
    seed: null,
    live: false,
    run: Run.of(speculating, false),
    plain: Run.of(plain, true),
  };
}

/** Model, format and machine in words. */
export function place(model, backend, { cpu, cores }) {
  return `${model}, ${backend}, on ${cpu}, ${cores} cores`;
}
