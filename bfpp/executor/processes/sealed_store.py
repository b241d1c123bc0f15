"""A store whose values are sealed: each begins with an HMAC of its key and itself.

Processes of a run find each other by a store of torch's, which takes whatever anyone sends who
reaches its port. With a secret that only they have, what others wrote is known as such: nobody
joins as one of them, speaks for one, or ends their run with an error of its own. Where nobody
has given the processes a secret, values pass as they are.

What is not sealed: which keys there are, counters (`add`), and NCCL's ids. Whoever reaches
the port can still delete and overwrite, so that a run ends; and nothing is encrypted.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from secrets import token_hex
from typing import Any

from torch.distributed import PrefixStore, QueueEmptyError, Store

SECRET = "BFPP_SECRET"  # noqa: S105  the name of the environment variable
LENGTH = sha256().digest_size


class Forged(Exception):
    """A value that no process of this run wrote."""


def new_secret() -> str:
    """A new secret for the environment of a run's processes, which only their user can read."""
    return token_hex(LENGTH)


def sealed(store: Store) -> Store:
    """The store as the processes of this run use it; the same one where they have no secret."""
    secret = os.environ.get(SECRET)
    return SealedStore(store, secret) if secret else store


class SealedStore(Store):
    """A store for those who have the secret; torch's process groups use it, too.

    Whoever makes a group of it, or puts a prefix before it, must also keep it: torch does not.
    """

    def __init__(self, store: Store, secret: str) -> None:
        super().__init__()
        self.below: Any = store
        self._secret = secret

    def _seal(self, key: str, value: str | bytes) -> bytes:
        content = value.encode() if isinstance(value, str) else bytes(value)
        # The key has a length of its own, so that no other pair gives the same message.
        message = b"%d %b%b" % (len(key.encode()), key.encode(), content)
        return hmac.digest(self._secret.encode(), message, sha256) + content

    def _opened(self, key: str, value: bytes) -> bytes:
        content = bytes(value[LENGTH:])
        if not hmac.compare_digest(self._seal(key, content), bytes(value)):
            raise Forged(
                f"{key!r} in the run's store was written by no process of this run: all have one "
                f"{SECRET}, and nobody else may have it"
            )
        return content

    def clone(self) -> Store:
        """A clone of this store on a connection of its own."""
        return SealedStore(self.below.clone(), self._secret)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self.below.set(key, self._seal(key, value))

    def get(self, key: str) -> bytes:
        """Wait for a value and read it. Raises `Forged` where it is another's."""
        return self._opened(key, self.below.get(key))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write a value if there is none of this run's, and return the stored one."""
        assert not expected  # noqa: S101  one that is there could not be compared
        value = self._seal(key, desired)
        try:
            return self._opened(key, self.below.compare_set(key, "", value))
        except Forged:
            self.below.set(key, value)
            return self._opened(key, value)

    def add(self, key: str, amount: int) -> int:
        """Count. A counter is not sealed."""
        return int(self.below.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        """Test for values, whoever wrote them."""
        return bool(self.below.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self.below.wait(list(keys), *([] if timeout is None else [timeout]))

    def delete_key(self, key: str) -> bool:
        """Delete a value."""
        return bool(self.below.delete_key(key))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout for values."""
        self.below.set_timeout(timeout)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append to a queue."""
        self.below.queue_push(key, self._seal(key, value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first of a queue. Raises `Forged` where it is another's."""
        return self._opened(key, self.below.queue_pop(key, block))

    def queue_len(self, key: str) -> int:
        """The number of values, whoever wrote them."""
        return int(self.below.queue_len(key))


def unsealed(store: Store) -> Store:
    """The store below, where values that are written pass as they are."""
    below = store
    while isinstance(below, PrefixStore):
        below = below.underlying_store
    return below.below if isinstance(below, SealedStore) else store


def peek(store: Store, key: str) -> bytes | None:
    """The value of a key, unless there is none of this run's; does not wait."""
    try:
        return store.get(key) if store.check([key]) else None
    except Forged:
        return None


def queued(store: Store, key: str) -> list[bytes]:
    """The items of a queue at this moment that this run wrote."""
    values = []
    for _ in range(store.queue_len(key)):
        try:
            values.append(store.queue_pop(key, False))
        except Forged:
            continue
        except QueueEmptyError:  # another has taken it
            break
    return values
