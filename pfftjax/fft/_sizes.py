"""Sizes of meshes that may be chosen freely."""


def smooth_size(n: int) -> int:
    """The least even number from `n` on without prime factors beyond 5: its transform is fast."""
    n += n % 2
    while not _is_smooth(n):
        n += 2
    return n


def _is_smooth(n: int) -> bool:
    for prime in (2, 3, 5):
        while n % prime == 0:
            n //= prime
    return n == 1
