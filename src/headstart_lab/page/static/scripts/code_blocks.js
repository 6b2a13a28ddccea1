// Which tokens of an answer belong to fenced code. Fences are lines that begin with three backticks or tildes.

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;

/** [token] whether it has a part in a code block, the fences included; an open block lasts to the end. */
export function inCode(texts) {
  const spans = codeSpans(texts.join(""));
  let start = 0;
  let span = 0;
  return texts.map((text) => {
    const end = start + text.length;
    while (span < spans.length && spans[span][1] <= start) span += 1;
    const code = span < spans.length && spans[span][0] < end;
    start = end;
    return code && text !== "";
  });
}

/** [start, end) of each block in characters, the line break behind its closing fence left out. */
function codeSpans(text) {
  const spans = [];
  let open = null;
  let at = 0;
  for (const line of text.split("\n")) {
    const fence = FENCE.exec(line);
    if (!open && fence && !(fence[1][0] === "`" && fence[2].includes("`"))) {
      open = { start: at, mark: fence[1] };
    } else if (open && fence && fence[1][0] === open.mark[0] && fence[1].length >= open.mark.length && !fence[2].trim()) {
      spans.push([open.start, at + line.length]);
      open = null;
    }
    at += line.length + 1;
  }
  if (open) spans.push([open.start, text.length]);
  return spans;
}
