"""A member of a group that is known to be dead is put out of it, so that nobody waits until its session has run out."""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
from kio.schema.leave_group.v4.response import LeaveGroupResponse
from kio.schema.types import GroupId

from strandline.errors import BrokerRefused, BrokerUnreachable, NoBroker
from strandline.kafka.cluster import host_and_port
from strandline.kafka.connection import Connection
from strandline.kafka.security import Security

WITHIN = 10.0
GONE = {ErrorCode.unknown_member_id, ErrorCode.group_id_not_found}
"""It is out already."""


async def evict(settings: Mapping[str, object], member: str) -> None:
    """Put a member out of the group of the settings. One that lives after all finds that it has lost its partitions."""
    group = str(settings["group.id"])
    asking = await _any(settings)
    try:
        found = await asking.ask(FindCoordinatorRequest(key=group), FindCoordinatorResponse, within=WITHIN)
    finally:
        asking.close()
    if found.error_code is not ErrorCode.none:
        raise BrokerRefused(found.error_code.name, f"the coordinator of group '{group}'")
    telling = await _open(settings, found.host, int(found.port))
    try:
        request = LeaveGroupRequest(group_id=GroupId(group), members=(MemberIdentity(member_id=member),))
        answer = await telling.ask(request, LeaveGroupResponse, within=WITHIN)
    finally:
        telling.close()
    for code in (answer.error_code, *(told.error_code for told in answer.members)):
        if code is not ErrorCode.none and code not in GONE:
            raise BrokerRefused(code.name, f"group '{group}'")


async def _any(settings: Mapping[str, object]) -> Connection:
    address = str(settings["bootstrap.servers"])
    failure: BrokerUnreachable | None = None
    for place in address.split(","):
        try:
            return await _open(settings, *host_and_port(place))
        except BrokerUnreachable as error:
            failure = error
    raise NoBroker(address, failure) from failure


async def _open(settings: Mapping[str, object], host: str, port: int) -> Connection:
    return await Connection.open(host, port, Security.parse(settings), client_id="strandline", within=WITHIN)
