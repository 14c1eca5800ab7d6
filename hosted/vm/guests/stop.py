"""Whether the user has interrupted the run."""

import threading

from .errors import Interrupted


class Stop:
    """Whether the user has interrupted the run."""

    def __init__(self):
        self.event = threading.Event()

    def check(self):
        """Raises Interrupted if the user has interrupted the run."""
        if self.event.is_set():
            raise Interrupted
