"""What a program will communicate, written into it while it is lowered.

On its first call a program compares its list of collectives with the other ranks' (in C++:
agreement.h), before a difference can hang or mix data. The list is only known when the last
collective has been lowered, so it is written into the first one and updated as it grows. A
collective that no other one is certain to precede carries the list too (in the branch of a
`cond`, say): one of these is the first to run, whichever way control flow goes.

JAX lowers the bodies of loops and branches aside and copies them in, so the copies keep the list
as it was when they were made; the first collective after them carries the rest.

Point-to-point operations are not on the list: ranks may differ in them.

An operation that does something on the first call of its program only (`same`) knows its place in
the list: the signature of the collectives up to and including it, which is the same on all ranks.

Each operation also carries a key, made of the list as far as it went then: by it the line of the
user's program is found that an error names (call_sites.py).
"""

import base64
import dataclasses
import hashlib
import itertools
import weakref

import numpy as np
from jax.interpreters import mlir

from . import call_sites

_CONFIG = "mhlo.backend_config"
# The text is for error messages; the signature covers all of the list.
_MOST_LINES = 64


@dataclasses.dataclass
class _List:
    """The collectives of one program on one communicator, so far."""

    digest: hashlib.blake2b = dataclasses.field(default_factory=hashlib.blake2b)
    lines: list[str] = dataclasses.field(default_factory=list)
    # With their keys.
    carriers: list[tuple[mlir.ir.OpView, str]] = dataclasses.field(default_factory=list)

    def add(self, line: str) -> None:
        self.digest.update(line.encode() + b"\n")
        if len(self.lines) < _MOST_LINES:
            self.lines.append(line)

    @property
    def signature(self) -> int:
        return int.from_bytes(self.digest.digest()[:8], "little", signed=True) or 1

    @property
    def key(self) -> str:
        return _key(self.digest) if self.lines else ""

    def write(self) -> None:
        for carrier, key in self.carriers:
            program = "\n".join([key, *self.lines])
            _write(carrier, signature=np.int64(self.signature), program=program)


def _key(digest: hashlib.blake2b) -> str:
    """Eight characters, as cpp/runtime/call_sites.h takes them."""
    return base64.b64encode(digest.digest()[:6]).decode()


def _as_number(key: str) -> np.int64:
    """The same bytes for a call that carries no list, where the signature's place is free."""
    return np.frombuffer(key.encode(), np.int64)[0]


@dataclasses.dataclass
class _Program:
    lists: dict[int, _List] = dataclasses.field(default_factory=dict)
    number: int = dataclasses.field(default_factory=itertools.count().__next__)
    messages: hashlib.blake2b = dataclasses.field(default_factory=hashlib.blake2b)
    # Each operation has here the communicators with a collective that is certain to precede it.
    preceding: dict[mlir.ir.Operation, frozenset[int]] = dataclasses.field(default_factory=dict)


def _write(operation: mlir.ir.OpView, **attributes: np.int64 | str) -> None:
    config = mlir.ir.DictAttr(operation.attributes[_CONFIG])
    entries = {config[i].name: config[i].attr for i in range(len(config))}
    entries |= {name: mlir.ir_attribute(value) for name, value in attributes.items()}
    operation.attributes[_CONFIG] = mlir.ir.DictAttr.get(entries)


# A custom call says this before it is recorded, and where there is one rank.
NO_LIST = {"signature": np.int64(0), "program": ""}
# An operation that is told its place says this in addition, before it is recorded.
NO_PLACE = {"place": np.int64(0)}

_programs: weakref.WeakKeyDictionary[mlir.ir.Module, _Program] = weakref.WeakKeyDictionary()


def record(
    ctx: mlir.LoweringRuleContext,
    token: mlir.ir.Value,
    operation: mlir.ir.OpView,
    communicator: int,
    call: str,
    *,
    listed: bool,
) -> None:
    """Take note of `operation`, just lowered.

    Args:
        ctx: context of the lowering rule.
        token: the token that the operation takes; it tells which operation comes before.
        operation: the custom call.
        communicator: number of its communicator.
        call: the operation with what ranks must agree on, as a line of text.
        listed: whether they must; not for a point-to-point operation.

    """
    program = _programs.setdefault(ctx.module_context.module, _Program())
    before = token.owner  # a block for the argument of a function or of a region
    preceding: frozenset[int] = frozenset()
    if not isinstance(before, mlir.ir.Block):
        preceding = program.preceding.get(before.operation, preceding)
    collectives = program.lists.setdefault(communicator, _List())
    last = collectives.key
    if listed:
        collectives.add(call)
        key = collectives.key
        call_sites.note_lowered(communicator, key, last, collectives.signature, program.number)
        if communicator not in preceding:
            collectives.carriers.append((operation, key))
            preceding |= {communicator}
        else:
            _write(operation, signature=_as_number(key))
        collectives.write()
        if "place" in mlir.ir.DictAttr(operation.attributes[_CONFIG]):
            _write(operation, place=np.int64(collectives.signature))
    else:
        program.messages.update(f"{last} {communicator} {call}\n".encode())
        key = _key(program.messages)
        call_sites.note_lowered(communicator, key, last, 0, program.number)
        _write(operation, signature=_as_number(key))
    program.preceding[operation.operation] = preceding
