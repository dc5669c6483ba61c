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
/** Keeps the place in the browser's own storage. */
export declare class InLocalStorage implements Store {
    private readonly name;
    constructor(name: string);
    load(): Place | null;
    save(place: Place): void;
}
/** Keeps the place as long as the page lives. */
export declare class InMemory implements Store {
    private place;
    load(): Place | null;
    save(place: Place): void;
}
/** Serves one set of channels from `start` until `stop`. */
export declare class GatewayClient<Data = unknown> {
    private readonly options;
    /** Messages that came and were known already. */
    repeats: number;
    /** How often it has connected. */
    connects: number;
    private readonly store;
    private place;
    /** Of topics made anew, the partitions that were told of so far. */
    private anew;
    private life;
    /** The connection, or what is to become it. */
    private socket;
    private waiting;
    private waitingSize;
    private handling;
    private attempts;
    /** When the gateway will hear of us again, by the page's clock. */
    private notBefore;
    private timer;
    private watchdog;
    private refreshing;
    private wake;
    private readonly clientId;
    constructor(options: Options<Data>);
    /** Go on from the place that is stored. One that has been started is left alone. */
    start(): Promise<void>;
    /** What is in the application's hands is stored when it is done; what waits behind it comes after the next start. */
    stop(): void;
    /** Cut the connection, as a network does; it comes back by itself. */
    drop(): void;
    private connect;
    /** Have no connection. Whatever the old one does yet is not listened to. */
    private release;
    /** End a connection without waiting for its other side, which may be gone. */
    private cut;
    /** Connect again in a while, when what has come is handled. */
    private again;
    private tryNow;
    private hello;
    /** A connection that says nothing for long is asked, and one that does not answer is gone. */
    private watch;
    /** Show another token before this one ends, where it says when. */
    private refreshLater;
    /** Where no token is to be had the connection ends with the old one, and the next asks again. */
    private refresh;
    private take;
    private handle;
    /** A place that is not stored is an older one: nothing is missed by it. */
    private save;
    private hear;
    private message;
    private gap;
    /** All its partitions were: only of those that were told of before is the position one in the new topic. */
    private madeAnew;
    /** Let the application have something until it takes it; false where the client is stopped before that. */
    private isHandled;
    /** Wait for a while, or for a stop. */
    private pause;
    private answer;
    private isLive;
    private refused;
    private refuse;
    private next;
    private reach;
    private tell;
    private fault;
}
