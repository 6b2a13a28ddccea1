// The conversation: a message goes out, the answer comes in with its rounds, then its plain twin.

import { events } from "./api.js";
import { byId, calm, element } from "./dom.js";
import { several } from "./format.js";
import { measuredPoint, Run } from "./run.js";
import { requestBody } from "./settings.js";
import { verdict } from "./verdict.js";

const EXAMPLES = [
  "Write a Python class for a bank account with deposit and withdraw.",
  "Count from one to twenty in words.",
  "Why is the sky blue?",
];
const PICTURE_EVERY = 250;

export class Conversation {
  /** `measured` is called with the point that an answer and its plain twin make. */
  constructor(gallery, measured) {
    this.gallery = gallery;
    this.measured = measured;
    this.messages = [];
    this.running = null;
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
    const pair = {
      title: text.trim(),
      prompt: text,
      recorded: null,
      drafter: body.speculation.drafter,
      temperature: body.temperature,
      seed: body.seed,
      maxTokens: body.max_tokens,
      run: new Run(false),
      plain: compare ? new Run(true) : null,
      live: true,
    };
    this.gallery.add(pair);
    this.gallery.open(pair);
    byId("player").scrollIntoView({ block: "start", behavior: calm() ? "auto" : "smooth" });
    let point = null;
    try {
      await this.#stream(body, pair, pair.run);
      if (pair.plain) await this.#stream({ ...body, speculation: { off: true } }, pair, pair.plain);
      point = pair.plain && measuredPoint(pair.run, pair.plain);
      if (point) this.measured(point);
      byId("prompt").value = "";
      status(summary(pair));
    } catch (error) {
      if (error.name === "AbortError") status("Stopped.");
      else status(error.message, true);
    } finally {
      this.running = null;
      this.#busy(false);
      this.gallery.finish(pair);
    }
    const { run } = pair;
    if (run.text) this.messages.push({ role: "user", content: text }, { role: "assistant", content: run.text });
    return point;
  }

  async #stream(body, pair, run) {
    // Pictures a few times a second: what can be seen, and no more of the machine, which usually decodes as well.
    let waiting = false;
    let lastPicture = 0;
    const draw = () => {
      waiting = false;
      if (performance.now() - lastPicture < PICTURE_EVERY) return;
      lastPicture = performance.now();
      this.gallery.grown(pair);
    };
    for await (const event of events("/lab/run", body, this.running.signal)) {
      if (event.event === "error") throw new Error(event.message);
      run.take(event);
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(draw);
      }
    }
    this.gallery.grown(pair);
  }

  #clear() {
    this.messages = [];
    this.gallery.clear();
    byId("clear").disabled = true;
    status("");
    byId("prompt").focus();
  }

  #busy(busy) {
    byId("send").disabled = busy;
    byId("stop").disabled = !busy;
    byId("clear").disabled = busy || !this.gallery.pairs.some((pair) => !pair.recorded);
  }
}

function summary(pair) {
  const { run } = pair;
  const found = verdict(pair);
  const counted = `${several(run.tokens, "token")} in ${several(run.rounds.length, "round")}`;
  return `Done: ${counted}${found ? `, ${found.figure} ${found.caption}` : ""}.`;
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
