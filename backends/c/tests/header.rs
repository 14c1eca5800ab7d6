//! The header is what its sources say.
#![expect(clippy::expect_used, reason = "a test that cannot read the sources has failed")]

use std::fs;
use std::path::{Path, PathBuf};

/// Sources of the header, in its order.
const SOURCES: [&str; 15] = [
    "types",
    "platform",
    "device",
    "lifecycle",
    "port",
    "regions",
    "queues",
    "xrc",
    "post",
    "completion",
    "poll",
    "datagrams",
    "drain",
    "event",
    "text",
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> PathBuf {
    package().join("include/bareverbs.h")
}

/// Generates the header.
fn generated() -> String {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).expect("cbindgen.toml is a configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(package().join("src").join(source).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    String::from_utf8(text).expect("a header is text")
}

#[test]
fn the_header_is_what_its_sources_say() {
    let have = fs::read_to_string(header()).expect("the header is there");
    let generated = generated();
    for (number, (have, generated)) in (1..).zip(have.lines().zip(generated.lines())) {
        assert_eq!(have, generated, "line {number}: cargo test -p bareverbs-c --test header -- --ignored writes it");
    }
    assert_eq!(have.len(), generated.len(), "one of them goes on");
}

/// Every function that is exported is in the header.
#[test]
fn every_exported_function_is_in_the_header() {
    let generated = generated();
    let mut functions = 0;
    for entry in fs::read_dir(package().join("src")).expect("the sources are there") {
        let source = fs::read_to_string(entry.expect("a file").path()).expect("a source");
        for line in source.lines().filter(|line| line.contains("extern \"C\" fn bv_")) {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a name");
            assert!(generated.contains(&format!("{name}(")), "{name} is missing");
            functions += 1;
        }
    }
    assert!(functions > 20, "{functions}");
}

#[test]
#[ignore = "writes the header"]
fn write() {
    fs::write(header(), generated()).expect("the header can be written");
}
