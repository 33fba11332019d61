"""The error table: every kind survives the way over gRPC, and has an HTTP status."""

from __future__ import annotations

import grpc
import pytest

from wire import errors


def kinds(root: type[errors.WeirError] = errors.WeirError) -> list[type[errors.WeirError]]:
    """The tree of wire.errors itself; other packages' refinements travel as the kind they refine."""
    below = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(kind for child in below for kind in kinds(child))]


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_survives_the_way_over_grpc(kind: type[errors.WeirError]) -> None:
    error = kind("what to do")
    back = errors.from_grpc(errors.grpc_code(error), error.message, kind.__name__)
    assert type(back) is kind
    assert back.message == "what to do"
    assert 400 <= errors.http_status(error) <= 599


@pytest.mark.parametrize("kind", kinds())
def test_without_a_name_the_status_alone_gives_a_kind_with_the_same_status(kind: type[errors.WeirError]) -> None:
    code = errors.grpc_code(kind("x"))
    assert errors.grpc_code(errors.from_grpc(code, "x")) is code


def test_an_unknown_name_falls_back_to_the_status() -> None:
    assert type(errors.from_grpc(grpc.StatusCode.NOT_FOUND, "x", "Mystery")) is errors.NotFound


def test_grpcs_own_size_error_is_too_large() -> None:
    error = errors.from_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)")
    assert isinstance(error, errors.TooLarge)


def test_a_status_outside_the_table_is_internal_and_says_its_name() -> None:
    assert "DATA_LOSS" in errors.from_grpc(grpc.StatusCode.DATA_LOSS, "x").message


def test_a_message_is_bounded() -> None:
    message = errors.NotFound("\U0001f30a" * 100_000).message
    assert len(message) == errors.MAX_MESSAGE_CHARACTERS
    assert message.endswith("…")
