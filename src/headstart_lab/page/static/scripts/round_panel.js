// One round on the stage: its three steps with their measured times, its tree, and one token's probabilities.

import { byId, element, entries } from "./dom.js";
import { milliseconds, percent, several, visible } from "./format.js";
import { kept, STEPS } from "./run.js";
import { Tree, WALK } from "./tree.js";

const STATES = {
  root: "the token before",
  guess: "guessed, not checked yet",
  checked: "checked in the pass",
  accepted: "guessed and kept",
  rejected: "guessed and rejected",
  unreached: "never reached",
  corrected: "the model’s correction",
  bonus: "the model’s bonus",
  plain: "the model’s own",
};
const TALLEST = 180;

export class RoundPanel {
  constructor() {
    this.tree = new Tree(byId("tree"), (node) => this.#read(node));
    this.items = STEPS.map((step) => byId(`step-${step}`));
    this.run = null;
    this.place = -1;
    this.room = 0;
    new ResizeObserver(() => {
      if (this.run && byId("tree").clientWidth !== this.room) this.#draw();
    }).observe(byId("tree"));
  }

  /** Put a round on the stage; nothing is drawn anew if it is there already. */
  show(run, place) {
    if (run === this.run && place === this.place) return;
    const other = run !== this.run;
    this.run = run;
    this.place = place;
    if (other) this.room = 0;
    this.#draw();
  }

  /** Show how far the round is. */
  pose(step, progress) {
    this.step = step;
    this.progress = progress;
    if (!byId("tree").clientWidth) return;
    this.tree.pose(step, progress);
    const at = STEPS.indexOf(step);
    this.#say(step, progress);
    this.items.forEach((item, place) => {
      item.classList.toggle("current", place === at);
      item.classList.toggle("past", place < at);
      if (place === at) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
      item.style.setProperty("--progress", place < at ? 1 : place === at ? progress : 0);
    });
  }

  #draw() {
    const host = byId("tree");
    const round = this.run.rounds[this.place];
    this.#tell(round);
    if (!host.clientWidth) return;
    this.tree.show(round);
    if (host.clientWidth !== this.room) {
      // As tall as this answer's tallest tree, so that nothing below moves from round to round.
      this.room = host.clientWidth;
      const tallest = Math.max(...this.run.rounds.map((each) => this.tree.heightOf(each)));
      host.style.setProperty("--tallest", `${Math.min(tallest + 8, TALLEST)}px`);
    }
    if (this.step) this.pose(this.step, this.progress);
  }

  #tell(round) {
    const guesses = round.nodes.length;
    const parts = this.run.parts(this.place).map(milliseconds);
    const own = round.tokens.find((token) => token.origin !== "accepted");
    const did = [
      guesses ? several(guesses, "guess", "guesses") : "no guess",
      `one pass, ${several(guesses + 1, "row")}`,
      [kept(round) && `${kept(round)} kept`, own && `1 ${own.origin}`].filter(Boolean).join(" + "),
    ];
    this.items.forEach((item, place) => {
      item.querySelector(".did").textContent = did[place];
      item.querySelector(".took").textContent = parts[place];
    });
  }

  /** A sentence on what happens just now; written only where it changes, since it may be read out. */
  #say(step, progress) {
    const text = told(this.run.rounds[this.place], step === "accept" && progress < WALK ? "verify" : step);
    if (byId("round-told").textContent !== text) byId("round-told").textContent = text;
  }

  #read(node) {
    const pairs = [["token", element("code", {}, visible(node.label))], ["what became of it", STATES[node.look]]];
    if (node.target !== undefined && node.look !== "guess") {
      pairs.push(["target probability", percent(node.target)]);
      if (Math.abs(node.law - node.target) > 5e-4) pairs.push(["after the request’s transforms", percent(node.law)]);
      if (!node.own) pairs.push(["draft probability", typeof node.draft === "number" ? percent(node.draft) : "a sure guess"]);
    }
    byId("readout").replaceChildren(...entries(pairs));
  }
}

function told(round, step) {
  const guesses = round.nodes.length;
  if (guesses && step === "draft") return `The drafter guesses ${several(guesses, "token")} that may come next.`;
  if (guesses && step === "verify") return `The model checks all ${several(guesses, "guess", "guesses")} at once: one pass over ${guesses + 1} rows.`;
  const own = round.tokens.find((token) => token.origin !== "accepted");
  if (!guesses) return "Nothing was guessed: the pass said one token, as plain decoding does.";
  const good = kept(round);
  const end = own ? `, then added “${visible(own.label)}” itself` : ", and the answer ended there";
  const keeping = good === 0 ? "kept none" : good === guesses ? "kept all" : `kept ${good}`;
  return `${several(guesses, "guess", "guesses")}: the model ${keeping}${end}. That is ${several(round.tokens.length, "token")} for one pass.`;
}
