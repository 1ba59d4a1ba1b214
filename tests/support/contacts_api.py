"""Serve the contacts API over real HTTP on a free port of this machine, with a client for tests. JANE is a valid contact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI

from examples.contacts.__main__ import listening

JANE: dict[str, Any] = {
    "name": {"firstName": "Jane", "lastName": "Doe"},
    "description": "This is a contact",
    "email": "jane@example.com",
    "company": {
        "companyName": "Contoso",
        "street": "Street",
        "houseNumber": "1a",
        "postalCode": "92821",
        "city": "Palo Alto",
        "country": "US",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Client:
    session: aiohttp.ClientSession

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        async with self.session.request(method, path, **options) as response:
            return Answer(status=response.status, headers=response.headers, text=await response.text())

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.send("GET", path, **options)

    async def post(self, path: str, **options: Any) -> Answer:
        return await self.send("POST", path, **options)

    async def put(self, path: str, **options: Any) -> Answer:
        return await self.send("PUT", path, **options)

    async def delete(self, path: str, **options: Any) -> Answer:
        return await self.send("DELETE", path, **options)


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[Client]:
    with listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                if serving.done():
                    await serving
                    raise RuntimeError("The server stopped while it started.")
                await asyncio.sleep(0.01)
            host, port = listener.getsockname()
            async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
                yield Client(session)
        finally:
            server.should_exit = True
            await serving
