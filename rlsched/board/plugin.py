"""TensorBoard's tab «Decisions», which shows the stores of decisions below TensorBoard's log folder.

TensorBoard does not start if the import of a plugin fails. This module therefore imports only packages that
every installation with TensorBoard has. It does not import the slow packages torch, numba and zmq.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from rlsched.board import comparing, views
from rlsched.board.replays import ReplayRunner
from rlsched.decisions import story
from rlsched.decisions.candidates import candidates
from rlsched.decisions.reading import Part, StoreReader, find_stores, parts
from rlsched.decisions.schema import read_info
from rlsched.decisions.segments import segment_files
from rlsched.decisions.story import time_text
from rlsched.errors import InputError

STATIC: Final = Path(__file__).with_name("static")
TYPES: Final = {".js": "text/javascript", ".css": "text/css"}
UNTIL: Final = " until "
"""Separator between the store's name and the end time in the name of an earlier part of a store."""
MOST_EARLIER: Final = 2
"""Number of earlier parts that are kept in memory. The parts of the latest requests are kept."""
MOST_TEXT: Final = 200
"""Maximum length of a text in a request, characters."""

MOST_NUMBER: Final = 1e11
"""Maximum absolute value of a number in a request, such as a time in seconds: 3,000 years."""
MOST_HOURS: Final = 24.0 * 366
ASKS: Final = "X-Rlsched-Replay"
"""Header that a request to start or stop a replay must have. Pages of other web sites cannot send it."""

Answer = Callable[[StoreReader, "RequestQuery"], Any]


class RequestQuery:
    """The parameters of an HTTP request."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """Return a required text parameter.

        Raises:
            InputError: the parameter is missing or too long.
        """
        value = self._values.get(name, "")
        if not value or len(value) > MOST_TEXT:
            raise InputError(f"{name}: expected 1 to {MOST_TEXT} characters, got {len(value):,}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a parameter that is a number, or `default` if the parameter is missing.

        Raises:
            InputError: the parameter is missing and has no default, is not a number, or is above
                `MOST_NUMBER`.
        """
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        try:
            found = float(value or "")
            if not abs(found) <= MOST_NUMBER:
                raise ValueError("too large, or not a number")
        except ValueError as error:
            raise InputError(
                f"{name}: expected a number up to {MOST_NUMBER:g}, got {(value or '')[:40]!r}"
            ) from error
        return found

    def whole(self, name: str) -> int:
        """Return a required parameter that is a whole number.

        Raises:
            InputError: the parameter is missing, or is not a whole number.
        """
        value = self._values.get(name, "")
        if not value.isdecimal() or len(value) > 18:
            raise InputError(f"{name}: expected a whole number, got {value[:40]!r}")
        return int(value)


class Stores:
    """Readers of the stores below a folder. Readers are kept, so that a request reads only new rows.

    A large store is listed in parts, each for a period. The last part has the name of the store. The name of
    an earlier part ends with the part's end time.
    """

    def __init__(self, logdir: str) -> None:
        self._logdir = Path(logdir)
        self._readers: dict[str, StoreReader] = {}
        self._parts: dict[Path, tuple[list[str], list[Part]]] = {}
        self.lock = threading.Lock()

    def names(self) -> dict[str, bool]:
        """Return the names of all stores and parts. A store's name is its path below the folder.

        The values are whether a part can be shown quickly: it was read before, or is its store's last part.
        """
        return {name: name in self._readers or part is None for name, (_, part) in self._found().items()}

    def _found(self) -> dict[str, tuple[Path, Part | None]]:
        """Return (folder of the store, part of the store) by name of the store or of an earlier part.

        The name of a store stands for the store's last part; the part in the result is then None.
        """
        found: dict[str, tuple[Path, Part | None]] = {}
        for name, folder in find_stores(self._logdir).items() if self._logdir.is_dir() else ():
            found[name] = folder, None
            with contextlib.suppress(InputError, OSError):
                info = read_info(folder)
                earlier = self._parts_of(folder)[:-1]
                for part in reversed(earlier):
                    found[f"{name}{UNTIL}{time_text(info.time, part.last_s)}"] = folder, part
        return found

    def _parts_of(self, folder: Path) -> list[Part]:
        segments = [path.name for path in segment_files(folder, "decisions")]
        known = self._parts.get(folder)
        if known is None or known[0] != segments:
            known = self._parts[folder] = segments, parts(folder)
        return known[1]

    def reader(self, name: str) -> StoreReader:
        """Return the reader of a store or of an earlier part, with all rows that the files have now.

        Raises:
            InputError: there is no store with this name, or the store cannot be read.
        """
        folder, part = self._found().get(name, (None, None))
        if folder is None:
            raise InputError(f"run: no store of decisions {name[:MOST_TEXT]!r} below {self._logdir}")
        reader = self._readers.pop(name, None) or StoreReader(folder, part)
        if part is not None:
            earlier = [other for other in self._readers if UNTIL in other]
            for other in earlier[: max(0, len(earlier) + 1 - MOST_EARLIER)]:
                del self._readers[other]
        self._readers[name] = reader  # the last one is the newest
        reader.refresh()
        return reader


class DecisionsPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """TensorBoard's plugin for the tab «Decisions»."""

    plugin_name = "decisions"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._stores = Stores(context.logdir or ".")
        self._replays = ReplayRunner()
        self._compared: tuple[tuple[Any, ...], comparing.Partings] | None = None

    def is_active(self) -> bool:
        """Return whether there is a store to show. Otherwise, TensorBoard hides the tab."""
        return bool(self._stores.names())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the name of the tab, and the script of the tab's page."""
        return base_plugin.FrontendMetadata(es_module_path="/static/index.js", tab_name="Decisions")

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return a dict: path -> WSGI application of the plugin."""
        answers: dict[str, Answer] = {
            "/overview": _overview,
            "/moment": lambda reader, query: story.moment(reader, query.number("at")),
            "/decision": _decision,
            "/job": lambda reader, query: story.job_story(reader, story.job_of(reader, query.text("job"))),
            "/search": lambda reader, query: views.search(reader, query.text("q")),
        }
        answers["/compare"] = lambda reader, query: comparing.compare(
            reader, self._stores.reader(query.text("other"))
        )
        answers["/partings"] = self._partings
        apps = {path: self._app(answer) for path, answer in answers.items()}
        apps["/instead"] = wrappers.Request.application(self._instead)
        apps["/runs"] = wrappers.Request.application(self._runs)
        apps["/static/*"] = _static
        return apps

    def _app(self, answer: Answer) -> Any:
        @wrappers.Request.application
        def app(request: wrappers.Request) -> wrappers.Response:
            query = RequestQuery(request.args.to_dict())
            try:
                with self._stores.lock:
                    found = answer(self._stores.reader(query.text("run")), query)
            except InputError as error:
                return _respond(request, {"error": str(error)}, 400)
            except OSError as error:
                return _respond(request, {"error": f"the store cannot be read: {error}"}, 500)
            return _respond(request, found)

        return app

    def _partings(self, reader: StoreReader, query: RequestQuery) -> Any:
        """Return a page of the partings of two runs. Partings of the last two runs are kept."""
        other = self._stores.reader(query.text("other"))
        key = reader, len(reader), other, len(other)
        if self._compared is None or self._compared[0] != key:
            self._compared = key, comparing.Partings(reader, other)
        return self._compared[1].page(query.whole("first"))

    def _instead(self, request: wrappers.Request) -> wrappers.Response:
        """Answer a request about a replay: POST starts or stops the replay, GET returns its state."""
        query = RequestQuery(request.args.to_dict())
        try:
            if request.method == "GET":
                return _respond(request, self._replays.replay_state(query.whole("ticket")))
            if request.method != "POST" or ASKS not in request.headers:
                return _respond(request, {"error": f"expected POST with the header {ASKS}"}, 405)
            if "stop" in request.args:
                return _respond(request, self._replays.stop(query.whole("stop")))
            with self._stores.lock:
                reader = self._stores.reader(query.text("run"))
                number = _number_of(reader, query)
            hours = query.number("hours")
            if not 0.0 < hours <= MOST_HOURS:
                raise InputError(f"hours: expected more than 0, up to {MOST_HOURS:g}, got {hours:g}")
            return _respond(
                request, self._replays.start(reader.folder, number, query.whole("candidate"), hours)
            )
        except InputError as error:
            return _respond(request, {"error": str(error)}, 400)
        except OSError as error:
            return _respond(request, {"error": f"a replay cannot be started: {error}"}, 500)

    def _runs(self, request: wrappers.Request) -> wrappers.Response:
        """Answer a request for the list of stores and their parts. Parts that were read have a summary."""
        found: list[dict[str, Any]] = []
        with self._stores.lock:
            for name, opened in self._stores.names().items():
                if not opened:
                    found.append({"run": name, "of": "an earlier part, read when it is selected"})
                    continue
                try:
                    found.append(views.summary(name, self._stores.reader(name)))
                except (InputError, OSError) as error:
                    found.append({"run": name, "error": str(error)})
        return _respond(request, found)


def _overview(reader: StoreReader, query: RequestQuery) -> Any:
    first_s, last_s = reader.timeline.first_s, reader.timeline.last_s
    if not math.isfinite(first_s):
        return views.overview(reader, 0.0, 1.0)
    from_s, to_s = query.number("from", first_s), query.number("to", last_s)
    if not from_s < to_s:
        to_s = from_s + 1.0
    return views.overview(reader, from_s, to_s)


def _decision(reader: StoreReader, query: RequestQuery) -> Any:
    return story.decision(reader, _row(reader, query))


def _row(reader: StoreReader, query: RequestQuery) -> int:
    row = query.whole("row")
    if row >= len(reader):
        raise InputError(f"row: expected less than {len(reader)}, got {row}")
    return row


def _number_of(reader: StoreReader, query: RequestQuery) -> int:
    """Return the sequence number of the decision whose row in the store a request names.

    Raises:
        InputError: there is no such row, or the decision lacks the candidate that the request names.
    """
    record, wanted = reader.record(_row(reader, query)), query.whole("candidate")
    if not any(one.number == wanted for one in candidates(record)):
        raise InputError(f"candidate: decision {record.number} has no candidate {wanted}")
    return record.number


@wrappers.Request.application
def _static(request: wrappers.Request) -> wrappers.Response:
    """Answer a request for a file of the page. Only files in `STATIC` are served."""
    files = {file.name: file for file in _files()}
    file = files.get(request.path.rpartition("/")[2])
    if file is None:
        return _respond(request, {"error": "no such file"}, 404)
    answer: wrappers.Response = http_util.Respond(request, file.read_bytes(), TYPES[file.suffix])
    return answer


def _files() -> Iterable[Path]:
    return (file for file in STATIC.iterdir() if file.suffix in TYPES)


def _respond(request: wrappers.Request, found: Any, code: int = 200) -> wrappers.Response:
    """Return a JSON response with the data `found`; numbers that are not finite become null."""
    text = gzip.compress(msgspec.json.encode(found), compresslevel=1)
    answer: wrappers.Response = http_util.Respond(
        request, text, "application/json", code=code, content_encoding="gzip"
    )
    return answer
