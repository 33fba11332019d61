"""`python -m wire.health_probe ADDRESS`: asks grpc.health.v1 once; exit code 0 when it serves.

For container health checks, where neither curl nor a gRPC tool is at hand. Ends within three seconds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health_pb2

from wire.channel import open_channel

TIMEOUT_S = 3.0


async def probe(address: str, timeout_s: float = TIMEOUT_S) -> str:
    """SERVING, NOT_SERVING, or the gRPC status that came instead of an answer."""
    channel = open_channel(address)
    try:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    finally:
        await channel.close()


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 serves, 1 does not, 2 bad use."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m wire.health_probe ADDRESS\n")
        return 2
    status = asyncio.run(probe(arguments[0]))
    sys.stdout.write(f"{arguments[0]} {status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
