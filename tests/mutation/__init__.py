"""Mutation testing: which changes of a package's code the tests find. tests/scripts/mutation is the command."""
