/**
 * A client of the Strandline gateway that keeps its place: it reconnects, resumes in one message, drops what comes
 * twice, and tells what can no longer be had.
 *
 * A position is stored once the application has handled a message. So a page that is closed in the middle of one gets it
 * again, and never misses one. Offsets are bigints: a log may have more records than a number can count.
 */
const FIRST_WAIT_MS = 100;
const LONGEST_WAIT_MS = 30_000;
const QUIET_MS = 25_000;
const ANSWER_MS = 10_000;
const CREDIT = 1_000;
/** What may wait for a slow application. Beyond it the connection is closed, and resumed when there is room. */
const MOST_WAITING = 8 << 20;
const FINAL = new Set(["not_allowed", "too_many_subscriptions", "unknown_topic", "bad_message", "no_channels"]);
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
    place = { token: null, positions: {} };
    socket = null;
    waiting = [];
    waitingSize = 0;
    isHandling = false;
    attempts = 0;
    retryAfter = 0;
    isStopped = false;
    timer;
    watchdog;
    constructor(options) {
        this.options = options;
        this.store = options.store ?? new InMemory();
    }
    async start() {
        this.isStopped = false;
        this.place = (await this.store.load()) ?? { token: null, positions: {} };
        await this.connect();
    }
    stop() {
        this.isStopped = true;
        clearTimeout(this.timer);
        clearTimeout(this.watchdog);
        this.socket?.close(1000);
        this.tell("stopped");
    }
    /** Cut the connection, as a network does; it comes back by itself. */
    drop() {
        this.socket?.close(4000, "dropped");
    }
    async connect() {
        if (this.isStopped)
            return;
        this.tell("connecting");
        let url = this.options.url;
        try {
            if (this.options.accessToken !== undefined) {
                const token = await this.options.accessToken();
                url += `${url.includes("?") ? "&" : "?"}access_token=${encodeURIComponent(token)}`;
            }
        }
        catch {
            this.again();
            return;
        }
        const socket = new (this.options.WebSocket ?? WebSocket)(url);
        this.socket = socket;
        socket.onopen = () => {
            this.connects += 1;
            socket.send(JSON.stringify(this.hello()));
            this.watch(socket);
        };
        socket.onmessage = (event) => {
            this.watch(socket);
            this.take(socket, event.data);
        };
        socket.onclose = (event) => {
            if (socket !== this.socket)
                return;
            clearTimeout(this.watchdog);
            this.socket = null;
            if (event.code === UNAUTHORIZED && this.options.accessToken === undefined) {
                this.refuse("unauthorized", event.reason);
            }
            else {
                this.again();
            }
        };
    }
    /** Connect again in a while, when what has come is handled. */
    again() {
        if (this.isStopped)
            return;
        this.tell("waiting");
        this.attempts += 1;
        const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.attempts);
        const wait = this.retryAfter * 1000 + longest * Math.random();
        this.retryAfter = 0;
        clearTimeout(this.timer);
        const tryNow = () => {
            if (this.isHandling)
                this.timer = setTimeout(tryNow, FIRST_WAIT_MS);
            else
                void this.connect();
        };
        this.timer = setTimeout(tryNow, wait);
    }
    hello() {
        const { token, positions } = this.place;
        const channels = this.options.channels;
        if (token === null && Object.keys(positions).length === 0)
            return { type: "subscribe", data: { channels } };
        const data = { channels, credit: CREDIT, client_id: this.options.clientId ?? "" };
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
            this.watchdog = setTimeout(() => socket.close(4000, "no answer"), ANSWER_MS);
        }, QUIET_MS);
    }
    take(socket, text) {
        this.waiting.push(text);
        this.waitingSize += text.length;
        if (this.waitingSize > MOST_WAITING)
            socket.close(4000, "the application is behind");
        if (!this.isHandling)
            void this.handle();
    }
    async handle() {
        this.isHandling = true;
        try {
            while (this.waiting.length > 0) {
                const texts = this.waiting;
                this.waiting = [];
                for (const text of texts) {
                    this.waitingSize -= text.length;
                    if (!this.isStopped)
                        await this.hear(text);
                }
                await this.store.save(this.place);
            }
        }
        finally {
            this.isHandling = false;
        }
    }
    async hear(text) {
        const told = JSON.parse(text);
        this.attempts = 0;
        const found = OFFSET.exec(text);
        if (found !== null && "offset" in told)
            await this.message(told, BigInt(found[1]));
        else if (told["type"] === "gap")
            await this.gap(told, FROM.exec(text));
        else
            this.answer(told);
    }
    async message(told, offset) {
        const { topic, partition } = told;
        if (offset < this.next(topic, partition)) {
            this.repeats += 1;
            return;
        }
        const replayed = told["type"] === "replay:message";
        const data = told["encoding"] === "base64" ? bytes(told["data"]) : told["data"];
        await this.options.onMessage({ ...told, data: data, offset, replayed });
        this.reach(topic, partition, offset + 1n);
    }
    async gap(told, range) {
        const { topic, partition, reason } = told;
        const from = BigInt(range[1]);
        const to = range[2] === "null" ? null : BigInt(range[2]);
        if (reason === "recreated") {
            delete this.place.positions[topic]?.[partition];
            this.place.token = null;
        }
        await this.options.onGap?.({ topic, partition, reason, from, to });
        if (to !== null)
            this.reach(topic, partition, to + 1n);
    }
    answer(told) {
        switch (told["type"]) {
            case "subscribed":
                for (const [topic, places] of Object.entries(told["positions"])) {
                    for (const [partition, offset] of Object.entries(places))
                        this.reach(topic, Number(partition), BigInt(offset));
                }
                this.tell("live");
                break;
            case "token":
                // All that came before it has been handled: it stands for the positions too.
                this.place.token = told["token"];
                break;
            case "resume_ack":
                if (told["status"] === "partial")
                    this.socket?.send(`{"type":"ack","data":{"credit":${CREDIT}}}`);
                else
                    this.tell("live");
                break;
            case "error":
                this.refused(told["code"], told["message"], told["retry_after"]);
        }
    }
    refused(code, message, retryAfter) {
        if (FINAL.has(code)) {
            this.refuse(code, message);
            return;
        }
        if (code.startsWith("token_"))
            this.place.token = null;
        this.retryAfter = retryAfter ?? 0;
        this.socket?.close(4000, "again");
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
            (this.place.positions[topic] ??= {})[partition] = String(offset);
    }
    tell(state) {
        this.options.onState?.(state);
    }
}
function bytes(base64) {
    return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
