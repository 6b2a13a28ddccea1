// Numbers and tokens as people read them.

export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`);

export const times = (factor) => `${factor.toFixed(2)}×`;

export const rate = (perSecond) => (perSecond === null ? "–" : perSecond.toFixed(perSecond < 10 ? 1 : 0));

export const several = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** A token with its white space made visible. */
export const visible = (label) =>
  label.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍");

export function shortened(label, longest = 14) {
  const letters = [...visible(label)];
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("")}…` : letters.join("");
}

export function milliseconds(seconds) {
  const value = 1000 * seconds;
  return value >= 1000 ? `${seconds.toFixed(2)} s` : `${value.toFixed(value < 1 ? 2 : value < 100 ? 1 : 0)} ms`;
}
