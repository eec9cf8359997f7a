"""Programs for those who work on pfftjax: they run the tests, repeat them and plant faults."""
