// One answer: tokens in their colours, one tab stop, and the round that each came from.

import { element } from "./dom.js";
import { rate, several, visible } from "./format.js";
import { reach, rove } from "./roving.js";

export class Answer {
  /** `picked` is called with run and round when a token is chosen. */
  constructor(run, title, picked) {
    this.run = run;
    this.picked = picked;
    this.shown = 0;
    this.speed = element("span", {}, "waiting …");
    this.words = element("div", { class: "words", role: "group", "aria-label": `${title}; arrow keys move between tokens` });
    this.element = element(
      "article",
      { class: "answer card", "aria-label": title },
      element("header", {}, element("strong", {}, title), this.speed),
      this.words,
    );
    const choose = (event) => {
      const token = event.target.closest(".token");
      if (token) this.#choose(token);
    };
    this.words.addEventListener("click", choose);
    this.words.addEventListener("focusin", choose);
    rove(this.words, ".token", (token, key) => this.#towards(token, key));
  }

  /** Draw what came since the last call. */
  refresh() {
    const atEnd = this.words.scrollHeight - this.words.scrollTop - this.words.clientHeight < 40;
    for (; this.shown < this.run.rounds.length; this.shown += 1) {
      this.words.append(...this.run.rounds[this.shown].tokens.map((token) => this.#token(token, this.shown)));
    }
    if (atEnd) this.words.scrollTop = this.words.scrollHeight;
    if (this.words.firstChild && !this.words.querySelector("[tabindex='0']")) reach(this.words, this.words.firstChild);
    const counted = `${several(this.run.tokens, "token")} in ${several(this.run.rounds.length, "pass", "passes")}`;
    this.speed.textContent = `${rate(this.run.rate)} tokens/s · ${counted}`;
  }

  fail(message) {
    this.speed.textContent = message;
  }

  /** Mark the tokens of one round; `place` -1: none. */
  mark(place) {
    for (const token of this.words.children) token.classList.toggle("same-round", Number(token.dataset.round) === place);
  }

  #token(token, round) {
    const shown = token.text || visible(token.label);
    const label = `“${token.label}”, ${token.origin}, round ${round + 1}`;
    const kind = `token ${token.origin}${token.text ? "" : " mute"}`;
    const made = element("span", { class: kind, role: "button", tabindex: "-1", "aria-label": label }, shown);
    made.dataset.round = round;
    return made;
  }

  #choose(token) {
    reach(this.words, token);
    this.picked(this.run, Number(token.dataset.round));
  }

  #towards(token, key) {
    if (key === "ArrowRight") return token.nextElementSibling;
    if (key === "ArrowLeft") return token.previousElementSibling;
    if (key === "Home") return this.words.firstElementChild;
    if (key === "End") return this.words.lastElementChild;
    const round = Number(token.dataset.round);
    if (key === "ArrowDown") return this.words.querySelector(`[data-round='${round + 1}']`);
    if (key === "ArrowUp") return this.words.querySelector(`[data-round='${round - 1}']`);
    return undefined;
  }
}
