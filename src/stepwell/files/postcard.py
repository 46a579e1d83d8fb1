"""The few shapes of the postcard encoding that blocks of our files use."""

import struct
from typing import Any


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def string(text: str) -> bytes:
    encoded = text.encode()
    return varint(len(encoded)) + encoded


class PostcardReader:
    """Takes values from the front of `data`; raises `ValueError` where they do not fit."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError(f"truncated: expected {count} more bytes, got {self.left}")
        self.at += count
        return self._data[self.at - count : self.at]

    def varint(self, bits: int) -> int:
        value = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise ValueError(f"a varint is longer than {bits} bits allow")
        if value >> bits:
            raise ValueError(f"a varint of {bits} bits is {value}")
        return value

    def float64(self) -> float:
        value: Any = struct.unpack("<d", self.take(8))[0]
        return float(value)

    def string(self) -> str:
        return self.take(self.varint(64)).decode()
