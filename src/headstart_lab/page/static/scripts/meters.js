// The numbers of one answer, as it comes.

import { byId, element, entries } from "./dom.js";
import { percent, rate, times } from "./format.js";
import { showTimeline } from "./timeline.js";
import { verdict } from "./verdict.js";

/** `plain` is the answer's plain twin, where there is one. */
export function showMeters(run, plain) {
  const known = (value, written) => (value === null ? "–" : written(value));
  const found = verdict({ run, plain });
  const accepted = run.positions.reduce((sum, position) => sum + position.accepted, 0);
  byId("numbers").replaceChildren(
    ...entries([
      ["tokens/s, guessing", rate(run.rate), "lead"],
      ["tokens/s, plain", rate(plain?.rate ?? null)],
      ["speed-up", known(found && found.factor, times), found?.tone],
      ["tokens a round", known(run.meanLength, (length) => length.toFixed(2))],
      ["guesses kept", run.guesses ? percent(accepted / run.guesses) : "–"],
    ]),
  );
  showTimeline(byId("timeline"), run, plain);
  byId("positions").replaceChildren(...run.positions.map(bar));
}

function bar({ tried, accepted }, depth) {
  const share = accepted / tried;
  const filled = element("span");
  filled.style.setProperty("--share", `${100 * share}%`);
  return element(
    "li",
    { "aria-label": `position ${depth + 1}: ${percent(share)}, ${accepted} of ${tried}` },
    element("span", { "aria-hidden": "true" }, String(depth + 1)),
    element("span", { class: "bar", "aria-hidden": "true" }, filled),
    element("span", { class: "count", "aria-hidden": "true" }, element("b", {}, percent(share)), ` ${accepted} of ${tried}`),
  );
}
