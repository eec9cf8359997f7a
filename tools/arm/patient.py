"""A plugin of pytest's: tests take the time that they take, also those whose marker allows less.

Emulated, and on a busy machine, a test may need a hundred times as long as it does here.
"""


def pytest_collection_modifyitems(items):
    for item in items:
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if mark.name != "timeout"]
