"""How a login sends its password: by SCRAM, or to a server that TLS has proven; called wherever the library logs in.

Who listens in the place of a server, or on the way to it, can ask for the password in plain text or for its MD5 hash,
which is as good as the password. With SCRAM, he gets neither, and a server proves that it knows the password too.
Passwords in a DSN of the command line or the client are not concerned: there the person's libpq decides, as for psql.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

#: libpq's version from which on it can refuse methods.
_CAN_REFUSE = 160000
#: What an administrator can do for a login whose server asks in another way.
HINT = (
    "The password is sent by SCRAM only. Use scram-sha-256 in pg_hba.conf there, for a role whose password is stored"
    " so (SET password_encryption = 'scram-sha-256'; then set the password again). Or let TLS prove the server:"
    " sslmode=verify-full, with sslrootcert."
)


def protecting(
    keywords: Mapping[str, Any], libpq: int, *, may_be_let_in: bool = True, never: Sequence[str] = ()
) -> dict[str, str]:
    """Return libpq's keywords by which a login gives its password only to the server that knows it.

    Parameters
    ----------
    keywords : mapping of str to object
        libpq's keywords of the login. A ``require_auth`` among them is an administrator's choice, and stays.
    libpq : int
        The version of libpq that logs in, such as 160002. Before 16, it can protect the password only on a connection
        with TLS. The packages psycopg2-binary and psycopg-binary contain newer ones.
    may_be_let_in : bool
        Whether the server may also accept the role without asking for a password, by pg_hba.conf's trust or cert.
    never : sequence of str
        Methods of ``require_auth`` that the login must not use in any case.

    Returns
    -------
    dict of str to str
    """
    if "require_auth" in keywords:
        return {}
    is_proven = _is_proven(keywords)
    if libpq < _CAN_REFUSE:
        has_tls = keywords.get("sslmode") in ("require", "verify-ca")
        return {"channel_binding": "require"} if has_tls and keywords.get("password") else {}
    if not may_be_let_in and not is_proven:  # defence: scram-of-a-host
        return {"require_auth": "scram-sha-256"}
    # defence: no-md5 = [*never, *(() if is_proven else ("password",))]
    refused = [*never, *(() if is_proven else ("password", "md5"))]
    return {"require_auth": ",".join(f"!{method}" for method in refused)} if refused else {}


def is_refused(message: str) -> bool:
    """Return whether libpq has ended a login because the server asked for the password in another way."""
    return "authentication method requirement" in message or "channel binding required" in message


def _is_proven(keywords: Mapping[str, Any]) -> bool:
    """Return whether TLS proves the server before any password is sent; libpq uses no TLS on Unix sockets."""
    lists = [str(keywords.get(name) or "").split(",") for name in ("hostaddr", "host")]
    named = [address.strip() or host.strip() for address, host in zip_longest(*lists, fillvalue="")]
    by_tcp = all(name and name[0] not in "/@" for name in named)  # defence: no-proof-by-socket = True
    return keywords.get("sslmode") == "verify-full" and by_tcp
