"""The Autobahn test suite against the gateway's connections, where somebody has installed it.

It needs Python 2.7: `python2.7 -m pip install autobahntestsuite`. `STRANDLINE_WSTEST` is the command that runs its
`wstest`. The suite wants a server that echoes, so the gateway's connections do that here, and nothing else differs.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from websockets.frames import CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from strandline.gateway.connection import Connection
from strandline.stack import KafkaCluster
from tests.gateway.raw import beside
from tests.ordered.support import create_topic

WSTEST = shlex.split(os.environ.get("STRANDLINE_WSTEST", ""))
# Compression is not spoken.
LEFT_OUT = ["12.*", "13.*"]
LONGEST_S = 1800
FINE = {"OK", "NON-STRICT", "INFORMATIONAL"}
# What differs, as docs/gateway.md says: a close in the middle of a message is answered as an error.
KNOWN = {"7.1.5"}


def _echo(self: Connection, protocol: ServerProtocol, frame: Frame) -> None:
    if frame.opcode in {Opcode.TEXT, Opcode.BINARY}:
        self.address = frame.opcode.name
    if frame.opcode in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
        self._parts += frame.data
        if frame.fin:
            whole, self._parts = bytes(self._parts), bytearray()
            opcode = Opcode[self.address]
            try:
                whole.decode() if opcode is Opcode.TEXT else None
            except UnicodeDecodeError:
                protocol.fail(CloseCode.INVALID_DATA, "not UTF-8")
                self._flush(protocol)
            else:
                self.write(Frame(opcode, whole).serialize(mask=False))


@pytest.mark.soak
@pytest.mark.skipif(not WSTEST, reason="STRANDLINE_WSTEST does not say where Autobahn's wstest is")
def test_no_case_of_autobahn_fails(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Connection, "_frame", _echo)
    topic = f"autobahn-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    limits = {"message_bytes": 32 << 20, "queue_bytes": 64 << 20, "messages_per_s": 10_000_000}
    with beside(kafka.address, [topic], limits=limits) as port:
        spec = {
            "outdir": str(tmp_path / "report"),
            "servers": [{"agent": "gateway", "url": f"ws://127.0.0.1:{port}"}],
            "cases": ["*"],
            "exclude-cases": LEFT_OUT,
            "exclude-agent-cases": {},
        }
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        command = [*WSTEST, "-m", "fuzzingclient", "-s", str(tmp_path / "spec.json")]
        subprocess.run(command, check=True, timeout=LONGEST_S, cwd=tmp_path, stdout=subprocess.DEVNULL)
    found = json.loads((tmp_path / "report" / "index.json").read_text())["gateway"]
    assert len(found) > 240
    assert {name for name, case in found.items() if {case["behavior"], case["behaviorClose"]} - FINE} == KNOWN
