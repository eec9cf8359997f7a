"""What checks annotations where PFFTJAX_TEST_TYPES is set (tests/conftest.py)."""

from beartype import BeartypeConf, beartype

# As for Python's type checkers, an int is a float and a float is a complex number.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
