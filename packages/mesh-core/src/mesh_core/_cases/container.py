"""The zip file around a case, read as if an attacker had written it.

Python's `zipfile` allocates memory for any size that a file declares, so the end of the file is
checked before `zipfile` opens it, and members are decompressed piece by piece. Names of members are
never used as paths.
"""

from __future__ import annotations

import os
import re
import stat
from io import BytesIO
from struct import Struct
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from mesh_core._cases.errors import InvalidPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import IO
    from zipfile import ZipInfo

__all__ = ["CONTENT_LEN_MAX", "FILE_LEN_MAX", "MANIFEST", "MEMBERS_MAX", "Container"]

MANIFEST = "case.json"
# Below the limits at which a zip file needs the fields of ZIP64, which this reader rejects.
FILE_LEN_MAX = 1 << 30
MEMBERS_MAX = 60_000
# Maximum length of all members together after decompression.
CONTENT_LEN_MAX = 1 << 30
_NAME = re.compile("case[.]json|actors/(0|[1-9][0-9]{0,3})[.]jsonl|payloads/[0-9a-f]{64}")
# Entry of a member in the central directory: 46 bytes, the name, and extra fields.
_DIRECTORY_LEN_MAX = MEMBERS_MAX * 256
_CHUNK_LEN = 1 << 20
# The end record: signature, two disk numbers, members on this disk, members, length and position of
# the central directory, length of the comment.
_END = Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_LOCATOR_LEN = 20
_LOCATOR_SIGNATURE = b"PK\x06\x07"
_ENCRYPTED = 1


class Container:
    """An open case file; a context manager.

    Attributes:
        file_len: The length of the file in bytes.
        content_len: The length of the members in bytes, after decompression.
        names: The names of the members.

    Raises:
        InvalidPart: The file is not a zip file with the members of a case, or exceeds a limit.
        OSError: The file cannot be opened or read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # A pipe would block here, and a device would have no end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise InvalidPart("the file", "it is not a regular file", "pass the path of a case")
        self._file: IO[bytes] = os.fdopen(fd, "rb")
        try:
            self.file_len = status.st_size
            self._check_end()
            self._zip = self._open_zip()
            self._members = self._index()
        except BaseException:
            self._file.close()
            raise
        self.content_len = sum(member.file_size for member in self._members.values())
        self._unread_len = CONTENT_LEN_MAX
        self.names = frozenset(self._members)

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._zip.close()
        self._file.close()

    def content_len_of(self, name: str) -> int:
        """Return the length of a member after decompression; 0 if it is missing."""
        member = self._members.get(name)
        return 0 if member is None else member.file_size

    def read(self, name: str, len_max: int = CONTENT_LEN_MAX) -> bytes:
        """Decompress a member.

        Args:
            name: The name of the member.
            len_max: Its maximum length in bytes after decompression.
        """
        member = self._members.get(name)
        if member is None:
            raise InvalidPart(name, "it is missing")
        if member.file_size > len_max:
            raise InvalidPart(name, f"it has {member.file_size} bytes, more than {len_max}")
        # Unlike joining pieces, this holds the content only once.
        content = BytesIO()
        length = 0
        try:
            with self._zip.open(member) as stream:
                while chunk := stream.read(_CHUNK_LEN):
                    length += len(chunk)
                    self._unread_len -= len(chunk)
                    if length > member.file_size or self._unread_len < 0:
                        raise InvalidPart(name, "it is longer than it declares")
                    content.write(chunk)
        except (InvalidPart, MemoryError):
            raise
        except Exception as error:
            raise InvalidPart(name, f"it cannot be decompressed ({error})") from None
        if length != member.file_size:
            raise InvalidPart(name, "it is shorter than it declares")
        return content.getvalue()

    def _check_end(self) -> None:
        """Check the end record, which has the length of the directory that `zipfile` reads next."""
        if self.file_len > FILE_LEN_MAX:
            problem = f"it has {self.file_len} bytes, more than {FILE_LEN_MAX}"
            raise InvalidPart("the file", problem)
        if self.file_len < _END.size:
            raise InvalidPart("the file", f"it has only {self.file_len} bytes")
        self._file.seek(max(0, self.file_len - _END.size - _LOCATOR_LEN))
        tail = self._file.read(_LOCATOR_LEN + _END.size)
        signature, _, _, _, members, directory_len, directory_at, comment_len = _END.unpack(
            tail[-_END.size :]
        )
        if signature != _END_SIGNATURE or comment_len:
            raise InvalidPart("the file", "the end of a zip file is missing")
        if tail[:4] == _LOCATOR_SIGNATURE and len(tail) == _LOCATOR_LEN + _END.size:
            raise InvalidPart("the file", "it uses ZIP64, which cases do not need")
        if members > MEMBERS_MAX or directory_len > _DIRECTORY_LEN_MAX:
            raise InvalidPart("the file", f"it has more than {MEMBERS_MAX} members")
        if directory_at + directory_len + _END.size != self.file_len:
            raise InvalidPart("the file", "bytes are missing or were added")

    def _open_zip(self) -> ZipFile:
        try:
            return ZipFile(self._file)
        except MemoryError:
            raise
        # `zipfile` raises many types for damaged files, from struct.error to UnicodeDecodeError.
        except Exception as error:
            raise InvalidPart("the file", f"its directory is damaged ({error})") from None

    def _index(self) -> dict[str, ZipInfo]:
        members: dict[str, ZipInfo] = {}
        total = 0
        for member in self._zip.infolist():
            # `filename` is the name after changes by zipfile, which for example cuts it at a NUL.
            name = member.orig_filename
            shown = ascii(name[:100])
            if name != member.filename or _NAME.fullmatch(name) is None:
                raise InvalidPart("the file", f"a case has no member {shown}")
            if name in members:
                raise InvalidPart("the file", f"the member {shown} appears twice")
            if member.flag_bits & _ENCRYPTED:
                raise InvalidPart(name, "it is encrypted")
            if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                raise InvalidPart(name, f"it uses compression method {member.compress_type}")
            total += member.file_size
            members[name] = member
        if len(members) > MEMBERS_MAX:
            raise InvalidPart("the file", f"it has more than {MEMBERS_MAX} members")
        if total > CONTENT_LEN_MAX:
            problem = f"its members have {total} bytes, more than {CONTENT_LEN_MAX}"
            raise InvalidPart("the file", problem)
        return members
