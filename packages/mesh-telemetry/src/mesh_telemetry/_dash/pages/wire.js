// Requests to the program: topics, once or live, and SQL.

const KEY = "mesh-token";
const RETRY_MS = 1000;

/** Thrown when the program rejects the token. */
export class NotLetIn extends Error {}

/** Stores the token of the address for this tab, and removes it from the address. */
export function keepToken() {
  const match = /^#token=([^&]*)(?:&(.*))?$/.exec(location.hash);
  if (!match) return;
  remember(decodeURIComponent(match[1]));
  history.replaceState(null, "", `${location.pathname}#/${match[2] ?? "overview"}`);
}

export function remember(token) {
  sessionStorage.setItem(KEY, token);
}

/** Queries a topic once. */
export async function ask(topic, wanted = {}, signal = undefined) {
  const reply = await called(`/topics/${topic}?${new URLSearchParams(wanted)}`, { signal });
  return read(await reply.text());
}

/** Runs an SQL query; returns columns, rows and coverage. */
export async function query(sql) {
  const reply = await called("/query", { method: "POST", body: JSON.stringify({ sql }) });
  return read(await reply.text());
}

/**
 * Subscribes to a topic until the returned function is called.
 *
 * `heard.value(value, coverage)` is called for each answer, and `heard.lost(text)` after an error;
 * a lost stream is reopened. `heard.shut(error)` is called when the program rejects the token.
 */
export function live(topic, wanted, heard) {
  const stop = new AbortController();
  const run = async () => {
    while (!stop.signal.aborted) {
      try {
        const address = `/live/${topic}?${new URLSearchParams(wanted)}`;
        const reply = await called(address, { signal: stop.signal });
        await listen(reply, heard, stop.signal);
        heard.lost?.("the program has ended the stream");
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof NotLetIn) {
          heard.shut?.(error);
          return;
        }
        heard.lost?.(error instanceof TypeError ? "the program does not answer" : error.message);
      }
      await new Promise((go) => setTimeout(go, RETRY_MS));
    }
  };
  run();
  return () => stop.abort();
}

async function listen(reply, heard, signal) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || signal.aborted) return;
    left += value;
    let end;
    while ((end = left.indexOf("\n\n")) >= 0) {
      const event = left.slice(0, end);
      left = left.slice(end + 2);
      if (!event.startsWith("data: ")) continue;
      const said = read(event.slice(6));
      if (said.error) heard.lost?.(said.error);
      else heard.value(said.value, said.coverage);
    }
  }
}

async function called(address, options) {
  const token = sessionStorage.getItem(KEY) ?? "";
  const headers = { Authorization: `Bearer ${token}` };
  const reply = await fetch(address, { ...options, headers, cache: "no-store" });
  if (reply.ok) return reply;
  const text = await reply.json().then((said) => said.error.message, () => reply.statusText);
  throw reply.status === 401 ? new NotLetIn(text) : new Error(text);
}

/** Parses JSON; integers that JavaScript would round become text. */
function read(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? context.source
      : value,
  );
}
