"""Links of Debian's packages, from the forms that their scripts have."""

import unittest

from guests import alternatives

SCRIPT = r"""#!/bin/sh
set -e
if [ "$1" = configure ]; then
    update-alternatives --install /usr/bin/mpirun mpirun /usr/bin/mpirun.openmpi 50 \
        --slave /usr/bin/mpiexec mpiexec /usr/bin/mpiexec.openmpi \
        --slave /usr/share/man/man1/mpirun.1.gz mpirun.1.gz /usr/share/man/man1/mpirun.openmpi.1.gz
    update-alternatives --install $link name /usr/bin/computed 10
    update-alternatives --remove mpirun /usr/bin/gone
fi
# update-alternatives --install /usr/bin/no no /usr/bin/comment 5
update-alternatives --install /usr/bin/short short
echo "update-alternatives's words
"""


class Alternatives(unittest.TestCase):
    def test_links_with_their_slaves(self):
        self.assertEqual(
            alternatives.links(SCRIPT),
            [
                ("/usr/bin/mpirun", "/usr/bin/mpirun.openmpi", 50),
                ("/usr/bin/mpiexec", "/usr/bin/mpiexec.openmpi", 50),
                ("/usr/share/man/man1/mpirun.1.gz", "/usr/share/man/man1/mpirun.openmpi.1.gz", 50),
            ],
        )

    def test_the_greatest_priority_wins_wherever_it_stands(self):
        low, high = ("/usr/bin/a", "/low", 10), ("/usr/bin/a", "/high", 20)
        for found in ([low, high], [high, low]):
            self.assertEqual(alternatives.best(found), {"/usr/bin/a": "/high"})


if __name__ == "__main__":
    unittest.main()
