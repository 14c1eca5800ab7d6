"""Parts of pages that commands write."""

import pathlib
import tempfile
import unittest
from unittest import mock

from harness import marked_page

PAGE = """before
<!-- begin speed-of-one: written by a -->
one
<!-- end speed-of-one -->
between
<!-- begin speed: written by b -->
two
<!-- end speed -->
after
"""


class MarkedPageTest(unittest.TestCase):
    def test_a_part_whose_name_begins_as_that_of_another_is_written_alone(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(marked_page, "BOOK", pathlib.Path(folder)):
            page = pathlib.Path(folder) / "page.md"
            page.write_text(PAGE, encoding="utf-8")
            self.assertTrue(marked_page.write("page.md", "speed", "three"))
            self.assertEqual(page.read_text(encoding="utf-8"), PAGE.replace("two", "three"))
            self.assertEqual(marked_page.read("page.md", "speed-of-one"), "one")
            self.assertFalse(marked_page.write("page.md", "speed-of-one", "one"))
            with self.assertRaises(marked_page.PageError):
                marked_page.read("page.md", "spee")


if __name__ == "__main__":
    unittest.main()
