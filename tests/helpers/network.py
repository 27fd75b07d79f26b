"""Networks whose bytes are counted, for tests in tests/hosts, benchmarks/traffic.py and benchmarks/hops.py.

`Cables` runs every cluster in a network namespace of its own, joined to the coordinator's by a cable (a pair of veth
interfaces), where the kernel counts what a network card would have sent and received, with headers and
acknowledgements. In a `Switch`, hosts reach each other too; it can cut connections. Both need root. `Meters` needs no
rights: relays on loopback count the bytes of the connections.
"""

import asyncio
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COORDINATOR = "coordinator"
_SWITCH = "switch"
_MTU = 1500
#: Holds a namespace until stdin ends, which happens when its creator closes it or is killed; then ends all processes in
#: it.
_KEEPER = """
echo ready; read -r _
mine=$(readlink /proc/$$/ns/net)
found=1
while [ "$found" ]; do
    found=
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$pid" != $$ ] && [ "$(readlink "$process/ns/net")" = "$mine" ] && kill -9 "$pid" && found=1
    done
done 2>/dev/null
"""
#: A cable delivers packets in order. A veth pair does so only if one processor receives all of them; otherwise TCP
#: takes reordered packets for lost, and sends 1 to 3 % of them again on a busy machine.
_IN_ORDER = 'mount -t sysfs none /sys && echo 1 >"/sys/class/net/$0/queues/rx-0/rps_cpus"'


class NoNamespaces(Exception):
    """Network namespaces cannot be created by this user or on this machine; the argument is the reason."""


@dataclass(frozen=True)
class Count:
    """Bytes and packets between the coordinator and its hosts.

    Attributes
    ----------
    out_bytes, back_bytes : int
        Bytes to the hosts, and from them.
    n_packets : int
        In both directions; 0 if packets are not counted.
    """

    out_bytes: int = 0
    back_bytes: int = 0
    n_packets: int = 0

    @property
    def n_bytes(self) -> int:
        """Return the bytes in both directions."""
        return self.out_bytes + self.back_bytes

    def __sub__(self, earlier: "Count") -> "Count":
        """Return the difference from an earlier count."""
        return Count(
            self.out_bytes - earlier.out_bytes,
            self.back_bytes - earlier.back_bytes,
            self.n_packets - earlier.n_packets,
        )


class Cables:
    """The coordinator and its hosts, each in a network namespace; a context manager.

    Hosts are joined to the coordinator only, not to each other. The namespaces have no names: each is removed with its
    last process, and a keeper process ends all of them after the end of this process, for whatever reason.

    Parameters
    ----------
    hosts : sequence of str

    Raises
    ------
    NoNamespaces
        In ``with``, if the machine or the user may not create namespaces.
    """

    what = "bytes on the wire, headers included"

    def __init__(self, hosts: Sequence[str]):
        self._hosts = list(hosts)
        self._keepers: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> "Cables":
        try:
            for name in self._names():
                self._keep(name)
                self._run(name, "ip", "link", "set", "lo", "up")
            self._join_all()
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            said = getattr(error, "stderr", None) or str(error)
            raise NoNamespaces(f"network namespaces cannot be created here: {said.strip()}") from None
        return self

    def __exit__(self, *_) -> None:
        for keeper in self._keepers.values():
            with keeper:  # closes its stdin and waits
                pass
        self._keepers.clear()

    def within(self, name: str) -> list[str]:
        """Return the words before a command that run it on a host, or on the coordinator."""
        return ["nsenter", f"--net=/proc/{self._keepers[name].pid}/ns/net", "--"]

    def address(self, name: str) -> str:
        """Return a host's address."""
        return f"10.77.{self._hosts.index(name)}.2"

    def pids(self) -> list[int]:
        """Return the keepers."""
        return [keeper.pid for keeper in self._keepers.values()]

    def count(self) -> Count:
        """Read the counters of the coordinator's interfaces."""
        total = [0, 0, 0]
        for line in Path(f"/proc/{self._keepers[COORDINATOR].pid}/net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":  # other interfaces carry the coordinator's own sessions
                received, received_packets, *rest = (int(word) for word in numbers.split())
                sent, sent_packets = rest[6:8]
                total = [total[0] + sent, total[1] + received, total[2] + sent_packets + received_packets]
        return Count(*total)

    def overtaken(self) -> int:
        """Return the number of TCP segments that were sent again because later ones were acknowledged first."""
        total = 0
        for keeper in self._keepers.values():
            names, numbers = (
                line.split()
                for line in Path(f"/proc/{keeper.pid}/net/netstat").read_text().splitlines()
                if line.startswith("TcpExt:")
            )
            total += int(numbers[names.index("TCPFastRetrans")])
        return total

    def _names(self) -> list[str]:
        return [COORDINATOR, *self._hosts]

    def _join_all(self) -> None:
        for number, name in enumerate(self._hosts):
            self._join(COORDINATOR, name, number)

    def _keep(self, name: str) -> None:
        keeper = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must only reach the tests
        )
        self._keepers[name] = keeper
        if keeper.stdout.readline() != "ready\n":
            raise OSError(keeper.stderr.read())

    def _join(self, center: str, name: str, number: int, whole_segments: bool = False) -> None:
        """Join two places by a cable; with ``whole_segments``, the kernel may pass on 64 kB with one header."""
        ends = ((center, f"to_{name}", 1), (name, f"to_{center}", 2))
        # Sends one packet at a time, as a network card does.
        end = ["mtu", str(_MTU), *([] if whole_segments else ["gso_max_segs", "1"])]
        there = ["netns", str(self._keepers[name].pid)]
        self._run(
            center, "ip", "link", "add", ends[0][1], *end, "type", "veth", "peer", "name", ends[1][1], *end, *there
        )
        for where, interface, last in ends:
            self._run(where, "ip", "link", "set", interface, "addrgenmode", "none")  # no IPv6 traffic
            self._run(where, "ip", "address", "add", f"10.77.{number}.{last}/30", "dev", interface)
            self._run(where, "ip", "link", "set", interface, "up")
            self._run(where, "unshare", "--mount", "sh", "-c", _IN_ORDER, interface)

    def _run(self, name: str, *command: str) -> None:
        subprocess.run([*self.within(name), *command], check=True, capture_output=True, text=True)


class Switch(Cables):
    """The coordinator and its hosts, each in a network namespace with one cable to a switch; a context manager.

    Parameters
    ----------
    hosts : sequence of str
    rate : str, optional
        Of each cable, in each direction, such as "1gbit". Default: as fast as it can.

    Raises
    ------
    NoNamespaces
        In ``with``, as `Cables`.
    """

    lets_in = "10.77.0.0/16"

    def __init__(self, hosts: Sequence[str], rate: str | None = None):
        super().__init__(hosts)
        self._rate = rate

    def address(self, name: str) -> str:
        return f"10.77.{self._number(name)}.2"

    def cut(self, one: str, other: str) -> None:
        """Lose all packets between two places, without a word to either."""
        self._route("add", one, other)

    def heal(self, one: str, other: str) -> None:
        """End a cut."""
        self._route("del", one, other)

    def _names(self) -> list[str]:
        return [_SWITCH, *super()._names()]

    def _join_all(self) -> None:
        forward = ["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]
        self._run(_SWITCH, *forward)
        for name in super()._names():
            number = self._number(name)
            self._join(_SWITCH, name, number, whole_segments=self._rate is not None)
            self._run(name, "ip", "route", "add", "default", "via", f"10.77.{number}.1")
            if self._rate is not None:
                limit = ["tbf", "rate", self._rate, "burst", "256kb", "latency", "50ms"]
                for where, interface in ((_SWITCH, f"to_{name}"), (name, f"to_{_SWITCH}")):
                    self._run(where, "tc", "qdisc", "add", "dev", interface, "root", *limit)

    def _number(self, name: str) -> int:
        return len(self._hosts) if name == COORDINATOR else self._hosts.index(name)

    def _route(self, verb: str, one: str, other: str) -> None:
        for sender, receiver in ((one, other), (other, one)):
            way = ["from", self.address(sender), "to", self.address(receiver), "blackhole"]
            self._run(_SWITCH, "ip", "rule", verb, *way)


class Meters:
    """Relays on loopback, one for each host, that count the bytes of its connections; a context manager.

    Parameters
    ----------
    ports : dict of str to int
        The port of each host on 127.0.0.1.
    """

    what = "bytes in the connections, without headers"

    def __init__(self, ports: dict[str, int]):
        self._ports = ports
        self._out = self._back = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listening: dict[str, int] = {}

    def __enter__(self) -> "Meters":
        self._thread.start()
        for name, port in self._ports.items():
            listener = asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(10)
            self._listening[name] = listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def port(self, name: str) -> int:
        """Return the port of 127.0.0.1 that is relayed to a host."""
        return self._listening[name]

    def count(self) -> Count:
        """Return the bytes until now."""
        return Count(self._out, self._back)

    async def _listen(self, port: int) -> asyncio.Server:
        async def join(reader, writer):
            try:
                host_reader, host_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(self._carry(reader, host_writer, "_out"), self._carry(host_reader, writer, "_back"))

        return await asyncio.start_server(join, "127.0.0.1", 0)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: str) -> None:
        try:
            while data := await reader.read(1 << 18):
                setattr(self, counter, getattr(self, counter) + len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
