// "Break it": the exact rule beside two biased ones, word after word.

import { newest } from "./api.js";
import { byId, calm, element, shape } from "./dom.js";
import { percent } from "./format.js";
import { Plot } from "./plot.js";

const RULES = {
  exact: {
    kind: "exact",
    name: "Exact",
    short: "exact",
    told: "A rejected guess is replaced by a draw from what the draft left of the model’s law, norm(max(p − q, 0)).",
  },
  "resample-target": {
    kind: "corrected",
    name: "Resample from p",
    short: "from p",
    told: "A rejected guess is replaced by a draw from p itself. What the draft likes is then said too often.",
  },
  "shared-noise": {
    kind: "other",
    name: "Share the noise",
    short: "shared",
    told: "The number that drew the guess also decides about it. Words early in the vocabulary pass too easily.",
  },
};
const SECONDS = 2;
const ROW = 27;

export class Rules {
  /** `ask` gives what the rules say, for a likeness, a seed and an abort signal; `failed` takes errors. */
  constructor(ask, failed) {
    this.plot = new Plot(byId("plot-distance"));
    this.seed = 0;
    this.seen = null;
    this.playing = 0;
    const load = newest(async (signal) => {
      this.seen = await ask(byId("likeness").value, this.seed, signal);
      byId("trials").max = this.seen.trials.length - 1;
    });
    const reload = async (play) => {
      byId("likeness-value").textContent = percent(Number(byId("likeness").value));
      try {
        await load();
        if (play) this.#play();
        else this.#draw();
        this.#report();
      } catch (error) {
        failed(error);
      }
    };
    this.open = () => (this.seen ? this.#draw() : reload(true));
    byId("likeness").addEventListener("input", () => {
      this.playing += 1;
      reload(false);
    });
    byId("trials").addEventListener("input", () => {
      this.playing += 1;
      this.#draw();
    });
    byId("levers").addEventListener("submit", (event) => event.preventDefault());
    byId("replay").addEventListener("click", () => {
      this.seed += 1;
      reload(true);
    });
  }

  /** Let the words come, or show the end at once where motion is unwelcome. */
  #play() {
    const last = this.seen.trials.length - 1;
    const mine = (this.playing += 1);
    if (calm()) {
      byId("trials").value = last;
      this.#draw();
      return;
    }
    const begin = performance.now();
    const step = (now) => {
      if (mine !== this.playing) return;
      const share = Math.min(1, (now - begin) / 1000 / SECONDS);
      byId("trials").value = Math.round(share * last);
      this.#draw();
      if (share < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  #draw() {
    const at = Number(byId("trials").value);
    const { trials, chance, rules, words, target } = this.seen;
    byId("trials-value").textContent = trials[at].toLocaleString("en");
    byId("verdicts").replaceChildren(
      ...rules.map((rule) => card(rule, at, chance[at], { words, target })),
    );
    this.plot.show({
      title: `Distance from the model's law after ${trials[at]} words: ${rules.map((rule) => `${RULES[rule.rule].name} ${rule.distances[at].toFixed(4)}`).join(", ")}`,
      x: { label: "words said", from: trials[0], to: trials.at(-1), log: true, ticks: [10, 100, 1000, 10_000, 100_000].map((n) => [n, n < 1000 ? String(n) : `${n / 1000}k`]) },
      y: { from: 0.0005, to: 0.6, log: true, ticks: [0.001, 0.01, 0.1, 0.5].map((d) => [d, String(d)]) },
      lines: [
        { x: trials, y: chance, class: "context dashed", label: "chance" },
        ...rules.map((rule) => ({
          x: trials.slice(0, at + 1),
          y: rule.distances.slice(0, at + 1),
          class: `rule ${RULES[rule.rule].kind}`,
          label: RULES[rule.rule].short,
        })),
      ],
      marks: rules.map((rule) => ({ x: trials[at], y: rule.distances[at], class: `rule-end ${RULES[rule.rule].kind}` })),
    });
  }

  #report() {
    const { alpha, rules } = this.seen;
    const biases = rules.slice(1).map((rule) => `${RULES[rule.rule].name.toLowerCase()} stays ${rule.bias.toFixed(3)} away`);
    byId("rules-status").textContent =
      `The draft’s guesses are kept ${percent(alpha)} of the time. However long they speak: the exact rule goes to 0, ${biases.join(", ")}.`;
  }
}

function card(rule, at, chance, toy) {
  const { kind, name, told } = RULES[rule.rule];
  const distance = rule.distances[at];
  const comment =
    rule.bias > 1e-9
      ? `from the model’s law; its own law is ${rule.bias.toFixed(3)} away from it for ever`
      : `from the model’s law; chance alone leaves about ${chance.toFixed(4)}`;
  return element(
    "article",
    { class: `card verdict-card ${kind}`, "data-rule": rule.rule },
    element("h2", {}, name),
    element("p", { class: "note" }, told),
    element("p", {}, element("span", { class: "big" }, distance.toFixed(4)), " ", element("span", { class: "key-line" }, comment)),
    histogram(rule.histograms[at], name, toy),
    element("p", { class: "key-line" }, "Bars: what was said. Lines: what the model says."),
  );
}

function histogram(shares, name, { words, target }) {
  const [left, width] = [66, 240];
  const longest = Math.max(...target, ...shares, 0.4);
  const rows = words.flatMap((word, place) => {
    const y = place * ROW;
    const atLaw = left + (target[place] / longest) * width;
    return [
      shape("text", { x: left - 8, y: y + 17, "text-anchor": "end" }, word),
      shape("rect", { class: "said", x: left, y: y + 5, width: (shares[place] / longest) * width, height: ROW - 10, rx: 3 }),
      shape("line", { class: "law", x1: atLaw, x2: atLaw, y1: y + 1, y2: y + ROW - 1 }),
    ];
  });
  const title = `${name}: ${words.map((word, i) => `${word} ${percent(shares[i])}, model ${percent(target[i])}`).join("; ")}`;
  return element(
    "div",
    { class: "histogram" },
    shape("svg", { viewBox: `0 0 ${left + width + 8} ${ROW * words.length}`, role: "img", "aria-label": title }, ...rows,
      shape("line", { class: "base", x1: left, x2: left, y1: 0, y2: ROW * words.length })),
  );
}
