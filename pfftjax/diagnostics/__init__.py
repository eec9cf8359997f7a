"""What pfftjax says of itself and of the machine: `info`, and ``python -m pfftjax doctor``."""
