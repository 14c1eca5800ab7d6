//! The environment variable that names the profile of devices, in processes of its own.

use std::process::Command;

use bareverbs_testing::{Faults, pair};

/// The test that the other one runs in a process with the variable.
const SHOWS: &str = "shows_its_card";

#[test]
fn shows_its_card() -> bareverbs_testing::TestResult {
    let [a, b] = pair(Faults::none())?;
    for node in [a, b] {
        let (id, training) = node.host.with_device(|device| (device.config().pci_device_id, device.config().link_training));
        println!("card {id:#06x}, {} ms", training.as_millis());
    }
    Ok(())
}

#[test]
fn the_environment_names_the_card_of_all_devices() {
    let with = |profile: &str| {
        let program = std::env::current_exe().unwrap();
        let done =
            Command::new(program).args(["--exact", SHOWS, "--nocapture"]).env("BAREVERBS_PROFILE", profile).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr))
    };
    for (profile, card) in
        [("connectx-5", "card 0x1017, 5900 ms"), ("instant", "card 0x1021, 0 ms"), ("", "card 0x1021, 20 ms")]
    {
        let (passed, said) = with(profile);
        assert!(passed && said.matches(card).count() == 2, "{profile}: {said}");
    }
    let (passed, said) = with("connectx-3");
    assert!(!passed && said.contains("BAREVERBS_PROFILE: no profile connectx-3; there are simulated, instant"), "{said}");
}
