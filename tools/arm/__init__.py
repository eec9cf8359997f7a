"""pfftjax on Arm, emulated on a machine that is none; what runs it is `__main__.py`."""
