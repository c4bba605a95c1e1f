"""Carry connections from this machine into the cluster's network namespace: `python relay.py FD HOST PORT`.

In: a listening socket opened outside (a socket keeps the namespace in which it was made). Out: a connection inside for
each accepted one, with bytes copied both ways, whatever they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(65536):
            writer.write(block)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def _main(descriptor: int, host: str, port: int) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    server = await asyncio.start_server(carry, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
