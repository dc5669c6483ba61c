"""The commands by name, and what becomes of their errors."""

import math
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

import cyclopts

from strandline import __version__, logs
from strandline.cli.output import discard_output, guard_output
from strandline.errors import OutputLost, StackError, StrandlineError, UsageError


def _finite(_type: object, value: object) -> None:
    """What is neither more nor less than any bound would pass every check of one."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("It takes a finite number.")


app = cyclopts.App(
    name="strandline",
    version=__version__,
    # For every option of every command.
    default_parameter=cyclopts.Parameter(validator=_finite),
    # Reported in `main`, as every other end is.
    suppress_keyboard_interrupt=False,
    help="Replays logs in order and on time, and never marks progress past what has been safely delivered.",
)
# By name and with their help, so that a command pays only for the imports of its own, and `--help` for none of them.
app.command(
    "strandline.cli.up:up",
    name="up",
    help="""Start real Kafka, Postgres and Kinesis servers on free loopback ports, and stop them on Ctrl-C.

    Prints where they are and how to connect once all of them answer. Everything is temporary unless --data is given.
    The first run fetches Kafka (45 MB); later ones need no network.
    """,
)
app.command(
    "strandline.cli.demo:app",
    name="demo",
    help="""Capture a shop's traffic, replay it at twice the speed against the next version, and find what has changed.

    Starts a real Kafka broker and a small shop, captures 20 seconds of its customers, replays them on Spark against a
    version of the shop with three changes, and makes the report, which finds them. Shows every command that it runs.
    Takes about a minute and a half.

    Changes of Postgres in Kinesis instead, and a leader that is killed: strandline demo cdc

    Prices in a browser, and a network that is cut: strandline demo gateway

    Two clusters as one, and one of them killed: strandline demo proxy
    """,
)
app.command(
    "strandline.cli.tail:tail",
    name="tail",
    help="""Print records of Kafka topics in the order of their time, across all partitions.

    Begins at the oldest record and ends at the newest one unless told otherwise. On a terminal JSON is indented and in
    colour; in a pipe there is one line a record. A summary, and offsets that could not be read, go to standard error.
    Ctrl-C ends it in good order.

    The last hour, and what comes: strandline tail events --from -1h --follow

    One key, for jq: strandline tail events --where key=ab --format jsonl | jq .value
    """,
)
app.command(
    "strandline.cli.capture:capture",
    name="capture",
    help="""Pass HTTP/1.1 traffic on to a service, byte for byte, and record it in Kafka.

    Requests that change something (POST, PUT, PATCH, DELETE) reach the service only once Kafka has them, unless told
    otherwise. Headers, query parameters and JSON fields can be hashed or removed before anything is recorded. Ctrl-C
    ends it in good order: what was asked is answered, and what was seen is in Kafka.

    strandline capture --listen 127.0.0.1:8080 --to http://127.0.0.1:9000 --kafka 127.0.0.1:9092
    """,
)
app.command(
    "strandline.cli.replay:app",
    name="replay",
    help="""Send captured HTTP traffic to a target with its original order and timing, and compare the answers.

    Reads what `strandline capture` has put into Kafka, sends each request when it is due on a connection of its own
    source connection, and writes a result for each. Progress is committed once the result is safe, so a restart goes
    on where it was. Ctrl-C ends it in good order.

    At twice the speed, what there is: strandline replay --target http://127.0.0.1:9200 --speedup 2 --until live
    """,
)
app.command(
    "strandline.cli.report:report",
    name="report",
    help="""Compare what the target of a replay answered with what the source had, and show how true the replay was.

    Reads the results of `strandline replay`, from their topic or from files, and writes Parquet tables, a summary and
    a page. What differs by itself, such as times and identities, is learned and left out. Ends with 1 when a threshold
    of --fail-on is passed.

    In a pipeline: strandline report --fail-on 'mismatch>1%,lateness.p99>20ms'
    """,
)
app.command(
    "strandline.cli.cdc:app",
    name="cdc",
    help="""Publish the changes of a Postgres database to a Kinesis stream, in order per key, with nothing lost.

    Any number of instances may run: one leads and publishes, the others wait and take over within seconds. Changes are
    acknowledged to Postgres only when the stream has them, or a dead-letter place where the stream will not. Ctrl-C
    ends it in good order.

    strandline cdc run --config cdc.yaml
    """,
)
app.command(
    "strandline.cli.gateway:app",
    name="gateway",
    help="""Serve Kafka topics to browsers over WebSocket; who was away misses nothing, or is told exactly what.

    Clients subscribe to channels and resume from where they were, across all that Kafka still has. What they cannot
    have is named by its offsets. Ctrl-C ends it in good order.

    strandline gateway --config gateway.yaml
    """,
)
app.command(
    "strandline.cli.proxy:app",
    name="proxy",
    help="""Serve several Kafka clusters so that they look like one to any Kafka client.

    The file says which cluster owns which topics, groups and transactional ids. Clients need no change but the address:
    they see all topics, write and read them, and form groups over several clusters. Ctrl-C ends it in good order.

    strandline proxy --config proxy.yaml
    """,
)
app.command(
    "strandline.cli.imports:import_",
    name="import",
    help="""Write traffic that other tools captured to a Kafka topic, as `strandline capture` does.

    Reads HAR files, GoReplay's .gor files, and exports of opensearch-migrations (base64 lines), each packed by gzip or
    not. With --rekey it reads a topic instead whose records are keyed so that connections are scattered over its
    partitions. Times are kept. Ends with 0 when Kafka has acknowledged every record.

    A browser's session: strandline import shop.har --topic shop

    A topic mended: strandline import --rekey old --topic new
    """,
)


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit code: 0 for success, 2 for wrong use, 1 for failure."""
    guard_output()
    logs.configure()
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        print(end="", flush=True)
    except cyclopts.CycloptsError as error:
        return _fail(_told(error), 2)
    except UsageError as error:
        return _fail(str(error), 2)
    except OutputLost as error:
        discard_output()
        return _fail(str(error), 1)
    except StrandlineError as error:
        # The last words of a server stand below.
        between = "\n  " if isinstance(error, StackError) else "; "
        return _fail(between.join([str(error), *getattr(error, "__notes__", [])]), 1)
    except (TimeoutError, KeyboardInterrupt) as error:
        return _fail(_timed_out(error) if isinstance(error, TimeoutError) else "interrupted", 1)
    return 0


def _timed_out(error: TimeoutError) -> str:
    """The line for a time-out that no command handles; it names the place in our code, for a bug report."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if str(frame.f_globals.get("__name__")).startswith("strandline.")]
    where = f"{ours[-1].f_globals['__name__']}.{ours[-1].f_code.co_name}" if ours else "the command"
    reason = f" ({error})" if str(error) else ""
    return (
        f"a wait in {where} timed out{reason}; the machine may be overloaded: try again, and report it if it comes back"
    )


def _told(error: cyclopts.CycloptsError) -> str:
    """What is wrong with the arguments, in one line."""
    stray = next(iter(error.unused_tokens or ()), "")
    # A word too many is told rather than an option that is missing: it may be meant for a command that needs none.
    is_missing = isinstance(error, cyclopts.MissingArgumentError)
    if isinstance(error, cyclopts.UnusedCliTokensError) or (is_missing and stray and not stray.startswith("-")):
        return f"unexpected argument '{stray}'{_nearest(stray, error.command_chain or ())}"
    told = " ".join(str(error).split())
    # Where a word that was given is near to one that is missing, the library tells so.
    if isinstance(error, cyclopts.MissingArgumentError) and error.argument is not None and "Did you mean" not in told:
        problem = f"{error.argument.name} is missing" if error.keyword is None else f"{error.keyword} takes a value"
        return f"{problem}; see: {' '.join(['strandline', *(error.command_chain or ())])} --help"
    return told


def _nearest(word: str, chain: Sequence[str]) -> str:
    """The command with nearly this name, below those that were given; or all that are there."""
    below = app
    for name in chain:
        below = below[name]
    names = [name for name in below if not name.startswith("-")]
    near = get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {' '.join(['strandline', *chain])} takes {', '.join(names)}, or none" if names else ""


def _fail(line: str, code: int) -> int:
    print(f"strandline: {line}", file=sys.stderr)
    return code
