"""Programs that attack the sandbox. Each prints GOT, and what, when it has got somewhere.

``@target@`` is a path outside the scratch folder, ``@secret@`` a file with the expected answer,
``@port@`` a listening port of the test, ``@parent@`` the test's process id, ``@package@`` the folder
of our own code. A program ends normally when its attack is refused, so the refusal is what is tested.
"""

REFUSED = "    pass\n"


def attempt(body: str, found: str = "it") -> str:
    """A program that tries ``body`` and prints GOT if no error stopped it."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"try:\n{lines}\n    print('GOT {found}')\nexcept BaseException as error:\n{REFUSED}"


LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"

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
    "datagram to a path": attempt(
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "a.sendto(b'x', @target@ + '.socket')"
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
    "report of a fraction over zero": "import os\nos.write(3, b'v[{\"fraction\": [1, 0]}]')\nos._exit(0)",
}
"""Call-form programs (function f of one argument) that want a pass they do not deserve."""
