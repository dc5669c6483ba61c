"""A worker that says more in one line than its crew listens to, when it is asked."""

import msgspec

from strandline.workers.messages import MOST_LINE_BYTES, Failed, Ready, Stop
from strandline.workers.post import Post, work


class Start(msgspec.Struct, frozen=True, tag="start"):
    """What a worker is told first."""

    number: int


class Speak(msgspec.Struct, frozen=True, tag="speak"):
    """To a worker: say something."""


class Noise(msgspec.Struct, frozen=True, tag="noise"):
    """From a worker: so much."""

    text: str


FromWorker = Ready | Failed | Noise
ToWorker = Start | Speak | Stop

from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
to_worker: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)


async def serve(post: Post[ToWorker], _: ToWorker) -> None:
    """Until the end."""
    post.hear(lambda _: post.send(Noise("x" * MOST_LINE_BYTES)))
    post.serve()
    await post.stop.wait()


if __name__ == "__main__":
    work(serve, to_worker.decode)
