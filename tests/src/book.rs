//! Tables of the book, to be compared with what the code does.

use std::fs;
use std::path::Path;

/// Returns the cells of the table under a heading of a page of the book, row by row, without the table's head.
pub fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src").join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let section = text.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("{page} has no section {heading:?}"));
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.skip(1).map(|row| row.split(" | ").map(str::to_string).collect()).collect()
}
