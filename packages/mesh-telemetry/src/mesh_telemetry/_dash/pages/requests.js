// Requests to the program: topics, once or live, and SQL.

const KEY = "mesh-token";
const RETRY_MS = 1000;
const REPLIES_MAX = 60;

// The last reply to each address, oldest first: shown if the program no longer responds.
const replies = new Map();

/** Thrown when the program rejects the token. */
export class UnauthorizedError extends Error {}

/** Thrown when the program does not respond: it has ended, or the connection is lost. */
export class UnreachableError extends Error {}

/** Stores the token of the address for this tab, and removes it from the address. */
export function takeTokenFromAddress() {
  const match = /^#token=([^&]*)(?:&(.*))?$/.exec(location.hash);
  if (!match) return;
  storeToken(decodeURIComponent(match[1]));
  history.replaceState(null, "", `${location.pathname}#/${match[2] ?? "overview"}`);
}

export function storeToken(token) {
  sessionStorage.setItem(KEY, token);
}

/** Queries a topic once. */
export async function fetchTopic(topic, wanted = {}, signal = undefined) {
  const words = addressOf(topic, wanted);
  const reply = await request(`/topics/${words}`, { signal });
  return remember(words, read(await reply.text()));
}

/** Throws UnreachableError if the program does not respond; costs it no query. */
export const ping = () => request("/dash/icon.svg", {});

/** Returns the last reply of a topic; undefined if there was none. */
export const lastReply = (topic, wanted = {}) => replies.get(addressOf(topic, wanted));

const addressOf = (topic, wanted) => `${topic}?${new URLSearchParams(wanted)}`;

function remember(words, reply) {
  replies.delete(words);
  replies.set(words, reply);
  if (replies.size > REPLIES_MAX) replies.delete(replies.keys().next().value);
  return reply;
}

/** Runs an SQL query; returns columns, rows and coverage. */
export async function query(sql) {
  const reply = await request("/query", { method: "POST", body: JSON.stringify({ sql }) });
  return read(await reply.text());
}

/**
 * Subscribes to a topic until the returned function is called.
 *
 * `handlers.onValue(value, coverage)` is called for each value, and `handlers.onError(error)` after an error;
 * a lost stream is reopened. `handlers.onUnauthorized(error)` is called when the program rejects the token.
 */
export function subscribe(topic, wanted, handlers) {
  const stop = new AbortController();
  const run = async () => {
    while (!stop.signal.aborted) {
      try {
        const words = addressOf(topic, wanted);
        const reply = await request(`/live/${words}`, { signal: stop.signal });
        await readStream(reply, words, handlers, stop.signal);
        // The server ends streams only when it closes.
        handlers.onError?.(new UnreachableError("the program has ended"));
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof UnauthorizedError) {
          handlers.onUnauthorized?.(error);
          return;
        }
        // A stream that breaks while it is read is a TypeError; the next request finds out why.
        handlers.onError?.(error instanceof TypeError ? new Error("the program does not respond") : error);
      }
      await new Promise((go) => setTimeout(go, RETRY_MS));
    }
  };
  run();
  return () => stop.abort();
}

async function readStream(reply, words, handlers, signal) {
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
      const message = read(event.slice(6));
      if (message.error) {
        handlers.onError?.(new Error(message.error));
        continue;
      }
      remember(words, message);
      try {
        handlers.onValue(message.value, message.coverage);
      } catch (error) {
        // An error of the page is not one of the connection.
        reportError(error);
      }
    }
  }
}

async function request(address, options) {
  const token = sessionStorage.getItem(KEY) ?? "";
  const headers = { Authorization: `Bearer ${token}` };
  const reply = await fetch(address, { ...options, headers, cache: "no-store" }).catch((error) => {
    throw error instanceof TypeError ? new UnreachableError("the program does not respond") : error;
  });
  if (reply.ok) return reply;
  const text = await reply.json().then((body) => body.error.message, () => reply.statusText);
  throw reply.status === 401 ? new UnauthorizedError(text) : new Error(text);
}

/** Parses JSON; integers that JavaScript would round become text. */
function read(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? context.source
      : value,
  );
}
