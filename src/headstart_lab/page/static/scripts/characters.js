// Tokens as whole characters: what one token begins and a later one ends is shown with the later one.

const clusters = new Intl.Segmenter("en", { granularity: "grapheme" });
const WIDE = /\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Hangul}|\p{Emoji_Presentation}|[\u3000-\u303f\uff01-\uff60]/u;

/**
 * [token] what to show of it, and whether it ends inside of a character. `tokens` have a `text`, that of all complete
 * code points, and `part` where bytes of another one follow; an emoji or a letter may take several code points.
 */
export function wholeCharacters(tokens) {
  const text = tokens.map((token) => token.text).join("");
  const segments = clusters.segment(text);
  let [at, from] = [0, 0];
  return tokens.map((token) => {
    at += token.text.length;
    // Whatever goes on with a character is outside of ASCII.
    const to = text.charCodeAt(at) > 127 ? segments.containing(at).index : at;
    const shown = text.slice(from, to);
    from = to;
    return { shown, inside: Boolean(token.part) || to < at };
  });
}

/** How many letters of a monospaced font a text takes. */
export const columns = (text) => [...text].reduce((sum, letter) => sum + (WIDE.test(letter) ? 2 : 1), 0);
