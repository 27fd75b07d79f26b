"""What `madlib-mop dash` was started with, checked: its own address, and the server that people log in to."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from madlib_mop.errors import InvalidParameter, UnreadableText

#: Keywords of libpq that say where the server is and how the connection is encrypted; no other one is accepted.
_KEYWORDS = frozenset({
    "host", "hostaddr", "port", "dbname", "connect_timeout", "sslmode", "sslrootcert", "sslcrl", "sslnegotiation",
    "target_session_attrs", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
})  # fmt: skip
_FROM_ENVIRONMENT = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "sslmode": "PGSSLMODE",
                     "sslrootcert": "PGSSLROOTCERT"}  # fmt: skip
_SECRETS = ("password", "passfile", "service", "servicefile", "sslcert", "sslkey", "sslpassword")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.IGNORECASE)


@dataclass(frozen=True)
class DashServer:
    """The server that people log in to.

    Attributes
    ----------
    keywords : mapping of str to str
        libpq's, with host, port and dbname; without a user and without a secret.
    suggested_role : str
        The role of the DSN, which the form of the login suggests; it has no other use.
    """

    keywords: Mapping[str, str]
    suggested_role: str = ""

    @property
    def database(self) -> str:
        """The name of the database."""
        return self.keywords["dbname"]


@dataclass(frozen=True)
class DashSettings:
    """The settings of one live page.

    Attributes
    ----------
    server : DashServer
    host : str
        Address that it listens on.
    port : int
    tls_cert, tls_key : str or None
        Files in PEM format.
    public_url : str or None
        Where people find it behind a reverse proxy, such as ``https://mop.example.org``.
    allowed_hosts : tuple of str
        Further names in the header Host.
    idle_s, longest_s : float
        A session ends after so many seconds without a request, and after so many in all.
    """

    server: DashServer
    host: str = "127.0.0.1"
    port: int = 8765
    tls_cert: str | None = None
    tls_key: str | None = None
    public_url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    idle_s: float = field(default=2 * 3600.0)
    longest_s: float = field(default=12 * 3600.0)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidParameter("--tls-cert and --tls-key belong together: one of them is missing")
        if self.tls_cert is None and not is_loopback(self.host):  # defence: tls
            raise InvalidParameter(
                f"other machines could read the passwords on their way to {self.host}: it needs TLS",
                hint="Give --tls-cert and --tls-key, or leave out --host and use a reverse proxy or an SSH tunnel.",
            )
        url = urlsplit(self.public_url or "https://localhost")
        if url.scheme != "https" or not url.hostname or url.path.strip("/") or url.query:
            raise InvalidParameter(f"--public-url must be https:// and a name. Received: {self.public_url!r}")
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name.partition(":")[0] if "[" not in name else name):
                raise InvalidParameter(f"--allowed-host must be the name of a host. Received: {name!r}")

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach it by TLS: its cookies are sent in no other way then."""
        return self.tls_cert is not None or self.public_url is not None

    @property
    def hosts(self) -> frozenset[str]:
        """The values of header Host, in lower case, that requests may have; others come from rebound names of DNS."""
        names = {"localhost", "127.0.0.1", "[::1]", *self.allowed_hosts}
        if not ipaddress_of(self.host).is_unspecified:
            names.add(f"[{self.host}]" if ":" in self.host else self.host)
        found = {f"{name}:{self.port}" for name in names} | set(self.allowed_hosts)
        if self.port in (80, 443):
            found |= names
        if self.public_url is not None:
            found.add(urlsplit(self.public_url).netloc)
        return frozenset(name.lower() for name in found)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    return ipaddress_of(host).is_loopback


def ipaddress_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address. Raises InvalidParameter for a name, whose address could change."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InvalidParameter(f"--host must be an IP address such as 127.0.0.1. Received: {host!r}") from None


def server_of(dsn: str) -> DashServer:
    """Return the server of a DSN; PGHOST, PGPORT and PGDATABASE supply what it lacks, then 127.0.0.1 and 5432.

    Raises
    ------
    UnreadableText
        If it is no DSN.
    InvalidParameter
        If it has a secret, names a socket, or names no database. By a socket, the server would believe that everybody
        is the operating system user of this process (peer authentication).
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.Error as error:
        raise UnreadableText(f"--dsn cannot be read: {str(error).strip().splitlines()[0]}") from None
    role = given.pop("user", "")
    # defence: no-password-at-start
    for name in sorted(given.keys() - _KEYWORDS, key=lambda name: name not in _SECRETS):
        if name in _SECRETS:
            raise InvalidParameter(
                f"--dsn of the live page must not have a {name}: everybody logs in with a password of their own",
                hint="Give the server and the database only, for instance --dsn 'host=127.0.0.1 dbname=mydb'.",
            )
        raise InvalidParameter(
            f"--dsn of the live page cannot have {name}", hint=f"It can have {', '.join(sorted(_KEYWORDS))}."
        )
    for name, variable in _FROM_ENVIRONMENT.items():
        if os.environ.get(variable):
            given.setdefault(name, os.environ[variable])
    keywords = {"host": given.get("hostaddr", "127.0.0.1"), "port": "5432", "connect_timeout": "10", **given}
    for host in keywords["host"].split(","):
        if not host.strip() or host.strip()[0] in "/@":  # defence: no-login-by-socket
            raise InvalidParameter(
                f"the live page cannot log in by a socket. Received: host {host!r}",
                hint="Name the server's address, for instance host=127.0.0.1.",
            )
    if not keywords.get("dbname"):
        raise InvalidParameter("--dsn names no database", hint="For instance --dsn 'host=127.0.0.1 dbname=mydb'.")
    return DashServer(keywords, role)
