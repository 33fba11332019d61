"""Weir: ask an edge node, and let the cloud answer what the edge is unsure of.

    from weir import Client
    with Client("127.0.0.1:50051") as client:
        print(client.generate("Where is my parcel?").text)

This package is what a user touches: the SDK here, the command line in weir.cli, the demo in
weir.demo. Importing it imports the wire and nothing else.
"""

from __future__ import annotations

from weir.blocking import Client, Stream
from weir.client import Answer, AnswerStream, AsyncClient, ClassifyOptions, Options
from wire.channel import ClientTls
from wire.classification import Classified, LabelScore
from wire.description import Description
from wire.errors import (
    Cancelled,
    CannotConstrain,
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WeirError,
)
from wire.messages import Message, Reason, ResponseFormat, Tier, Usage

__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncClient",
    "Cancelled",
    "CannotConstrain",
    "Classified",
    "ClassifyOptions",
    "Client",
    "ClientTls",
    "Conflict",
    "ContextTooLong",
    "DeadlineExceeded",
    "Description",
    "InvalidRequest",
    "LabelScore",
    "Message",
    "NotFound",
    "NotSupported",
    "Options",
    "Overloaded",
    "PermissionDenied",
    "PreconditionFailed",
    "Reason",
    "ResponseFormat",
    "Stream",
    "Tier",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "WeirError",
]
