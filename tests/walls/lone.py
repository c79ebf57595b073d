"""Runs one hostile handler behind the walls of a level, without one of them: `lone.py LEVEL ROOT TMP FILE WITHOUT`."""

import os
import runpy
import sys

from echofn.walls import landlock, levels, seccomp

level, root, tmp, file, without = sys.argv[1:]
if without == "calls":
    seccomp.confine = lambda *_, **__: None
if without == "landlock":
    landlock.restrict = lambda *_: None
source = os.path.join(root, file)
parent = os.getpid()
pid = os.fork()
if pid == 0:
    levels.raise_walls(levels.Order(level, root, tmp), parent)
    try:
        print(runpy.run_path(source)["handler"](), flush=True)
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
