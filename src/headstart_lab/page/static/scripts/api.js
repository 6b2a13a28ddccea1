// Requests to this server, and the key that goes with them.

const KEY = "headstart-key";
export const GONE =
  "The server does not answer: start it again with “headstart serve”, then reload this page. The conversation is kept.";
let key = sessionStorage.getItem(KEY) ?? "";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useKey(given) {
  key = given;
  sessionStorage.setItem(KEY, given);
}

export async function getJson(path, query = {}, signal = undefined) {
  const search = new URLSearchParams(query).toString();
  return (await ask(search ? `${path}?${search}` : path, { signal })).json();
}

/** The events that a POST is answered with, as they come. */
export async function* events(path, body, signal) {
  const reply = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(gone);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part.replace(/^data: /, ""));
  }
}

/** Runs `load` for the newest of quick successive calls: earlier ones are given up. */
export function newest(load) {
  let running = null;
  return async (...given) => {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    try {
      await load(signal, ...given);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  };
}

async function ask(path, options) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  const reply = await fetch(path, { ...options, headers }).catch(gone);
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => ({}));
  const message = told.error?.message ?? `The server answered with status ${reply.status}: try again, or look at what it has logged.`;
  throw new ApiError(reply.status, message);
}

/** The browser says no more than "network error" where a server is gone. */
function gone(error) {
  throw error.name === "AbortError" ? error : new Error(GONE);
}
