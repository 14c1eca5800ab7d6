"""Errors that end a run."""


class SetUpError(Exception):
    """Something that cases need could not be fetched or built; the text says which step failed and how."""


class Failed(Exception):
    """A case, or a process of it, that did not do what it should."""


class Interrupted(Exception):
    """The user interrupted the run."""
