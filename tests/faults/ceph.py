"""A one-node Ceph RADOS Gateway with cephx, made from Debian's packages in a folder of its own.

    apt-get install --no-install-recommends ceph-mon ceph-osd ceph-mgr radosgw

One monitor, one manager, one OSD on a sparse 4 GiB file, one gateway; all on loopback, gone afterwards.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults.servers import credentials, free_port, running

PROGRAMS = ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin", "ceph-authtool", "monmaptool")
COMMAND_S = 60.0
START_S = 90.0

CONFIG = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
public network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
keyring = {folder}/$name.keyring
crash dir = {folder}
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
mon allow pool size one = true
mon max pg per osd = 1000
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = 4294967296
bluestore block create = true
rgw rados pool pg num min = 8
rgw frontends = beast endpoint=127.0.0.1:{http}
"""


def why_no_ceph() -> str | None:
    """Return why the gateway cannot be brought up here, None when it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"Debian packages ceph-mon ceph-osd ceph-mgr radosgw are not installed (no {', '.join(missing)})"
    if os.geteuid() != 0:
        return "the Ceph gateway is brought up as root only"
    return None


def ceph_version() -> str:
    """Return the gateway's version, such as 16.2.15."""
    told = subprocess.run(["radosgw", "--version"], capture_output=True, text=True, timeout=COMMAND_S, check=True)
    return told.stdout.split()[2]


class _Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsid = str(uuid.uuid4())
        self.http = free_port()
        self.v1, self.v2 = free_port(), free_port()
        self.config = folder / "ceph.conf"
        self.config.write_text(CONFIG.format(fsid=self.fsid, folder=folder, v1=self.v1, v2=self.v2, http=self.http))

    def run(self, *command: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=COMMAND_S, cwd=self.folder, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def admin(self, *command: str, stdin: str | None = None) -> str:
        return self.run("ceph", "-c", str(self.config), "--connect-timeout", "30", *command, stdin=stdin)

    def prepare_monitor(self) -> None:
        keyring, admin, monmap = "mon.a.keyring", "client.admin.keyring", "monmap"
        self.run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        caps = [part for service in ("mon", "osd", "mgr") for part in ("--cap", service, "allow *")]
        self.run("ceph-authtool", "--create-keyring", admin, "--gen-key", "-n", "client.admin", *caps)
        self.run("ceph-authtool", keyring, "--import-keyring", admin)
        address = f"[v2:127.0.0.1:{self.v2},v1:127.0.0.1:{self.v1}]"
        self.run("monmaptool", "--create", "--addv", "a", address, "--fsid", self.fsid, monmap)
        self.run("ceph-mon", "-c", "ceph.conf", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", keyring)

    def keyring(self, name: str, *caps: str) -> None:
        (self.folder / f"{name}.keyring").write_text(self.admin("auth", "get-or-create", name, *caps))

    def prepare_osd(self) -> None:
        (self.folder / "osd").mkdir()
        osd_id = str(uuid.uuid4())
        self.admin("osd", "new", osd_id)
        self.keyring("osd.0", "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *")
        self.run("ceph-osd", "-c", "ceph.conf", "-i", "0", "--mkfs", "--osd-uuid", osd_id)

    def daemon(self, *command: str) -> list[str]:
        return [*command, "-f", "-c", str(self.config), "--setuser", "root", "--setgroup", "root"]

    def wait_for_osd(self) -> None:
        deadline = time.monotonic() + START_S
        while "1 up" not in self.admin("osd", "stat"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the OSD did not come up: {self.admin('-s')}")
            time.sleep(0.5)


@contextmanager
def ceph(logs: Path) -> Iterator[str]:
    """Yield the endpoint of a gateway; the environment holds the credentials of a user there meanwhile."""
    access, secret = secrets.token_hex(10), secrets.token_hex(20)
    with tempfile.TemporaryDirectory(prefix="dw-ceph-") as name, ExitStack() as stack:
        cluster = _Cluster(Path(name))  # sockets' paths must be short, and pytest's folders are not
        cluster.prepare_monitor()
        stack.enter_context(running(cluster.daemon("ceph-mon", "-i", "a"), cluster.v2, logs / "mon.log"))
        cluster.keyring("mgr.x", "mon", "allow profile mgr", "osd", "allow *")
        stack.enter_context(running(cluster.daemon("ceph-mgr", "-i", "x"), None, logs / "mgr.log"))
        cluster.prepare_osd()
        stack.enter_context(running(cluster.daemon("ceph-osd", "-i", "0"), None, logs / "osd.log"))
        cluster.wait_for_osd()
        cluster.keyring("client.rgw", "mon", "allow rw", "osd", "allow rwx")
        gateway = cluster.daemon("radosgw", "-n", "client.rgw")
        stack.enter_context(running(gateway, cluster.http, logs / "rgw.log", START_S))
        user = ["user", "create", "--uid=test", "--display-name=test"]
        cluster.run("radosgw-admin", "-c", "ceph.conf", *user, f"--access-key={access}", f"--secret-key={secret}")
        stack.enter_context(credentials(access, secret))
        yield f"http://127.0.0.1:{cluster.http}"
