"""Entry point of the console command: picks the task, hands the rest of the line to Hydra."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from otdd_flash import __version__
from otdd_flash.cli.exit_codes import ExitCode
from otdd_flash.cli.streams import usable_streams, write_stdout
from otdd_flash.cli.tasks import TASKS
from otdd_flash.cli.threads import share_processors

_USAGE = """\
otdd: compare labelled data sets by optimal transport

usage: otdd TASK [key=value ...]
       otdd TASK --help      every option of the task, with its value
       otdd --version

tasks:
{tasks}

examples:
  otdd distance experiment=demo
  otdd distance source=mnist target=fashion_mnist max_samples=2000 data_root=DIR
  otdd distance --multirun source=mnist target=fashion_mnist labels=gaussian,means output=json

exit codes: 0 done, 1 error, 2 usage, 3 gate of otdd check exceeded, 4 not converged under strict=true
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``otdd`` with ``argv`` (default: the process's arguments) and return its exit code."""
    share_processors()
    with usable_streams():
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(arguments: list[str]) -> int:
    if not arguments:
        sys.stderr.write(usage())
        return ExitCode.USAGE
    name, *rest = arguments
    if name in ("-h", "--help"):
        write_stdout(usage())
        return ExitCode.OK
    if name == "--version":
        write_stdout(f"otdd-flash {__version__}\n")
        return ExitCode.OK
    if name not in TASKS:
        guess = "".join(f"did you mean {near}? " for near in difflib.get_close_matches(name, TASKS, n=1))
        known = f"{guess}Tasks are {', '.join(TASKS)}" if guess else f"tasks are {', '.join(TASKS)}"
        sys.stderr.write(f"otdd: error: unknown task {name!r}; {known} (see 'otdd --help')\n")
        return ExitCode.USAGE

    from otdd_flash.cli.app import run_task

    return run_task(TASKS[name], rest)


def usage() -> str:
    """The text of ``otdd --help``."""
    width = max(map(len, TASKS))
    tasks = "\n".join(f"  {task.name:<{width}}  {task.summary}" for task in TASKS.values())
    return _USAGE.format(tasks=tasks)


if __name__ == "__main__":
    sys.exit(main())
