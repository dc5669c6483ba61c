"""An exchange as texts for a person to look at: heads and bodies, within a bound."""

from strandline.report.bodies import Binary, Cut, read_bodies
from strandline.report.compare import headers_of
from strandline.report.differences import body_text
from strandline.report.exchange import Exchange, Message
from strandline.report.summary import Example, Verdict

MAX_TEXT = 16 << 10


def example_of(exchange: Exchange, verdict: Verdict) -> Example:
    """The exchange as an example."""
    return Example(
        id=exchange.id,
        connection=exchange.connection[:200],
        time_us=exchange.source_time_us,
        request=_text(exchange.target_request or exchange.source_request),
        source=None if exchange.source_response is None else _text(exchange.source_response),
        target=None if exchange.target_response is None else _text(exchange.target_response),
        source_us=exchange.source_us,
        target_us=exchange.target_us,
        error=exchange.error,
        verdict=verdict,
    )


def _text(message: Message) -> str:
    headers = headers_of(message.head)
    body, _ = read_bodies(message, headers, message, headers)
    match body:
        case Binary() | Cut():
            shown = f"({body})" if message.length else ""
        case _ if message.body is not None and "content-encoding" not in headers and "transfer-encoding" not in headers:
            shown = message.body
        case _:
            shown = body_text(body)
    text = message.head.replace("\r\n", "\n") + shown
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
