"""nbgrader's exchange, where students are not trusted: what is collected is a student's own file,
and nothing else.

Students write into the exchange under names and with files of their own choice. nbgrader's own
collection warns of a submission in another's name and takes it, follows links with the lecturer's
rights (to the answer key, say), and ends for the whole class at a name or a file that it cannot
read. What stands here leaves such things out and says so.

Installed as /etc/jupyter/course_exchange.py: it imports nbgrader and nothing of the course.
"""

from __future__ import annotations

import datetime
import glob
import os
import pwd
import re
import secrets
import stat
from pathlib import Path
from typing import Any

from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from traitlets import Unicode

# of a notebook; one more is copied, so that grading sees that it is too large
LARGEST_BYTES = 20 * 2**20
CLOCK_S = 600  # by how much the time in a submission's name may lie before the folder's own
TIMESTAMP, SECRET = "timestamp.txt", "submission_secret.txt"

_SECRET = re.compile(r"[0-9a-f]{128}")


class Refused(Exception):
    """A file is not the student's own plain file; the text says what it is instead."""


class Collect(ExchangeCollect):
    """Collects the newest submission of each student that is theirs by the owner of its folder.

    Of it the notebook is taken, by its name, and the secret under which the page will be returned;
    no link is followed and no file of another owner is read.
    """

    owner_prefix = Unicode(
        "", help="what stands before a student's name in the name of the local user"
    ).tag(config=True)

    src_records: list[dict[str, Any]]

    def init_src(self) -> None:
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]

    def _path_to_record(self, path: str) -> dict[str, Any]:
        """Return nbgrader's record of a submission, with no user name where it is nobody's to
        collect.
        """
        try:
            record = super()._path_to_record(path)
            information = os.lstat(path)
        except (ExchangeError, ValueError, OverflowError, OSError) as error:
            self.log.warning("left out %s: its name is none that nbgrader gives (%s)", path, error)
            return {
                "username": "",
                "filename": os.path.basename(path),
                "timestamp": datetime.datetime.min,
            }
        reason = _not_theirs(information, self.owner_prefix + record["username"])
        if reason:
            self.log.warning("left out %s: %s", path, reason)
            return record | {"username": ""}
        changed = datetime.datetime.fromtimestamp(information.st_ctime, datetime.UTC).replace(
            tzinfo=None
        )
        if (changed - record["timestamp"]).total_seconds() > CLOCK_S:
            self.log.warning(
                "%s is named as handed in at %s, its folder was last changed at %s (UTC)",
                path,
                record["timestamp"],
                changed,
            )
        return record

    def do_copy(self, src: str, dest: str, log: object = None) -> None:  # noqa: ARG002
        """Copy the notebook of a submission, the secret, and the time that its name states."""
        folder = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            owner = os.fstat(folder).st_uid
            if _not_theirs(
                os.fstat(folder), self.owner_prefix + os.path.basename(src).rsplit("+", 3)[0]
            ):
                self.log.warning("left out %s: it was exchanged while it was collected", src)
                return
            target = Path(dest)
            target.mkdir()
            notebook = f"{self.coursedir.assignment_id}.ipynb"
            try:
                (target / notebook).write_bytes(_read(folder, notebook, owner, LARGEST_BYTES + 1))
            except (Refused, OSError) as error:
                self.log.warning("%s holds no %s that can be taken: %s", src, notebook, error)
            (target / SECRET).write_text(self._secret(folder, owner))
            (target / SECRET).chmod(0o600)
            (target / TIMESTAMP).write_text(os.path.basename(src).rsplit("+", 3)[2])
        finally:
            os.close(folder)

    def _secret(self, folder: int, owner: int) -> str:
        """Return the student's secret, or one that nobody knows where there is no valid one."""
        try:
            text = _read(folder, SECRET, owner, 200).decode("ascii", "replace")
        except (Refused, OSError):
            text = ""
        return text if _SECRET.fullmatch(text) else secrets.token_hex(64)


class ReleaseFeedback(ExchangeReleaseFeedback):
    """Hands the pages of `make grade` back, each under the secret of the submission.

    A page whose submission did not come through the exchange stays where it is, and its student is
    named.
    """

    def copy_files(self) -> None:
        excluded = {name for name in self.coursedir.student_id_exclude.split(",") if name}
        for page in glob.glob(os.path.join(self.src_path, "*.html")):
            folder = Path(page).parent
            student = folder.parent.name
            submitted = Path(
                self.coursedir.format_path(
                    self.coursedir.submitted_directory, student, self.coursedir.assignment_id
                )
            )
            if all((submitted / name).is_file() for name in (SECRET, TIMESTAMP)):
                for name in (SECRET, TIMESTAMP):
                    (folder / name).write_text((submitted / name).read_text())
            else:
                self.log.warning(
                    "%s did not hand in through the exchange: give them %s yourself", student, page
                )
                excluded.add(student)
        self.coursedir.student_id_exclude = ",".join(sorted(excluded))
        super().copy_files()


def _not_theirs(information: os.stat_result, username: str) -> str:
    """Return why a submission is not the user's own, or ""."""
    if not stat.S_ISDIR(information.st_mode):
        return "it is no folder"
    try:
        owner = pwd.getpwuid(information.st_uid).pw_name
    except KeyError:
        owner = f"user {information.st_uid}"
    return "" if owner == username else f"it is in the name of {username} and belongs to {owner}"


def _read(folder: int, name: str, owner: int, limit: int) -> bytes:
    """Return the first ``limit`` bytes of a plain file of ``owner`` in an open folder; links and
    pipes are refused.
    """
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        information = os.fstat(file)
        if not stat.S_ISREG(information.st_mode):
            raise Refused("it is no plain file")
        if information.st_uid != owner:
            raise Refused("it belongs to another user")
        return stream.read(limit)
