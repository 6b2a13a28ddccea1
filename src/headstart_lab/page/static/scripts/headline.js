// What a pair of answers comes to: asked what, where, how fast against plain decoding, and whether the text is the same.

import { inCode } from "./code_blocks.js";
import { byId, element } from "./dom.js";
import { verdict } from "./verdict.js";

/** `served`: model, format and machine of this server; null as long as they are unknown. */
export function showHeadline(pair, served) {
  byId("asked").replaceChildren(...message(pair.prompt));
  byId("where").textContent = pair.recorded ? recorded(pair) : `Measured once, on this server: ${pair.where}.`;
  const here = pair.recorded || pair.where === served;
  const found = pair.live || !here ? null : verdict(pair);
  byId("how").hidden = !found;
  byId("disturbed").textContent = found?.disturbed ?? "";
  const box = byId("factor");
  box.dataset.tone = found?.tone ?? "none";
  const parts = found
    ? [
        element("p", { class: "figure" }, found.figure),
        element("p", { class: "caption" }, found.caption),
        element("p", { class: "same" }, compared(pair)),
        ...(found.reason ? [element("p", { class: "reason" }, found.reason)] : []),
      ]
    : [element("p", { class: "caption" }, unmeasured(pair, here))];
  box.replaceChildren(...parts);
}

/** Why there is no factor. */
function unmeasured({ live, run, plain, where }, here) {
  if (live) return run.stats ? "Now plainly, for comparison …" : "Guessing ahead …";
  if (!here) return `Answered by ${where}. Ask again to measure it here.`;
  return plain && !run.stats ? "The answer broke off." : "Without a whole plain answer beside it there is no factor.";
}

/** Whether the two said the same, and if not, why. */
function compared({ run, plain, temperature, seed }) {
  const drawn = temperature > 0 ? ` Seed ${seed}.` : "";
  if (run.text === plain.text) return `Same text, token for token.${drawn}`;
  if (drawn) {
    return `Other words, the same law: drawn guesses use other random numbers than plain decoding does. Coupled verification says the same words, too.${drawn}`;
  }
  return "The two differ: two tokens were as good as tied, and rounding decided. headstart audit tells a tie from a fault.";
}

/** A message's lines, those of code blocks as code. */
function message(text) {
  const lines = text.split(/(?<=\n)/);
  const code = inCode(lines);
  return lines.map((line, place) => (code[place] ? element("code", {}, line) : line));
}

function recorded({ where, recorded: { provenance, factors, kept } }) {
  const others = factors.map((factor) => factor.toFixed(2)).join(", ");
  return `Recorded: ${where}, ${provenance.date.slice(0, 10)}. Pair ${kept + 1} of ${factors.length}, the median of ${others}.`;
}
