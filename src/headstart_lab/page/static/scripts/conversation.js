// The conversation: a message goes out, the answer comes in with its rounds, then its plain twin.

import { events, GONE } from "./api.js";
import { byId, calm, element } from "./dom.js";
import { several } from "./format.js";
import { showHeadline } from "./headline.js";
import { measuredPoint, Run } from "./run.js";
import { requestBody } from "./settings.js";
import { keep, kept } from "./store.js";
import { verdict } from "./verdict.js";

const EXAMPLES = [
  ["Python class", "Write a Python class for a bank account with deposit and withdraw."],
  ["Numbers", "Count from one to twenty in words."],
  ["Blue sky", "Why is the sky blue?"],
];
const PICTURE_EVERY = 250;
const SIGHT = 0.7;

export class Conversation {
  /** `measured` is called with the point that an answer and its plain twin make; `failed` takes errors. */
  constructor(gallery, guide, measured, failed) {
    Object.assign(this, { gallery, guide, measured, failed });
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
    byId("examples").append(...EXAMPLES.map(example));
    window.addEventListener("pagehide", () => keep(this.messages, gallery.pairs, byId("prompt").value));
    this.#restore();
  }

  /** Ask, and where `compare` ask again without speculation; the measured point, or null. */
  async send(text, compare) {
    if (this.running || !text.trim()) return null;
    this.running = new AbortController();
    this.guide.reach(1);
    this.#busy(true);
    const body = requestBody([...this.messages, { role: "user", content: text }]);
    const pair = {
      title: text.trim(),
      prompt: text,
      recorded: null,
      where: this.gallery.served,
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
    let point = null;
    let stopped = false;
    try {
      status("Guessing ahead …");
      await this.#stream(body, pair, pair.run);
      if (pair.plain) {
        status("Now plainly, for comparison …");
        showHeadline(pair, this.gallery.served);
        await this.#stream({ ...body, speculation: { off: true } }, pair, pair.plain);
      }
      point = pair.plain && measuredPoint(pair.run, pair.plain);
      if (point) this.measured(point);
      status(summary(pair));
      this.guide.reach(2);
    } catch (error) {
      stopped = error.name === "AbortError";
      if (stopped) status("Stopped.");
      else this.failed(error);
      this.guide.reach(0, true);
    } finally {
      this.running = null;
      this.gallery.finish(pair);
    }
    const { run } = pair;
    if (run.stats || (stopped && run.text)) {
      this.messages.push({ role: "user", content: text }, { role: "assistant", content: run.text });
      byId("prompt").value = "";
    }
    this.#busy(false);
    return point;
  }

  /** Lead a newcomer: an example goes out. */
  tryExample() {
    byId("prompt").value ||= EXAMPLES[0][1];
    byId("composer").requestSubmit();
  }

  async #stream(body, pair, run) {
    // Pictures a few times a second: what can be seen, and no more of the machine, which usually decodes as well.
    let waiting = false;
    let lastPicture = 0;
    const draw = () => {
      waiting = false;
      if (!pair.live || performance.now() - lastPicture < PICTURE_EVERY) return;
      lastPicture = performance.now();
      this.gallery.grown(pair);
    };
    for await (const event of events("/lab/run", body, this.running.signal)) {
      if (event.event === "error") throw new Error(event.message);
      run.take(event);
      if (run === pair.run && run.rounds.length === 1) inSight();
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(draw);
      }
    }
    if (!run.stats) throw new Error(GONE);
    this.gallery.grown(pair);
  }

  /** Go on where this tab was before it was loaded anew. */
  #restore() {
    const { messages, pairs, draft } = kept();
    this.messages = messages;
    for (const pair of pairs) this.gallery.add(pair);
    if (pairs.length) this.gallery.open(pairs.at(-1));
    byId("prompt").value = draft;
    this.#busy(false);
  }

  #clear() {
    this.messages = [];
    this.gallery.clear();
    this.#busy(false);
    status("");
    byId("prompt").focus();
  }

  #busy(busy) {
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("clear").hidden = busy || !this.gallery.pairs.length;
  }
}

/** In a small window the answer comes further below than can be seen: box and answer move up together. */
function inSight() {
  if (byId("lanes").getBoundingClientRect().top <= SIGHT * innerHeight) return;
  byId("composer").scrollIntoView({ behavior: calm() ? "auto" : "smooth" });
}

/** A sentence for those who listen to the page; for all where something is `wrong`. */
export function status(message, wrong = false) {
  const line = byId("status");
  line.textContent = message;
  line.className = wrong ? "status wrong" : "unseen";
  if (wrong) byId("composer").scrollIntoView({ block: "nearest" });
}

function summary(pair) {
  const { run } = pair;
  const found = verdict(pair);
  const counted = `${several(run.tokens, "token")} in ${several(run.rounds.length, "round")}`;
  return `Done: ${counted}${found ? `, ${found.figure} ${found.caption}` : ""}.`;
}

function example([title, text]) {
  const button = element("button", { type: "button", title: text }, title);
  button.addEventListener("click", () => {
    byId("prompt").value = text;
    byId("prompt").focus();
  });
  return button;
}
