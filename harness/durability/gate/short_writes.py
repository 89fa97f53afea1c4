"""Writes that end early, because the gate writes half of the bytes in the program's name."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import NamedTuple

from harness.durability.gate.calls import Request
from harness.durability.gate.target import Target

# A direct write takes whole blocks only. Few devices have larger ones.
_BLOCK = 4096
# pwritev2 writes at the position of the open file, and moves it, if it is given this offset.
_AT_POSITION = -1
# A `struct iovec` is an address and a size.
_NUMBER_BYTES = 8
_PIECE_BYTES = 16


class _Piece(NamedTuple):
    """Bytes in the program's memory."""

    address: int
    size: int


def write_half(request: Request, target: Target) -> int | None:
    """Do the first half of a write, and return the number of bytes written.

    The position of the open file moves as it does in a short write. Return None and write nothing
    if there are too few bytes. Raises OSError if the program has died or the write fails.
    """
    match request.name:
        case "sendfile":
            destination, source, at_source, size = request.arguments[:4]
            return _copy_half(target, source, at_source, destination, 0, size)
        case "copy_file_range":
            return _copy_half(target, *request.arguments[:5])
    with target.borrowed(request.arguments[0]) as file:
        pieces = _pieces(request, target)
        half = _half(sum(piece.size for piece in pieces), file)
        if half == 0:
            return None
        # Its address is that of a page, as direct writes need.
        buffer = mmap.mmap(-1, half)
        _gather(target, pieces, memoryview(buffer))
        return os.pwritev(file, [buffer], *_offset_and_flags(request))


def _pieces(request: Request, target: Target) -> list[_Piece]:
    """Return the bytes that a call writes, in their order."""
    _, address, size = request.arguments[:3]
    if request.name in ("write", "pwrite64"):
        return [_Piece(address, size)]
    beginnings = range(address, address + size * _PIECE_BYTES, _PIECE_BYTES)
    return [
        _Piece(target.read_number(at), target.read_number(at + _NUMBER_BYTES)) for at in beginnings
    ]


def _half(size: int, file: int) -> int:
    half = size // 2
    is_direct = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
    return half - half % _BLOCK if is_direct else half


def _gather(target: Target, pieces: list[_Piece], buffer: memoryview) -> None:
    """Fill a buffer with the first bytes of the pieces."""
    for piece in pieces:
        target.read_into(buffer[: piece.size], piece.address)
        buffer = buffer[piece.size :]


def _offset_and_flags(request: Request) -> tuple[int, int]:
    if request.name in ("write", "writev"):
        return _AT_POSITION, 0
    offset = ctypes.c_int64(request.arguments[3]).value
    # The fifth argument is the offset's upper half on machines of 32 bits.
    flags = request.arguments[5] if request.name == "pwritev2" else 0
    return offset, flags


def _copy_half(
    target: Target, source: int, source_offset: int, sink: int, sink_offset: int, size: int
) -> int | None:
    """Copy half of the bytes between two files of the program.

    An offset is the address where the program keeps it, or 0 for the open file's position.
    """
    with target.borrowed(source) as from_file, target.borrowed(sink) as to_file:
        begin = _offset(target, from_file, source_offset)
        # Programs ask for more than there is, to copy all.
        present = os.fstat(from_file).st_size - begin
        half = min(size, present) // 2
        if half <= 0:
            return None
        content = os.pread(from_file, half, begin)
        at = target.read_number(sink_offset) if sink_offset else _AT_POSITION
        written = os.pwritev(to_file, [content], at)
        if sink_offset:
            target.write_number(sink_offset, at + written)
        if source_offset:
            target.write_number(source_offset, begin + written)
        else:
            os.lseek(from_file, begin + written, os.SEEK_SET)
        return written


def _offset(target: Target, file: int, address: int) -> int:
    return target.read_number(address) if address else os.lseek(file, 0, os.SEEK_CUR)
