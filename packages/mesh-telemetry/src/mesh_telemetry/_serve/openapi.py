"""What the HTTP server answers, in words that programs read."""

from __future__ import annotations

from typing import Any

__all__ = ["OPENAPI"]

_ERROR = {
    "description": "It cannot be answered; the message says what to do.",
    "content": {
        "application/json": {
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
_QUESTION = {
    "type": "object",
    "required": ["sql"],
    "properties": {
        "sql": {"type": "string", "description": "A query that reads."},
        "params": {
            "oneOf": [{"type": "array"}, {"type": "object"}],
            "description": "The values of ?, of $1 and on, or of $name.",
        },
        "as_of": {
            "type": "integer",
            "description": "Rows of a later time are left out; microseconds since the epoch.",
        },
        "stream": {
            "type": "boolean",
            "description": "Send Arrow as hosts answer. The last batch has no rows, and the"
            " coverage as its metadata `mesh-coverage`.",
        },
    },
}
_STOP = {
    "type": "object",
    "required": ["mesh_id", "proc"],
    "properties": {
        "mesh_id": {"type": "integer", "description": "As in meshes.id."},
        "proc": {"type": "string", "description": "Who owns it, as in meshes.proc."},
        "by": {"type": "string", "description": "Who asks: in the errors that callers get."},
    },
}
_OPTIONS = {
    "native": {"type": "boolean", "description": "Also what runs in C."},
    "timeout": {"type": "number", "description": "Seconds to read all processes."},
    "seconds": {"type": "number", "description": "For how long to record."},
    "locals": {"type": "boolean", "description": "Also local variables."},
    "subprocesses": {"type": "boolean", "description": "Also of processes that they started."},
    "idle": {"type": "boolean", "description": "Also threads that wait."},
}
_DUMP = {
    "type": "object",
    "properties": {
        "where": {
            "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "Of which processes: a condition over procs, or names, as 0.3.",
        },
        **{name: _OPTIONS[name] for name in ("native", "locals", "subprocesses", "timeout")},
    },
}
_FLAME = {
    "type": "object",
    "required": ["proc"],
    "properties": {
        "proc": {"type": "string", "description": "The process, as 0.3."},
        "rows": {
            "type": "boolean",
            "description": "Answer with JSON: the picture as svg, and rows of stack and samples.",
        },
        **{name: _OPTIONS[name] for name in ("seconds", "native", "idle")},
    },
}
_COVERAGE = {
    "type": "object",
    "properties": {
        "asked": {"type": "array", "items": {"type": "string"}},
        "answered": {"type": "array", "items": {"type": "string"}},
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

OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "mesh-telemetry", "version": "1"},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "security": [{"token": []}],
    "paths": {
        "/query": {
            "post": {
                "summary": "Asks the running system.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _QUESTION}},
                },
                "responses": {
                    "200": {
                        "description": "The rows. As Arrow if that is accepted, with the coverage"
                        " as JSON in the header Mesh-Coverage.",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "properties": {
                                        "columns": {"type": "array", "items": {"type": "string"}},
                                        "rows": {"type": "array", "items": {"type": "object"}},
                                        "coverage": _COVERAGE,
                                    },
                                }
                            },
                            "application/vnd.apache.arrow.stream": {},
                        },
                    },
                    "default": _ERROR,
                },
            }
        },
        "/stop": {
            "post": {
                "summary": "Has a mesh stopped by the process that owns it, in good order.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _STOP}},
                },
                "responses": {
                    "200": {"description": "Its owner has begun: its name, and its number."},
                    "default": _ERROR,
                },
            }
        },
        "/pyspy/dump": {
            "post": {
                "summary": "Takes the stacks of processes with py-spy, and keeps them as rows.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _DUMP}},
                },
                "responses": {
                    "200": {"description": "The dump_id of the rows, and which have failed."},
                    "default": _ERROR,
                },
            }
        },
        "/pyspy/flame": {
            "post": {
                "summary": "Records what a process runs with py-spy, and draws it.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _FLAME}},
                },
                "responses": {
                    "200": {"description": "The flame graph.", "content": {"image/svg+xml": {}}},
                    "default": _ERROR,
                },
            }
        },
        "/openapi.json": {
            "get": {
                "summary": "Says what can be asked.",
                "responses": {"200": {"description": "This document."}},
            }
        },
    },
}
