"""A mail server of a few lines on a real socket, which takes mails or refuses them as a test says."""

from __future__ import annotations

import email
import email.policy
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.socket_server import listening

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable
    from email.message import EmailMessage


@dataclass
class SmtpSink:
    """What it received, and what it answers: by command, such as `RCPT`, a line in place of 250."""

    port: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    hangs_at: str | None = None
    """The command that it never answers."""
    tls: ssl.SSLContext | None = None
    """Offered by STARTTLS."""
    on_data: Callable[[], Awaitable[None]] | None = None
    """Run when a mail has arrived whole, before the answer."""
    mails: list[EmailMessage] = field(default_factory=list)
    envelopes: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        """Where it is, without TLS."""
        return f"smtp://127.0.0.1:{self.port}?starttls=off"

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which a client may leave when it has seen the certificate."""
        with suppress(ssl.SSLError):
            await self.serve(reader, writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, command after command."""
        self.connections += 1
        await _say(writer, self.answers.get("CONNECT", "220 sink"))
        envelope = {"MAIL": "", "RCPT": ""}
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            verb = line[:4].upper()
            self.commands.append(line)
            if self.hangs_at == verb:
                await reader.read()
                return
            if verb in envelope:
                envelope[verb] = line
            await _say(writer, *self._answer(verb))
            if verb == "STAR" and self.tls:
                await writer.start_tls(self.tls)
            if verb == "DATA" and "DATA" not in self.answers:
                await self._take(reader, writer, envelope)
            if verb == "QUIT":
                return

    def _answer(self, verb: str) -> list[str]:
        if verb in self.answers:
            return [self.answers[verb]]
        if verb == "EHLO":
            return ["250-sink", "250-AUTH PLAIN", *(["250-STARTTLS"] if self.tls else []), "250 SMTPUTF8"]
        return [{"DATA": "354 go on", "STAR": "220 go on", "AUTH": "235 welcome"}.get(verb, "250 fine")]

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, envelope: dict[str, str]) -> None:
        raw = (await reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n")
        answer = self.answers.get("END", "250 taken")
        if answer.startswith("2"):
            self.mails.append(email.message_from_bytes(raw, policy=email.policy.default))
            self.envelopes.append((envelope["MAIL"], envelope["RCPT"]))
        if self.on_data:
            await self.on_data()
        await _say(writer, answer)


@asynccontextmanager
async def smtp_sink(
    *, tls: ssl.SSLContext | None = None, tls_at_once: ssl.SSLContext | None = None
) -> AsyncIterator[SmtpSink]:
    """One that takes everything, until a test changes that."""
    sink = SmtpSink(tls=tls)
    async with listening(sink.serve_one, tls=tls_at_once) as sink.port:
        yield sink


async def _say(writer: asyncio.StreamWriter, *lines: str) -> None:
    writer.write("".join(f"{line}\r\n" for line in lines).encode())
    await writer.drain()
