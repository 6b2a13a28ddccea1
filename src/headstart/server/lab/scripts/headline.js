// What a pair of answers comes to: asked what, where, how fast against plain decoding, and whether the text is the same.

import { inCode } from "./code_blocks.js";
import { byId, element } from "./dom.js";
import { verdict } from "./verdict.js";

export function showHeadline(pair, live) {
  byId("asked").replaceChildren(...message(pair.prompt));
  byId("where").textContent = pair.recorded ? place(pair.recorded) : "Answered live by this server.";
  const found = live ? null : verdict(pair);
  const box = byId("factor");
  box.dataset.tone = found?.tone ?? "none";
  const parts = found
    ? [
        element("p", { class: "figure" }, found.figure),
        element("p", { class: "caption" }, found.caption),
        element("p", { class: "same" }, compared(pair)),
        ...(found.reason ? [element("p", { class: "reason" }, found.reason)] : []),
      ]
    : [element("p", { class: "caption" }, live ? "Decoding …" : "Without a plain answer beside it there is no factor.")];
  box.replaceChildren(...parts);
}

/** Whether the two said the same, and if not, why. */
export function compared({ run, plain, temperature, seed }) {
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

function place({ model, provenance, factors, kept }) {
  const date = provenance.date.slice(0, 10);
  const machine = `${provenance.cpu}, ${provenance.cores} cores`;
  const others = factors.map((factor) => factor.toFixed(2)).join(", ");
  return (
    `Recorded: ${model.name}, ${model.backend}, on ${machine}, ${date}. ` +
    `Pair ${kept + 1} of ${factors.length}, the median of ${others}.`
  );
}
