"""The OpenAPI description of the HTTP server.

It contains each route of a serving program; a path that ends in a parameter represents all paths
with this prefix.
"""

from __future__ import annotations

import re
from typing import Any

from mesh_telemetry._serve.scopes import ROUTE_SCOPES, Scope

__all__ = ["OPENAPI"]

_JSON = "application/json"
_ERROR = {
    "description": "The request failed; the message states what to do. 401 without a valid token,"
    " 403 with a token that does not permit it.",
    "content": {
        _JSON: {
            "schema": {
                "type": "object",
                "properties": {
                    "error": {
                        "type": "object",
                        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
                    }
                },
            }
        }
    },
}
_QUERY = {
    "type": "object",
    "required": ["sql"],
    "properties": {
        "sql": {"type": "string", "description": "A read query."},
        "params": {
            "oneOf": [{"type": "array"}, {"type": "object"}],
            "description": "The values of ?, of $1 and on, or of $name.",
        },
        "as_of": {
            "type": "integer",
            "description": "Ignore rows after this time, in microseconds since the epoch.",
        },
        "stream": {
            "type": "boolean",
            "description": "Send Arrow as hosts reply. The last batch has no rows, and the"
            " coverage as its metadata `mesh-coverage`.",
        },
    },
}
_STOP = {
    "type": "object",
    "required": ["mesh_id", "proc"],
    "properties": {
        "mesh_id": {"type": "integer", "description": "A meshes.id."},
        "proc": {"type": "string", "description": "The process that owns the mesh, a meshes.proc."},
        "by": {"type": "string", "description": "The requester, named in the errors of callers."},
    },
}
_OPTIONS = {
    "native": {"type": "boolean", "description": "Include native frames."},
    "timeout": {"type": "number", "description": "Seconds to wait for all processes."},
    "seconds": {"type": "number", "description": "Seconds to record."},
    "locals": {"type": "boolean", "description": "Include local variables."},
    "subprocesses": {"type": "boolean", "description": "Include child processes."},
    "idle": {"type": "boolean", "description": "Include waiting threads."},
}
_DUMP = {
    "type": "object",
    "properties": {
        "where": {
            "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "The processes: a condition over procs, or names such as 0.3.",
        },
        **{name: _OPTIONS[name] for name in ("native", "locals", "subprocesses", "timeout")},
    },
}
_FLAME = {
    "type": "object",
    "required": ["proc"],
    "properties": {
        "proc": {"type": "string", "description": "The process, such as 0.3."},
        "rows": {
            "type": "boolean",
            "description": "Return JSON: the graph as svg, and rows of stack and samples.",
        },
        **{name: _OPTIONS[name] for name in ("seconds", "native", "idle")},
    },
}
_HEAP = {
    "type": "object",
    "required": ["proc"],
    "properties": {
        "proc": {"type": "string", "description": "The process, such as 0.3."},
        "rows": {
            "type": "boolean",
            "description": "Return JSON: the graph as html, and the rows of the table heap.",
        },
        "peak": {
            "type": "boolean",
            "description": "Show the maximum, and not what is left at the end.",
        },
        "objects": {
            "type": "boolean",
            "description": "Track each object of Python's own allocator, which is slower.",
        },
        **{name: _OPTIONS[name] for name in ("seconds", "native")},
    },
}
_SESSIONS = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Which: debug_sessions.id.",
}
_ATTACH = {
    "type": "object",
    "properties": {
        "how": {
            "enum": ["attach", "dap"],
            "description": "attach for pdb in lines of JSON, dap for the Debug Adapter Protocol.",
        },
        "client": {"type": "string", "description": "The name shown to other clients."},
        "is_kept": {"type": "boolean", "description": "Stay paused when the client leaves."},
    },
}
_RUN = {
    "type": "object",
    "required": ["sessions", "command"],
    "properties": {
        "sessions": _SESSIONS,
        "command": {"type": "string", "description": "One pdb command, such as p loss."},
        "timeout_s": {"type": "number", "description": "Seconds for each session; default 30."},
    },
}
_CONTINUE = {"type": "object", "required": ["sessions"], "properties": {"sessions": _SESSIONS}}
_ON_FAILURE = {
    "type": "object",
    "properties": {
        "mesh": {
            "type": ["string", "null"],
            "description": "The name of actors or processes; all if omitted.",
        },
        "limit_s": {
            "type": "number",
            "description": "Seconds to wait for a client at an exception; default 600.",
        },
        "is_on": {"type": "boolean", "description": "False to turn it off."},
    },
}
_SESSION_RESULTS = {
    "type": "object",
    "properties": {
        "sessions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "text": {"type": "string", "description": "The output."},
                    "error": {"type": ["string", "null"], "description": "The cause of a failure."},
                },
            },
        }
    },
}
_COVERAGE = {
    "type": "object",
    "properties": {
        "queried": {"type": "array", "items": {"type": "string"}},
        "replied": {"type": "array", "items": {"type": "string"}},
        "failed": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"host": {"type": "string"}, "cause": {"type": "string"}},
            },
        },
        "shipped": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "table": {"type": "string"},
                    "rows": {"type": "integer"},
                    "bytes": {"type": "integer"},
                },
            },
        },
        "is_full": {"type": "boolean"},
    },
}

_ROWS = {
    "type": "object",
    "properties": {
        "columns": {"type": "array", "items": {"type": "string"}},
        "rows": {"type": "array", "items": {"type": "object"}},
        "coverage": _COVERAGE,
    },
}
_TOPIC = {
    "type": "object",
    "properties": {"value": {"type": "object"}, "coverage": _COVERAGE},
}
_TOPIC_ARGUMENTS = {
    "name": "arguments",
    "in": "query",
    "description": "The arguments of the topic, by name.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}


def _content(kind: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Describe a body."""
    return {kind: {} if schema is None else {"schema": schema}}


def _done(text: str, content: dict[str, Any] | None = None, status: int = 200) -> dict[str, Any]:
    """Describe a response, and the response to an error."""
    reply = {"description": text} | ({} if content is None else {"content": content})
    return {str(status): reply, "default": _ERROR}


def _post(summary: str, wanted: dict[str, Any], responses: dict[str, Any]) -> dict[str, Any]:
    """Describe an operation with a JSON request body."""
    body = {"required": True, "content": _content(_JSON, wanted)}
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def _get(summary: str, responses: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    """Describe an operation without a request body."""
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = list(parameters)
    return {"get": operation}


def _named(name: str, text: str) -> dict[str, Any]:
    """Describe the name at the end of a path."""
    schema = {"type": "string"}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def _time(name: str, text: str) -> dict[str, Any]:
    """Describe a time in the query string."""
    text = f"{text}, in microseconds since the epoch."
    return {"name": name, "in": "query", "description": text, "schema": {"type": "integer"}}


_QUERY_PATHS = {
    "/query": _post(
        "Query the running program.",
        _QUERY,
        _done(
            "The rows. Arrow if accepted, with the coverage as JSON in the header Mesh-Coverage.",
            _content(_JSON, _ROWS) | _content("application/vnd.apache.arrow.stream"),
        ),
    ),
    "/openapi.json": _get("Describe the routes.", _done("This document.", _content(_JSON))),
}
_ACTION_PATHS = {
    "/stop": _post(
        "Stop a mesh gracefully, through the process that owns it.",
        _STOP,
        _done("The stop has begun: the name and the id of the mesh.", _content(_JSON)),
    ),
    "/profile": _get(
        "Write a trace for ui.perfetto.dev.",
        _done("The trace, streamed.", _content("application/vnd.perfetto.trace")),
        _time("since_us", "Start of the trace; the oldest rows if omitted"),
        _time("until_us", "End of the trace, exclusive; now if omitted"),
    ),
    "/why": _get(
        "Name the ranks that keep others waiting, and slow ranks.",
        _done("The hangs and the slow ranks.", _content(_JSON)),
    ),
    "/metrics": _get(
        "Return the metrics of all hosts for Prometheus.",
        _done(
            "The metrics in the text format 0.0.4, or in OpenMetrics 1.0 if it is accepted.",
            _content("text/plain") | _content("application/openmetrics-text"),
        ),
    ),
    "/pyspy/dump": _post(
        "Read the stacks of processes with py-spy, and store them as rows.",
        _DUMP,
        _done("The dump_id of the rows, and the failures.", _content(_JSON)),
    ),
    "/pyspy/flame": _post(
        "Record a flame graph of a process with py-spy; closing the connection cancels it.",
        _FLAME,
        _done("The flame graph.", _content("image/svg+xml") | _content(_JSON)),
    ),
    "/memray/heap": _post(
        "Track what a process allocates with memray; closing the connection cancels it.",
        _HEAP,
        _done("The flame graph.", _content("text/html") | _content(_JSON)),
    ),
}
_DEBUG_PATHS = {
    "/debug/attach/{session}": _post(
        "Attach to a session that is paused at a breakpoint or a failure.",
        _ATTACH,
        _done(
            "The connection is that of the session. It sends lines of JSON: text to show, or a"
            " prompt, or at its end why. To a prompt it is sent a line of pdb. The code goes on"
            " when the connection is closed, but not where is_kept was sent.",
            status=101,
        ),
    )
    | {"parameters": [_named("session", "Which: debug_sessions.id.")]},
    "/debug/run": _post(
        "Run a command in several sessions.",
        _RUN,
        _done("The result of each session, in the same order.", _content(_JSON, _SESSION_RESULTS)),
    ),
    "/debug/continue": _post(
        "Let sessions continue without their breakpoints.",
        _CONTINUE,
        _done("The result of each session, in the same order.", _content(_JSON, _SESSION_RESULTS)),
    ),
    "/debug/on-failure": _post(
        "Pause where unhandled exceptions are raised, from now on.",
        _ON_FAILURE,
        _done("All hosts have been notified.", _content(_JSON)),
    ),
}
_TOPIC_NAME = _named("name", "The topic; the error for an unknown one lists them.")
_DASHBOARD_PATHS = {
    "/": _get("Show the dashboard.", _done("A page.", _content("text/html"))),
    "/dash/{file}": _get(
        "Return a file of the dashboard.",
        _done("The file."),
        _named("file", "Its name."),
    ),
    "/topics/{name}": _get(
        "Return the data of a dashboard page once.",
        _done("The data, and the hosts that it covers.", _content(_JSON, _TOPIC)),
        _TOPIC_NAME,
        _TOPIC_ARGUMENTS,
    ),
    "/live/{name}": _get(
        "Stream the data of a dashboard page, refreshed each second.",
        _done("The same as events, whenever it changes.", _content("text/event-stream")),
        _TOPIC_NAME,
        _TOPIC_ARGUMENTS,
    ),
}

_SECURITY: dict[Scope, list[dict[str, list[str]]]] = {
    Scope.OPEN: [],
    Scope.READ: [{"read": []}, {"act": []}],
    Scope.ACT: [{"act": []}],
}
_SCHEMES = {
    "read": {
        "type": "http",
        "scheme": "bearer",
        "description": "The read token: dashboard with saved cases, SQL, logs, metrics and traces.",
    },
    "act": {
        "type": "http",
        "scheme": "bearer",
        "description": "The act token: also stops meshes, runs code and shows local variables."
        " RequestError from browsers.",
    },
}


def _secured(paths: dict[str, Any]) -> dict[str, Any]:
    """Add to each operation the tokens that it accepts, according to `ROUTE_SCOPES`."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            route = method.upper(), re.sub(r"{\w+}", "*", path)
            operation["security"] = _SECURITY[ROUTE_SCOPES[route]]
    return paths


OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "mesh-telemetry", "version": "1"},
    "components": {"securitySchemes": _SCHEMES},
    "paths": _secured(_QUERY_PATHS | _ACTION_PATHS | _DEBUG_PATHS | _DASHBOARD_PATHS),
}
