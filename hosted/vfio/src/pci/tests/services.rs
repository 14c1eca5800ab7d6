//! The files of systemd for a card that is bound at boot.

use std::path::Path;
use std::process::Command;

/// Returns the text of a file in `examples/systemd`.
fn example(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/systemd").join(name)).unwrap()
}

/// The program is not installed here: systemd is shown another one.
#[test]
fn systemd_accepts_the_services() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["bareverbs-bind@.service", "bareverbs-job@.service"];
    for name in names {
        let text = example(name);
        assert!(text.lines().any(|line| line.starts_with("ExecStart=/usr/local/bin/bareverbs ")), "{name}");
        std::fs::write(folder.path().join(name), text.replace("/usr/local/bin/bareverbs", "/bin/true")).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").args(names.map(|name| folder.path().join(name)));
    // A machine without systemd has nothing to ask.
    let Ok(verified) = verify.output() else { return };
    let said = String::from_utf8_lossy(&verified.stderr);
    let about_them: Vec<_> = said.lines().filter(|line| line.contains("bareverbs")).collect();
    assert!(about_them.is_empty(), "{said}");
}

/// The classes of the kernel's files: vfio (groups), vfio-dev (a function's own file), misc (iommufd).
#[test]
fn the_rule_has_each_file_of_vfio() {
    let rules = example("70-bareverbs.rules");
    for class in ["vfio", "vfio-dev", "misc"] {
        let line = rules.lines().find(|line| line.starts_with(&format!("SUBSYSTEM==\"{class}\", "))).unwrap();
        assert!(line.ends_with("GROUP=\"bareverbs\", MODE=\"0660\"") && !line.contains("0666"), "{line}");
    }
}
