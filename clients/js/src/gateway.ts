/**
 * A client of the Strandline gateway that keeps its place: it reconnects, resumes in one message, drops what comes
 * twice, and tells what can no longer be had.
 *
 * A position is stored once the application has handled a message. So a page that is closed in the middle of one gets it
 * again, and never misses one. Offsets are bigints: a log may have more records than a number can count.
 */

/** A record, as it was written to Kafka. */
export interface Message<Data = unknown> {
  /** Counts the messages of one connection. */
  readonly seq: number;
  readonly topic: string;
  readonly partition: number;
  readonly offset: bigint;
  /** The record's time, in milliseconds since 1970. */
  readonly ts: number;
  readonly channel: string;
  readonly type: string;
  readonly priority: string;
  readonly data: Data;
  /** Whether it comes from the past. */
  readonly replayed: boolean;
}

/** Offsets that cannot be had, from the first to the last of them; null where nobody knows how many. */
export interface Gap {
  readonly topic: string;
  readonly partition: number;
  readonly from: bigint;
  readonly to: bigint | null;
  readonly reason: string;
}

/** Where a client is: the last token, and the first offsets that it has not handled since. Plain JSON. */
export interface Place {
  token: string | null;
  positions: Record<string, Record<string, string>>;
}

/** Keeps a place from one visit to the next. */
export interface Store {
  load(): Promise<Place | null> | Place | null;
  save(place: Place): Promise<void> | void;
}

export type State = "connecting" | "live" | "waiting" | "stopped";

export interface Options<Data = unknown> {
  url: string;
  channels: readonly string[];
  /** The next message comes when this is done. */
  onMessage(message: Message<Data>): void | Promise<void>;
  onGap?(gap: Gap): void | Promise<void>;
  onState?(state: State): void;
  /** What the gateway will not do, however often it is asked. The client stops. */
  onRefused?(code: string, message: string): void;
  /** What went wrong on this side. What a handler has failed on is given to it again; the console is told otherwise. */
  onError?(error: unknown): void;
  store?: Store;
  /** Asked for before every connection, and before the last one ends, which is then shown on the same connection. */
  accessToken?(): string | Promise<string>;
  /** What the gateway counts replays by; by default one of its own for each client that is made. */
  clientId?: string;
  /** For Node.js before version 22, and for tests. */
  WebSocket?: typeof WebSocket;
}

const FIRST_WAIT_MS = 100;
const LONGEST_WAIT_MS = 30_000;
const CONNECT_MS = 15_000;
const QUIET_MS = 25_000;
const ANSWER_MS = 10_000;
/** How often the place is stored in the middle of what came at once. */
const SAVE_EVERY_MS = 200;
const CREDIT = 1_000;
/** A fresh token is shown when so much of the life of the last one is over. */
const REFRESH_AFTER = 0.8;
const LEAST_REFRESH_MS = 500;
/** A timer that is set for longer goes off at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** What may wait for a slow application. Beyond it the connection is closed, and resumed when there is room. */
const MOST_WAITING = 8 << 20;
const FINAL = new Set([
  "not_allowed",
  "too_many_subscriptions",
  "unknown_topic",
  "unknown_partition",
  "needs_partitions",
  "bad_message",
  "no_channels",
]);
/** After these gaps other records come at the offsets of those that are lost. */
const TAKEN_BACK = new Set(["truncated", "beyond_end"]);
const UNAUTHORIZED = 4001;
/** Before the data stand texts of the gateway's own, and no text in JSON has a bare quotation mark. */
const OFFSET = /,"partition":\d+,"offset":(\d+),/;
const FROM = /"from":(\d+),"to":(\d+|null),/;

/** Keeps the place in the browser's own storage. */
export class InLocalStorage implements Store {
  constructor(private readonly name: string) {}

  load(): Place | null {
    const kept = localStorage.getItem(this.name);
    return kept === null ? null : (JSON.parse(kept) as Place);
  }

  save(place: Place): void {
    localStorage.setItem(this.name, JSON.stringify(place));
  }
}

/** Keeps the place as long as the page lives. */
export class InMemory implements Store {
  private place: Place | null = null;

  load(): Place | null {
    return this.place;
  }

  save(place: Place): void {
    this.place = place;
  }
}

interface Heard {
  readonly socket: WebSocket;
  readonly text: string;
}

/** From a start to its stop. Whatever has waited for something looks whether it is still in the same one. */
type Life = object;

/** Serves one set of channels from `start` until `stop`. */
export class GatewayClient<Data = unknown> {
  /** Messages that came and were known already. */
  repeats = 0;
  /** How often it has connected. */
  connects = 0;
  private readonly store: Store;
  private place: Place = placed(null);
  /** Of topics made anew, the partitions that were told of so far. */
  private anew = new Map<string, Set<string>>();
  private life: Life | null = null;
  /** The connection, or what is to become it. */
  private socket: WebSocket | null = null;
  private waiting: Heard[] = [];
  private waitingSize = 0;
  private handling: Promise<void> | null = null;
  private attempts = 0;
  /** When the gateway will hear of us again, by the page's clock. */
  private notBefore = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private refreshing: ReturnType<typeof setTimeout> | undefined;
  private wake: () => void = () => {};

  private readonly clientId: string;

  constructor(private readonly options: Options<Data>) {
    this.store = options.store ?? new InMemory();
    // It keeps no secret: it tells clients apart that share a subject or an address.
    this.clientId = options.clientId || Math.random().toString(36).slice(2);
  }

  /** Go on from the place that is stored. One that has been started is left alone. */
  async start(): Promise<void> {
    if (this.life !== null) return;
    const life = (this.life = {});
    try {
      // What was in the application's hands at the last stop moves the place yet.
      await this.handling;
      const place = await this.store.load();
      if (this.life !== life) return;
      this.place = placed(place);
      this.attempts = 0;
      await this.connect(life);
    } catch (error) {
      if (this.life === life) this.life = null;
      throw error;
    }
  }

  /** What is in the application's hands is stored when it is done; what waits behind it comes after the next start. */
  stop(): void {
    if (this.life === null) return;
    this.life = null;
    clearTimeout(this.timer);
    this.wake();
    this.waiting = [];
    this.waitingSize = 0;
    this.release()?.close(1000);
    this.tell("stopped");
  }

  /** Cut the connection, as a network does; it comes back by itself. */
  drop(): void {
    if (this.socket !== null) this.cut(this.socket, "dropped");
  }

  private async connect(life: Life): Promise<void> {
    this.tell("connecting");
    if (this.life !== life) return;
    let url = this.options.url;
    let token: string | undefined;
    if (this.options.accessToken !== undefined) {
      try {
        token = await soon(this.options.accessToken());
        url += `${url.includes("?") ? "&" : "?"}access_token=${encodeURIComponent(token)}`;
      } catch (error) {
        this.fault(error);
        if (this.life === life) this.again(life);
        return;
      }
      if (this.life !== life) return;
    }
    const socket = new (this.options.WebSocket ?? WebSocket)(url);
    this.socket = socket;
    this.watchdog = setTimeout(() => this.cut(socket, "no answer"), CONNECT_MS);
    socket.onopen = () => {
      if (socket !== this.socket) return;
      this.connects += 1;
      socket.send(JSON.stringify(this.hello()));
      this.watch(socket);
      if (token !== undefined) this.refreshLater(socket, token);
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      if (socket !== this.socket) return;
      this.watch(socket);
      this.take(life, socket, event.data);
    };
    socket.onclose = (event: CloseEvent) => {
      if (socket !== this.socket) return;
      this.release();
      if (event.code === UNAUTHORIZED && this.options.accessToken === undefined) {
        this.refuse("unauthorized", event.reason);
      } else {
        this.again(life);
      }
    };
  }

  /** Have no connection. Whatever the old one does yet is not listened to. */
  private release(): WebSocket | null {
    const socket = this.socket;
    clearTimeout(this.watchdog);
    clearTimeout(this.refreshing);
    this.socket = null;
    return socket;
  }

  /** End a connection without waiting for its other side, which may be gone. */
  private cut(socket: WebSocket, reason: string): void {
    if (socket !== this.socket) return;
    this.release();
    socket.close(4000, reason);
    if (this.life !== null) this.again(this.life);
  }

  /** Connect again in a while, when what has come is handled. */
  private again(life: Life): void {
    this.tell("waiting");
    if (this.life !== life) return;
    this.attempts += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tryNow(life), growing(this.attempts) * Math.random());
  }

  private tryNow(life: Life): void {
    const wait = this.handling !== null ? FIRST_WAIT_MS : this.notBefore - performance.now();
    if (wait > 0) this.timer = setTimeout(() => this.tryNow(life), wait);
    else this.connect(life).catch((error: unknown) => this.fault(error));
  }

  private hello(): object {
    const { token, positions } = this.place;
    // Without a token all positions are taken for ones in the topic of now.
    if (token === null) this.anew.clear();
    const channels = this.options.channels;
    if (token === null && Object.keys(positions).length === 0) return { type: "subscribe", data: { channels } };
    const data: Record<string, unknown> = { channels, credit: CREDIT, client_id: this.clientId };
    if (token !== null) data["token"] = token;
    // Offsets go out as texts, which have room for all their digits.
    if (Object.keys(positions).length > 0) data["positions"] = positions;
    return { type: "resume", data };
  }

  /** A connection that says nothing for long is asked, and one that does not answer is gone. */
  private watch(socket: WebSocket): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => {
      socket.send('{"type":"ping"}');
      this.watchdog = setTimeout(() => this.cut(socket, "no answer"), ANSWER_MS);
    }, QUIET_MS);
  }

  /** Show another token before this one ends, where it says when. */
  private refreshLater(socket: WebSocket, token: string): void {
    const left = millisecondsLeft(token);
    if (left === null) return;
    const wait = Math.min(LONGEST_TIMER_MS, Math.max(LEAST_REFRESH_MS, left * REFRESH_AFTER));
    this.refreshing = setTimeout(() => this.refresh(socket).catch((error: unknown) => this.fault(error)), wait);
  }

  /** Where no token is to be had the connection ends with the old one, and the next asks again. */
  private async refresh(socket: WebSocket): Promise<void> {
    const token = await soon(this.options.accessToken!());
    if (socket !== this.socket) return;
    socket.send(JSON.stringify({ type: "auth", data: { token } }));
    this.refreshLater(socket, token);
  }

  private take(life: Life, socket: WebSocket, text: string): void {
    this.waiting.push({ socket, text });
    this.waitingSize += text.length;
    if (this.waitingSize > MOST_WAITING) this.cut(socket, "the application is behind");
    this.handling ??= this.handle(life);
  }

  private async handle(life: Life): Promise<void> {
    let saved = performance.now();
    while (this.waiting.length > 0) {
      const batch = this.waiting;
      this.waiting = [];
      for (const heard of batch) {
        if (this.life !== life) break;
        this.waitingSize -= heard.text.length;
        try {
          await this.hear(life, heard);
        } catch (error) {
          // No gateway says so. It may have been a record: what comes behind it must not move the place.
          this.waiting = [];
          this.waitingSize = 0;
          this.fault(error);
          this.cut(heard.socket, "not understood");
          break;
        }
        if (performance.now() - saved > SAVE_EVERY_MS) {
          await this.save();
          saved = performance.now();
        }
      }
      await this.save();
    }
    this.handling = null;
  }

  /** A place that is not stored is an older one: nothing is missed by it. */
  private async save(): Promise<void> {
    try {
      await this.store.save(this.place);
    } catch (error) {
      this.fault(error);
    }
  }

  private async hear(life: Life, { socket, text }: Heard): Promise<void> {
    const told = JSON.parse(text) as Record<string, unknown>;
    if ("offset" in told) await this.message(life, told, BigInt(OFFSET.exec(text)![1]!));
    else if (told["type"] === "gap") await this.gap(life, told, FROM.exec(text)!);
    else this.answer(socket, told);
  }

  private async message(life: Life, told: Record<string, unknown>, offset: bigint): Promise<void> {
    const { topic, partition } = told as unknown as Message;
    if (offset < this.next(topic, partition)) {
      this.repeats += 1;
      return;
    }
    const replayed = told["type"] === "replay:message";
    const data = (told["encoding"] === "base64" ? bytes(told["data"] as string) : told["data"]) as Data;
    const message = { ...(told as unknown as Message<Data>), data, offset, replayed };
    if (!(await this.isHandled(life, () => this.options.onMessage(message)))) return;
    this.attempts = 0;
    this.reach(topic, partition, offset + 1n);
  }

  private async gap(life: Life, told: Record<string, unknown>, range: RegExpExecArray): Promise<void> {
    const { topic, partition, reason } = told as unknown as Gap;
    const from = BigInt(range[1]!);
    const to = range[2] === "null" ? null : BigInt(range[2]!);
    if (!(await this.isHandled(life, () => this.options.onGap?.({ topic, partition, reason, from, to })))) return;
    if (reason === "recreated") {
      this.madeAnew(topic, String(partition));
    } else if (reason === "not_served") {
      delete this.place.positions[topic];
    } else if (TAKEN_BACK.has(reason)) {
      (this.place.positions[topic] ??= bare())[partition] = String(from);
      this.place.token = null;
    } else if (to !== null) {
      this.reach(topic, partition, to + 1n);
    }
  }

  /** All its partitions were: only of those that were told of before is the position one in the new topic. */
  private madeAnew(topic: string, partition: string): void {
    const told = this.anew.get(topic) ?? new Set<string>();
    this.anew.set(topic, told);
    if (told.has(partition)) told.clear();
    const known = this.place.positions[topic] ?? bare<string>();
    this.place.positions[topic] = bare();
    for (const other of told) {
      if (known[other] !== undefined) this.place.positions[topic][other] = known[other];
    }
    told.add(partition);
    this.place.token = null;
  }

  /** Let the application have something until it takes it; false where the client is stopped before that. */
  private async isHandled(life: Life, give: () => void | Promise<void>): Promise<boolean> {
    for (let failures = 0; this.life === life; failures += 1) {
      try {
        await give();
        return true;
      } catch (error) {
        this.fault(error);
      }
      if (this.life === life) await this.pause(growing(failures));
    }
    return false;
  }

  /** Wait for a while, or for a stop. */
  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private answer(socket: WebSocket, told: Record<string, unknown>): void {
    switch (told["type"]) {
      case "subscribed":
        for (const [topic, places] of Object.entries(told["positions"] as Place["positions"])) {
          for (const [partition, offset] of Object.entries(places)) this.reach(topic, Number(partition), BigInt(offset));
        }
        this.place.token = (told["token"] as string | undefined) ?? null;
        this.isLive(socket);
        break;
      case "token":
        // All that came before it has been handled: it stands for the positions too.
        this.place.token = told["token"] as string;
        break;
      case "resume_ack":
        if (told["status"] !== "partial") {
          this.place.token = (told["token"] as string | undefined) ?? this.place.token;
          this.isLive(socket);
        } else if (socket === this.socket) {
          socket.send(`{"type":"ack","data":{"credit":${CREDIT}}}`);
        }
        break;
      case "unsubscribed":
        this.refuse("not_allowed", `a fresh token no longer allows ${String(told["channels"])}`);
        break;
      case "error":
        this.refused(socket, told["code"] as string, told["message"] as string, told["retry_after"] as number | null);
    }
  }

  private isLive(socket: WebSocket): void {
    this.attempts = 0;
    if (socket === this.socket) this.tell("live");
  }

  private refused(socket: WebSocket, code: string, message: string, retryAfter: number | null | undefined): void {
    if (FINAL.has(code)) {
      this.refuse(code, message);
      return;
    }
    if (code.startsWith("token_")) this.place.token = null;
    // All who were told the same come back one after the other.
    this.notBefore = performance.now() + (retryAfter ?? 0) * 1000 * (1 + Math.random() / 4);
    this.cut(socket, "again");
  }

  private refuse(code: string, message: string): void {
    this.stop();
    this.options.onRefused?.(code, message);
  }

  private next(topic: string, partition: number): bigint {
    return BigInt(this.place.positions[topic]?.[partition] ?? 0);
  }

  private reach(topic: string, partition: number, offset: bigint): void {
    if (offset > this.next(topic, partition)) (this.place.positions[topic] ??= bare())[partition] = String(offset);
  }

  private tell(state: State): void {
    try {
      this.options.onState?.(state);
    } catch (error) {
      this.fault(error);
    }
  }

  private fault(error: unknown): void {
    if (this.options.onError === undefined) console.error(error);
    else this.options.onError(error);
  }
}

/** An object that has nothing by birth: a topic may be called `constructor`, or `__proto__`. */
function bare<Value>(): Record<string, Value> {
  return Object.create(null) as Record<string, Value>;
}

/** A place that is ours to change. */
function placed(kept: Place | null): Place {
  const positions = bare<Record<string, string>>();
  for (const [topic, places] of Object.entries(kept?.positions ?? {})) {
    positions[topic] = Object.assign(bare<string>(), places);
  }
  return { token: kept?.token ?? null, positions };
}

/** How long a token is good for; null where it does not say so. Whether it is genuine is for the gateway to say. */
function millisecondsLeft(token: string): number | null {
  try {
    const body = atob(token.split(".")[1]!.replaceAll("-", "+").replaceAll("_", "/"));
    const expires = (JSON.parse(body) as Record<string, unknown>)["exp"];
    return typeof expires === "number" ? expires * 1000 - Date.now() : null;
  } catch {
    return null;
  }
}

function growing(attempts: number): number {
  return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempts);
}

/** What is promised, or an error where it takes too long. */
function soon(promised: string | Promise<string>): Promise<string> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no access token within ${CONNECT_MS} ms`)), CONNECT_MS);
    Promise.resolve(promised)
      .then(resolve, reject)
      .finally(() => clearTimeout(timer));
  });
}

function bytes(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
