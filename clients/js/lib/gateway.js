/**
 * A client of the Strandline gateway that keeps its place: it reconnects, resumes in one message, drops what comes
 * twice, and tells what can no longer be had.
 *
 * A position is stored once the application has handled a message. So a page that is closed in the middle of one gets it
 * again, and never misses one. Offsets are bigints: a log may have more records than a number can count.
 */
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
export class InLocalStorage {
    name;
    constructor(name) {
        this.name = name;
    }
    load() {
        const kept = localStorage.getItem(this.name);
        return kept === null ? null : JSON.parse(kept);
    }
    save(place) {
        localStorage.setItem(this.name, JSON.stringify(place));
    }
}
/** Keeps the place as long as the page lives. */
export class InMemory {
    place = null;
    load() {
        return this.place;
    }
    save(place) {
        this.place = place;
    }
}
/** Serves one set of channels from `start` until `stop`. */
export class GatewayClient {
    options;
    /** Messages that came and were known already. */
    repeats = 0;
    /** How often it has connected. */
    connects = 0;
    store;
    place = placed(null);
    /** Of topics made anew, the partitions that were told of so far. */
    anew = new Map();
    life = null;
    /** The connection, or what is to become it. */
    socket = null;
    waiting = [];
    waitingSize = 0;
    handling = null;
    attempts = 0;
    /** When the gateway will hear of us again, by the page's clock. */
    notBefore = 0;
    timer;
    watchdog;
    refreshing;
    wake = () => { };
    clientId;
    constructor(options) {
        this.options = options;
        this.store = options.store ?? new InMemory();
        // It keeps no secret: it tells clients apart that share a subject or an address.
        this.clientId = options.clientId || Math.random().toString(36).slice(2);
    }
    /** Go on from the place that is stored. One that has been started is left alone. */
    async start() {
        if (this.life !== null)
            return;
        const life = (this.life = {});
        try {
            // What was in the application's hands at the last stop moves the place yet.
            await this.handling;
            const place = await this.store.load();
            if (this.life !== life)
                return;
            this.place = placed(place);
            this.attempts = 0;
            await this.connect(life);
        }
        catch (error) {
            if (this.life === life)
                this.life = null;
            throw error;
        }
    }
    /** What is in the application's hands is stored when it is done; what waits behind it comes after the next start. */
    stop() {
        if (this.life === null)
            return;
        this.life = null;
        clearTimeout(this.timer);
        this.wake();
        this.waiting = [];
        this.waitingSize = 0;
        this.release()?.close(1000);
        this.tell("stopped");
    }
    /** Cut the connection, as a network does; it comes back by itself. */
    drop() {
        if (this.socket !== null)
            this.cut(this.socket, "dropped");
    }
    async connect(life) {
        this.tell("connecting");
        if (this.life !== life)
            return;
        let url = this.options.url;
        let token;
        if (this.options.accessToken !== undefined) {
            try {
                token = await soon(this.options.accessToken());
                url += `${url.includes("?") ? "&" : "?"}access_token=${encodeURIComponent(token)}`;
            }
            catch (error) {
                this.fault(error);
                if (this.life === life)
                    this.again(life);
                return;
            }
            if (this.life !== life)
                return;
        }
        const socket = new (this.options.WebSocket ?? WebSocket)(url);
        this.socket = socket;
        this.watchdog = setTimeout(() => this.cut(socket, "no answer"), CONNECT_MS);
        socket.onopen = () => {
            if (socket !== this.socket)
                return;
            this.connects += 1;
            socket.send(JSON.stringify(this.hello()));
            this.watch(socket);
            if (token !== undefined)
                this.refreshLater(socket, token);
        };
        socket.onmessage = (event) => {
            if (socket !== this.socket)
                return;
            this.watch(socket);
            this.take(life, socket, event.data);
        };
        socket.onclose = (event) => {
            if (socket !== this.socket)
                return;
            this.release();
            if (event.code === UNAUTHORIZED && this.options.accessToken === undefined) {
                this.refuse("unauthorized", event.reason);
            }
            else {
                this.again(life);
            }
        };
    }
    /** Have no connection. Whatever the old one does yet is not listened to. */
    release() {
        const socket = this.socket;
        clearTimeout(this.watchdog);
        clearTimeout(this.refreshing);
        this.socket = null;
        return socket;
    }
    /** End a connection without waiting for its other side, which may be gone. */
    cut(socket, reason) {
        if (socket !== this.socket)
            return;
        this.release();
        socket.close(4000, reason);
        if (this.life !== null)
            this.again(this.life);
    }
    /** Connect again in a while, when what has come is handled. */
    again(life) {
        this.tell("waiting");
        if (this.life !== life)
            return;
        this.attempts += 1;
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.tryNow(life), growing(this.attempts) * Math.random());
    }
    tryNow(life) {
        const wait = this.handling !== null ? FIRST_WAIT_MS : this.notBefore - performance.now();
        if (wait > 0)
            this.timer = setTimeout(() => this.tryNow(life), wait);
        else
            this.connect(life).catch((error) => this.fault(error));
    }
    hello() {
        const { token, positions } = this.place;
        // Without a token all positions are taken for ones in the topic of now.
        if (token === null)
            this.anew.clear();
        const channels = this.options.channels;
        if (token === null && Object.keys(positions).length === 0)
            return { type: "subscribe", data: { channels } };
        const data = { channels, credit: CREDIT, client_id: this.clientId };
        if (token !== null)
            data["token"] = token;
        // Offsets go out as texts, which have room for all their digits.
        if (Object.keys(positions).length > 0)
            data["positions"] = positions;
        return { type: "resume", data };
    }
    /** A connection that says nothing for long is asked, and one that does not answer is gone. */
    watch(socket) {
        clearTimeout(this.watchdog);
        this.watchdog = setTimeout(() => {
            socket.send('{"type":"ping"}');
            this.watchdog = setTimeout(() => this.cut(socket, "no answer"), ANSWER_MS);
        }, QUIET_MS);
    }
    /** Show another token before this one ends, where it says when. */
    refreshLater(socket, token) {
        const left = millisecondsLeft(token);
        if (left === null)
            return;
        const wait = Math.min(LONGEST_TIMER_MS, Math.max(LEAST_REFRESH_MS, left * REFRESH_AFTER));
        this.refreshing = setTimeout(() => this.refresh(socket).catch((error) => this.fault(error)), wait);
    }
    /** Where no token is to be had the connection ends with the old one, and the next asks again. */
    async refresh(socket) {
        const token = await soon(this.options.accessToken());
        if (socket !== this.socket)
            return;
        socket.send(JSON.stringify({ type: "auth", data: { token } }));
        this.refreshLater(socket, token);
    }
    take(life, socket, text) {
        this.waiting.push({ socket, text });
        this.waitingSize += text.length;
        if (this.waitingSize > MOST_WAITING)
            this.cut(socket, "the application is behind");
        this.handling ??= this.handle(life);
    }
    async handle(life) {
        let saved = performance.now();
        while (this.waiting.length > 0) {
            const batch = this.waiting;
            this.waiting = [];
            for (const heard of batch) {
                if (this.life !== life)
                    break;
                this.waitingSize -= heard.text.length;
                try {
                    await this.hear(life, heard);
                }
                catch (error) {
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
    async save() {
        try {
            await this.store.save(this.place);
        }
        catch (error) {
            this.fault(error);
        }
    }
    async hear(life, { socket, text }) {
        const told = JSON.parse(text);
        if ("offset" in told)
            await this.message(life, told, BigInt(OFFSET.exec(text)[1]));
        else if (told["type"] === "gap")
            await this.gap(life, told, FROM.exec(text));
        else
            this.answer(socket, told);
    }
    async message(life, told, offset) {
        const { topic, partition } = told;
        if (offset < this.next(topic, partition)) {
            this.repeats += 1;
            return;
        }
        const replayed = told["type"] === "replay:message";
        const data = (told["encoding"] === "base64" ? bytes(told["data"]) : told["data"]);
        const message = { ...told, data, offset, replayed };
        if (!(await this.isHandled(life, () => this.options.onMessage(message))))
            return;
        this.attempts = 0;
        this.reach(topic, partition, offset + 1n);
    }
    async gap(life, told, range) {
        const { topic, partition, reason } = told;
        const from = BigInt(range[1]);
        const to = range[2] === "null" ? null : BigInt(range[2]);
        if (!(await this.isHandled(life, () => this.options.onGap?.({ topic, partition, reason, from, to }))))
            return;
        if (reason === "recreated") {
            this.madeAnew(topic, String(partition));
        }
        else if (reason === "not_served") {
            delete this.place.positions[topic];
        }
        else if (TAKEN_BACK.has(reason)) {
            (this.place.positions[topic] ??= bare())[partition] = String(from);
            this.place.token = null;
        }
        else if (to !== null) {
            this.reach(topic, partition, to + 1n);
        }
    }
    /** All its partitions were: only of those that were told of before is the position one in the new topic. */
    madeAnew(topic, partition) {
        const told = this.anew.get(topic) ?? new Set();
        this.anew.set(topic, told);
        if (told.has(partition))
            told.clear();
        const known = this.place.positions[topic] ?? bare();
        this.place.positions[topic] = bare();
        for (const other of told) {
            if (known[other] !== undefined)
                this.place.positions[topic][other] = known[other];
        }
        told.add(partition);
        this.place.token = null;
    }
    /** Let the application have something until it takes it; false where the client is stopped before that. */
    async isHandled(life, give) {
        for (let failures = 0; this.life === life; failures += 1) {
            try {
                await give();
                return true;
            }
            catch (error) {
                this.fault(error);
            }
            if (this.life === life)
                await this.pause(growing(failures));
        }
        return false;
    }
    /** Wait for a while, or for a stop. */
    pause(ms) {
        return new Promise((resolve) => {
            const timer = setTimeout(resolve, ms);
            this.wake = () => {
                clearTimeout(timer);
                resolve();
            };
        });
    }
    answer(socket, told) {
        switch (told["type"]) {
            case "subscribed":
                for (const [topic, places] of Object.entries(told["positions"])) {
                    for (const [partition, offset] of Object.entries(places))
                        this.reach(topic, Number(partition), BigInt(offset));
                }
                this.place.token = told["token"] ?? null;
                this.isLive(socket);
                break;
            case "token":
                // All that came before it has been handled: it stands for the positions too.
                this.place.token = told["token"];
                break;
            case "resume_ack":
                if (told["status"] !== "partial") {
                    this.place.token = told["token"] ?? this.place.token;
                    this.isLive(socket);
                }
                else if (socket === this.socket) {
                    socket.send(`{"type":"ack","data":{"credit":${CREDIT}}}`);
                }
                break;
            case "unsubscribed":
                this.refuse("not_allowed", `a fresh token no longer allows ${String(told["channels"])}`);
                break;
            case "error":
                this.refused(socket, told["code"], told["message"], told["retry_after"]);
        }
    }
    isLive(socket) {
        this.attempts = 0;
        if (socket === this.socket)
            this.tell("live");
    }
    refused(socket, code, message, retryAfter) {
        if (FINAL.has(code)) {
            this.refuse(code, message);
            return;
        }
        if (code.startsWith("token_"))
            this.place.token = null;
        // All who were told the same come back one after the other.
        this.notBefore = performance.now() + (retryAfter ?? 0) * 1000 * (1 + Math.random() / 4);
        this.cut(socket, "again");
    }
    refuse(code, message) {
        this.stop();
        this.options.onRefused?.(code, message);
    }
    next(topic, partition) {
        return BigInt(this.place.positions[topic]?.[partition] ?? 0);
    }
    reach(topic, partition, offset) {
        if (offset > this.next(topic, partition))
            (this.place.positions[topic] ??= bare())[partition] = String(offset);
    }
    tell(state) {
        try {
            this.options.onState?.(state);
        }
        catch (error) {
            this.fault(error);
        }
    }
    fault(error) {
        if (this.options.onError === undefined)
            console.error(error);
        else
            this.options.onError(error);
    }
}
/** An object that has nothing by birth: a topic may be called `constructor`, or `__proto__`. */
function bare() {
    return Object.create(null);
}
/** A place that is ours to change. */
function placed(kept) {
    const positions = bare();
    for (const [topic, places] of Object.entries(kept?.positions ?? {})) {
        positions[topic] = Object.assign(bare(), places);
    }
    return { token: kept?.token ?? null, positions };
}
/** How long a token is good for; null where it does not say so. Whether it is genuine is for the gateway to say. */
function millisecondsLeft(token) {
    try {
        const body = atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
        const expires = JSON.parse(body)["exp"];
        return typeof expires === "number" ? expires * 1000 - Date.now() : null;
    }
    catch {
        return null;
    }
}
function growing(attempts) {
    return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempts);
}
/** What is promised, or an error where it takes too long. */
function soon(promised) {
    return new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`no access token within ${CONNECT_MS} ms`)), CONNECT_MS);
        Promise.resolve(promised)
            .then(resolve, reject)
            .finally(() => clearTimeout(timer));
    });
}
function bytes(base64) {
    return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
