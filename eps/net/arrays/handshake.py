"""Proof of the job's token when two ends of a connection meet: a challenge each way, before any frame.  L2, pure.

Four messages of fixed lengths, so that a stranger cannot make an end reserve memory::

    connector -> listener    magic "EPSH" | version u8 | zero u8[3] | nonce[32]
    listener  -> connector   nonce[32] | proof[32]     of both nonces, as the listener
    connector -> listener    proof[32]                 of both nonces, as the connector
    listener  -> connector   the frame HELLO: requests are taken

A proof is an HMAC with the token as its key; it names the role and the transport, so that no end can be made to answer
its own challenge, and nothing can be relayed from one transport to another.  The token itself never travels.

Source: the challenge-response of RFC 5802 (SCRAM) and RFC 2195, with mutual proof.  Deviation: no channel binding:
against an attacker who can change packets on the way there is TLS.
"""

from __future__ import annotations

import secrets

from eps.errors import AuthenticationError
from eps.net.security.credentials import JobToken

MAGIC = b"EPSH"
VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
CHALLENGE_BYTES = 8 + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
#: How long a peer may take for all of it.
HANDSHAKE_TIMEOUT_S = 10.0

_PREFIX = MAGIC + bytes([VERSION, 0, 0, 0])
_LISTENER, _CONNECTOR = b"eps van listener", b"eps van connector"
#: Where no token is asked, both ends use this one: the messages stay the same.
_OPEN = JobToken(b"no token is asked")


class ConnectorHandshake:
    """The connector's side.

    Parameters
    ----------
    token : JobToken or None
    transport : str
        Name of the transport that the messages travel on; part of the proofs.
    """

    def __init__(self, token: JobToken | None, transport: str) -> None:
        self._token = token or _OPEN
        self._transport = transport.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> bytes:
        """Return the first message."""
        return _PREFIX + self._nonce

    def proof(self, answer: bytes) -> bytes:
        """Check the listener's answer; return the third message.

        Raises
        ------
        AuthenticationError
            The listener does not have the job's token.
        """
        nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not self._token.proves(proof, _LISTENER, self._transport, self._nonce, nonce):
            raise AuthenticationError("the listener does not know the job's token")
        return self._token.proof(_CONNECTOR, self._transport, self._nonce, nonce)


class ListenerHandshake:
    """The listener's side; parameters as of :class:`ConnectorHandshake`."""

    def __init__(self, token: JobToken | None, transport: str) -> None:
        self._token = token or _OPEN
        self._transport = transport.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._peers_nonce = b""

    def answer(self, challenge: bytes) -> bytes:
        """Return the second message.

        Raises
        ------
        AuthenticationError
            What came is not a challenge of this version.
        """
        if not challenge.startswith(_PREFIX):
            raise AuthenticationError(f"a connection begins with {challenge[:8]!r}, but must begin with {_PREFIX!r}")
        self._peers_nonce = challenge[len(_PREFIX) :]
        proof = self._token.proof(_LISTENER, self._transport, self._peers_nonce, self._nonce)
        return self._nonce + proof

    def check(self, proof: bytes) -> None:
        """Check the third message.

        Raises
        ------
        AuthenticationError
            The connector does not have the job's token.
        """
        if not self._token.proves(proof, _CONNECTOR, self._transport, self._peers_nonce, self._nonce):
            raise AuthenticationError("the peer does not know the job's token")
