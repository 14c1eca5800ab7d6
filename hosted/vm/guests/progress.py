"""What the user sees while a guest is prepared."""

import shutil


class Progress:
    """Lines about steps, and the share of a step that is done: in place on a terminal, at each quarter elsewhere."""

    def __init__(self, name, stream):
        self._name = name
        self._stream = stream
        self._terminal = stream.isatty()
        self._step = ""
        self._quarter = 0
        self._open = False

    def step(self, text):
        """Says what is done now."""
        self.end()
        self._step, self._quarter = text, 0
        self._print(f"{self._name}: {text}\n")

    def done(self, per_cent, detail=""):
        """Says how much of the step is done."""
        line = f"{self._name}: {self._step}: {per_cent:.0f} % {detail}".rstrip()
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._print(f"\r{line[:width]:{width}}")
            self._open = True
        elif int(per_cent // 25) > self._quarter:
            self._quarter = int(per_cent // 25)
            self._print(f"{line}\n")

    def end(self):
        """Ends a line that is changed in place."""
        if self._open:
            self._open = False
            self._print("\n")

    def _print(self, text):
        # One that nobody reads is lost.
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            pass
