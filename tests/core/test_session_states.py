"""The states of a session: every way ends in CLOSED, and none leads out of it."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.session_states import BROKER, CLIENT, Broker, BrokerEvent, Client, ClientEvent, after

MACHINES = [(CLIENT, Client, ClientEvent), (BROKER, Broker, BrokerEvent)]
Table = Mapping[Any, Any]


@pytest.mark.parametrize(("table", "states", "events"), MACHINES)
def test_closed_is_the_end_and_closing_twice_is_nothing(table: Table, states: Any, events: Any) -> None:
    out = {event: after(table, states.CLOSED, event) for event in events if (states.CLOSED, event) in table}
    assert out == {events.CLOSE: states.CLOSED}


@pytest.mark.parametrize(("table", "states", "events"), MACHINES)
def test_every_state_is_closed_by_one_event(table: Table, states: Any, events: Any) -> None:
    assert {after(table, state, events.CLOSE) for state in states} == {states.CLOSED}


@pytest.mark.parametrize(("table", "states", "events"), MACHINES)
def test_every_state_can_be_come_to_and_every_event_happens_somewhere(table: Table, states: Any, events: Any) -> None:
    first = next(iter(states))
    reached = {first}
    for _ in states:
        reached |= {behind for (state, _), behind in table.items() if state in reached}
    assert reached == set(states)
    assert {event for _, event in table} == set(events)


@given(st.lists(st.sampled_from(list(ClientEvent)), max_size=12))
def test_nobody_is_routed_who_has_not_signed_in_and_nobody_leaves_draining_but_to_the_end(
    events: list[ClientEvent],
) -> None:
    state = Client.GREETING
    past = []
    for event in events:
        if (state, event) not in CLIENT:
            with pytest.raises(RuntimeError, match=f"{event.name} in state {state.name}"):
                after(CLIENT, state, event)
            continue
        before, state = state, after(CLIENT, state, event)
        past.append(event)
        if state is Client.ROUTING:
            assert ClientEvent.SHAKE in past
            assert ClientEvent.SIGNED_IN in past
        if before is Client.DRAINING:
            assert state in {Client.DRAINING, Client.CLOSED}


@given(st.lists(st.sampled_from(list(BrokerEvent)), max_size=12))
def test_a_connection_is_opened_once_and_one_that_failed_is_not_used_again(events: list[BrokerEvent]) -> None:
    state = Broker.CREATED
    past = [state]
    for event in events:
        if (state, event) in BROKER:
            state = after(BROKER, state, event)
            past.append(state)
    changes = [state for place, state in enumerate(past) if not place or past[place - 1] is not state]
    assert len(set(changes)) == len(changes)
    assert Broker.CONNECTED not in past or Broker.CONNECTING in past
    assert not {Broker.CONNECTED, Broker.FAILED} <= set(past)
