// The paper's algebra (Leviathan et al. 2023), as `headstart_lab.theory.formulas` has it: a page may have no server to ask.

const LONGEST = 64;

/** Equation 1: tokens a round. */
export function tokensPerRound(alpha, gamma) {
  let tokens = 1;
  for (let i = 0; i < gamma; i += 1) tokens = 1 + alpha * tokens;
  return tokens;
}

/** Theorem 3.8. */
export const speedup = (alpha, gamma, c) => tokensPerRound(alpha, gamma) / (1 + gamma * c);

/** Theorem 3.11. */
export const operations = (alpha, gamma, cHat) => (gamma * cHat + gamma + 1) / tokensPerRound(alpha, gamma);

/** The draft length of the highest speed-up, up to `LONGEST`; the shortest among equals, 0 where none pays. */
export function bestLength(alpha, c) {
  let [gamma, gain, tokens] = [0, alpha, 1];
  while (gamma < LONGEST && gain * (1 + gamma * c) > c * tokens) {
    gamma += 1;
    tokens += gain;
    gain *= alpha;
  }
  return gamma;
}
