// The conversation: a message goes out, the answer comes in with its rounds, then its plain twin.

import { Answer } from "./answer.js";
import { events } from "./api.js";
import { byId, element } from "./dom.js";
import { several, times } from "./format.js";
import { showMeters } from "./meters.js";
import { RoundPanel } from "./round.js";
import { measuredPoint, Run } from "./run.js";
import { requestBody } from "./settings.js";

const EXAMPLES = [
  "Write a Python class for a bank account with deposit and withdraw.",
  "Count from one to twenty in words.",
  "Why is the sky blue?",
];
const PICTURE_EVERY = 250;

export class Conversation {
  /** `measured` is called with the point that an answer and its plain twin make. */
  constructor(measured) {
    this.measured = measured;
    this.messages = [];
    this.answers = [];
    this.running = null;
    this.panel = new RoundPanel((run, place) => this.#pick(run, place));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(byId("prompt").value, byId("compare").checked);
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("composer").requestSubmit();
      }
    });
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("clear").addEventListener("click", () => this.#clear());
    byId("examples").append(...EXAMPLES.map((text) => example(text)));
  }

  /** Ask, and where `compare` ask again without speculation; the measured point, or null. */
  async send(text, compare) {
    if (this.running || !text.trim()) return null;
    this.running = new AbortController();
    this.#busy(true);
    status(compare ? "Decoding with speculation, then plainly." : "Decoding.");
    const body = requestBody([...this.messages, { role: "user", content: text }]);
    const [run, plain] = [new Run(false), compare ? new Run(true) : null];
    const turn = this.#addTurn(text, run, plain, body);
    let point = null;
    try {
      await this.#stream(body, turn.answers[0], run, null);
      if (plain) await this.#stream({ ...body, speculation: { off: true } }, turn.answers[1], plain, run);
      point = plain && measuredPoint(run, plain);
      turn.verdict.textContent = plain ? compared(run, plain, body) : "";
      if (point) this.measured(point);
      byId("prompt").value = "";
      status(summary(run, plain));
    } catch (error) {
      for (const answer of turn.answers) if (!answer.run.stats) answer.fail("stopped");
      if (error.name === "AbortError") status("Stopped.");
      else status(error.message, true);
    } finally {
      this.running = null;
      this.#busy(false);
    }
    if (run.text) this.messages.push({ role: "user", content: text }, { role: "assistant", content: run.text });
    return point;
  }

  async #stream(body, answer, run, beside) {
    // Tokens are drawn once a frame, the rest a few times a second: what can be seen, and no more of the machine.
    let waiting = false;
    let lastPicture = 0;
    const picture = () => {
      showMeters(beside ?? run, beside ? run : null);
      if (!run.plain && this.panel.following && run.rounds.length) this.#show(run, run.rounds.length - 1);
      else if (this.panel.run === run) this.panel.refresh();
    };
    const draw = () => {
      waiting = false;
      answer.refresh();
      if (performance.now() - lastPicture < PICTURE_EVERY) return;
      lastPicture = performance.now();
      picture();
    };
    if (!run.plain) this.panel.following = true;
    for await (const event of events("/lab/run", body, this.running.signal)) {
      if (event.event === "error") throw new Error(event.message);
      run.take(event);
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(draw);
      }
    }
    answer.refresh();
    picture();
  }

  #addTurn(text, run, plain, body) {
    const picked = (chosen, place) => this.#pick(chosen, place);
    const answers = [new Answer(run, `With speculation (${body.speculation.drafter})`, picked)];
    if (plain) answers.push(new Answer(plain, "Plain, the same prompt", picked));
    const verdict = element("p", { class: "verdict" });
    const turn = element(
      "div",
      { class: "turn" },
      element("p", { class: "said" }, text),
      element("div", { class: "answers" }, ...answers.map((answer) => answer.element)),
      verdict,
    );
    this.answers.push(...answers);
    byId("turns").append(turn);
    return { answers, verdict };
  }

  #pick(run, place) {
    this.panel.following = false;
    this.#show(run, place);
  }

  #show(run, place) {
    this.panel.show(run, place);
    for (const answer of this.answers) answer.mark(answer.run === run ? place : -1);
  }

  #clear() {
    this.messages = [];
    this.answers = [];
    byId("turns").replaceChildren();
    byId("clear").disabled = true;
    status("");
    byId("prompt").focus();
  }

  #busy(busy) {
    byId("send").disabled = busy;
    byId("stop").disabled = !busy;
    byId("clear").disabled = busy || !this.answers.length;
  }
}

function compared(run, plain, { temperature, seed }) {
  const drawn = temperature > 0 ? ` Seed ${seed}.` : "";
  if (run.text === plain.text) return `Both said the same, token for token.${drawn}`;
  if (drawn) {
    return `Other words, the same law: drawn guesses use other random numbers than plain decoding does. Coupled verification says the same words, too.${drawn}`;
  }
  return "The two differ: two tokens were as good as tied, and rounding decided. `headstart audit` tells a tie from a fault.";
}

function summary(run, plain) {
  const counted = `${several(run.tokens, "token")} in ${several(run.rounds.length, "round")}`;
  const factor = plain?.rate && run.rate ? `, ${times(run.rate / plain.rate)} the speed of plain decoding` : "";
  return `Done: ${counted}${factor}.`;
}

function status(message, wrong = false) {
  const line = byId("status");
  line.textContent = message;
  line.classList.toggle("wrong", wrong);
}

function example(text) {
  const button = element("button", { type: "button" }, text.split(" ").slice(0, 4).join(" ") + " …");
  button.setAttribute("aria-label", `Example: ${text}`);
  button.addEventListener("click", () => {
    byId("prompt").value = text;
    byId("prompt").focus();
  });
  return button;
}
