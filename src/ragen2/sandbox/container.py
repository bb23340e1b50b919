"""A program in a container, or in gVisor: what a runtime that follows the OCI standard is told.

docker brings runc, podman brings crun, gVisor is runsc. Each takes a folder with a ``config.json``, so that
no image and no daemon is needed: the container's files are the interpreter's library and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen2.runs.files import cache_root, write_atomically

RUNTIMES = ("runsc", "crun", "runc")
_OPTIONS = {
    "runsc": ("--network=none", "--ignore-cgroups"),
    "crun": ("--cgroup-manager=disabled",),
}
"""Our own limits hold; groups of processes are the administrator's."""
DIE_TOGETHER = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,9,0,0,0)\n"
    "if os.getppid()==int(sys.argv[1]): os.execv(sys.argv[2],sys.argv[2:])\n"
)
"""Python that becomes a runtime which the kernel kills when process 1 of its arguments ends.

The container ends with its runtime."""
_NAME = re.compile(r"ragen2-(\d+)-[0-9a-f]{32}")
_NOBODY = 65534
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")


def command(runtime: str, config: str, links: tuple[tuple[str, str], ...]) -> list[str]:
    """The command line that runs a new container of ``config`` with these symbolic links in it."""
    _sweep(runtime)
    bundle = _bundle(config, links)
    name = f"ragen2-{os.getpid()}-{uuid.uuid4().hex}"
    return [*_with_state(runtime, f"{bundle}/state"), "run", "--bundle", bundle, name]


def configuration(
    runtime: str, inside: list[str], variables: dict[str, str], mounts: list[dict[str, Any]]
) -> str:
    """The container that runs ``inside`` with nothing but ``mounts``, as JSON.

    Root starts it as another user; anyone else as the only user of a namespace, without rights.
    """
    # gVisor mounts its own /proc unless told otherwise; the others need theirs to start.
    kind = "tmpfs" if _is_gvisor(runtime) else "proc"
    mounts = [mount(kind, kind, "/proc", "ro"), *mounts]
    user, group = os.geteuid(), os.getegid()
    inner = 0 if user else _NOBODY
    process = {
        "user": {"uid": inner, "gid": inner},
        "args": inside,
        "env": [f"{name}={value}" for name, value in variables.items()],
        "cwd": "/",
        "noNewPrivileges": True,
        "capabilities": {},
    }
    linux: dict[str, Any] = {"namespaces": [{"type": kind} for kind in _NAMESPACES]}
    if user and not _is_gvisor(runtime):
        linux["namespaces"].append({"type": "user"})
        linux["uidMappings"] = [{"containerID": 0, "hostID": user, "size": 1}]
        linux["gidMappings"] = [{"containerID": 0, "hostID": group, "size": 1}]
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": "rootfs", "readonly": True},
            "hostname": "sandbox",
            "mounts": mounts,
            "linux": linux,
        }
    )


def mount(kind: str, source: str, target: str, *options: str) -> dict[str, Any]:
    """One entry of a container's mounts."""
    return {"destination": target, "type": kind, "source": source, "options": ["nosuid", *options]}


def _with_state(runtime: str, folder: str) -> list[str]:
    options = [runtime, "--root", folder, *_OPTIONS.get(os.path.basename(runtime), ())]
    return [*options, "--rootless"] if _is_gvisor(runtime) and os.geteuid() else options


@lru_cache(maxsize=4)
def _sweep(runtime: str) -> None:
    """Remove what is left of the containers of processes that were killed together with their runtime."""
    for entry in (cache_root() / "containers").glob("*/state/*"):
        found = _NAME.search(entry.name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            line = [*_with_state(runtime, str(entry.parent)), "delete", "--force", found[0]]
            subprocess.run(line, capture_output=True, check=False)  # noqa: S603 - our own command line
            shutil.rmtree(entry, ignore_errors=True)


def _is_gvisor(runtime: str) -> bool:
    return os.path.basename(runtime) == "runsc"


@lru_cache(maxsize=8)
def _bundle(config: str, links: tuple[tuple[str, str], ...]) -> str:
    """The folder of a container. Its name follows from its content, so that it is made once."""
    name = hashlib.blake2b(f"{config}{links}".encode(), digest_size=16).hexdigest()
    folder = cache_root() / "containers" / name
    root = folder / "rootfs"
    for entry in json.loads(config)["mounts"]:
        place = Path(f"{root}{entry['destination']}")
        if entry["type"] == "bind" and not os.path.isdir(entry["source"]):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        else:
            place.mkdir(parents=True, exist_ok=True)
        if "mode=777" in entry["options"]:
            place.chmod(0o777)  # runc gives what it mounts the mode of the folder beneath
    for path, target in links:
        if not os.path.lexists(f"{root}{path}"):
            os.symlink(target, f"{root}{path}")
    if not (folder / "config.json").exists():
        write_atomically(folder / "config.json", config)
    return str(folder)
