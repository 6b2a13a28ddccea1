// The controls under the message box, and the request they make.

import { byId, element } from "./dom.js";

export function startSettings(state) {
  const drafter = byId("drafter");
  drafter.replaceChildren(...state.drafters.map(({ name }) => element("option", { value: name }, name)));
  drafter.value = state.default_drafter;
  const describe = () => {
    const { summary } = state.drafters.find(({ name }) => name === drafter.value);
    byId("drafter-note").textContent =
      `${drafter.value}${summary ? ` guesses ${summary}` : " is a drafter of this server"}. ` +
      "The rule of verification matters where guesses are drawn at random, as those of draft models are above temperature 0.";
  };
  drafter.addEventListener("change", describe);
  describe();
  byId("verify").replaceChildren(...state.rules.map((rule) => element("option", { value: rule }, rule)));
  byId("tree-nodes").max = state.max_tree;
  byId("temperature").addEventListener("input", showTemperature);
  showTemperature();
}

/** The body of a request; a seed is chosen where none is given, so that the plain twin draws the same noise. */
export function requestBody(messages) {
  const seed = wholeNumber("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0];
  return {
    messages,
    seed,
    temperature: Number(byId("temperature").value),
    max_tokens: wholeNumber("max-tokens") ?? 96,
    speculation: {
      drafter: byId("drafter").value,
      draft_tokens: wholeNumber("draft-tokens"),
      tree_nodes: wholeNumber("tree-nodes"),
      verify: byId("verify").value,
    },
  };
}

function showTemperature() {
  const value = Number(byId("temperature").value);
  byId("temperature-value").textContent = value === 0 ? "greedy" : value.toFixed(1);
}

function wholeNumber(id) {
  const { value } = byId(id);
  return value === "" ? null : Math.round(Number(value));
}
