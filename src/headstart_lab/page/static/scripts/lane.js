// One answer's lane: its tokens in their colours, as far as they have been said, and how far that is.

import { wholeCharacters } from "./characters.js";
import { inCode } from "./code_blocks.js";
import { element } from "./dom.js";
import { several, visible } from "./format.js";
import { reach, rove } from "./roving.js";

export class Lane {
  /** `picked` is called with the round of a token that was chosen. */
  constructor(run, title, picked) {
    this.run = run;
    this.picked = picked;
    this.tokens = [];
    this.blocks = [];
    this.shown = [];
    this.said = 0;
    this.count = element("span", { class: "count" }, run.plain ? "its turn comes next …" : "reading …");
    this.done = element("span", { class: "done" });
    this.track = element("div", { class: "track", "aria-hidden": "true" }, this.done);
    this.words = element("div", { class: "words", role: "group", "aria-label": `${title}; arrow keys move between tokens` });
    this.element = element(
      "article",
      { class: `answer lane ${run.plain ? "slow" : "fast"}`, "aria-label": title },
      element("header", {}, element("strong", {}, title), this.count),
      this.track,
      this.words,
    );
    const choose = (event) => {
      const token = event.target.closest(".token");
      if (!token) return;
      reach(this.words, token);
      this.picked(this.run, Number(token.dataset.round));
    };
    this.words.addEventListener("click", choose);
    this.words.addEventListener("focusin", choose);
    rove(this.words, ".token", (token, key) => this.#towards(token, key));
  }

  /** Take up the tokens that came since the last call. */
  grow() {
    const told = this.run.rounds.flatMap((round, place) => round.tokens.map((token) => ({ token, place })));
    const parts = wholeCharacters(told.map(({ token }) => token));
    const shown = parts.map((part) => part.shown);
    const code = inCode(shown);
    // A fence or a character that takes several tokens is known by its last: what is drawn otherwise since is drawn anew.
    let same = 0;
    while (same < this.tokens.length && this.blocks[same] === code[same] && this.shown[same] === shown[same]) same += 1;
    for (const token of this.tokens.splice(same)) token.remove();
    this.said = Math.min(this.said, same);
    this.marked = undefined;
    this.words.querySelectorAll(".code:empty").forEach((block) => block.remove());
    for (let i = same; i < told.length; i += 1) {
      const made = drawn(told[i].token, parts[i], told[i].place);
      this.#home(code, i).append(made);
      this.tokens.push(made);
    }
    [this.blocks, this.shown] = [code, shown];
    if (this.tokens.length && !this.words.querySelector("[tabindex='0']")) reach(this.words, this.tokens[0]);
  }

  /** Show the tokens of so many rounds; `whole`: tokens of the longer answer; `seconds`: the clock's, if it is shown. */
  reveal(rounds, whole, seconds) {
    const tokens = this.run.rounds.slice(0, rounds).reduce((sum, round) => sum + round.tokens.length, 0);
    // While an answer comes, it may have more tokens than are drawn.
    const upTo = Math.min(tokens, this.tokens.length);
    for (let i = Math.min(upTo, this.said); i < Math.max(upTo, this.said); i += 1) {
      this.tokens[i].classList.toggle("coming", i >= upTo);
    }
    for (const block of this.words.querySelectorAll(".code")) {
      block.classList.toggle("coming", block.firstElementChild.classList.contains("coming"));
    }
    this.said = upTo;
    this.words.querySelector(".open")?.classList.remove("open");
    if (upTo && "inside" in this.tokens[upTo - 1].dataset) this.tokens[upTo - 1].classList.add("open");
    this.done.style.setProperty("--share", `${(100 * upTo) / (whole || 1)}%`);
    if (!this.run.rounds.length) return;
    const over = rounds === this.run.rounds.length && this.run.stats !== null;
    this.element.classList.toggle("over", over);
    const counted = `${several(upTo, "token")} in ${several(rounds, "pass", "passes")}`;
    const clock = over ? ` · ${this.run.seconds.toFixed(2)} s` : seconds === undefined ? "" : ` · ${seconds.toFixed(2)} s`;
    this.count.textContent = counted + clock;
    this.#follow(this.tokens[upTo - 1]);
  }

  /** Show the answer from its beginning. */
  rewind() {
    this.words.scrollTop = 0;
  }

  /** Mark the tokens of one round; `place` -1: none. */
  mark(place) {
    if (place === this.marked) return;
    this.marked = place;
    for (const token of this.tokens) token.classList.toggle("same-round", Number(token.dataset.round) === place);
  }

  tokensOf(place) {
    return this.tokens.filter((token) => Number(token.dataset.round) === place);
  }

  /** Where token `i` goes: into the code block that its neighbour began, into a new one, or into the prose. */
  #home(code, i) {
    if (!code[i]) return this.words;
    const before = i > 0 && code[i - 1] ? this.tokens[i - 1].closest(".code") : null;
    if (before) return before;
    const block = element("code", { class: "code" });
    this.words.append(block);
    return block;
  }

  /** Keep the last token in sight, without moving the page. */
  #follow(token) {
    if (!token) {
      this.words.scrollTop = 0;
      return;
    }
    const [box, here] = [this.words.getBoundingClientRect(), token.getBoundingClientRect()];
    if (here.bottom > box.bottom - 8) this.words.scrollTop += here.bottom - box.bottom + 24;
    else if (here.top < box.top) this.words.scrollTop += here.top - box.top - 24;
  }

  #towards(token, key) {
    const at = this.tokens.indexOf(token);
    const round = Number(token.dataset.round);
    const first = (place) => this.tokens.find((other) => Number(other.dataset.round) === place);
    const to = {
      ArrowRight: () => this.tokens[at + 1],
      ArrowLeft: () => this.tokens[at - 1],
      Home: () => this.tokens[0],
      End: () => this.tokens.at(-1),
      ArrowDown: () => first(round + 1),
      ArrowUp: () => first(round - 1),
    }[key]?.();
    // What has not been said yet is shown by going to its round.
    if (to?.classList.contains("coming")) this.picked(this.run, Number(to.dataset.round));
    return to?.classList.contains("coming") ? undefined : to;
  }
}

/** A token that holds but a part of a character is a sliver beside it; one that says nothing shows its name. */
function drawn(token, { shown, inside }, round) {
  const label = `“${token.label}”${inside ? ", ends inside of a character" : ""}, ${token.origin}, round ${round + 1}`;
  const state = shown ? "" : inside ? " part" : " mute";
  const text = shown || (inside ? "" : visible(token.label));
  const attributes = { class: `token coming ${token.origin}${state}`, role: "button", tabindex: "-1", "aria-label": label, "data-inside": inside };
  const made = element("span", attributes, text);
  made.dataset.round = round;
  return made;
}
