"""Results file of a sweep: JSON lines, resumable. Enters: jobs and rows. Leaves: a file with a line
for each.

A line is added when a job is finished. A sweep that was killed may leave part of a line at the end:
it is cut off before the next is added. What does not belong to the sweep at hand stays in the file.
Failed jobs are not kept, so that they are tried again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.files import require_writable
from meshwright.search.jobs import Job, JobRow


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    row: JobRow


class Results:
    """The file of one sweep."""

    def __init__(self, path: str) -> None:
        require_writable(path)
        self.path = Path(path)

    def load(self) -> dict[Job, JobRow]:
        """What earlier sweeps have finished."""
        if not self.path.exists():
            return {}
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            lines = [msgspec.json.decode(line, type=_Line) for line in whole.splitlines()]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(
                f"results {str(self.path)!r} cannot be read ({error})",
                "delete the file to start anew, or name another",
            ) from None
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return {line.job: line.row for line in lines}

    def add(self, job: Job, row: JobRow) -> None:
        """Write a line at the end of the file."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(_Line(job=job, row=row)) + b"\n")
