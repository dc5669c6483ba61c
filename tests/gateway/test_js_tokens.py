"""The tokens of the browser's client: what is shown at the door, before it ends, and to go on from where it was."""

from tests.gateway.scripted import trial
from tests.gateway.support import Site
from tests.report.browser import Browser


def test_a_client_stopped_while_it_waits_for_a_token_never_connects(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        let give;
        const noted = listen({ ...options, accessToken: () => new Promise((resolve) => { give = resolve; }) });
        void noted.client.start();
        await settled();
        noted.client.stop();
        give("late");
        await tick(100_000);
        return [made.length, noted.states];
        """,
    )
    assert found == [0, ["connecting", "stopped"]]


def test_an_expired_token_is_replaced_and_without_another_the_client_stops(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        let tokens = 0;
        const noted = await begin({ accessToken: async () => `t${tokens++}` });
        await greet(made[0]);
        made[0].end(4001);
        await tick(1_000);
        const urls = made.map((socket) => socket.url);
        noted.client.stop();
        const other = await begin();
        await greet(made[2]);
        made[2].end(4001);
        await tick(100_000);
        return [urls, noted.refused, other.refused, made.length];
        """,
    )
    assert found == [["ws://gateway?access_token=t0", "ws://gateway?access_token=t1"], [], ["unauthorized"], 3]


def test_a_fresh_token_is_shown_before_the_last_one_ends_on_the_same_connection(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const lives = [100_000, 300_000, Infinity];
        let asked = 0;
        const accessToken = async () => (asked < 3 ? ending(lives[asked], `t${asked++}`) : Promise.reject("none left"));
        const noted = await begin({ accessToken });
        await greet(made[0]);
        const name = ({ data }) => atob(data.token.split(".")[0]);
        const told = () => made[0].said.filter(({ type }) => type === "auth").map(name);
        // Something comes now and then, so that it need not ask whether the other side is alive.
        const pass = async (ms) => {
          for (let gone = 0; gone < ms; gone += 10_000) {
            made[0].tell({ type: "pong" });
            await tick(10_000);
          }
        };
        await pass(70_000);
        const early = told();
        await pass(20_000);
        const first = told();
        // The next says nothing of its end, so that it is the last.
        await pass(1_000_000);
        return [early, first, told(), made.length, noted.errors];
        """,
    )
    assert found == [[], ["t1"], ["t1", "t2"], 1, []]


def test_without_a_fresh_token_the_old_connection_lasts_as_long_as_it_may(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        let asked = 0;
        const accessToken = async () => {
          asked += 1;
          if (asked === 2) throw new Error("not now");
          return ending(10_000 * asked);
        };
        const noted = await begin({ accessToken });
        await greet(made[0]);
        await tick(9_000);
        const meanwhile = [asked, made[0].closed, noted.errors];
        made[0].end(4001);
        await tick(1_000);
        return [meanwhile, made.length, noted.refused];
        """,
    )
    assert found == [[2, None, ["Error: not now"]], 2, []]


def test_a_fresh_token_that_allows_less_is_no_silent_loss(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        await greet(made[0]);
        made[0].tell({ type: "unsubscribed", channels: ["a"] });
        await tick(100_000);
        return [noted.refused, noted.states.at(-1), made.length];
        """,
    )
    assert found == [["not_allowed"], "stopped", 1]


def test_a_token_that_comes_with_a_finished_resume_is_the_one_that_is_shown_next(chromium: Browser, site: Site) -> None:
    found = trial(
        chromium,
        site,
        """
        const noted = await begin();
        await greet(made[0]);
        noted.client.drop();
        await tick(1000);
        made[1].onopen();
        made[1].tell({ type: "resume_ack", status: "completed", token: "of the second" });
        await settled();
        noted.client.drop();
        await tick(1000);
        made[2].onopen();
        // One that has none to give takes none away.
        made[2].tell({ type: "resume_ack", status: "completed" });
        await settled();
        noted.client.drop();
        await tick(1000);
        made[3].onopen();
        return made.slice(2).map((socket) => socket.said[0].data.token);
        """,
    )
    assert found == ["of the second", "of the second"]
