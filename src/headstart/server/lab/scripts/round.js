// The panel that shows one round: what happened in a sentence, the tree, and one token's probabilities.

import { byId, element, entries } from "./dom.js";
import { percent, several, visible } from "./format.js";
import { Tree } from "./tree.js";

/** What is drawn before anything was said. */
const EXAMPLE = {
  root: "The",
  nodes: [
    { label: " capital", parent: -1, target: 0.61, law: 0.61, draft: 0.5 },
    { label: " city", parent: -1, target: 0.12, law: 0.12, draft: 0.3 },
    { label: " of", parent: 0, target: 0.97, law: 0.97, draft: 0.9 },
    { label: " is", parent: 1, target: 0.34, law: 0.34, draft: 0.4 },
    { label: " Italy", parent: 2, target: 0.08, law: 0.08, draft: 0.2 },
  ],
  path: [0, 2],
  answer: { label: " France", parent: 2, target: 0.45, law: 0.45, draft: null },
  tokens: [{ origin: "accepted" }, { origin: "accepted" }, { origin: "corrected" }],
};

const STATES = {
  root: "the token before",
  accepted: "guessed and kept",
  rejected: "guessed and rejected",
  unreached: "never reached",
  corrected: "the model’s correction",
  bonus: "the model’s bonus",
  plain: "the model’s own",
};

export class RoundPanel {
  /** `chosen` is called with run and round when a person turns to another round. */
  constructor(chosen) {
    this.tree = new Tree(byId("tree"), (node) => this.#read(node));
    this.slider = byId("round-slider");
    this.run = null;
    this.place = 0;
    this.following = true;
    const turn = (place) => {
      if (!this.run?.rounds[place]) return;
      chosen(this.run, place);
    };
    this.slider.addEventListener("input", () => turn(Number(this.slider.value) - 1));
    byId("round-back").addEventListener("click", () => turn(this.place - 1));
    byId("round-on").addEventListener("click", () => turn(this.place + 1));
    this.tree.show(EXAMPLE);
  }

  show(run, place) {
    const round = run.rounds[place];
    this.run = run;
    this.place = place;
    this.refresh();
    byId("round-told").textContent = told(round);
    this.tree.show(round);
  }

  /** The number of rounds has grown. */
  refresh() {
    const count = this.run.rounds.length;
    byId("round-title").textContent = `Round ${this.place + 1} of ${count}`;
    this.slider.max = count;
    this.slider.value = this.place + 1;
    this.slider.disabled = count < 2;
    byId("round-back").disabled = this.place === 0;
    byId("round-on").disabled = this.place + 1 >= count;
  }

  #read(node) {
    const pairs = [["token", element("code", {}, visible(node.label))], ["what became of it", STATES[node.state]]];
    if (node.target !== undefined) {
      pairs.push(["target probability", percent(node.target)]);
      if (Math.abs(node.law - node.target) > 5e-4) pairs.push(["after the request’s transforms", percent(node.law)]);
      if (!node.own) pairs.push(["draft probability", typeof node.draft === "number" ? percent(node.draft) : "a sure guess"]);
    }
    byId("readout").replaceChildren(...entries(pairs));
  }
}

function told(round) {
  const guesses = round.nodes.length;
  const own = round.tokens.find((token) => token.origin !== "accepted");
  if (!guesses) return "Nothing was guessed: the pass said one token, as plain decoding does.";
  const kept = round.tokens.filter((token) => token.origin === "accepted").length;
  const end = own ? `, then added ${visible(own.label)} itself` : ", and the answer ended there";
  const keeping = kept === 0 ? "kept none" : kept === guesses ? "kept all" : `kept ${kept}`;
  return `${several(guesses, "guess", "guesses")}: the model ${keeping}${end}. That is ${several(round.tokens.length, "token")} for one pass.`;
}
