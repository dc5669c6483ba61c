import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrafficStream(_message.Message):
    __slots__ = ("connectionId", "subStream", "number", "numberOfThisLastChunk", "nodeId", "priorRequestsReceived", "lastObservationWasUnterminatedRead")
    CONNECTIONID_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBEROFTHISLASTCHUNK_FIELD_NUMBER: _ClassVar[int]
    NODEID_FIELD_NUMBER: _ClassVar[int]
    PRIORREQUESTSRECEIVED_FIELD_NUMBER: _ClassVar[int]
    LASTOBSERVATIONWASUNTERMINATEDREAD_FIELD_NUMBER: _ClassVar[int]
    connectionId: str
    subStream: _containers.RepeatedCompositeFieldContainer[TrafficObservation]
    number: int
    numberOfThisLastChunk: int
    nodeId: str
    priorRequestsReceived: int
    lastObservationWasUnterminatedRead: bool
    def __init__(self, connectionId: _Optional[str] = ..., subStream: _Optional[_Iterable[_Union[TrafficObservation, _Mapping]]] = ..., number: _Optional[int] = ..., numberOfThisLastChunk: _Optional[int] = ..., nodeId: _Optional[str] = ..., priorRequestsReceived: _Optional[int] = ..., lastObservationWasUnterminatedRead: bool = ...) -> None: ...

class TrafficObservation(_message.Message):
    __slots__ = ("ts", "bind", "connect", "read", "readSegment", "requestReleasedDownstream", "write", "writeSegment", "disconnect", "close", "connectionException", "segmentEnd", "endOfMessageIndicator", "requestDropped")
    TS_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    READSEGMENT_FIELD_NUMBER: _ClassVar[int]
    REQUESTRELEASEDDOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    WRITESEGMENT_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONEXCEPTION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTEND_FIELD_NUMBER: _ClassVar[int]
    ENDOFMESSAGEINDICATOR_FIELD_NUMBER: _ClassVar[int]
    REQUESTDROPPED_FIELD_NUMBER: _ClassVar[int]
    ts: _timestamp_pb2.Timestamp
    bind: BindObservation
    connect: ConnectObservation
    read: ReadObservation
    readSegment: ReadSegmentObservation
    requestReleasedDownstream: RequestReleasedDownstreamObservation
    write: WriteObservation
    writeSegment: WriteSegmentObservation
    disconnect: DisconnectObservation
    close: CloseObservation
    connectionException: ConnectionExceptionObservation
    segmentEnd: EndOfSegmentsIndication
    endOfMessageIndicator: EndOfMessageIndication
    requestDropped: RequestDropped
    def __init__(self, ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., bind: _Optional[_Union[BindObservation, _Mapping]] = ..., connect: _Optional[_Union[ConnectObservation, _Mapping]] = ..., read: _Optional[_Union[ReadObservation, _Mapping]] = ..., readSegment: _Optional[_Union[ReadSegmentObservation, _Mapping]] = ..., requestReleasedDownstream: _Optional[_Union[RequestReleasedDownstreamObservation, _Mapping]] = ..., write: _Optional[_Union[WriteObservation, _Mapping]] = ..., writeSegment: _Optional[_Union[WriteSegmentObservation, _Mapping]] = ..., disconnect: _Optional[_Union[DisconnectObservation, _Mapping]] = ..., close: _Optional[_Union[CloseObservation, _Mapping]] = ..., connectionException: _Optional[_Union[ConnectionExceptionObservation, _Mapping]] = ..., segmentEnd: _Optional[_Union[EndOfSegmentsIndication, _Mapping]] = ..., endOfMessageIndicator: _Optional[_Union[EndOfMessageIndication, _Mapping]] = ..., requestDropped: _Optional[_Union[RequestDropped, _Mapping]] = ...) -> None: ...

class BindObservation(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConnectObservation(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadObservation(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ReadSegmentObservation(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class RequestReleasedDownstreamObservation(_message.Message):
    __slots__ = ("timedOut",)
    TIMEDOUT_FIELD_NUMBER: _ClassVar[int]
    timedOut: bool
    def __init__(self, timedOut: bool = ...) -> None: ...

class WriteObservation(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class WriteSegmentObservation(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class DisconnectObservation(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseObservation(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConnectionExceptionObservation(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class EndOfSegmentsIndication(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndOfMessageIndication(_message.Message):
    __slots__ = ("firstLineByteLength", "headersByteLength")
    FIRSTLINEBYTELENGTH_FIELD_NUMBER: _ClassVar[int]
    HEADERSBYTELENGTH_FIELD_NUMBER: _ClassVar[int]
    firstLineByteLength: int
    headersByteLength: int
    def __init__(self, firstLineByteLength: _Optional[int] = ..., headersByteLength: _Optional[int] = ...) -> None: ...

class RequestDropped(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
