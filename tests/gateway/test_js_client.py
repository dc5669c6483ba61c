"""The browser's client against a scripted connection and a clock that goes when it is told to, in a real browser."""

from tests.gateway.scripted import trial
from tests.gateway.support import Site
from tests.report.browser import Browser


def test_offsets_that_no_number_holds_are_exact(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        await greet(made[0], "9007199254740992");
        made[0].tell(
          record("9007199254740993", 1), record("9007199254740993", 2), record("9007199254740994", 3),
          gap("9007199254740995", "9223372036854775805", "deleted"),
          record("9223372036854775805", 4), record("9223372036854775806", 5),
        );
        await settled();
        noted.client.drop();
        await tick(1000);
        made[1].onopen();
        return [noted.seen, noted.gaps, noted.client.repeats, made[1].said[0].data.positions];
        """,
    )
    kept = [[0, "9007199254740993", 1], [0, "9007199254740994", 3], [0, "9223372036854775806", 5]]
    gap = {"topic": "t", "partition": 0, "reason": "deleted", "from": "9007199254740995", "to": "9223372036854775805"}
    assert found == [kept, [gap], 2, {"t": {"0": "9223372036854775807"}}]


def test_however_it_is_started_and_stopped_there_is_one_connection(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const given = [];
        const accessToken = () => new Promise((resolve) => given.push(resolve));
        const noted = listen({ ...options, accessToken });
        void noted.client.start();
        void noted.client.start();
        await settled();
        noted.client.stop();
        void noted.client.start();
        await settled();
        given.forEach((give, place) => give(`token${place}`));
        await tick(10_000);
        return [made.map((socket) => socket.url), made.map((socket) => socket.closed)];
        """,
    )
    assert found == [["ws://gateway?access_token=token1"], [None]]


def test_what_the_application_fails_on_is_given_to_it_again_before_anything_else(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const given = [];
        let fails = 3;
        const noted = await begin({ onMessage: ({ offset }) => {
          given.push(Number(offset));
          if (offset === 1n && fails-- > 0) throw new Error("not now");
        } });
        await greet(made[0]);
        made[0].tell(record(0), record(1), record(2));
        await tick(5_000);
        return [given, noted.errors.length, made.length];
        """,
    )
    assert found == [[0, 1, 1, 1, 1, 2], 3, 1]


def test_one_that_is_stopped_forgets_nothing_that_was_not_handled(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const stored = [];
        const store = {
          load: () => (stored.length > 0 ? JSON.parse(stored.at(-1)) : null),
          save: (place) => void stored.push(JSON.stringify(place)),
        };
        let finish;
        const noted = await begin({ store, onMessage: () => new Promise((resolve) => { finish = resolve; }) });
        await greet(made[0], 5);
        made[0].tell(record(5), record(6));
        await settled();
        noted.client.stop();
        void noted.client.start();
        await settled();
        const before = made.length;
        finish();
        await settled();
        made[1].onopen();
        return [before, made[1].said[0].data.positions];
        """,
    )
    assert found == [1, {"t": {"0": "6"}}]


def test_a_slow_application_is_not_buried_and_misses_nothing(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const waits = [];
        const noted = await begin({ onMessage: () => new Promise((resolve) => waits.push(resolve)) });
        await greet(made[0]);
        for (let offset = 0; offset < 12; offset += 1) made[0].tell(record(offset, "x".repeat(1 << 20)));
        await tick(10_000);
        const whileBusy = [made.length, made[0].closed];
        for (let done = 0; done < 12; done += 1) {
          await settled();
          waits[done]?.();
        }
        await tick(1_000);
        made[1].onopen();
        return [whileBusy, waits.length, made[1].said[0].data.positions];
        """,
    )
    # One in its hands and eight that wait, of more than a mebibyte each, were too much; behind them nothing is taken.
    assert found == [[1, 4000], 9, {"t": {"0": "9"}}]


def test_nobody_comes_back_before_the_gateway_will_hear_of_it(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        let finish;
        const noted = await begin({ onMessage: () => new Promise((resolve) => { finish = resolve; }) });
        await greet(made[0]);
        const error = { type: "error", code: "replay_limited", message: "later", retry_after: 20 };
        // The connection is gone before the client comes to what was said on it.
        made[0].tell(record(0), error);
        made[0].end(1006);
        await tick(5_000);
        finish();
        await tick(19_000);
        const early = made.length;
        await tick(7_000);
        const late = made.length;
        made[1].end(1006);
        await tick(1_000);
        return [early, late, made.length];
        """,
    )
    assert found == [1, 2, 3]


def test_errors_without_an_end_are_answered_by_longer_and_longer_waits(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        Math.random = () => 0.5;
        await begin();
        const times = [];
        for (let turn = 0; turn < 6; turn += 1) {
          made[turn].onopen();
          made[turn].tell({ type: "error", code: "strange", message: "" });
          const before = performance.now();
          while (made.length === turn + 1) await tick(50);
          times.push(performance.now() - before);
        }
        return times;
        """,
    )
    assert found == [100, 200, 400, 800, 1600, 3200]


def test_a_connection_that_answers_no_more_is_left_at_once(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        await greet(made[0]);
        await tick(26_000);
        const asked = made[0].said.at(-1).type;
        await tick(12_000);
        made[1].onopen();
        // The old one was never closed by its other side. What it says now comes again on the new one.
        made[0].tell(record(0));
        made[0].end(1006);
        made[1].tell(record(0), { type: "resume_ack", status: "completed" });
        await tick(1_000);
        return [asked, made.length, noted.seen.length, noted.client.repeats, noted.states.at(-1)];
        """,
    )
    assert found == ["ping", 2, 1, 0, "live"]


def test_a_connection_that_never_opens_is_given_up(chromium: Browser, site: Site) -> None:
    assert trial(chromium, site, "await begin(); await tick(16_000); return [made.length, made[0].closed]") == [2, 4000]


def test_what_takes_the_place_of_lost_records_is_no_repeat(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        await greet(made[0], 8);
        made[0].tell(
          { type: "token", token: "old" }, record(8, "old"), gap(7, 8, "truncated"), record(7, "new"), record(8, "new"),
        );
        await settled();
        noted.client.drop();
        await tick(1_000);
        made[1].onopen();
        return [noted.seen.map(([, offset, data]) => offset + data), noted.client.repeats, made[1].said[0].data];
        """,
    )
    assert found[:2] == [["8old", "7new", "8new"], 0]
    assert "token" not in found[2]
    assert found[2]["positions"] == {"t": {"0": "9"}}


def test_what_cannot_be_read_moves_nothing(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        await greet(made[0]);
        made[0].tell(record(0), '{"seq":', record(2));
        await tick(1_000);
        made[1].onopen();
        return [noted.seen.length, made[0].closed, noted.errors.length, made[1].said[0].data.positions];
        """,
    )
    assert found == [1, 4000, 1, {"t": {"0": "1"}}]


def test_a_store_that_fails_costs_no_message(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const store = { load: () => null, save: () => { throw new Error("full"); } };
        const noted = await begin({ store });
        await greet(made[0]);
        made[0].tell(record(0), record(1));
        await settled();
        made[0].tell(record(2));
        await settled();
        return [noted.seen.length, noted.errors.every((error) => error === "Error: full"), made.length];
        """,
    )
    assert found == [3, True, 1]


def test_a_topic_may_have_the_name_of_what_objects_have_by_birth(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const store = new InLocalStorage("names");
        const names = ["constructor", "__proto__", "toString"];
        const noted = await begin({ store });
        made[0].onopen();
        made[0].tell('{"type":"subscribed","channels":["a"],"positions":{"__proto__":{"0":"5"},"constructor":{"0":"5"}}}');
        for (const name of names) made[0].tell(record(4, "old", name), record(5, "new", name), record(5, "new", name));
        await settled();
        noted.client.stop();
        const again = await begin({ store });
        made[1].onopen();
        const positions = made[1].said[0].data.positions;
        const places = Object.entries(positions).map(([topic, places]) => [topic, places[0]]).sort();
        localStorage.clear();
        return [places, noted.seen.length, noted.client.repeats, Object.keys(Object.prototype), {}[0] ?? null];
        """,
    )
    # Of toString nothing was known, so that its first record was new.
    assert found == [[["__proto__", "6"], ["constructor", "6"], ["toString", "6"]], 4, 5, [], None]


def test_of_a_topic_made_anew_no_old_offset_is_asked_for_again(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        made[0].onopen();
        made[0].tell({ type: "subscribed", channels: ["a"], positions: { t: { 0: "100", 1: "200" } }, token: "old" });
        made[0].tell(gap(100, null, "recreated"), record(0, "new"));
        await settled();
        // Gone before it is told of the other partition.
        noted.client.drop();
        await tick(1_000);
        made[1].onopen();
        return [noted.seen.length, noted.gaps.length, made[1].said[0].data];
        """,
    )
    assert found[:2] == [1, 1]
    assert "token" not in found[2]
    assert found[2]["positions"] == {"t": {"0": "1"}}


def test_of_a_topic_that_is_served_no_more_nothing_is_asked_for_again(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        made[0].onopen();
        made[0].tell({ type: "subscribed", channels: ["a"], positions: { t: { 0: "5" }, u: { 0: "7" } }, token: "o" });
        made[0].tell(gap(5, null, "not_served"), { type: "token", token: "new" });
        await settled();
        noted.client.drop();
        await tick(1_000);
        made[1].onopen();
        return [noted.gaps.length, made[1].said[0].data.token, made[1].said[0].data.positions];
        """,
    )
    assert found == [1, "new", {"u": {"0": "7"}}]
