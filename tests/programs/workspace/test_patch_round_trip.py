"""Whatever is in a folder gets into a copy byte for byte; whatever an agent does there comes back by its patch."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.support.repositories import contents, copies_of, git, repository, write

_NAMES = [
    b"a",
    b"b.txt",
    b"C",
    b"caf\xe9",
    b"sp ace",
    b'q"t',
    b"n\nl",
    b"\\",
    b"*",
    b"-x",
    b":x",
    b".gitattributes",
    b"z.bin",
]
_TEXTS = [
    b"",
    b"one\n",
    b"no end",
    b"a\r\nb\r\n",
    b"\0\1",
    b"\xff\xfe\n",
    b"$Id$\n",
    b"* text eol=crlf ident\n",
    b"l\n" * 500,
]


def grow(folder: Path, dice: Random, steps: int) -> None:
    """Whatever a program might do to files, at random."""
    root = os.fsencode(folder)
    for _ in range(steps):
        path = os.path.join(root, *dice.choices(_NAMES, k=dice.choice([1, 1, 2, 3])))
        if any(os.path.islink(os.path.join(root, part)) for part in _parents(root, path)):
            continue
        try:
            _act(path, dice)
        except (FileExistsError, NotADirectoryError, IsADirectoryError, FileNotFoundError):
            continue


def _parents(root: bytes, path: bytes) -> list[bytes]:
    parts = os.path.relpath(path, root).split(b"/")[:-1]
    return [os.path.join(*parts[:count]) for count in range(1, len(parts) + 1)]


def _act(path: bytes, dice: Random) -> None:
    match dice.choice(["write", "write", "write", "link", "delete", "chmod", "append"]):
        case "write" | "append" as how:
            if os.path.islink(path):
                return
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb" if how == "write" else "ab") as file:
                file.write(dice.choice(_TEXTS) + dice.randbytes(dice.choice([0, 0, 50])))
        case "link":
            os.symlink(dice.choice([*_NAMES, b"/etc", b".."]), path)
        case "delete":
            os.unlink(path)
        case "chmod":
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.path.isfile(path) else 0o700)


@pytest.mark.slow
@pytest.mark.parametrize("make", [write, repository])
@pytest.mark.parametrize("number", range(5))
def test_applying_a_patch_reproduces_the_changed_folder(number: int, make: Callable[..., Path]) -> None:
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(_there_and_back(Path(place), make, Random(number)))


async def _there_and_back(place: Path, make: Callable[..., Path], dice: Random) -> None:
    user = make(place / "user", {"seed": "1\n"})
    grow(user, dice, 60)
    copies = await copies_of(user, place)
    copy = await copies.make("one")
    assert contents(copy.path) == contents(user)
    assert git(copy.path, "status", "--porcelain") == ""

    grow(copy.path, dice, 60)
    changes = await copies.changes(copy)
    (place / "patch").write_text(changes.patch, newline="")
    git(user, "apply", "--whitespace=nowarn", *["--allow-empty"] * (not changes.patch), str(place / "patch"))
    assert contents(user) == contents(copy.path)
    assert not changes.is_cut
    assert len(changes.files) >= changes.patch.count("\n--- a/")
