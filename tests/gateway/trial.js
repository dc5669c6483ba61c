// What the tests of the browser's client need in the page: a client that notes all, a scripted connection and a clock.
import { GatewayClient, InLocalStorage } from "/gateway.js";

window.InLocalStorage = InLocalStorage;

/** A client that notes what its application is given. */
window.listen = (options) => {
  const noted = { seen: [], gaps: [], states: [], errors: [], refused: [] };
  noted.client = new GatewayClient({
    channels: ["a"],
    onMessage: (message) => void noted.seen.push([message.partition, String(message.offset), message.data]),
    onGap: (gap) => void noted.gaps.push({ ...gap, from: String(gap.from), to: gap.to === null ? null : String(gap.to) }),
    onState: (state) => void noted.states.push(state),
    onError: (error) => void noted.errors.push(String(error)),
    onRefused: (code) => void noted.refused.push(code),
    ...options,
  });
  return (window.noted = noted);
};

/** Connections whose other side is the test. */
window.scripted = () => {
  const made = [];
  class Scripted {
    said = [];
    closed = null;
    constructor(url) {
      this.url = url;
      made.push(this);
    }
    send(text) {
      this.said.push(JSON.parse(text));
    }
    close(code) {
      this.closed = code;
    }
    tell(...texts) {
      for (const text of texts) this.onmessage({ data: typeof text === "string" ? text : JSON.stringify(text) });
    }
    end(code) {
      this.onclose({ code, reason: "" });
    }
  }
  return { made, options: { url: "ws://gateway", WebSocket: Scripted } };
};

/** A clock that goes only when it is told to. */
window.clock = () => {
  let now = 0;
  let timers = [];
  performance.now = () => now;
  Date.now = () => now;
  window.setTimeout = (act, ms) => {
    const timer = { act, at: now + ms };
    timers.push(timer);
    return timer;
  };
  window.clearTimeout = (timer) => {
    timers = timers.filter((other) => other !== timer);
  };
  return async (ms) => {
    const end = now + ms;
    for (;;) {
      await settled();
      const due = timers.filter((timer) => timer.at <= end).sort((one, other) => one.at - other.at)[0];
      if (due === undefined) break;
      now = Math.max(now, due.at);
      clearTimeout(due);
      due.act();
    }
    now = end;
  };
};

/** When all that was promised so far has been kept. By a message, for timers that follow each other are slowed down. */
window.settled = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });

/** A record, as the gateway writes it. */
window.record = (offset, data = null, topic = "t") =>
  `{"seq":           1,"ts":1,"type":"m","priority":"NORMAL","channel":"a","topic":"${topic}","partition":0,"offset":${offset},"data":${JSON.stringify(data)}}`;
window.subscribed = (offset = 0) => ({ type: "subscribed", channels: ["a"], positions: { t: { 0: String(offset) } } });
/** A token of the door's that ends at a time, in milliseconds. */
window.ending = (ms, name = "") => `${btoa(name)}.${btoa(JSON.stringify({ sub: "me", exp: ms / 1000 })).replace(/=+$/, "")}.x`;
window.gap = (from, to, reason) =>
  `{"type":"gap","topic":"t","partition":0,"from":${from},"to":${to},"reason":"${reason}"}`;
window.isReady = true;
