"""Programs that attack the sandbox. Each prints GOT, and what, when it has got somewhere.

``@target@`` is a path outside the scratch folder, ``@secret@`` a file with the expected answer,
``@port@`` a listening port of the test, ``@parent@`` the test's process id, ``@package@`` the folder
of our own code. A program ends normally when its attack is refused, so the refusal is what is tested.
"""

import os

REFUSED = "    pass\n"


def attempt(body: str, found: str = "it") -> str:
    """A program that tries ``body`` and prints GOT if no error stopped it."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"try:\n{lines}\n    print('GOT {found}')\nexcept BaseException as error:\n{REFUSED}"


LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"

SUBINTERPRETER = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
interpreters.run_string(interpreters.create(), {!r})
"""
"""Audit hooks and patched modules stay in the interpreter that has them; this starts another."""

DATAGRAM = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.sendto.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int] + [
    ctypes.c_void_p, ctypes.c_int]
name = (1).to_bytes(2, "little") + {0}
page = libc.mmap(0x200000000, 4096, 3, 0x32, -1, 0)
ctypes.memmove({1}, name, len(name))
one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
if libc.sendto(one.fileno(), b"x", 1, 0, {1}, len(name)) == 1:
    print("GOT a datagram out")
"""
"""Sends to a name at an address of our choice: a filter sees only half of it at a time."""

ATTACKS: dict[str, str] = {
    # processes
    "fork bomb": """
import os
made = 0
try:
    while True:
        if os.fork() == 0:
            while True:
                os.fork()
        made += 1
        if made > 5:
            print("GOT processes", flush=True)
except OSError:
    pass
""",
    "start a program": attempt("import subprocess\nsubprocess.run(['/bin/true'], check=True)"),
    "shell": attempt("import os\nassert os.system('true') == 0"),
    "replace itself": attempt(
        "import os, sys\nos.execv('/bin/sh', ['sh', '-c', 'echo GOT shell'])"
    ),
    "daemon that outlives us": """
import os, time
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
            open(@target@, "w").write("alive")
        os._exit(0)
    print("GOT a daemon")
except BaseException:
    pass
""",
    "zombie children": """
import os
try:
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)
    print("GOT zombies")
except BaseException:
    pass
""",
    "fork through libc": LIBC + "pid = libc.fork()\nif pid > 0: print('GOT a process')",
    "multiprocessing": attempt(
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()"
    ),
    "thread bomb": """
import threading, time
count = 0
try:
    while count < 5000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
    print("GOT", count, "threads")
except BaseException:
    pass
""",
    # signals
    "kill the parent": attempt("import os\nos.kill(os.getppid(), 9)\nimport time; time.sleep(0.2)"),
    "kill the trainer": attempt("import os\nos.kill(@parent@, 9)"),
    "kill everyone": attempt("import os\nos.kill(-1, 9)"),
    "kill the group": attempt("import os\nos.killpg(os.getpgid(os.getppid()), 9)"),
    "kill through libc": LIBC + "if libc.kill(@parent@, 0) == 0: print('GOT a signal through')",
    "signals ignored": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    # time, memory, output, disk
    "endless loop": "while True:\n    pass",
    "endless sleep": "import time\ntime.sleep(3600)",
    "endless C call": "x = 10 ** 8\nprint(len(str(7 ** x)))",
    "endless exit function": "import atexit\n@atexit.register\ndef f():\n    while True: pass",
    "endless wait on standard input": "import sys, os\nwhile True:\n    os.read(0, 1)",
    "closed descriptors, then a loop": "import os\nos.closerange(0, 99)\nwhile True: pass",
    "memory bomb": attempt("x = bytearray(1 << 20)\nwhile True: x = x + x", "memory"),
    "memory bomb of lists": attempt("x = []\nwhile True: x.append([0] * 100000)", "memory"),
    "memory through mmap": attempt("import mmap\nmmap.mmap(-1, 8 << 30)", "memory"),
    "endless output": "while True:\n    print('GOT' if False else 'x' * 4096)",
    "endless errors": "import sys\nwhile True:\n    sys.stderr.write('x' * 4096)",
    "huge file": attempt(
        "f = open('f', 'wb')\nfor _ in range(64): f.write(b'x' * (1 << 20))\nf.flush()"
    ),
    "many files": """
i = 0
while i < 10**6:
    open(f"f{i}", "w").write("x" * 4096)
    i += 1
print("GOT files")
""",
    "raise own limits": attempt(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nx = bytearray(1 << 30)"
    ),
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\nf = lambda n: f(n + 1)\nf(0)",
    "crash": LIBC + "ctypes.string_at(0)",
    "deep nesting in the source": "x = " + "(" * 5000 + ")" * 5000,
    # files
    "read the password file": attempt("assert open('/etc/passwd').read()", "/etc"),
    "read the expected answer": attempt("print(open(@secret@).read())", "the answer"),
    "read our own code": attempt("print(open(@package@ + '/__init__.py').read())", "code"),
    "import our own code": attempt(
        "import sys\nsys.path.insert(0, @package@ + '/..')\n"
        "sys.modules.pop('ragen2', None)\nfrom ragen2.envs.deepcoder.problems import own_problem"
    ),
    "list the home folder": attempt("import os\nassert os.listdir('/root') + os.listdir('/home')"),
    "memory of the trainer": attempt("open('/proc/@parent@/mem', 'rb').read(1)"),
    "report channel of the supervisor": attempt(
        "import os\nopen(f'/proc/{os.getppid()}/fd/1', 'wb').write(b'ok 1 3 0 0\\n42\\n')"
    ),
    "write elsewhere": attempt("open(@target@, 'w').write('x')"),
    "write elsewhere through libc": LIBC
    + "fd = libc.open(@target@.encode(), 0o101, 0o644)\nif fd >= 0: print('GOT a file')",
    "write above the scratch folder": attempt("open('../attack', 'w').write('x')"),
    "change folder and write": attempt(
        "import os\nos.chdir('/tmp')\nopen('attack', 'w').write('x')"
    ),
    "symbolic link": attempt("import os\nos.symlink('/etc/passwd', 'l')\nassert open('l').read()"),
    "symbolic link to write": attempt("import os\nos.symlink(@target@, 'l')\nopen('l', 'w')"),
    "hard link": attempt("import os\nos.link(@secret@, 'l')\nprint(open('l').read())"),
    "rename a foreign file": attempt("import os\nos.rename(@secret@, 'mine')"),
    "delete a foreign file": attempt("import os\nos.remove(@secret@)"),
    "change a foreign file's mode": attempt("import os\nos.chmod(@secret@, 0o777)"),
    "named pipe": attempt("import os\nos.mkfifo('p')\nopen('p').read()"),
    "shared memory left behind": attempt(
        "from multiprocessing import shared_memory\n"
        "shared_memory.SharedMemory('ragen2attack', True, 4096)"
    ),
    "system V memory left behind": LIBC
    + "if libc.shmget(0x7261, 4096, 0o1666) >= 0: print('GOT a segment')",
    # around the interpreter
    "shell of a subinterpreter": SUBINTERPRETER.format("import os; os.system('echo GOT a shell')"),
    "files of a subinterpreter": SUBINTERPRETER.format(
        "print('GOT', open('/etc/passwd').readline(), flush=True)"
    ),
    "socket of a subinterpreter": SUBINTERPRETER.format(
        "import _socket; _socket.socket(); print('GOT a socket', flush=True)"
    ),
    "descriptors left open": """
import os
for descriptor in range(4, 256):
    try:
        os.fstat(descriptor)
        print("GOT descriptor", descriptor)
    except OSError:
        pass
""",
    "program in memory": attempt(
        "import os\nfd = os.memfd_create('x')\nos.write(fd, b'#!/bin/sh\\necho GOT it')\n"
        "os.execve(fd, ['x'], {})"
    ),
    # more than the disk limit, where a look at the folder does not show it
    "unlinked files, mapped": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
size, kept = 1 << 20, 0
try:
    while kept < 64:
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x" * size)
        assert libc.mmap(None, size, 3, 1, fd, 0) not in (None, 2**64 - 1)
        os.unlink("f")
        os.close(fd)
        kept += 1
        if kept > 16:
            print("GOT", kept, "MB", flush=True)
except BaseException:
    pass
""",
    "unlinked files, open": """
import os
kept = []
try:
    while len(kept) < 32:
        kept.append(os.open("f", os.O_RDWR | os.O_CREAT))
        os.unlink("f")
        for _ in range(16):
            os.write(kept[-1], b"x" * (1 << 16))
        if len(kept) > 16:
            print("GOT", len(kept), "MB", flush=True)
except BaseException:
    pass
""",
    "files without a name": attempt(
        "import os\nkept = []\nfor _ in range(20):\n"
        "    kept.append(os.open('.', os.O_TMPFILE | os.O_RDWR))\n"
        "    assert os.write(kept[-1], b'x' * (1 << 20)) == 1 << 20"
    ),
    "empty files without end": """
import os
made = 0
try:
    while made < 20000:
        os.close(os.open(f"f{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
    print("GOT", made, "files")
except BaseException:
    pass
""",
    "standard input as a disk": attempt(
        "import os\nfor _ in range(64): assert os.write(0, b'x' * (1 << 20)) == 1 << 20"
    ),
    # what is on the machine
    "size of a foreign file": attempt("import os\nprint(os.stat(@secret@).st_size)", "a size"),
    "existence of a foreign file": attempt("import os\nassert os.path.exists(@secret@)"),
    "existence told by an error": attempt(
        "try:\n    open(@secret@)\nexcept PermissionError:\n    pass"
    ),
    "names in the root folder": attempt("import os\nassert 'home' in os.listdir('/')"),
    "space on the disk": attempt("import os\nassert os.statvfs(@secret@).f_blocks"),
    "space on the disk of the library": attempt(
        "import os\nassert os.statvfs(os.__file__).f_bfree"
    ),
    "memory in the buffers of sockets": """
import socket
held, pairs = 0, []
try:
    while True:
        pairs.append(socket.socketpair())
        for one in pairs[-1]:
            one.setblocking(False)
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            except OSError:
                pass
            try:
                while held < 200 << 20: held += one.send(bytes(1 << 16))
            except BlockingIOError:
                pass
except OSError:
    pass
if held > 64 << 20: print("GOT", held)
""",
    "files through the first process": attempt("print(open('/proc/1/root' + @secret@).read())"),
    "kernel settings": attempt("open('/proc/sys/kernel/core_pattern', 'w').write('|/x')"),
    "devices": attempt("import os\nassert [n for n in os.listdir('/sys/class') if n]"),
    "namespaces of the first process": LIBC
    + "import os\nfd = os.open('/proc/1/ns/mnt', 0)\nif libc.setns(fd, 0) == 0: print('GOT it')",
    "type into the terminal": attempt(
        "import fcntl\nfor fd in (0, 1, 2): fcntl.ioctl(fd, 0x5412, b'x')"
    ),
    "folders within folders": attempt("import os\nos.makedirs('a/b/c')"),
    # environment and network
    "environment variables": (
        "import os\nprint(dict(os.environ))\nprint(os.environb if hasattr(os, 'environb') else '')"
    ),
    "environment of the parents": """
import os
for pid in ("self", os.getppid(), @parent@):
    try:
        print("GOT", open(f"/proc/{pid}/environ").read())
    except BaseException:
        pass
""",
    "TCP connection": attempt("import socket\nsocket.create_connection(('127.0.0.1', @port@), 1)"),
    "UDP packet": attempt(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', ('127.0.0.1', @port@))"
    ),
    "listen": attempt("import socket\nsocket.create_server(('127.0.0.1', 0))"),
    "name look-up": attempt(
        "import socket\nsocket.getaddrinfo('example.com', 80)\nsocket.socket()"
    ),
    "abstract socket": attempt(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(chr(0) + 'ragen2-attack-@port@')"
    ),
    "socket through libc": LIBC + "if libc.socket(2, 1, 0) >= 0: print('GOT a socket')",
    "datagram to a path": DATAGRAM.format("@target@.encode() + b'.socket' + bytes(1)", 0x200000001),
    "datagram to a path, by a round address": DATAGRAM.format(
        "@target@.encode() + b'.socket' + bytes(1)", 0x200000000
    ),
    "datagram to an abstract name": DATAGRAM.format("b'\\x00ragen2-datagram-@port@'", 0x200000000),
    "socket pair of another family": attempt(
        "import socket\nfor family in range(2, 46):\n    try:\n"
        "        socket.socketpair(family, socket.SOCK_SEQPACKET)\n"
        "    except PermissionError:\n        continue\n    except OSError:\n"
        "        print('GOT an attempt at family', family)\n        break\nelse:\n    raise OSError"
    ),
    # the kernel
    "new namespaces": LIBC + "if libc.unshare(0x10000000) == 0: print('GOT a namespace')",
    "mount": LIBC + "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0: print('GOT a mount')",
    "trace the parent": LIBC
    + "import os\nif libc.ptrace(16, os.getppid(), 0, 0) == 0: print('GOT a tracee')",
    "become root": attempt("import os\nos.setuid(0)\nos.setgroups([0])"),
    "chroot": attempt("import os\nos.chroot('.')"),
    "signal by descriptor owner": attempt(
        "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 8, @parent@)\nfcntl.fcntl(r, 10, 9)"
    ),
}
"""Stdin-form programs by what they try."""

HARMLESS = (
    *("start a program", "shell", "replace itself", "zombie children", "fork through libc"),
    *("memory through mmap", "huge file", "read the password file", "read the expected answer"),
    *(
        "read our own code",
        "import our own code",
        "write elsewhere",
        "write elsewhere through libc",
    ),
    *("write above the scratch folder", "symbolic link", "symbolic link to write", "hard link"),
    *("environment of the parents", "TCP connection", "UDP packet", "listen", "abstract socket"),
    *("space on the disk of the library", "memory in the buffers of sockets"),
    *("socket through libc", "kill through libc", "thread bomb", "datagram to a path"),
    *("datagram to a path, by a round address", "datagram to an abstract name"),
    "socket pair of another family",
    *("shell of a subinterpreter", "files of a subinterpreter", "unlinked files, mapped"),
    *("unlinked files, open", "files without a name", "size of a foreign file"),
    *("existence of a foreign file", "space on the disk", "names in the root folder"),
)
"""Attacks that may be let loose for a moment, to see that they are attacks."""

SEEN_WITHOUT_MOUNTS = (
    "size of a foreign file",
    "existence of a foreign file",
    "existence told by an error",
)
"""What Landlock does not hide, where a sandbox cannot have a file system of its own."""

_CALLS = (
    "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, "
    "init_module 175 105, finit_module 313 273, kexec_load 246 104, bpf 321 280, "
    "perf_event_open 298 241, io_uring_setup 425 425, userfaultfd 323 282, keyctl 250 219, "
    "add_key 248 217, unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, "
    "open_tree 428 428, move_mount 429 429, fsopen 430 430, fsmount 432 432, mount_setattr 442 442, "
    "pivot_root 155 41, chroot 161 51, memfd_create 319 279, execve 59 221, execveat 322 281, "
    "fork 57 -, vfork 58 -, open_by_handle_at 304 265, name_to_handle_at 303 264, openat2 437 437, "
    "pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424, tkill 200 130, "
    "rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, socket 41 198, connect 42 203, bind 49 200, "
    "sendmsg 46 211, sendmmsg 307 269, mq_open 240 180, shmget 29 194, semget 64 190, msgget 68 186, "
    "inotify_init1 294 26, fanotify_init 300 262, setuid 105 146, setresuid 117 147, setgroups 116 159, "
    "capset 126 91, personality 135 92, sethostname 170 161, settimeofday 164 170, "
    "clock_settime 227 112, adjtimex 159 171, syslog 103 116, sched_setaffinity 203 122, "
    "setpriority 141 140, ioprio_set 251 30, quotactl 179 60, swapon 167 224, reboot 169 142, "
    "iopl 172 -, ioperm 173 -, acct 163 89, mkdirat 258 34, symlinkat 266 36, linkat 265 37, "
    "mknodat 259 33, fchmodat 268 53, fchownat 260 54, utimensat 280 88, setxattr 188 5, truncate 76 45, "
    "timer_create 222 107, seccomp 317 277, prctl 157 167, landlock_create_ruleset 444 444, "
    "vmsplice 278 75, splice 275 76, mlock 149 228, setsid 112 157, setpgid 109 154, "
    "fchdir 81 50, memfd_secret 447 447, process_madvise 440 440, clone3 435 435, "
    "setsockopt 54 208, statfs 137 43, fstatfs 138 44"
)
CALLS = {
    name: numbers[os.uname().machine == "aarch64"]
    for name, *numbers in (entry.split() for entry in _CALLS.split(", "))
    if numbers[os.uname().machine == "aarch64"] != "-"
}
"""System calls that no program needs, by number on this machine."""

ALL_CALLS = (
    LIBC
    + f"""
for name, number in {CALLS!r}.items():
    ctypes.set_errno(0)
    if libc.syscall(int(number), 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):
        print("GOT", name, flush=True)
"""
)
"""Makes each of them; a call that is not refused as such (EPERM, ENOSYS) was reached."""

FORGERIES: dict[str, str] = {
    "print the verdict": "print('{\"passed\": true, \"reward\": 1.0}')\ndef f(x): print('ok'); return True",
    "return an object equal to everything": """
class Same:
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return Same()
""",
    "return a text equal to everything": """
class Same(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return Same("x")
""",
    "return a list equal to everything": """
class Same(list):
    def __eq__(self, other): return True
    def __len__(self): return 1
    def __iter__(self): return iter([True])
def f(x): return Same()
""",
    "write a report on every descriptor": """
import os
for fd in range(1, 64):
    for report in (b"ok 1 0 4 0\\n[42]", b"v[true]", b"o", b'{"passed": true}'):
        try:
            os.write(fd, report)
        except OSError:
            pass
os._exit(0)
""",
    "replace the writer of values": """
import sys
for name in list(sys.modules):
    if name.startswith("ragen2"):
        for key in list(vars(sys.modules[name])):
            try:
                setattr(sys.modules[name], key, lambda *a, **k: "true")
            except BaseException:
                pass
def f(x): return 1
""",
    "replace comparisons": """
import builtins, os, sys
builtins.isinstance = lambda *a: True
builtins.all = builtins.any = lambda *a: True
os._exit = lambda code: None
def f(x): return True
""",
    "look for the answer in memory": """
import gc
def f(x):
    for thing in gc.get_objects():
        for text in (thing.values() if isinstance(thing, dict) else [thing]):
            if isinstance(text, str) and "ANSWER" in text and "look" not in text and len(text) < 99:
                return text
    return [t for t in gc.get_objects() if isinstance(t, (list, tuple)) and "ANSWER" in str(t)[:999]][:1]
""",
    "look for the answer in the stack": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, dict) and "accepted" in value:
                return value["accepted"]
        frame = frame.f_back
    return None
""",
    "feign a failed sandbox": "import os\nos.write(3, b'!OSError: no sandbox')\nos._exit(1)",
    "leave before the question": "import os\nos._exit(0)",
    "leave in the answer": "import sys\ndef f(x): sys.exit(0)",
    "hang in the error's text": """
class Bad(Exception):
    def __str__(self):
        while True: pass
def f(x): raise Bad
""",
    "raise in the error's text": """
class Bad(BaseException):
    def __str__(self): raise Bad
def f(x): raise Bad
""",
    "endless value": """
class Endless(list):
    def __iter__(self):
        while True: yield 1
def f(x): return Endless([1])
""",
    "value that contains itself": "def f(x):\n    x = []\n    x.append(x)\n    return x",
    "value that doubles": "def f(x):\n    for _ in range(60): x = [x, x]\n    return x",
    "value nested deep": "def f(x):\n    for _ in range(900): x = [x]\n    return x",
    "members with equal hashes": "def f(x): return {i * (2**61 - 1) for i in range(2, 30000)}",
    "long integer": "def f(x): return 1 << 3000000",
    "value too long": "def f(x): return 'x' * (1 << 26)",
    "broken report": "import os\nos.write(3, b'v' + b'[' * 100000)\nos._exit(0)",
    "report with an unknown type": 'import os\nos.write(3, b\'v[{"__import__": "os"}]\')\nos._exit(0)',
    "report of an empty array": "import os\nos.write(3, b'v{\"array\":[]}')\nos._exit(0)",
    "report of a huge bytearray": "import os\nos.write(3, b'v{\"bytearray\":99999999999}')\nos._exit(0)",
    "decimal that cannot be compared": "from decimal import Decimal\ndef f(x): return [Decimal('sNaN')]",
    "report of a fraction over zero": "import os\nos.write(3, b'v[{\"fraction\": [1, 0]}]')\nos._exit(0)",
}
"""Call-form programs (function f of one argument) that want a pass they do not deserve."""
