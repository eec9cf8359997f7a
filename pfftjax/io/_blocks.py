"""The format bigfile: a table is a folder of plain files, which many ranks write at once.

The folder of a block has a text `header` (the type of the numbers, how many there are in a row,
and the rows and the checksum of each file), files `000000` and so on with the rows as they are in
memory, and a text `attr-v2` with attributes, whose values are hexadecimal digits. Numbers of files
are hexadecimal, too. https://github.com/MP-Gadget/bigfile has the library that defines it.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

HEADER, ATTRIBUTES = "header", "attr-v2"
# Rows are read and written in pieces of so many bytes at most.
_PIECE_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True)
class Block:
    """A table in a folder.

    Attributes:
        folder: of its files.
        dtype: of the numbers, with their order of bytes.
        width: numbers in a row.
        rows: of each file.

    """

    folder: pathlib.Path
    dtype: np.dtype
    width: int
    rows: tuple[int, ...]

    @property
    def total(self) -> int:
        """Rows of all files."""
        return sum(self.rows)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * self.width

    @classmethod
    def at(cls, folder: pathlib.Path) -> "Block":
        """The block in a folder.

        Raises:
            KeyError: there is none.
            ValueError: its header cannot be understood.

        """
        header = folder / HEADER
        if not header.is_file():
            there = sorted(str(p.parent.relative_to(folder.parent)) for p in
                           folder.parent.glob(f"*/{HEADER}"))  # fmt: skip
            raise KeyError(f"there is no block {folder}; {folder.parent} has {there}")
        try:
            lines = [line.split(":") for line in header.read_text().splitlines() if line.strip()]
            head = {name.strip(): value.strip() for name, value, *_ in lines[:3]}
            dtype, width, files = np.dtype(head["DTYPE"]), int(head["NMEMB"]), int(head["NFILE"])
            by_number = {int(name, 16): int(value) for name, value, *_ in lines[3:]}
            rows = tuple(by_number[number] for number in range(files))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{header} is no header of a block of bigfile: {error}") from error
        return cls(folder, dtype, width, rows)

    def create(self) -> None:
        """Make the folder, with files of the right sizes."""
        self.folder.mkdir(parents=True)
        for number, rows in enumerate(self.rows):
            with open(self.file(number), "wb") as file:
                file.truncate(rows * self.row_bytes)

    def write(self, start: int, values: np.ndarray) -> np.ndarray:
        """Write rows from `start` on; the sums of the bytes that went into each file."""
        sums = np.zeros(len(self.rows), np.uint64)
        values = np.ascontiguousarray(values, self.dtype).reshape(len(values), self.width)
        for number, low, count, at in self._spans(start, len(values)):
            piece = values[at : at + count].reshape(-1).view(np.uint8)
            sums[number] += piece.sum(dtype=np.uint64)
            with open(self.file(number), "r+b") as file:
                file.seek(low * self.row_bytes)
                file.write(piece.data)
                file.flush()
                os.fsync(file.fileno())
        return sums

    def finish(self, sums: Sequence[int], attributes: Mapping[str, object]) -> None:
        """Write the texts, with the sums of the bytes of all ranks."""
        lines = [f"DTYPE: {self.dtype.str}", f"NMEMB: {self.width}", f"NFILE: {len(self.rows)}"]
        for number, (rows, total) in enumerate(zip(self.rows, sums, strict=True)):
            # The checksum of System V's program sum, and what it is made of.
            whole = int(total) & 0xFFFFFFFF
            folded = (whole & 0xFFFF) + (whole >> 16)
            folded = (folded & 0xFFFF) + (folded >> 16)
            lines.append(f"{number:06X}: {rows} : {folded} : {whole}")
        (self.folder / HEADER).write_text("\n".join(lines) + "\n")
        write_attributes(self.folder, attributes)

    def read(self, start: int, count: int) -> np.ndarray:
        """So many rows from `start` on, (count, width), or (count,) of one number each.

        Raises:
            OSError: a file is lost or too short.

        """
        result = np.empty((count, self.width), self.dtype)
        for number, low, rows, at in self._spans(start, count):
            with open(self.file(number), "rb") as file:
                file.seek(low * self.row_bytes)
                piece = result[at : at + rows].reshape(-1).view(np.uint8)
                if file.readinto(piece.data) != piece.size:
                    raise OSError(f"{self.file(number)} is too short; the block is not complete")
        return result[:, 0] if self.width == 1 else result

    def file(self, number: int) -> pathlib.Path:
        """The path of a file."""
        return self.folder / f"{number:06X}"

    def _spans(self, start: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """(file, first row there, rows, place from `start`) of rows, in pieces."""
        most = max(1, _PIECE_BYTES // max(self.row_bytes, 1))
        begin = 0
        for number, rows in enumerate(self.rows):
            low, high = max(start, begin), min(start + count, begin + rows)
            for row in range(low, high, most):
                yield number, row - begin, min(most, high - row), row - start
            begin += rows


def write_attributes(folder: pathlib.Path, attributes: Mapping[str, object]) -> None:
    """Write the attributes of a block: numbers, arrays of them in a row, and strings."""
    lines = []
    for name, value in sorted(attributes.items()):
        if isinstance(value, str):
            array, text = np.frombuffer(value.encode(), "S1"), value
            dtype = "<a1"
        else:
            array = np.ravel(np.asarray(value))
            array = array.astype(array.dtype.newbyteorder("<"))
            text, dtype = " ".join(map(str, array.tolist())), array.dtype.str
        data = array.tobytes().hex().upper()
        lines.append(f"{name} {dtype} {array.size} {data} #HUMANE [ {text} ]\n")
    (folder / ATTRIBUTES).write_text("".join(lines))


def read_attributes(folder: pathlib.Path) -> dict[str, np.ndarray | str]:
    """The attributes of a block.

    Raises:
        ValueError: they cannot be understood.

    """
    path = folder / ATTRIBUTES
    result: dict[str, np.ndarray | str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            name, dtype, size, data = line.split("#HUMANE")[0].split()
            raw = bytes.fromhex(data)
            if dtype[-2:] in ("a1", "S1"):
                result[name] = raw.decode()
            else:
                result[name] = np.frombuffer(raw, dtype, int(size))
        except ValueError as error:
            raise ValueError(f"{path}: no attribute of bigfile: {line!r} ({error})") from error
    return result
